"""Read the status of a call from the headers and trailers of its response (gRPC over HTTP/2). Pure.

Only `grpc-status` in the trailers is the driver's own. The errors for an HTTP status, for a stream that was reset and
for a response without a status are made here, with the codes that gRPC defines: the driver may have done what it was
called for. A refused stream is the exception: the server has not processed it (RFC 9113, 8.7).
"""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from orlop.csi.error_codes import Code, CsiError, error_of, unanswered, unsent
from orlop.csi.grpc.header_blocks import Fields
from orlop.csi.grpc.http2_frames import ErrorCode

MOST_DIGITS: Final = 10
OK_STATUS, FIRST_FINAL_STATUS = 200, 200
_CODE_OF_STATUS: Final = {
    400: Code.INTERNAL,
    401: Code.UNAUTHENTICATED,
    403: Code.PERMISSION_DENIED,
    404: Code.UNIMPLEMENTED,
    429: Code.UNAVAILABLE,
    502: Code.UNAVAILABLE,
    503: Code.UNAVAILABLE,
    504: Code.UNAVAILABLE,
}
_CODE_OF_RESET: Final = {
    ErrorCode.REFUSED_STREAM: Code.UNAVAILABLE,
    ErrorCode.CANCEL: Code.CANCELLED,
    ErrorCode.ENHANCE_YOUR_CALM: Code.RESOURCE_EXHAUSTED,
}


def announces_another(fields: Fields) -> bool:
    """Return whether these headers are informational (1xx): others follow."""
    return _status(fields) < FIRST_FINAL_STATUS


def refused_by(fields: Fields) -> CsiError | None:
    """Return the error in the first headers of a response: the peer may not be a gRPC server at all."""
    if (status := _status(fields)) != OK_STATUS:
        code = _CODE_OF_STATUS.get(status, Code.UNKNOWN)
        return unanswered(code, f"the driver's socket returns HTTP status {status}")
    headers = dict(fields)
    if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
        return unanswered(Code.UNKNOWN, "the driver's socket does not speak gRPC")
    if headers.get(b"grpc-encoding", b"identity") != b"identity":
        return unanswered(Code.INTERNAL, "the driver's response is compressed, which we did not ask for")
    return None


def ended_by(fields: Fields) -> CsiError | None:
    """Return the error that the trailers report; None: the call succeeded."""
    headers = dict(fields)
    status = headers.get(b"grpc-status", b"")
    if not status.isdigit():
        return unanswered(Code.UNKNOWN, "the driver ended the call without a status")
    number = _number(status)
    code = Code(number) if number in Code._value2member_map_ else Code.UNKNOWN
    if code is Code.OK:
        return None
    message = unquote_to_bytes(headers.get(b"grpc-message", b"")).decode(errors="replace")
    return error_of(code, message or code.name)


def reset_by(number: int) -> CsiError:
    """Return the error for a stream that the driver reset."""
    code = _CODE_OF_RESET.get(ErrorCode(number), Code.INTERNAL) if number in list(ErrorCode) else Code.INTERNAL
    made = unsent if number == ErrorCode.REFUSED_STREAM else unanswered
    return made(code, f"the driver reset the call (HTTP/2 error {number})")


def _status(fields: Fields) -> int:
    status = next((value for name, value in fields if name == b":status"), b"")
    return _number(status) if status.isdigit() else 0


def _number(digits: bytes) -> int:
    """Return the number; -1 if it is too long: `int` raises for thousands of digits, which would end all calls."""
    return int(digits) if len(digits) <= MOST_DIGITS else -1
