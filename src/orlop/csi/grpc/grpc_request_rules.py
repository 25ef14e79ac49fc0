"""Read the headers of a call, and refuse those that gRPC over HTTP/2 does not allow. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from orlop.csi.error_codes import CsiError, Internal, InvalidArgument, Unimplemented
from orlop.csi.grpc.header_blocks import ACCEPTED_ENCODING, ANSWER_BEGINS, Fields, http_status

_SECONDS: Final = {b"H": 3600.0, b"M": 60.0, b"S": 1.0, b"m": 1e-3, b"u": 1e-6, b"n": 1e-9}
_TIMEOUT: Final = re.compile(rb"([0-9]{1,8})([HMSmun])")
_CONTENT_TYPE: Final = re.compile(rb"application/grpc(\+proto)?([ \t]*;.*)?", re.DOTALL)
_NAME: Final = re.compile(rb"[!#$%&'*+.^_`|~0-9a-z-]+")
_UNFIT_VALUE: Final = re.compile(rb"[\0\r\n]")
_OF_REQUESTS: Final = frozenset({b":method", b":scheme", b":path", b":authority"})
_USUAL: Final = frozenset({b"content-type", b"user-agent", b"te", b"grpc-timeout", b"grpc-accept-encoding"})
"""Sent with every call; their names need no check."""
_OF_CONNECTIONS: Final = frozenset(
    {b"connection", b"proxy-connection", b"keep-alive", b"transfer-encoding", b"upgrade"}
)
LONGEST_PATH: Final = 1024
METHOD_NOT_ALLOWED, UNSUPPORTED_MEDIA_TYPE = 405, 415


class MalformedRequest(ValueError):
    """The headers are not a valid HTTP/2 request: the stream is reset."""


class GrpcRequest(NamedTuple):
    """A call that can be served. `within` is how many seconds the caller waits; None: no deadline."""

    path: str
    within: float | None


@dataclass(frozen=True, slots=True)
class RefusedRequest:
    """A call that is answered with an error. `begins` is the first part of the response's headers."""

    error: CsiError
    begins: bytes = ANSWER_BEGINS


def read_request(fields: Fields) -> GrpcRequest | RefusedRequest:
    """Return what the headers ask for. Raises `MalformedRequest`."""
    headers = _checked(fields)
    if headers[b":method"] != b"POST":
        return RefusedRequest(Internal("a call is a POST"), http_status(METHOD_NOT_ALLOWED))
    content_type = headers.get(b"content-type", b"")
    if content_type != b"application/grpc" and not _CONTENT_TYPE.fullmatch(content_type):
        return RefusedRequest(
            InvalidArgument("a call is of the type application/grpc"), http_status(UNSUPPORTED_MEDIA_TYPE)
        )
    if headers.get(b"grpc-encoding", b"identity") != b"identity":
        return RefusedRequest(
            Unimplemented("nothing is decompressed here: send it as it is"), ANSWER_BEGINS + ACCEPTED_ENCODING
        )
    try:
        return GrpcRequest(
            headers[b":path"][:LONGEST_PATH].decode(errors="replace"), _within(headers.get(b"grpc-timeout"))
        )
    except ValueError:
        return RefusedRequest(Internal("grpc-timeout is not valid: use up to eight digits and one of H, M, S, m, u, n"))


def _within(timeout: bytes | None) -> float | None:
    """Return the seconds of a grpc-timeout header. Raises ValueError."""
    if timeout is None:
        return None
    match = _TIMEOUT.fullmatch(timeout)
    if match is None:
        raise ValueError(timeout)
    return int(match[1]) * _SECONDS[match[2]]


def _checked(fields: Fields) -> Mapping[bytes, bytes]:
    """Return the last value of every header. Raises `MalformedRequest` for what RFC 9113 (8.2, 8.3) calls malformed."""
    headers: dict[bytes, bytes] = {}
    ordinary = False
    for name, value in fields:
        if name in _OF_REQUESTS:
            if ordinary or name in headers:
                raise MalformedRequest(f"{name!r} is there twice, or behind others")
        else:
            ordinary = True
            if name not in _USUAL and (name in _OF_CONNECTIONS or not _NAME.fullmatch(name)):
                raise MalformedRequest(f"no header of HTTP/2 is {name!r}")
        headers[name] = value
    if _UNFIT_VALUE.search(b" ".join([value for _, value in fields])):
        raise MalformedRequest("a header holds what none may")
    if not headers.get(b":method") or not headers.get(b":scheme") or not headers.get(b":path"):
        raise MalformedRequest("a request has a method, a scheme and a path")
    if headers.get(b"te", b"trailers") != b"trailers":
        raise MalformedRequest("te says trailers, or nothing")
    return headers
