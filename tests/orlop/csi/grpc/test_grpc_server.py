"""The server behind a real socket: with grpcio as its client, and with clients that no library would be."""

from __future__ import annotations

import asyncio
import socket
import weakref
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from orlop.csi.error_codes import Cancelled, Code, CsiError, DeadlineExceeded, Internal, ResourceExhausted
from orlop.csi.grpc import grpc_server
from orlop.csi.grpc.http2_frames import ErrorCode
from orlop.csi.transport import LARGEST_MESSAGE
from support.csi.grpc_listeners import BREAK, COUNT, ECHO, LARGE, WAIT, Handler, Raw, Served
from support.csi.http2_bytes import (
    DATA,
    END_STREAM,
    GOAWAY,
    GREETING,
    HEADERS,
    PING,
    PREFACE,
    RST,
    data,
    frame,
    headers_frame,
    message,
    request,
    request_headers,
    reset,
    settings,
    window,
)
from support.waiting import eventually


@pytest.fixture
def served(short_folder: Path) -> Any:
    @asynccontextmanager
    async def serve(*, grace: float = 0.0) -> AsyncIterator[Served]:
        made = Served(short_folder)
        await made.listen()
        try:
            yield made
        finally:
            await made.listener.stop(grace)
            assert not made.listener.tasks
            assert not made.listener.connections

    return serve


# ---- grpcio ----------------------------------------------------------------------------------------------------------


async def test_fifty_in_flight_each_get_their_own_answers(served: Any):
    async with served() as the, the.grpcio() as client:

        async def caller(number: int) -> None:
            for turn in range(40):
                sent = b"%d %d " % (number, turn) * (number + 1)
                assert await client.call(ECHO, sent, 20.0) == sent

        await asyncio.gather(*(caller(number) for number in range(50)))


async def test_large_messages_go_both_ways_through_the_windows_of_both(served: Any):
    async with served() as the, the.grpcio() as client:
        sent = [bytes([number]) * (LARGEST_MESSAGE - number) for number in range(12)]
        got = await asyncio.gather(*(client.call(ECHO, each, 30.0) for each in sent))
        with pytest.raises(ResourceExhausted):
            await client.call(ECHO, bytes(LARGEST_MESSAGE + 1), 30.0)

    assert got == sent


async def test_callers_that_cancel_leave_nothing_behind_and_hurt_nobody(served: Any):
    async with served() as the, the.grpcio() as client:
        waiting = [asyncio.ensure_future(client.call(WAIT, b"", 30.0)) for _ in range(50)]
        await eventually(lambda: the.handler.waiting == 50)
        for call in waiting[::2]:
            call.cancel()
        await eventually(lambda: the.handler.left == 25)
        assert await client.call(ECHO, b"still here", 10.0) == b"still here"
        the.handler.go_on.set()
        ends = await asyncio.gather(*waiting, return_exceptions=True)

    assert [isinstance(end, asyncio.CancelledError) for end in ends] == [True, False] * 25


async def test_deadlines_of_many_end_their_waiting(served: Any):
    async with served() as the, the.grpcio() as client:
        ends = await asyncio.gather(*(client.call(WAIT, b"", 0.2) for _ in range(50)), return_exceptions=True)
        await eventually(lambda: not the.listener.tasks)

    assert {type(end) for end in ends} == {DeadlineExceeded}


async def test_a_reader_of_a_stream_who_is_slow_is_waited_for(served: Any):
    got = []
    async with served() as the, the.grpcio() as client:
        async with aclosing(client.stream(COUNT, b"200000", 30.0)) as answers:
            async for answer in answers:
                got.append(int(answer[: answer.index(b" ")]))
                if len(got) == 20:
                    break
        await eventually(lambda: the.handler.left == 1)

    assert got == list(range(1, 21))


SECRET = "hunter2"


@pytest.mark.parametrize("error", [ValueError(SECRET), asyncio.CancelledError(SECRET), BaseException(SECRET)])
async def test_what_a_handler_should_not_raise_is_told_without_its_words(served: Any, error: BaseException):
    async with served() as the, the.grpcio() as client:
        the.handler.error = error
        with pytest.raises(Internal) as caught:
            await client.call(BREAK, b"", 10.0)

    assert SECRET not in caught.value.message + "".join(the.lines)


async def test_closing_a_client_in_mid_call_ends_the_waiting(served: Any):
    async with served() as the:
        async with the.grpcio() as client:
            call = asyncio.ensure_future(client.call(WAIT, b"", 30.0))
            await eventually(lambda: the.handler.waiting == 1)
        with pytest.raises(Cancelled):
            await call
        await eventually(lambda: the.handler.left == 1)


async def test_stopping_cuts_who_is_not_done_in_time(served: Any):
    async with served() as the, the.grpcio() as client:
        call = asyncio.ensure_future(client.call(WAIT, b"", 30.0))
        await eventually(lambda: the.handler.waiting == 1)
        await the.listener.stop(0.05)
        with pytest.raises(CsiError) as caught:
            await call

    assert the.handler.left == 1
    assert caught.value.code in {Code.UNAVAILABLE, Code.CANCELLED}


# ---- clients that no library would be --------------------------------------------------------------------------------


async def test_a_connection_that_breaks_in_mid_call_ends_the_waiting(served: Any):
    async with served() as the:
        async with the.raw() as client:
            client.say(request(1, WAIT), request(3, WAIT))
            await eventually(lambda: the.handler.waiting == 2)
        await eventually(lambda: the.handler.left == 2)
        await eventually(lambda: not the.listener.connections)


async def test_a_deadline_is_told_also_when_the_message_never_came(served: Any):
    async with served() as the, the.raw() as client:
        client.say(request(1, WAIT, grpc_timeout="20m"))
        assert await client.status() is Code.DEADLINE_EXCEEDED
        client.say(headers_frame(3, request_headers(ECHO, grpc_timeout="20m")), data(3, message(b"abc", claims=9)))
        assert await client.status() is Code.DEADLINE_EXCEEDED
        client.say(request(5, ECHO, grpc_timeout="99999999H"))
        assert await client.status() is Code.OK
        assert the.handler.left == 1


async def test_a_call_that_is_reset_as_it_comes_is_never_begun(served: Any):
    async with served() as the, the.raw() as client:
        client.say(request(1, WAIT), reset(1), request(3, ECHO))
        assert await client.status() is Code.OK
        assert the.handler.waiting == 0


async def test_answers_of_one_turn_go_out_together(served: Any):
    async with served() as the, the.raw() as client:
        await client.hear(4)
        client.say(*(request(number, ECHO, b"x") for number in range(1, 101, 2)))
        received = await client.reader.read(1 << 16)

    assert len(received) > 50 * 60


VIOLATIONS = {
    "HTTP/1.1": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", ErrorCode.PROTOCOL_ERROR),
    "no settings": (PREFACE + frame(PING, bytes(8)), ErrorCode.PROTOCOL_ERROR),
    "a frame that is too long": (GREETING + frame(DATA, claims=1 << 20, stream=1), ErrorCode.FRAME_SIZE_ERROR),
    "nonsense for headers": (GREETING + frame(HEADERS, b"\xff" * 9, stream=1, flags=4), ErrorCode.COMPRESSION_ERROR),
    "a flood": (GREETING + frame(PING, bytes(8)) * 3000, ErrorCode.ENHANCE_YOUR_CALM),
    "a window beyond the largest": (GREETING + window((1 << 31) - 1), ErrorCode.FLOW_CONTROL_ERROR),
    "data of a call that is over": (
        GREETING + request(1, ECHO) + reset(1) + data(1, b"x"),
        ErrorCode.STREAM_CLOSED,
    ),
}


@pytest.mark.parametrize("what", VIOLATIONS)
async def test_who_breaks_the_protocol_is_told_and_let_go_while_others_are_served(served: Any, what: str):
    sent, code = VIOLATIONS[what]
    async with served() as the, the.raw() as other, the.raw(b"") as client:
        client.say(sent)
        heard = await client.until_closed()
        other.say(request(1, ECHO))
        assert await other.status() is Code.OK

    [farewell] = [payload for kind, _, _, payload in heard if kind == GOAWAY]
    assert int.from_bytes(farewell[4:8], "big") == code
    assert any("broke the protocol" in line for line in the.lines)


async def test_who_never_greets_is_let_go(served: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_server, "GREETING_SECONDS", 0.05)
    async with served() as the, the.raw(PREFACE[:9]) as client, the.raw() as patient:
        await client.until_closed()
        patient.say(request(1, ECHO))
        assert await patient.status() is Code.OK


async def test_more_connections_than_are_taken_are_closed_at_once(served: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_server, "MOST_CONNECTIONS", 1)
    async with served() as the, the.raw() as first:
        first.say(request(1, WAIT))
        await eventually(lambda: the.handler.waiting == 1)
        async with the.raw() as second:
            assert await second.until_closed() == []
        first.say(request(3, ECHO))
        assert await first.status() is Code.OK


async def test_who_is_silent_the_longest_makes_room_for_who_comes(served: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_server, "MOST_CONNECTIONS", 2)
    async with served() as the, the.raw() as first, the.raw() as second:
        for one in (first, second):
            one.say(request(1, ECHO))
            assert await one.status() is Code.OK
        first.say(request(3, ECHO))
        assert await first.status() is Code.OK
        async with the.raw() as third:
            third.say(request(1, ECHO))
            assert await third.status() is Code.OK
            await second.until_closed()
            first.say(request(5, ECHO))
            assert await first.status() is Code.OK


async def test_a_request_that_never_ends_is_let_go(served: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_server, "REQUEST_SECONDS", 0.05)
    async with served() as the, the.raw() as client:
        client.say(headers_frame(1, request_headers(ECHO)), data(1, message(b"abc", claims=9)))
        assert await client.status() is Code.DEADLINE_EXCEEDED
        client.say(request(3, ECHO))
        assert await client.status() is Code.OK


async def test_requests_that_are_not_complete_have_one_budget_for_all_connections(
    served: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(grpc_server, "MOST_INCOMPLETE", 100_000)
    async with served() as the, the.raw() as one, the.raw() as other:
        one.say(headers_frame(1, request_headers(ECHO)), *large_part(1))
        one.say(request(3, ECHO))
        assert await one.status() is Code.OK
        other.say(headers_frame(1, request_headers(ECHO)), *large_part(1))
        assert await other.status() is Code.RESOURCE_EXHAUSTED
        one.say(reset(1))
        one.say(request(5, ECHO))
        assert await one.status() is Code.OK
        other.say(headers_frame(3, request_headers(ECHO)), *large_part(3))
        other.say(request(5, ECHO))
        assert await other.status() is Code.OK


def large_part(stream: int) -> list[bytes]:
    """60,000 bytes of a request that has more."""
    whole = message(bytes(60_000), claims=80_000)
    return [data(stream, whole[at : at + 10_000]) for at in range(0, len(whole), 10_000)]


async def test_nothing_of_a_connection_that_is_gone_is_held(served: Any):
    async with served() as the:
        async with the.raw() as client:
            client.say(headers_frame(1, request_headers(ECHO)), data(1, message(b"abc", claims=9)))
            await eventually(lambda: the.listener.connections)
            [connection] = the.listener.connections
            gone = weakref.ref(connection._http2)
            del connection
        await eventually(lambda: not the.listener.connections)
        assert gone() is None, "without the garbage collector"


WIDE = PREFACE + settings((4, (1 << 31) - 1)) + window((1 << 31) - 1 - 65_535)


async def test_who_does_not_read_is_not_read_from_and_gets_all_in_the_end(served: Any):
    async with served() as the, the.raw(WIDE) as client:
        client.writer.transport.pause_reading()
        numbers = range(1, 601, 2)
        await eventually(lambda: the.listener.connections)
        [connection] = the.listener.connections
        for number in numbers:
            client.say(request(number, LARGE, b"400000"))
            await asyncio.sleep(0)
        await eventually(lambda: not connection._transport.is_reading())
        held = connection._transport.get_write_buffer_size() + connection._http2._sending.unsent
        client.writer.transport.resume_reading()
        sizes: dict[int, int] = {}
        ends = 0
        while ends < len(numbers):
            kind, flags, stream, payload = await any_frame(client)
            if kind == DATA:
                sizes[stream] = sizes.get(stream, 0) + len(payload)
            ends += kind == RST or (kind == HEADERS and flags & END_STREAM == END_STREAM)

    assert held < 40 << 20
    assert set(sizes.values()) == {400_005}


async def any_frame(client: Raw) -> tuple[int, int, int, Any]:
    while not client.frames:
        received = await client.reader.read(1 << 16)
        assert received
        client.frames.extend(client._answers.read(received))
    return client.frames.pop(0)


async def test_a_stream_of_answers_goes_no_faster_than_its_reader(served: Any):
    async with served() as the, the.raw(PREFACE + settings((4, 10))) as client:
        client.say(request(1, COUNT, b"100"))
        await client.hear(DATA)
        for _ in range(50):
            await asyncio.sleep(0)
        assert the.handler.counted == 1
        client.say(window(1000, 1))
        await eventually(lambda: the.handler.counted >= 4)
        client.say(reset(1))
        await eventually(lambda: the.handler.left == 1)


async def test_stopping_does_not_wait_for_a_client_that_reads_nothing(served: Any):
    async with served() as the, the.raw(WIDE) as client:
        client.writer.transport.pause_reading()
        client.say(*(request(number, LARGE, b"4000000") for number in (1, 3, 5)))
        await eventually(lambda: the.listener.connections)
        [connection] = the.listener.connections
        await eventually(lambda: connection._transport.get_write_buffer_size() > 0)
        async with asyncio.timeout(60):
            await the.listener.stop(0.05)


async def test_stopping_does_not_wait_for_who_connects_just_then(served: Any):
    async with served() as the:
        clients = []
        for _ in range(50):
            client = socket.socket(socket.AF_UNIX)
            client.setblocking(False)
            client.connect(the.path)
            clients.append(client)
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            await the.listener.stop(0)
        for client in clients:
            client.close()


async def test_a_service_that_will_not_end_does_not_hold_up_the_stopping(served: Any, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(grpc_server, "LAST_SECONDS", 0.05)
    release = asyncio.Event()

    class Stubborn(Handler):
        async def answer(self, path: str, message: bytes) -> bytes:
            self.waiting = 1
            while not release.is_set():
                with suppress(asyncio.CancelledError):
                    await release.wait()
            return b""

    async with served() as the:
        the.listener.handler = Stubborn()
        async with the.raw() as client:
            client.say(request(1, WAIT))
            await eventually(lambda: the.listener.handler.waiting)
            async with asyncio.timeout(60):
                await the.listener.stop(0)
        release.set()
        await asyncio.wait(the.listener.tasks)
