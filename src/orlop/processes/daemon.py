"""The life of every daemon: read the flags, run until told to stop, say why it ended.

Order: all flags are checked → the event loop starts → the process is built → SIGTERM, SIGINT or SIGHUP sets `stop` →
the process ends by itself, and leaves behind what its grace period was too short for. A second signal, a second or
more later, ends it at once. Exit codes: 0 told to stop, 1 could not go on, 2 wrong flags.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random, SystemRandom
from typing import Any, Final, Protocol, TypeVar

import uvloop

from orlop import __version__
from orlop.csi.endpoint import Endpoint, UnixEndpoint
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import HelpRequested, UsageError, flag, integer, parse_flags
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import HeldLines, Level, LineStyle, Log, TextStream, level_named, lines_for
from orlop.foundation.unix_socket import SocketInUse, SocketUnusable

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
EXIT_SIGNAL: Final = 128
KLOG_DEBUG: Final = 5
SAME_SIGNAL_SECONDS: Final = 1.0


def line_style(text: str) -> LineStyle:
    match text:
        case "text" | "json":
            return text
        case _:
            raise ValueError("allowed are text and json")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSettings:
    """What every daemon's table of flags holds about its log."""

    log_level: Level = flag(
        level_named, default="info", metavar="LEVEL", help="The least that is logged: debug, info, warning or error."
    )
    style: LineStyle = flag(
        line_style,
        name="log-format",
        default="text",
        metavar="FORMAT",
        aliases=("logging-format",),
        help="text: one line of key=value per event; json: one object per event.",
    )
    verbosity: int = flag(
        integer,
        name="v",
        default="0",
        metavar="NUMBER",
        help=f"As in klog: {KLOG_DEBUG} and more mean --log-level=debug.",
    )

    @property
    def level(self) -> Level:
        return Level.DEBUG if self.verbosity >= KLOG_DEBUG else self.log_level


class CannotGoOn(Exception):
    """The process has to end, with exit code 1; the sentence says why."""


class HasLog(Protocol):
    @property
    def log(self) -> LogSettings: ...


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What every process is given, made once: nothing below reads the time or draws a number by itself."""

    log: Log
    metrics: Metrics
    clock: Clock
    random: Random
    stop: asyncio.Event


Settings = TypeVar("Settings", bound=HasLog)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process: its name, its table of flags in one class, and a sentence on what it does.

    `instead` gives what is printed in place of running it, for flags that ask for that.
    """

    program: str
    summary: str
    settings: type[Any]
    instead: Callable[[Any], str | None] = lambda _settings: None


def run_daemon(
    daemon: Daemon,
    arguments: Sequence[str],
    run: Callable[[Settings, Surroundings], Awaitable[None]],
    log_to: TextStream | None = None,
) -> int:
    """`run` builds the process and returns when it has ended; its exit code comes back. The log goes to stderr."""
    try:
        settings: Settings = parse_flags(
            daemon.settings,
            arguments,
            program=daemon.program,
            summary=daemon.summary,
            environment=os.environ,
            warn=_warn,
        )
    except HelpRequested as request:
        sys.stdout.write(request.text)
        return 0
    except UsageError as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_USAGE
    if (answer := daemon.instead(settings)) is not None:
        sys.stdout.write(answer)
        return 0
    gc.freeze()  # what was imported stays; the garbage collector need not look through it again and again
    try:
        uvloop.run(_until_stopped(settings, run, log_to or sys.stderr))
    except (SocketInUse, SocketUnusable, CannotGoOn) as error:
        sys.stderr.write(f"{daemon.program}: {error}\n")
        return EXIT_FAILED
    return 0


async def _until_stopped(
    settings: Settings, run: Callable[[Settings, Surroundings], Awaitable[None]], log_to: TextStream
) -> None:
    clock, stop, loop = SystemClock(), asyncio.Event(), asyncio.get_running_loop()
    lines = HeldLines(lines_for(log_to, now=clock.now, style=settings.log.style), later=loop.call_later)
    log = Log(lines, settings.log.level)
    signals = _StopSignals(stop, log, clock)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signals.came, number)
    try:
        await run(settings, Surroundings(log, Metrics(__version__), clock, SystemRandom(), stop))
        log.info("stopped")
    finally:
        lines.write()
    _end_now()


def _end_now() -> None:
    """All that must end in order has ended; a system call that hangs on a dead disk must not hold the process.

    Python would wait for the thread in which it hangs, for ever, and kubelet kill us in the middle of something else.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _StopSignals:
    """The first signal asks, a second one a while later insists.

    One that comes at once is the first again: a terminal or `make` sends it to a whole group, and passes it on too.
    """

    def __init__(self, stop: asyncio.Event, log: Log, clock: Clock) -> None:
        self._stop = stop
        self._log = log
        self._clock = clock
        self._first: float | None = None

    def came(self, number: signal.Signals) -> None:
        if self._first is None:
            self._first = self._clock.elapsed()
            self._log.info("told to stop", signal=number.name)
            self._stop.set()
        elif self._clock.elapsed() - self._first >= SAME_SIGNAL_SECONDS:
            self._log.warning("told to stop a second time: ending at once", signal=number.name)
            os._exit(EXIT_SIGNAL + number)


def _warn(sentence: str) -> None:
    sys.stderr.write(f"{sentence}\n")


def is_folder(path: Path) -> bool:
    """Also False where we may not look: `Path.is_dir` raises there."""
    try:
        return path.is_dir()
    except OSError:
        return False


def folder_exists(endpoint: Endpoint) -> str | None:
    """A check for the flag of an endpoint to listen on."""
    if isinstance(endpoint, UnixEndpoint) and not is_folder(folder := Path(endpoint.path).parent):
        return f"there is no folder {folder}; make it first, or name another"
    return None


def is_not_negative(duration: Duration) -> str | None:
    """A check for the flag of a duration."""
    return None if duration.nanoseconds >= 0 else "allowed is 0s or more"


def is_some_time(duration: Duration) -> str | None:
    """The same, where none at all would not do."""
    return None if duration.nanoseconds > 0 else "allowed is more than 0s"


def tell_how_to_call(endpoint: Endpoint, log: Log) -> None:
    """For whoever started it by hand: said when it is true, and not before."""
    program = str(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).name == "orlop" else "orlop"
    log.info(
        "call it with", command=shlex.join([program, "csi", "Identity.GetPluginInfo", "--endpoint", str(endpoint)])
    )


def request_ids(random: Random) -> Callable[[], str]:
    """Short, and different from those of the process before: a log file often holds both."""
    prefix, numbers = f"{random.getrandbits(24):06x}", iter(range(1, sys.maxsize))
    return lambda: f"{prefix}-{next(numbers)}"
