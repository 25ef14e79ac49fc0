"""The client's own doing: pages, patches, repetitions, the lines of a watch. A small model stands in for the server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import (
    ApiError,
    Conflict,
    ConnectionBroken,
    Expired,
    Forbidden,
    NotConnected,
    ServerError,
    ServiceUnavailable,
)
from orlop.kube.client import DeleteOptions, KubeClient, MergePatch, Selection, StrategicPatch, WatchEvent, _events
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import CONFIG_MAP, LEASE, PERSISTENT_VOLUME, POD
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.testing.virtual_clock import VirtualClock, run_virtual

pytestmark = pytest.mark.virtual_time

Reply = HttpResponse | ApiError
PV = ObjectName(None, "pv1")


def answer(body: Any, status: int = 200, **headers: str) -> HttpResponse:
    return HttpResponse(
        status, {name.replace("_", "-"): value for name, value in headers.items()}, json.dumps(body).encode()
    )


def refusal(code: int, reason: str, **headers: str) -> HttpResponse:
    return answer({"kind": "Status", "reason": reason, "message": reason, "code": code}, code, **headers)


class Server:
    """Gives the replies in turn, the last one for ever, and remembers what it was asked."""

    is_remote = False

    def __init__(self, *replies: Reply, pieces: tuple[bytes, ...] = ()) -> None:
        self.replies = list(replies)
        self.pieces = pieces
        self.asked: list[HttpRequest] = []
        self.renewed = 0

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        self.asked.append(request)
        reply = self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]
        if isinstance(reply, ApiError):
            raise reply
        return reply

    @asynccontextmanager
    async def open(self, request: HttpRequest, within: float) -> AsyncIterator[HttpStream]:
        first = await self.exchange(request, within)
        yield HttpStream(first.status, first.headers, self._pieces(first.body))

    async def _pieces(self, body: bytes) -> AsyncIterator[bytes]:
        for piece in (body, *self.pieces):
            yield piece

    async def renew_credentials(self) -> None:
        self.renewed += 1

    async def close(self) -> None: ...

    @property
    def sent(self) -> list[Any]:
        return [json.loads(request.body) if request.body else None for request in self.asked]


def client_of(server: Server) -> KubeClient:
    return KubeClient(server, clock=VirtualClock(), random=Random(1), log=silent_log(), name="test")


def volume(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "7"}, "spec": {"unknown": {"field": [1]}}}


async def test_fields_that_nobody_here_knows_come_back_as_they_were():
    server = Server(answer(volume("pv1")))

    got = await client_of(server).get(PERSISTENT_VOLUME, PV)

    assert got["spec"] == {"unknown": {"field": [1]}}
    assert server.asked[0].target == "/api/v1/persistentvolumes/pv1"
    assert server.asked[0].headers["user-agent"] == "test"


def page(names: list[str], proceed: str = "") -> HttpResponse:
    metadata = {"resourceVersion": "9", "continue": proceed}
    return answer({"kind": "PersistentVolumeList", "metadata": metadata, "items": [volume(name) for name in names]})


async def test_a_list_follows_its_pages_and_gives_each_item_its_kind():
    server = Server(page(["a", "b"], "next"), page(["c"]))

    got = await client_of(server).list(PERSISTENT_VOLUME, Selection(labels="a=b"))

    assert [item["metadata"]["name"] for item in got.items] == ["a", "b", "c"]
    assert {item["kind"] for item in got.items} == {"PersistentVolume"}
    assert got.version == "9"
    assert [request.target for request in server.asked] == [
        "/api/v1/persistentvolumes?labelSelector=a%3Db&limit=200",
        "/api/v1/persistentvolumes?labelSelector=a%3Db&limit=200&continue=next",
    ]


async def test_a_page_is_transformed_before_the_next_one_is_asked_for():
    server = Server(page(["a", "b"], "next"), page(["c"]))
    asked_by_then: list[int] = []

    def slim(obj: dict[str, Any]) -> dict[str, Any]:
        asked_by_then.append(len(server.asked))
        return {"name": obj["metadata"]["name"]}

    got = await client_of(server).list(PERSISTENT_VOLUME, transform=slim)

    assert got.items == [{"name": "a"}, {"name": "b"}, {"name": "c"}]
    assert asked_by_then == [1, 1, 2]


async def test_a_list_whose_version_was_forgotten_on_the_way_begins_anew():
    server = Server(page(["a"], "next"), refusal(410, "Expired"), page(["a"], "next"), page(["b"]))

    got = await client_of(server).list(PERSISTENT_VOLUME)

    assert [item["metadata"]["name"] for item in got.items] == ["a", "b"]


async def test_a_list_that_is_forgotten_each_time_is_asked_for_in_one_piece():
    forgotten = [page(["a"], "next"), refusal(410, "Expired")] * 3
    server = Server(*forgotten, page(["a", "b"]))

    got = await client_of(server).list(PERSISTENT_VOLUME)

    assert len(got.items) == 2
    assert "limit" not in server.asked[-1].target


PATCHES = [
    (JsonPatch().test("metadata", "uid", value="u"), "application/json-patch+json"),
    (MergePatch({"a": None}), "application/merge-patch+json"),
    (StrategicPatch({"a": 1}), "application/strategic-merge-patch+json"),
]


@pytest.mark.parametrize(("patch", "content_type"), PATCHES, ids=[kind for _, kind in PATCHES])
async def test_a_patch_is_sent_as_what_it_is(patch: Any, content_type: str):
    server = Server(answer(volume("pv1")))

    await client_of(server).patch(PERSISTENT_VOLUME, PV, patch, subresource="status", dry_run=True)

    assert server.asked[0].headers["content-type"] == content_type
    assert server.asked[0].target == "/api/v1/persistentvolumes/pv1/status?fieldManager=test&dryRun=All"


async def test_a_created_object_has_its_kind_and_goes_into_its_namespace():
    server = Server(answer({}))

    await client_of(server).create(CONFIG_MAP, {"metadata": {"name": "x", "namespace": "ns"}})

    assert server.asked[0].path == "/api/v1/namespaces/ns/configmaps"
    assert server.sent[0] == {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x", "namespace": "ns"}}


async def test_preconditions_and_propagation_travel_with_a_delete():
    server = Server(answer({}))
    options = DeleteOptions(uid="u", version="7", propagation="Foreground", grace_seconds=0)

    await client_of(server).delete(POD, ObjectName("ns", "p"), options)

    assert server.sent[0] == {
        "kind": "DeleteOptions",
        "apiVersion": "v1",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
    }


async def test_a_busy_server_is_waited_for_as_long_as_it_says():
    server = Server(refusal(429, "TooManyRequests", retry_after="7"), answer(volume("pv1")))
    client = client_of(server)

    await client.create(PERSISTENT_VOLUME, volume("pv1"))

    assert VirtualClock().elapsed() == 7
    assert len(server.asked) == 2


async def test_a_broken_connection_is_tried_again_where_that_is_safe():
    broken = ConnectionBroken("reset")
    read = Server(broken, broken, answer(volume("pv1")))
    await client_of(read).get(PERSISTENT_VOLUME, PV)
    assert len(read.asked) == 3

    write = Server(broken, answer(volume("pv1")))
    with pytest.raises(ConnectionBroken):
        await client_of(write).create(PERSISTENT_VOLUME, volume("pv1"))
    assert len(write.asked) == 1


async def test_a_server_that_was_never_reached_is_tried_again_whatever_the_verb():
    server = Server(NotConnected("refused"), answer(volume("pv1")))

    await client_of(server).create(PERSISTENT_VOLUME, volume("pv1"))

    assert len(server.asked) == 2


async def test_a_guarded_client_asks_before_each_attempt_of_a_write_and_never_for_a_read():
    class LeaseLost(Exception): ...

    server = Server(NotConnected("refused"), NotConnected("refused"), answer(volume("pv1")))
    attempts = 0

    def may_write() -> None:
        nonlocal attempts
        attempts += 1
        if attempts == 2:
            raise LeaseLost

    client = client_of(server).guarded(may_write)
    with pytest.raises(LeaseLost):
        await client.create(PERSISTENT_VOLUME, volume("pv1"))
    assert len(server.asked) == 1

    await client.get(PERSISTENT_VOLUME, PV)
    assert (attempts, len(server.asked)) == (2, 3)


async def test_new_credentials_are_fetched_once():
    server = Server(refusal(401, "Unauthorized"))

    with pytest.raises(ApiError, match="Unauthorized"):
        await client_of(server).get(PERSISTENT_VOLUME, PV)

    assert (server.renewed, len(server.asked)) == (1, 2)


async def test_a_server_that_stays_away_is_given_up():
    with pytest.raises(ServiceUnavailable):
        await client_of(Server(refusal(503, "ServiceUnavailable"))).get(PERSISTENT_VOLUME, PV)


@pytest.mark.parametrize(("code", "reason", "kind"), [(409, "Conflict", Conflict), (403, "Forbidden", Forbidden)])
async def test_what_the_server_decided_is_not_asked_again(code: int, reason: str, kind: type[ApiError]):
    server = Server(refusal(code, reason))

    with pytest.raises(kind):
        await client_of(server).replace(PERSISTENT_VOLUME, volume("pv1"))

    assert len(server.asked) == 1


async def test_the_update_of_a_lease_goes_before_other_requests_that_wait():
    server = Server(answer({}))
    client = client_of(server)
    await client.replace(LEASE, {"metadata": {"name": "leader", "namespace": "ns"}})
    await client.replace(PERSISTENT_VOLUME, volume("pv1"))
    assert [request.goes_first for request in server.asked] == [True, False]


@pytest.mark.parametrize("body", [b"", b"<html>", b"[1]", b"\xff"])
async def test_an_answer_that_is_no_object_is_a_broken_connection(body: bytes):
    with pytest.raises(ConnectionBroken):
        await client_of(Server(HttpResponse(200, {}, body))).create(PERSISTENT_VOLUME, volume("pv1"))


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ({"items": [None]}, "items that are no objects"),
        ({"items": [volume("pv1"), "x"]}, "items that are no objects"),
        ({"items": "abc"}, "items that are no objects"),
        ({"items": {"a": 1}}, "items that are no objects"),
        ({"items": [], "metadata": "x"}, "no valid metadata"),
        ({"items": [], "metadata": {"continue": 5}}, "no valid metadata"),
        ({"items": [], "metadata": {"continue": {"a": 1}}}, "no valid metadata"),
    ],
)
async def test_a_list_that_is_none_is_a_broken_connection(body: Any, sentence: str):
    with pytest.raises(ConnectionBroken, match=sentence):
        await client_of(Server(answer(body))).list(PERSISTENT_VOLUME)


async def test_a_list_without_items_is_empty():
    assert (await client_of(Server(answer({"items": None, "metadata": None}))).list(PERSISTENT_VOLUME)).items == []


@pytest.mark.parametrize("tokens", [["a", "a"], ["a", "b", "a"]])
async def test_a_list_that_gives_a_continue_token_twice_is_a_broken_connection(tokens: list[str]):
    server = Server(*(page(["pv1"], token) for token in tokens))

    with pytest.raises(ConnectionBroken, match="it returned a continue token twice"):
        await client_of(server).list(PERSISTENT_VOLUME)

    assert len(server.asked) == len(tokens)


def line(kind: str, obj: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


async def watched(server: Server) -> list[WatchEvent]:
    return [event async for event in client_of(server).watch(PERSISTENT_VOLUME, after="5", seconds=60)]


async def test_a_watch_gives_its_events_until_the_server_ends_it():
    server = Server(HttpResponse(200), pieces=(line("ADDED", volume("a")), line("DELETED", volume("a"))))

    events = await watched(server)

    assert [event.type for event in events] == ["ADDED", "DELETED"]
    assert ("resourceVersion", "5") in server.asked[0].query
    assert ("timeoutSeconds", "60") in server.asked[0].query


async def test_an_error_in_a_watch_is_raised_as_itself():
    expired = {"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version: 1 (5)"}

    with pytest.raises(Expired, match="too old"):
        await watched(Server(HttpResponse(200), pieces=(line("ERROR", expired),)))


@pytest.mark.parametrize("code", ["x", None, [], {}, 1.5, True])
async def test_an_error_in_a_watch_whose_code_is_none_is_an_error_of_the_server(code: Any):
    with pytest.raises(ServerError, match="odd"):
        await watched(Server(HttpResponse(200), pieces=(line("ERROR", {"code": code, "message": "odd"}),)))


async def test_a_watch_that_is_refused_raises_the_refusal():
    with pytest.raises(Forbidden):
        await watched(Server(refusal(403, "Forbidden")))


@pytest.mark.parametrize("pieces", [(b'{"type":"ADD',), (b"garbage\n",), (b'{"type":"ADDED"}\n',)])
async def test_a_watch_that_sends_no_whole_events_is_broken(pieces: tuple[bytes, ...]):
    with pytest.raises(ConnectionBroken):
        await watched(Server(HttpResponse(200), pieces=pieces))


@given(st.lists(st.text(), max_size=5), st.lists(st.integers(min_value=0, max_value=200), max_size=8))
def test_events_are_the_same_however_the_bytes_arrive(names: list[str], cuts: list[int]):
    whole = b"".join(line("ADDED", {"metadata": {"name": name}}) for name in names)
    places = sorted({cut % (len(whole) + 1) for cut in cuts})
    pieces = [whole[start:end] for start, end in zip([0, *places], [*places, len(whole)], strict=True)]

    async def arrive() -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece

    async def main(_: VirtualClock) -> list[str]:
        return [event.object["metadata"]["name"] async for event in _events(arrive())]

    assert run_virtual(main) == names
