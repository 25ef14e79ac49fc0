"""The seam between a process and its API server: writes are effects, and the chooser decides when watch events arrive.

    kube = KubeClient(ExploredTransport(life, server.transport()), …)

What can happen to an event, besides arriving normally:
- it arrives late, and with it all that follow in the same watch: meanwhile caches show the past;
- it arrives twice;
- it never arrives, nor does any later one of that watch; after a while the server ends the watch, as one does whose
  version has expired: what existed in between was never observed.

Reads return the current state, except reads that accept the state of any server (`api_answers`): these may be some
changes behind. A dead process reads nothing. Nothing depends on Kubernetes Events and Leases: `is_spared` passes
requests about them on unchanged.
"""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import Any, Final

from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream, Transport
from orlop.testing.explorer.api_answers import BEHIND, may_be_of_the_past, past_answers, refusal, shown, status
from orlop.testing.explorer.effects import Ways, carry_out
from orlop.testing.explorer.histories import AS_IT_SHOULD, Option
from orlop.testing.explorer.lives import Life

LATE: Final = Option("it comes late")
TWICE: Final = Option("it comes twice")
NEVER: Final = Option("it never comes")
EVENT_FAULTS: Final = (LATE, TWICE, NEVER)
LATE_SECONDS: Final = 1.5
SILENT_SECONDS: Final = 10.0
CONFLICT, SERVER_ERROR = "conflict", "a server's error"
READS: Final = frozenset({"GET", "HEAD"})
OF_AN_OBJECT: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})


def is_event_or_lease(request: HttpRequest) -> bool:
    """Return whether a request is about an Event or a Lease, by its resource and not by an object's name."""
    return _resource(request).split("/")[0] in {"events", "leases"}


class ExploredTransport:
    def __init__(
        self, life: Life, inner: Transport, is_spared: Callable[[HttpRequest], bool] = is_event_or_lease
    ) -> None:
        self._life = life
        self._inner = inner
        self._is_spared = is_spared

    @property
    def is_remote(self) -> bool:
        return self._inner.is_remote

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        self._life.refuse_the_dead()

        async def do() -> HttpResponse:
            return await self._inner.exchange(request, within)

        spared = self._is_spared(request)
        if request.method in READS or spared:
            answer = await (do() if spared else self._read(request, within))
            self._life.refuse_the_dead()
            return answer
        return await carry_out(self._life, _described(request), do, _ways(request))

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        self._life.refuse_the_dead()
        async with self._inner.open(request, within) as stream:
            if stream.is_error or ("watch", "true") not in request.query:
                yield stream
                return
            async with aclosing(self._as_chosen(stream.pieces, _resource(request))) as pieces:
                yield HttpStream(stream.status, stream.headers, pieces)

    async def renew_credentials(self) -> None:
        await self._inner.renew_credentials()

    async def close(self) -> None:
        await self._inner.close()

    async def _read(self, request: HttpRequest, within: float) -> HttpResponse:
        async def send(sent_request: HttpRequest) -> HttpResponse:
            return await self._inner.exchange(sent_request, within)

        resource = _resource(request)
        if not may_be_of_the_past(request, resource):
            return await send(request)
        past = await past_answers(request, resource, send)
        if not past:
            return await send(request)
        option = await self._life.stage.choose(_described(request), BEHIND[: len(past)])
        number = len(self._life.stage.trail)
        if option == AS_IT_SHOULD:
            answer = await send(request)
        else:
            # Read again: an early act may have changed the objects before this choice.
            answer = (await past_answers(request, resource, send))[BEHIND.index(option)]
        self._life.stage.note_ending(number, shown(answer))
        return answer

    async def _as_chosen(self, pieces: AsyncIterator[bytes], resource: str) -> AsyncGenerator[bytes, None]:
        stage = self._life.stage
        async for line in _lines(pieces):
            event = json.loads(line)
            if event["type"] not in OF_AN_OBJECT:
                yield line
                continue
            option = await stage.choose(_event_text(event, resource), EVENT_FAULTS)
            if option == NEVER:
                await stage.clock.sleep(SILENT_SECONDS)
                yield _gone(event)
                return
            if option == LATE:
                await stage.clock.sleep(LATE_SECONDS)
            self._life.refuse_the_dead()
            yield line * (2 if option == TWICE else 1)
            stage.moved()


def _ways(request: HttpRequest) -> Ways[HttpResponse]:
    conflict = {CONFLICT: lambda: refusal(409, "Conflict")} if request.method != "POST" else {}
    return Ways(_lost, {**conflict, SERVER_ERROR: lambda: refusal(500, "InternalError")}, shown=shown)


def _lost() -> HttpResponse:
    raise ConnectionBroken("the connection broke before the response arrived")


def _gone(event: Any) -> bytes:
    unseen = status(410, "Expired", f"unseen: {event['type']}")
    return json.dumps({"type": "ERROR", "object": unseen}).encode() + b"\n"


async def _lines(pieces: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    rest = b""
    async for piece in pieces:
        *whole, rest = (rest + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"


def _described(request: HttpRequest) -> str:
    """Return a request in words, such as `PATCH volumeattachments/va1/status`."""
    return f"{request.method} {_resource(request)}"


def _resource(request: HttpRequest) -> str:
    """Return the resource of a path, without group, version and namespace."""
    parts = request.path.strip("/").split("/")
    parts = parts[2:] if parts[0] == "api" else parts[3:]
    return "/".join(parts[2:] if parts[0] == "namespaces" and len(parts) > 2 else parts)  # noqa: PLR2004 - its name follows


def _event_text(event: Any, resource: str) -> str:
    return f"event {event['type']} {resource}/{event['object']['metadata']['name']}"
