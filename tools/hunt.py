"""Hunt for tests that fail sometimes: repeat the suite in random orders, some runs beside four busy loops.

    HUNT_RUNS=10 HUNT_LOADED=3 make hunt

prints a line for each run, every failure with the seed and the command that repeats it, and a summary. The output of
each run stays in a file. It goes on after a failure and ends with exit code 1 if there was any. Arguments go to pytest.
"""

from __future__ import annotations

import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
LOOPS = 4
WITH_US = ("setpriv", "--pdeathsig", "KILL")
"""Before a command: the kernel kills it when we end, also when we are killed."""
BUSY_LOOP = (*WITH_US, "sh", "-c", "while :; do :; done", "busy loop of the hunt")


@dataclass(frozen=True)
class Run:
    seed: int
    is_loaded: bool
    output: Path
    seconds: float
    exit_code: int

    @property
    def failures(self) -> list[str]:
        return re.findall(r"^(?:FAILED|ERROR) (\S+(?:\[.*?\](?= - |$))?)", self.output.read_text(), re.MULTILINE)

    @property
    def last_line(self) -> str:
        lines = [line.strip("= ") for line in self.output.read_text().splitlines() if line.strip()]
        return lines[-1] if lines else "no output"

    def command(self, arguments: Sequence[str]) -> str:
        return shlex.join(["tools/test.sh", f"--randomly-seed={self.seed}", *arguments])


@contextmanager
def busy_loops(count: int) -> Iterator[None]:
    loops = [subprocess.Popen(BUSY_LOOP) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


def run_suite(folder: Path, number: int, arguments: Sequence[str], *, is_loaded: bool) -> Run:
    seed = random.SystemRandom().getrandbits(32)
    output = folder / f"run-{number}.log"
    began = time.monotonic()
    with output.open("w") as stream, busy_loops(LOOPS if is_loaded else 0):
        words = [*WITH_US, "tools/test.sh", "-q", f"--randomly-seed={seed}", *arguments]
        ended = subprocess.run(words, cwd=REPOSITORY, stdout=stream, stderr=subprocess.STDOUT, check=False)
    return Run(seed, is_loaded, output, time.monotonic() - began, ended.returncode)


def report(run: Run, number: int, runs: int, arguments: Sequence[str]) -> None:
    load = f", beside {LOOPS} busy loops" if run.is_loaded else ""
    print(f"run {number} of {runs}: seed {run.seed}{load}: {run.seconds:.0f} s: {run.last_line}", flush=True)
    for test in run.failures:
        print(f"  FAILED {test}, seed {run.seed}")
        print(f"    alone: {run.command([test])}")
    if run.exit_code != 0:
        print(f"    the whole run: {run.command(arguments)}\n    its output: {run.output}", flush=True)


def main() -> int:
    runs, loaded = int(os.environ.get("HUNT_RUNS", "10")), int(os.environ.get("HUNT_LOADED", "3"))
    arguments = sys.argv[1:]
    folder = Path(tempfile.mkdtemp(prefix="orlop-hunt-"))
    done = []
    for number in range(1, runs + 1):
        # The loaded ones are the last: an idle failure is the easier one to find the cause of.
        run = run_suite(folder, number, arguments, is_loaded=number > runs - loaded)
        report(run, number, runs, arguments)
        done.append(run)
    failed = [run for run in done if run.exit_code != 0]
    tests = sorted({test for run in failed for test in run.failures})
    slowest = max((run.seconds for run in done), default=0.0)
    print(f"hunt: {len(done)} runs, {len(failed)} failed, {len(tests)} different tests; slowest run {slowest:.0f} s")
    for test in tests:
        print(f"  {test}: {sum(test in run.failures for run in failed)} of {len(done)} runs")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
