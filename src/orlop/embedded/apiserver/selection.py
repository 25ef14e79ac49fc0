"""Which stored objects a client has selected; objects are decoded only where a selector looks into them. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from orlop.embedded.apiserver.field_selector_rules import BY_KEY, matches_fields, unsupported_fields, why_unsupported
from orlop.embedded.apiserver.object_store.decoded_objects import DecodedObjects
from orlop.embedded.apiserver.object_store.versions import Key, Stored
from orlop.embedded.apiserver.status_answers import bad_request
from orlop.embedded.apiserver.stored_objects import KindInStore, labels_of
from orlop.kube.selectors import FieldSelector, LabelSelector


@dataclass(frozen=True, slots=True)
class Selection:
    """`namespace` is None where objects of all namespaces are meant."""

    kind: KindInStore
    namespace: str | None
    labels: LabelSelector
    fields: FieldSelector

    def __post_init__(self) -> None:
        for field in unsupported_fields(self.kind.kind, self.fields):
            raise bad_request(why_unsupported(self.kind.kind, field))

    @property
    def takes_everything(self) -> bool:
        """Of the namespace."""
        return not self.labels and not self.fields

    @property
    def only_key(self) -> Key | None:
        """The key of the one object that can be meant, if that is known."""
        name = self.fields.exact_value("metadata.name")
        namespace = self.namespace if self.kind.kind.namespaced else ""
        return self.kind.key(namespace, name) if name and namespace is not None else None

    def takes(self, stored: Stored, decoded: DecodedObjects | None = None) -> bool:
        """`decoded` remembers what was looked into; without it nothing is remembered."""
        return (
            self._takes_key(stored.key)
            and (not self.labels or self.labels.matches(labels_of(stored)))
            and self._takes_fields(stored, decoded)
        )

    def _takes_key(self, key: Key) -> bool:
        values = {"metadata.name": key.name, "metadata.namespace": key.namespace}
        return all(term.matches(values[term.field]) for term in self.fields.terms if term.field in BY_KEY)

    def _takes_fields(self, stored: Stored, decoded: DecodedObjects | None) -> bool:
        if self.fields.fields <= BY_KEY:
            return True
        if decoded is not None and self.kind.kept_as is self.kind.kind:
            return matches_fields(self.kind.kind, self.fields, decoded.of(stored))
        return matches_fields(self.kind.kind, self.fields, self.kind.object(stored))
