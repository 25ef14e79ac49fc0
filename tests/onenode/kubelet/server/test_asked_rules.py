"""What is asked of a kubelet, made out of targets; and what is refused, in kubelet's words."""

from __future__ import annotations

from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.pods.container_log_rules import LogOptions
from onenode.kubelet.server.asked_rules import (
    ExecRequest,
    HealthRequest,
    KubeletRequest,
    LogsRequest,
    NotAnswered,
    PodsRequest,
    SummaryRequest,
    read_asked,
)
from onenode.kubelet.server.channel_rules import SPDY_REFUSED, V4, V5, NoUpgrade, agree
from support.kubelet.websocket_clients import ACCEPT, KEY

NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)


def asked(target: str, method: str = "GET") -> KubeletRequest:
    return read_asked(method, target, NOW)


def logs(query: str) -> LogsRequest:
    found = asked(f"/containerLogs/ns/p/c?{query}")
    assert isinstance(found, LogsRequest)
    return found


def test_everything_has_its_path():
    assert asked("/stats/summary") == SummaryRequest()
    assert asked("/stats/summary/?only_cpu_and_memory=true") == SummaryRequest(of_volumes=False)
    assert asked("/pods/") == PodsRequest()
    assert asked("/healthz") == HealthRequest()
    assert asked("/containerLogs/ns/p/c") == LogsRequest("ns", "p", "c", LogOptions(), follow=False, previous=False)


@pytest.mark.parametrize(
    ("query", "options"),
    [
        ("tailLines=5", {"tail_lines": 5}),
        ("sinceSeconds=60", {"since": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("sinceSeconds=999999999999999", {"since": datetime(1970, 1, 1, tzinfo=UTC)}),
        ("sinceTime=2026-01-01T02:00:00%2B02:00", {"since": datetime(2026, 1, 1, tzinfo=UTC)}),
        ("sinceTime=0001-01-01T00:00:00Z", {"since": datetime(1970, 1, 1, tzinfo=UTC)}),
        ("limitBytes=10&timestamps=true", {"limit_bytes": 10, "timestamps": True}),
        ("stream=Stderr", {"streams": frozenset({"stderr"})}),
    ],
)
def test_options_of_logs_are_read(query: str, options: dict[str, Any]):
    assert logs(query).options == LogOptions(**options)


def test_flags_are_gos():
    assert logs("follow=true&previous=1").follow
    assert not logs("follow=false").follow
    assert not logs("follow=").follow


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/containerLogs/ns/p/c?tailLines=x", 400, "Unable to decode query."),
        ("/containerLogs/ns/p/c?sinceTime=yesterday", 400, "Unable to decode query."),
        ("/containerLogs/ns/p/c?sinceTime=2026-01-01T00:00:00", 400, "Unable to decode query."),
        ("/containerLogs/ns/p/c?tailLines=-1", 422, "Invalid request."),
        ("/containerLogs/ns/p/c?limitBytes=0", 422, "Invalid request."),
        ("/containerLogs/ns/p/c?stream=Both", 422, "Invalid request."),
        ("/containerLogs/ns/p/c?sinceSeconds=1&sinceTime=2026-01-01T00:00:00Z", 422, "Invalid request."),
        ("/containerLogs/ns/p/", 404, "404 page not found"),
        ("/containerLogs/ns//c", 400, "Missing pod name."),
        ("/exec/ns/p/c?command=x", 400, "you must specify at least 1 of stdin, stdout, stderr"),
        ("/exec/ns/p/c?output=1", 400, "there is no command to run"),
        ("/metrics", 404, "404 page not found"),
        ("/", 404, "404 page not found"),
    ],
)
def test_what_cannot_be_is_refused(target: str, status: int, text: str):
    with pytest.raises(NotAnswered, match=text) as caught:
        asked(target)

    assert caught.value.status == status


def test_only_commands_may_be_posted():
    assert isinstance(asked("/exec/ns/p/c?command=x&output=1", "POST"), ExecRequest)
    with pytest.raises(NotAnswered) as caught:
        asked("/pods", "POST")

    assert caught.value.status == 405


def test_a_quoted_slash_is_a_part_of_a_name():
    found = asked("/containerLogs/ns/..%2F..%2Fetc/c")

    assert isinstance(found, LogsRequest)
    assert found.pod == "../../etc"


def test_a_command_keeps_its_words():
    found = asked("/exec/ns/p/c?command=sh&command=-c&command=a+%26+b&input=1&output=1")

    assert found == ExecRequest("ns", "p", "c", ("sh", "-c", "a & b"), stdin=True, stdout=True, stderr=False)


@given(st.text(max_size=60))
def test_any_target_is_asked_or_refused(target: str):
    with suppress(NotAnswered):
        asked("/" + target)


# ---- the upgrade -----------------------------------------------------------------------------------------------------

NOT_AGREED = (
    "unable to upgrade: unable to negotiate protocol: client supports [base64.channel.k8s.io], "
    "server accepts [v5.channel.k8s.io v4.channel.k8s.io]"
)
SHAKE = {
    "connection": "keep-alive, Upgrade",
    "upgrade": "websocket",
    "sec-websocket-key": KEY,
    "sec-websocket-version": "13",
}


@pytest.mark.parametrize(
    ("offered", "chosen"), [(V5, V5), (V4, V4), (f"{V4}, {V5}", V4), (f"channel.k8s.io, {V5}", V5)]
)
def test_the_first_protocol_that_is_known_is_agreed_upon(offered: str, chosen: str):
    agreed = agree({**SHAKE, "sec-websocket-protocol": offered})

    assert agreed.protocol == chosen
    assert agreed.headers["sec-websocket-accept"] == ACCEPT
    assert agreed.headers["sec-websocket-protocol"] == chosen


@pytest.mark.parametrize(
    ("headers", "status", "text"),
    [
        ({}, 400, "Upgrade request required"),
        ({"connection": "Upgrade", "upgrade": "SPDY/3.1"}, 400, SPDY_REFUSED),
        ({"connection": "Upgrade", "upgrade": "h2c"}, 400, "Upgrade request required"),
        ({**SHAKE, "sec-websocket-key": "short"}, 400, "this is no handshake of WebSocket 13"),
        ({**SHAKE, "sec-websocket-version": "8"}, 400, "this is no handshake of WebSocket 13"),
        (
            {**SHAKE, "sec-websocket-protocol": "base64.channel.k8s.io"},
            403,
            NOT_AGREED,
        ),
    ],
)
def test_what_cannot_be_agreed_upon_is_said(headers: dict[str, str], status: int, text: str):
    with pytest.raises(NoUpgrade) as caught:
        agree(headers)

    assert (caught.value.status, str(caught.value)) == (status, text)
