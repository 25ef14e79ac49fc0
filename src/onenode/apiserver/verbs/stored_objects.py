"""How objects of a kind lie in the store, and how they are taken out of it: as bytes wherever that is possible.

The bytes of every stored object begin with its kind and apiVersion, in one spelling. So an answer about one object is
the stored bytes, and the item of a list, which says neither, is the bytes behind them: nothing is decoded. Labels and
metadata are read without reading the rest.

A kind that is another's second form (events.k8s.io's Event) lies in the store as that other. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import msgspec

from onenode.apiserver.answers.table_rules import TableShape
from onenode.apiserver.kinds.scale_rules import WORKLOAD, ScalePaths
from onenode.apiserver.store.versions import JSON, Key, Stored
from orlop.kube.kinds import BUILT_IN, CORE_EVENT, EVENT, Kind

# ---- the two forms of events -----------------------------------------------------------------------------------------

# Events have two forms, core/v1 and events.k8s.io/v1, and one place in the store, in the core form. Pure.
#
# Each field of the one form has its counterpart in the other, so nothing is lost either way.


NEW_NAMES: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
# The core form shows these also where they are empty; the new one does not.
ALWAYS_IN_CORE: Final[Mapping[str, str]] = {"reportingComponent": "", "reportingInstance": ""}
CORE_NAMES: Final[Mapping[str, str]] = {new: core for core, new in NEW_NAMES.items()}


def from_core(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event as events.k8s.io/v1 shows it."""
    shown = {name: value for name, value in event.items() if value != "" or name not in ALWAYS_IN_CORE}
    renamed = {NEW_NAMES.get(name, name): value for name, value in shown.items()}
    return {**renamed, "kind": EVENT.kind, "apiVersion": EVENT.api_version}


def to_core(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event as it is stored, and as core/v1 shows it."""
    renamed = {CORE_NAMES.get(name, name): value for name, value in event.items()}
    return {**ALWAYS_IN_CORE, **renamed, "kind": CORE_EVENT.kind, "apiVersion": CORE_EVENT.api_version}


Object = dict[str, Any]

NO_REVISION: Final = 0
"""The revision of bytes that are shown and never kept, such as those of a dry run."""


class _Metadata(msgspec.Struct):
    metadata: msgspec.Raw


class _Labels(msgspec.Struct):
    labels: dict[str, str] = {}


class _Labelled(msgspec.Struct):
    metadata: _Labels


_METADATA: Final = msgspec.json.Decoder(_Metadata)
_LABELLED: Final = msgspec.json.Decoder(_Labelled)


def metadata_json(stored: Stored) -> bytes:
    return bytes(_METADATA.decode(stored.json).metadata)


def labels_of(stored: Stored) -> Mapping[str, str]:
    return _LABELLED.decode(stored.json).metadata.labels


@dataclass(frozen=True, slots=True)
class KindInStore:
    """A kind that is served, and where and how its objects are kept.

    `table` and `selectable` are those of a custom resource: its columns, and its fields that a selector may name.
    """

    is_custom: ClassVar[bool] = False

    kind: Kind
    kept_as: Kind
    type_json: bytes = field(init=False)
    table: TableShape | None = field(default=None, kw_only=True)
    selectable: Mapping[str, Callable[[Mapping[str, Any]], str]] | None = field(default=None, kw_only=True)
    scale: ScalePaths = field(default=WORKLOAD, kw_only=True)
    warning: str = field(default="", kw_only=True)
    """What every client of the kind is warned of."""

    def __post_init__(self) -> None:
        text = f'{{"kind":"{self.kept_as.kind}","apiVersion":"{self.kept_as.api_version}",'
        object.__setattr__(self, "type_json", text.encode())

    @property
    def resource(self) -> str:
        return self.kept_as.resource

    def is_kept_as_shown(self, stored: Stored) -> bool:  # noqa: ARG002 - of a custom resource it depends on the object
        return self.kept_as is self.kind

    def key(self, namespace: str, name: str) -> Key:
        return Key(self.kept_as.resource, namespace, name)

    def object(self, stored: Stored) -> Object:
        """A value of one's own."""
        value = JSON.decode(stored.json)
        return value if self.is_kept_as_shown(stored) else from_core(value)

    def kept_object(self, stored: Stored) -> Object:
        """The same in the form in which it is kept."""
        return JSON.decode(stored.json)

    def converted(self, obj: Mapping[str, Any]) -> Object:
        """Return an object that another kind of the same objects shows, as this kind shows it."""
        return from_core(obj) if self.kept_as is not self.kind else to_core(obj)

    def json(self, stored: Stored) -> bytes:
        return stored.json if self.is_kept_as_shown(stored) else msgspec.json.encode(self.object(stored))

    def items(self, items: Sequence[Stored]) -> bytes:
        """Return the items of a list, which do not name their type, without the brackets around them."""
        if self.kept_as is self.kind:
            start = len(self.type_json)  # behind the comma: what follows is an object but for its opening brace
            return b"{" + b",{".join([each.json[start:] for each in items]) if items else b""
        return b",".join(map(self._second_form, items))

    def _second_form(self, stored: Stored) -> bytes:
        value = self.object(stored)
        del value["kind"], value["apiVersion"]
        return msgspec.json.encode(value)

    def encoded(self, obj: Mapping[str, Any], revision: int) -> bytes:
        """The bytes to store, with the revision that the write was given; as people are used to read them."""
        value = to_core(obj) if self.kind is EVENT else dict(obj)
        metadata = dict(value.pop("metadata", {}))
        del value["kind"], value["apiVersion"]
        status = {"status": value.pop("status")} if "status" in value else {}
        if revision == NO_REVISION:
            metadata.pop("resourceVersion", None)
        else:
            metadata["resourceVersion"] = str(revision)
        return self.type_json + msgspec.json.encode({"metadata": metadata, **value, **status})[1:]


def kinds_in_store(kinds: Iterable[Kind] = BUILT_IN) -> dict[tuple[str, str, str], KindInStore]:
    """By group, version and resource, as a path names them."""
    second_forms = {EVENT: CORE_EVENT}
    return {(kind.group, kind.version, kind.plural): KindInStore(kind, second_forms.get(kind, kind)) for kind in kinds}
