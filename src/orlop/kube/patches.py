"""Makes patches that change one thing and nothing else, and only as long as that thing is as it was seen. Pure.

JSON patches carry `test` operations: who patches on what he read fails when it has changed meanwhile, instead of
undoing another's change. The object's uid is tested too, so that no patch meets another object of the same name. A
failed test changes nothing; the API server answers it with 422 (`errors.PatchRefused`), and the remedy is to read again
and decide again. A function gives None where there is nothing to do.

A merge patch has no tests. It is safe for fields that nobody else writes, or with a resourceVersion in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.patch_application import Json, copied, equal, pointer

NOT_THERE: Final = None
"""In Kubernetes a test for null passes where the member is missing; see `patch_application`."""


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """Each method gives a patch with one more operation. Paths are given in parts, which may hold any character."""

    operations: tuple[Mapping[str, Any], ...] = ()

    def test(self, *path: str | int, value: Json) -> JsonPatch:
        return self._with({"op": "test", "path": pointer(*path), "value": value})

    def add(self, *path: str | int, value: Json) -> JsonPatch:
        return self._with({"op": "add", "path": pointer(*path), "value": value})

    def replace(self, *path: str | int, value: Json) -> JsonPatch:
        return self._with({"op": "replace", "path": pointer(*path), "value": value})

    def remove(self, *path: str | int) -> JsonPatch:
        return self._with({"op": "remove", "path": pointer(*path)})

    def body(self) -> list[Json]:
        """What goes on the wire."""
        return [copied(operation) for operation in self.operations]

    def __bool__(self) -> bool:
        return bool(self.operations)

    def _with(self, operation: Mapping[str, Any]) -> JsonPatch:
        return JsonPatch((*self.operations, operation))


def guarded_by_uid(obj: Mapping[str, Any]) -> JsonPatch:
    """The beginning of a patch for this very object."""
    uid = objects.uid(obj)
    return JsonPatch().test("metadata", "uid", value=uid) if uid else JsonPatch()


def guarded_by_version(obj: Mapping[str, Any]) -> JsonPatch:
    """The beginning of a patch that fails when anything at all of the object has changed since it was read."""
    return guarded_by_uid(obj).test("metadata", "resourceVersion", value=objects.resource_version(obj))


# ---- finalizers ------------------------------------------------------------------------------------------------------


def add_finalizer(obj: Mapping[str, Any], finalizer: str) -> JsonPatch | None:
    """Fails when the list has changed: whoever added or took one meanwhile may have changed what is right to do."""
    if objects.has_finalizer(obj, finalizer):
        return None
    present = objects.metadata(obj).get("finalizers")
    patch = guarded_by_uid(obj).test("metadata", "finalizers", value=copied(present))
    if present is None:
        return patch.add("metadata", "finalizers", value=[finalizer])
    return patch.add("metadata", "finalizers", "-", value=finalizer)


def remove_finalizer(obj: Mapping[str, Any], finalizer: str) -> JsonPatch | None:
    """Takes out every copy of it. The places are safe to name because the whole list was tested before."""
    present = objects.finalizers(obj)
    places = [place for place, found in enumerate(present) if found == finalizer]
    if not places:
        return None
    patch = guarded_by_uid(obj).test("metadata", "finalizers", value=list(present))
    if len(places) == len(present):
        return patch.remove("metadata", "finalizers")
    for place in reversed(places):  # from the end, so that no removal moves one that is still to come
        patch = patch.remove("metadata", "finalizers", place)
    return patch


# ---- annotations and labels ------------------------------------------------------------------------------------------


def set_annotation(obj: Mapping[str, Any], key: str, value: str) -> JsonPatch | None:
    return _set_entry(obj, "annotations", key, value)


def unset_annotation(obj: Mapping[str, Any], key: str) -> JsonPatch | None:
    return _unset_entry(obj, "annotations", key)


def set_label(obj: Mapping[str, Any], key: str, value: str) -> JsonPatch | None:
    return _set_entry(obj, "labels", key, value)


def unset_label(obj: Mapping[str, Any], key: str) -> JsonPatch | None:
    return _unset_entry(obj, "labels", key)


def _set_entry(obj: Mapping[str, Any], field: str, key: str, value: str) -> JsonPatch | None:
    """Fails when this entry has changed; what happens to the others is no concern of it."""
    entries = objects.metadata(obj).get(field)
    patch = guarded_by_uid(obj)
    if entries is None:
        return patch.test("metadata", field, value=NOT_THERE).add("metadata", field, value={key: value})
    if entries.get(key) == value:
        return None
    return patch.test("metadata", field, key, value=entries.get(key, NOT_THERE)).add(
        "metadata", field, key, value=value
    )


def _unset_entry(obj: Mapping[str, Any], field: str, key: str) -> JsonPatch | None:
    entries = objects.metadata(obj).get(field) or {}
    if key not in entries:
        return None
    return guarded_by_uid(obj).test("metadata", field, key, value=entries[key]).remove("metadata", field, key)


# ---- merge patches ---------------------------------------------------------------------------------------------------


def merge_patch(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What makes the one object the other; empty if nothing does.

    Lists are replaced whole. A member that is null counts as missing: a merge patch cannot set null.
    """
    patch: dict[str, Any] = {key: None for key, old in before.items() if old is not None and after.get(key) is None}
    for key, value in after.items():
        if value is None:
            continue
        if isinstance(value, Mapping) and isinstance(before.get(key), Mapping):
            if inner := merge_patch(before[key], value):
                patch[key] = inner
        elif key not in before or not equal(before[key], value):
            patch[key] = _without_nulls(value)
    return patch


def _without_nulls(value: Json) -> Json:
    """Null members of what is put in whole; those inside lists stay, as a merge patch does not look into lists."""
    if not isinstance(value, Mapping):
        return copied(value)
    return {key: _without_nulls(member) for key, member in value.items() if member is not None}
