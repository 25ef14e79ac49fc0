from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.endpoint import (
    Endpoint,
    InvalidEndpoint,
    TcpEndpoint,
    UnixEndpoint,
    parse_endpoint,
    parse_unix_endpoint,
)

SPELLINGS = [
    ("unix:///csi/csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("unix://csi/csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("UNIX:///csi/csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("unix:////csi//csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("unix:/csi/csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("/csi/csi.sock", UnixEndpoint("/csi/csi.sock")),
    ("./csi.sock", UnixEndpoint("./csi.sock")),
    ("tcp://127.0.0.1:10000", TcpEndpoint("127.0.0.1", 10000)),
    ("tcp://:10000", TcpEndpoint("0.0.0.0", 10000)),
    ("tcp://[::1]:0", TcpEndpoint("[::1]", 0)),
    ("TCP://host.example.com:1", TcpEndpoint("host.example.com", 1)),
]


@pytest.mark.parametrize(("text", "endpoint"), SPELLINGS)
def test_every_spelling_that_upstream_takes_is_taken(text: str, endpoint: Endpoint):
    assert parse_endpoint(text) == endpoint


WRONG = ["", "csi.sock", "unix://", "unix:", "unix:///csi/", "http://x/y", "tcp://", "tcp://host", "tcp://host:65536"]
WRONG += ["tcp://host:port", "localhost:10000", "unix:///a\0b", "tcp://a:b:1", "unix-abstract://x", "unix:///a,b"]


@pytest.mark.parametrize("text", WRONG)
def test_what_is_no_endpoint_is_refused_by_name(text: str):
    with pytest.raises(InvalidEndpoint) as caught:
        parse_endpoint(text)

    assert repr(text) in str(caught.value)


@pytest.mark.parametrize("text", ["csi.sock", "tcp://127.0.0.1:10000", "http://host/x", ""])
def test_where_only_a_socket_will_do_no_address_is_proposed(text: str):
    with pytest.raises(InvalidEndpoint, match=r"is no unix socket: write unix:///path/csi.sock$"):
        parse_unix_endpoint(text)


@pytest.mark.parametrize(("text", "endpoint"), [row for row in SPELLINGS if isinstance(row[1], UnixEndpoint)])
def test_every_spelling_of_a_socket_is_taken_where_only_a_socket_will_do(text: str, endpoint: Endpoint):
    assert parse_unix_endpoint(text) == endpoint


def test_a_socket_path_has_at_most_107_bytes():
    assert parse_endpoint("unix:///" + "a" * 106) == UnixEndpoint("/" + "a" * 106)
    with pytest.raises(InvalidEndpoint, match="108 bytes"):
        parse_endpoint("unix:///" + "a" * 107)


def test_bytes_count_and_not_characters():
    with pytest.raises(InvalidEndpoint, match="at most 107"):
        parse_endpoint("unix:///" + "ü" * 54)


@given(st.text())
def test_any_text_is_an_endpoint_or_an_error_of_ours(text: str):
    try:
        endpoint = parse_endpoint(text)
    except InvalidEndpoint:
        return
    assert parse_endpoint(str(endpoint)) == endpoint or not str(endpoint).startswith("unix:///")
