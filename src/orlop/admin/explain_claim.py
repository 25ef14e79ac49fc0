"""Explain what a PersistentVolumeClaim waits for: from objects alone, by the rules that the controllers follow. Pure.

The states are those of Kubernetes' PersistentVolume controller, in its order; deletion comes first, since a claim that
is being deleted waits for that above all. `explain_pending_claim` has those of a claim that names no volume yet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

from orlop.admin.claim_seen import ClaimSeen, pods_naming
from orlop.admin.explain_drives import with_its_drive
from orlop.admin.explain_pending_claim import explain_search
from orlop.admin.explanation import (
    IF_NOT_BOUND,
    IF_STILL_PROTECTED,
    ApiObject,
    Explanation,
    Finding,
    ago,
    is_unreadable,
    joined,
    lasting,
    unknown,
)
from orlop.admin.journal_orders import requests_of_name
from orlop.admin.past_events import PastEvent, events_about, failures
from orlop.admin.shell_commands import delete_command, describe_command, remove_command
from orlop.admin.waiting_pods import waiting_pods, with_waiting_pods
from orlop.binding import claim_state_rules as state
from orlop.binding.match_rules import mismatch
from orlop.binding.storage_protection_rules import node_of, uses_claim
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION, is_clone_unfinished, source_claim_name

BOUND: Final = "Bound"
LOST: Final = "Lost"
LOST_REASONS: Final = frozenset({"ClaimLost", "ClaimMisbound"})
"""Reasons of events that the PersistentVolume controller records once, when the phase changes."""
BEING_DELETED: Final = "Being deleted"
NOT_SHOWN: Final = frozenset({"Unused"})
"""Conditions that repeat what the explanation has anyway."""


def explain_claim(seen: ClaimSeen, now: datetime) -> Explanation:
    claim = seen.claim
    events = events_about(seen.events, objects.uid(claim))
    finding = with_its_drive(_finding(seen, now), seen.on_drive, state.volume_name(claim), now)
    # Failures of the time before a claim was bound are over.
    failed = () if finding.state == BOUND else failures(events)
    since = finding.since or _since(claim, finding, events)
    shown = BEING_DELETED if objects.is_being_deleted(claim) else state.phase(claim) or "Pending"
    sentences = [f"{shown}{lasting(since, now)}: {finding.sentence}", *_conditions(claim, now)]
    tried = tuple(event.sentence(now) for event in failed)
    if finding.state == "Unknown" and not failed:
        tried = tuple(event.sentence(now) for event in events[:1])
    fields = _fields(seen, finding, failed, since)
    return Explanation(_what(claim, now), " ".join(sentences), tried, finding.next, fields, finding.table)


def _since(claim: ApiObject, finding: Finding, events: Iterable[PastEvent]) -> str | None:
    """Return since when the claim has its state, if an object shows it: a claim does not record phase changes."""
    if finding.state == LOST:
        return next((event.last for event in events if event.reason in LOST_REASONS), None)
    is_pending = state.phase(claim) in {"", "Pending"}
    return objects.metadata(claim).get("creationTimestamp") if is_pending else None


def _what(claim: ApiObject, now: datetime) -> str:
    size, name = state.requested_size(claim), state.class_name(claim)
    modes = joined(sorted(state.access_modes(claim)))
    of_class = f"of the StorageClass {name}" if name else "without a StorageClass"
    # The binder writes spec.volumeName too: only a claim that is not bound by a controller asks for a volume by name.
    is_asked = state.volume_name(claim) and state.BOUND_BY_CONTROLLER not in objects.annotations(claim)
    by_name = f" by the name {state.volume_name(claim)}" if is_asked else ""
    created = ago(objects.metadata(claim).get("creationTimestamp"), now)
    was_created = f", created{created}," if created else ""
    return (
        f"The PersistentVolumeClaim {objects.name_of(claim)}{was_created} requests a volume{by_name} of "
        f"{size or 'an unknown size'} {of_class}{f', {modes}' if modes else ''}."
    )


def _fields(seen: ClaimSeen, finding: Finding, failed: Iterable[PastEvent], since: Any) -> Mapping[str, Any]:
    claim = seen.claim
    size = state.requested_size(claim)
    return {
        "namespace": objects.namespace(claim),
        "name": objects.name(claim),
        "state": finding.state,
        "phase": state.phase(claim) or None,
        "since": since,
        "storageClass": state.class_name(claim) or None,
        "requested": None if size is None else str(size),
        "persistentVolume": state.volume_name(claim) or None,
        "pods": [objects.name(pod) for pod in pods_naming(seen)],
        "selectedNode": state.selected_node(claim) or None,
        "provisioner": state.provisioner_of(claim) or None,
        "created": objects.metadata(claim).get("creationTimestamp"),
        "deleted": objects.metadata(claim).get("deletionTimestamp"),
        "failures": [event.fields() for event in failed],
        "unreadable": [str(each) for each in seen.unreadable],
        **finding.fields,
    }


def _conditions(claim: ApiObject, now: datetime) -> list[str]:
    """Return one sentence for each condition that holds, such as that of an expansion."""
    return [
        f"Its condition {each.get('type')} holds{_since_condition(each, now)}{_message(each)}."
        for each in objects.conditions(claim)
        if each.get("status") == "True" and each.get("type") not in NOT_SHOWN
    ]


def _since_condition(condition: ApiObject, now: datetime) -> str:
    since = ago(condition.get("lastTransitionTime"), now)
    return f" since{since}".removesuffix(" ago") if since else ""


def _message(condition: ApiObject) -> str:
    return f": {condition['message']}" if condition.get("message") else ""


def _finding(seen: ClaimSeen, now: datetime) -> Finding:
    claim = seen.claim
    if objects.is_being_deleted(claim):
        return _being_deleted(seen, now)
    is_volume_unknown = seen.volume is None and is_unreadable(seen.unreadable, PERSISTENT_VOLUME)
    if state.BIND_COMPLETED in objects.annotations(claim):
        return _was_bound(seen, now, is_volume_unknown=is_volume_unknown)
    if not state.volume_name(claim):
        return explain_search(seen, now)
    # A claim bound by hand, where no controller binds, lacks the mark of a completed bind.
    if state.phase(claim) == BOUND and (is_volume_unknown or _is_of(seen.volume, claim)):
        return _bound(seen, now)
    return _volume_unknown(seen) if is_volume_unknown else _names_volume(seen)


# ---- being deleted ---------------------------------------------------------------------------------------------------


def _being_deleted(seen: ClaimSeen, now: datetime) -> Finding:
    claim, since = seen.claim, objects.metadata(seen.claim).get("deletionTimestamp")
    finalizers = objects.finalizers(claim)
    if state.PVC_PROTECTION in finalizers:
        sentence, to_do = _protected(seen, now)
    elif CLONING_PROTECTION in finalizers:
        sentence, to_do = _cloned(seen)
    elif finalizers:
        sentence = f"the finalizer {finalizers[0]} keeps it."
        to_do = "The controller that added this finalizer removes it when its work is done: check that it runs."
    else:
        sentence, to_do = "no finalizer keeps it.", "Nothing to do: the API server removes it in a moment."
    # Nothing waits for these: the provisioner finishes them also when the claim is gone.
    requests = requests_of_name(seen.provisioner.journal, objects.name_of(claim))
    sentence = " ".join([sentence, *(each.sentence(now) for each in requests)])
    fields = {"finalizers": list(finalizers), "openRequests": [each.fields() for each in requests]}
    return Finding("BeingDeleted", sentence, to_do, since, fields)


def _protected(seen: ClaimSeen, now: datetime) -> tuple[str, str]:
    users = [pod for pod in seen.pods if uses_claim(pod, seen.claim)]
    if is_unreadable(seen.unreadable, POD):
        missing = unknown(seen.unreadable, POD)
        return (
            f"it is kept until no pod uses it ({state.PVC_PROTECTION}), but {missing}.",
            "Ask somebody who may list the pods of the namespace which of them use it.",
        )
    if users:
        pods = joined(f"{objects.name(pod)} on the node {node_of(pod)}{_since_when(pod, now)}" for pod in users)
        return f"it is kept while pods use it ({state.PVC_PROTECTION}): {pods}.", _end_of_pods(users)
    return (
        f"no pod uses it any more; its finalizer {state.PVC_PROTECTION} is removed in a moment.",
        IF_STILL_PROTECTED,
    )


def _since_when(pod: ApiObject, now: datetime) -> str:
    if not objects.is_being_deleted(pod):
        return ""
    return f", being deleted{lasting(objects.metadata(pod).get('deletionTimestamp'), now)}"


def _end_of_pods(users: list[ApiObject]) -> str:
    remaining = [pod for pod in users if not objects.is_being_deleted(pod)]
    if remaining:
        command = delete_command(POD, objects.namespace(remaining[0]), *map(objects.name, remaining))
        return f"Delete these pods, also those that have ended: {command}."
    command = describe_command(POD, objects.namespace(users[0]), objects.name(users[0]))
    return (
        "Nothing to do: kubelet ends these pods and unmounts their volumes. If this lasts, "
        f"{command} and the log of kubelet show why."
    )


def _cloned(seen: ClaimSeen) -> tuple[str, str]:
    name = objects.name(seen.claim)
    clones = [each for each in seen.claims if source_claim_name(each) == name and is_clone_unfinished(each)]
    kept = f"it is kept while volumes are cloned from it ({CLONING_PROTECTION})"
    if is_unreadable(seen.unreadable, PERSISTENT_VOLUME_CLAIM):
        return f"{kept}, but {unknown(seen.unreadable, PERSISTENT_VOLUME_CLAIM)}.", "Wait until they are bound."
    if not clones:
        return (
            f"{kept}, and no claim is cloned from it any more.",
            "The provisioner removes the finalizer: see its log.",
        )
    return (
        f"{kept}: {joined(map(objects.name, clones))}.",
        "Wait until these claims are bound, or delete them; `orlop explain pvc` shows what each waits for.",
    )


# ---- bound, or lost --------------------------------------------------------------------------------------------------


def _was_bound(seen: ClaimSeen, now: datetime, *, is_volume_unknown: bool) -> Finding:
    """Decide on a claim with the mark of a completed bind: its volume must exist and name it."""
    claim, volume = seen.claim, seen.volume
    name = state.volume_name(claim)
    if not name:
        return _lost(
            "it was bound, and names no volume any more (spec.volumeName was removed).",
            f"Set spec.volumeName again if you know it; otherwise create the claim again: {_delete(claim)}.",
        )
    if is_volume_unknown:
        return _bound(seen, now) if state.phase(claim) == BOUND else _volume_unknown(seen)
    if volume is None and state.provisioner_of(claim) == DRIVER_NAME:
        return _lost(
            f"its PersistentVolume {name} does not exist any more.",
            "`orlop adopt` makes it again, if its data are on a drive. Otherwise create the claim again: "
            f"{_delete(claim)}.",
        )
    if volume is None:
        return _lost(
            f"its PersistentVolume {name} does not exist any more.",
            "If the data still exist, create a PersistentVolume of this name with the same source and without "
            f"spec.claimRef: the claim is bound to it again. Otherwise create the claim again: {_delete(claim)}.",
        )
    reference = state.claim_reference(volume)
    if reference is None or _is_of(volume, claim):
        return _bound(seen, now)
    return _misbound(claim, volume, reference)


def _is_of(volume: ApiObject | None, claim: ApiObject) -> bool:
    """Return whether the volume is this claim's. A bind writes the uid, so an empty one is another's."""
    reference = {} if volume is None else state.claim_reference(volume) or {}
    return bool(objects.uid(claim)) and reference.get("uid") == objects.uid(claim)


def _misbound(claim: ApiObject, volume: ApiObject, reference: ApiObject) -> Finding:
    name = objects.name(volume)
    if state.refers_to({"spec": {"claimRef": {**reference, "uid": ""}}}, claim):
        command = remove_command(PERSISTENT_VOLUME, name, "/spec/claimRef")
        return _lost(
            f"its PersistentVolume {name} names a claim of this name with another uid, "
            f"{reference.get('uid') or 'an empty one'}: the claim or the volume was created again.",
            f"If the volume is this claim's, remove its claimRef: {command}. The claim is bound to it again.",
        )
    other = f"{reference.get('namespace')}/{reference.get('name')}"
    return _lost(
        f"its PersistentVolume {name} is bound to the claim {other}.",
        f"Two claims cannot have one volume: create this claim again, without spec.volumeName: {_delete(claim)}.",
    )


def _lost(sentence: str, to_do: str) -> Finding:
    return Finding(LOST, f"the claim has lost its volume: {sentence}", to_do)


def _bound(seen: ClaimSeen, now: datetime) -> Finding:
    name = state.volume_name(seen.claim)
    status = (seen.volume or {}).get("status") or {}
    if state.phase(seen.claim) != BOUND:
        sentence = f"the PersistentVolume {name} is its own, and the claim's status follows in a moment."
        return Finding("Binding", sentence, f"Nothing to do. {IF_NOT_BOUND}")
    if is_unreadable(seen.unreadable, POD):
        users = f"Which pods use it is unknown: {unknown(seen.unreadable, POD)}."
    else:
        pods = pods_naming(seen)
        users = f"Pods that use it: {joined(map(_where, pods))}." if pods else "No pod uses it."
    since = status.get("lastPhaseTransitionTime") if state.phase(seen.volume or {}) == BOUND else None
    sentence = f"it has the PersistentVolume {name}. {users}"
    finding = Finding(BOUND, sentence, "Nothing to do: it waits for nothing.", since)
    return with_waiting_pods(finding, waiting_pods(pods_naming(seen)), seen.pod_events, now)


def _where(pod: ApiObject) -> str:
    node = node_of(pod)
    return f"{objects.name(pod)} on the node {node}" if node else f"{objects.name(pod)}, which has no node yet"


# ---- a volume by name ------------------------------------------------------------------------------------------------


def _volume_unknown(seen: ClaimSeen) -> Finding:
    sentence = f"it names a volume, and {unknown(seen.unreadable, PERSISTENT_VOLUME)}."
    return Finding("Unknown", sentence, "Ask somebody who may read it, or read the last event of the claim.")


def _names_volume(seen: ClaimSeen) -> Finding:
    claim, volume, name = seen.claim, seen.volume, state.volume_name(seen.claim)
    if volume is None:
        return Finding(
            "NamedVolumeAbsent",
            f"the PersistentVolume {name}, which it names, does not exist. No volume is provisioned for a claim that "
            "names one.",
            f"Create that PersistentVolume, or create the claim again without spec.volumeName: {_delete(claim)}.",
        )
    reference = state.claim_reference(volume)
    if reference is not None and not state.refers_to(volume, claim):
        return _taken(claim, volume, reference)
    reason = mismatch(claim, volume) if reference is None else None
    if reason is not None:
        return Finding(
            "NamedVolumeMismatch",
            f"the PersistentVolume {name}, which it names, cannot be bound to it: {reason}.",
            "Change the PersistentVolume, or create the claim again so that both agree: " + _delete(claim) + ".",
            fields={"mismatch": reason},
        )
    sentence = f"the PersistentVolume {name}, which it names, is bound to it in a moment."
    return Finding("Binding", sentence, f"Nothing to do. {IF_NOT_BOUND}")


def _taken(claim: ApiObject, volume: ApiObject, reference: ApiObject) -> Finding:
    name, other = objects.name(volume), f"{reference.get('namespace')}/{reference.get('name')}"
    if state.refers_to({"spec": {"claimRef": {**reference, "uid": ""}}}, claim):
        command = remove_command(PERSISTENT_VOLUME, name, "/spec/claimRef/uid")
        sentence = f"the PersistentVolume {name}, which it names, belongs to a former claim of this name."
        to_do = f"To reuse that volume with its data, remove the uid of the former claim: {command}."
    else:
        sentence = f"the PersistentVolume {name}, which it names, is reserved for the claim {other}."
        to_do = f"Create the claim again with another volume, or without spec.volumeName: {_delete(claim)}."
    return Finding("NamedVolumeTaken", sentence, to_do, fields={"takenBy": other})


def _delete(claim: ApiObject) -> str:
    return delete_command(PERSISTENT_VOLUME_CLAIM, objects.namespace(claim), objects.name(claim))
