"""What the headers and trailers of an answer say about a call, as gRPC's description of HTTP/2 has it. Pure."""

from __future__ import annotations

from typing import Final
from urllib.parse import unquote_to_bytes

from orlop.csi.error_codes import Code, CsiError, error_of
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
    """Whether these headers only say that others follow."""
    return _status(fields) < FIRST_FINAL_STATUS


def refused_by(fields: Fields) -> CsiError | None:
    """What is wrong with the headers an answer begins with: who answers may be no gRPC server at all."""
    if (status := _status(fields)) != OK_STATUS:
        return error_of(_CODE_OF_STATUS.get(status, Code.UNKNOWN), f"the driver's socket returns HTTP status {status}")
    headers = dict(fields)
    if not headers.get(b"content-type", b"").startswith(b"application/grpc"):
        return error_of(Code.UNKNOWN, "the driver's socket does not speak gRPC")
    if headers.get(b"grpc-encoding", b"identity") != b"identity":
        return error_of(Code.INTERNAL, "the driver's response is compressed, which we did not ask for")
    return None


def ended_by(fields: Fields) -> CsiError | None:
    """How the trailers say that the call went; None: well."""
    headers = dict(fields)
    said = headers.get(b"grpc-status", b"")
    if not said.isdigit():
        return error_of(Code.UNKNOWN, "the driver ended the call without a status")
    number = _number(said)
    code = Code(number) if number in Code._value2member_map_ else Code.UNKNOWN
    if code is Code.OK:
        return None
    message = unquote_to_bytes(headers.get(b"grpc-message", b"")).decode(errors="replace")
    return error_of(code, message or code.name)


def reset_by(number: int) -> CsiError:
    code = _CODE_OF_RESET.get(ErrorCode(number), Code.INTERNAL) if number in list(ErrorCode) else Code.INTERNAL
    return error_of(code, f"the driver reset the call (HTTP/2 error {number})")


def _status(fields: Fields) -> int:
    said = next((value for name, value in fields if name == b":status"), b"")
    return _number(said) if said.isdigit() else 0


def _number(digits: bytes) -> int:
    """Python reads no number of thousands of digits, and would say so in the middle of everybody's calls."""
    return int(digits) if len(digits) <= MOST_DIGITS else -1
