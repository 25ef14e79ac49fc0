"""The next step for a claim, in every state it can be in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from orlop.csi.proto import csi_pb2
from orlop.sidecars.provisioner.claim_rules import (
    BeginOrder,
    CallDriver,
    DeleteAgain,
    ForgetOrder,
    NoClaimStep,
    OpenOrder,
    ProvisioningFacts,
    ProvisioningStep,
    ReportNameTaken,
    ReportUnusable,
    SaveVolume,
    WaitUntil,
    next_claim_step,
)
from orlop.sidecars.provisioner.create_request_rules import UnusableVolume
from support.provisioning.provisioner_objects import Object, claim
from support.provisioning.provisioner_worlds import DRIVER
from support.provisioning.volume_orders import order

ORDER = order()
VOLUME = csi_pb2.Volume(volume_id="vol-1", capacity_bytes=ORDER.size_bytes)
TOO_SMALL = UnusableVolume("too small", "vol-1")
NOT_OURS = UnusableVolume("another's")
DYING = claim(metadata={"deletionTimestamp": "2026-01-01T00:00:00Z"})


def opened(**fields: Any) -> OpenOrder:
    return replace(OpenOrder(ORDER, is_recorded=True), **fields)


def step(
    of: Object | None, open_order: OpenOrder | None, *, is_saved: bool = False, now: float = 5.0
) -> ProvisioningStep:
    return next_claim_step(ProvisioningFacts(of, open_order, is_saved, DRIVER, now))


# ---- without an order ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("of", "is_saved", "expected"),
    [
        (None, False, NoClaimStep("the claim is gone")),
        (None, True, NoClaimStep("the claim is gone")),
        (claim(), True, NoClaimStep("its PersistentVolume exists")),
        (claim(volumeName="pv"), False, NoClaimStep("the claim names a volume")),
        (DYING, False, NoClaimStep("the claim is being deleted")),
        (claim(), False, BeginOrder(claim())),
    ],
)
def test_an_order_is_begun_only_for_a_claim_that_waits_for_a_volume(of: Any, expected: Any, *, is_saved: bool):
    assert step(of, None, is_saved=is_saved) == expected


def test_a_name_that_another_claim_s_volume_has_is_reported():
    facts = ProvisioningFacts(claim(), None, False, DRIVER, 5.0, "the claim team/other")
    assert next_claim_step(facts) == ReportNameTaken("the claim team/other")


# ---- with an order ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("of", [claim(), DYING, claim(volumeName=ORDER.volume_name)], ids=["waits", "dies", "named"])
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({}, CallDriver(ORDER)),
        ({"may_run_until": 9.0}, CallDriver(ORDER)),
        ({"volume": VOLUME}, SaveVolume(ORDER, VOLUME)),
        ({"volume": VOLUME, "may_run_until": 9.0}, SaveVolume(ORDER, VOLUME)),
        ({"volume": VOLUME, "fault": TOO_SMALL}, DeleteAgain(ORDER, "vol-1", TOO_SMALL)),
        ({"volume": VOLUME, "fault": TOO_SMALL, "may_run_until": 9.0}, WaitUntil(9.0)),
        ({"volume": VOLUME, "fault": NOT_OURS}, ReportUnusable("another's")),
        ({"volume": VOLUME, "is_saved": True}, ForgetOrder(ORDER, "its PersistentVolume exists")),
        ({"volume": VOLUME, "is_saved": True, "may_run_until": 9.0}, WaitUntil(9.0)),
        ({"is_being_deleted": True}, CallDriver(ORDER)),
        ({"is_being_deleted": True, "may_run_until": 9.0}, WaitUntil(9.0)),
    ],
)
def test_an_open_order_is_finished_for_a_claim_that_exists(of: Any, known: dict[str, Any], expected: Any):
    assert step(of, opened(**known)) == expected


@pytest.mark.parametrize(
    ("of", "expected"),
    [
        (claim(), CallDriver(ORDER)),
        (claim(volumeName=ORDER.volume_name), CallDriver(ORDER)),
        (DYING, ForgetOrder(ORDER, "the driver was never called for it")),
    ],
    ids=["waits", "named", "dies"],
)
def test_the_driver_is_not_called_for_the_first_time_for_a_claim_that_is_being_deleted(of: Any, expected: Any):
    assert step(of, opened(is_recorded=False)) == expected


@pytest.mark.parametrize("of", [None, claim(volumeName="another")], ids=["gone", "bound to another volume"])
@pytest.mark.parametrize(
    ("known", "expected"),
    [
        ({"is_recorded": False}, ForgetOrder(ORDER, "the driver was never called for it")),
        ({}, CallDriver(ORDER)),
        ({"may_run_until": 9.0}, WaitUntil(9.0)),
        ({"volume": VOLUME}, DeleteAgain(ORDER, "vol-1", None)),
        ({"volume": VOLUME, "may_run_until": 9.0}, WaitUntil(9.0)),
        ({"volume": VOLUME, "fault": TOO_SMALL}, DeleteAgain(ORDER, "vol-1", None)),
        (
            {"volume": VOLUME, "fault": NOT_OURS},
            ForgetOrder(ORDER, "the driver returned no id of a volume that may be deleted", is_leak=True),
        ),
        ({"volume": VOLUME, "is_saved": True}, ForgetOrder(ORDER, "its PersistentVolume exists")),
    ],
)
def test_an_open_order_is_undone_for_a_claim_that_needs_no_volume_any_more(
    of: Any, known: dict[str, Any], expected: Any
):
    assert step(of, opened(**known)) == expected


@pytest.mark.parametrize("of", [None, claim(), claim(volumeName="another")])
def test_an_order_whose_persistent_volume_exists_is_forgotten_whatever_became_of_the_claim(of: Any):
    assert step(of, opened(), is_saved=True) == ForgetOrder(ORDER, "its PersistentVolume exists")


# ---- every state -----------------------------------------------------------------------------------------------------

claims = some.sampled_from([None, claim(), DYING, claim(volumeName="another"), claim(volumeName=ORDER.volume_name)])
instants = some.sampled_from([0.0, 5.0, 9.0])


@some.composite
def open_orders(draw: some.DrawFn) -> OpenOrder:
    volume = draw(some.sampled_from([None, VOLUME]))
    return OpenOrder(
        ORDER,
        draw(instants),
        volume,
        draw(some.sampled_from([None, TOO_SMALL, NOT_OURS])) if volume is not None else None,
        is_recorded=draw(some.booleans()) or volume is not None,
        is_being_deleted=draw(some.booleans()),
        is_saved=draw(some.booleans()) and volume is not None,
    )


@given(of=claims, known=open_orders(), is_saved=some.booleans(), now=instants)
def test_nothing_is_deleted_or_forgotten_while_a_call_may_still_have_its_effect(
    *, of: Any, known: OpenOrder, is_saved: bool, now: float
):
    taken = step(of, known, is_saved=is_saved, now=now)
    if isinstance(taken, DeleteAgain | ForgetOrder) and known.is_recorded:
        assert now >= known.may_run_until
    if isinstance(taken, WaitUntil):
        assert taken.instant > now
    if known.is_being_deleted and isinstance(taken, CallDriver):
        assert now >= known.may_run_until, "it could return the volume that is being deleted"


@given(
    known=open_orders(),
    is_saved=some.booleans(),
    now=instants,
    answer=some.sampled_from([VOLUME, csi_pb2.Volume(), "refused"]),
)
def test_the_order_of_a_claim_that_is_gone_always_ends_by_being_forgotten(
    *, known: OpenOrder, is_saved: bool, now: float, answer: Any
):
    """Each step is taken as the handler takes it; the driver gives one of its possible answers."""
    for _ in range(6):
        taken = step(None, known, is_saved=is_saved, now=now)
        match taken:
            case ForgetOrder():
                return
            case WaitUntil(instant):
                now = instant
            case CallDriver() if answer == "refused":
                return  # a final answer of the driver: the handler forgets the order
            case CallDriver():
                fault = None if answer.volume_id else UnusableVolume("no id")
                known = replace(known, volume=answer, fault=fault, is_being_deleted=False)
            case DeleteAgain():
                return  # deleted: the handler forgets the order
            case _:
                raise AssertionError(f"{taken} for a claim that is gone")
    raise AssertionError("the order is still open")
