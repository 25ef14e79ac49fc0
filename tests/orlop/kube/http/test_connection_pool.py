"""The pool over socket pairs: which connection a request gets, and which it never gets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from orlop.kube.http.client_connection import HttpConnection
from orlop.kube.http.connection_pool import IDLE_SECONDS, MOST_BEING_MADE, PLENTY, SECONDS_FOR_ONE_MORE, ConnectionPool
from orlop.testing.virtual_clock import VirtualClock

REQUEST = b"GET / HTTP/1.1\r\n\r\n"
RESPONSE = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n"


class Dialled:
    """The server's ends of all connections, in order; none is made while `gate` is closed."""

    def __init__(self) -> None:
        self.ends: list[socket.socket] = []
        self.dials = 0
        self.cancelled = 0
        self.gate = asyncio.Event()
        self.gate.set()

    async def dial(self, make: Callable[[], HttpConnection]) -> None:
        self.dials += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        ours, theirs = socket.socketpair()
        self.ends.append(theirs)
        await asyncio.get_running_loop().create_unix_connection(make, sock=ours)


@asynccontextmanager
async def pool_and_server() -> AsyncIterator[tuple[ConnectionPool, Dialled]]:
    server = Dialled()
    pool = ConnectionPool(server.dial)
    try:
        yield pool, server
    finally:
        await pool.close()
        for end in server.ends:
            end.close()


async def settle() -> None:
    """Let everything happen that waits for nothing but its turn; what is in a socket pair is there at once."""
    for _ in range(10):
        await asyncio.sleep(0)


async def used(pool: ConnectionPool, server: Dialled) -> HttpConnection:
    """A new connection, in use, on which one request has been answered: it may be used again."""
    connection = await pool.take(5)
    await connection.send(REQUEST, b"")
    server.ends[-1].send(RESPONSE)
    await connection.whole_answer()
    return connection


async def test_the_connection_that_was_given_back_last_is_used_first():
    async with pool_and_server() as (pool, server):
        first, second = await used(pool, server), await used(pool, server)
        pool.give_back(first)
        pool.give_back(second)
        assert await pool.take(5) is second


async def test_a_connection_handed_to_a_waiter_that_is_cancelled_at_once_goes_to_the_next():
    async with pool_and_server() as (pool, server):
        connection = await used(pool, server)
        server.gate.clear()
        waiting = asyncio.create_task(pool.take(5))
        await settle()
        pool.give_back(connection)
        waiting.cancel()
        await asyncio.wait([waiting])
        assert await pool.take(5) is connection


async def test_a_request_that_goes_first_gets_the_next_connection_before_those_that_wait_longer():
    async with pool_and_server() as (pool, server):
        connection = await used(pool, server)
        server.gate.clear()
        waiting = asyncio.create_task(pool.take(5))
        await settle()
        first = asyncio.create_task(pool.take(5, goes_first=True))
        await settle()
        pool.give_back(connection)
        assert await first is connection
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_nothing_is_dialled_for_nobody():
    async with pool_and_server() as (pool, server):
        server.gate.clear()
        waiting = asyncio.create_task(pool.take(5))
        await settle()
        waiting.cancel()
        await asyncio.wait([waiting])
        server.gate.set()
        await settle()
        assert (server.dials, server.cancelled, server.ends) == (1, 1, [])


async def test_only_a_few_are_dialled_at_a_time():
    async with pool_and_server() as (pool, server):
        server.gate.clear()
        waiting = [asyncio.create_task(pool.take(5)) for _ in range(10)]
        await settle()
        assert server.dials == MOST_BEING_MADE
        server.gate.set()
        await asyncio.gather(*waiting)


async def test_one_failed_dial_fails_one_waiter_and_keeps_none_of_the_others_waiting():
    async with pool_and_server() as (pool, _server):
        dial, pool._dial = pool._dial, _refuse
        waiting = [asyncio.create_task(pool.take(5)) for _ in range(MOST_BEING_MADE + 2)]
        await asyncio.sleep(0)
        pool._dial = dial
        done = await asyncio.gather(*waiting, return_exceptions=True)
        assert sum(isinstance(one, HttpConnection) for one in done) >= 2


async def _refuse(_make: Callable[[], HttpConnection]) -> None:
    await asyncio.sleep(0)
    raise ConnectionRefusedError


async def test_a_connection_of_before_is_not_used_again_after_its_work():
    async with pool_and_server() as (pool, server):
        connection = await used(pool, server)
        pool.forget_idle()
        pool.give_back(connection)
        assert await pool.take(5) is not connection


async def test_a_connection_that_the_server_closed_is_handed_to_no_waiter():
    async with pool_and_server() as (pool, server):
        connection = await used(pool, server)
        server.gate.clear()
        waiting = asyncio.create_task(pool.take(5))
        await settle()
        server.ends[0].close()
        pool.give_back(connection)
        server.gate.set()
        assert await waiting is not connection


async def test_a_connection_on_which_something_came_unasked_is_not_used():
    async with pool_and_server() as (pool, server):
        connection = await used(pool, server)
        pool.give_back(connection)
        server.ends[0].send(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
        await settle()
        assert await pool.take(5) is not connection


class Idle:
    """A connection that can only be ended, so that virtual time need not wait for a socket."""

    is_ended = False

    def abort(self) -> None:
        self.is_ended = True


@pytest.mark.virtual_time
async def test_each_connection_is_closed_after_its_own_idle_time():
    async with pool_and_server() as (pool, _server):
        first, second = Idle(), Idle()
        pool._offer(first)  # type: ignore[arg-type]
        await VirtualClock().sleep(20)
        pool._offer(second)  # type: ignore[arg-type]
        await VirtualClock().sleep(IDLE_SECONDS - 19)
        assert (first.is_ended, second.is_ended) == (True, False)
        await VirtualClock().sleep(20)
        assert second.is_ended


async def test_closing_waits_for_what_is_being_dialled():
    async with pool_and_server() as (pool, server):
        server.gate.clear()
        waiting = asyncio.create_task(pool.take(5))
        await settle()
        await pool.close()
        assert server.cancelled == 1
        await asyncio.wait([waiting])
        assert isinstance(waiting.exception(), ConnectionError)


@pytest.mark.virtual_time
async def test_many_requests_at_once_get_plenty_of_connections_and_then_one_after_another():
    async with pool_and_server() as (pool, server):
        taking = [asyncio.create_task(pool.take(1000)) for _ in range(PLENTY + 3)]
        for _ in range(PLENTY):
            await settle()
        assert len(server.ends) == PLENTY
        await asyncio.sleep(SECONDS_FOR_ONE_MORE * 1.5)
        assert len(server.ends) == PLENTY + 1
        await asyncio.gather(*taking)
        assert len(server.ends) == PLENTY + 3
