"""The socket itself: clients that hang, vanish, come in fair_share; handlers that fail; generators in threads."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

import pytest

from orlop.admin.afterlife import Afterlife
from orlop.admin.node_socket import NodeRefused, NodeUnreachable
from orlop.driver.ephemeral.requests import admin_socket as module
from orlop.driver.ephemeral.requests.admin_socket import AdminClient, admin_socket
from orlop.foundation.clock import SystemClock
from orlop.foundation.message_socket import send_frame
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.foundation.unix_socket import SocketInUse, SocketUnusable
from orlop.host.threads import ThreadedGenerator
from orlop.records.afterlife_report import MESSAGE, ListFolders, Rows, StreamEnd, encode_request
from support.host.descriptors import opened
from support.waiting import eventually


@asynccontextmanager
async def serving(path: Path, handler: Callable[[AdminClient], Awaitable[None]]) -> AsyncIterator[list[LogEntry]]:
    log: list[LogEntry] = []
    async with admin_socket(
        str(path), handler, clock=SystemClock(), log=collecting_log(log), allowed_user=os.geteuid()
    ):
        yield log


async def done(client: AdminClient) -> None:
    await client.answer(StreamEnd())


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(5)
    connection.connect(str(path))
    return connection


async def test_a_client_that_asks_nothing_is_let_go(short_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "REQUEST_SECONDS", 0.05)
    path = short_folder / "s"
    async with serving(path, done):
        with connected(path) as connection:
            assert await asyncio.to_thread(connection.recv, 10) == b""


async def test_a_client_that_takes_no_answers_is_let_go(short_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "ANSWER_SECONDS", 0.1)
    ended = asyncio.Event()

    async def talk(client: AdminClient) -> None:
        try:
            while True:
                await client.send_bytes(bytes(1 << 20))
        finally:
            ended.set()

    path = short_folder / "s"
    async with serving(path, talk):
        with connected(path) as connection:
            send_frame(connection, MESSAGE, encode_request(ListFolders()))
            await ended.wait()


async def test_a_client_that_vanishes_ends_its_own_conversation_alone(short_folder: Path):
    began, ended = asyncio.Event(), asyncio.Event()

    async def wait(client: AdminClient) -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    path = short_folder / "s"
    async with serving(path, wait):
        with connected(path) as connection:
            send_frame(connection, MESSAGE, encode_request(ListFolders()))
            await began.wait()
            assert not ended.is_set()
        await ended.wait()


async def test_the_end_of_the_process_ends_all_conversations(short_folder: Path):
    began = asyncio.Event()

    async def wait(client: AdminClient) -> None:
        began.set()
        await asyncio.Event().wait()

    path = short_folder / "s"
    async with serving(path, wait):
        connection = connected(path)
        send_frame(connection, MESSAGE, encode_request(ListFolders()))
        await began.wait()
    assert connection.recv(10) == b""
    connection.close()


async def test_a_crowd_is_told_to_come_back_later(short_folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOST_AT_ONCE", 2)
    path, begun = short_folder / "s", list[AdminClient]()

    async def wait(client: AdminClient) -> None:
        begun.append(client)
        await asyncio.Event().wait()

    async with serving(path, wait):
        with connected(path) as one, connected(path) as two:
            for connection in (one, two):
                send_frame(connection, MESSAGE, encode_request(ListFolders()))
            await eventually(lambda: len(begun) == 2)
            with pytest.raises(NodeRefused, match="Try again later"):
                await asyncio.to_thread(Afterlife(path).list_folders)


async def test_a_handler_that_fails_ends_its_conversation_and_is_logged(short_folder: Path):
    async def fail(client: AdminClient) -> None:
        raise RuntimeError("the handler is wrong")

    path = short_folder / "s"
    async with serving(path, fail) as log:
        for _ in range(2):
            with pytest.raises(NodeUnreachable):
                await asyncio.to_thread(Afterlife(path).list_folders)
        await eventually(lambda: len(log) == 2)
    assert {entry.message for entry in log} == {"admin request failed"}


async def test_descriptors_that_were_handed_over_are_closed_with_the_conversation(short_folder: Path):
    seen: list[int] = []

    async def look(client: AdminClient) -> None:
        seen.extend(os.fstat(each).st_ino for each in client.descriptors)
        await client.answer(Rows(()))
        await client.answer(StreamEnd())

    path, before = short_folder / "s", len(opened())
    async with serving(path, look):
        with connected(path) as connection:
            send_frame(connection, MESSAGE, encode_request(ListFolders()), [0, 0])
            await asyncio.to_thread(connection.recv, 100)
    assert seen == [os.fstat(0).st_ino] * 2
    assert len(opened()) == before


async def test_a_socket_that_cannot_be_is_a_sentence(short_folder: Path):
    (short_folder / "file").touch()
    with pytest.raises(SocketUnusable, match="cannot be made"):
        async with serving(short_folder / "file" / "run" / "s", done):
            pass
    async with serving(short_folder / "deep" / "er" / "s", done):
        assert (short_folder / "deep").stat().st_mode & 0o777 == 0o700
        with pytest.raises(SocketInUse):
            async with serving(short_folder / "deep" / "er" / "s", done):
                pass


# ---- generators in threads -------------------------------------------------------------------------------------------


async def test_a_generator_is_closed_by_the_thread_that_is_in_it_and_only_then():
    loop, closed, go_on, inside = asyncio.get_running_loop(), list[str](), threading.Event(), threading.Event()

    def steps() -> Generator[int]:
        try:
            yield 1
            inside.set()
            go_on.wait(10)
            yield 2
        finally:
            closed.append("generator")

    with ThreadPoolExecutor(1) as pool:

        async def threads(work):
            return await loop.run_in_executor(pool, work)

        owned = ExitStack()
        owned.callback(closed.append, "what it owned")
        running = ThreadedGenerator(steps(), threads, owned)
        assert await running.next() == 1
        second = asyncio.create_task(running.next())
        await asyncio.to_thread(inside.wait, 10)
        second.cancel()
        await asyncio.wait([second])
        running.close()
        assert closed == [], "a thread is in it"
        go_on.set()
        await eventually(lambda: closed == ["generator", "what it owned"])
        assert await running.next() is None


async def test_what_a_generator_owns_is_closed_also_if_it_never_began():
    async def threads(work):
        return work()

    closed: list[str] = []
    owned = ExitStack()
    owned.callback(closed.append, "owned")
    ThreadedGenerator(iter_of([1]), threads, owned).close()

    assert closed == ["owned"]


def iter_of(values: list[int]) -> Generator[int]:
    yield from values
