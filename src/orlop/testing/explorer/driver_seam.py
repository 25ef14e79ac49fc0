"""The seam between a process and a CSI driver: calls that change something are effects.

    interceptor = CallInterceptor(explored_methods(process, model.methods()), …)       # one for the driver
    csi = CsiClient(LifeConnection(life, InProcessConnection(interceptor)), …)          # one for each life

Faults happen inside the driver, under its locks, as with a real one: a call that outlives its deadline still runs
there, and the next one for the same volume finds its lock held. Errors are of both kinds: final ones (no effect), and
those after which the caller cannot know whether there was one.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

from google.protobuf.message import Message

from orlop.csi.error_codes import CsiError, FailedPrecondition, Unavailable, failure_of
from orlop.csi.interceptor import Methods
from orlop.csi.rpc_type import Rpc
from orlop.csi.transport import ClientTransport
from orlop.testing.explorer.effects import Ways, carry_out
from orlop.testing.explorer.lives import Life, Process
from orlop.testing.kill_points import Killed

FINAL, NOT_FINAL = "a final error", "no connection"
RUNS_ON_SECONDS: Final = 20.0
"""Longer than the 15 seconds that callers wait by default."""
CHANGING: Final = (
    "Create", "Delete", "ControllerPublish", "ControllerUnpublish", "ControllerExpand", "ControllerModify",
    "NodeStage", "NodeUnstage", "NodePublish", "NodeUnpublish", "NodeExpand",
)  # fmt: skip


def explored_methods(process: Process, methods: Methods, *, ends_within: float | None = None) -> Methods:
    """Return the methods with a choice at each call that changes something, made by the process's newest life.

    By default a late call outlives its caller's deadline. With `ends_within`, which must be shorter than the callers'
    timeout, the driver ends calls at their deadline: a late call has its effect after that many seconds, and the
    connection may break meanwhile.
    """
    ways = WAYS if ends_within is None else replace(WAYS, late=ends_within, breaks_while_running=True)
    return {
        path: (rpc, _explored(process, rpc, serve, ways) if rpc.name.startswith(CHANGING) else serve)
        for path, (rpc, serve) in methods.items()
    }


@dataclass(slots=True)
class _Caller:
    """The caller of a method, which may get an error while the driver continues, and the choice of that error."""

    choice: int | None = None

    def heard_of(self, choice: int) -> None:
        self.choice = choice


_CALLER: Final[ContextVar[_Caller]] = ContextVar("_CALLER")
ServeRpc: TypeAlias = Callable[[Message], Awaitable[Message]]


def _explored(process: Process, rpc: Rpc[Any, Any], serve: ServeRpc, ways: Ways[Message]) -> ServeRpc:
    async def answer(request: Message) -> Message:
        try:
            return await carry_out(
                process.current,
                _described(rpc, request),
                lambda: serve(request),
                ways,
                when_chosen=_CALLER.get(_Caller()).heard_of,
            )
        except Killed:  # the driver lives on
            raise Unavailable("the caller is dead") from None

    return answer


def _lost() -> Message:
    raise Unavailable("the connection broke during the call")


def _not_connected() -> Message:
    raise Unavailable("the driver cannot be reached")


def _refused() -> Message:
    raise FailedPrecondition("the driver cannot do that now")


def _shown(ending: Message | Exception) -> str:
    """Return the name of the gRPC code that the caller gets."""
    return failure_of(ending, "", "none").code.name if isinstance(ending, Exception) else ""


WAYS: Final[Ways[Message]] = Ways(
    _lost, {FINAL: _refused, NOT_FINAL: _not_connected}, late=RUNS_ON_SECONDS, elsewhere=True, shown=_shown
)


def _described(rpc: Rpc[Any, Any], request: Message) -> str:
    ids = [getattr(request, field, "") for field in ("name", "volume_id", "node_id", "target_path")]
    return " ".join(filter(None, (rpc.name, *ids)))


class LifeConnection:
    """The connection of one life to the driver; it ends with the life."""

    def __init__(self, life: Life, inner: ClientTransport) -> None:
        self._life = life
        self._inner = inner

    @property
    def connections(self) -> int:
        return self._inner.connections

    async def connected(self) -> None:
        await self._inner.connected()

    async def call(self, path: str, message: bytes, within: float) -> bytes:
        name = path.rpartition("/")[2]
        if name.startswith(CHANGING):
            # Check the lease here: inside the driver it is no longer known which life made the call.
            self._life.must_lead(name)
        self._life.refuse_the_dead()
        answer = await self._answer(path, message, within)
        self._life.refuse_the_dead()
        return answer

    async def _answer(self, path: str, message: bytes, within: float) -> bytes:
        """Note a failure as the caller gets it: the driver does not know that a deadline has passed."""
        caller = _Caller()
        token = _CALLER.set(caller)
        try:
            return await self._inner.call(path, message, within)
        except CsiError as error:
            if caller.choice is not None:
                self._life.stage.note_ending(caller.choice, _shown(error))
            raise
        finally:
            _CALLER.reset(token)

    async def stream(self, path: str, message: bytes, within: float) -> AsyncGenerator[bytes, None]:
        self._life.refuse_the_dead()
        async for answer in self._inner.stream(path, message, within):
            yield answer

    async def close(self) -> None:
        await self._inner.close()
