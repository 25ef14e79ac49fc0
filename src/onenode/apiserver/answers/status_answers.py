"""What the server says when it does not do as it was asked: `Refusal`, and the `Status` that a client reads of it.

One function per case, each with Kubernetes' own sentence, reason and code. Pure. A message names kinds and objects and
quotes what the client itself has sent; it never holds the body of a request.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec

from onenode.apiserver.schema.field_errors import Cause, invalid_message
from onenode.go_text import quoted
from orlop.kube.http.http_messages import HttpResponse
from orlop.kube.kinds import Kind

JSON: Final = "application/json"
JSON_HEADERS: Final[Mapping[str, str]] = {"content-type": JSON}
ACCESS_REVIEWS: Final = "authorization.k8s.io"
LARGEST_BODY: Final = 3 * 1024 * 1024
MODIFIED: Final = "the object has been modified; please apply your changes to the latest version and try again"
PAGES_EXPIRED: Final = (
    "The provided continue parameter is too old to display a consistent list result. You can start a new list without "
    "the continue parameter, or use the continue token in this response to retrieve the remainder of the results. "
    "Continuing with the provided token results in an inconsistent list - objects that were created, modified, or "
    "deleted between the time the first chunk was returned and now may show up in the list."
)

Details = dict[str, Any]


class Refusal(Exception):
    """An answer that is an error. `details` that are empty are shown as such, and None not at all."""

    def __init__(
        self, code: int, reason: str, message: str, details: Details | None = None, *, continue_token: str = ""
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.details = details
        self.continue_token = continue_token

    @property
    def message(self) -> str:
        return str(self)

    def status(self) -> dict[str, Any]:
        metadata = {"continue": self.continue_token} if self.continue_token else {}
        fields = {"message": self.message, "reason": self.reason}
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": metadata,
            "status": "Failure",
            **{name: text for name, text in fields.items() if text},
            **({} if self.details is None else {"details": self.details}),
            "code": self.code,
        }

    def answer(self) -> HttpResponse:
        seconds = (self.details or {}).get("retryAfterSeconds")
        headers = {**JSON_HEADERS, "retry-after": str(seconds)} if seconds else JSON_HEADERS
        return HttpResponse(self.code, headers, msgspec.json.encode(self.status()) + b"\n")


PAGE_NOT_FOUND: Final = HttpResponse(404, {"content-type": "text/plain; charset=utf-8"}, b"404 page not found\n")
"""For paths that belong to no group this server has."""


def success(details: Details | None = None, code: int = 200) -> dict[str, Any]:
    """The `Status` of something done that has no object to show."""
    shown = {} if details is None else {"details": details}
    status: dict[str, Any] = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", **shown}
    return {**status, "code": code} if details is None else status


def about(kind: Kind, name: str, **more: Any) -> Details:
    """Whom a refusal is about; empty parts are left out."""
    whole = {"name": name, "group": kind.group, "kind": kind.plural, **more}
    return {key: value for key, value in whole.items() if value}


# ---- what was asked for is not there, or there already ---------------------------------------------------------------


def no_such_resource() -> Refusal:
    return Refusal(404, "NotFound", "the server could not find the requested resource", {})


def not_found(kind: Kind, name: str) -> Refusal:
    return Refusal(404, "NotFound", f"{kind.resource} {quoted(name)} not found", about(kind, name))


def already_exists(kind: Kind, name: str, *, is_ending: bool = False) -> Refusal:
    what = "object is being deleted: " if is_ending else ""
    return Refusal(409, "AlreadyExists", f"{what}{kind.resource} {quoted(name)} already exists", about(kind, name))


def no_name_left(kind: Kind, name: str) -> Refusal:
    """Every name that was generated was taken."""
    what = f"{kind.resource} {quoted(name)} already exists"
    message = f"{what}, the server was not able to generate a unique name for the object"
    return Refusal(409, "AlreadyExists", message, about(kind, name, retryAfterSeconds=1))


# ---- conflicts -------------------------------------------------------------------------------------------------------


def conflict(kind: Kind, name: str, why: str = MODIFIED) -> Refusal:
    message = f"Operation cannot be fulfilled on {kind.resource} {quoted(name)}: {why}"
    return Refusal(409, "Conflict", message, about(kind, name))


def conflict_on_part(kind: Kind, part: str, name: str, why: str) -> Refusal:
    """Such as a pod's binding, which names itself `pods/binding`."""
    message = f"Operation cannot be fulfilled on {kind.plural}/{part} {quoted(name)}: {why}"
    return Refusal(409, "Conflict", message, {**about(kind, name), "kind": f"{kind.plural}/{part}"})


def precondition_failed(kind: Kind, name: str, why: str) -> Refusal:
    """A precondition of a deletion: the kind is named, where others name the resource."""
    message = f"Operation cannot be fulfilled on {kind.qualified_kind} {quoted(name)}: {why}"
    return Refusal(409, "Conflict", message, {**about(kind, name), "kind": kind.kind})


# ---- objects and options that are wrong ------------------------------------------------------------------------------


def invalid(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    # Of its access reviews, Kubernetes does not name the kind.
    return _invalid(kind.group, "" if kind.group == ACCESS_REVIEWS else kind.kind, name, causes)


def version_missing(kind: Kind, name: str, causes: Sequence[Cause]) -> Refusal:
    """The one invalid object that is named by its resource."""
    return _invalid(kind.group, kind.plural, name, causes)


def invalid_options(options: str, causes: Sequence[Cause]) -> Refusal:
    return _invalid("meta.k8s.io", options, "", causes)


def invalid_patch(causes: Sequence[Cause]) -> Refusal:
    """What a patch makes of an object is none of its kind."""
    return _invalid("", "", "", causes)


def _invalid(group: str, kind: str, name: str, causes: Sequence[Cause]) -> Refusal:
    shown = [{"reason": one.reason, "message": one.message, "field": one.field} for one in causes]
    whole = {"name": name, "group": group, "kind": kind, "causes": shown}
    details = {key: value for key, value in whole.items() if value}
    return Refusal(422, "Invalid", invalid_message(group, kind, name, causes), details)


def patch_does_not_apply() -> Refusal:
    return Refusal(422, "Invalid", "the server rejected our request due to an error in our request", {})


def bad_request(message: str) -> Refusal:
    return Refusal(400, "BadRequest", message)


def bad_name(name: str, why: str) -> Refusal:
    return bad_request(f"Name parameter invalid: {quoted(name)}: {why}")


def body_too_large() -> Refusal:
    return Refusal(413, "RequestEntityTooLarge", f"Request entity too large: limit is {LARGEST_BODY}")


def patch_too_large(why: str) -> Refusal:
    return Refusal(413, "RequestEntityTooLarge", f"Request entity too large: {why}")


def unsupported_media_type(accepted: Sequence[str]) -> Refusal:
    what = "the body of the request was in an unknown format - accepted media types include: "
    return Refusal(415, "UnsupportedMediaType", what + ", ".join(accepted))


def no_patch_type() -> Refusal:
    return Refusal(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


def no_server_side_apply() -> Refusal:
    """Kubectl and Helm show the message of a 415 behind `Server-side apply not available on the server`."""
    how = "kubectl apply --server-side=false, helm upgrade --server-side=false"
    return Refusal(
        415, "UnsupportedMediaType", f"this API server has no server-side apply: use client-side apply ({how})", {}
    )


def not_acceptable(offered: Sequence[str]) -> Refusal:
    what = "406: Not Acceptable\n\nAvailable representations: "
    return Refusal(406, "NotAcceptable", what + ", ".join(offered), {})


def method_not_allowed() -> Refusal:
    message = "the server does not allow this method on the requested resource"
    return Refusal(405, "MethodNotAllowed", message, {})


# ---- permission ------------------------------------------------------------------------------------------------------


def denied(message: str, kind_or_resource: Details) -> Refusal:
    """The authorizer's own sentence."""
    return Refusal(403, "Forbidden", message, kind_or_resource)


def forbidden(kind: Kind, name: str, why: str, causes: Sequence[Cause] = ()) -> Refusal:
    """Somebody may do this, but not in this case."""
    shown = [{"reason": one.reason, "message": one.message, "field": one.field} for one in causes]
    what = f"{kind.resource} {quoted(name)}" if name else kind.resource
    return Refusal(403, "Forbidden", f"{what} is forbidden: {why}", about(kind, name, causes=shown))


def denied_by_policy(kind: Kind, name: str, why: str, reason: str) -> Refusal:
    """An admission policy chooses the reason; the sentence is always that of a 403."""
    code = {"Unauthorized": 401, "Forbidden": 403, "RequestEntityTooLarge": 413}.get(reason, 422)
    message = f"{kind.resource} {quoted(name)} is forbidden: {why}"
    return Refusal(code, reason, message, about(kind, name, causes=[{"message": why}]))


def namespace_is_ending(kind: Kind, name: str, namespace: str) -> Refusal:
    why = f"unable to create new content in namespace {namespace} because it is being terminated"
    text = f"namespace {namespace} is being terminated"
    return forbidden(kind, name, why, [Cause("NamespaceTerminating", text, "metadata.namespace")])


# ---- versions --------------------------------------------------------------------------------------------------------


def bad_version(version: str) -> Refusal:
    why = f"strconv.ParseUint: parsing {quoted(version)}: invalid syntax"
    return bad_request(f"invalid resource version: resourceVersion: Invalid value: {quoted(version)}: {why}")


def list_expired() -> Refusal:
    return Refusal(410, "Expired", "The resourceVersion for the provided list is too old.")


def token_expired(fresh_token: str) -> Refusal:
    return Refusal(410, "Expired", PAGES_EXPIRED, continue_token=fresh_token)


def watch_expired(asked: int, oldest: int) -> Refusal:
    return Refusal(410, "Expired", f"too old resource version: {asked} ({oldest})")


def version_not_reached(asked: int, current: int) -> Refusal:
    cause = {"reason": "ResourceVersionTooLarge", "message": "Too large resource version"}
    message = f"Timeout: Too large resource version: {asked}, current: {current}"
    return Refusal(504, "Timeout", message, {"causes": [cause], "retryAfterSeconds": 1})


# ---- our own failures ------------------------------------------------------------------------------------------------


def version_on_create() -> Refusal:
    return Refusal(500, "", "resourceVersion should not be set on objects to be created")


def internal_error(what: str) -> Refusal:
    message = f"Internal error occurred: {what}"
    return Refusal(500, "InternalError", message, {"causes": [{"message": what}]})


def unavailable(why: str) -> Refusal:
    return Refusal(503, "ServiceUnavailable", why, {"retryAfterSeconds": 1})


# ---- warnings --------------------------------------------------------------------------------------------------------

# What a client is warned of, as one header of a length that every client reads. Pure.
#
# As in Kubernetes, warnings of more than 4,096 characters together are cut to 256 each, and when even these are too
# many, the last ones are left out.


MOST_CHARACTERS: Final = 4096
MOST_OF_EACH: Final = 256


def warning_header(warnings: Sequence[str]) -> str:
    """Several in one header, each text once."""
    return ", ".join(f"299 - {_quoted_string(text)}" for text in _bounded(list(dict.fromkeys(warnings))))


def _bounded(texts: list[str]) -> list[str]:
    if sum(len(text) for text in texts) <= MOST_CHARACTERS:
        return texts
    return list(_first_of([text[:MOST_OF_EACH] for text in texts]))


def _first_of(texts: list[str]) -> Iterator[str]:
    written = 0
    for text in texts:
        written += len(text)
        if written > MOST_CHARACTERS:
            return
        yield text


def _quoted_string(text: str) -> str:
    """As HTTP has it: two characters are escaped; control characters, which may not stand in a header, are blanks."""
    shown = "".join(each if each.isprintable() else " " for each in text)
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
