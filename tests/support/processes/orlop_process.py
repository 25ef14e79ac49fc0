"""The real program, as a process of its own."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import BytesIO, TextIOWrapper
from pathlib import Path

import pytest

import orlop.__main__ as orlop_main
from support.waiting import eventually

ORLOP = [sys.executable, "-W", "error", "-m", "orlop"]


@dataclass
class Running:
    """An `orlop` daemon that a test started."""

    process: subprocess.Popen[str]
    output: Path

    def logged(self) -> str:
        return self.output.read_text()

    async def says(self, text: str) -> None:
        await eventually(lambda: text in self.logged() or self.ended())
        assert text in self.logged(), self.logged()

    def ended(self) -> bool:
        return self.process.poll() is not None

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        await eventually(self.ended)
        return self.process.wait()


@contextmanager
def running(folder: Path, *arguments: str, program: Sequence[str] = ORLOP) -> Iterator[Running]:
    output = folder / f"output-{os.urandom(4).hex()}"
    with output.open("w") as stream:
        process = subprocess.Popen([*program, *arguments], stdout=stream, stderr=stream, text=True)
    try:
        yield Running(process, output)
    finally:
        process.kill()
        process.wait()


def run(
    *arguments: str, stdin: str | None = None, env: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*ORLOP, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=200,
        input=stdin,
        env={**os.environ, **(env or {})},
    )


def run_here(
    *arguments: str, stdin: str | None = None, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a verb in this process: for tests of what it prints, to which a start of Python adds nothing but time.

    Blocks the event loop of the caller, as `run` does.
    """
    out, err = (TextIOWrapper(BytesIO(), "utf-8", "surrogateescape", write_through=True) for _ in range(2))
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        patch.setattr(sys, "stdin", TextIOWrapper(BytesIO((stdin or "").encode())))
        code = _exit_code(arguments) if _has_no_loop() else _exit_code_of_another_thread(arguments)
    return subprocess.CompletedProcess(arguments, code, *(_written_to(stream) for stream in (out, err)))


def _written_to(stream: TextIOWrapper) -> str:
    assert isinstance(stream.buffer, BytesIO)
    return stream.buffer.getvalue().decode("utf-8", "surrogateescape")


def _has_no_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def _exit_code_of_another_thread(arguments: Sequence[str]) -> int:
    """Verbs run an event loop of their own, and a thread runs one at a time."""
    with ThreadPoolExecutor(max_workers=1) as thread:
        return thread.submit(_exit_code, arguments).result()


def _exit_code(arguments: Sequence[str]) -> int:
    try:
        return orlop_main.run(arguments)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(bool(ended.code))


def tree(folder: Path) -> Sequence[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
