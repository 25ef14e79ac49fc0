"""Our calls answered by somebody else's server (grpcio), and what a connection does when there is none."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import Cancelled, DeadlineExceeded, NotFound, Unavailable, Unimplemented
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.transport import LARGEST_MESSAGE
from support.csi.grpcio_servers import stop_grpcio_server
from support.csi.http2_bytes import settings

EMPTY_SETTINGS = b"\0\0\0\4\0\0\0\0\0"
ECHO, FAIL, WAIT, COUNT = "/t.T/Echo", "/t.T/Fail", "/t.T/Wait", "/t.T/Count"


class Methods:
    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.waiting = asyncio.Event()
        self.deadline = 0.0

    async def echo(self, message: bytes, _context: Any) -> bytes:
        return message

    async def fail(self, _message: bytes, context: Any) -> bytes:
        await context.abort(grpc.StatusCode.NOT_FOUND, "no volume v-ü: 100 %")
        raise AssertionError

    async def wait(self, _message: bytes, context: Any) -> bytes:
        self.deadline = context.time_remaining()
        self.waiting.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
        return b""

    async def count(self, message: bytes, _context: Any) -> AsyncIterator[bytes]:
        try:
            for number in range(int(message)):
                yield b"%d" % number * 1000
        finally:
            self.left.set()


@asynccontextmanager
async def grpcio_server(path: str, *options: tuple[str, int]) -> AsyncIterator[Methods]:
    methods = Methods()
    server = grpc.aio.server(options=(("grpc.max_receive_message_length", LARGEST_MESSAGE), *options))
    handlers = {
        "Echo": grpc.unary_unary_rpc_method_handler(methods.echo),
        "Fail": grpc.unary_unary_rpc_method_handler(methods.fail),
        "Wait": grpc.unary_unary_rpc_method_handler(methods.wait),
        "Count": grpc.unary_stream_rpc_method_handler(methods.count),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("t.T", handlers),))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    try:
        yield methods
    finally:
        await stop_grpcio_server(server)


@asynccontextmanager
async def connected(path: str) -> AsyncIterator[GrpcConnection]:
    connection = GrpcConnection(UnixEndpoint(path))
    try:
        yield connection
    finally:
        await connection.close()


@pytest.fixture
def path(short_folder: Path) -> str:
    return str(short_folder / "t.sock")


@pytest.mark.parametrize("size", [0, 1, 16_384, 65_535, 1_000_000, LARGEST_MESSAGE])
async def test_a_message_of_any_size_comes_back_as_it_was_sent(path: str, size: int):
    async with grpcio_server(path), connected(path) as connection:
        assert await connection.call(ECHO, b"x" * size, 20.0) == b"x" * size


async def test_an_error_arrives_with_its_code_and_its_sentence(path: str):
    async with grpcio_server(path), connected(path) as connection:
        with pytest.raises(NotFound, match=r"^no volume v-ü: 100 %$"):
            await connection.call(FAIL, b"", 20.0)
        with pytest.raises(Unimplemented):
            await connection.call("/t.T/Nothing", b"", 20.0)


async def test_many_calls_at_once_have_each_its_own_answer(path: str):
    async with grpcio_server(path, ("grpc.max_concurrent_streams", 10)), connected(path) as connection:
        answers = await asyncio.gather(*(connection.call(ECHO, b"%d" % number, 20.0) for number in range(300)))
        assert connection.connections == 1

    assert answers == [b"%d" % number for number in range(300)]


async def test_many_answers_arrive_in_order(path: str):
    async with grpcio_server(path), connected(path) as connection:
        got = [answer async for answer in connection.stream(COUNT, b"3000", 20.0)]

    assert got == [b"%d" % number * 1000 for number in range(3000)]


async def test_a_stream_that_nobody_reads_to_its_end_ends_in_the_driver_too(path: str):
    async with grpcio_server(path) as methods, connected(path) as connection:
        async with aclosing(connection.stream(COUNT, b"1000000000", 60.0)) as answers:
            async for _ in answers:
                break
        async with asyncio.timeout(60):
            await methods.left.wait()


async def test_a_deadline_is_told_to_the_driver_and_kept_here(path: str):
    async with grpcio_server(path) as methods, connected(path) as connection:
        await connection.connected()
        with pytest.raises(DeadlineExceeded):
            await connection.call(WAIT, b"", 0.5)
        assert 0 < methods.deadline <= 0.5


async def test_a_caller_who_leaves_ends_the_call_in_the_driver(path: str):
    async with grpcio_server(path) as methods, connected(path) as connection:
        call = asyncio.create_task(connection.call(WAIT, b"", 60.0))
        await methods.waiting.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        async with asyncio.timeout(60):
            await methods.left.wait()


async def test_a_driver_that_dies_leaves_its_callers_with_unavailable_and_comes_back_as_another(path: str):
    async with connected(path) as connection:
        async with grpcio_server(path) as methods:
            call = asyncio.create_task(connection.call(WAIT, b"", 60.0))
            await methods.waiting.wait()
        with pytest.raises((Unavailable, Cancelled)):
            await call
        with pytest.raises(Unavailable):
            await connection.call(ECHO, b"", 20.0)
        async with grpcio_server(path):
            await connection.connected()
            assert await connection.call(ECHO, b"again", 20.0) == b"again"
            assert connection.connections == 2


async def test_a_socket_that_nobody_serves_is_unavailable_at_once(path: str):
    async with connected(path) as connection:
        with pytest.raises(Unavailable, match=r"t\.sock"):
            await connection.call(ECHO, b"", 60.0)


async def test_a_driver_that_accepts_and_says_nothing_is_waited_for_until_the_deadline(path: str):
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(path)
        silent.listen()
        async with connected(path) as connection:
            with pytest.raises(DeadlineExceeded):
                await connection.call(ECHO, b"", 0.1)
            waiting = asyncio.create_task(connection.connected())
            await asyncio.wait([waiting], timeout=0.01)
            await connection.close()
            with pytest.raises(Cancelled):
                await waiting


async def test_a_call_that_waited_for_the_connection_tells_the_driver_the_time_that_is_left(path: str):
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[bytes] = loop.create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received = await reader.read(1000)
        # The call began before these bytes came. uvloop counts milliseconds: wait until one has passed since.
        arrived = loop.time()
        while loop.time() == arrived:
            await asyncio.sleep(0)
        writer.write(settings())
        while not (timeout := re.search(rb"([0-9]{7,8})u", received)):
            received += await reader.read(1000)
        heard.set_result(timeout[1])
        writer.close()

    server = await asyncio.start_unix_server(listen, path)
    async with server, connected(path) as connection:
        with pytest.raises(Unavailable):
            await connection.call(ECHO, b"", 60.0)
    assert int(await heard) < 60_000_000


async def test_one_that_speaks_another_protocol_is_unavailable(path: str):
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_unix_server(page, path)
    async with server, connected(path) as connection:
        with pytest.raises(Unavailable, match=r"settings come first"):
            await connection.call(ECHO, b"", 20.0)


@pytest.mark.parametrize("turns", range(8))
async def test_a_connection_closed_while_it_is_being_made_raises_nothing_in_the_loop(path: str, turns: int):
    """`turns` of the loop after the driver sent its settings: one of them is between connected and usable."""
    errors: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        connection = GrpcConnection(UnixEndpoint(path))
        await asyncio.sleep(0)
        driver, _ = listener.accept()
        with driver:
            driver.sendall(EMPTY_SETTINGS)
            for _ in range(turns):
                await asyncio.sleep(0)
            await connection.close()
            for _ in range(8):
                await asyncio.sleep(0)

    assert errors == []
