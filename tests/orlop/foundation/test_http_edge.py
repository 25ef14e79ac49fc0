"""Proves over real connections what probes, scrapers and handed-in routes see."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import aiohttp
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.http_edge import (
    EdgeRequest,
    EdgeResponse,
    HttpEdge,
    ListenAddress,
    parse_listen_address,
)
from orlop.processes.http_wiring import health_routes, metrics_route
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orlop.foundation.http_edge import Route
    from orlop.processes.http_wiring import Check

HERE = ListenAddress("127.0.0.1", 0)


@asynccontextmanager
async def served(*routes: Route, **options: Any) -> AsyncIterator[aiohttp.ClientSession]:
    async with (
        HttpEdge(HERE, routes, **options) as edge,
        aiohttp.ClientSession(f"http://{edge.address}") as client,
    ):
        yield client


async def ask(routes: list[Route], path: str) -> tuple[int, str]:
    async with served(*routes) as client, client.get(path) as answer:
        return answer.status, await answer.text()


async def good() -> None:
    return None


async def bad() -> str:
    return "the driver\ndoes not answer"


async def breaks() -> str:
    raise ValueError("password=hunter2")


async def hangs() -> str:
    await asyncio.Event().wait()
    return "never said"


async def cancels_itself() -> None:
    raise asyncio.CancelledError


def health(live: dict[str, Check] | None = None, ready: dict[str, Check] | None = None) -> list[Route]:
    return health_routes(liveness=live or {}, readiness=ready or {}, check_seconds=0.02)


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_a_healthy_process_says_ok(path: str):
    assert await ask(health({"a": good}, {"b": good}), path) == (200, "ok")


async def test_a_verbose_answer_lists_every_check():
    assert await ask(health({"loop": good}, {"driver": good}), "/readyz?verbose") == (
        200,
        "[+]ping ok\n[+]loop ok\n[+]driver ok\nreadyz check passed\n",
    )


async def test_a_failed_check_is_named_with_its_reason_on_one_line_even_when_not_verbose():
    assert await ask(health({"loop": good}, {"driver": bad}), "/readyz") == (
        500,
        "[+]ping ok\n[+]loop ok\n[-]driver failed: the driver does not answer\nreadyz check failed\n",
    )


@pytest.mark.parametrize("path", ["/healthz", "/livez"])
async def test_liveness_does_not_depend_on_readiness(path: str):
    assert await ask(health({"loop": good}, {"driver": bad}), path) == (200, "ok")


async def test_a_process_that_is_not_alive_is_not_ready_either():
    status, _ = await ask(health({"loop": bad}), "/readyz")
    assert status == 500


async def test_an_excluded_check_is_not_asked_and_an_unknown_exclusion_is_told():
    path = "/readyz?verbose&exclude=driver&exclude=disk&exclude=x"
    status, text = await ask(health({}, {"driver": bad, "disk": bad}), path)
    assert status == 200
    assert text.splitlines() == [
        "[+]ping ok",
        "[+]driver excluded: ok",
        "[+]disk excluded: ok",
        "warn: some health checks cannot be excluded: no matches for 'x'",
        "readyz check passed",
    ]


async def test_all_checks_may_be_excluded():
    assert await ask(health(), "/livez?exclude=ping") == (200, "ok")


STUCK = "[+]ping ok\n[-]stuck failed: no result within 0.02 seconds\n[+]loop ok\nlivez check failed\n"


async def test_a_check_that_hangs_has_failed_and_the_others_are_told_all_the_same():
    assert await ask(health({"stuck": hangs, "loop": good}), "/livez") == (500, STUCK)


async def test_a_check_that_ignores_being_cancelled_does_not_hang_the_answer():
    released, ended = asyncio.Event(), asyncio.Event()

    async def stubborn() -> None:
        while not released.is_set():
            with contextlib.suppress(asyncio.CancelledError):
                await released.wait()
        ended.set()

    assert await ask(health({"stuck": stubborn, "loop": good}), "/livez") == (500, STUCK)
    released.set()
    await ended.wait()


@pytest.mark.parametrize(
    ("check", "reason"),
    [(breaks, "the check itself failed with ValueError"), (cancels_itself, "the check was cancelled")],
)
async def test_a_check_that_breaks_has_failed_and_its_exceptions_text_is_not_shown(check: Check, reason: str):
    status, text = await ask(health({"broken": check}), "/livez")
    assert (status, f"[-]broken failed: {reason}" in text, "hunter2" in text) == (500, True, False)


async def test_an_empty_reason_is_a_failure():
    async def empty() -> str:
        return " \n"

    assert await ask(health({"c": empty}), "/livez/c") == (500, "c failed: unknown reason\n")


async def test_one_check_can_be_asked_alone():
    routes = health({"loop": good}, {"driver": bad})
    assert await ask(routes, "/readyz/loop") == (200, "ok")
    assert await ask(routes, "/readyz/driver") == (500, "driver failed: the driver does not answer\n")
    assert await ask(routes, "/livez/driver") == (404, "There is no check driver; there are: ping, loop.\n")


async def test_many_probes_at_once_are_all_answered():
    async with served(*health({"loop": good})) as client:
        answers = await asyncio.gather(*(client.get("/livez") for _ in range(50)))
        assert [await answer.text() for answer in answers] == ["ok"] * 50


async def test_a_scrape_gets_what_render_gives_for_its_accept_header():
    def render(accept: str) -> tuple[bytes, str]:
        return f"asked for {accept}\n".encode(), "text/plain; version=0.0.4; charset=utf-8"

    async with served(metrics_route(render)) as client, client.get("/metrics", headers={"Accept": "a/b"}) as answer:
        assert await answer.text() == "asked for a/b\n"
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


async def test_a_handed_in_route_sees_the_whole_request_and_gives_the_whole_answer():
    seen: list[EdgeRequest] = []

    async def restore(request: EdgeRequest) -> EdgeResponse:
        seen.append(request)
        return EdgeResponse(status=202, body=b"\x00\xff", content_type="application/x-tar", headers={"X-Folder": "f1"})

    async with (
        served(("POST", "/folders/{id}/restore", restore)) as client,
        client.post("/folders/f1/restore?to=a&to=b&dry", data=b"body", headers={"X-Reason": "why"}) as answer,
    ):
        assert (answer.status, await answer.read()) == (202, b"\x00\xff")
        assert (answer.headers["Content-Type"], answer.headers["X-Folder"]) == ("application/x-tar", "f1")
    (request,) = seen
    assert (request.method, request.path, request.body) == ("POST", "/folders/f1/restore", b"body")
    assert request.parameters == {"id": "f1"}
    assert request.query == {"to": ("a", "b"), "dry": ("",)}
    assert request.headers["x-reason"] == "why"


async def test_an_answer_can_be_sent_in_pieces():
    async def pieces() -> AsyncIterator[bytes]:
        for number in range(3):
            yield f"{number};".encode()

    async def stream(_request: EdgeRequest) -> EdgeResponse:
        return EdgeResponse(body=pieces())

    assert await ask([("GET", "/stream", stream)], "/stream") == (200, "0;1;2;")


async def test_a_stream_that_breaks_is_cut_off_and_told_to_the_process(caplog: pytest.LogCaptureFixture):
    errors: list[str] = []

    async def pieces() -> AsyncIterator[bytes]:
        yield b"first"
        raise ValueError("password=hunter2")

    async def stream(_request: EdgeRequest) -> EdgeResponse:
        return EdgeResponse(body=pieces())

    def on_error(where: str, error: Exception) -> None:
        errors.append(f"{where}: {error}")

    async with served(("GET", "/stream", stream), on_error=on_error) as client, client.get("/stream") as answer:
        with pytest.raises(aiohttp.ClientPayloadError):
            await answer.read()
    assert errors == ["GET /stream: password=hunter2"]
    assert "hunter2" not in caplog.text


async def test_what_a_handler_raises_is_told_to_the_process_and_not_to_the_client(caplog: pytest.LogCaptureFixture):
    errors: list[tuple[str, str]] = []

    async def fail(_request: EdgeRequest) -> EdgeResponse:
        raise ValueError("password=hunter2")

    def on_error(where: str, error: Exception) -> None:
        errors.append((where, str(error)))

    async with served(("GET", "/fail", fail), on_error=on_error) as client, client.get("/fail?token=t") as answer:
        assert (answer.status, await answer.text()) == (500, "Something went wrong here; the log says what.\n")
    assert errors == [("GET /fail", "password=hunter2")]
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("line", [b"GET /livez?token=hunter2 HTTP/1.1", b"hunter2 is no request", b"GET hunter2\x00"])
async def test_no_request_is_logged_whether_good_or_malformed(caplog: pytest.LogCaptureFixture, line: bytes):
    caplog.set_level(logging.DEBUG)
    async with HttpEdge(HERE, health()) as edge:
        host, _, port = edge.address.partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(line + b"\r\nHost: orlop\r\nConnection: close\r\n\r\n")
        assert (await reader.read()).startswith(b"HTTP/1.")
        writer.close()
        await writer.wait_closed()
    assert "hunter2" not in caplog.text


@pytest.mark.parametrize("answer", [None, EdgeResponse(body="\ud800")])
async def test_an_answer_that_cannot_be_sent_is_told_to_the_process(answer: Any):
    async def wrong(_: EdgeRequest) -> EdgeResponse:
        return answer  # type: ignore[no-any-return]

    told: list[str] = []
    async with (
        served(("GET", "/wrong", wrong), on_error=lambda where, _: told.append(where)) as client,
        client.get("/wrong") as response,
    ):
        assert (response.status, response.headers["Server"]) == (500, "orlop")

    assert told == ["GET /wrong"]


async def test_a_body_that_cannot_be_read_is_the_clients_fault():
    told: list[str] = []
    async with (
        served(*health(), on_error=lambda where, _: told.append(where)) as client,
        client.request("GET", "/livez", data=b"no gzip", headers={"Content-Encoding": "gzip"}) as response,
    ):
        assert response.status == 400

    assert told == []


async def test_an_unknown_path_is_not_found_and_a_wrong_method_is_not_allowed():
    async with served(*health()) as client:
        async with client.get("/") as answer:
            assert answer.status == 404
        async with client.post("/livez") as answer:
            assert answer.status == 405
        async with client.head("/livez") as answer:
            assert answer.status == 200


async def test_a_socket_handed_in_is_served(short_folder: Path):
    path = short_folder / "http.sock"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    async with HttpEdge(listener, health()) as edge:
        assert edge.address == str(path)
        connector = aiohttp.UnixConnector(str(path))
        async with aiohttp.ClientSession("http://orlop", connector=connector) as client, client.get("/livez") as answer:
            assert await answer.text() == "ok"
    assert listener.fileno() == -1


@pytest.mark.parametrize("address", [":0", "127.0.0.1:0", "localhost:0"])
async def test_every_form_of_an_address_is_served(address: str):
    async with HttpEdge(parse_listen_address(address), health()) as edge:
        port = edge.address.rpartition(":")[2]
        async with aiohttp.ClientSession() as client, client.get(f"http://127.0.0.1:{port}/livez") as answer:
            assert answer.status == 200


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("address", [":0", "[::1]:0"])
async def test_ipv6_is_served(address: str):
    async with HttpEdge(parse_listen_address(address), health()) as edge:
        port = edge.address.rpartition(":")[2]
        async with aiohttp.ClientSession() as client, client.get(f"http://[::1]:{port}/livez") as answer:
            assert answer.status == 200


async def test_an_address_in_use_is_named():
    async with HttpEdge(HERE, health()) as edge:
        taken = parse_listen_address(edge.address)
        with pytest.raises(OSError, match=f"The address {taken} cannot be listened on: Address already in use"):
            async with HttpEdge(taken, health()):
                pass


async def test_a_host_that_can_be_none_is_named():
    with pytest.raises(OSError, match=r"The address a\.\.b:0 cannot be listened on: it names no host\."):
        async with HttpEdge(ListenAddress("a..b", 0), []):
            pass


async def test_an_edge_that_is_not_entered_has_no_address():
    with pytest.raises(RuntimeError, match="has no address before it is entered"):
        _ = HttpEdge(HERE, []).address


def connects(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as client:
        return client.connect_ex((host, int(port))) == 0


async def test_leaving_lets_a_request_under_way_finish_and_takes_no_new_one():
    started, may_finish = asyncio.Event(), asyncio.Event()

    async def slow(_request: EdgeRequest) -> EdgeResponse:
        started.set()
        await may_finish.wait()
        return EdgeResponse(body="finished")

    edge = HttpEdge(HERE, [("GET", "/slow", slow)])
    await edge.__aenter__()
    async with aiohttp.ClientSession(f"http://{edge.address}") as client:
        under_way = asyncio.create_task(client.get("/slow"))
        await started.wait()
        address = edge.address
        leaving = asyncio.create_task(edge.__aexit__(None, None, None))
        await eventually(lambda: not connects(address))
        may_finish.set()
        async with await under_way as answer:
            assert await answer.text() == "finished"
        await leaving


async def test_leaving_does_not_wait_forever_for_a_request_that_hangs():
    started = asyncio.Event()

    async def hang(_request: EdgeRequest) -> EdgeResponse:
        started.set()
        await asyncio.Event().wait()
        return EdgeResponse()

    edge = HttpEdge(HERE, [("GET", "/hang", hang)], stop_seconds=0.01)
    await edge.__aenter__()
    async with aiohttp.ClientSession(f"http://{edge.address}") as client:
        under_way = asyncio.create_task(client.get("/hang"))
        await started.wait()
        await edge.__aexit__(None, None, None)
        with pytest.raises(aiohttp.ClientError):
            await under_way


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8080", ListenAddress("", 8080)),
        ("127.0.0.1:0", ListenAddress("127.0.0.1", 0)),
        ("[::1]:65535", ListenAddress("::1", 65535)),
        ("node-1.example:80", ListenAddress("node-1.example", 80)),
    ],
)
def test_an_address_is_parsed_and_printed_as_it_was_written(text: str, address: ListenAddress):
    assert parse_listen_address(text) == address
    assert str(address) == text


@pytest.mark.parametrize(
    "text", ["", "8080", ":", "::1:80", "host", "host:http", ":-1", ":+1", ": 1", ":٣", "[::1]", "a:b:1"]
)
def test_what_is_no_address_is_refused(text: str):
    with pytest.raises(ValueError, match="allowed are addresses such as :8080"):
        parse_listen_address(text)


def test_a_port_beyond_the_largest_is_refused():
    with pytest.raises(ValueError, match="allowed are ports from 0 to 65535"):
        parse_listen_address(":65536")


@given(st.text(st.sampled_from("[]:0123456789.ab"), max_size=20))
def test_any_text_is_an_address_or_a_value_error(text: str):
    try:
        port = parse_listen_address(text).port
    except ValueError:
        port = 0
    assert 0 <= port <= 65535
