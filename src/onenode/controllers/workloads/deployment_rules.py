"""Decide the next step for a Deployment: replica sets, their scale, revisions and history. Pure.

The new replica set is the one with the Deployment's template; all others are old. A rollback restores the template of
an old replica set, which becomes the new one, with the next revision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

from onenode.controllers.workloads import rollout_rules as rollout
from onenode.controllers.workloads.deployment_status_rules import deployment_status
from onenode.controllers.workloads.ownership_rules import (
    API_VERSION,
    ChangeOwners,
    Wait,
    WriteStatus,
    collisions,
    content_hash,
    guarded,
    is_controlled,
    ownership_step,
    status_step,
)
from onenode.controllers.workloads.pod_count_rules import copied_metadata, min_ready_seconds, replicas
from onenode.controllers.workloads.rollout_rules import ScaleReplicaSet
from orlop.kube import objects
from orlop.kube.client import MergePatch

Object = Mapping[str, Any]

KIND: Final = "Deployment"
HASH: Final = "pod-template-hash"
REVISION: Final = "deployment.kubernetes.io/revision"
DESIRED: Final = "deployment.kubernetes.io/desired-replicas"
MOST: Final = "deployment.kubernetes.io/max-replicas"
NOT_PASSED_ON: Final = frozenset(
    {
        "kubectl.kubernetes.io/last-applied-configuration",
        REVISION,
        "deployment.kubernetes.io/revision-history",
        DESIRED,
        MOST,
        "deprecated.deployment.rollback.to",
    }
)
HISTORY: Final = 10


@dataclass(frozen=True, slots=True)
class CreateReplicaSet:
    """Create the replica set of the Deployment's current template."""

    replica_set: Object


@dataclass(frozen=True, slots=True)
class DeleteReplicaSet:
    """Delete an old replica set without pods, because the history is longer than the Deployment keeps."""

    replica_set: Object


@dataclass(frozen=True, slots=True)
class PatchReplicaSet:
    """Bring annotations and `minReadySeconds` of the replica set up to the Deployment's."""

    replica_set: Object
    patch: MergePatch


@dataclass(frozen=True, slots=True)
class Annotate:
    """Write the revision of the new replica set on the Deployment."""

    patch: MergePatch


Step: TypeAlias = (
    ChangeOwners
    | CreateReplicaSet
    | DeleteReplicaSet
    | PatchReplicaSet
    | Annotate
    | ScaleReplicaSet
    | WriteStatus
    | Wait
)


def next_step(deployment: Object, replica_sets: Iterable[Object], now: datetime, *, has_failed: bool = False) -> Step:
    """Return the next step. `replica_sets` are all of the namespace. After a failure only the status is written."""
    known = list(replica_sets)
    if not has_failed and (step := ownership_step(deployment, KIND, known)) is not None:
        return step
    owned = sorted((each for each in known if is_controlled(deployment, each)), key=_age)
    new = next((each for each in owned if has_template_of(deployment, each)), None)
    old = [each for each in owned if each is not new]
    if not has_failed and not objects.is_being_deleted(deployment):
        steps = _paused_steps(deployment, owned) if is_paused(deployment) else _steps(deployment, new, old)
        if (action := next(steps, None)) is not None:
            return action
    status, seconds = deployment_status(deployment, new, old, now)
    return status_step(deployment, status, seconds)


def is_paused(deployment: Object) -> bool:
    return bool(deployment["spec"].get("paused"))


def revision(obj: Object) -> int:
    text = objects.annotations(obj).get(REVISION, "")
    return int(text) if text.isdecimal() else 0


def has_template_of(deployment: Object, replica_set: Object) -> bool:
    return _unhashed(replica_set["spec"].get("template") or {}) == _unhashed(deployment["spec"].get("template") or {})


def _unhashed(template: Object) -> dict[str, Any]:
    labels = dict((template.get("metadata") or {}).get("labels") or {})
    labels.pop(HASH, None)
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    return {"labels": labels, "annotations": annotations, "spec": template.get("spec") or {}}


def _age(replica_set: Object) -> tuple[str, str]:
    return str(objects.metadata(replica_set).get("creationTimestamp") or ""), objects.name(replica_set)


def _paused_steps(deployment: Object, owned: Sequence[Object]) -> Iterator[Step]:
    """Scale a paused Deployment if one replica set has all pods. In the middle of a rollout nothing is scaled."""
    active = [each for each in owned if replicas(each)] or owned[-1:]
    if len(active) == 1 and replicas(active[0]) != replicas(deployment):
        yield ScaleReplicaSet(active[0], replicas(deployment))


def _steps(deployment: Object, new: Object | None, old: Sequence[Object]) -> Iterator[Step]:
    number = max(map(revision, old), default=0) + 1
    if new is None:
        if rollout.is_recreated(deployment):
            # People choose Recreate so that no two pods write to the same volume: no new pod before the old ones end.
            yield from rollout.emptyings(old)
            if not all(map(rollout.is_emptied, old)):
                return
        yield CreateReplicaSet(new_replica_set(deployment, number, rollout.first_replicas(deployment, old)))
        return
    if (patch := _catch_up(deployment, new, max(number, revision(new)))) is not None:
        yield PatchReplicaSet(new, patch)
    if revision(deployment) != revision(new):
        yield Annotate(guarded(deployment, metadata={"annotations": {REVISION: str(revision(new))}}))
    if rollout.is_recreated(deployment):
        yield from rollout.emptyings(old)
    yield from rollout.scalings(deployment, new, old)
    yield from _history_steps(deployment, old)


def _history_steps(deployment: Object, old: Sequence[Object]) -> Iterator[Step]:
    limit = deployment["spec"].get("revisionHistoryLimit")
    # Recreate waits for the pods of old sets: none may go before its status shows that they are gone.
    unused = [each for each in old if rollout.is_emptied(each) and not objects.is_being_deleted(each)]
    surplus = len(unused) - (HISTORY if limit is None else int(limit))
    for each in sorted(unused, key=lambda one: (revision(one), _age(one)))[: max(0, surplus)]:
        yield DeleteReplicaSet(each)


# ---- replica sets ----------------------------------------------------------------------------------------------------


def new_replica_set(deployment: Object, number: int, count: int) -> dict[str, Any]:
    spec = deployment["spec"]
    template = spec.get("template") or {}
    text = content_hash(_unhashed(template), collisions(deployment))
    metadata = copied_metadata(template)
    labels = {**metadata.get("labels", {}), HASH: text}
    selector = spec.get("selector") or {}
    chosen = {**selector, "matchLabels": {**(selector.get("matchLabels") or {}), HASH: text}}
    return {
        "metadata": {
            "name": f"{objects.name(deployment)}-{text}",
            "namespace": objects.namespace(deployment),
            "labels": labels,
            "annotations": {**_annotations(deployment), REVISION: str(number)},
            "ownerReferences": [objects.controller_reference(deployment, API_VERSION, KIND)],
        },
        "spec": {
            "replicas": count,
            "minReadySeconds": min_ready_seconds(deployment),
            "selector": chosen,
            "template": {**template, "metadata": {**metadata, "labels": labels}},
        },
    }


def _annotations(deployment: Object) -> dict[str, str]:
    passed = {name: value for name, value in objects.annotations(deployment).items() if name not in NOT_PASSED_ON}
    return {**passed, DESIRED: str(replicas(deployment)), MOST: str(rollout.bounds(deployment).most)}


def _catch_up(deployment: Object, new: Object, number: int) -> MergePatch | None:
    desired = {**_annotations(deployment), REVISION: str(number)}
    present = objects.annotations(new)
    annotations = {name: value for name, value in desired.items() if present.get(name) != value}
    seconds = min_ready_seconds(deployment)
    if not annotations and min_ready_seconds(new) == seconds:
        return None
    return guarded(new, metadata={"annotations": annotations}, spec={"minReadySeconds": seconds})
