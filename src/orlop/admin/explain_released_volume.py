"""Explain what a PersistentVolume waits for after its claim was deleted, by its reclaim policy. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from orlop.admin.explanation import ApiObject, Finding, is_unreadable, joined, unknown
from orlop.admin.provisioner_outlook import ProvisionerOutlook
from orlop.admin.shell_commands import (
    bare_command,
    clean_command,
    delete_command,
    explain_command,
    policy_command,
    remove_command,
)
from orlop.admin.volume_seen import VolumeSeen, attachments_of, claim_named, driver_of, is_on_drive
from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import DELETE, IN_TREE_PREFIX
from orlop.binding.storage_protection_rules import node_of
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.sidecars.provisioner.volume_deletion_rules import (
    RELEASED,
    DeleteObject,
    DeleteVolume,
    DeletionFacts,
    NoVolumeStep,
    PatchFinalizers,
    RefuseDeletion,
    WaitForCalls,
    WaitForDetach,
    csi_source,
    next_volume_step,
)

FAILED: Final = "Failed"
RECYCLE: Final = "Recycle"
RETAIN: Final = "Retain"
DELETION_FAILS: Final = "DeletionFails"
VOLUME_FAILED_DELETE: Final = "VolumeFailedDelete"
"""The reason of a provisioner's events about its failures."""
NOT_WIPED: Final = "The data stay on it, and the next claim can read them: erase them first if they are secret."


def explain_reclaim(seen: VolumeSeen, now: datetime) -> Finding:
    volume, gone = seen.volume, _gone(seen)
    policy = (volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") or RETAIN
    phase = state.phase(volume)
    if phase not in {RELEASED, FAILED}:
        to_do = "Nothing to do; after a minute, check that kube-controller-manager runs."
        return Finding("BecomesReleased", f"{gone}; it becomes Released in a moment.", to_do)
    if policy == DELETE:
        return _deleted(seen, gone, now)
    if policy == RECYCLE:
        return _recycled(seen, gone)
    return _retained(volume, gone)


def _gone(seen: VolumeSeen) -> str:
    name, claim = claim_named(seen.volume), seen.claim
    if claim is None:
        return f"its claim {name} is gone"
    uid = (state.claim_reference(seen.volume) or {}).get("uid")
    return (
        f"its claim {name} is gone: the claim of this name that exists now was created later (its uid is "
        f"{objects.uid(claim)}, and that of the volume's claim {uid})"
    )


def _retained(volume: ApiObject, gone: str) -> Finding:
    name = objects.name(volume)
    for_all = remove_command(PERSISTENT_VOLUME, name, "/spec/claimRef")
    for_the_name = remove_command(PERSISTENT_VOLUME, name, "/spec/claimRef/uid")
    delete = delete_command(PERSISTENT_VOLUME, None, name)
    with_data = f" To delete it with its data: {clean_command(name)}." if is_on_drive(volume) else ""
    return Finding(
        RELEASED,
        f"{gone}, and its policy Retain keeps it until an admin decides.",
        f"To offer it to any claim: {for_all}. To offer it to a claim of the same name alone: {for_the_name}. "
        f"{NOT_WIPED}{with_data} To remove the object, without the storage behind it: {delete}.",
        fields={
            "commands": {
                "offerToAll": bare_command(for_all),
                "offerToTheName": bare_command(for_the_name),
                "delete": bare_command(delete),
            }
        },
    )


def _recycled(seen: VolumeSeen, gone: str) -> Finding:
    name, message = objects.name(seen.volume), _message(seen.volume)
    retain = policy_command(PERSISTENT_VOLUME, name, RETAIN)
    sentence = f"{gone}, and its policy Recycle works for hostPath and NFS alone{message}."
    return Finding("CannotBeRecycled", sentence, f"Choose another policy, such as Retain: {retain}.")


def _message(volume: ApiObject) -> str:
    text = (volume.get("status") or {}).get("message")
    return f" ({text})" if text else ""


# ---- policy Delete ---------------------------------------------------------------------------------------------------


def _deleted(seen: VolumeSeen, gone: str, now: datetime) -> Finding:
    volume, driver = seen.volume, driver_of(seen.volume)
    provisioned_by = objects.annotations(volume).get(state.PROVISIONED_BY) or ""
    if not driver or (provisioned_by.startswith(IN_TREE_PREFIX) and not csi_source(volume)):
        return _nobody_deletes(volume, gone)
    outlook = deletion_outlook(seen, now)
    if not csi_source(volume):
        sentence = f"{gone}, and {driver}, which provisioned it, has to delete it."
        return Finding("WaitsForDeletion", sentence, f"If this lasts, check that {driver} runs, and read its log.")
    fields = {"provisioning": outlook.fields()}
    match next_volume_step(DeletionFacts(volume, driver, attached_to=_attached_to(seen))):
        case RefuseDeletion(reason):
            to_do = f"Correct spec.csi of the volume by creating the object again. {_by_hand(volume)}"
            return Finding("DeletionRefused", f"{gone}, and {reason}.", to_do, fields=fields)
        case WaitForDetach():
            return _attached(seen, gone, fields)
        case NoVolumeStep(reason):
            sentence = f"{gone}, and its provisioner does nothing: {reason}."
            return Finding("NotDeleted", f"{sentence}{_message(volume)}", _by_hand(volume), fields=fields)
        case DeleteVolume() | DeleteObject() | PatchFinalizers() | WaitForCalls():
            return _by_provisioner(seen, gone, outlook)


def _by_provisioner(seen: VolumeSeen, gone: str, outlook: ProvisionerOutlook) -> Finding:
    provisioner, fields = f"the provisioner of {driver_of(seen.volume)}", {"provisioning": outlook.fields()}
    if outlook.current_failure is not None:
        sentence = f"{gone}, and {provisioner} tries to delete its volume, and fails. {outlook.sentences()}"
        return Finding(DELETION_FAILS, sentence.rstrip(), outlook.to_do(), fields=fields)
    sentence = f"{gone}, and {provisioner} has to delete its volume. {outlook.sentences()}{_attachments_unknown(seen)}"
    return Finding("WaitsForDeletion", sentence.rstrip(), outlook.to_do(), fields=fields)


def deletion_outlook(seen: VolumeSeen, now: datetime) -> ProvisionerOutlook:
    return ProvisionerOutlook.on(seen.volume, seen.events, VOLUME_FAILED_DELETE, seen.provisioner, now)


def _attached_to(seen: VolumeSeen) -> str:
    return next((node_of(each) or "unknown" for each in attachments_of(seen)), "")


def _attachments_unknown(seen: VolumeSeen) -> str:
    if not is_unreadable(seen.unreadable, VOLUME_ATTACHMENT):
        return ""
    return f" It is not deleted while it is attached, and {unknown(seen.unreadable, VOLUME_ATTACHMENT)}."


def _attached(seen: VolumeSeen, gone: str, fields: Mapping[str, Any]) -> Finding:
    attachments = attachments_of(seen)
    listed = joined(f"{objects.name(each)} on the node {node_of(each) or 'unknown'}" for each in attachments)
    plural = "s" if len(attachments) > 1 else ""
    command = explain_command("va", objects.name(attachments[0]))
    return Finding(
        "WaitsForDetach",
        f"{gone}, and its volume is deleted after it is detached: it waits until the VolumeAttachment{plural} {listed} "
        f"{'are' if plural else 'is'} deleted.",
        f"Nothing to do, if no pod uses it any more. {command} shows what the detachment waits for. A provisioner "
        "whose driver cannot attach does not wait for that.",
        fields=fields,
    )


def _nobody_deletes(volume: ApiObject, gone: str) -> Finding:
    return Finding(
        "NobodyDeletes",
        f"{gone}, its policy is Delete, and nobody can delete it: it has no CSI driver, and no provisioner created "
        f"it{_message(volume)}.",
        _by_hand(volume),
    )


def _by_hand(volume: ApiObject) -> str:
    name = objects.name(volume)
    retain, delete = policy_command(PERSISTENT_VOLUME, name, RETAIN), delete_command(PERSISTENT_VOLUME, None, name)
    return f"Delete the storage behind it, then the object: {delete}; or keep both: {retain}."
