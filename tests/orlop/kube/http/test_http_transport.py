"""Requests over real sockets on loopback: TLS, credentials, and each way a connection can fail."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from orlop.foundation.structured_log import Secret
from orlop.kube.api_errors import ConnectionBroken, CredentialsUnavailable, NotConnected, ResponseTimeout
from orlop.kube.config.cluster_access import (
    ANONYMOUS,
    ClusterAccess,
    Credentials,
    FixedCredentials,
    Password,
    over_unix_socket,
)
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.http.server_endpoint import UnusableAuthority
from support.processes.http_servers import (
    Listening,
    certificates_in,
    client_certificate,
    conversing,
    read_request,
    server_tls,
    serving,
)
from support.waiting import HANGS_AFTER, LIMITS

GET = HttpRequest("GET", "/api/v1/pods")
PATCH = HttpRequest("PATCH", "/api/v1/pods/x", (), {"content-type": "application/json"}, b"{}")
ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


async def echo(request: web.BaseRequest) -> web.Response:
    body = await request.read()
    return web.Response(body=f"{request.method} {request.raw_path}".encode() + b"|" + body, headers={"X-Odd": "Yes"})


def plain(address: str, credentials: Credentials = ANONYMOUS, **more: Any) -> ClusterAccess:
    return ClusterAccess(address, FixedCredentials(credentials), **more)


@asynccontextmanager
async def transport_to(access: ClusterAccess) -> AsyncIterator[HttpTransport]:
    transport = HttpTransport(access)
    try:
        yield transport
    finally:
        await transport.close()


@asynccontextmanager
async def served(handler: Any = echo) -> AsyncIterator[tuple[HttpTransport, Listening]]:
    async with serving(handler) as server, transport_to(plain(server.address)) as transport:
        yield transport, server


# ---- what is carried -------------------------------------------------------------------------------------------------


async def test_a_request_arrives_as_it_was_made_and_its_answer_comes_back_whole():
    async with served() as (transport, server):
        asked = HttpRequest("PATCH", "/a%2Fb/c:d", (("x", "1 2"), ("x", "ä")), {"accept": "application/json"}, b"body")

        answer = await transport.exchange(asked, HANGS_AFTER)

    assert answer.status == 200
    assert answer.body == b"PATCH /a%2Fb/c:d?x=1+2&x=%C3%A4|body"
    assert answer.headers["x-odd"] == "Yes"
    assert server.asked[0].headers["accept"] == "application/json"


async def test_nothing_is_said_that_nobody_asked_for():
    async with served() as (transport, server):
        await transport.exchange(GET, HANGS_AFTER)

    assert {name.lower() for name in server.asked[0].headers} == {"host"}


async def test_the_path_of_the_server_stands_before_that_of_the_request():
    async with serving(echo) as server, transport_to(plain(f"{server.address}/k8s/clusters/c-1")) as transport:
        assert (await transport.exchange(GET, HANGS_AFTER)).body.startswith(b"GET /k8s/clusters/c-1/api/v1/pods")


async def test_whom_we_act_as_is_said_with_each_request_also_when_it_is_a_list():
    groups = (("Impersonate-User", "jo"), ("Impersonate-Group", "a"), ("Impersonate-Group", "b"))
    async with serving(echo) as server, transport_to(plain(server.address, headers=groups)) as transport:
        await transport.exchange(GET, HANGS_AFTER)

    assert server.asked[0].headers.getall("impersonate-group") == ["a", "b"]


async def test_headers_that_came_more_than_once_are_one_list():
    async def warn(_: web.BaseRequest) -> web.Response:
        answer = web.Response()
        answer.headers.add("Warning", "299 - one")
        answer.headers.add("Warning", "299 - two")
        return answer

    async with served(warn) as (transport, _):
        assert (await transport.exchange(GET, HANGS_AFTER)).headers["warning"] == "299 - one, 299 - two"


async def test_an_answer_with_a_long_header_is_read():
    async def warning(_request: web.BaseRequest) -> web.Response:
        return web.Response(headers={"warning": "w" * 60_000})

    async with served(warning) as (transport, _):
        answer = await transport.exchange(GET, HANGS_AFTER)

    assert answer.headers["warning"] == "w" * 60_000


async def test_a_large_answer_and_a_large_request_are_carried():
    large = b"x" * 8_000_000

    async def count(request: web.BaseRequest) -> web.Response:
        received = 0
        async for piece in request.content.iter_any():
            received += len(piece)
        return web.Response(body=BytesIO(b"y" * received))

    async with served(count) as (transport, _):
        answer = await transport.exchange(HttpRequest("POST", "/", body=large), 20)

    assert len(answer.body) == len(large)


async def test_requests_one_after_another_share_a_connection():
    async with served() as (transport, server):
        for _ in range(5):
            await transport.exchange(PATCH, HANGS_AFTER)

    assert len(server.connections) == 1


async def test_a_unix_socket_is_spoken_to_like_any_server(short_folder: Path):
    path = short_folder / "api.sock"
    async with serving(echo, unix=path), transport_to(over_unix_socket(str(path))) as transport:
        assert (await transport.exchange(GET, HANGS_AFTER)).body == b"GET /api/v1/pods|"


async def test_a_unix_socket_that_is_not_there_was_never_connected(short_folder: Path):
    async with transport_to(over_unix_socket(str(short_folder / "none.sock"))) as transport:
        with pytest.raises(NotConnected, match=r"none\.sock"):
            await transport.exchange(GET, HANGS_AFTER)


async def test_no_redirect_is_followed():
    async def away(_: web.BaseRequest) -> web.Response:
        return web.Response(status=307, headers={"Location": "http://127.0.0.1:1/"})

    async with served(away) as (transport, server):
        assert (await transport.exchange(PATCH, HANGS_AFTER)).status == 307

    assert len(server.asked) == 1


async def test_no_proxy_of_the_environment_is_used(monkeypatch: pytest.MonkeyPatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    async with served() as (transport, _):
        assert (await transport.exchange(GET, HANGS_AFTER)).status == 200


# ---- TLS and credentials ---------------------------------------------------------------------------------------------


class Rotating:
    """Credentials that change when they are told to."""

    def __init__(self, *values: Credentials) -> None:
        self.values = list(values)
        self.refused: list[Credentials] = []

    async def current(self) -> Credentials:
        return self.values[0]

    async def renew(self, refused: Credentials) -> None:
        self.refused.append(refused)
        if refused is self.values[0] and len(self.values) > 1:
            self.values.pop(0)


def token(text: str) -> Credentials:
    return Credentials(token=Secret(text))


async def who(request: web.BaseRequest) -> web.Response:
    return web.Response(text=request.headers.get("authorization", "nobody"))


@asynccontextmanager
async def secured(folder: Path, clients: bytes | None = None) -> AsyncIterator[ClusterAccess]:
    files = certificates_in(folder)
    async with serving(who, tls=server_tls(files, clients=clients)) as server:
        yield plain(server.address, certificate_authority=files.ca_certificate.read_bytes(), origin="a test")


async def said(access: ClusterAccess) -> str:
    async with transport_to(access) as transport:
        return (await transport.exchange(GET, HANGS_AFTER)).body.decode()


async def test_a_token_is_shown_over_tls(tmp_path: Path):
    async with secured(tmp_path) as access:
        assert await said(replace(access, credentials=FixedCredentials(token("abc")))) == "Bearer abc"


async def test_a_name_and_a_password_are_shown_over_tls(tmp_path: Path):
    password = Credentials(password=Password("jo", Secret("pw")))
    async with secured(tmp_path) as access:
        assert await said(replace(access, credentials=FixedCredentials(password))) == "Basic am86cHc="


async def test_a_token_is_not_shown_where_others_could_read_it():
    async with serving(who) as server:
        assert await said(plain(server.address, token("abc"))) == "nobody"


async def test_a_server_that_another_authority_vouches_for_is_not_spoken_to(tmp_path: Path):
    other = tmp_path / "other"
    other.mkdir()
    async with secured(tmp_path) as access:
        stranger = certificates_in(other).ca_certificate.read_bytes()
        with pytest.raises(NotConnected, match="certificate"):
            await said(replace(access, certificate_authority=stranger))
        with pytest.raises(NotConnected, match="certificate"):
            await said(replace(access, certificate_authority=None))


async def test_a_server_is_spoken_to_unseen_only_when_told_to(tmp_path: Path):
    async with secured(tmp_path) as access:
        assert await said(replace(access, certificate_authority=None, insecure=True)) == "nobody"


async def test_the_certificate_must_name_the_server_we_mean(tmp_path: Path):
    async with secured(tmp_path) as access:
        assert await said(replace(access, tls_server_name="kubernetes.default")) == "nobody"
        with pytest.raises(NotConnected, match="certificate"):
            await said(replace(access, tls_server_name="example.com"))


async def test_a_client_certificate_is_shown_to_a_server_that_wants_one(tmp_path: Path):
    mine = client_certificate("jo")
    async with secured(tmp_path, clients=mine.certificate) as access:
        assert (
            await said(replace(access, credentials=FixedCredentials(Credentials(client_certificate=mine)))) == "nobody"
        )
        with pytest.raises((ConnectionBroken, NotConnected)):
            await said(access)


async def test_a_new_client_certificate_is_used_from_the_next_request_on(tmp_path: Path):
    good, bad = client_certificate("good"), client_certificate("bad")
    rotating = Rotating(Credentials(client_certificate=bad), Credentials(client_certificate=good))
    async with (
        secured(tmp_path, clients=good.certificate) as access,
        transport_to(replace(access, credentials=rotating)) as transport,
    ):
        with pytest.raises((ConnectionBroken, NotConnected)):
            await transport.exchange(GET, HANGS_AFTER)
        rotating.values.pop(0)
        assert (await transport.exchange(GET, HANGS_AFTER)).status == 200


def test_an_authority_that_is_none_is_named():
    with pytest.raises(UnusableAuthority, match=r"/etc/kube\.conf"):
        HttpTransport(plain("https://x", certificate_authority=b"nonsense", origin="/etc/kube.conf"))


async def test_a_client_certificate_that_is_none_is_told_without_its_key(tmp_path: Path):
    mine = client_certificate("jo")
    broken = replace(mine, key=Secret(b"-----BEGIN PRIVATE KEY-----\nc2VjcmV0\n-----END PRIVATE KEY-----\n"))
    async with secured(tmp_path) as access:
        with pytest.raises(CredentialsUnavailable) as told:
            await said(replace(access, credentials=FixedCredentials(Credentials(client_certificate=broken))))
    assert "c2Vj" not in str(told.value)


async def test_the_refused_credentials_are_renewed_once_however_many_were_refused(tmp_path: Path):
    files = certificates_in(tmp_path)
    rotating = Rotating(token("old"), token("new"))

    async def only_new(request: web.BaseRequest) -> web.Response:
        return web.Response(status=200 if request.headers["authorization"] == "Bearer new" else 401)

    async with serving(only_new, tls=server_tls(files)) as server:
        access = ClusterAccess(server.address, rotating, certificate_authority=files.ca_certificate.read_bytes())
        async with transport_to(access) as transport:
            answers = await asyncio.gather(*(transport.exchange(GET, HANGS_AFTER) for _ in range(3)))
            assert {answer.status for answer in answers} == {401}
            for _ in range(3):
                await transport.renew_credentials()
            assert (await transport.exchange(GET, HANGS_AFTER)).status == 200
    assert len({id(one) for one in rotating.refused}) == 1


# ---- what goes wrong -------------------------------------------------------------------------------------------------


def unused_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def test_a_server_that_does_not_listen_was_never_connected():
    async with transport_to(plain(f"http://127.0.0.1:{unused_port()}")) as transport:
        with pytest.raises(NotConnected, match="cannot be reached"):
            await transport.exchange(PATCH, HANGS_AFTER)


@pytest.mark.parametrize("address", ["http://host.invalid", "http://", "http://[::1", "nonsense"])
async def test_an_address_that_leads_nowhere_was_never_connected(address: str):
    async with transport_to(plain(address)) as transport:
        with pytest.raises(NotConnected):
            await transport.exchange(GET, HANGS_AFTER)


async def test_tls_with_a_server_that_speaks_none_was_never_connected():
    async with served() as (_, server):
        access = plain(server.address.replace("http:", "https:"), insecure=True)
        async with transport_to(access) as transport:
            with pytest.raises(NotConnected):
                await transport.exchange(GET, HANGS_AFTER)


async def test_a_server_that_takes_nobody_in_was_never_connected(short_folder: Path):
    """Its queue of connections is full: nothing we could have sent has been read."""
    path = str(short_folder / "full.sock")
    with socket.socket(socket.AF_UNIX) as listening, contextlib.ExitStack() as waiting:
        listening.bind(path)
        listening.listen(0)
        for _ in range(2):
            one = waiting.enter_context(socket.socket(socket.AF_UNIX))
            one.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                one.connect(path)
        async with transport_to(over_unix_socket(path)) as transport:
            with pytest.raises(NotConnected):
                await transport.exchange(GET, 0.2)


async def test_a_server_that_reads_and_says_nothing_gave_no_answer_in_time():
    async def silent(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
        await reader.read()

    async with conversing(silent) as address, transport_to(plain(address)) as transport:
        with pytest.raises(ResponseTimeout, match=r"0\.1 seconds"):
            await transport.exchange(PATCH, 0.1)
        with pytest.raises(ResponseTimeout):
            async with transport.open(GET, 0.1):
                pytest.fail("there is no answer")


async def test_the_time_limit_of_one_request_ends_with_it():
    after_the_limit = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ANSWER)
        await read_request(reader)
        await after_the_limit.wait()
        writer.write(ANSWER)

    async with conversing(talk) as address, transport_to(plain(address)) as transport:
        for within in LIMITS:
            after_the_limit.clear()
            timer = asyncio.get_running_loop().call_later(1.5 * within, after_the_limit.set)
            with contextlib.suppress(NotConnected, ResponseTimeout):
                await transport.exchange(GET, within)
                assert (await transport.exchange(GET, HANGS_AFTER)).status == 200
                return
            timer.cancel()
    pytest.fail("the second request ended with the limit of the first")


async def test_an_answer_that_never_ends_gave_no_answer_in_time():
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf")
        await reader.read()

    async with conversing(half) as address, transport_to(plain(address)) as transport:
        with pytest.raises(ResponseTimeout):
            await transport.exchange(PATCH, 0.1)


BREAKS = {
    "before a word": b"",
    "in the head": b"HTTP/1.1 200 OK\r\nconte",
    "in the body": b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf",
    "in a chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nff\r\nhalf",
    "with nonsense": b"SSH-2.0-OpenSSH\r\n\r\n",
}


@pytest.mark.parametrize("written", BREAKS.values(), ids=BREAKS.keys())
async def test_a_server_that_read_the_request_and_broke_off_may_have_done_it(written: bytes):
    read: list[bytes] = []

    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        read.append(await read_request(reader))
        writer.write(written)
        await writer.drain()

    async with conversing(break_off) as address, transport_to(plain(address)) as transport:
        for request in (PATCH, GET, HttpRequest("DELETE", "/x")):
            with pytest.raises(ConnectionBroken):
                await transport.exchange(request, HANGS_AFTER)
    assert len(read) == 3, "a request was sent twice"


async def test_a_connection_that_the_server_closed_before_we_sent_is_not_used():
    closed: list[str] = []

    async def once(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(ANSWER)
        await writer.drain()
        closed.append("closed")

    async with conversing(once) as address, transport_to(plain(address)) as transport:
        for number in range(20):
            for _ in range(number % 5):  # the end is in the loop's hands, on its way there, or still in the kernel
                await asyncio.sleep(0)
            assert (await transport.exchange(PATCH, HANGS_AFTER)).body == b"ok"


async def test_an_end_that_only_the_kernel_knows_of_is_seen_before_a_request_is_sent():
    """The server answers from another thread, and we close its end where our loop cannot have heard of it."""
    peers: list[socket.socket] = []

    def answer_each(listening: socket.socket) -> None:
        for _ in range(3):
            peer, _ = listening.accept()
            peer.recv(65536)
            peers.append(peer)
            peer.send(ANSWER)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        async with transport_to(plain(f"http://127.0.0.1:{listening.getsockname()[1]}")) as transport:
            answering = asyncio.create_task(asyncio.to_thread(answer_each, listening))
            for _ in range(3):
                assert (await transport.exchange(PATCH, HANGS_AFTER)).body == b"ok"
                peers[-1].close()
            await answering


async def test_a_closed_transport_connects_no_more():
    async with served() as (transport, _):
        await transport.exchange(GET, HANGS_AFTER)
        await transport.close()
        await transport.close()
        with pytest.raises(NotConnected, match="closed"):
            await transport.exchange(GET, HANGS_AFTER)


@pytest.mark.parametrize("written", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"], ids=["head", "body"])
async def test_closing_the_transport_breaks_the_exchanges_under_way(written: bytes):
    reached = asyncio.Event()

    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(written)
        await writer.drain()
        reached.set()
        await reader.read()

    async with conversing(half) as address, transport_to(plain(address)) as transport:
        waiting = asyncio.create_task(transport.exchange(PATCH, HANGS_AFTER))
        await reached.wait()
        for _ in range(10):
            await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(ConnectionBroken):
            await waiting


# ---- streams ---------------------------------------------------------------------------------------------------------


async def endless(request: web.BaseRequest) -> web.StreamResponse:
    answer = web.StreamResponse(headers={"Content-Type": "application/json"})
    await answer.prepare(request)
    await answer.write(b"first\n")
    await asyncio.Event().wait()
    return answer


async def test_a_stream_gives_what_has_come_without_waiting_for_more():
    async with served(endless) as (transport, _), transport.open(GET, HANGS_AFTER) as stream:
        assert stream.status == 200
        assert stream.headers["content-type"] == "application/json"
        assert await anext(aiter(stream.pieces)) == b"first\n"


async def test_a_stream_that_the_server_ends_ends_without_an_error():
    async with served() as (transport, _), transport.open(GET, HANGS_AFTER) as stream:
        assert b"".join([piece async for piece in stream.pieces]) == b"GET /api/v1/pods|"


async def test_a_stream_may_be_silent_for_longer_than_an_answer_may_take():
    enough = asyncio.Event()

    async def late(request: web.BaseRequest) -> web.StreamResponse:
        answer = web.StreamResponse()
        await answer.prepare(request)
        await enough.wait()
        await answer.write(b"late")
        return answer

    async with served(late) as (transport, _):
        for within in LIMITS:
            with contextlib.suppress(NotConnected, ResponseTimeout):
                async with transport.open(GET, within) as stream:
                    pieces = aiter(stream.pieces)
                    with pytest.raises(TimeoutError):
                        async with asyncio.timeout(1.5 * within):
                            await anext(pieces)
                    enough.set()
                    assert [piece async for piece in pieces] == [b"late"]
                    return
    pytest.fail("the stream ended with the limit of its answer")


async def test_a_stream_that_breaks_says_so():
    async def break_off(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_request(reader)
        writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\nab\r\n")
        await writer.drain()

    pieces: list[bytes] = []
    async with (
        conversing(break_off) as address,
        transport_to(plain(address)) as transport,
        transport.open(GET, HANGS_AFTER) as stream,
    ):
        with pytest.raises(ConnectionBroken):
            async for piece in stream.pieces:
                pieces.append(piece)
    assert pieces == [b"ab"]


async def test_closing_the_transport_breaks_the_streams_under_way():
    async with served(endless) as (transport, _), transport.open(GET, HANGS_AFTER) as stream:
        pieces = aiter(stream.pieces)
        await anext(pieces)
        waiting = asyncio.create_task(anext(pieces))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        await transport.close()
        with pytest.raises(ConnectionBroken):
            await waiting


async def test_leaving_a_stream_closes_its_connection():
    gone = asyncio.Event()

    async def until_gone(request: web.BaseRequest) -> web.StreamResponse:
        try:
            return await endless(request)
        finally:
            gone.set()

    async with served(until_gone) as (transport, _):
        async with transport.open(GET, HANGS_AFTER) as stream:
            await anext(aiter(stream.pieces))
            assert not gone.is_set()
        await gone.wait()


async def test_a_stream_that_was_read_to_its_end_leaves_its_connection_to_others():
    async with served() as (transport, server):
        for _ in range(3):
            async with transport.open(GET, HANGS_AFTER) as stream:
                _ = [piece async for piece in stream.pieces]

    assert len(server.connections) == 1


async def test_a_server_waits_while_its_stream_is_not_read():
    waits = asyncio.Event()
    sent = 0

    async def flood(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal sent
        answer = web.StreamResponse()
        await answer.prepare(request)
        while not waits.is_set():
            try:
                async with asyncio.timeout(0.3):
                    await answer.write(b"x" * 2**16)
            except TimeoutError:
                waits.set()
            sent += 2**16
        return answer

    async with served(flood) as (transport, _), transport.open(GET, HANGS_AFTER) as stream:
        pieces = aiter(stream.pieces)
        await anext(pieces)
        await waits.wait()
        rest = [piece async for piece in pieces]

    assert sum(map(len, rest)) <= sent < 2**26


# ---- many at once ----------------------------------------------------------------------------------------------------


async def test_requests_that_are_answered_at_once_share_a_few_connections():
    async with served() as (transport, server):
        await asyncio.gather(*(transport.exchange(PATCH, HANGS_AFTER) for _ in range(200)))

    assert len(server.connections) < 50


async def test_requests_that_take_long_do_not_wait_for_each_other():
    everybody = asyncio.Barrier(40)

    async def together(_: web.BaseRequest) -> web.Response:
        await everybody.wait()
        return web.Response()

    async with served(together) as (transport, server):
        await asyncio.gather(*(transport.exchange(GET, HANGS_AFTER) for _ in range(40)))

    assert len(server.connections) == 40


async def test_who_is_cancelled_while_he_waits_takes_nothing_from_others():
    async with served() as (transport, _):
        waiting = [asyncio.create_task(transport.exchange(PATCH, HANGS_AFTER)) for _ in range(20)]
        await asyncio.sleep(0)
        for task in waiting[::2]:
            task.cancel()
        ended = await asyncio.gather(*waiting, return_exceptions=True)
        assert [type(end) for end in ended[::2]] == [asyncio.CancelledError] * 10
        assert {end.status for end in ended[1::2]} == {200}  # type: ignore[union-attr]
        assert (await transport.exchange(GET, HANGS_AFTER)).status == 200


async def test_an_answer_that_was_cancelled_never_reaches_the_next_request():
    go_on = asyncio.Event()

    async def named(request: web.BaseRequest) -> web.Response:
        if request.path == "/late":
            await go_on.wait()
        return web.Response(text=request.path)

    async with served(named) as (transport, _):
        late = asyncio.create_task(transport.exchange(HttpRequest("GET", "/late"), HANGS_AFTER))
        assert (await transport.exchange(HttpRequest("GET", "/one"), HANGS_AFTER)).body == b"/one"
        late.cancel()
        go_on.set()
        for _ in range(5):
            assert (await transport.exchange(HttpRequest("GET", "/two"), HANGS_AFTER)).body == b"/two"
        with pytest.raises(asyncio.CancelledError):
            await late


async def test_a_server_that_answers_before_it_has_read_all_is_heard():
    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 413 Too Large\r\ncontent-length: 0\r\n\r\n")
        await reader.read()

    async with conversing(refuse) as address, transport_to(plain(address)) as transport:
        for _ in range(2):
            answer = await transport.exchange(HttpRequest("POST", "/", body=b"x" * 20_000_000), HANGS_AFTER)
            assert answer.status == 413


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "a\0b"])
async def test_what_would_be_another_header_is_not_sent(value: str):
    async with served() as (transport, server):
        with pytest.raises(NotConnected, match="x-odd") as told:
            await transport.exchange(HttpRequest("GET", "/", (), {"x-odd": value}), HANGS_AFTER)
    assert value not in str(told.value)
    assert server.asked == []


async def test_a_target_that_is_not_quoted_is_not_sent():
    async with served() as (transport, server):
        with pytest.raises(NotConnected, match="percent-encoded"):
            await transport.exchange(HttpRequest("GET", "/a b HTTP/1.1\r\nx: y"), HANGS_AFTER)
    assert server.asked == []


async def test_a_server_whose_machine_went_without_a_word_is_noticed_within_a_minute():
    """Nobody can switch a machine off here: that the kernel was asked to look is what is shown."""
    kept: dict[int, int] = {}
    wanted = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)

    def find() -> socket.socket:
        (connection,) = transport._pool._open
        return connection._transport.get_extra_info("socket")

    async with served() as (transport, _server):
        await transport.exchange(GET, HANGS_AFTER)
        kept = {option: find().getsockopt(socket.IPPROTO_TCP, option) for option in wanted}
        assert find().getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    assert kept[socket.TCP_KEEPIDLE] + kept[socket.TCP_KEEPINTVL] * kept[socket.TCP_KEEPCNT] <= 60
    assert kept[socket.TCP_USER_TIMEOUT] <= 60_000
