"""The channels of a command over WebSocket: `v5.channel.k8s.io` and `v4.channel.k8s.io`. Pure.

A message is one byte for its channel and what goes there. With v5 a client can say that a channel is closed, as it does
at the end of its standard input; with v4 it can only leave. Other channels are passed over, as in Kubernetes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onenode.containers.container_request import WindowSize
from orlop.foundation.websocket_frames import Piece, accept_for

V5: Final = "v5.channel.k8s.io"
V4: Final = "v4.channel.k8s.io"
PROTOCOLS: Final = (V5, V4)
STDIN, STDOUT, STDERR, ERROR, RESIZE, CLOSE = 0, 1, 2, 3, 4, 255
WEBSOCKET_VERSION: Final = "13"
UPGRADE_REQUIRED: Final = "Upgrade request required"
SPDY_REFUSED: Final = (
    "commands are run over WebSocket here and not over SPDY: use kubectl 1.31 or newer, "
    "without KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false"
)


class NoUpgrade(Exception):
    """With the code of the answer."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Agreed:
    """`headers` are those of the answer 101."""

    protocol: str
    headers: Mapping[str, str]


def agree(headers: Mapping[str, str]) -> Agreed:
    """Agree on a protocol with the client that sent these headers."""
    upgrade = [word.strip().lower() for word in headers.get("upgrade", "").split(",")]
    asked = [word.strip().lower() for word in headers.get("connection", "").split(",")]
    if "upgrade" not in asked or upgrade == [""]:
        raise NoUpgrade(400, UPGRADE_REQUIRED)
    if "websocket" not in upgrade:
        spdy = any(word.startswith("spdy/") for word in upgrade)
        raise NoUpgrade(400, SPDY_REFUSED if spdy else UPGRADE_REQUIRED)
    accept = accept_for(headers.get("sec-websocket-key", ""))
    if accept is None or headers.get("sec-websocket-version", "") != WEBSOCKET_VERSION:
        raise NoUpgrade(400, "this is no handshake of WebSocket 13")
    offered = [word.strip() for word in headers.get("sec-websocket-protocol", "").split(",") if word.strip()]
    protocol = next((one for one in offered if one in PROTOCOLS), None)
    if protocol is None:
        raise NoUpgrade(403, _no_protocol(offered))
    answer = {"upgrade": "websocket", "connection": "Upgrade", "sec-websocket-accept": accept}
    return Agreed(protocol, {**answer, "sec-websocket-protocol": protocol})


def _no_protocol(offered: Sequence[str]) -> str:
    named = f"client supports [{' '.join(offered)}], server accepts [{' '.join(PROTOCOLS)}]"
    return f"unable to upgrade: unable to negotiate protocol: {named}"


# ---- what comes ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Typed:
    data: bytes


@dataclass(frozen=True, slots=True)
class TypedAll:
    """The standard input is closed."""


FromClient: TypeAlias = Typed | TypedAll | WindowSize
LONGEST_RESIZE: Final = 1024
SIDES: Final = range(1, 2**16)


class ChannelReader:
    """Makes of messages' pieces what a command is given."""

    def __init__(self, protocol: str) -> None:
        self._can_close = protocol == V5
        self._channel: int | None = None
        self._resize = b""

    def take(self, piece: Piece) -> FromClient | None:
        data = piece.data
        if piece.begins:
            self._channel = None
        if self._channel is None and data:
            self._channel, data = data[0], data[1:]
        channel = self._channel
        if channel == STDIN:
            return Typed(data) if data else None
        if channel == RESIZE:
            return self._resized(data, piece)
        if channel == CLOSE and self._can_close and data[:1] == bytes([STDIN]):
            return TypedAll()
        return None

    def _resized(self, data: bytes, piece: Piece) -> WindowSize | None:
        """The message counts when it is whole."""
        before = b"" if piece.begins else self._resize
        self._resize = (before + data)[:LONGEST_RESIZE]
        return window_size(self._resize) if piece.ends else None


def window_size(message: bytes) -> WindowSize | None:
    """Return what `{"Width":80,"Height":24}` says; None where it says nothing of use."""
    try:
        said = json.loads(message)
    except (ValueError, RecursionError):
        return None
    match said:
        case {"Width": int(width), "Height": int(height)} if width in SIDES and height in SIDES:
            return WindowSize(width, height)
        case _:
            return None


# ---- the end ---------------------------------------------------------------------------------------------------------


def ended_status(code: int) -> bytes:
    """What the last message says, on the channel of errors."""
    if code == 0:
        return _encoded({"metadata": {}, "status": "Success"})
    cause = {"reason": "ExitCode", "message": str(code)}
    return _encoded(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"command terminated with non-zero exit code: exit status {code}",
            "reason": "NonZeroExitCode",
            "details": {"causes": [cause]},
        }
    )


def refused_status(sentence: str) -> bytes:
    """The command could not be run."""
    what = f"error executing command in container: {sentence}"
    return _encoded(
        {
            "metadata": {},
            "status": "Failure",
            "message": f"Internal error occurred: {what}",
            "reason": "InternalError",
            "details": {"causes": [{"message": what}]},
            "code": 500,
        }
    )


def _encoded(status: Mapping[str, Any]) -> bytes:
    return json.dumps(status, separators=(",", ":")).encode()
