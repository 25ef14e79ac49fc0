"""Objects, lists and the objects of watch events, written in the form a client has asked for. Pure.

`Plain` is the stored bytes, spliced; `Tables` are what `kubectl get` prints; `MetadataOnly` is for clients that look at
nothing else. Bytes are made without decoding wherever the form allows it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Protocol

import msgspec

from onenode.apiserver.answers.status_answers import bad_request
from onenode.apiserver.answers.table_rules import column_definitions, table_shape
from onenode.apiserver.requests.media_types import META_GROUP, AnswerForm, ObjectForm
from onenode.apiserver.store.versions import Stored
from onenode.apiserver.verbs.stored_objects import KindInStore, metadata_json
from onenode.go_text import quoted

INCLUDED: Final = frozenset({"", "None", "Metadata", "Object"})
INITIAL_EVENTS_END: Final = {"k8s.io/initial-events-end": "true"}


@dataclass(frozen=True, slots=True)
class ListMetadata:
    """`remaining` is None where the list does not have it."""

    revision: int
    continue_token: str = ""
    remaining: int | None = None

    def json(self) -> bytes:
        metadata: dict[str, Any] = {"resourceVersion": str(self.revision)}
        if self.continue_token:
            metadata["continue"] = self.continue_token
        if self.remaining is not None:
            metadata["remainingItemCount"] = self.remaining
        return msgspec.json.encode(metadata)


def bookmark_metadata(revision: int, *, initial_end: bool) -> bytes:
    metadata: dict[str, Any] = {"resourceVersion": str(revision), "creationTimestamp": None}
    if initial_end:
        metadata["annotations"] = INITIAL_EVENTS_END
    return msgspec.json.encode(metadata)


class Form(Protocol):
    @property
    def name(self) -> str:
        """What bytes in this form can be remembered by; empty where they depend on the time."""

    def one(self, kind: KindInStore, stored: Stored) -> bytes:
        """One object as a whole answer."""

    def many(self, kind: KindInStore, items: Sequence[Stored], metadata: ListMetadata) -> bytes:
        """A list of objects."""

    def in_event(self, kind: KindInStore, stored: Stored, *, first: bool) -> bytes:
        """The object of a watch event; `first` is the first of its watch."""

    def bookmark(self, kind: KindInStore, metadata: bytes) -> bytes:
        """The object of a BOOKMARK."""


def form_of(wanted: AnswerForm, include: str, now: Callable[[], datetime]) -> Form:
    """`include` is what the rows of a table are asked to hold: None, Metadata or Object."""
    match wanted.shape:
        case ObjectForm.OBJECT:
            return PLAIN
        case ObjectForm.METADATA:
            return MetadataOnly(wanted.version)
        case ObjectForm.TABLE:
            if include not in INCLUDED:
                raise bad_request(f"Unable to convert to Table as requested: includeObject: {_not_included(include)}")
            return Tables(wanted.version, include or "Metadata", now)


def _not_included(include: str) -> str:
    return f"Invalid value: {quoted(include)}: must be 'Metadata', 'Object', 'None', or empty"


def _typed(kind: str, api_version: str, *members: bytes) -> bytes:
    return b'{"kind":"%s","apiVersion":"%s",%s}' % (kind.encode(), api_version.encode(), b",".join(members))


def _list_of(kind: str, api_version: str, metadata: ListMetadata, items: bytes) -> bytes:
    """Return the bytes of a list. The items may be megabytes, which formatting would copy once more for each step."""
    head = b'{"kind":"%s","apiVersion":"%s","metadata":%s,"items":['
    return b"".join((head % (kind.encode(), api_version.encode(), metadata.json()), items, b"]}"))


@dataclass(frozen=True, slots=True)
class Plain:
    name: str = "plain"

    def one(self, kind: KindInStore, stored: Stored) -> bytes:
        return kind.json(stored)

    def many(self, kind: KindInStore, items: Sequence[Stored], metadata: ListMetadata) -> bytes:
        return _list_of(kind.kind.list_kind, kind.kind.api_version, metadata, kind.items(items))

    def in_event(self, kind: KindInStore, stored: Stored, *, first: bool) -> bytes:  # noqa: ARG002 - all are alike
        return kind.json(stored)

    def bookmark(self, kind: KindInStore, metadata: bytes) -> bytes:
        return _typed(kind.kind.kind, kind.kind.api_version, b'"metadata":' + metadata)


PLAIN: Final = Plain()


@dataclass(frozen=True, slots=True)
class MetadataOnly:
    version: str

    @property
    def name(self) -> str:
        return f"metadata/{self.version}"

    def one(self, kind: KindInStore, stored: Stored) -> bytes:
        return self.bookmark(kind, metadata_json(stored))

    def many(self, kind: KindInStore, items: Sequence[Stored], metadata: ListMetadata) -> bytes:
        spliced = b",".join([self.one(kind, stored) for stored in items])
        return _list_of("PartialObjectMetadataList", f"{META_GROUP}/{self.version}", metadata, spliced)

    def in_event(self, kind: KindInStore, stored: Stored, *, first: bool) -> bytes:  # noqa: ARG002 - all are alike
        return self.one(kind, stored)

    def bookmark(self, _kind: KindInStore, metadata: bytes) -> bytes:
        return _typed("PartialObjectMetadata", f"{META_GROUP}/{self.version}", b'"metadata":' + metadata)


@dataclass(frozen=True, slots=True)
class Tables:
    version: str
    include: str
    now: Callable[[], datetime]
    name: str = ""

    def one(self, kind: KindInStore, stored: Stored) -> bytes:
        metadata = msgspec.json.encode({"resourceVersion": _version(stored)})
        return self._table(kind, metadata, [stored], columns=True)

    def many(self, kind: KindInStore, items: Sequence[Stored], metadata: ListMetadata) -> bytes:
        return self._table(kind, metadata.json(), items, columns=True)

    def in_event(self, kind: KindInStore, stored: Stored, *, first: bool) -> bytes:
        metadata = msgspec.json.encode({"resourceVersion": _version(stored)})
        return self._table(kind, metadata, [stored], columns=first)

    def bookmark(self, kind: KindInStore, metadata: bytes) -> bytes:
        return self._table(kind, metadata, (), columns=False)

    def _table(self, kind: KindInStore, metadata: bytes, items: Iterable[Stored], *, columns: bool) -> bytes:
        shape, now = kind.table or table_shape(kind.kind), self.now()
        heads = msgspec.json.encode(column_definitions(shape) if columns else None)
        rows = [self._row(kind, stored, shape.cells(kind.kept_object(stored), now)) for stored in items]
        members = (
            b'"metadata":' + metadata,
            b'"columnDefinitions":' + heads,
            b'"rows":[' + b",".join(rows) + b"]",
        )
        return _typed("Table", f"{META_GROUP}/{self.version}", *members)

    def _row(self, kind: KindInStore, stored: Stored, cells: Sequence[Any]) -> bytes:
        row = b'{"cells":' + msgspec.json.encode(cells)
        match self.include:
            case "None":
                return row + b',"object":null}'
            case "Object":
                return row + b',"object":' + kind.json(stored) + b"}"
            case _:
                return row + b',"object":' + MetadataOnly(self.version).one(kind, stored) + b"}"


class _ResourceVersion(msgspec.Struct):
    resourceVersion: str = ""  # noqa: N815 - the wire's own name


class _VersionedObject(msgspec.Struct):
    metadata: _ResourceVersion


_VERSIONED: Final = msgspec.json.Decoder(_VersionedObject)


def _version(stored: Stored) -> str:
    return _VERSIONED.decode(stored.json).metadata.resourceVersion
