"""The tests' own machinery: what it promises to catch, it catches."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support.csi.grpcio_servers import stop_grpcio_server
from support.places import REPOSITORY


def run_test(folder: Path, source: str, *options: str) -> str:
    """Return the output of pytest on a test of this text, with our configuration and plugins."""
    (folder / "test_it.py").write_text(source)
    return run_tests(folder, *options)


def run_tests(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-c", str(REPOSITORY / "pyproject.toml"), "-p", "support.hangs"]
    command += ["-p", "support.async_tests"]
    ended = subprocess.run(
        [*command, "-p", "no:randomly", *options, str(folder)],
        check=False,
        capture_output=True,
        text=True,
        cwd=folder,
        timeout=200,
    )
    return ended.stdout + ended.stderr


CAUGHT = [
    (
        "a leaked task",
        "import asyncio as a\nasync def test_it():\n    test_it.stray = a.ensure_future(a.Event().wait())\n",
        "left these tasks running",
    ),
    (
        "a leaked thread",
        """
from threading import *
import support.async_tests as harness
harness.THREAD_END_SECONDS = 0.1
def test_it():
    Thread(target=Event().wait, name='stray', daemon=True).start()
""",
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


@pytest.fixture(scope="module")
def output_of_caught(tmp_path_factory: pytest.TempPathFactory) -> str:
    """All in one run: most of the time of one is pytest's start."""
    folder = tmp_path_factory.mktemp("caught")
    for number, (_, source, _) in enumerate(CAUGHT):
        (folder / f"test_case_{number}.py").write_text(source.replace("test_it", f"test_case_{number}"))
    return run_tests(folder, "--continue-on-collection-errors")


@pytest.mark.parametrize("number", range(len(CAUGHT)), ids=[what for what, _, _ in CAUGHT])
def test_it_fails_a_test_for(number: int, output_of_caught: str):
    _, _, sentence = CAUGHT[number]

    assert sentence in output_of_caught
    assert re.search(rf"^(FAILED|ERROR) \S*test_case_{number}\b", output_of_caught, re.MULTILINE)


HANGING_TASK = """
import asyncio
import pytest
async def wait_for_nothing():
    await asyncio.Event().wait()
@pytest.mark.timeout(6)
async def test_it():
    task = asyncio.create_task(wait_for_nothing(), name="the hanging task")
    await task
def test_other(): ...
"""
HANGING_THREAD = """
import threading
def wait_for_nothing():
    threading.Event().wait()
def test_it():
    wait_for_nothing()
def test_other(): ...
"""


def test_a_test_that_hangs_is_ended_with_the_stacks_of_its_tasks_and_the_others_still_run(short_folder: Path):
    output = run_test(short_folder, HANGING_TASK)

    assert re.search(r"timeout: \S*::test_it did not end", output)
    assert "the hanging task" in output
    assert "in wait_for_nothing" in output
    assert "1 failed, 1 passed" in output


def test_a_worker_whose_test_hangs_outside_of_asyncio_is_replaced_and_says_where_it_hung(short_folder: Path):
    output = run_test(short_folder, HANGING_THREAD, "--timeout=1", "-n1")

    assert re.search(r"timeout: \S*::test_it did not end", output)
    assert "in wait_for_nothing" in output
    assert "1 failed, 1 passed" in output


def test_whatever_a_worker_started_ends_with_it_also_when_it_is_killed(short_folder: Path):
    # A child, a grandchild whose parent has ended, and one in a session of its own; all hold the pipe's other end.
    held = "sleep 1000 & (sleep 1000 &) ; setsid sleep 1000"
    program = f"import os, subprocess, signal; subprocess.Popen(['sh', '-c', {held!r}]); os.kill(os.getpid(), 9)"
    worker = [str(REPOSITORY / "tools" / "test_worker.sh"), "-c", program]
    ended = subprocess.run(worker, cwd=REPOSITORY, stdout=subprocess.PIPE, timeout=200, check=False)

    assert ended.returncode == 128 + signal.SIGKILL
    assert ended.stdout == b""  # at its end: nobody holds it any more


async def test_what_grpcio_needs_to_end_a_call_is_waited_for():
    ended = asyncio.Event()

    async def call() -> None:
        for _ in range(1000):
            await asyncio.sleep(0)
        ended.set()

    class Server:
        async def stop(self, grace: float) -> None:
            self.call = asyncio.create_task(call(), name="HandleExceptions[/t.T/Echo]")

    await stop_grpcio_server(Server())  # type: ignore[arg-type]

    assert ended.is_set()


def test_an_async_test_that_keeps_house_passes(short_folder: Path):
    source = "import asyncio\nasync def test_it():\n    await asyncio.to_thread(lambda: None)\n"

    assert "1 passed" in run_test(short_folder, source)
