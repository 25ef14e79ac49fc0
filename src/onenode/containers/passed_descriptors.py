"""Messages with descriptors beside them. Python's own function ignores its flags, and has descriptors survive an exec.

What is received is closed at exec: a descriptor that a container's command inherited would be its way out.
"""

from __future__ import annotations

import array
import socket


def received(channel: socket.socket, most_bytes: int, most_descriptors: int, flags: int = 0) -> tuple[bytes, list[int]]:
    """One message; empty when the other side has closed."""
    size = array.array("i").itemsize
    room = socket.CMSG_SPACE(most_descriptors * size)
    words, beside, _, _ = channel.recvmsg(most_bytes, room, flags | socket.MSG_CMSG_CLOEXEC)
    found = array.array("i")
    for level, kind, data in beside:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % size])
    return words, list(found)
