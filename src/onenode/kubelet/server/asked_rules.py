"""Parse the request line of a request to a kubelet; refuse it with kubelet's codes and texts. Pure.

Names are taken apart before they are unquoted: a quoted slash is a part of a name, and of no path. No name here ever
becomes one: all of them are looked for among what there is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Final, TypeAlias
from urllib.parse import parse_qsl, unquote

from onenode.kubelet.pods.container_log_rules import LogOptions

WHOLE: Final = re.compile(r"[+-]?[0-9]{1,18}")
STREAMS: Final = {
    "": frozenset({"stdout", "stderr"}),
    "All": frozenset({"stdout", "stderr"}),
    "Stdout": frozenset({"stdout"}),
    "Stderr": frozenset({"stderr"}),
}
FALSE: Final = frozenset({"", "0", "f", "F", "false", "FALSE", "False"})
EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
"""No log is older."""


class NotAnswered(Exception):
    """The code, and the text that is sent as it is."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class LogsRequest:
    namespace: str
    pod: str
    container: str
    options: LogOptions
    follow: bool
    previous: bool


@dataclass(frozen=True, slots=True)
class ExecRequest:
    namespace: str
    pod: str
    container: str
    command: tuple[str, ...]
    stdin: bool
    stdout: bool
    stderr: bool
    tty: bool = False


@dataclass(frozen=True, slots=True)
class SummaryRequest:
    """`of_volumes` is False where only what is cheap was asked for."""

    of_volumes: bool = True


@dataclass(frozen=True, slots=True)
class PodsRequest:
    pass


@dataclass(frozen=True, slots=True)
class HealthRequest:
    pass


KubeletRequest: TypeAlias = LogsRequest | ExecRequest | SummaryRequest | PodsRequest | HealthRequest

NO_SUCH_PAGE: Final = "404 page not found\n"


def read_asked(method: str, target: str, now: datetime) -> KubeletRequest:
    path, _, query = target.partition("?")
    pairs = parse_qsl(query, keep_blank_values=True, errors="replace")
    asked = _asked([unquote(part, errors="replace") for part in path.strip("/").split("/")], pairs, now)
    if method not in ({"GET", "POST"} if isinstance(asked, ExecRequest) else {"GET", "HEAD"}):
        raise NotAnswered(405, "405: Method Not Allowed")
    return asked


def _asked(parts: list[str], pairs: list[tuple[str, str]], now: datetime) -> KubeletRequest:
    options = dict(reversed(pairs))  # of an option given twice the first counts
    match parts:
        case ["containerLogs", namespace, pod, container]:
            return _logs(namespace, pod, container, options, now)
        case ["exec", namespace, pod, container] | ["exec", namespace, pod, _, container]:
            command = tuple(value for name, value in pairs if name == "command")
            return _exec(ExecRequest(namespace, pod, container, command, *_streams(options)))
        case ["stats", "summary"]:
            return SummaryRequest(not _flag(options, "only_cpu_and_memory"))
        case ["pods"]:
            return PodsRequest()
        case ["healthz"] | ["healthz", "ping"]:
            return HealthRequest()
        case _:
            raise NotAnswered(404, NO_SUCH_PAGE)


def _flag(options: Mapping[str, str], name: str) -> bool:
    return options.get(name, "") not in FALSE


# ---- logs ------------------------------------------------------------------------------------------------------------


def _logs(namespace: str, pod: str, container: str, options: Mapping[str, str], now: datetime) -> LogsRequest:
    if not namespace or not pod or not container:
        what = "container name" if not container else "pod name" if not pod else "pod namespace"
        raise NotAnswered(400, f'{{"message": "Missing {what}."}}')
    stream = STREAMS.get(options.get("stream", ""))
    tail = _number(options, "tailLines", least=0)
    if stream is None or (tail is not None and len(stream) == 1):  # of one stream alone, no last lines
        raise _invalid()
    wanted = LogOptions(
        tail_lines=tail,
        since=_since(options, now),
        limit_bytes=_number(options, "limitBytes", least=1),
        timestamps=_flag(options, "timestamps"),
        streams=stream,
    )
    return LogsRequest(namespace, pod, container, wanted, _flag(options, "follow"), _flag(options, "previous"))


def _since(options: Mapping[str, str], now: datetime) -> datetime | None:
    seconds, moment = _number(options, "sinceSeconds", least=1), options.get("sinceTime", "")
    if seconds is not None and moment:
        raise _invalid()
    if seconds is not None:
        return EPOCH if seconds > (now - EPOCH).total_seconds() else now - timedelta(seconds=seconds)
    return _moment(moment) if moment else None


def _moment(text: str) -> datetime:
    try:
        moment = datetime.fromisoformat(text)
        if moment.tzinfo is None:
            raise _undecodable()
        return max(moment.astimezone(UTC), EPOCH)
    except (ValueError, OverflowError):
        raise _undecodable() from None


def _number(options: Mapping[str, str], name: str, *, least: int) -> int | None:
    text = options.get(name, "")
    if not text:
        return None
    if not WHOLE.fullmatch(text):
        raise _undecodable()
    if int(text) < least:
        raise _invalid()
    return int(text)


def _undecodable() -> NotAnswered:
    return NotAnswered(400, '{"message": "Unable to decode query."}')


def _invalid() -> NotAnswered:
    return NotAnswered(422, '{"message": "Invalid request."}')


# ---- commands --------------------------------------------------------------------------------------------------------


def _streams(options: Mapping[str, str]) -> tuple[bool, bool, bool, bool]:
    """stdin, stdout, stderr and whether they are a terminal, by kubelet's names for them."""
    return _flag(options, "input"), _flag(options, "output"), _flag(options, "error"), _flag(options, "tty")


def _exec(asked: ExecRequest) -> ExecRequest:
    if not (asked.stdin or asked.stdout or asked.stderr):
        raise NotAnswered(400, "you must specify at least 1 of stdin, stdout, stderr")
    if not asked.command:
        raise NotAnswered(400, "there is no command to run")
    # A terminal has one output; kubelet passes over the other.
    return replace(asked, stderr=False) if asked.tty else asked
