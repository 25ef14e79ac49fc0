"""Connections to the API server: over real sockets, with every way a client can misbehave."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import stat
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from random import Random

import pytest

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.answers.status_answers import LARGEST_BODY
from onenode.apiserver.edge.server_connection import IDLE_SECONDS
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from support.api.api_edge import SILENCE, Edge, RawClient, ScriptedDoor, echo, edge, local_client, request, tls_client
from support.hand_clock import HandClock
from support.waiting import HANGS_AFTER, eventually

SOAK = bool(os.environ.get("ORLOP_SOAK"))
AS_U = "Authorization: u"
SHORT = 0.3


class Watched:
    """A stream that gives what the test puts into it, and knows when it was closed."""

    def __init__(self) -> None:
        self.queue: asyncio.Queue[bytes] = asyncio.Queue()
        self.closed = 0
        self.given = 0

    async def pieces(self) -> AsyncIterator[bytes]:
        try:
            while True:
                piece = await self.queue.get()
                self.given += len(piece)
                yield piece
        finally:
            self.closed += 1

    async def answer(self, asked: HttpRequest, user: User) -> HttpResponse | HttpStream:
        if asked.path != "/watch":
            return HttpResponse(200, {}, b"ok")
        return HttpStream(200, {"content-type": "application/json"}, self.pieces())


async def test_requests_are_answered_one_after_another_on_one_connection(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, tls_client(running) as client:
        first = await client.get(
            "/api/v1/pods?limit=5&labelSelector=a%3Db&labelSelector=", AS_U, "X-Odd: 1", "X-Odd: 2"
        )
        second = await client.get("/a%2Fb/../c%20d//e", AS_U)

    seen = json.loads(first[2])
    assert (first[0], seen["path"], seen["user"]) == (200, "/api/v1/pods", "u")
    assert seen["query"] == [["limit", "5"], ["labelSelector", "a=b"], ["labelSelector", ""]]
    assert seen["headers"]["x-odd"] == "1, 2"
    assert json.loads(second[2])["path"] == "/a%2Fb/../c%20d//e"
    assert first[1]["server"] == "orlop"


async def test_what_an_answer_says_of_itself_takes_the_place_of_what_is_said_of_all(short_folder: Path):
    async def reply(asked: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        return HttpResponse(200, {"cache-control": "public"} if asked.path == "/own" else {}, b"x")

    async with edge(short_folder, ScriptedDoor(reply)) as running, local_client(running) as client:
        await client.send(request("GET", "/own"))
        own = await client.reader.readuntil(b"\r\n\r\n")
        await client.reader.readexactly(1)
        _, common, _ = await client.get("/x")

    assert own.lower().count(b"cache-control") == 1
    assert b"cache-control: public\r\n" in own.lower()
    assert common["cache-control"] == "no-cache, private"


async def test_the_unix_socket_is_roots_alone_and_means_admin(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        answer = await client.get("/x")
        mode = stat.S_IMODE(running.socket_path.stat().st_mode)

    assert json.loads(answer[2])["user"] == "admin"
    assert mode == 0o600


async def test_values_of_a_repeated_impersonation_header_stay_apart(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        answer = await client.get("/x", "Impersonate-Group: a, b", "Impersonate-Group: c")

    assert json.loads(answer[2])["headers"]["impersonate-group"] == "a, b\nc"


async def test_headers_that_are_no_text_become_one_that_can_be_answered_with(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        await client.send(b"GET /x HTTP/1.1\r\nHost: x\r\nImpersonate-User: a\xffb\xc3\xa9\r\n\r\n")
        answer = await client.answer()

    assert json.loads(answer[2])["headers"]["impersonate-user"] == "a\ufffdb\u00e9"


async def test_only_the_headers_of_a_stream_are_sent_to_who_asks_for_them_alone(short_folder: Path):
    watched = Watched()
    async with edge(short_folder, ScriptedDoor(watched.answer)) as running, local_client(running) as client:
        watched.queue.put_nowait(b"not for you")
        await client.send(request("HEAD", "/watch") + request("GET", "/x"))
        head = await client.head()
        after = await client.answer()

    assert head[0] == 200
    assert after[2] == b"ok"


async def test_a_body_of_three_mebibytes_is_taken_and_one_byte_more_is_refused_with_a_status(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, tls_client(running) as client:
        await client.send(request("POST", "/x", AS_U, body=b"x" * LARGEST_BODY))
        taken = await client.answer()
        await client.send(request("POST", "/x", AS_U, body=b"x" * (LARGEST_BODY + 1)))
        refused = await client.answer()

    assert json.loads(taken[2])["body"] == LARGEST_BODY
    assert refused[0] == 413
    status = json.loads(refused[2])
    assert status["reason"] == "RequestEntityTooLarge"
    assert status["message"] == "Request entity too large: limit is 3145728"


async def test_a_body_in_chunks_is_bounded_too(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, tls_client(running) as client:
        await client.send(request("POST", "/x", AS_U, "Transfer-Encoding: chunked"))
        piece = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        for _ in range(LARGEST_BODY // 0x10000 + 1):
            await client.send(piece)
        await client.send(b"0\r\n\r\n")
        refused = await client.answer()

    assert refused[0] == 413


async def test_whoever_is_nobody_is_refused_before_the_body_is_read(short_folder: Path):
    door = ScriptedDoor()
    async with edge(short_folder, door) as running, tls_client(running) as client:
        await client.send(b"POST /x HTTP/1.1\r\nHost: x\r\nContent-Length: 3000000\r\n\r\nxx")
        status, headers = await client.head()

    assert status == 401
    assert headers["connection"] == "close"
    assert door.seen[0].body == b""


async def test_a_client_that_waits_for_100_continue_is_told_to_go_on(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        await client.send(b"PUT /x HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        interim, _ = await client.head()
        await client.send(b"{}")
        final = await client.answer()

    assert interim == 100
    assert (final[0], json.loads(final[2])["body"]) == (200, 2)


async def test_a_compressed_body_is_refused(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        await client.send(request("POST", "/x", "Content-Encoding: gzip", body=b"\x1f\x8b"))
        answer = await client.answer()

    assert answer[0] == 415
    assert json.loads(answer[2])["reason"] == "UnsupportedMediaType"


NO_HTTP = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nBad Header\r\n\r\n",
    b"GET / HTTP/9.9.9\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n" + b"".join(b"X-%d: y\r\n" % number for number in range(1000)) + b"\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
]


@pytest.mark.parametrize("sent", NO_HTTP, ids=[repr(sent[:40]) for sent in NO_HTTP])
async def test_what_is_no_http_is_refused_with_a_status_and_the_connection_closed(sent: bytes, short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running, local_client(running) as client:
        await client.send(sent)
        status, _, body = await client.answer()
        closed = await client.closed()
        logged = list(running.logged)

    assert status == 400
    assert json.loads(body)["reason"] == "BadRequest"
    assert "Traceback" not in body.decode()
    assert closed
    assert logged == []


async def test_an_exception_is_a_status_500_that_says_nothing_and_a_log_entry_that_says_all(short_folder: Path):
    async def fail(_request: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        raise RuntimeError("the secret cause")

    async with edge(short_folder, ScriptedDoor(fail)) as running, local_client(running) as client:
        status, _, body = await client.get("/x")
        still = await client.get("/x")
        logged = list(running.logged)

    assert status == still[0] == 500
    assert json.loads(body)["reason"] == "InternalError"
    assert b"secret" not in body
    assert [entry.fields["path"] for entry in logged] == ["/x", "/x"]
    assert "secret cause" in str(logged[0].fields["traceback"])


async def test_a_stream_is_sent_piece_by_piece_and_closed_when_its_reader_leaves(short_folder: Path):
    watched = Watched()
    async with edge(short_folder, ScriptedDoor(watched.answer)) as running:
        async with tls_client(running) as client:
            await client.send(request("GET", "/watch", AS_U))
            status, headers = await client.head()
            watched.queue.put_nowait(b"one\n")
            first = await client.chunk()
            watched.queue.put_nowait(b"two\n")
            second = await client.chunk()
        await eventually(lambda: watched.closed)
        await eventually(lambda: running.connections() == 0)

    assert (status, headers["transfer-encoding"]) == (200, "chunked")
    assert (first, second) == (b"one\n", b"two\n")


async def test_a_request_is_finished_when_its_client_vanishes(short_folder: Path):
    begun, may_go_on, done = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def slow(_request: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        begun.set()
        await may_go_on.wait()
        done.set()
        return HttpResponse(200)

    async with edge(short_folder, ScriptedDoor(slow)) as running:
        async with local_client(running) as client:
            await client.send(request("POST", "/x", body=b"{}"))
            await begun.wait()
        await eventually(lambda: running.connections() == 0)
        may_go_on.set()
        await asyncio.wait_for(done.wait(), 60)


async def test_stopping_ends_streams_properly_and_lets_requests_finish(short_folder: Path):
    watched, may_go_on = Watched(), asyncio.Event()
    reached: list[str] = []

    async def reply(asked: HttpRequest, user: User) -> HttpResponse | HttpStream:
        reached.append(asked.path)
        if asked.path == "/slow":
            await may_go_on.wait()
        return await watched.answer(asked, user)

    async with AsyncExitStack() as clients:
        async with edge(short_folder, ScriptedDoor(reply)) as running:
            watcher = await clients.enter_async_context(local_client(running))
            slow = await clients.enter_async_context(local_client(running))
            await watcher.send(request("GET", "/watch"))
            await watcher.head()
            await slow.send(request("GET", "/slow"))
            await eventually(lambda: len(reached) == 2)
            asyncio.get_running_loop().call_later(0.05, may_go_on.set)
        end = await watcher.reader.readuntil(b"0\r\n\r\n")
        answer = await slow.answer()

    assert end == b"0\r\n\r\n"
    assert answer[0] == 200
    assert watched.closed == 1


async def test_stopping_does_not_wait_for_a_watcher_that_does_not_read(short_folder: Path):
    watched = Watched()
    async with AsyncExitStack() as clients:
        async with edge(short_folder, ScriptedDoor(watched.answer), stop_seconds=0.2) as running:
            watcher = await clients.enter_async_context(tls_client(running))
            await watcher.send(request("GET", "/watch", AS_U))
            await watcher.head()
            for _ in range(200):
                watched.queue.put_nowait(b"x" * 65536)
            await eventually(lambda: any(each.blocked_since for each in running.openings[0].connections))
        await eventually(lambda: running.connections() == 0)

    assert watched.closed == 1


async def test_stopping_closes_a_connection_that_is_still_speaking_tls(short_folder: Path):
    async with edge(short_folder, ScriptedDoor()) as running:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
        await client.send(b"\x16\x03\x01")
        await eventually(lambda: running.connections() == 1)
    closed = await asyncio.wait_for(client.closed(), HANGS_AFTER)
    client.close()

    assert closed


# ---- silence ---------------------------------------------------------------------------------------------------------

SLOW = [
    b"",
    b"GET / HT",
    b"GET / HTTP/1.1\r\nHost: x\r\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET",
]


@pytest.mark.parametrize("sent", SLOW, ids=[repr(sent) for sent in SLOW])
async def test_a_connection_that_falls_silent_is_closed(sent: bytes, short_folder: Path):
    idle = SHORT if sent in {b"", SLOW[-1]} else 120.0  # what follows a whole request is looked at with the next bytes
    async with edge(short_folder, ScriptedDoor(), silence=SHORT, idle=idle) as running, local_client(running) as client:
        if sent:
            await client.send(sent)

        assert await asyncio.wait_for(client.closed(), HANGS_AFTER)


async def test_a_body_that_does_not_come_is_answered_in_time(short_folder: Path):
    async with edge(short_folder, ScriptedDoor(), silence=SHORT) as running, local_client(running) as client:
        await client.send(b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 10\r\n\r\n{")
        status, _, body = await client.answer()

        assert (status, json.loads(body)["reason"]) == (408, "Timeout")
        assert await asyncio.wait_for(client.closed(), HANGS_AFTER)


async def test_a_tls_handshake_that_never_ends_is_given_up(short_folder: Path):
    async with edge(short_folder, ScriptedDoor(), silence=SHORT) as running:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", running.port))
        await client.send(b"\x16\x03\x01")
        closed = await asyncio.wait_for(client.closed(), HANGS_AFTER)
        client.close()
        await eventually(lambda: running.connections() == 0)

    assert closed


async def test_a_stream_may_be_silent_for_as_long_as_it_likes(short_folder: Path):
    watched = Watched()
    clock, door = HandClock(), ScriptedDoor(watched.answer)
    async with edge(short_folder, door, clock=clock) as running, tls_client(running) as client:
        await client.send(request("GET", "/watch", AS_U))
        await client.head()
        for _ in range(20):
            await clock.advance(SILENCE)
        watched.queue.put_nowait(b"at last\n")

        assert await client.chunk() == b"at last\n"


async def test_a_watcher_that_is_slow_and_goes_on_reading_is_not_cut(short_folder: Path):
    watched, clock = Watched(), HandClock()
    door, whole, received = ScriptedDoor(watched.answer), 24 << 20, 0
    async with edge(short_folder, door, clock=clock) as running, local_client(running) as client:
        await client.send(request("GET", "/watch"))
        await client.head()
        watched.queue.put_nowait(b"x" * whole)
        while received < whole:
            received += len(await client.chunk())
            # The sockets hold the next few chunks: the server is blocked for as long as reading those takes.
            await clock.advance(SILENCE / 20)

    assert clock.elapsed() > 4 * SILENCE
    assert received == whole


@pytest.mark.parametrize("connect", [tls_client, local_client])
async def test_a_watcher_that_stops_reading_is_cut_and_others_are_unharmed(connect, short_folder: Path):
    stalled, live, clock = Watched(), Watched(), HandClock()

    async def reply(asked: HttpRequest, user: User) -> HttpResponse | HttpStream:
        return await (stalled if asked.query else live).answer(asked, user)

    async with (
        edge(short_folder, ScriptedDoor(reply), clock=clock) as running,
        connect(running) as silent,
        connect(running) as other,
    ):
        await silent.send(request("GET", "/watch?stalled=1", AS_U))
        await other.send(request("GET", "/watch", AS_U))
        await other.head()
        for _ in range(1000):
            stalled.queue.put_nowait(b"x" * 65536)
        await clock.advance_until(lambda: stalled.closed, SILENCE)
        live.queue.put_nowait(b"well\n")
        unharmed = await other.chunk()

    assert unharmed == b"well\n"
    # What the sockets, the client's own reader and one buffer hold, and not what was there to be sent.
    assert stalled.given < 32 << 20


async def test_who_does_not_read_a_long_answer_is_cut(short_folder: Path):
    async def long(_request: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        return HttpResponse(200, {}, b"x" * (64 << 20))

    clock = HandClock()
    async with edge(short_folder, ScriptedDoor(long), clock=clock) as running, local_client(running) as client:
        await client.send(request("GET", "/x"))
        await client.head()
        await clock.advance_until(lambda: running.connections() == 0, SILENCE)


async def test_a_long_answer_arrives_whole(short_folder: Path):
    body = bytes(range(256)) * 10_000

    async def long(_request: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        return HttpResponse(200, {"content-type": "text/plain"}, body)

    async with edge(short_folder, ScriptedDoor(long)) as running, tls_client(running) as client:
        first = await client.get("/x", AS_U)
        second = await client.get("/x", AS_U)

    assert first[2] == second[2] == body
    assert first[1]["content-type"] == "text/plain"


async def test_a_broken_stream_is_cut_off_so_that_nobody_takes_it_for_the_whole(short_folder: Path):
    async def broken() -> AsyncIterator[bytes]:
        yield b"a part\n"
        raise RuntimeError("the cause")

    async def reply(_request: HttpRequest, _user: User) -> HttpResponse | HttpStream:
        return HttpStream(200, {}, broken())

    async with edge(short_folder, ScriptedDoor(reply)) as running, local_client(running) as client:
        await client.send(request("GET", "/x"))
        await client.head()
        try:
            rest = await client.reader.read()
        except ConnectionError:
            rest = b""
        logged = list(running.logged)

    assert not rest.endswith(b"0\r\n\r\n")
    assert [entry.message for entry in logged] == ["a stream broke off"]


async def test_whatever_bytes_come_the_server_goes_on(short_folder: Path):
    """Requests with a few bytes changed, cut short or doubled: each ends, and the next client is served."""
    random = Random(1)
    whole = request("POST", "/api/v1/x?a=b", AS_U, "Transfer-Encoding: chunked") + b"3\r\nabc\r\n0\r\n\r\n"
    async with edge(short_folder, ScriptedDoor(), silence=SHORT) as running:
        for _ in range(500 if SOAK else 60):
            async with local_client(running) as client:
                await client.send(_changed(whole, random))
                client.writer.write_eof()
                await asyncio.wait_for(client.closed(), HANGS_AFTER)
        async with local_client(running) as client:
            last = await client.get("/x")
        logged = list(running.logged)

    assert last[0] == 200
    assert logged == []


def _changed(whole: bytes, random: Random) -> bytes:
    text = bytearray(whole * random.choice([1, 1, 2]))
    for _ in range(random.randrange(1, 8)):
        text[random.randrange(len(text))] = random.randrange(256)
    return bytes(text[: random.choice([len(text), random.randrange(len(text))])])


# ---- too many --------------------------------------------------------------------------------------------------------


@pytest.fixture
def many_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], min(before[1], 10_000)), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


async def test_of_three_thousand_connections_two_thousand_stay_and_the_rest_is_closed_at_once(
    short_folder: Path, many_files: None
):
    """Both ends of each are in this process, so no client speaks TLS: the limit comes before it."""
    async with edge(short_folder, ScriptedDoor()) as running:
        address = ("127.0.0.1", running.port)
        clients = [await _connected(address) for _ in range(3000)]
        await eventually(lambda: _refused(running) == 1000)
        local = [await _connected(str(running.socket_path)) for _ in range(1)]
        local[0].sendall(request("GET", "/x"))
        answered = await asyncio.get_running_loop().sock_recv(local[0], 12)
        open_now = running.rendered()
        closed = sum(_is_closed(client) for client in clients)
        for client in [*clients, *local]:
            client.close()
        await eventually(lambda: running.connections() == 0)
        async with tls_client(running) as again:
            after = await again.get("/x", AS_U)

    assert 'apiserver_connections{listener="tls"} 2000.0' in open_now
    assert closed == 1000
    assert answered == b"HTTP/1.1 200"
    assert after[0] == 200


async def test_a_connection_between_two_requests_is_kept_for_longer_than_gos_clients_keep_it(short_folder: Path):
    clock = HandClock()
    async with edge(short_folder, ScriptedDoor(), clock=clock) as running, local_client(running) as client:
        await client.get("/x")
        for _ in range(20):
            await clock.advance(SILENCE)
        again = await client.get("/x")

    assert again[0] == 200
    assert IDLE_SECONDS > 90


async def test_the_longest_idle_connection_is_closed_for_a_new_one_and_no_other(short_folder: Path):
    held = asyncio.Event()

    async def hold(asked: HttpRequest, user: User) -> HttpResponse | HttpStream:
        if asked.path == "/held":
            await held.wait()
        return await echo(asked, user)

    door, loop = ScriptedDoor(hold), asyncio.get_running_loop()
    async with (
        edge(short_folder, door, most_connections=4, quiet_seconds=0.0) as running,
        AsyncExitStack() as stack,
    ):
        busy, partial, first, second = [await stack.enter_async_context(local_client(running)) for _ in range(4)]
        for client in (busy, partial, first, second):
            await client.get("/x")
            answered = loop.time()  # it counts milliseconds, and none shall be idle for as long as another
            await eventually(lambda answered=answered: loop.time() > answered)
        await busy.send(request("GET", "/held"))
        await partial.send(b"POST /x HT")
        await eventually(lambda: len(door.seen) == 5 and _with_partial_headers(running) == 1)
        new = await stack.enter_async_context(local_client(running))
        answered = await new.get("/x")
        assert await asyncio.wait_for(first.closed(), 60)
        await partial.send(b"TP/1.1\r\nHost: x\r\n\r\n")
        held.set()
        others = [(await client.answer())[0] for client in (partial, busy)]
        others.append((await second.get("/x"))[0])

    assert (answered[0], others) == (200, [200, 200, 200])


async def test_a_post_that_comes_while_the_longest_idle_connection_is_chosen_is_answered(short_folder: Path):
    """The bytes are in the kernel, and the event loop has not read them when a new client comes."""
    async with (
        edge(short_folder, ScriptedDoor(), most_connections=1, quiet_seconds=0.0) as running,
        local_client(running) as client,
    ):
        await client.get("/x")
        (connection,) = running.openings[1].connections
        connection.transport.pause_reading()
        await client.send(request("POST", "/x", body=b"{}"))
        await eventually(connection.has_unread_bytes)
        new = await _connected(str(running.socket_path))
        await eventually(lambda: _refused(running) == 1)
        new.close()
        connection.transport.resume_reading()
        answer = await client.answer()

    assert (answer[0], json.loads(answer[2])["method"]) == (200, "POST")


async def test_a_client_that_paused_for_a_moment_alone_keeps_its_connection(short_folder: Path):
    async with (
        edge(short_folder, ScriptedDoor(), most_connections=1) as running,
        local_client(running) as client,
    ):
        await client.get("/x")
        new = await _connected(str(running.socket_path))
        await eventually(lambda: _refused(running) == 1)
        new.close()
        again = await client.get("/x")

    assert again[0] == 200


async def test_near_the_most_connections_each_answer_says_that_it_is_the_last(short_folder: Path):
    async with edge(short_folder, ScriptedDoor(), most_connections=10) as running, local_client(running) as client:
        before = await client.get("/x")
        async with AsyncExitStack() as stack:
            for _ in range(9):
                await stack.enter_async_context(local_client(running))
            await eventually(lambda: running.connections() == 10)
            last = await client.get("/x")
            closed = await asyncio.wait_for(client.closed(), HANGS_AFTER)

    assert "connection" not in before[1]
    assert last[0] == 200
    assert last[1]["connection"] == "close"
    assert closed


async def _connected(address: str | tuple[str, int]) -> socket.socket:
    client = socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET, socket.SOCK_STREAM)
    client.setblocking(False)
    await asyncio.get_running_loop().sock_connect(client, address)
    return client


def _with_partial_headers(running: Edge) -> int:
    return sum(each.headers_since is not None for opening in running.openings for each in opening.connections)


def _refused(running: Edge) -> float:
    lines = [
        line for line in running.rendered().splitlines() if line.startswith("apiserver_connections_refused_total{")
    ]
    return float(lines[0].split()[-1]) if lines else 0


def _is_closed(client: socket.socket) -> bool:
    try:
        return client.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionError:
        return True


# ---- counting --------------------------------------------------------------------------------------------------------


async def test_requests_are_counted_by_verb_resource_and_code(short_folder: Path):
    watched = Watched()
    async with edge(short_folder, ScriptedDoor(watched.answer)) as running:
        async with local_client(running) as client:
            await client.get("/api/v1/namespaces/default/pods/p")
            await client.get("/api/v1/pods?limit=5")
            await client.get("/apis/storage.k8s.io/v1/csinodes/n1")
            await client.get("/apis/made.up/v1/things")
            await client.send(request("DELETE", "/api/v1/namespaces/default/pods"))
            await client.answer()
            await client.get("/api/v1/namespaces/default")
        rendered = running.rendered()

    for verb, kind in [("GET", "pods"), ("LIST", "pods"), ("GET", "csinodes"), ("DELETECOLLECTION", "pods")]:
        assert f'apiserver_request_total{{code="200",resource="{kind}",verb="{verb}"}} 1.0' in rendered
    assert 'resource="namespaces",verb="GET"' in rendered
    assert "things" not in rendered
    assert 'apiserver_request_duration_seconds_count{code="200",resource="pods",verb="LIST"} 1.0' in rendered
