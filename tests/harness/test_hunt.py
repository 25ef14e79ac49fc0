"""`make hunt`: what fails sometimes is found, with what repeats it, and nothing of it stays behind."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import SOAK
from support.places import REPOSITORY
from support.waiting import eventually_there

FAILS_THE_FIRST_TIME = """
import pathlib
def test_fickle():
    runs = pathlib.Path(__file__).with_name("runs")
    runs.write_text(runs.read_text() + "x" if runs.exists() else "x")
    assert len(runs.read_text()) > 1
def test_steady(): ...
"""
HANGS = """
import pathlib, threading
def test_it():
    pathlib.Path(__file__).with_name("runs").touch()
    threading.Event().wait()
"""


def start_hunt(folder: Path, source: str, *, runs: int, loaded: int) -> subprocess.Popen[str]:
    (folder / "test_it.py").write_text(source)
    return subprocess.Popen(
        [sys.executable, "tools/hunt.py", "-c", "pyproject.toml", str(folder / "test_it.py")],
        cwd=REPOSITORY,
        env={**os.environ, "HUNT_RUNS": str(runs), "HUNT_LOADED": str(loaded), "WORKERS": "1", "TMPDIR": str(folder)},
        stdout=subprocess.PIPE,
        text=True,
    )


def busy_loops() -> int:
    return sum(is_busy_loop(process) for process in Path("/proc").glob("[0-9]*"))


def is_busy_loop(process: Path) -> bool:
    # A process may end between the listing and the read: then opening, or reading what is open, fails.
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        command = (process / "cmdline").read_bytes()
        return command.startswith(b"sh\0") and b"busy loop of the hunt" in command
    return False


def test_it_goes_on_after_a_failure_and_prints_what_repeats_it(short_folder: Path):
    # Busy loops for a whole run take both cores from the tests beside this one.
    loaded = 1 if SOAK else 0
    with start_hunt(short_folder, FAILS_THE_FIRST_TIME, runs=2, loaded=loaded) as hunt:
        output, _ = hunt.communicate(timeout=200)

    assert hunt.returncode == 1
    seed = re.search(r"run 1 of 2: seed (\d+): \d+ s: 1 failed, 1 passed", output)
    assert seed is not None, output
    assert re.search(rf"alone: tools/test.sh --randomly-seed={seed[1]} \S*::test_fickle\n", output)
    beside = ", beside 4 busy loops" * loaded
    assert re.search(rf"run 2 of 2: seed \d+{beside}: \d+ s: 2 passed", output)
    assert "hunt: 2 runs, 1 failed, 1 different tests" in output
    assert busy_loops() == 0


def test_a_hunt_that_is_killed_leaves_no_busy_loop(short_folder: Path):
    with start_hunt(short_folder, HANGS, runs=1, loaded=1) as hunt:
        eventually_there((short_folder / "runs").exists)
        assert busy_loops() == 4
        hunt.kill()

    eventually_there(lambda: busy_loops() == 0)
