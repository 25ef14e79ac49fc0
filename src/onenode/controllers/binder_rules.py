"""Decide the next step for a claim, and for a PersistentVolume: bind, wait, lose, release, reclaim. Pure.

As Kubernetes' PersistentVolume controller decides it, one step at a time: the caller carries out one write, reads the
objects again and asks for the next step. The comments U1 to V8 name the rows of the table of states in the tests.

- A claim without `bind-completed` is unbound (U), whatever its phase says: it is bound to a volume that fits, or waits.
- A claim with it was bound (B): its volume must still be there and name it, or the claim is Lost. Lost is left again
  when the volume comes back without a claim or with this claim's uid.
- A volume (V) follows its claim: nobody's is Available, its claim's is Bound, and Released when the claim is gone.

Objects come from caches, which may be behind. Before a step that cannot be undone (Lost, Released), the rules ask for
the other object to be read from the API server.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onenode.controllers import bind_write_rules as writes
from onenode.controllers import binding_notice_rules as notices
from onenode.controllers.bind_write_rules import AVAILABLE, BOUND, FAILED, LOST, PENDING, RELEASED, Changed
from onenode.controllers.binding_notice_rules import Notice
from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules, match_rules
from orlop.kube import objects

Object = Mapping[str, Any]
RECLAIMED_BY_OTHERS: Final = "its provisioner deletes it"


# ---- facts and steps -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BindingClaimFacts:
    """A claim and what decides about it. `volumes` are all PersistentVolumes, `classes` all StorageClasses."""

    claim: Object
    volume: Object | None = None
    """The PersistentVolume that the claim names."""
    is_volume_read: bool = False
    """It was read from the API server, not from the cache."""
    volumes: Sequence[Object] = ()
    classes: Sequence[Object] = ()
    waiting_pods: Sequence[str] = ()
    """Names of pods without a node that use the claim."""

    @property
    def storage_class(self) -> Object | None:
        name = state.class_name(self.claim)
        return next((one for one in self.classes if objects.name(one) == name), None) if name else None


@dataclass(frozen=True, slots=True)
class BindingVolumeFacts:
    """A PersistentVolume and the claim that its `claimRef` names, whatever that claim's uid is."""

    volume: Object
    claim: Object | None = None
    is_claim_read: bool = False
    """It was read from the API server, not from the cache."""
    users: Sequence[str] = ()
    """`namespace/name` of the pods that use the claim and have not ended."""


@dataclass(frozen=True, slots=True)
class ReplaceVolume:
    body: Changed


@dataclass(frozen=True, slots=True)
class ReplaceVolumeStatus:
    body: Changed
    notices: tuple[Notice, ...] = ()
    """Recorded when the write has succeeded."""


@dataclass(frozen=True, slots=True)
class ReplaceClaim:
    body: Changed
    is_for_provisioner: bool = False
    """A failure of this write is recorded on the claim."""


@dataclass(frozen=True, slots=True)
class ReplaceClaimStatus:
    body: Changed
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class ReadVolume:
    """Read the claim's volume from the API server, and decide again."""


@dataclass(frozen=True, slots=True)
class ReadClaim:
    """Read the volume's claim from the API server, and decide again."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing to do until something changes. `notices` tell people what is waited for, as long as that lasts."""

    reason: str
    notices: tuple[Notice, ...] = ()


@dataclass(frozen=True, slots=True)
class RefuseBinding:
    """The objects contradict each other: an error, retried."""

    why: str


WriteObject: TypeAlias = ReplaceVolume | ReplaceVolumeStatus | ReplaceClaim | ReplaceClaimStatus
ClaimStep: TypeAlias = WriteObject | ReadVolume | Wait | RefuseBinding
VolumeStep: TypeAlias = ReplaceVolume | ReplaceVolumeStatus | ReadClaim | Wait


# ---- claims ----------------------------------------------------------------------------------------------------------


def next_claim_step(facts: BindingClaimFacts) -> ClaimStep:
    if state.BIND_COMPLETED in objects.annotations(facts.claim):
        return _keep_bound(facts)
    return _search(facts) if names_no_volume(facts.claim) else _bind_named(facts)


def names_no_volume(claim: Object) -> bool:
    """Return whether the claim takes any volume that fits: it was never bound, and asks for none by name."""
    return state.BIND_COMPLETED not in objects.annotations(claim) and not state.volume_name(claim)


def would_bind(claim: Object, volume: Object, classes: Sequence[Object]) -> bool:
    """Return whether a claim that names no volume could be bound to this one: a change of it is news for the claim."""
    is_late = class_rules.is_late_binding(BindingClaimFacts(claim, classes=classes).storage_class)
    return match_rules.volume_for_binder(claim, (volume,), is_late_binding=is_late) is not None


def _search(facts: BindingClaimFacts) -> ClaimStep:
    claim, storage_class = facts.claim, facts.storage_class
    is_late = class_rules.is_late_binding(storage_class)
    volume = match_rules.volume_for_binder(claim, facts.volumes, is_late_binding=is_late)
    if volume is not None:  # U1
        return _bind(claim, volume)
    if (name := class_rules.class_to_assign(claim, facts.classes)) is not None:  # U2
        return ReplaceClaim(writes.claim_of_class(claim, name))
    # The presence of the key counts, as for Kubernetes; its value is the provisioner's affair.
    if is_late and state.SELECTED_NODE not in objects.annotations(claim):  # U3
        return _pending(claim, notices.waiting_for_pod(facts.waiting_pods))
    if (class_name := state.class_name(claim)) != "":  # U4
        return _provision(claim, storage_class, class_name)
    return _pending(claim, notices.NOTHING_AVAILABLE)  # U5


def _provision(claim: Object, storage_class: Object | None, class_name: str) -> ClaimStep:
    """Mark the claim for its provisioner. The claim's status is left alone, as in Kubernetes."""
    if storage_class is None:
        return Wait("its class does not exist", (notices.class_not_found(class_name),))
    provisioner = class_rules.provisioner(storage_class)
    if not class_rules.can_provision(storage_class):
        return Wait("its class provisions nothing", (notices.no_plugin(provisioner),))
    if (body := writes.claim_for_provisioner(claim, provisioner)) is not None:
        return ReplaceClaim(body, is_for_provisioner=True)
    return Wait("its provisioner has not made a volume yet", (notices.external_provisioning(provisioner),))


def _bind_named(facts: BindingClaimFacts) -> ClaimStep:
    claim, volume = facts.claim, facts.volume
    if volume is None:  # U6: never provisioned, since the user asked for that very volume
        return _pending(claim)
    if state.claim_reference(volume) is None:  # U7
        why_not = match_rules.mismatch(claim, volume)
        if why_not is not None:
            return _pending(claim, notices.cannot_bind(objects.name(volume), why_not))
        return _bind(claim, volume)
    if state.refers_to(volume, claim):  # U8: both name each other, and nothing else is compared
        return _bind(claim, volume)
    if state.BOUND_BY_CONTROLLER in objects.annotations(claim):  # U9
        # Only a claim that had been bound carries the key; somebody removed bind-completed from it.
        return RefuseBinding(notices.invalid_binding(claim, volume))
    return _pending(claim, notices.taken(objects.name(volume)))


def _keep_bound(facts: BindingClaimFacts) -> ClaimStep:
    claim, volume = facts.claim, facts.volume
    if not state.volume_name(claim):  # B1
        return _lose(claim, notices.LOST_REFERENCE)
    if volume is not None and _is_nobodys_or_of(volume, claim):  # B2, B3
        return _bind(claim, volume)
    # Lost clears the status, and its event says that data are lost: a cache that is behind must not cause it.
    if not facts.is_volume_read and state.phase(claim) != LOST:
        return ReadVolume()
    return _lose(claim, notices.LOST_VOLUME if volume is None else notices.MISBOUND)  # B1, B4


def _is_nobodys_or_of(volume: Object, claim: Object) -> bool:
    """Return whether a claim that was bound keeps the volume: an empty uid is another's, since a bind writes it."""
    reference = state.claim_reference(volume)
    return reference is None or reference.get("uid") == objects.uid(claim)


def _bind(claim: Object, volume: Object) -> ClaimStep:
    """Return the first of the four writes that is not done yet."""
    if state.phase(claim) != BOUND and state.capacity(volume) is None:
        return RefuseBinding(notices.without_capacity(volume))
    if (body := writes.bound_volume(volume, claim)) is not None:
        return ReplaceVolume(body)
    if (body := writes.volume_in_phase(volume, BOUND)) is not None:
        return ReplaceVolumeStatus(body)
    if (body := writes.bound_claim(claim, volume)) is not None:
        return ReplaceClaim(body)
    if (body := writes.bound_claim_status(claim, volume)) is not None:
        return ReplaceClaimStatus(body)
    return Wait("it is bound")


def _pending(claim: Object, *notice: Notice) -> ClaimStep:
    body = writes.unbound_claim_status(claim, PENDING)
    return Wait("no volume fits yet", notice) if body is None else ReplaceClaimStatus(body)


def _lose(claim: Object, notice: Notice) -> ClaimStep:
    body = writes.unbound_claim_status(claim, LOST)
    if body is None:
        return Wait("its volume is lost")
    # Once, on the change: a claim stays Lost for long.
    return ReplaceClaimStatus(body, (notice,) if state.phase(claim) != LOST else ())


# ---- volumes ---------------------------------------------------------------------------------------------------------


def next_volume_step(facts: BindingVolumeFacts) -> VolumeStep:
    """V0, the translation of in-tree volumes to CSI drivers, has no step: there are no in-tree drivers here."""
    volume, claim = facts.volume, facts.claim
    uid = (state.claim_reference(volume) or {}).get("uid") or ""
    if not uid:  # V1
        return _in_phase(volume, AVAILABLE, "no claim has it")
    if not facts.is_claim_read and _may_be_behind(volume, claim, uid):
        return ReadClaim()
    if claim is None or objects.uid(claim) != uid:  # V4
        return _release(facts)
    return _follow(facts, claim)


def _follow(facts: BindingVolumeFacts, claim: Object) -> VolumeStep:
    """Return the step of a volume whose claim exists."""
    volume = facts.volume
    if not state.volume_name(claim):  # V5
        return _await_claim(volume, claim)
    if state.volume_name(claim) == objects.name(volume):  # V6: also from Released, if that was a mistake
        return _in_phase(volume, BOUND, "its claim has it")
    # The claim is bound to another volume, and stays so.
    if state.PROVISIONED_BY in objects.annotations(volume) and _reclaim_policy(volume) == class_rules.DELETE:  # V7
        return _release(facts)
    return ReplaceVolume(writes.unbound_volume(volume))  # V8; Available follows by V1


def _may_be_behind(volume: Object, claim: Object | None, uid: str) -> bool:
    """Return whether the claim may be there, or be the right one, and only the cache does not show it yet.

    A Released volume is deleted by its provisioner. So the API server is asked before the first Released (V2), and
    whenever a claim of this name has another uid (V3).
    """
    if claim is None:
        return state.phase(volume) not in {RELEASED, FAILED}
    return objects.uid(claim) != uid


def _await_claim(volume: Object, claim: Object) -> VolumeStep:
    """Leave the bind to the claim, which every change of its volume wakes."""
    if state.volume_mode(volume) != state.volume_mode(claim):
        # The claim's search passes over this volume without a word: here is the only place to say why.
        return Wait("its mode is not the claim's", notices.incompatible_modes(volume, claim))
    return Wait("its claim does not name it yet")


def _in_phase(volume: Object, phase: str, reason: str) -> VolumeStep:
    body = writes.volume_in_phase(volume, phase)
    return Wait(reason) if body is None else ReplaceVolumeStatus(body)


def _release(facts: BindingVolumeFacts) -> VolumeStep:
    """Set the phase Released; a failure to reclaim stays visible. Then reclaim."""
    if state.phase(facts.volume) not in {RELEASED, FAILED}:
        return _in_phase(facts.volume, RELEASED, "")
    return _reclaim(facts)


def _reclaim(facts: BindingVolumeFacts) -> VolumeStep:
    volume = facts.volume
    if objects.annotations(volume).get(state.MIGRATED_TO):
        return Wait(RECLAIMED_BY_OTHERS)
    match _reclaim_policy(volume):
        case "Retain":
            return Wait("it is retained")
        case "Delete":
            return _delete(volume)
        case "Recycle" if facts.users:
            return Wait("pods use it", (notices.used_by(facts.users),))
        case "Recycle":
            return _fail(volume, notices.NO_RECYCLER)
        case _:
            return _fail(volume, notices.UNKNOWN_POLICY)


def _delete(volume: Object) -> VolumeStep:
    """Leave the volume to its provisioner; one that nobody provisioned has nobody who could delete it."""
    provisioner = objects.annotations(volume).get(state.PROVISIONED_BY) or ""
    if provisioner.startswith(class_rules.IN_TREE_PREFIX):
        return _fail(volume, notices.no_deleter_named(provisioner))
    if provisioner or (volume.get("spec") or {}).get("csi") is not None:
        return Wait(RECLAIMED_BY_OTHERS)
    return _fail(volume, notices.no_deleter(objects.name(volume)))


def _fail(volume: Object, notice: Notice) -> VolumeStep:
    body = writes.volume_in_phase(volume, FAILED, notice.text)
    return Wait("it could not be reclaimed") if body is None else ReplaceVolumeStatus(body, (notice,))


def _reclaim_policy(volume: Object) -> str:
    return (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") or "Retain"


# ---- pods ------------------------------------------------------------------------------------------------------------


def waiting_pods(pods: Sequence[Object]) -> tuple[str, ...]:
    """Return the names of those that have no node yet and are to run."""
    return tuple(sorted(objects.name(pod) for pod in pods if not _has_ended(pod) and not _node(pod)))


def using_pods(pods: Sequence[Object]) -> tuple[str, ...]:
    """Return `namespace/name` of those that have not ended."""
    return tuple(sorted(str(objects.name_of(pod)) for pod in pods if not _has_ended(pod)))


def _node(pod: Object) -> str:
    return (pod.get("spec") or {}).get("nodeName") or ""


def _has_ended(pod: Object) -> bool:
    """Return whether nothing of the pod runs any more: it finished, or it is being deleted with all containers down."""
    if state.phase(pod) in {"Succeeded", "Failed"}:
        return True
    containers = (pod.get("status") or {}).get("containerStatuses") or ()
    return objects.is_being_deleted(pod) and all(
        {"terminated", "waiting"} & (one.get("state") or {}).keys() for one in containers
    )
