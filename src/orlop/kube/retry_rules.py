"""What a client may ask again by itself, and when: a pure decision after each failed attempt.

Two cases must be kept apart. Where the request certainly had no effect, it may be repeated, whatever it is:
- the server was never reached;
- 429 and 503 with Retry-After: the server turned it away at the door, and says when to come back;
- 401: it was turned away before anything else was looked at. It is repeated once, with new credentials.

Where it may have had its effect (another 5xx, a broken connection), a repetition must do no harm if it did:
- get, list, watch change nothing.
- update and patch, if they carry the resourceVersion of what they are based on. Either the first attempt had no effect,
  or the version is another one now, and the repetition is refused: nothing is ever written twice, and no later change
  of another's is undone. The `Conflict` that comes back may then be due to our own first attempt; who gets one reads
  again and decides again, which is right in either case.
- delete, if it carries the uid or the version of what is to go: a second one finds it gone, or going. Without, it might
  meet another object of the same name.
- No other write. A JSON patch whose tests are about values alone would pass after a value changed there and back. A
  merge patch changes nothing the second time, but would overwrite what somebody made of its first effect. A second
  create might make what was meanwhile deleted with good reason, or, with generateName, make two. These fail, and
  whoever wanted them looks at the world again first: every reconciliation does that anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, TypeAlias

from orlop.kube.errors import (
    ApiError,
    ConnectionBroken,
    NotConnected,
    ServerError,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
)

MOST_ATTEMPTS: Final = 10
"""As client-go: a server that is busy for longer is no longer the client's matter but that of whoever asked."""
LONGEST_WAIT_SECONDS: Final = 60.0
"""A server that asks for more is not waited for: the caller is told, and has a backoff of his own."""

VERSION_POINTER: Final = "/metadata/resourceVersion"


class Verb(Enum):
    """Kubernetes' own."""

    GET = "get"
    LIST = "list"
    WATCH = "watch"
    CREATE = "create"
    UPDATE = "update"
    PATCH = "patch"
    DELETE = "delete"
    DELETE_COLLECTION = "deletecollection"


@dataclass(frozen=True, slots=True)
class AskAgain:
    """After so many seconds; None leaves the time to the client's backoff."""

    after: float | None = None


@dataclass(frozen=True, slots=True)
class RenewCredentials:
    """Then ask again at once."""


@dataclass(frozen=True, slots=True)
class GiveUp:
    pass


Decision: TypeAlias = AskAgain | RenewCredentials | GiveUp


def after_failure(
    verb: Verb, body: object, error: ApiError, failures: Sequence[ApiError] = (), attempts: int = MOST_ATTEMPTS
) -> Decision:
    """What to do after `error`; `failures` are those of the attempts before, `body` is what was sent."""
    if len(failures) + 1 >= attempts:
        return GiveUp()
    if isinstance(error, Unauthorized):
        tried_before = any(isinstance(failure, Unauthorized) for failure in failures)
        return GiveUp() if tried_before else RenewCredentials()
    if not (had_no_effect(error) or (is_passing(error) and is_safe_to_repeat(verb, body))):
        return GiveUp()
    wait = getattr(error, "retry_after", None)
    return GiveUp() if wait is not None and wait > LONGEST_WAIT_SECONDS else AskAgain(wait or None)


def had_no_effect(error: ApiError) -> bool:
    """Whether it is certain that the request was not carried out, and that it may be if asked again."""
    match error:
        case NotConnected() | TooManyRequests():
            return True
        case ServiceUnavailable():
            return error.retry_after is not None
        case _:
            return False


def is_passing(error: ApiError) -> bool:
    """Whether the same request may succeed later, without anybody changing anything."""
    return isinstance(error, NotConnected | ConnectionBroken | ServerError | TooManyRequests)


def is_safe_to_repeat(verb: Verb, body: object) -> bool:
    """Whether a request that may have had its effect does no harm the second time."""
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
    """A whole object, a merge patch or a strategic one holds it; a JSON patch tests it."""
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
