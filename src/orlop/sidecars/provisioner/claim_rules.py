"""Decide the next step for one claim: order a volume, finish an order, or undo it. Pure.

An *order* is the intention to create one volume. It is in the journal from before the first CreateVolume call until its
outcome is known. A call without a final response (deadline exceeded, connection lost) may still take effect in the
driver until its deadline; `may_run_until` is the latest such deadline. Before that time no volume is deleted and no
order is forgotten: the driver could create the volume afterwards, and it would be leaked. An order leaves the journal
when

- its PersistentVolume exists: from then on the volume is deleted with the PersistentVolume;
- the volume was deleted, because the claim is gone or cannot use the volume;
- its only call returned a final error: no volume was created. After any other call the order is *uncertain*, and a
  final error of a later call does not end it (`uncertain_order_rules`).

No order is begun for a claim that is being deleted. An open order is finished all the same: the binder then releases
the PersistentVolume, and it is deleted like any other.
"""

from __future__ import annotations

from dataclasses import dataclass

from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import RETAIN
from orlop.csi.proto import csi_pb2
from orlop.kube import objects
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner.create_request_rules import UnusableVolume
from orlop.sidecars.provisioner.provisioner_settings import ApiObject
from orlop.sidecars.provisioner.volume_order_rules import why_not_wanted


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order without a known outcome, and what is known of its volume."""

    order: VolumeOrder
    may_run_until: float = 0.0
    """The deadline of the last call without a final response, in the clock's elapsed time."""
    volume: csi_pb2.Volume | None = None
    """As the driver returned it; None while no call has succeeded in this process."""
    fault: UnusableVolume | None = None
    """Why the claim cannot use the volume."""
    is_recorded: bool = False
    """The order is in the journal, so the driver may have been called."""
    is_being_deleted: bool = False
    """DeleteVolume may have been called. A CreateVolume call that overlaps it could return the volume it deletes."""
    is_saved: bool = False
    """The PersistentVolume was created; it may have been deleted since."""
    uncertain: tuple[VolumeOrder, ...] = ()
    """The requests of which a call may have created the volume. All have the name of `order`."""
    is_refused: bool = False
    """The driver refused `order`: build it again from the current objects before the next call."""
    is_resumed: bool = False
    """A former process left the order, and may have saved its volume: a claim may have used it, and be gone by now."""

    @property
    def may_have_kept_data(self) -> bool:
        """Return whether the volume may be one whose claim and object are gone, and whose data an admin keeps."""
        return self.is_resumed and self.order.storage.reclaim_policy == RETAIN


@dataclass(frozen=True, slots=True)
class ProvisioningFacts:
    claim: ApiObject | None
    """The cached claim of this uid; None if it is gone."""
    open_order: OpenOrder | None
    is_saved: bool
    """The PersistentVolume of the claim exists."""
    driver: str
    now: float
    """The clock's elapsed time."""
    name_taken_by: str = ""
    """What has the PersistentVolume of the name that a new order would get, if that is not of this claim."""


@dataclass(frozen=True, slots=True)
class NoClaimStep:
    reason: str


@dataclass(frozen=True, slots=True)
class BeginOrder:
    """Build an order from the claim, its class and its node; or build an open one again that the driver refused."""

    claim: ApiObject


@dataclass(frozen=True, slots=True)
class CallDriver:
    """Call CreateVolume for the open order, for the first time or again."""

    order: VolumeOrder


@dataclass(frozen=True, slots=True)
class SaveVolume:
    """Create the PersistentVolume."""

    order: VolumeOrder
    volume: csi_pb2.Volume


@dataclass(frozen=True, slots=True)
class DeleteAgain:
    """Delete the volume that this order created. `fault` is None if the claim is gone: nothing is left to report on."""

    order: VolumeOrder
    volume_id: str
    fault: UnusableVolume | None


@dataclass(frozen=True, slots=True)
class ForgetOrder:
    order: VolumeOrder
    reason: str
    is_leak: bool = False
    """The driver may have a volume whose id we do not know, so it cannot be deleted."""


@dataclass(frozen=True, slots=True)
class ReportUnusable:
    """The driver returned a volume that can neither be used nor deleted: report it on the claim, and retry later."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportNameTaken:
    """A PersistentVolume of the order's name belongs to something else: report it on the claim, and retry."""

    owner: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait until calls without a final response have ended in the driver."""

    instant: float


ProvisioningStep = (
    NoClaimStep
    | BeginOrder
    | CallDriver
    | SaveVolume
    | DeleteAgain
    | ForgetOrder
    | ReportUnusable
    | ReportNameTaken
    | WaitUntil
)


def next_claim_step(facts: ProvisioningFacts) -> ProvisioningStep:  # noqa: PLR0911 - one return for each state
    """Return the next step for the claim. The reasons are for the log."""
    opened = facts.open_order
    if opened is None:
        return _step_without_order(facts)
    have_calls_ended = facts.now >= opened.may_run_until
    if facts.is_saved or opened.is_saved:
        # Not forgotten earlier: the PersistentVolume could be deleted, with its volume, while a late call creates the
        # volume a second time. The open order is what makes that deletion wait (`volume_deletion_rules`).
        reason = "its PersistentVolume exists"
        return ForgetOrder(opened.order, reason) if have_calls_ended else WaitUntil(opened.may_run_until)
    if not opened.is_recorded and not _may_be_called_for(facts.claim, opened.order):
        return ForgetOrder(opened.order, "the driver was never called for it")
    if not is_wanted(facts.claim, opened.order):
        return _undo(opened, have_calls_ended=have_calls_ended)
    if opened.volume is None:
        # CreateVolume is idempotent, so it may overlap an earlier CreateVolume, but not a DeleteVolume of its volume.
        if opened.is_being_deleted and not have_calls_ended:
            return WaitUntil(opened.may_run_until)
        is_rebuilt = opened.is_refused and have_calls_ended and is_rebuildable(facts.claim, facts.driver)
        return BeginOrder(facts.claim) if is_rebuilt and facts.claim is not None else CallDriver(opened.order)
    if opened.fault is None:
        # Saved at once, though an earlier call may still run: that can only return the same volume.
        return SaveVolume(opened.order, opened.volume)
    if not opened.fault.volume_id:
        return ReportUnusable(opened.fault.reason)
    if not have_calls_ended:
        return WaitUntil(opened.may_run_until)
    return DeleteAgain(opened.order, opened.fault.volume_id, opened.fault)


def _step_without_order(facts: ProvisioningFacts) -> ProvisioningStep:
    if facts.claim is None:
        return NoClaimStep("the claim is gone")
    if facts.is_saved:
        return NoClaimStep("its PersistentVolume exists")
    reason = why_not_wanted(facts.claim, facts.driver)
    if reason is not None:
        return NoClaimStep(reason)
    # With cut names (`--volume-name-uuid-length`) two claims may get the same one.
    return ReportNameTaken(facts.name_taken_by) if facts.name_taken_by else BeginOrder(facts.claim)


def is_rebuildable(claim: ApiObject | None, driver: str) -> bool:
    """Return whether an open order may get another request: for a claim that is being deleted it may not."""
    return claim is not None and why_not_wanted(claim, driver) is None


def is_wanted(claim: ApiObject | None, order: VolumeOrder) -> bool:
    """Return whether the claim still waits for this volume: it exists, and no other volume was bound to it."""
    return claim is not None and state.volume_name(claim) in {"", order.volume_name}


def _may_be_called_for(claim: ApiObject | None, order: VolumeOrder) -> bool:
    """Return whether the driver may be called for the first time. A volume of a dying claim would only be deleted."""
    return claim is not None and is_wanted(claim, order) and not objects.is_being_deleted(claim)


def _undo(opened: OpenOrder, *, have_calls_ended: bool) -> ProvisioningStep:
    """Return the next step towards deleting the volume of a claim that no longer waits for it."""
    if not have_calls_ended:
        return WaitUntil(opened.may_run_until)
    if opened.volume is None:
        # DeleteVolume needs the volume's id, and only CreateVolume returns the id for a name. So call CreateVolume even
        # though no claim waits, and delete what it returns. Repeat a request that may have created the volume: another
        # one could create it only now.
        requests = opened.uncertain
        return CallDriver(opened.order if opened.order in requests or not requests else requests[0])
    if opened.may_have_kept_data and opened.fault is None:
        # The journal entry may be older than the deletion of the PersistentVolume, whose data an admin kept:
        # DeleteVolume would destroy them. Save the volume, and let an admin decide.
        return SaveVolume(opened.order, opened.volume)
    volume_id = opened.volume.volume_id if opened.fault is None else opened.fault.volume_id
    if not volume_id:
        return ForgetOrder(opened.order, "the driver returned no id of a volume that may be deleted", is_leak=True)
    return DeleteAgain(opened.order, volume_id, None)
