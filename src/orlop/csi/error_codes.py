"""The errors of CSI calls, the same on both ends of the socket, and the one table from exception to gRPC code. Pure.

    CsiError
    ├── Cancelled, DeadlineExceeded, Aborted, Unavailable, ResourceExhausted     may still be running: not final
    ├── InvalidArgument, NotFound, AlreadyExists, FailedPrecondition, OutOfRange
    ├── PermissionDenied, Unauthenticated, Unimplemented
    └── Unknown, Internal, DataLoss

A service raises one of these with a message; the client raises the same class with the same message.

A client also makes errors by itself, with the codes that gRPC defines for them: the connection broke, the response is
too large, the stream was reset. Such an error says nothing about the driver, whatever its code: `CsiError.delivery`.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import ClassVar, Final

from orlop.foundation.duration import InvalidDuration
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.quantity import InvalidQuantity


class Code(IntEnum):
    """gRPC's status codes, by their names in the CSI specification."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def go_name(self) -> str:
        """The code as Go prints it: the value of the label `grpc_status_code` in the metrics of upstream sidecars."""
        return _GO_NAMES[int(self)]


# Every call needs them, so they are computed once.
_GO_NAMES: Final = {int(code): "".join(word.capitalize() for word in code.name.split("_")) for code in Code} | {
    int(Code.OK): "OK",
    int(Code.CANCELLED): "Canceled",
}


class Delivery(Enum):
    """What a failed call shows about its request."""

    RETURNED = auto()
    """The driver received the request, and returned this error."""
    UNANSWERED = auto()
    """The client made the error after it may have sent the request: the call may have had its effect."""
    UNSENT = auto()
    """The client made the error, and the driver did not process the request."""


class CsiError(Exception):
    """A failed call, with the gRPC code that the peer sees or sent."""

    code: ClassVar[Code] = Code.UNKNOWN
    delivery: Delivery = Delivery.RETURNED

    @property
    def message(self) -> str:
        return _sentence(self)


class Cancelled(CsiError):
    code = Code.CANCELLED


class Unknown(CsiError):
    code = Code.UNKNOWN


class InvalidArgument(CsiError):
    code = Code.INVALID_ARGUMENT


class DeadlineExceeded(CsiError):
    code = Code.DEADLINE_EXCEEDED


class NotFound(CsiError):
    code = Code.NOT_FOUND


class AlreadyExists(CsiError):
    code = Code.ALREADY_EXISTS


class PermissionDenied(CsiError):
    code = Code.PERMISSION_DENIED


class ResourceExhausted(CsiError):
    code = Code.RESOURCE_EXHAUSTED


class FailedPrecondition(CsiError):
    code = Code.FAILED_PRECONDITION


class Aborted(CsiError):
    code = Code.ABORTED


class OutOfRange(CsiError):
    code = Code.OUT_OF_RANGE


class Unimplemented(CsiError):
    code = Code.UNIMPLEMENTED


class Internal(CsiError):
    code = Code.INTERNAL


class Unavailable(CsiError):
    code = Code.UNAVAILABLE


class DataLoss(CsiError):
    code = Code.DATA_LOSS


class Unauthenticated(CsiError):
    code = Code.UNAUTHENTICATED


ERROR_OF_CODE: Final[Mapping[Code, type[CsiError]]] = {kind.code: kind for kind in CsiError.__subclasses__()}

NOT_FINAL: Final = frozenset(
    {Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.RESOURCE_EXHAUSTED, Code.ABORTED}
)


def is_final(error: BaseException) -> bool:
    """Return whether the call has ended in the driver too. If not, it may still run there, or have had its effect.

    kubelet and the upstream controllers use the same codes. An exception without a code (a broken connection, a bug of
    ours) proves nothing about the driver, so it is not final.
    """
    if not isinstance(error, CsiError) or error.delivery is Delivery.UNANSWERED:
        return False
    return error.code not in NOT_FINAL


def error_of(code: Code, message: str, delivery: Delivery = Delivery.RETURNED) -> CsiError:
    error = ERROR_OF_CODE.get(code, Unknown)(message)
    error.delivery = delivery
    return error


def unanswered(code: Code, message: str) -> CsiError:
    """Return an error that the client makes after it may have sent the request."""
    return error_of(code, message, Delivery.UNANSWERED)


def unsent(code: Code, message: str) -> CsiError:
    """Return an error that the client makes for a request which the driver did not process."""
    return error_of(code, message, Delivery.UNSENT)


# The first row that matches decides; our own exceptions stand above the built-in ones.
CODE_OF_EXCEPTION: Final[tuple[tuple[type[BaseException], Code], ...]] = (
    (KeyHeld, Code.ABORTED),
    (InvalidQuantity, Code.INVALID_ARGUMENT),
    (InvalidDuration, Code.INVALID_ARGUMENT),
    (TimeoutError, Code.DEADLINE_EXCEEDED),
)

CODE_OF_ERRNO: Final[Mapping[int, Code]] = {
    errno.ENOSPC: Code.RESOURCE_EXHAUSTED,
    errno.EDQUOT: Code.RESOURCE_EXHAUSTED,
    errno.EMFILE: Code.RESOURCE_EXHAUSTED,
    errno.ENFILE: Code.RESOURCE_EXHAUSTED,
    errno.ENOMEM: Code.RESOURCE_EXHAUSTED,
}


@dataclass(frozen=True, slots=True)
class Failure:
    """The code and message the caller receives. The traceback of an unexpected error is logged as well."""

    code: Code
    message: str
    expected: bool


def failure_of(error: BaseException, method: str, request_id: str) -> Failure:
    """Map any exception to a code: a service's own errors, the exceptions of the tables, and everything else."""
    if isinstance(error, CsiError):
        return Failure(error.code, error.message, expected=True)
    code = _code_in_table(error)
    if code is not None:
        return Failure(code, _sentence(error) or type(error).__name__, expected=True)
    message = (
        f"{method} failed with an unexpected {type(error).__name__}; the driver's log has it as request {request_id}"
    )
    return Failure(Code.INTERNAL, message, expected=False)


def _sentence(error: BaseException) -> str:
    """Return the error's message. An error whose `str` fails must not hide the original one."""
    try:
        return str(error)
    except Exception as broken:  # noqa: BLE001 - `__str__` of a foreign exception may raise anything
        return f"{type(error).__name__}, which cannot be shown: {type(broken).__name__}"


def _code_in_table(error: BaseException) -> Code | None:
    for kind, code in CODE_OF_EXCEPTION:
        if isinstance(error, kind):
            return code
    if isinstance(error, OSError) and error.errno is not None:
        return CODE_OF_ERRNO.get(error.errno)
    return None
