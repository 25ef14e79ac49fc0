"""What a call leaves of its order, and which request follows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from orlop.csi.error_codes import Code
from orlop.sidecars.provisioner.claim_rules import OpenOrder
from orlop.sidecars.provisioner.uncertain_order_rules import (
    after_final_error,
    before_call,
    earlier_requests,
    rebuilt,
)
from support.provisioning.volume_orders import order

FIRST, SECOND, THIRD = (order(selected_node=node) for node in ("n1", "n2", "n3"))


def opened(*uncertain: Any, **fields: Any) -> OpenOrder:
    return replace(OpenOrder(FIRST, is_recorded=True, uncertain=uncertain), **fields)


def refused(
    before: OpenOrder, code: Code = Code.INTERNAL, *, is_rebuildable: bool = True, have_earlier_calls_ended: bool = True
) -> OpenOrder | None:
    return after_final_error(
        before,
        before_call(before, before.order),
        code,
        have_earlier_calls_ended=have_earlier_calls_ended,
        is_rebuildable=is_rebuildable,
    )


def test_the_first_call_makes_an_order_uncertain_before_it_is_sent():
    assert before_call(opened(), FIRST).uncertain == (FIRST,)


def test_a_repeated_request_is_kept_once_and_another_one_beside_it():
    assert before_call(opened(FIRST), FIRST).uncertain == (FIRST,)
    assert before_call(opened(FIRST), SECOND) == opened(FIRST, SECOND, order=SECOND)


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("is_rebuildable", [True, False])
def test_a_final_error_of_the_only_call_ends_the_order(code: Code, *, is_rebuildable: bool):
    assert refused(opened(), code, is_rebuildable=is_rebuildable) is None


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("is_rebuildable", [True, False])
@pytest.mark.parametrize("current", [FIRST, SECOND, THIRD])
def test_no_final_error_ends_an_uncertain_order_or_drops_an_uncertain_request(
    code: Code, current: Any, *, is_rebuildable: bool
):
    left = refused(opened(FIRST, SECOND, order=current), code, is_rebuildable=is_rebuildable)

    assert left is not None
    assert set(left.uncertain) == {FIRST, SECOND}


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("is_rebuildable", [True, False])
@pytest.mark.parametrize("uncertain", [(), (FIRST,), (SECOND,)])
def test_no_final_error_ends_an_order_or_changes_its_request_while_an_earlier_call_may_still_run(
    code: Code, uncertain: tuple[Any, ...], *, is_rebuildable: bool
):
    """This holds also if no request is uncertain: it is enough that an earlier call may still run."""
    before = opened(*uncertain, may_run_until=100.0)

    left = refused(before, code, is_rebuildable=is_rebuildable, have_earlier_calls_ended=False)

    assert left == before


def test_a_request_that_was_refused_in_its_only_call_is_not_kept():
    left = refused(opened(FIRST, order=SECOND))

    assert left == opened(FIRST, order=SECOND, is_refused=True)


def test_a_refused_request_is_built_again_for_a_claim_that_waits():
    assert refused(opened(FIRST)) == opened(FIRST, is_refused=True)
    assert rebuilt(opened(FIRST, is_refused=True), SECOND) == opened(FIRST, order=SECOND)


def test_a_volume_that_exists_for_another_request_is_asked_for_with_that_request():
    assert refused(opened(FIRST, order=SECOND), Code.ALREADY_EXISTS) == opened(FIRST)
    assert refused(opened(FIRST, SECOND), Code.ALREADY_EXISTS) == opened(FIRST, SECOND, order=SECOND)


def test_a_volume_that_exists_though_no_other_request_could_have_created_it_is_left_to_the_user():
    assert refused(opened(FIRST), Code.ALREADY_EXISTS) == opened(FIRST, is_refused=True)


@pytest.mark.parametrize("built", [FIRST, SECOND, THIRD])
def test_of_a_volume_that_exists_every_request_is_tried_and_the_current_objects_again_and_again(built: Any):
    known = opened(FIRST, SECOND)
    requests, rebuilds = [], []
    for step in range(12):
        requests.append(known.order)
        known = refused(known, Code.ALREADY_EXISTS) or known
        if known.is_refused:
            rebuilds.append(step)
            known = rebuilt(known, built)
    assert set(requests[4:]) == {FIRST, SECOND, built}
    assert set(known.uncertain) == {FIRST, SECOND}
    assert len(rebuilds) >= 3


def test_without_a_claim_the_requests_are_repeated_in_turn():
    known = opened(FIRST, SECOND)
    requests = []
    for _ in range(4):
        requests.append(known.order)
        known = refused(known, is_rebuildable=False) or known
    assert requests == [FIRST, SECOND, FIRST, SECOND]


def test_the_journal_keeps_every_uncertain_request_but_the_current_one():
    assert earlier_requests(opened(FIRST, SECOND, order=SECOND)) == (FIRST,)
    assert earlier_requests(opened(FIRST, order=THIRD)) == (FIRST,)
    assert earlier_requests(opened(FIRST)) == ()
