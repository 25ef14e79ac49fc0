"""Explain what a PersistentVolume waits for: from the objects alone, by the rules that the controllers follow. Pure.

A PersistentVolume follows the claim that its `claimRef` names: it is Available without a claim, Bound with one, and
Released when the claim with that uid was deleted. `explain_released_volume` explains the states after that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from orlop.admin.explain_drives import with_its_drive
from orlop.admin.explain_released_volume import DELETION_FAILS, FAILED, RETAIN, deletion_outlook, explain_reclaim
from orlop.admin.explain_static_volume import explain_static_volume, with_its_disk
from orlop.admin.explanation import (
    IF_NOT_BOUND,
    IF_STILL_PROTECTED,
    ApiObject,
    Explanation,
    Finding,
    is_unreadable,
    joined,
    lasting,
    unknown,
)
from orlop.admin.past_events import PastEvent, events_about, failures
from orlop.admin.shell_commands import delete_command, explain_command, policy_command, remove_command
from orlop.admin.volume_seen import VolumeSeen, attachments_of, claim_named, driver_of
from orlop.admin.waiting_pods import waiting_pods, with_waiting_pods
from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.match_rules import AVAILABLE, mismatch, mismatches
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.binding.storage_protection_rules import names_claim, node_of
from orlop.kube import objects
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.provisioner.volume_deletion_rules import BOUND, KEPT, RELEASED, csi_source
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER

MOST_ROWS: Final = 10
BEING_DELETED: Final = "Being deleted"


def explain_volume(seen: VolumeSeen, now: datetime) -> Explanation:
    volume = seen.volume
    events = events_about(seen.events, objects.uid(volume))
    finding = explain_static_volume(seen) or _finding(seen, now)
    finding = with_its_disk(with_its_drive(finding, seen.on_drive, objects.name(volume), now), seen)
    failed = () if finding.state in {BOUND, AVAILABLE} else failures(events)
    since = finding.since or (volume.get("status") or {}).get("lastPhaseTransitionTime")
    shown = BEING_DELETED if objects.is_being_deleted(volume) else state.phase(volume) or "Pending"
    sentence = f"{shown}{lasting(since, now)}: {finding.sentence}"
    tried = tuple(event.sentence(now) for event in failed)
    fields = _fields(seen, finding, failed, since)
    return Explanation(_what(volume), sentence, tried, finding.next, fields, finding.table)


def _what(volume: ApiObject) -> str:
    size, name, driver = state.capacity(volume), state.class_name(volume), driver_of(volume)
    of_class = f"of the StorageClass {name}" if name else "without a StorageClass"
    # A local volume has no driver: only the annotation of its provisioner shows what made it.
    by_driver = f", {'of the driver' if csi_source(volume) else 'made by'} {driver}" if driver else ""
    return (
        f"The PersistentVolume {objects.name(volume)} has {size or 'an unknown size'}, {of_class}{by_driver}, with the "
        f"reclaim policy {_policy(volume)}."
    )


def _policy(volume: ApiObject) -> str:
    return (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") or RETAIN


def _fields(seen: VolumeSeen, finding: Finding, failed: Iterable[PastEvent], since: Any) -> Mapping[str, Any]:
    volume = seen.volume
    size = state.capacity(volume)
    return {
        "name": objects.name(volume),
        "state": finding.state,
        "phase": state.phase(volume) or None,
        "since": since,
        "message": (volume.get("status") or {}).get("message"),
        "storageClass": state.class_name(volume) or None,
        "capacity": None if size is None else str(size),
        "reclaimPolicy": _policy(volume),
        "driver": driver_of(volume) or None,
        "claim": claim_named(volume),
        "claimUid": (state.claim_reference(volume) or {}).get("uid"),
        "attachments": [objects.name(each) for each in attachments_of(seen)],
        "created": objects.metadata(volume).get("creationTimestamp"),
        "deleted": objects.metadata(volume).get("deletionTimestamp"),
        "failures": [event.fields() for event in failed],
        "unreadable": [str(each) for each in seen.unreadable],
        **finding.fields,
    }


def _finding(seen: VolumeSeen, now: datetime) -> Finding:
    volume, claim = seen.volume, seen.claim
    uid = (state.claim_reference(volume) or {}).get("uid") or ""
    if objects.is_being_deleted(volume):
        return _being_deleted(seen, now)
    if not uid:
        return _available(seen)
    if claim is None and is_unreadable(seen.unreadable, PERSISTENT_VOLUME_CLAIM):
        return _claim_unknown(seen, now)
    if claim is None or objects.uid(claim) != uid:
        return explain_reclaim(seen, now)
    return _of_claim(seen, claim, now)


# ---- being deleted ---------------------------------------------------------------------------------------------------


def _being_deleted(seen: VolumeSeen, now: datetime) -> Finding:
    volume = seen.volume
    finalizers, since = objects.finalizers(volume), objects.metadata(volume).get("deletionTimestamp")
    attacher = finalizer_of(driver_of(volume)) if driver_of(volume) else ""
    code, fields = "BeingDeleted", {"finalizers": list(finalizers)}
    if state.PV_PROTECTION in finalizers:
        sentence, to_do = _protected(seen)
    elif attacher in finalizers:
        sentence, to_do = _attached(seen, attacher)
    elif FINALIZER in finalizers:
        finding = _kept_by_provisioner(seen, now)
        sentence, to_do = finding.sentence, finding.next
        code, fields = DELETION_FAILS if finding.state == DELETION_FAILS else code, {**fields, **finding.fields}
    elif finalizers:
        sentence = f"the finalizer {finalizers[0]} keeps it."
        to_do = "The controller that added this finalizer removes it when its work is done: check that it runs."
    else:
        sentence, to_do = "no finalizer keeps it.", "Nothing to do: the API server removes it in a moment."
    return Finding(code, sentence, to_do, since, fields)


def _protected(seen: VolumeSeen) -> tuple[str, str]:
    if state.phase(seen.volume) == BOUND:
        name = claim_named(seen.volume) or "unknown"
        reference = state.claim_reference(seen.volume) or {}
        command = delete_command(PERSISTENT_VOLUME_CLAIM, reference.get("namespace"), str(reference.get("name") or ""))
        sentence = f"it is kept while its claim {name} exists ({state.PV_PROTECTION}); pods can still use it."
        to_do = (
            f"Delete the claim if its data is not needed any more: {command}. A deletion cannot be cancelled: to keep "
            "the data, copy them first, or set the reclaim policy to Retain."
        )
        return sentence, to_do
    return (
        f"no claim has it any more; its finalizer {state.PV_PROTECTION} is removed in a moment.",
        IF_STILL_PROTECTED,
    )


def _attached(seen: VolumeSeen, attacher: str) -> tuple[str, str]:
    attachments = attachments_of(seen)
    if attachments:
        listed = joined(f"{objects.name(each)} on the node {node_of(each)}" for each in attachments)
        command = explain_command("va", objects.name(attachments[0]))
        return (
            f"it is kept while it is attached ({attacher}), by the VolumeAttachments {listed}.",
            f"Delete the pods that use it; {command} shows what the detachment waits for.",
        )
    return (
        f"no VolumeAttachment that may be read names it any more, and the attacher removes its finalizer {attacher}.",
        "If this lasts longer than a minute, the attacher of the driver does not run.",
    )


def _kept_by_provisioner(seen: VolumeSeen, now: datetime) -> Finding:
    phase, outlook = state.phase(seen.volume), deletion_outlook(seen, now)
    if _policy(seen.volume) in KEPT:
        sentence = f"its policy is {_policy(seen.volume)}, so its provisioner removes the finalizer {FINALIZER}."
        return Finding("BeingDeleted", f"{sentence} {outlook.sentences()}", outlook.to_do())
    if phase in {RELEASED, FAILED}:
        return explain_reclaim(seen, now)
    command = policy_command(PERSISTENT_VOLUME, objects.name(seen.volume), RETAIN)
    return Finding(
        "BeingDeleted",
        f"its finalizer {FINALIZER} leaves when its volume is deleted, and a provisioner deletes only volumes that are "
        f"Released; this one is {phase or 'Pending'}.",
        f"To delete the object and keep the volume's data, set the policy Retain: {command}. The provisioner then "
        "removes its finalizer.",
    )


# ---- without a claim -------------------------------------------------------------------------------------------------


def _available(seen: VolumeSeen) -> Finding:
    volume = seen.volume
    fields, nodes = _nodes(seen)
    reserved = claim_named(volume)
    owner = f"it is reserved for the claim {reserved}, which is not bound to it yet" if reserved else "no claim has it"
    if state.phase(volume) != AVAILABLE:
        sentence = f"{owner}; it becomes Available in a moment."
        return Finding("BecomesAvailable", sentence, f"Nothing to do. {IF_NOT_BOUND}", fields=fields)
    if is_unreadable(seen.unreadable, PERSISTENT_VOLUME_CLAIM):
        missing = unknown(seen.unreadable, PERSISTENT_VOLUME_CLAIM)
        return Finding(AVAILABLE, f"{owner}. Which claims wait is unknown: {missing}. {nodes}", _wait(), None, fields)
    return _with_claims(seen, Finding(AVAILABLE, owner, _wait(), None, fields), nodes)


def _wait() -> str:
    return "Create a claim that it fits, or wait for one."


def _with_claims(seen: VolumeSeen, finding: Finding, nodes: str) -> Finding:
    waiting = [claim for claim in seen.claims if not state.is_bound(claim) and not objects.is_being_deleted(claim)]
    reasons = {objects.name_of(claim): _why_not(claim, seen) for claim in waiting}
    fitting = sorted(str(name) for name, why in reasons.items() if not why)
    nearest = sorted(waiting, key=lambda claim: (len(reasons[objects.name_of(claim)]), str(objects.name_of(claim))))
    table = tuple(_row(claim, reasons[objects.name_of(claim)], seen) for claim in nearest[:MOST_ROWS])
    if not waiting:
        sentence, to_do = "No claim waits for a volume.", finding.next
    elif fitting:
        sentence = f"It fits {len(fitting)} of {len(waiting)} waiting claims: {joined(fitting)}."
        to_do = "The smallest volume that fits is bound: `orlop explain pvc` shows what each of these claims waits for."
    else:
        sentence, to_do = f"It fits none of {len(waiting)} waiting claims.", finding.next
    fields = {**finding.fields, "fits": fitting, "claims": [dict(row) for row in table]}
    whole_sentence = f"{finding.sentence}. {sentence} {nodes}".rstrip()
    return replace(finding, sentence=whole_sentence, next=to_do, fields=fields, table=table)


def _why_not(claim: ApiObject, seen: VolumeSeen) -> list[str]:
    volume, name = seen.volume, state.volume_name(claim)
    if name and name != objects.name(volume):
        return [f"it asks for the volume {name}"]
    if name and state.claim_reference(volume) is None:
        return [reason] if (reason := mismatch(claim, volume)) is not None else []
    return mismatches(claim, volume)


def _row(claim: ApiObject, reasons: list[str], seen: VolumeSeen) -> Mapping[str, str]:
    size, name = state.requested_size(claim), state.class_name(claim)
    storage_class = next((each for each in seen.classes if objects.name(each) == name), None)
    is_late = class_rules.is_late_binding(storage_class) and not state.volume_name(claim)
    fits = "fits, once a pod uses the claim" if is_late else "fits"
    if is_unreadable(seen.unreadable, STORAGE_CLASS) and name:
        fits = "fits; whether its class waits for a pod is unknown"
    return {
        "claim": str(objects.name_of(claim)),
        "requested": "" if size is None else str(size),
        "storageClass": name,
        "accessModes": ", ".join(sorted(state.access_modes(claim))),
        "why": reasons[0] if reasons else fits,
    }


def _nodes(seen: VolumeSeen) -> tuple[Mapping[str, Any], str]:
    """Return on which nodes the volume can be used, for programs and for people."""
    affinity = ((seen.volume.get("spec") or {}).get("nodeAffinity") or {}).get("required")
    if affinity is None:
        return {"nodes": None}, ""
    if is_unreadable(seen.unreadable, NODE):
        return {"nodes": None}, f"On which nodes it can be used is unknown: {unknown(seen.unreadable, NODE)}."
    allowed = sorted(objects.name(node) for node in seen.nodes if volume_allows_node(seen.volume, objects.labels(node)))
    if not allowed:
        return {"nodes": []}, "Its node affinity allows no node that exists: no pod that uses it can run."
    return {"nodes": allowed}, f"It can be used on {joined(allowed)}."


# ---- with a claim ----------------------------------------------------------------------------------------------------


def _claim_unknown(seen: VolumeSeen, now: datetime) -> Finding:
    if state.phase(seen.volume) in {RELEASED, FAILED}:
        return explain_reclaim(seen, now)
    fields, nodes = _nodes(seen)
    missing = unknown(seen.unreadable, PERSISTENT_VOLUME_CLAIM)
    code = BOUND if state.phase(seen.volume) == BOUND else "Unknown"
    sentence = f"it is reserved for the claim {claim_named(seen.volume)}: {missing}. {nodes}".rstrip()
    return Finding(code, sentence, "Ask somebody who may read the claim what it waits for.", None, fields)


def _of_claim(seen: VolumeSeen, claim: ApiObject, now: datetime) -> Finding:
    volume, name = seen.volume, claim_named(seen.volume)
    if state.volume_name(claim) == objects.name(volume):
        return _bound(seen, claim, now)
    if state.volume_name(claim):
        return _surplus(volume, claim)
    if state.volume_mode(volume) != state.volume_mode(claim):
        command = remove_command(PERSISTENT_VOLUME, objects.name(volume), "/spec/claimRef")
        sentence = (
            f"it is reserved for the claim {name}, and cannot be bound to it: its volumeMode is "
            f"{state.volume_mode(volume)}, and the claim's {state.volume_mode(claim)}."
        )
        return Finding("ModeMismatch", sentence, f"Create the claim again, or free the volume: {command}.")
    sentence = f"it is reserved for the claim {name}, and is bound to it in a moment."
    return Finding("Binding", sentence, f"Nothing to do. {IF_NOT_BOUND}")


def _surplus(volume: ApiObject, claim: ApiObject) -> Finding:
    other = f"its claim {objects.name_of(claim)} is bound to another volume, {state.volume_name(claim)}"
    if state.PROVISIONED_BY in objects.annotations(volume) and _policy(volume) == class_rules.DELETE:
        sentence = f"{other}; this one is released, and deleted with its data."
        command = policy_command(PERSISTENT_VOLUME, objects.name(volume), RETAIN)
        to_do = f"To keep its data, set the policy Retain: {command}."
    else:
        sentence, to_do = f"{other}; this one becomes Available.", f"Nothing to do. {IF_NOT_BOUND}"
    return Finding("ClaimBoundElsewhere", sentence, to_do)


def _bound(seen: VolumeSeen, claim: ApiObject, now: datetime) -> Finding:
    fields, nodes = _nodes(seen)
    if state.phase(seen.volume) != BOUND:
        sentence = f"its claim {objects.name_of(claim)} has it, and its status follows in a moment."
        return Finding("Binding", sentence, f"Nothing to do. {IF_NOT_BOUND}", fields=fields)
    pods = sorted((pod for pod in seen.pods if names_claim(pod, claim)), key=objects.name)
    if is_unreadable(seen.unreadable, POD):
        users = f"Which pods use it is unknown: {unknown(seen.unreadable, POD)}."
    else:
        listed = joined(f"{objects.name(pod)}{f' on {node_of(pod)}' if node_of(pod) else ''}" for pod in pods)
        users = f"Pods that use it: {listed}." if pods else "No pod uses it."
    sentence = f"the claim {objects.name_of(claim)} has it. {users} {nodes}".rstrip()
    fields = {**fields, "pods": [objects.name(pod) for pod in pods]}
    finding = Finding(BOUND, sentence, "Nothing to do: it waits for nothing.", None, fields)
    return with_waiting_pods(finding, waiting_pods(pods), seen.pod_events, now)
