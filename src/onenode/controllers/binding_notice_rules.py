"""Events about claims and volumes, with the reasons and texts of Kubernetes' PersistentVolume controller. Pure.

People and their tools look for these texts; they are quoted, not rephrased.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from onenode.go_text import quoted
from orlop.binding import claim_state_rules as state
from orlop.kube import objects

Object = Mapping[str, Any]


class About(Enum):
    CLAIM = "claim"
    VOLUME = "volume"


@dataclass(frozen=True, slots=True)
class Notice:
    about: About
    reason: str
    text: str
    is_warning: bool = False


def _claim(reason: str, text: str) -> Notice:
    return Notice(About.CLAIM, reason, text)


def _claim_warning(reason: str, text: str) -> Notice:
    return Notice(About.CLAIM, reason, text, is_warning=True)


def _volume_warning(reason: str, text: str) -> Notice:
    return Notice(About.VOLUME, reason, text, is_warning=True)


# ---- claims ----------------------------------------------------------------------------------------------------------

PROVISIONING_FAILED: Final = "ProvisioningFailed"
FAILED_BINDING: Final = "FailedBinding"
MISMATCH: Final = "VolumeMismatch"
FIRST_CONSUMER: Final = _claim("WaitForFirstConsumer", "waiting for first consumer to be created before binding")
NOTHING_AVAILABLE: Final = _claim(
    FAILED_BINDING, "no persistent volumes available for this claim and no storage class is set"
)
LOST_REFERENCE: Final = _claim_warning(
    "ClaimLost", "Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"
)
LOST_VOLUME: Final = _claim_warning(
    "ClaimLost", "Bound claim has lost its PersistentVolume. Data on the volume is lost!"
)
MISBOUND: Final = _claim_warning(
    "ClaimMisbound", "Two claims are bound to the same volume, this one is bound incorrectly"
)


def waiting_for_pod(pods: Sequence[str]) -> Notice:
    if not pods:
        return FIRST_CONSUMER
    return _claim("WaitForPodScheduled", f"waiting for pod{'s' * (len(pods) > 1)} {','.join(pods)} to be scheduled")


def external_provisioning(provisioner: str) -> Notice:
    return _claim(
        "ExternalProvisioning",
        f"Waiting for a volume to be created either by the external provisioner '{provisioner}' or manually by the "
        "system administrator. If volume creation is delayed, please verify that the provisioner is running and "
        "correctly registered.",
    )


def class_not_found(name: str) -> Notice:
    return _claim_warning(PROVISIONING_FAILED, f"storageclass.storage.k8s.io {quoted(name)} not found")


def no_plugin(provisioner: str) -> Notice:
    return _claim_warning(PROVISIONING_FAILED, _no_plugin_named(provisioner))


def not_saved(error: object) -> Notice:
    return _claim_warning(PROVISIONING_FAILED, f"Error saving claim: {error}")


def taken(volume: str) -> Notice:
    return _claim_warning(FAILED_BINDING, f"volume {quoted(volume)} already bound to a different claim.")


def cannot_bind(volume: str, why: str) -> Notice:
    return _claim_warning(MISMATCH, f"Cannot bind to requested volume {quoted(volume)}: {why}")


def incompatible_modes(volume: Object, claim: Object) -> tuple[Notice, Notice]:
    """Return the warnings on both: each names the other."""
    on_volume = (
        f"Cannot bind PersistentVolume to requested PersistentVolumeClaim {quoted(objects.name(claim))} due to "
        "incompatible volumeMode."
    )
    on_claim = (
        f"Cannot bind PersistentVolume {quoted(objects.name(volume))} to requested PersistentVolumeClaim due to "
        "incompatible volumeMode."
    )
    return _volume_warning(MISMATCH, on_volume), _claim_warning(MISMATCH, on_claim)


# ---- volumes ---------------------------------------------------------------------------------------------------------

FAILED_DELETE: Final = "VolumeFailedDelete"
FAILED_RECYCLE: Final = "VolumeFailedRecycle"
NO_RECYCLER: Final = _volume_warning(FAILED_RECYCLE, "No recycler plugin found for the volume!")
UNKNOWN_POLICY: Final = _volume_warning(
    "VolumeUnknownReclaimPolicy", "Volume has unrecognized PersistentVolumeReclaimPolicy"
)


def no_deleter(volume: str) -> Notice:
    text = f"error getting deleter volume plugin for volume {quoted(volume)}: no volume plugin matched"
    return _volume_warning(FAILED_DELETE, text)


def no_deleter_named(provisioner: str) -> Notice:
    return _volume_warning(FAILED_DELETE, _no_plugin_named(provisioner))


def used_by(pods: Sequence[str]) -> Notice:
    return Notice(About.VOLUME, FAILED_RECYCLE, f"Volume is used by pods: {','.join(pods)}")


# ---- errors that are retried -----------------------------------------------------------------------------------------


def invalid_binding(claim: Object, volume: Object) -> str:
    reference = state.claim_reference(volume) or {}
    other = f"{reference.get('namespace', '')}/{reference.get('name', '')}"
    return (
        f"invalid binding of claim {quoted(str(objects.name_of(claim)))} to volume {quoted(objects.name(volume))}: "
        f"volume already claimed by {quoted(other)}"
    )


def without_capacity(volume: Object) -> str:
    return f"PersistentVolume {quoted(objects.name(volume))} is without a storage capacity"


def _no_plugin_named(provisioner: str) -> str:
    return f"no volume plugin matched name: {provisioner}"
