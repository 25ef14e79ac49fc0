"""Start the programs that are measured, and read what they use from /proc."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

ORLOP: Final = [sys.executable, "-m", "orlop"]
QUIET_SECONDS: Final = 0.5
"""A process that used no CPU for so long has finished what it had to do."""


def family(process: int) -> list[int]:
    """Return a process and all below it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in family(int(child)))]


def used(processes: Sequence[int]) -> float:
    """Return the seconds of a core that these processes have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


class Running:
    """A process that is measured, with all below it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.began = time.perf_counter()
        self._process = process

    def cpu(self) -> float:
        """Return the seconds of a core used so far."""
        return used(family(self._process.pid))

    async def cpu_when_quiet(self) -> float:
        """Wait until the process rests, and return the seconds of a core used so far.

        Events are sent behind the work that they are about, and belong to its cost.
        """
        before = -1.0
        while (now := self.cpu()) - before > 0.02:  # its timers use a tick now and then
            before = now
            await asyncio.sleep(QUIET_SECONDS)
        return now

    def peak(self) -> float:
        """Return the megabytes that were resident at most."""
        statuses = [Path(f"/proc/{each}/status").read_text() for each in family(self._process.pid)]
        return sum(int(status.partition("VmHWM:")[2].split()[0]) for status in statuses) / 1024


@contextmanager
def running(command: str, log: Path) -> Iterator[Running]:
    """Run a program that is measured. End the benchmark with the end of its log if the program ended by itself."""
    with log.open("ab") as lines:
        process = subprocess.Popen(shlex.split(command), stdout=lines, stderr=lines, env=as_installed(log.parent))
    try:
        yield Running(process)
        if process.poll() is not None:
            sys.exit(f"this has ended by itself: {command}\n{log.read_text()[-2000:]}")
    finally:
        process.terminate()
        process.wait()


def as_installed(folder: Path) -> dict[str, str]:
    """Return an environment with compiled modules, as whatever pip has installed has them."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


@contextmanager
def served(words: Sequence[str], until: Path) -> Iterator[None]:
    """Run `orlop` with these words beside what is measured, from when the file `until` exists."""
    command = [*ORLOP, *words, "--log-level=error"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=as_installed(until.parent))
    try:
        while not until.exists():
            if process.poll() is not None:
                sys.exit(f"orlop {shlex.join(words)} has ended by itself")
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def mock_driver(script: str, folder: Path, *flags: str) -> Iterator[Path]:
    """Run the scripted driver; yield its socket."""
    path, socket = folder / "script.yaml", folder / "csi.sock"
    path.write_text(script)
    with served(["testing", "mock-driver", f"--endpoint=unix://{socket}", f"--script={path}", *flags], socket):
        yield socket
