"""The three kinds of patches that a client can send: read from a request, and applied to an object. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from onenode.apiserver.answers.status_answers import (
    Refusal,
    bad_request,
    patch_does_not_apply,
    patch_too_large,
    unsupported_media_type,
)
from onenode.apiserver.requests.json_bodies import NotJson, read_body
from onenode.apiserver.requests.media_types import JSON_PATCH, MERGE_PATCH, patch_type
from onenode.apiserver.schema.schemas import Schemas, UnknownKind
from onenode.apiserver.verbs import merge_rules
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.patch_application import (
    PatchDoesNotApply,
    PatchError,
    PatchTooLarge,
    apply_json_patch,
    apply_merge_patch,
)

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PatchBody:
    """`media_type` says how it is applied; `duplicates` are names that its text gave twice."""

    media_type: str
    value: Any
    duplicates: tuple[str, ...] = ()


def read_patch(request: HttpRequest) -> PatchBody:
    media_type = patch_type(request.headers.get("content-type", ""))
    try:
        body = read_body(request.body)
    except NotJson as error:
        raise bad_request(f"error decoding patch: {error}") from None
    wanted = list if media_type == JSON_PATCH else dict
    if not isinstance(body.value, wanted):
        raise bad_request(f"invalid JSON patch: {media_type} is {'a list' if wanted is list else 'an object'}")
    return PatchBody(media_type, body.value, body.duplicates)


def patched(schemas: Schemas, old: Object, patch: PatchBody) -> Any:
    """What the patch makes of the object, which may be none of its kind any more."""
    try:
        if patch.media_type == JSON_PATCH:
            return apply_json_patch(old, patch.value)
        if patch.media_type == MERGE_PATCH:
            return apply_merge_patch(old, patch.value)
        return _merged_by_keys(schemas, old, patch.value)
    except PatchTooLarge as error:
        raise patch_too_large(str(error)) from None
    except PatchError as error:
        raise bad_request(f"invalid JSON patch: {error}") from None
    except PatchDoesNotApply:
        raise patch_does_not_apply() from None
    except merge_rules.MergeRefused as error:
        raise _refused(error) from None


def _merged_by_keys(schemas: Schemas, old: Object, patch: Object) -> Any:
    if (old["apiVersion"], old["kind"]) in schemas.custom:  # merge keys are known of built-in kinds alone
        raise unsupported_media_type((JSON_PATCH, MERGE_PATCH))
    try:
        definition = schemas.kind(old["apiVersion"], old["kind"])
    except UnknownKind:  # a Scale, which has no lists
        return apply_merge_patch(old, patch)
    return merge_rules.apply(schemas, definition, old, patch)


def _refused(error: merge_rules.MergeRefused) -> Refusal:
    if error.code == merge_rules.BAD_REQUEST:
        return bad_request(str(error))
    if error.code == merge_rules.TOO_LARGE:
        return patch_too_large(str(error))
    if error.code == merge_rules.UNPROCESSABLE:
        return patch_does_not_apply()
    return Refusal(error.code, "", str(error))
