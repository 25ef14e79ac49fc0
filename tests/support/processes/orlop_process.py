"""The real program, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from io import StringIO
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


def run_here(*arguments: str, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Run a verb in this process: for tests of what it prints, to which a start of Python adds nothing but time."""
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as out, redirect_stderr(StringIO()) as err:
        for name, value in (env or {}).items():
            patch.setenv(name, value)
        try:
            code = orlop_main.run(arguments)
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(bool(ended.code))
    return subprocess.CompletedProcess(arguments, code, out.getvalue(), err.getvalue())


def tree(folder: Path) -> Sequence[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))
