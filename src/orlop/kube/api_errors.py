"""The errors of requests to an API server. Pure.

    ApiError
    ├── NotConnected                     nothing was sent: no such host, refused, no TLS
    ├── ConnectionBroken                 sent, but no whole response came: whether it took effect is not known
    │   └── ResponseTimeout
    ├── CacheBehind                      a cache has not caught up with the server in time
    ├── CredentialsUnavailable           we have no valid credentials
    └── StatusError                      the server returned an error: code, reason, details
        ├── BadRequest (400), Unauthorized (401), Forbidden (403), NotFound (404), MethodNotAllowed (405)
        ├── NotAcceptable (406), Conflict (409), AlreadyExists (409), RequestTooLarge (413)
        ├── UnsupportedMediaType (415), TooManyRequests (429)
        ├── Gone (410)
        │   └── Expired                  the resourceVersion is no longer kept: list again
        ├── Invalid (422)                with causes
        │   └── PatchRefused             a JSON patch does not apply: read again, decide again
        └── ServerError (5xx)
            ├── ServiceUnavailable (503)
            └── Timeout (504)
                └── ResourceVersionTooLarge   the server has not yet seen the requested resourceVersion

The reason in the response decides which it is; if that is missing or unknown, the code. No error holds a request's body
or headers, so no secret: a message is the server's, or ours if it sent none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Final

LONGEST_MESSAGE: Final = 4096
TOO_LARGE_VERSION: Final = "ResourceVersionTooLarge"


class ApiError(Exception):
    @property
    def message(self) -> str:
        return str(self)


class NotConnected(ApiError):
    """Nothing was sent, so nothing can have happened."""


class ConnectionBroken(ApiError):
    """The request was sent, in part or whole; whether it took effect is not known."""


class ResponseTimeout(ConnectionBroken):
    pass


class CacheBehind(ApiError):
    pass


class CredentialsUnavailable(ApiError):
    pass


@dataclass(frozen=True, slots=True)
class Cause:
    """One cause of an error: `field` is a path such as `spec.capacity`."""

    reason: str
    message: str
    field: str = ""


@dataclass(frozen=True, slots=True)
class Details:
    """The object that the error is about; `kind` is a resource or a kind, as the server chose."""

    name: str = ""
    group: str = ""
    kind: str = ""
    uid: str = ""
    causes: tuple[Cause, ...] = ()


class StatusError(ApiError):
    """An error that the server returned. `retry_after` is its Retry-After in seconds, if any."""

    default_message: ClassVar[str] = "the server answered with an error"

    def __init__(
        self,
        message: str,
        *,
        code: int,
        reason: str = "",
        details: Details | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details or Details()
        self.retry_after = retry_after

    @property
    def causes(self) -> tuple[Cause, ...]:
        return self.details.causes

    def has_cause(self, reason: str) -> bool:
        return any(cause.reason == reason for cause in self.causes)


class BadRequest(StatusError):
    default_message = "the server rejected our request for an unknown reason"


class Unauthorized(StatusError):
    default_message = "the server has asked for the client to provide credentials"


class Forbidden(StatusError):
    default_message = "the server forbids the request"


class NotFound(StatusError):
    default_message = "the server could not find the requested resource"


class MethodNotAllowed(StatusError):
    default_message = "the server does not allow this method on the requested resource"


class NotAcceptable(StatusError):
    default_message = "the server was unable to respond with a content type that the client supports"


class Conflict(StatusError):
    default_message = "the server reported a conflict"


class AlreadyExists(StatusError):
    default_message = "the server reported that the object exists already"


class Gone(StatusError):
    default_message = "what was asked for is gone for good"


class Expired(Gone):
    default_message = "the version asked for is no longer kept; list anew"


class RequestTooLarge(StatusError):
    default_message = "the request is larger than the server takes"


class UnsupportedMediaType(StatusError):
    default_message = "the server does not understand the format of the request's body"


class Invalid(StatusError):
    default_message = "the server rejected our request due to an error in our request"


class PatchRefused(Invalid):
    pass


class TooManyRequests(StatusError):
    default_message = "the server has received too many requests and has asked us to try again later"


class ServerError(StatusError):
    default_message = "an error on the server has prevented the request from succeeding"


class ServiceUnavailable(ServerError):
    default_message = "the server is currently unable to handle the request"


class Timeout(ServerError):
    default_message = (
        "the server was unable to return a response in the time allotted, but may still be processing the request"
    )


class ResourceVersionTooLarge(Timeout):
    pass


ERROR_OF_REASON: Final[Mapping[str, type[StatusError]]] = {
    "BadRequest": BadRequest,
    "Unauthorized": Unauthorized,
    "Forbidden": Forbidden,
    "NotFound": NotFound,
    "MethodNotAllowed": MethodNotAllowed,
    "NotAcceptable": NotAcceptable,
    "Conflict": Conflict,
    "AlreadyExists": AlreadyExists,
    "Gone": Gone,
    "Expired": Expired,
    "RequestEntityTooLarge": RequestTooLarge,
    "UnsupportedMediaType": UnsupportedMediaType,
    "Invalid": Invalid,
    "TooManyRequests": TooManyRequests,
    "InternalError": ServerError,
    "ServerTimeout": ServerError,
    "StoreReadError": ServerError,
    "ServiceUnavailable": ServiceUnavailable,
    "Timeout": Timeout,
}
ERROR_OF_CODE: Final[Mapping[int, type[StatusError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: MethodNotAllowed,
    406: NotAcceptable,
    409: Conflict,
    410: Gone,
    413: RequestTooLarge,
    415: UnsupportedMediaType,
    422: Invalid,
    429: TooManyRequests,
    503: ServiceUnavailable,
    504: Timeout,
}
FIRST_SERVER_ERROR: Final = 500


def error_from_status(http_code: int, status: Mapping[str, Any] | None, headers: Mapping[str, str]) -> StatusError:
    """Return the error for a response's code, headers and `Status` body, or for a watch's ERROR event.

    A body that is no `Status` (a proxy's page) is not quoted: it may contain secrets.
    """
    body = status if isinstance(status, Mapping) else {}
    reason = _text(body, "reason")
    details = _details(body.get("details"))
    kind = _kind_of_error(http_code, reason, details)
    message = _text(body, "message") or f"{kind.default_message} (HTTP {http_code})"
    retry_after = _retry_after(headers, body.get("details"))
    return kind(_shortened(message), code=http_code, reason=reason, details=details, retry_after=retry_after)


def _kind_of_error(code: int, reason: str, details: Details) -> type[StatusError]:
    kind = ERROR_OF_REASON.get(reason) or ERROR_OF_CODE.get(code)
    if kind is None:
        return ServerError if code >= FIRST_SERVER_ERROR else StatusError
    if kind is Invalid and details == Details():
        return PatchRefused  # whatever is wrong with an object, the server names the object
    if kind is Timeout and any(cause.reason == TOO_LARGE_VERSION for cause in details.causes):
        return ResourceVersionTooLarge
    return kind


def _details(part: object) -> Details:
    if not isinstance(part, Mapping):
        return Details()
    name, group, kind, uid = (_text(part, field) for field in ("name", "group", "kind", "uid"))
    return Details(name, group, kind, uid, tuple(_causes(part.get("causes"))))


def _causes(part: object) -> Iterator[Cause]:
    for cause in part if isinstance(part, list) else ():
        if isinstance(cause, Mapping):
            yield Cause(_text(cause, "reason"), _shortened(_text(cause, "message")), _text(cause, "field"))


def _retry_after(headers: Mapping[str, str], details: object) -> float | None:
    """Return the seconds of a Retry-After header. API servers never send the date that it may contain instead."""
    text = next((value for name, value in headers.items() if name.lower() == "retry-after"), "")
    if text.isascii() and text.isdigit():
        return float(text[:9])
    seconds = details.get("retryAfterSeconds") if isinstance(details, Mapping) else None
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else None


def _text(part: Mapping[str, Any], field: str) -> str:
    value = part.get(field)
    return value if isinstance(value, str) else ""


def _shortened(text: str) -> str:
    return text if len(text) <= LONGEST_MESSAGE else f"{text[:LONGEST_MESSAGE]}… ({len(text)} characters)"
