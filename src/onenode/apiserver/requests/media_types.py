"""Which form of an answer a client takes, and which form its request's body has. Pure.

Answers are always JSON: an object as it is, a table made for people, or its metadata alone. Of what a client accepts
the first that we have is taken, by its weight and then by its place.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from onenode.apiserver.answers.status_answers import (
    JSON,
    no_patch_type,
    no_server_side_apply,
    not_acceptable,
    unsupported_media_type,
)
from onenode.apiserver.requests.protobuf_bodies import MEDIA_TYPE

PROTOBUF: Final = MEDIA_TYPE
JSON_PATCH: Final = "application/json-patch+json"
MERGE_PATCH: Final = "application/merge-patch+json"
STRATEGIC_PATCH: Final = "application/strategic-merge-patch+json"
PATCHES: Final = (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
APPLY_PATCHES: Final = frozenset({"application/apply-patch+yaml", "application/apply-patch+cbor"})
BODIES: Final = (JSON, PROTOBUF)
ANYTHING: Final = "*/*"
OURS: Final = frozenset({JSON, ANYTHING})
# A client that accepts only these gets JSON: Go's clients read what the answer says it is, and JSON is YAML.
THEIRS: Final = frozenset({PROTOBUF, "application/yaml"})

META_GROUP: Final = "meta.k8s.io"


class ObjectForm(Enum):
    OBJECT = ""
    TABLE = "Table"
    METADATA = "PartialObjectMetadata"


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """`version` is the one of meta.k8s.io in which tables and metadata are written."""

    shape: ObjectForm = ObjectForm.OBJECT
    version: str = "v1"


PLAIN: Final = AnswerForm()
SHAPES: Final = {
    "Table": ObjectForm.TABLE,
    "PartialObjectMetadata": ObjectForm.METADATA,
    "PartialObjectMetadataList": ObjectForm.METADATA,
}


@dataclass(frozen=True, slots=True)
class MediaType:
    name: str
    parameters: Mapping[str, str] = field(default_factory=dict)

    @property
    def weight(self) -> float:
        try:
            return float(self.parameters.get("q", "1"))
        except ValueError:
            return 0.0


def read_media_type(text: str) -> MediaType:
    name, *parameters = (part.strip() for part in text.split(";"))
    pairs = (parameter.partition("=") for parameter in parameters)
    return MediaType(name.lower(), {key.strip().lower(): value.strip().strip('"') for key, _, value in pairs})


def accepted(header: str) -> Iterator[MediaType]:
    """In the order in which they are preferred; nothing at all is whatever we like."""
    types = [read_media_type(part) for part in header.split(",") if part.strip()]
    yield from sorted(types or [MediaType(ANYTHING)], key=lambda one: -one.weight)


def answer_form(header: str) -> AnswerForm:
    for names in (OURS, THEIRS):
        for media_type in accepted(header):
            if media_type.name in names and (form := _form(media_type)):
                return form
    raise not_acceptable([JSON])


def accepts_plain_json(header: str) -> bool:
    return any(media_type.name in OURS for media_type in accepted(header))


def _form(media_type: MediaType) -> AnswerForm | None:
    if media_type.weight == 0:
        return None
    wanted, version = media_type.parameters.get("as"), media_type.parameters.get("v", "v1")
    if wanted is None:
        return PLAIN
    known = media_type.parameters.get("g") == META_GROUP and version in {"v1", "v1beta1"}
    return AnswerForm(SHAPES[wanted], version) if known and wanted in SHAPES else None


def body_type(header: str) -> str:
    """JSON or protobuf; a client that does not say means JSON."""
    name = read_media_type(header).name or JSON
    if name not in BODIES:
        raise unsupported_media_type(BODIES)
    return name


def patch_type(header: str) -> str:
    name = read_media_type(header).name
    if name in APPLY_PATCHES:
        raise no_server_side_apply()
    if name not in PATCHES:
        raise no_patch_type()
    return name
