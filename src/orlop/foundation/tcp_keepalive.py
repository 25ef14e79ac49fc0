"""Have the kernel notice a peer that is gone without a word: keepalive probes and a limit on unacknowledged data.

To a program, an idle connection is the same as one whose peer lost power or whose packets a firewall drops. Only the
kernel can find out, and by default it takes two hours. It cannot notice a balancer in between that hangs, because the
balancer's kernel goes on acknowledging: for that the protocol above needs limits of its own.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class TcpKeepalive:
    """How long the peer may acknowledge nothing, where nothing is sent and where something is."""

    idle_seconds: int = 10
    interval_seconds: int = 5
    probes: int = 3
    unacknowledged_seconds: float = 25.0

    def apply(self, connection: socket.socket) -> None:
        """Set the options of a connection, or of a listener whose accepted connections inherit them."""
        if connection.family == socket.AF_UNIX:
            return
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for option, value in (
            (socket.TCP_KEEPIDLE, self.idle_seconds),
            (socket.TCP_KEEPINTVL, self.interval_seconds),
            (socket.TCP_KEEPCNT, self.probes),
            # Keepalive probes are sent only while nothing is unacknowledged. Data that is in flight would be
            # retransmitted for a quarter of an hour without this. It also ends unanswered probes (tcp(7)), so it must
            # not be shorter than they take.
            (socket.TCP_USER_TIMEOUT, int(self.unacknowledged_seconds * 1000)),
        ):
            connection.setsockopt(socket.IPPROTO_TCP, option, value)


KEEPALIVE: Final = TcpKeepalive()
"""A peer that is gone is noticed after 25 seconds: one lost packet, or three, end nothing."""
