"""Report failures: record an event on the claim or the PersistentVolume, with upstream's reason, and count it.

Error messages and volume ids come from the driver and can hold anything: control characters, which a terminal would
interpret, are escaped, and long texts are truncated.
"""

from __future__ import annotations

from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.error_codes import CsiError
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused, StatusError
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.retry_rules import is_passing
from orlop.records.volume_order import ClaimIdentity
from orlop.sidecars.provisioner.provisioner_metrics import ProvisionerMetrics
from orlop.sidecars.provisioner.provisioner_settings import ApiObject

LONGEST_SENTENCE: Final = 2048
LONGEST_SHOWN_ID: Final = 128


class NotProvisioned(Exception):
    """Provisioning failed. Already reported on the claim; the work queue retries."""


class ProvisioningReports:
    def __init__(self, events: EventRecorder, metrics: ProvisionerMetrics) -> None:
        self._events = events
        self._metrics = metrics

    def not_provisioned(self, claim: ApiObject, sentence: str) -> str:
        """Report that provisioning failed; return the sentence as the event has it."""
        printable = printable_sentence(sentence)
        self._metrics.failed(state.class_name(claim))
        self._events.warning(claim_reference(claim), "ProvisioningFailed", printable)
        return printable

    def not_deleted(self, volume: ApiObject, sentence: str) -> str:
        """Report that the deletion failed; return the sentence as the event has it."""
        printable = printable_sentence(sentence)
        self._metrics.deletion_failed(state.class_name(volume))
        reference = {"kind": PERSISTENT_VOLUME.kind, "apiVersion": PERSISTENT_VOLUME.api_version, **volume}
        self._events.warning(reference, "VolumeFailedDelete", printable)
        return printable


def claim_reference(claim: ApiObject) -> ApiObject:
    """Return the claim with its kind, for an event: objects in lists and watches of the API server lack it."""
    return {"kind": PERSISTENT_VOLUME_CLAIM.kind, "apiVersion": PERSISTENT_VOLUME_CLAIM.api_version, **claim}


def identity_reference(claim: ClaimIdentity) -> ApiObject:
    return claim_reference({"metadata": {"namespace": claim.namespace, "name": claim.name, "uid": claim.uid}})


def rpc_error(error: CsiError) -> str:
    """Return the error as gRPC for Go prints it, so that events read as upstream's do."""
    return f"rpc error: code = {error.code.go_name} desc = {error.message}"


def refused_request(error: StatusError) -> str | None:
    """Return a sentence if the API server refuses a request until somebody changes a quota, a role or a webhook.

    None for errors that pass by themselves, also by a decision on newer objects: an event of them would only alarm.
    """
    passes = is_passing(error) or isinstance(error, Conflict | NotFound | PatchRefused)
    return None if passes else f"the API server refuses a request: {error}"


def shown_id(volume_id: str) -> str:
    return volume_id if len(volume_id) <= LONGEST_SHOWN_ID else f"{volume_id[:LONGEST_SHOWN_ID]}…"


def printable_sentence(sentence: str) -> str:
    shown = sentence if len(sentence) <= LONGEST_SENTENCE else f"{sentence[:LONGEST_SENTENCE]}…"
    if shown.isprintable():
        return shown
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)
