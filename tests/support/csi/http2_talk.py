"""A client of the rules of a connection, without a socket."""

from __future__ import annotations

from typing import Any

from orlop.csi.error_codes import Code
from orlop.csi.grpc.http2_connection import Http2Connection, ServerEvent
from orlop.csi.transport import Shape
from support.csi.http2_bytes import GOAWAY, GREETING, HEADERS, RST, Answers, headers_frame, request_headers

CALL, STREAM = "/csi.v1.Node/NodePublishVolume", "/csi.v1.SnapshotMetadata/GetMetadataAllocated"


def shape_of(path: str) -> Shape | None:
    return {CALL: Shape.UNARY, STREAM: Shape.STREAMING}.get(path)


class Talk:
    """A client that has greeted, and what came of what it sent."""

    def __init__(self, *, greeting: bytes = GREETING) -> None:
        self.now = 0.0
        self.connection = Http2Connection(shape_of, self.now)
        self._answers = Answers()
        self.events: list[ServerEvent] = []
        self.say(greeting)
        self.heard()

    def say(self, *pieces: bytes) -> list[ServerEvent]:
        new = [event for piece in pieces for event in self.connection.receive(piece, self.now)]
        self.events += new
        return new

    def heard(self) -> list[tuple[int, int, int, Any]]:
        return list(self._answers.read(self.connection.to_send()))

    def code(self) -> tuple[str, int]:
        """How the connection or a stream was ended."""
        for kind, _, _, payload in self.heard():
            if kind == GOAWAY:
                return "connection", int.from_bytes(payload[4:8], "big")
            if kind == RST:
                return "stream", int.from_bytes(payload, "big")
        return "nothing", 0

    def status(self) -> tuple[Code, str]:
        """Of the one answer that is heard, without a message before."""
        [trailers] = [payload for kind, _, _, payload in self.heard() if kind == HEADERS]
        assert trailers["content-type"] == "application/grpc"
        return Code(int(trailers["grpc-status"])), trailers.get("grpc-message", "")

    @property
    def is_over(self) -> bool:
        return self.connection.why_over is not None


def opened(number: int = 1) -> bytes:
    return headers_frame(number, request_headers(CALL))
