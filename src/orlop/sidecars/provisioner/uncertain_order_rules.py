"""Decide what a call of CreateVolume leaves of its order, and which request is sent next. Pure.

An order is *uncertain* from before its first call until the driver has either refused that call with a final error, or
returned the volume, which is then saved or deleted. In between a call may have created the volume: its response was
lost, its process was killed, or the volume that it returned could not be used. A final error of a later call then
proves nothing about the earlier ones (the storage behind the driver may be unreachable for a moment), so it never ends
an uncertain order. What ends it is a successful call: its volume is saved, or deleted by its id.

Only one volume can have the order's name (CSI makes CreateVolume idempotent by name), but the driver returns it only
for a request that is compatible with the one that created it. So all requests that may have created it are kept, in the
journal too:

- While the claim waits, a refused request is built again from the current claim, class and node: the user may have
  corrected the class, or the scheduler selected another node. ALREADY_EXISTS means that the volume exists and was
  created by another request: the others are repeated in turn, and then one from the current objects again: if
  none of them is right, the user can still correct the class.
- Without a claim, the requests are repeated in turn, until one of them returns the volume to delete.
"""

from __future__ import annotations

from dataclasses import replace

from orlop.csi.error_codes import Code
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner.claim_rules import OpenOrder


def before_call(opened: OpenOrder, order: VolumeOrder) -> OpenOrder:
    """Return the order as it is while `order` is sent: from now on the driver may have the volume."""
    uncertain = opened.uncertain if order in opened.uncertain else (*opened.uncertain, order)
    return replace(opened, order=order, uncertain=uncertain)


def after_final_error(
    before: OpenOrder, opened: OpenOrder, code: Code, *, have_earlier_calls_ended: bool, is_rebuildable: bool
) -> OpenOrder | None:
    """Return what is left of the order after a final error; None if no volume was created.

    `before` is the order as it was before the call, and `opened` as it is now. `have_earlier_calls_ended`: when the
    call began, no earlier one could take effect any more.
    """
    # The error is final for this call only. An earlier call keeps the order for one of two reasons: it may still run,
    # or its response was lost, so that it may have created the volume.
    if not have_earlier_calls_ended:
        return replace(opened, uncertain=before.uncertain)
    if not before.uncertain:
        return None
    kept = replace(opened, uncertain=before.uncertain)
    if is_rebuildable and code is not Code.ALREADY_EXISTS:
        return replace(kept, is_refused=True)
    if is_rebuildable and opened.order == before.uncertain[-1]:
        # Begin the next turn with this one: the rebuilt request may be the same, and must not hide the others.
        return replace(kept, uncertain=(opened.order, *before.uncertain[:-1]), is_refused=True)
    return replace(kept, order=_next_request(kept))


def rebuilt(opened: OpenOrder, order: VolumeOrder) -> OpenOrder:
    """Return the open order with a request that was built from the current objects."""
    return replace(opened, order=order, is_refused=False)


def earlier_requests(opened: OpenOrder) -> tuple[VolumeOrder, ...]:
    """Return the requests that the journal has to keep besides the current one."""
    return tuple(each for each in opened.uncertain if each != opened.order)


def _next_request(opened: OpenOrder) -> VolumeOrder:
    requests = opened.uncertain
    following = requests.index(opened.order) + 1 if opened.order in requests else 0
    return requests[following % len(requests)]
