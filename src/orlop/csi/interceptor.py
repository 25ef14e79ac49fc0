"""Wrap every CSI call that one of our drivers serves: parsing, locking, logging, metrics and error codes.

Order: parse → lock the key → serve → log and measure → return the response, or an error with a gRPC code.

A caller's deadline or cancellation ends its waiting, never the work: the service runs in its own task and holds the key
until it returns, so a retry in the meantime is ABORTED instead of running beside it. Secrets of a request appear
nowhere: not in the log entry, not in the error, not in a traceback.

This module must not depend on any service, nor on the transport.
"""

from __future__ import annotations

import asyncio
import traceback
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from google.protobuf.message import DecodeError, Message

from orlop.csi import redacted_messages
from orlop.csi.error_codes import Cancelled, Code, CsiError, Internal, InvalidArgument, error_of, failure_of
from orlop.csi.proto import rpc as rpc_table
from orlop.csi.proto import services as base_classes
from orlop.csi.rpc_type import Rpc
from orlop.csi.transport import Shape
from orlop.foundation.clock import Clock
from orlop.foundation.keyed_lock import KeyedLock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Level, Log, hide

OPERATION_BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05),  # ours: a bind mount takes milliseconds
    *(0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 15.0, 25.0, 50.0, 120.0, 300.0, 600.0),  # upstream's
)
# Looking up members of an enum is slow, and every call needs these.
OK: Final = Code.OK
DEBUG: Final = Level.DEBUG
CODE_NAMES: Final = {code: code.name for code in Code}
LONGEST_ERROR: Final = 2048
"""An error is sent in an HTTP/2 header. Peers refuse headers of more than a few KiB, and then the error is lost."""


@dataclass(frozen=True, slots=True)
class ServedRpc:
    """An RPC that is served here, with what is known before it is called."""

    rpc: Rpc[Any, Any]
    serve: Callable[..., Any]
    name: str
    changes_something: bool


@dataclass(slots=True)
class CallInFlight:
    """One call in flight."""

    served: ServedRpc
    id: str
    started: float
    outcome: asyncio.Future[bytes | CsiError]
    """What the caller waits for. It may stop waiting before the work ends."""
    request: Message | None = None
    key: str | None = None
    caller_waits: bool = True


Methods = Mapping[str, tuple[Rpc[Any, Any], Callable[..., Any]]]
"""By path on the wire: the RPC, and the function that takes a request and returns, or yields, responses."""


def methods_of(*services: object) -> Methods:
    """Return the RPCs of services, each of which extends a base class of `proto.services`."""
    methods: dict[str, tuple[Rpc[Any, Any], Callable[..., Any]]] = {}
    for service in services:
        name = next(kind.__name__ for kind in type(service).__mro__ if kind.__module__ == base_classes.__name__)
        methods |= {rpc.path: (rpc, getattr(service, rpc.name)) for rpc in rpc_table.SERVICES[name]}
    return methods


class CallInterceptor:
    """Serve RPCs to a transport."""

    def __init__(
        self, methods: Methods, *, driver_name: str, log: Log, metrics: Metrics, clock: Clock, new_id: Callable[[], str]
    ) -> None:
        self._served = {path: _served(rpc, serve) for path, (rpc, serve) in methods.items()}
        self._driver_name = driver_name
        self._log = log
        self._clock = clock
        self._new_id = new_id
        self._keys = KeyedLock()
        self._running: dict[str, tuple[CallInFlight, asyncio.Task[None]]] = {}
        self._seconds = metrics.histogram(
            "csi_plugin_operations_seconds",
            "Duration of CSI calls served by this process, by method and gRPC code.",
            ("driver_name", "method_name", "grpc_status_code"),
            OPERATION_BUCKETS,
        )

    def shape_of(self, path: str) -> Shape | None:
        if path not in self._served:
            return None
        return Shape.STREAMING if self._served[path].rpc.streams else Shape.UNARY

    async def answer(self, path: str, message: bytes) -> bytes:
        call = self._new_call(self._served[path])
        work = asyncio.get_running_loop().create_task(self._work(call, message))
        self._running[call.id] = (call, work)
        try:
            outcome = await call.outcome
        except asyncio.CancelledError:
            call.caller_waits = False
            if not work.done():
                self._log.info("caller stopped waiting; the call goes on", method=call.served.name, request_id=call.id)
            raise
        if isinstance(outcome, CsiError):
            raise outcome
        return outcome

    async def answers(self, path: str, message: bytes) -> AsyncGenerator[bytes, None]:
        call = self._new_call(self._served[path])
        try:
            call.request = _parse(call.served.rpc, message)
            async for response in call.served.serve(call.request):
                yield _serialize(call.served.rpc, response)
        except Exception as error:  # noqa: BLE001 - the table decides about all of them
            raise self._failed(call, error) from None
        except BaseException as error:
            if _is_of_the_service(error):
                raise self._failed(call, error) from None
            # The caller closed the stream, or its deadline passed.
            self._failed(call, Cancelled("the caller stopped waiting"))
            raise
        self._succeeded(call, None)

    async def drain(self, seconds: float) -> list[str]:
        """Wait up to `seconds` for calls in flight, also those whose caller has left; return what still runs."""
        deadline = self._clock.deadline(seconds)
        while self._running and not deadline.passed():
            await asyncio.wait([work for _, work in self._running.values()], timeout=deadline.remaining())
        return sorted(
            f"{call.served.name} on {call.key or 'nothing'} (request {call.id})" for call, _ in self._running.values()
        )

    def _new_call(self, served: ServedRpc) -> CallInFlight:
        call = CallInFlight(served, self._new_id(), self._clock.elapsed(), asyncio.get_running_loop().create_future())
        if self._log.enabled(DEBUG):
            self._log.debug("call begun", method=served.name, request_id=call.id)
        return call

    async def _work(self, call: CallInFlight, message: bytes) -> None:
        try:
            outcome = await self._outcome(call, message)
        except BaseException as error:  # The event loop ends, or a test killed a simulated process here.
            if not isinstance(error, asyncio.CancelledError):
                self._failed(call, error)
            if not call.outcome.done():
                call.outcome.set_exception(error)
            # Do not raise others: asyncio prints exceptions that nobody retrieves from a task, with any secrets.
            if isinstance(error, asyncio.CancelledError | KeyboardInterrupt | SystemExit):
                raise
            return
        finally:
            del self._running[call.id]
        if not call.outcome.done():
            call.outcome.set_result(outcome)

    async def _outcome(self, call: CallInFlight, message: bytes) -> bytes | CsiError:
        served = call.served
        try:
            call.request = request = _parse(served.rpc, message)
            call.key = key = key_of(served.rpc, request)
            if key is None:
                response = await served.serve(request)
            else:
                with self._keys.try_hold(key, why=f"{served.name} (request {call.id})"):
                    response = await served.serve(request)
            answer = _serialize(served.rpc, response)
        except Exception as error:  # noqa: BLE001 - the table decides about all of them
            return self._failed(call, error)
        except asyncio.CancelledError as error:
            if not _is_of_the_service(error):
                raise
            return self._failed(call, error)
        self._succeeded(call, response)
        return answer

    def _succeeded(self, call: CallInFlight, response: Message | None) -> None:
        seconds = self._ended(call, OK)
        # Calls that change nothing are frequent: kubelet calls NodeGetCapabilities before each step.
        if call.served.changes_something:
            self._log.info("call served", **_facts(call, OK, seconds))
        if self._log.enabled(DEBUG):
            shown = _shown_answer(call, response)
            self._log.debug("call details", **_facts(call, OK, seconds), request=_shown(call), response=shown)

    def _failed(self, call: CallInFlight, error: BaseException) -> CsiError:
        failure = failure_of(error, call.served.name, call.id)
        secrets = redacted_messages.secret_values(call.request) if call.request is not None else frozenset()
        message = hide(failure.message, secrets)
        facts = {**_facts(call, failure.code, self._ended(call, failure.code)), "error": message}
        if failure.expected:
            self._log.warning("call failed", **facts)
        else:
            trace = hide("".join(traceback.format_exception(error)), secrets)
            self._log.error("call failed unexpectedly", **facts, request=_shown(call), traceback=trace)
        return error_of(failure.code, _shortened(message))

    def _ended(self, call: CallInFlight, code: Code) -> float:
        seconds = self._clock.elapsed() - call.started
        self._seconds.observe(seconds, self._driver_name, call.served.rpc.path, code.go_name)
        return seconds


def _is_of_the_service(error: BaseException) -> bool:
    """Return whether a cancellation comes from something the service waited for: nobody cancelled this task."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and (task is None or not task.cancelling())


def _served(rpc: Rpc[Any, Any], serve: Callable[..., Any]) -> ServedRpc:
    return ServedRpc(rpc, serve, f"{rpc.service}.{rpc.name}", changes_something(rpc))


def _facts(call: CallInFlight, code: Code, seconds: float) -> dict[str, Any]:
    facts: dict[str, Any] = {"method": call.served.name, "request_id": call.id, "code": CODE_NAMES[code]}
    if call.key is not None:
        facts["key"] = call.key
    if not call.caller_waits:
        facts["caller"] = "gone"
    facts["seconds"] = round(seconds, 6)
    return facts


def _parse(rpc: Rpc[Any, Any], message: bytes) -> Message:
    try:
        return rpc.request.FromString(message)  # type: ignore[no-any-return]  # protobuf's stubs leave it open
    except DecodeError as error:
        raise InvalidArgument(f"the request of {rpc.name} is no valid {rpc.request.DESCRIPTOR.name}: {error}") from None


def _serialize(rpc: Rpc[Any, Any], response: object) -> bytes:
    if not isinstance(response, rpc.response):
        raise Internal(f"{rpc.name} returned a {type(response).__name__} instead of {rpc.response.DESCRIPTOR.name}")
    return response.SerializeToString()  # type: ignore[no-any-return]  # as above


def _shown(call: CallInFlight) -> dict[str, Any]:
    return {} if call.request is None else redacted_messages.printable(call.request)


def _shown_answer(call: CallInFlight, response: Message | None) -> dict[str, Any]:
    if response is None or call.request is None:
        return {}
    return redacted_messages.printable_response(response, call.request)


def _shortened(message: str) -> str:
    encoded = message.encode(errors="replace")
    if len(encoded) <= LONGEST_ERROR:
        return encoded.decode()
    return encoded[:LONGEST_ERROR].decode(errors="ignore") + " … (cut; the driver's log has all of it)"


# ---- keys: which calls must not run at the same time -----------------------------------------------------------------
# CSI asks for at most one call in flight per volume; a second one fails with ABORTED. Calls that change nothing lock no
# key. A volume may be attached to two nodes at once, so the keys of ControllerPublishVolume and
# ControllerUnpublishVolume include the node. ControllerUnpublishVolume without a node (all nodes) does not wait for
# those: the driver must.

KEY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateVolume": ("name",),
    "DeleteVolume": ("volume_id",),
    "ControllerPublishVolume": ("volume_id", "node_id"),
    "ControllerUnpublishVolume": ("volume_id", "node_id"),
    "ControllerExpandVolume": ("volume_id",),
    "ControllerModifyVolume": ("volume_id",),
    "CreateSnapshot": ("name",),
    "DeleteSnapshot": ("snapshot_id",),
    "CreateVolumeGroupSnapshot": ("name",),
    "DeleteVolumeGroupSnapshot": ("group_snapshot_id",),
    "NodeStageVolume": ("volume_id",),
    "NodeUnstageVolume": ("volume_id",),
    "NodePublishVolume": ("volume_id",),
    "NodeUnpublishVolume": ("volume_id",),
    "NodeExpandVolume": ("volume_id",),
}

_KIND_OF_NAME: Final[Mapping[str, str]] = {
    "CreateVolume": "volume",
    "CreateSnapshot": "snapshot",
    "CreateVolumeGroupSnapshot": "group snapshot",
}


def changes_something(rpc: Rpc[Any, Any]) -> bool:
    return rpc.name in KEY_FIELDS


def key_of(rpc: Rpc[Any, Any], request: Message) -> str | None:
    """Return the key; None if the call changes nothing, or if its id is empty, which the service refuses."""
    reader = _READERS.get(rpc.name)
    return None if reader is None else reader(request)


def _reader(rpc_name: str, field: str, second_field: str = "") -> Callable[[Message], str | None]:
    """Build the function that reads the key, once for each RPC: it runs at every call."""
    kind = f"{_KIND_OF_NAME[rpc_name]} named" if field == "name" else field.removesuffix("_id").replace("_", " ")

    def read(request: Message) -> str | None:
        first = getattr(request, field)
        second = getattr(request, second_field) if second_field else ""
        if not first:
            return None
        return f"{kind} {first} on {second}" if second else f"{kind} {first}"

    return read


_READERS: Final = {rpc_name: _reader(rpc_name, *fields) for rpc_name, fields in KEY_FIELDS.items()}
