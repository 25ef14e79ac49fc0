"""The tests' own machinery: what it promises to catch, it catches."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run_test(folder: Path, source: str, *options: str) -> str:
    """The output of pytest on a test of this text, with our configuration and plugin."""
    (folder / "test_it.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "support.async_tests"]
    ended = subprocess.run(
        [*command, "-p", "no:randomly", *options, str(folder / "test_it.py")],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=50,
    )
    return ended.stdout


CAUGHT = [
    (
        "a leaked task",
        "import asyncio as a\nasync def test_it():\n    test_it.stray = a.ensure_future(a.Event().wait())\n",
        "left these tasks running",
    ),
    (
        "a leaked thread",
        "from threading import *\ndef test_it():\n    Thread(target=Event().wait, name='stray', daemon=True).start()\n",
        "left these threads running: stray",
    ),
    ("a warning", "import warnings\ndef test_it():\n    warnings.warn('careless')\n", "UserWarning: careless"),
    (
        "a coroutine nobody awaited",
        "import asyncio\nasync def test_it():\n    asyncio.sleep(0)\n",
        "was never awaited",
    ),
    ("an unknown marker", "import pytest\n@pytest.mark.typo\ndef test_it(): ...\n", "'typo' not found in `markers`"),
    (
        "a virtual test that waits for ever",
        "import asyncio, pytest\n@pytest.mark.virtual_time\nasync def test_it():\n    await asyncio.Event().wait()\n",
        "every task waits for something that can never happen",
    ),
]


@pytest.mark.parametrize(("what", "source", "sentence"), CAUGHT, ids=[what for what, _, _ in CAUGHT])
def test_it_fails_a_test_for(what: str, source: str, sentence: str, short_folder: Path):
    output = run_test(short_folder, source)

    assert sentence in output
    assert " passed" not in output.splitlines()[-1] or " error" in output.splitlines()[-1], what


def test_a_test_that_hangs_is_ended_and_the_others_still_run(short_folder: Path):
    source = "import asyncio\nasync def test_it():\n    await asyncio.Event().wait()\ndef test_other(): ...\n"

    output = run_test(short_folder, source, "--timeout=6")

    assert "1 failed, 1 passed" in output


def test_an_async_test_that_keeps_house_passes(short_folder: Path):
    source = "import asyncio\nasync def test_it():\n    await asyncio.to_thread(lambda: None)\n"

    assert "1 passed" in run_test(short_folder, source)
