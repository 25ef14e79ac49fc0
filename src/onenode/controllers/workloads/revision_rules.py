"""The ControllerRevisions of a StatefulSet: the templates that it has had, numbered. Pure.

`status.currentRevision` is what all pods had when the last update was complete, `status.updateRevision` what they shall
have. `kubectl rollout history` and `undo` read the data, which is a strategic merge patch of the set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.controllers.workloads.ownership_rules import (
    API_VERSION,
    collisions,
    content_hash,
    guarded,
    is_controlled,
)
from orlop.kube import objects
from orlop.kube.client import MergePatch

Object = Mapping[str, Any]

KIND: Final = "StatefulSet"
HASH: Final = "controller.kubernetes.io/hash"
REVISION_OF_POD: Final = "controller-revision-hash"
HISTORY: Final = 10


@dataclass(frozen=True, slots=True)
class CreateRevision:
    """Create the revision of the set's current template."""

    revision: Object


@dataclass(frozen=True, slots=True)
class NumberRevision:
    """Make a revision the newest again, after a rollback to its template."""

    revision: Object
    patch: MergePatch


@dataclass(frozen=True, slots=True)
class DeleteRevision:
    """Delete the oldest revision that no pod has."""

    revision: Object


@dataclass(frozen=True, slots=True)
class Revisions:
    """`current` and `update` are the same object when no update runs."""

    current: Object
    update: Object

    def template(self, stateful_set: Object, *, is_current: bool) -> Object:
        """Return the template of a pod that is made now; a set whose old revision is lost has only its own."""
        if not is_current or self.current is self.update:
            return dict(stateful_set["spec"].get("template") or {})
        template = dict(((self.current.get("data") or {}).get("spec") or {}).get("template") or {})
        template.pop("$patch", None)
        return template


def revisions_of(stateful_set: Object, known: Iterable[Object]) -> list[Object]:
    """Return the revisions of the set, the newest last."""
    owned = (each for each in known if is_controlled(stateful_set, each))
    return sorted(owned, key=lambda each: (_number(each), objects.name(each)))


def revision_step(stateful_set: Object, owned: Sequence[Object]) -> CreateRevision | NumberRevision | Revisions:
    """Return the revisions of the pods, or the step that makes the missing one."""
    made = new_revision(stateful_set, _number(owned[-1]) + 1 if owned else 1)
    same = [each for each in owned if each.get("data") == made["data"]]
    if not same:
        return CreateRevision(made)
    update = same[-1]
    if update is not owned[-1]:
        return NumberRevision(update, guarded(update, revision=_number(owned[-1]) + 1))
    name = (stateful_set.get("status") or {}).get("currentRevision")
    return Revisions(next((each for each in owned if objects.name(each) == name), update), update)


def new_revision(stateful_set: Object, number: int) -> dict[str, Any]:
    template = stateful_set["spec"].get("template") or {}
    text = content_hash(template, collisions(stateful_set))
    labels = (template.get("metadata") or {}).get("labels") or {}
    return {
        "metadata": {
            "name": f"{objects.name(stateful_set)}-{text}",
            "namespace": objects.namespace(stateful_set),
            "labels": {**labels, HASH: text},
            "annotations": dict(objects.annotations(stateful_set)),
            "ownerReferences": [objects.controller_reference(stateful_set, API_VERSION, KIND)],
        },
        "data": {"spec": {"template": {**template, "$patch": "replace"}}},
        "revision": number,
    }


def history_step(
    stateful_set: Object, owned: Sequence[Object], used: Revisions, pods: Iterable[Object]
) -> DeleteRevision | None:
    """Delete the oldest revision that no pod has, if there are more than the set keeps."""
    live = {objects.name(used.current), objects.name(used.update), *map(revision_of, pods)}
    # A revision that a finalizer keeps is not deleted again: that would never end.
    unused = [each for each in owned if objects.name(each) not in live and not objects.is_being_deleted(each)]
    limit = stateful_set["spec"].get("revisionHistoryLimit")
    return DeleteRevision(unused[0]) if len(unused) > (HISTORY if limit is None else int(limit)) else None


def revision_of(pod: Object) -> str:
    return objects.labels(pod).get(REVISION_OF_POD, "")


def _number(revision: Object) -> int:
    return int(revision.get("revision") or 0)
