"""What a kubelet answers to what it is asked; sending it is the server's work.

Order: what is asked is made out → the pod and the container are looked for → the answer begins. Whatever stands against
it is said before, so that its code is true.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, TypeAlias

from onenode.kubelet.pods.container_log_rules import NoSuchLog, log_attempt
from onenode.kubelet.pods.container_logs import ContainerLogs
from onenode.kubelet.pods.container_runtime import RunningContainer
from onenode.kubelet.server.asked_rules import (
    ExecRequest,
    HealthRequest,
    KubeletRequest,
    LogsRequest,
    NotAnswered,
    PodsRequest,
    SummaryRequest,
)
from onenode.kubelet.server.channel_rules import NoUpgrade, agree
from onenode.kubelet.server.exec_stream import ExecStream, ExecWanted
from orlop.foundation.clock import Clock
from orlop.kube.objects import ObjectName, uid


class PodSeen(Protocol):
    @property
    def pod(self) -> Mapping[str, Any]:
        """With its status."""

    @property
    def running(self) -> Mapping[str, RunningContainer]:
        """By the containers' names."""

    def is_running(self, container: str, attempt: int) -> bool:
        """Whether this very attempt is, so that more of its output may come."""


class Pods(Protocol):
    def named(self, name: ObjectName) -> PodSeen | None: ...

    def workers(self) -> Sequence[PodSeen]:
        """All of them."""


TEXT: Final = "text/plain; charset=utf-8"
JSON: Final = "application/json"
TERM: Final = ("TERM", "xterm")
"""What container runtimes give a command with a terminal."""

Summary = Callable[[bool], Awaitable[Mapping[str, Any]]]
"""Returns the summary of the node; the argument is whether volumes are included."""
Session = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Whole:
    status: int
    body: bytes
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class Pieces:
    """As they come."""

    source: AsyncIterator[bytes]
    content_type: str = TEXT


@dataclass(frozen=True, slots=True)
class UpgradeResponse:
    """The connection is the session's."""

    headers: Mapping[str, str]
    session: Session


KubeletResponse: TypeAlias = Whole | Pieces | UpgradeResponse


@dataclass(frozen=True, slots=True)
class KubeletParts:
    """What there is to tell of."""

    pods: Pods
    logs: ContainerLogs
    summary: Summary


class Answers:
    def __init__(self, parts: KubeletParts, clock: Clock) -> None:
        self._parts = parts
        self._clock = clock

    async def to(self, asked: KubeletRequest, headers: Mapping[str, str]) -> KubeletResponse:
        """Raises `NotAnswered`."""
        match asked:
            case LogsRequest():
                return self._logs(asked)
            case ExecRequest():
                return self._exec(asked, headers)
            case SummaryRequest(of_volumes):
                return _json(await self._parts.summary(of_volumes))
            case PodsRequest():
                items = [seen.pod for seen in self._parts.pods.workers()]
                return _json({"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items})
            case HealthRequest():
                return Whole(200, b"ok")

    # ---- logs --------------------------------------------------------------------------------------------------------

    def _logs(self, asked: LogsRequest) -> Pieces:
        seen = self._pod(asked.namespace, asked.pod, f'pod "{asked.pod}" does not exist')
        if asked.container not in container_names(seen.pod):
            raise NotAnswered(404, f'container "{asked.container}" not found in pod "{asked.pod}"')
        try:
            attempt = log_attempt(seen.pod, asked.container, previous=asked.previous)
        except NoSuchLog as error:
            raise NotAnswered(400, str(error)) from None

        def more_may_come() -> bool:
            return seen.is_running(asked.container, attempt)

        follow = more_may_come if asked.follow and not asked.previous else None
        read = self._parts.logs.read(uid(seen.pod), asked.container, attempt, asked.options, follow)
        return Pieces(_or_why_not(read))

    # ---- commands ----------------------------------------------------------------------------------------------------

    def _exec(self, asked: ExecRequest, headers: Mapping[str, str]) -> UpgradeResponse:
        seen = self._pod(asked.namespace, asked.pod, "pod does not exist")
        container = seen.running.get(asked.container)
        if container is None:
            raise NotAnswered(500, f'container not found ("{asked.container}")')
        try:
            agreed = agree(headers)
        except NoUpgrade as error:
            raise NotAnswered(error.status, str(error)) from None
        command = replace(container.command, arguments=asked.command)
        if asked.tty and not any(name == "TERM" for name, _ in command.environment):
            command = replace(command, environment=(*command.environment, TERM))
        shown = {"stdout": asked.stdout, "stderr": asked.stderr}
        names = frozenset(name for name, is_shown in shown.items() if is_shown)
        wanted = ExecWanted(container, command, agreed.protocol, asked.stdin, names, asked.tty)

        async def session(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await ExecStream(wanted, reader, writer, self._clock).run()

        return UpgradeResponse(agreed.headers, session)

    def _pod(self, namespace: str, name: str, otherwise: str) -> PodSeen:
        seen = self._parts.pods.named(ObjectName(namespace, name))
        if seen is None:
            raise NotAnswered(404, otherwise)
        return seen


async def _or_why_not(log: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    """Pass on a log; if it cannot be read, report that as a line of it, as kubelet does."""
    try:
        async for piece in log:
            yield piece
    except NoSuchLog as error:
        yield f"unable to retrieve container logs: {error}\n".encode()
    finally:
        await close_pieces(log)


async def close_pieces(source: AsyncIterator[bytes]) -> None:
    """Ends what stands behind it, wherever it is."""
    close = getattr(source, "aclose", None)
    if close is not None:
        await close()


def container_names(pod: Mapping[str, Any]) -> frozenset[str]:
    spec = pod["spec"]
    return frozenset(one["name"] for kind in ("containers", "initContainers") for one in spec.get(kind) or ())


def _json(document: Mapping[str, Any]) -> Whole:
    return Whole(200, json.dumps(document).encode(), JSON)
