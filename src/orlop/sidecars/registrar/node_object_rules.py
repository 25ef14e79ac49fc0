"""What of a driver shall stand on the Node object, and the one patch that makes it so. Pure.

Two things, each only where it is asked for: the annotation `csi.volume.kubernetes.io/nodeid`, a JSON object from driver
to node id in which the entries of other drivers stay as they are, and the driver's topology as labels. Both as kubelet
writes them: a label that is there with another value is never changed (all labels of the driver are refused then), an
annotation that cannot be read is left alone, and what is there already is not written again, however it is spelled.

The patch tests what it changes, so that it meets nothing but what was seen (see `kube.patches`). Labels are never taken
away, since volumes may name them; an entry of the annotation is when the driver has come back under another name, and
only if it is still as we wrote it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube import objects, patches
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value
from orlop.kube.patches import JsonPatch

NODE_ID_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"


@dataclass(frozen=True, slots=True)
class Entry:
    """One member of the annotation."""

    driver: str
    node_id: str


@dataclass(frozen=True, slots=True)
class NodeWish:
    """What shall stand on the Node; None and nothing where it was not asked for."""

    entry: Entry | None = None
    labels: tuple[tuple[str, str], ...] = ()
    former: tuple[Entry, ...] = ()
    """What we wrote for the same driver under other names."""


@dataclass(frozen=True, slots=True)
class NodeChange:
    """`patch` is None where there is nothing to do, or nothing that can be done: then `problems` says why."""

    patch: JsonPatch | None
    problems: tuple[str, ...] = ()


class UnreadableAnnotation(ValueError):
    """What stands there is no JSON object from texts to texts; somebody else's, so it stays."""


def node_change(node: Mapping[str, Any], wish: NodeWish) -> NodeChange:
    problems: list[str] = []
    annotating = _annotating(node, wish, problems)
    labelling = _labelling(node, wish, problems)
    operations = (*annotating.operations, *labelling.operations)
    patch = JsonPatch((*patches.guarded_by_uid(node).operations, *operations)) if operations else None
    return NodeChange(patch, tuple(problems))


# ---- the annotation --------------------------------------------------------------------------------------------------


def _annotating(node: Mapping[str, Any], wish: NodeWish, problems: list[str]) -> JsonPatch:
    if wish.entry is None:
        return JsonPatch()
    if not wish.entry.node_id:
        problems.append(f"the driver {wish.entry.driver} says no node id, so there is nothing to annotate")
        return JsonPatch()
    present = objects.annotations(node).get(NODE_ID_ANNOTATION)
    try:
        wanted = merged_annotation(present, wish.entry, wish.former)
    except UnreadableAnnotation as error:
        problems.append(str(error))
        return JsonPatch()
    return JsonPatch() if wanted == present else _set_entry(node, "annotations", {NODE_ID_ANNOTATION: wanted})


def merged_annotation(present: str | None, entry: Entry, former: tuple[Entry, ...] = ()) -> str:
    """The text with this entry in it; the very same text where it says so already."""
    before = read_annotation(present)
    gone = {one.driver for one in former if one.driver != entry.driver and before.get(one.driver) == one.node_id}
    kept = {driver: node_id for driver, node_id in before.items() if driver not in gone}
    after = {**kept, entry.driver: entry.node_id}
    if present is not None and after == before:
        return present
    return json.dumps(after, sort_keys=True, separators=(",", ":"))


def read_annotation(text: str | None) -> dict[str, str | None]:
    """Node ids by driver, as kubelet reads it: no text, and null, mean nothing; a value that is no text is wrong."""
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        raise UnreadableAnnotation(f"the annotation {NODE_ID_ANNOTATION} is no JSON: mend or remove it") from None
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(node_id, str | None) for node_id in found.values()):
        raise UnreadableAnnotation(
            f"the annotation {NODE_ID_ANNOTATION} is no JSON object from drivers to node ids: mend or remove it"
        )
    return found


# ---- labels ----------------------------------------------------------------------------------------------------------


def _labelling(node: Mapping[str, Any], wish: NodeWish, problems: list[str]) -> JsonPatch:
    present = objects.labels(node)
    missing = {key: value for key, value in wish.labels if present.get(key) != value}
    found = [fault for key, value in missing.items() for fault in _faults(key, value, present.get(key))]
    problems.extend(found)
    return JsonPatch() if found or not missing else _set_entry(node, "labels", missing)


def _faults(key: str, value: str, present: str | None) -> tuple[str, ...]:
    """The first is in kubelet's words: people search for them."""
    if present is not None:
        there, said = (f"{json.dumps(key)}:{json.dumps(one, ensure_ascii=False)}" for one in (present, value))
        return (f"detected topology value collision: driver reported {said} but existing label is {there}",)
    faults = (*faults_of_label_key(key), *faults_of_label_value(value))
    return (f"the topology {key}={value} can be no label: {'; '.join(faults)}",) if faults else ()


def _set_entry(node: Mapping[str, Any], field: str, entries: Mapping[str, str]) -> JsonPatch:
    """Tests that each is as it was seen; what happens to others meanwhile is no concern of the patch."""
    present = objects.metadata(node).get(field)
    if present is None:
        missing = JsonPatch().test("metadata", field, value=patches.NOT_THERE)
        return missing.add("metadata", field, value=dict(entries))
    patch = JsonPatch()
    for key, value in entries.items():
        seen = present.get(key, patches.NOT_THERE)
        patch = patch.test("metadata", field, key, value=seen).add("metadata", field, key, value=value)
    return patch
