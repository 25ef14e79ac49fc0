"""The options that make the kernel notice a peer that is gone, read back from real sockets."""

from __future__ import annotations

import socket

from orlop.foundation.tcp_keepalive import KEEPALIVE

TCP = socket.IPPROTO_TCP


def test_connections_inherit_what_was_set_on_their_listener():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        KEEPALIVE.apply(listener)
        with socket.create_connection(listener.getsockname()), listener.accept()[0] as accepted:
            assert accepted.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT, socket.TCP_USER_TIMEOUT)
            assert [accepted.getsockopt(TCP, option) for option in options] == [10, 5, 3, 25_000]


def test_a_unix_socket_is_left_as_it_is():
    one, other = socket.socketpair()
    with one, other:
        KEEPALIVE.apply(one)
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0


def test_unanswered_probes_are_not_cut_short():
    probing = KEEPALIVE.idle_seconds + KEEPALIVE.interval_seconds * KEEPALIVE.probes
    assert probing <= KEEPALIVE.unacknowledged_seconds
