"""Build patches that change one thing, and only if that thing is still as it was read. Pure.

JSON patches carry `test` operations: a patch based on an outdated read fails instead of undoing another's change. The
object's uid is tested too, so that no patch changes another object of the same name. A failed test changes nothing: the
API server returns 422 (`api_errors.PatchRefused`), and the caller must read and decide again. Functions return None if
there is nothing to change.

A merge patch has no tests. It is safe for fields that nobody else writes, or with a resourceVersion in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects
from orlop.kube.patch_application import Json, copied, equal, pointer

NOT_THERE: Final = None
"""In Kubernetes a test for null passes if the member is missing; see `patch_application`."""


@dataclass(frozen=True, slots=True)
class JsonPatch:
    """A JSON patch. Each method returns a patch with one more operation; paths are passed in parts, unescaped."""

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
        """Return the patch as sent to the server."""
        return [copied(operation) for operation in self.operations]

    def __bool__(self) -> bool:
        return bool(self.operations)

    def _with(self, operation: Mapping[str, Any]) -> JsonPatch:
        return JsonPatch((*self.operations, operation))


def guarded_by_uid(obj: Mapping[str, Any]) -> JsonPatch:
    """Start a patch that fails for another object of the same name."""
    uid = objects.uid(obj)
    return JsonPatch().test("metadata", "uid", value=uid) if uid else JsonPatch()


def guarded_by_version(obj: Mapping[str, Any]) -> JsonPatch:
    """Start a patch that fails if anything in the object has changed since it was read."""
    return guarded_by_uid(obj).test("metadata", "resourceVersion", value=objects.resource_version(obj))


def guarded_by_generation(obj: Mapping[str, Any]) -> JsonPatch:
    """Start a patch that fails if the spec has changed since it was read. Writes of status do not disturb it."""
    return guarded_by_uid(obj).test("metadata", "generation", value=objects.generation(obj))


# ---- finalizers ------------------------------------------------------------------------------------------------------


def add_finalizer(obj: Mapping[str, Any], finalizer: str) -> JsonPatch | None:
    """Add a finalizer. The patch fails if the list has changed: another finalizer may change our decision."""
    if objects.has_finalizer(obj, finalizer):
        return None
    present = objects.metadata(obj).get("finalizers")
    patch = guarded_by_uid(obj).test("metadata", "finalizers", value=copied(present))
    if present is None:
        return patch.add("metadata", "finalizers", value=[finalizer])
    return patch.add("metadata", "finalizers", "-", value=finalizer)


def remove_finalizer(obj: Mapping[str, Any], finalizer: str) -> JsonPatch | None:
    """Remove every copy of a finalizer, by index. The patch fails if a copy is no longer in its place."""
    present = objects.finalizers(obj)
    places = [place for place, found in enumerate(present) if found == finalizer]
    if not places:
        return None
    patch = guarded_by_uid(obj)
    if len(places) == len(present):
        return patch.test("metadata", "finalizers", value=list(present)).remove("metadata", "finalizers")
    # Test our entries and not the list: when an object is deleted, several controllers remove their finalizers at the
    # same time. Each would fail because of the others, and would have to read the object and write it again.
    for place in places:
        patch = patch.test("metadata", "finalizers", place, value=finalizer)
    for place in reversed(places):  # From the end, so that no removal shifts an index that is still to come.
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
    """Set one entry. The patch fails if this entry has changed; changes of other entries do no harm."""
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
    """Return the merge patch that changes `before` into `after`; empty if they are equal.

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
    """Drop null members of a new value; those inside lists stay, because a merge patch replaces lists whole."""
    if not isinstance(value, Mapping):
        return copied(value)
    return {key: _without_nulls(member) for key, member in value.items() if member is not None}
