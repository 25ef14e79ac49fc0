"""The body of a request becomes an object of the kind that its path takes, or a refusal.

JSON and Kubernetes' protobuf give the same objects. What a body says its kind is must be what the path takes; what it
does not say is filled in. Unknown and repeated fields are refused, warned of or passed over, as the client wishes.
Pure: no refusal quotes a body, which may hold secrets.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.answers.status_answers import bad_request, invalid_patch, unsupported_media_type
from onenode.apiserver.requests.json_bodies import JsonBody, NotJson, read_body
from onenode.apiserver.requests.media_types import BODIES, PROTOBUF, body_type
from onenode.apiserver.requests.protobuf_bodies import MalformedBody, UnsupportedKind, decode_body
from onenode.apiserver.requests.request_options import WriteOptions
from onenode.apiserver.schema.decoding_rules import Undecodable, cannot_be_handled, strict_errors, strict_refusal
from onenode.apiserver.schema.field_errors import invalid
from onenode.apiserver.schema.schemas import Schemas, UnknownKind
from onenode.apiserver.schema.validation_rules import decode_object
from onenode.go_text import quoted
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import Kind

Object = dict[str, Any]

DELETE_OPTIONS: Final = "DeleteOptions"
REPEATED_OWNERS: Final = (
    ".metadata.ownerReferences contains duplicate entries{}; API server dedups owner references in 1.20+, and may "
    "reject such requests as early as 1.24; please fix your requests; duplicate UID(s) observed: "
)
AFTER_ADMISSION: Final = " after mutating admission happens"
"""Kubernetes looks at the result of a patch only then."""


@dataclass(frozen=True, slots=True)
class DecodedBody:
    """What a client has sent, decoded, and what it is to be warned of."""

    object: Object
    warnings: tuple[str, ...] = ()


def read_object(
    schemas: Schemas, request: HttpRequest, api_version: str, kind: str, options: WriteOptions
) -> DecodedBody:
    """The object of this kind in the body of a create or a replacement."""
    body = _read(request, api_version, kind)
    value = {} if body.value is None else body.value
    if isinstance(value, dict):
        _check_type(schemas, value, api_version, kind)
    try:
        decoded = decode_object(schemas, api_version, kind, value)
    except Undecodable as error:
        raise bad_request(cannot_be_handled(api_version, kind, str(error))) from None
    except UnknownKind:
        return DecodedBody({**value, "apiVersion": api_version, "kind": kind})
    errors = strict_errors(decoded.unknown, body.duplicates)
    if errors and options.strict:
        raise bad_request(cannot_be_handled(api_version, kind, strict_refusal(errors)))
    return _decoded(decoded.object, errors if options.warn else (), "")


def read_unchecked(request: HttpRequest, kind: Kind) -> Any:
    """Return the body as it was sent, of a kind without a schema."""
    return _read(request, kind.api_version, kind.kind).value


def read_delete_options(schemas: Schemas, request: HttpRequest) -> Object | None:
    """None where there is no body; the type may be left out, or be that of any group."""
    if not request.body:
        return None
    value = _read(request, "v1", DELETE_OPTIONS).value
    if not isinstance(value, dict) or value.get("kind") not in {None, "", DELETE_OPTIONS}:
        raise bad_request(f"the body of a deletion must be {DELETE_OPTIONS}")
    plain = {name: inner for name, inner in value.items() if name not in {"kind", "apiVersion"}}
    try:
        return decode_object(schemas, "v1", DELETE_OPTIONS, plain).object
    except Undecodable as error:
        raise bad_request(cannot_be_handled("v1", DELETE_OPTIONS, str(error))) from None


def read_patched(
    schemas: Schemas, value: Any, api_version: str, kind: str, options: WriteOptions, duplicates: Sequence[str] = ()
) -> DecodedBody:
    """What a patch has made of an object."""
    try:
        decoded = decode_object(schemas, api_version, kind, value)
    except Undecodable as error:
        raise invalid_patch([invalid("patch", _shortly(value), str(error))]) from None
    errors = strict_errors(decoded.unknown, tuple(duplicates))
    if errors and options.strict:
        raise invalid_patch([invalid("patch", _shortly(value), strict_refusal(errors))])
    return _decoded(decoded.object, errors if options.warn else (), AFTER_ADMISSION)


def _decoded(obj: Object, warnings: Sequence[str], when: str) -> DecodedBody:
    """Drop owners that are named twice: an object that lost one of them would still have the other."""
    metadata = obj.get("metadata") or {}
    owners: list[Object] = metadata.get("ownerReferences") or []
    if not owners:
        return DecodedBody(obj, tuple(warnings))
    distinct: dict[frozenset[tuple[str, Any]], Object] = {}
    again = [owner for owner in owners if distinct.setdefault(frozenset(owner.items()), owner) is not owner]
    repeated = [owner.get("uid", "") for owner in again]
    if not repeated:
        return DecodedBody(obj, tuple(warnings))
    made = {**obj, "metadata": {**metadata, "ownerReferences": list(distinct.values())}}
    return DecodedBody(made, (*warnings, f"{REPEATED_OWNERS.format(when)}{', '.join(repeated)}"))


def _shortly(value: Any) -> str:
    """Kubernetes quotes the whole object here; ours may hold secrets that the client may write and not read."""
    name = value.get("metadata", {}) if isinstance(value, dict) else {}
    return str(name.get("name", "")) if isinstance(name, dict) else ""


def _read(request: HttpRequest, api_version: str, kind: str) -> JsonBody:
    if body_type(request.headers.get("content-type", "")) == PROTOBUF:
        return JsonBody(_read_protobuf(request.body, api_version, kind))
    try:
        return read_body(request.body)
    except NotJson as error:
        raise _unrecognized(kind, f"couldn't get version/kind; json parse error: {error}") from None


def _read_protobuf(body: bytes, api_version: str, kind: str) -> Object:
    try:
        return decode_body(body, default_api_version=api_version, default_kind=kind)
    except UnsupportedKind:
        raise unsupported_media_type(BODIES[:1]) from None
    except MalformedBody as error:
        raise _unrecognized(kind, str(error)) from None


def _unrecognized(kind: str, why: str) -> Exception:
    return bad_request(f"the object provided is unrecognized (must be of type {kind}): {why}")


def _check_type(schemas: Schemas, value: Object, api_version: str, kind: str) -> None:
    sent_version, sent_kind = value.get("apiVersion") or api_version, value.get("kind") or kind
    if not isinstance(sent_version, str) or not isinstance(sent_kind, str):
        raise _unrecognized(kind, "couldn't get version/kind; apiVersion and kind are texts")
    if (sent_version, sent_kind) == (api_version, kind):
        return
    if (api_version, kind) in schemas.custom and sent_version == api_version:
        return  # another kind is a cause of an answer 422
    if (api_version, kind) in schemas.custom:
        raise bad_request(_other_version(sent_version, api_version))
    if (sent_version, sent_kind) not in set(schemas.kinds()):
        why = f"no kind {quoted(sent_kind)} is registered for version {quoted(sent_version)}"
        raise bad_request(_not_as(sent_version, sent_kind, kind, why))
    if sent_kind == kind:
        raise bad_request(_other_version(sent_version, api_version))
    what = f"converting ({_go_type(sent_version, sent_kind)}) to ({_internal_package(api_version)}.{kind})"
    raise bad_request(_not_as(sent_version, sent_kind, kind, f"{what}: unknown conversion"))


def _other_version(sent: str, expected: str) -> str:
    return f"the API version in the data ({sent}) does not match the expected API version ({expected})"


def _go_type(api_version: str, kind: str) -> str:
    return f"{api_version.rpartition('/')[2]}.{kind}"


def _internal_package(api_version: str) -> str:
    """The Go package in which Kubernetes holds the kinds of a group, which is what its sentence says."""
    group = api_version.rpartition("/")[0].partition(".")[0]
    return "core" if group in {"", "events"} else group


def _not_as(api_version: str, sent: str, wanted: str, why: str) -> str:
    return f"{sent} in version {quoted(api_version.rpartition('/')[2])} cannot be handled as a {wanted}: {why}"
