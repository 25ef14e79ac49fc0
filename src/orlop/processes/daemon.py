"""Run a daemon: parse the flags, run until a signal requests a stop, report why it ended.

Order: check all flags → start the event loop → build the process → SIGTERM, SIGINT or SIGHUP sets `stop` → the process
ends by itself, and abandons work that does not end within its grace period. A second signal, at least a second later,
ends it at once. Exit codes: 0 stopped by a signal, 1 could not continue, 2 wrong flags.
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
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
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
    """The logging flags of every daemon."""

    log_level: Level = flag(
        level_named,
        default="info",
        metavar="LEVEL",
        help="The lowest level that is logged: debug, info, warning or error.",
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
        help=f"As in klog; {KLOG_DEBUG} or higher means --log-level=debug.",
    )

    @property
    def level(self) -> Level:
        return Level.DEBUG if self.verbosity >= KLOG_DEBUG else self.log_level


class CannotGoOn(Exception):
    """The process cannot continue and ends with exit code 1; the message says why."""


class HasLog(Protocol):
    @property
    def log(self) -> LogSettings: ...


Settings = TypeVar("Settings", bound=HasLog)


@dataclass(frozen=True, slots=True)
class Daemon:
    """A process: its name, one sentence on what it does, and the class that describes its flags.

    `instead` returns what to print instead of running, for flags such as --version; None to run.
    """

    program: str
    summary: str
    settings: type[Any]
    instead: Callable[[Any], str | None] = lambda _settings: None


def run_daemon(
    daemon: Daemon,
    arguments: Sequence[str],
    run: Callable[[Settings, Runtime, asyncio.Event], Awaitable[None]],
    log_to: TextStream | None = None,
) -> int:
    """Parse the flags, call `run` until it returns, and return the exit code. The log goes to stderr by default."""
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
    if (output := daemon.instead(settings)) is not None:
        sys.stdout.write(output)
        return 0
    gc.freeze()  # imported modules are never freed: exclude them from every run of the garbage collector
    try:
        uvloop.run(_until_stopped(settings, run, log_to or sys.stderr))
    except (SocketInUse, SocketUnusable, CannotGoOn) as error:
        sys.stderr.write(f"{daemon.program}: {error}\n")
        return EXIT_FAILED
    return 0


async def _until_stopped(
    settings: Settings, run: Callable[[Settings, Runtime, asyncio.Event], Awaitable[None]], log_to: TextStream
) -> None:
    clock, stop, loop = SystemClock(), asyncio.Event(), asyncio.get_running_loop()
    lines = HeldLines(lines_for(log_to, now=clock.now, style=settings.log.style), later=loop.call_later)
    log = Log(lines, settings.log.level)
    signals = _StopSignals(stop, log, clock)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, signals.received, number)
    try:
        await run(settings, Runtime(clock=clock, random=SystemRandom(), log=log, metrics=Metrics(__version__)), stop)
        log.info("stopped")
    finally:
        lines.write()
    _end_now()


def _end_now() -> None:
    """Exit without waiting for threads. Everything that must end in order has ended.

    Without this, Python would wait for a thread whose system call hangs on a dead disk, until kubelet sends SIGKILL.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


class _StopSignals:
    """The first signal sets `stop`; another signal, at least a second later, ends the process at once.

    A signal within that second is the same one again: a terminal sends it to the process group, and `make` forwards it.
    """

    def __init__(self, stop: asyncio.Event, log: Log, clock: Clock) -> None:
        self._stop = stop
        self._log = log
        self._clock = clock
        self._first: float | None = None

    def received(self, number: signal.Signals) -> None:
        if self._first is None:
            self._first = self._clock.elapsed()
            self._log.info("stop requested", signal=number.name)
            self._stop.set()
        elif self._clock.elapsed() - self._first >= SAME_SIGNAL_SECONDS:
            self._log.warning("stop requested a second time; exiting now", signal=number.name)
            os._exit(EXIT_SIGNAL + number)


def _warn(message: str) -> None:
    sys.stderr.write(f"{message}\n")


def is_folder(path: Path) -> bool:
    """Return whether this is a folder; False also without permission, for which `Path.is_dir` raises."""
    try:
        return path.is_dir()
    except OSError:
        return False


def folder_exists(endpoint: Endpoint) -> str | None:
    """Check a flag that names an endpoint to listen on; return what is wrong with it."""
    if isinstance(endpoint, UnixEndpoint) and not is_folder(folder := Path(endpoint.path).parent):
        return f"there is no folder {folder}; make it first, or name another"
    return None


def is_not_negative(duration: Duration) -> str | None:
    """Check a flag that is a duration; return what is wrong with it."""
    return None if duration.nanoseconds >= 0 else "allowed is 0s or more"


def is_some_time(duration: Duration) -> str | None:
    """Check a flag that is a duration and must not be zero; return what is wrong with it."""
    return None if duration.nanoseconds > 0 else "allowed is more than 0s"


def is_absolute(path: str) -> str | None:
    return None if Path(path).is_absolute() else "it has to begin with '/'"


def is_plain(path: str) -> str | None:
    """Check a folder without '..': targets are compared with it as text."""
    return "it must not contain '..'" if ".." in path.split("/") else is_absolute(path)


def is_absolute_or_none(path: str) -> str | None:
    return is_absolute(path) if path else None


def is_size(quantity: Quantity) -> str | None:
    return None if quantity.value() >= 0 else "allowed is 0 (no limit) or more"


def log_example_call(endpoint: Endpoint, log: Log) -> None:
    """Log a command that calls this endpoint, for people who start a daemon by hand. Call it once it listens."""
    program = str(Path(sys.argv[0]).absolute()) if Path(sys.argv[0]).name == "orlop" else "orlop"
    log.info(
        "call it with", command=shlex.join([program, "csi", "Identity.GetPluginInfo", "--endpoint", str(endpoint)])
    )


def request_ids(random: Random) -> Callable[[], str]:
    """Return a generator of call ids: short, and different from those of earlier processes in the same log file."""
    prefix, numbers = f"{random.getrandbits(24):06x}", iter(range(1, sys.maxsize))
    return lambda: f"{prefix}-{next(numbers)}"
