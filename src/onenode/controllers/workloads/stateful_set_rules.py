"""Decide the next step for a StatefulSet: pods in order, with their claims before them. Pure.

OrderedReady: a pod is created when all before it are ready, deleted from the top, and never while another one ends.
Parallel: all at once; an update still replaces one pod at a time, from the top down to the partition.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any, TypeAlias

from onenode.controllers.workloads.ownership_rules import (
    ChangeOwners,
    Wait,
    WriteStatus,
    collisions,
    is_controlled,
    ownership_step,
    status_step,
)
from onenode.controllers.workloads.pod_count_rules import (
    is_available,
    is_finished,
    is_ready,
    min_ready_seconds,
    next_available,
    phase,
    replicas,
)
from onenode.controllers.workloads.revision_rules import (
    KIND,
    CreateRevision,
    DeleteRevision,
    NumberRevision,
    Revisions,
    history_step,
    revision_of,
    revision_step,
    revisions_of,
)
from onenode.controllers.workloads.stateful_pod_rules import (
    claim_names,
    claim_owners_patch,
    is_member,
    is_stale,
    new_claim,
    new_member,
    ordinal_of,
    ordinals,
    pod_name,
)
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.objects import ObjectName

Object = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class CreateSetClaim:
    """Create a claim of a pod."""

    claim: Object
    pod: str


@dataclass(frozen=True, slots=True)
class OwnSetClaim:
    """Change the owners of a claim, with which the garbage collector deletes it."""

    claim: Object
    patch: MergePatch


@dataclass(frozen=True, slots=True)
class CreateMember:
    """Create a pod of the set."""

    pod: Object


@dataclass(frozen=True, slots=True)
class DeleteMember:
    """Delete a pod of the set."""

    pod: Object


Step: TypeAlias = (
    ChangeOwners
    | CreateRevision
    | NumberRevision
    | DeleteRevision
    | CreateSetClaim
    | OwnSetClaim
    | CreateMember
    | DeleteMember
    | WriteStatus
    | Wait
)


@dataclass(frozen=True)
class SetView:
    """A StatefulSet and what is in its namespace."""

    stateful_set: Object
    pods: tuple[Object, ...]
    revisions: tuple[Object, ...]
    claims: Mapping[ObjectName, Object]
    now: datetime

    @cached_property
    def members(self) -> dict[int, Object]:
        """The pods of the set by their ordinals, in order."""
        owned = (pod for pod in self.pods if is_controlled(self.stateful_set, pod))
        numbered = ((ordinal_of(self.stateful_set, pod), pod) for pod in owned)
        return dict(sorted((number, pod) for number, pod in numbered if number is not None))

    @property
    def is_ordered(self) -> bool:
        return bool(self.stateful_set["spec"].get("podManagementPolicy") != "Parallel")

    def is_healthy(self, pod: Object) -> bool:
        return not objects.is_being_deleted(pod) and is_available(pod, min_ready_seconds(self.stateful_set), self.now)


def next_step(view: SetView, *, has_failed: bool = False) -> Step:
    """Return the next step. After a failure only the status is written."""
    stateful_set = view.stateful_set
    may_act = not has_failed and not objects.is_being_deleted(stateful_set)
    if may_act and (change := _ownership_step(view)) is not None:
        return change
    owned = revisions_of(stateful_set, view.revisions)
    used = revision_step(stateful_set, owned)
    if not isinstance(used, Revisions):
        return used if may_act else Wait()
    if may_act and (step := next(_member_steps(view, used), None)) is not None:
        return step
    if may_act and (last := history_step(stateful_set, owned, used, view.members.values())) is not None:
        return last
    seconds = next_available(view.members.values(), min_ready_seconds(stateful_set), view.now)
    return status_step(stateful_set, _status(view, used), seconds, ("replicas", "availableReplicas"))


def _ownership_step(view: SetView) -> ChangeOwners | None:
    step = ownership_step(view.stateful_set, KIND, view.pods, is_member)
    return step or ownership_step(view.stateful_set, KIND, view.revisions)


# ---- pods ------------------------------------------------------------------------------------------------------------


def _member_steps(view: SetView, used: Revisions) -> Iterator[Step]:
    """Yield the possible steps in their order. In an ordered set, a pod that is not ready ends the list."""
    desired = ordinals(view.stateful_set)
    for ordinal in desired:
        yield from _desired_pod_steps(view, used, ordinal)
        if view.is_ordered and not _is_healthy_at(view, ordinal):
            return
    for ordinal in sorted((each for each in view.members if each not in desired), reverse=True):
        pod = view.members[ordinal]
        yield from _claim_owner_steps(view, ordinal, pod, is_condemned=True)
        if not objects.is_being_deleted(pod):
            yield DeleteMember(pod)
        if view.is_ordered:
            return
    yield from _update_steps(view, used)


def _is_healthy_at(view: SetView, ordinal: int) -> bool:
    pod = view.members.get(ordinal)
    return pod is not None and view.is_healthy(pod)


def _desired_pod_steps(view: SetView, used: Revisions, ordinal: int) -> Iterator[Step]:
    pod = view.members.get(ordinal)
    if pod is None:
        missing = list(_missing_claims(view, ordinal))
        yield from missing
        if not missing and not _waits_for_claim(view, ordinal):
            yield CreateMember(_new_pod(view, used, ordinal))
        return
    if objects.is_being_deleted(pod):
        return
    if is_finished(pod):
        yield DeleteMember(pod)
        return
    if phase(pod) == "Pending":
        yield from _missing_claims(view, ordinal)
    yield from _claim_owner_steps(view, ordinal, pod, is_condemned=False)


def _missing_claims(view: SetView, ordinal: int) -> Iterator[CreateSetClaim]:
    for volume, name in claim_names(view.stateful_set, ordinal):
        if name not in view.claims:
            yield CreateSetClaim(new_claim(view.stateful_set, volume, name), pod_name(view.stateful_set, ordinal))


def _waits_for_claim(view: SetView, ordinal: int) -> bool:
    """Return whether a claim of the pod is being deleted: a pod created now would use a volume that is deleted."""
    name = pod_name(view.stateful_set, ordinal)
    claims = [view.claims[claim] for _, claim in claim_names(view.stateful_set, ordinal)]
    return any(objects.is_being_deleted(claim) or is_stale(claim, name) for claim in claims)


def _new_pod(view: SetView, used: Revisions, ordinal: int) -> Object:
    is_current = _is_of_current(view.stateful_set, ordinal)
    revision = used.current if is_current else used.update
    template = used.template(view.stateful_set, is_current=is_current)
    return new_member(view.stateful_set, ordinal, template, objects.name(revision))


def _is_of_current(stateful_set: Object, ordinal: int) -> bool:
    """Return whether a pod that is made now gets the old template: the update has not reached its ordinal."""
    strategy = stateful_set["spec"].get("updateStrategy") or {}
    if strategy.get("type", "RollingUpdate") != "RollingUpdate":
        return False
    start = ordinals(stateful_set).start
    if strategy.get("rollingUpdate") is not None:
        return ordinal < start + _partition(stateful_set)
    return ordinal < start + int((stateful_set.get("status") or {}).get("currentReplicas") or 0)


def _partition(stateful_set: Object) -> int:
    rolling = (stateful_set["spec"].get("updateStrategy") or {}).get("rollingUpdate") or {}
    return int(rolling.get("partition") or 0)


def _claim_owner_steps(view: SetView, ordinal: int, pod: Object, *, is_condemned: bool) -> Iterator[OwnSetClaim]:
    for _, name in claim_names(view.stateful_set, ordinal):
        claim = view.claims.get(name)
        if claim is not None and not objects.is_being_deleted(claim):
            patch = claim_owners_patch(view.stateful_set, claim, pod, is_condemned=is_condemned)
            if patch is not None:
                yield OwnSetClaim(claim, patch)


def _update_steps(view: SetView, used: Revisions) -> Iterator[DeleteMember]:
    """Replace the pods of other revisions from the top, each when all above it are ready again."""
    if (view.stateful_set["spec"].get("updateStrategy") or {}).get("type") == "OnDelete":
        return
    desired = ordinals(view.stateful_set)
    for ordinal in reversed(desired[min(len(desired), _partition(view.stateful_set)) :]):
        pod = view.members.get(ordinal)
        if pod is None or objects.is_being_deleted(pod):
            return
        if revision_of(pod) != objects.name(used.update):
            yield DeleteMember(pod)
            return
        if not view.is_healthy(pod):
            return


# ---- status ----------------------------------------------------------------------------------------------------------


def _status(view: SetView, used: Revisions) -> dict[str, Any]:
    stateful_set, pods = view.stateful_set, list(view.members.values())
    staying = [pod for pod in pods if not objects.is_being_deleted(pod)]
    current, update = objects.name(used.current), objects.name(used.update)
    counts = {
        "replicas": len(pods),
        "readyReplicas": sum(map(is_ready, staying)),
        "availableReplicas": sum(map(view.is_healthy, staying)),
        "currentReplicas": _of_revision(staying, current),
        "updatedReplicas": _of_revision(staying, update),
    }
    desired = replicas(stateful_set)
    if all(counts[field] == desired for field in ("replicas", "readyReplicas", "updatedReplicas")):
        current, counts["currentReplicas"] = update, counts["updatedReplicas"]
    revisions = {"currentRevision": current, "updateRevision": update}
    return {**counts, **revisions, "collisionCount": collisions(stateful_set)}


def _of_revision(pods: Iterable[Object], name: str) -> int:
    return sum(revision_of(pod) == name for pod in pods)
