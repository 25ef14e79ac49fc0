"""Decide the next step for one claim: order a volume, finish an order, or undo it. Pure.

An *order* is in the journal from before the first CreateVolume call until its outcome is known. A call whose outcome is
not known (no answer, connection lost) may have its effect until its deadline; `unsettled_until` is the latest such
deadline. Before that time nothing is deleted and nothing is forgotten: the driver could create the volume again, and
nobody would know. An order leaves the journal when

- its PersistentVolume exists: from then on the volume is deleted with that;
- the volume was deleted again, because the claim is gone or the volume cannot serve it;
- the driver answered, to a call made after `unsettled_until`, that no volume was created.

A claim that is being deleted starts no order; one that is open is finished, and the binder releases the volume.
"""

from __future__ import annotations

from dataclasses import dataclass

from orlop.binding import claim_state_rules as state
from orlop.csi.proto import csi_pb2
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner.create_request_rules import UnusableVolume
from orlop.sidecars.provisioner.provisioner_settings import ApiObject
from orlop.sidecars.provisioner.volume_order_rules import why_not_wanted


@dataclass(frozen=True, slots=True)
class OpenOrder:
    """An order in the journal, and what is known of its volume."""

    order: VolumeOrder
    unsettled_until: float = 0.0
    """By the clock's elapsed time: when every call without a final answer has ended in the driver."""
    volume: csi_pb2.Volume | None = None
    """As the driver returned it; None while no call has succeeded in this process."""
    fault: UnusableVolume | None = None
    """Why the volume cannot serve the claim."""
    is_recorded: bool = False
    """The driver may have been called: the order is in the journal."""
    is_being_deleted: bool = False
    """DeleteVolume may have been called. A CreateVolume before its end could return the volume that it deletes."""
    is_saved: bool = False
    """The PersistentVolume was created; it may be gone again."""


@dataclass(frozen=True, slots=True)
class ProvisioningFacts:
    claim: ApiObject | None
    """The claim of this uid, as the cache has it; None if it is gone."""
    open_order: OpenOrder | None
    is_saved: bool
    """The PersistentVolume of the claim exists."""
    driver: str
    now: float
    """By the clock's elapsed time."""


@dataclass(frozen=True, slots=True)
class NoClaimStep:
    reason: str


@dataclass(frozen=True, slots=True)
class BeginOrder:
    """Build an order from the claim, its class and its node, and record it."""

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
    """Delete the created volume. `fault` is None where the claim is gone, and nobody waits for a report."""

    order: VolumeOrder
    volume_id: str
    fault: UnusableVolume | None


@dataclass(frozen=True, slots=True)
class ForgetOrder:
    order: VolumeOrder
    reason: str
    is_leak: bool = False
    """The driver may hold a volume that we have no id for."""


@dataclass(frozen=True, slots=True)
class ReportUnusable:
    """The driver created something that can neither be used nor deleted: report it on the claim, and retry later."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Wait until calls without a final answer have ended in the driver."""

    instant: float


ProvisioningStep = (
    NoClaimStep | BeginOrder | CallDriver | SaveVolume | DeleteAgain | ForgetOrder | ReportUnusable | WaitUntil
)


def next_claim_step(facts: ProvisioningFacts) -> ProvisioningStep:  # noqa: PLR0911 - one return for each state
    opened = facts.open_order
    if opened is None:
        return _step_without_order(facts)
    is_settled = facts.now >= opened.unsettled_until
    if facts.is_saved or opened.is_saved:
        reason = "its PersistentVolume exists"
        return ForgetOrder(opened.order, reason) if is_settled else WaitUntil(opened.unsettled_until)
    if not _is_wanted(facts.claim, opened.order):
        if not opened.is_recorded:
            return ForgetOrder(opened.order, "the driver was never called for it")
        return _undo(opened, is_settled=is_settled)
    if opened.volume is None:
        is_blocked = opened.is_being_deleted and not is_settled
        return WaitUntil(opened.unsettled_until) if is_blocked else CallDriver(opened.order)
    if opened.fault is None:
        return SaveVolume(opened.order, opened.volume)
    if not opened.fault.volume_id:
        return ReportUnusable(opened.fault.reason)
    if not is_settled:
        return WaitUntil(opened.unsettled_until)
    return DeleteAgain(opened.order, opened.fault.volume_id, opened.fault)


def _step_without_order(facts: ProvisioningFacts) -> ProvisioningStep:
    if facts.claim is None:
        return NoClaimStep("the claim is gone")
    if facts.is_saved:
        return NoClaimStep("its PersistentVolume exists")
    reason = why_not_wanted(facts.claim, facts.driver)
    return BeginOrder(facts.claim) if reason is None else NoClaimStep(reason)


def _is_wanted(claim: ApiObject | None, order: VolumeOrder) -> bool:
    """Return whether the claim still waits for this volume: it exists, and was not bound to another one meanwhile."""
    return claim is not None and state.volume_name(claim) in {"", order.volume_name}


def _undo(opened: OpenOrder, *, is_settled: bool) -> ProvisioningStep:
    if not is_settled:
        return WaitUntil(opened.unsettled_until)
    if opened.volume is None:
        # The same request again is the only way to learn whether there is a volume, and its id.
        return CallDriver(opened.order)
    volume_id = opened.volume.volume_id if opened.fault is None else opened.fault.volume_id
    if not volume_id:
        return ForgetOrder(opened.order, "the driver returned no id that could be deleted", is_leak=True)
    return DeleteAgain(opened.order, volume_id, None)
