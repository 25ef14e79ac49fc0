"""Decide after each failed attempt whether the client retries a request, and when. Pure.

Two cases must be kept apart. A request that certainly had no effect may be retried, whatever it is:
- the server was never reached;
- 429 and 503 with Retry-After: the server rejected it before doing anything, and says when to retry;
- 401: rejected before anything else was checked. It is retried once, with new credentials.

A request that may have had its effect (another 5xx, a broken connection) may be retried only if that does no harm:
- get, list and watch change nothing.
- update and patch, if they carry the resourceVersion they are based on. Either the first attempt had no effect, or the
  resourceVersion has changed and the retry is refused: nothing is written twice, and no later change by others is
  undone. The `Conflict` may then be due to our own first attempt; the caller reads and decides again, which is right in
  either case.
- delete, if it carries the object's uid or resourceVersion: a second one finds the object deleted or being deleted.
  Without, it might delete another object of the same name.
- No other write. A JSON patch whose tests check only values would pass after a value changed there and back. A merge
  patch would overwrite what others made of its first effect. A second create might create an object that was deleted
  meanwhile, or, with generateName, a second one. These fail, and the caller reads the state again before it retries:
  every reconciler does that anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from orlop.kube.api_errors import (
    ApiError,
    ConnectionBroken,
    NotConnected,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)

MOST_ATTEMPTS: Final = 10
"""As client-go: if the server is busy for longer, the caller must handle it."""
LONGEST_WAIT_SECONDS: Final = 60.0
"""The longest Retry-After that is obeyed. For more, the caller gets the error, and has its own backoff."""

VERSION_POINTER: Final = "/metadata/resourceVersion"


class Verb(Enum):
    """The verbs of the Kubernetes API."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"
    DELETE_COLLECTION = "deletecollection"


@dataclass(frozen=True, slots=True)
class Retry:
    """Retry after `after` seconds; None leaves the delay to the client's backoff."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class RenewCredentials:
    """Renew the credentials, then retry at once."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


Decision: TypeAlias = Retry | RenewCredentials | GiveUp


def after_failure(
    verb: Verb, body: object, error: ApiError, failures: Sequence[ApiError] = (), attempts: int = MOST_ATTEMPTS
) -> Decision:
    """Return what to do after `error`. `failures` are those of earlier attempts; `body` is what was sent."""
    if len(failures) + 1 >= attempts:
        return GiveUp()
    if isinstance(error, Unauthorized):
        tried_before = any(isinstance(failure, Unauthorized) for failure in failures)
        return GiveUp() if tried_before else RenewCredentials()
    if not (had_no_effect(error) or (is_passing(error) and is_safe_to_repeat(verb, body))):
        return GiveUp()
    wait = getattr(error, "retry_after", None)
    return GiveUp() if wait is not None and wait > LONGEST_WAIT_SECONDS else Retry(wait or None)


def had_no_effect(error: ApiError) -> bool:
    """Return whether the request certainly had no effect, and a retry may succeed."""
    match error:
        case NotConnected() | TooManyRequests():
            return True
        case ServiceUnavailable():
            return error.retry_after is not None
        case _:
            return False


def is_passing(error: ApiError) -> bool:
    """Return whether the same request may succeed later without any change."""
    return isinstance(error, NotConnected | ConnectionBroken | ServerError | TooManyRequests)


def is_safe_to_repeat(verb: Verb, body: object) -> bool:
    """Return whether a request that may have had its effect does no harm if repeated."""
    match verb:
        case Verb.GET | Verb.LIST | Verb.WATCH:
            return True
        case Verb.UPDATE | Verb.PATCH:
            return _carries_version(body)
        case Verb.DELETE:
            return _carries_preconditions(body)
        case Verb.CREATE | Verb.DELETE_COLLECTION:
            return False


def _carries_version(body: object) -> bool:
    """Return whether the body has a resourceVersion: an object or merge patch holds it, a JSON patch tests it."""
    if isinstance(body, Mapping):
        return bool(_member(_member(body, "metadata"), "resourceVersion"))
    operations = body if isinstance(body, list | tuple) else ()
    return any(
        _member(operation, "op") == "test"
        and _member(operation, "path") == VERSION_POINTER
        and bool(_member(operation, "value"))
        for operation in operations
    )


def _carries_preconditions(body: object) -> bool:
    preconditions = _member(body, "preconditions")
    return bool(_member(preconditions, "uid") or _member(preconditions, "resourceVersion"))


def _member(value: Any, key: str) -> Any:
    return value.get(key) if isinstance(value, Mapping) else None
