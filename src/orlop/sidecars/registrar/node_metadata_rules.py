"""Decide the one patch that writes a driver's node id and topology to the Node object. Pure.

Two things, each only if requested: the annotation `csi.volume.kubernetes.io/nodeid`, a JSON object from driver to node
id in which other drivers' entries stay unchanged, and the driver's topology as labels. Both as kubelet writes them: a
label that exists with another value is never changed (then none of the driver's labels is written), an annotation that
cannot be parsed is left alone, and what is there already is not written again, however it is formatted.

The patch tests every value it replaces, so it fails if the object changed since it was read (see `kube.patches`).
Labels are never removed, since volumes may refer to them. An entry of the annotation is removed when the driver came
back under another name, and only if it still has the value that we wrote.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects, patches
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value
from orlop.kube.patches import JsonPatch

NODE_IDS_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"


@dataclass(frozen=True, slots=True)
class AnnotationEntry:
    """One member of the annotation's JSON object."""

    driver: str
    node_id: str


@dataclass(frozen=True, slots=True)
class DesiredMetadata:
    """What to write to the Node; None and empty for what was not requested."""

    entry: AnnotationEntry | None = None
    labels: tuple[tuple[str, str], ...] = ()
    former: tuple[AnnotationEntry, ...] = ()
    """Entries that we wrote for the same driver under other names."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A change of the Node. `patch` is None if there is nothing to write; `problems` has what cannot be written."""

    patch: JsonPatch | None
    problems: tuple[str, ...] = ()


class UnreadableAnnotation(ValueError):
    """The annotation is not a JSON object from strings to strings. We did not write it, so it stays."""


def node_change(node: Mapping[str, Any], desired: DesiredMetadata) -> NodeChange:
    """Return the patch that brings `node` to the desired metadata."""
    problems: list[str] = []
    annotation_patch = _annotation_patch(node, desired, problems)
    label_patch = _label_patch(node, desired, problems)
    operations = (*annotation_patch.operations, *label_patch.operations)
    patch = JsonPatch((*patches.guarded_by_uid(node).operations, *operations)) if operations else None
    return NodeChange(patch, tuple(problems))


# ---- the annotation --------------------------------------------------------------------------------------------------


def _annotation_patch(node: Mapping[str, Any], desired: DesiredMetadata, problems: list[str]) -> JsonPatch:
    if desired.entry is None:
        return JsonPatch()
    if not desired.entry.node_id:
        problems.append(f"driver {desired.entry.driver} returned no node id in NodeGetInfo: nothing to annotate")
        return JsonPatch()
    present = objects.annotations(node).get(NODE_IDS_ANNOTATION)
    try:
        text = merged_annotation(present, desired.entry, desired.former)
    except UnreadableAnnotation as error:
        problems.append(str(error))
        return JsonPatch()
    return JsonPatch() if text == present else _set_entries(node, "annotations", {NODE_IDS_ANNOTATION: text})


def merged_annotation(present: str | None, entry: AnnotationEntry, former: tuple[AnnotationEntry, ...] = ()) -> str:
    """Return the annotation with this entry in it; the identical text if it has the entry already."""
    before = read_annotation(present)
    stale = {old.driver for old in former if old.driver != entry.driver and before.get(old.driver) == old.node_id}
    current = {driver: node_id for driver, node_id in before.items() if driver not in stale}
    after = {**current, entry.driver: entry.node_id}
    if present is not None and after == before:
        return present
    return json.dumps(after, sort_keys=True, separators=(",", ":"))


def read_annotation(text: str | None) -> dict[str, str | None]:
    """Return node ids by driver, parsed as kubelet does: absent, empty and null mean none; values must be strings."""
    if not text:
        return {}
    try:
        node_ids = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableAnnotation(f"the annotation {NODE_IDS_ANNOTATION} is not JSON: correct or remove it") from None
    if node_ids is None:
        return {}
    if not isinstance(node_ids, dict) or not all(isinstance(node_id, str | None) for node_id in node_ids.values()):
        raise UnreadableAnnotation(
            f"the annotation {NODE_IDS_ANNOTATION} is not a JSON object from drivers to node ids: correct or remove it"
        )
    return node_ids


# ---- labels ----------------------------------------------------------------------------------------------------------


def _label_patch(node: Mapping[str, Any], desired: DesiredMetadata, problems: list[str]) -> JsonPatch:
    present = objects.labels(node)
    missing = {key: value for key, value in desired.labels if present.get(key) != value}
    faults = [fault for key, value in missing.items() for fault in _label_faults(key, value, present.get(key))]
    problems.extend(faults)
    # All or none: half of a topology would place volumes where the driver cannot serve them.
    return JsonPatch() if faults or not missing else _set_entries(node, "labels", missing)


def _label_faults(key: str, value: str, present: str | None) -> tuple[str, ...]:
    if present is not None:
        # kubelet's own words: people search for them.
        existing, reported = (f"{json.dumps(key)}:{json.dumps(each, ensure_ascii=False)}" for each in (present, value))
        return (f"detected topology value collision: driver reported {reported} but existing label is {existing}",)
    faults = (*faults_of_label_key(key), *faults_of_label_value(value))
    return (f"the topology {key}={value} is not a valid label: {'; '.join(faults)}",) if faults else ()


def _set_entries(node: Mapping[str, Any], field: str, entries: Mapping[str, str]) -> JsonPatch:
    """Return a patch that tests and sets these entries only: concurrent changes to other entries do not conflict."""
    present = objects.metadata(node).get(field)
    if present is None:
        absent = JsonPatch().test("metadata", field, value=patches.NOT_THERE)
        return absent.add("metadata", field, value=dict(entries))
    patch = JsonPatch()
    for key, value in entries.items():
        current = present.get(key, patches.NOT_THERE)
        patch = patch.test("metadata", field, key, value=current).add("metadata", field, key, value=value)
    return patch
