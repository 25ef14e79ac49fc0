"""A CSI driver that follows a script, and behaves as the model where the script has no step.

    driver, connection = in_process_driver({"script": {"CreateVolume": [{"delay": "5s"}]}}, clock)
    client = CsiClient(connection, …)
    …
    [(call.method, call.ended - call.started) for call in driver.calls]

It keeps a record of its calls. `driver_script` describes scripts. Nothing here touches sockets: the caller serves the
methods.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Any

from google.protobuf.message import DecodeError, Message

from orlop.csi.error_codes import Code, CsiError, Unavailable, error_of, failure_of
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, Methods
from orlop.csi.proto import rpc as rpc_table
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log, silent_log
from orlop.testing.call_record import CallRecord, RecordedCall
from orlop.testing.driver_model import DriverModel, Storage, TargetPaths
from orlop.testing.driver_script import FOR_EVER, Script, ScriptedStep, read_script

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from orlop.csi.rpc_type import Rpc
    from orlop.foundation.clock import Clock

    ServeRpc = Callable[[Any], Any]
    Around = Callable[[Methods], Methods]


class ScriptedDriver:
    """A driver on one node. Drivers of several nodes may share `storage`; `when_ended` is called after each call."""

    def __init__(
        self,
        script: Script,
        clock: Clock,
        *,
        storage: Storage | None = None,
        targets: TargetPaths | None = None,
        when_ended: Callable[[RecordedCall], object] = lambda _: None,
    ) -> None:
        self.model = DriverModel(script.facts, clock, storage, targets)
        for volume_id, size in script.volumes.items():
            self.model.storage.add_volume(volume_id, size)
        self._clock = clock
        self._steps = {name: [_StepUses(step, step.times) for step in steps] for name, steps in script.steps.items()}
        self._record = CallRecord(clock, when_ended)
        self._released = asyncio.Event()

    @property
    def calls(self) -> list[RecordedCall]:
        """Return every call so far, in the order of arrival."""
        return self._record.calls

    @property
    def storage(self) -> Storage:
        return self.model.storage

    def calls_of(self, method: str) -> list[RecordedCall]:
        return [call for call in self.calls if call.method == method]

    def calls_under_way(self) -> list[RecordedCall]:
        return self._record.under_way()

    def methods(self) -> Methods:
        return {
            path: (rpc, self._many_answers(rpc, serve) if rpc.streams else self._one_answer(rpc, serve))
            for path, (rpc, serve) in self.model.methods().items()
        }

    def stop_hanging(self) -> None:
        """End calls that hang, now or later, with `Unavailable`."""
        self._released.set()

    def note_refused(self, path: str, message: bytes, error: CsiError) -> None:
        """Record a call that was refused before it reached a method."""
        rpc = rpc_table.BY_PATH[path]
        call = self._record.begin(rpc, _parsed_if_possible(rpc, message))
        call.refused = True
        self._record.end(call, error.code, error.message)

    def _one_answer(self, rpc: Rpc[Any, Any], serve: ServeRpc) -> ServeRpc:
        async def answer(request: Message) -> Message:
            call = self._begin(rpc, request)
            try:
                response = await self._answer(self._next_step(rpc, request), request, serve)
            except BaseException as error:
                self._failed(call, error)
                raise
            self._record.end(call, Code.OK)
            return response

        return answer

    def _many_answers(self, rpc: Rpc[Any, Any], serve: ServeRpc) -> ServeRpc:
        async def answers(request: Message) -> AsyncIterator[Message]:
            call = self._begin(rpc, request)
            try:
                async for response in self._answers(self._next_step(rpc, request), request, serve):
                    yield response
            except BaseException as error:
                self._failed(call, error)
                raise
            self._record.end(call, Code.OK)

        return answers

    def _begin(self, rpc: Rpc[Any, Any], request: Message) -> RecordedCall:
        arrival = _ARRIVAL.get()
        if arrival is not None:
            arrival.reached_the_driver = True
        return self._record.begin(rpc, request)

    def _failed(self, call: RecordedCall, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            self._record.end(call, Code.CANCELLED)
        else:
            failure = failure_of(error, call.method, "none")
            self._record.end(call, failure.code, failure.message)

    def _next_step(self, rpc: Rpc[Any, Any], request: Message) -> ScriptedStep:
        for uses in self._steps.get(rpc.name, ()):
            if uses.take(request):
                return uses.step
        return ScriptedStep()

    async def _answer(self, step: ScriptedStep, request: Message, serve: ServeRpc) -> Message:
        await self._wait(step)
        if step.is_as_the_model:
            return await serve(request)  # type: ignore[no-any-return]  # the table of methods leaves it open
        if step.effect:
            with suppress(CsiError):
                await serve(request)
        answers = await self._scripted_answers(step)
        return answers[0]

    async def _answers(self, step: ScriptedStep, request: Message, serve: ServeRpc) -> AsyncIterator[Message]:
        await self._wait(step)
        if step.is_as_the_model:
            async for response in serve(request):
                yield response
            return
        for response in step.answers or ():
            yield response
        await self._scripted_answers(step)

    async def _wait(self, step: ScriptedStep) -> None:
        if step.delay:
            await self._clock.sleep(step.delay)

    async def _scripted_answers(self, step: ScriptedStep) -> tuple[Message, ...]:
        if step.hang:
            await self._released.wait()
            raise Unavailable("the script made this call hang until it was released")
        if step.error is not None:
            raise error_of(step.error.code, step.error.message)
        return step.answers or ()


@dataclass(slots=True)
class _StepUses:
    """A step, and how often it can still be used."""

    step: ScriptedStep
    remaining: int

    def take(self, request: Message) -> bool:
        used_up = self.step.times != FOR_EVER and not self.remaining
        if used_up or not self.step.matches(request):
            return False
        self.remaining -= 1
        return True


def _parsed_if_possible(rpc: Rpc[Any, Any], message: bytes) -> Message:
    with suppress(DecodeError):
        return rpc.request.FromString(message)  # type: ignore[no-any-return]  # protobuf's stubs leave it open
    return rpc.request()  # type: ignore[no-any-return]  # as above


# ---- serving ---------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Arrival:
    reached_the_driver: bool = False


_ARRIVAL: ContextVar[_Arrival | None] = ContextVar("_ARRIVAL", default=None)


def _nothing_around(methods: Methods) -> Methods:
    return methods


class ScriptedInterceptor(CallInterceptor):
    """Serves a scripted driver, and records also the calls that are refused before they reach it."""

    def __init__(
        self, driver: ScriptedDriver, *, log: Log, metrics: Metrics, clock: Clock, around: Around = _nothing_around
    ) -> None:
        numbers = count(1)
        super().__init__(
            around(driver.methods()),
            driver_name=driver.model.facts.name,
            log=log,
            metrics=metrics,
            clock=clock,
            new_id=lambda: f"call-{next(numbers)}",
        )
        self._driver = driver

    async def answer(self, path: str, message: bytes) -> bytes:
        arrival = _Arrival()
        token = _ARRIVAL.set(arrival)
        try:
            return await super().answer(path, message)
        except CsiError as error:
            if not arrival.reached_the_driver:
                self._driver.note_refused(path, message, error)
            raise
        finally:
            _ARRIVAL.reset(token)


def in_process_driver(
    script: Script | Mapping[str, Any] | None,
    clock: Clock,
    *,
    log: Log | None = None,
    storage: Storage | None = None,
    around: Around = _nothing_around,
) -> tuple[ScriptedDriver, InProcessConnection]:
    """Return a driver and a connection to it without a socket, for tests on virtual time.

    `around` wraps the driver's methods, as the explorer's `explored_methods` does.
    """
    checked_script = script if isinstance(script, Script) else read_script(script)
    driver = ScriptedDriver(checked_script, clock, storage=storage)
    metrics = Metrics("testing", of_process=False)
    interceptor = ScriptedInterceptor(driver, log=log or silent_log(), metrics=metrics, clock=clock, around=around)
    return driver, InProcessConnection(interceptor)
