"""The master in every history within bounds: nothing dirty is offered, nothing in use is wiped, every disk comes back.

`make test` plays all histories with one departure, and a random sample of those with more. `make soak` plays all with
at most two departures for the life that every disk has, and a sample sixty times larger for every scenario: all pairs
of departures in all scenarios take 100 minutes of CPU.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from orlop.kube.client import DeleteOptions
from orlop.static_pv import master, master_rules, master_writes, offer_rules
from orlop.static_pv.disk_step_rules import DiskStep, DropOperation, LeaveAlone, LetVolumeGo, OfferDisk, RequestWipe
from orlop.static_pv.latest_objects import LatestObjects
from orlop.static_pv.master_view import MasterView
from orlop.static_pv.master_writes import MasterWrites
from orlop.static_pv.node_disks_rules import NodeDisks
from orlop.static_pv.static_volume_rules import StaticVolume
from orlop.testing.explorer import Bounds, Broken, explore, explore_randomly, replay
from orlop.testing.explorer.effects import LATE, LEASE_LOST
from orlop.testing.explorer.search import Scenario
from support.static_volumes.static_drama import (
    SCENARIOS,
    deleted_unused,
    deleted_while_bound,
    disk_swapped,
    reference_removed,
    retained,
    used_and_released,
    withdrawn,
)

SOAK = bool(os.environ.get("ORLOP_SOAK"))
ONE = Bounds(faults=1, departures=1, choices=40)
TWO = Bounds(choices=30)
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=80)
RANDOM_HISTORIES = 300 if SOAK else 5
rules = master_rules.next_disk_step


@pytest.mark.timeout(2400)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_in_every_history_nothing_dirty_is_offered_and_nothing_in_use_is_wiped(scenario: Scenario) -> None:
    explored = explore(scenario, TWO if SOAK and scenario is used_and_released else ONE)
    assert explored.histories > 50


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=20, histories=RANDOM_HISTORIES, bounds=MANY)


# ---- what was found once ---------------------------------------------------------------------------------------------


def test_a_claim_that_is_removed_before_it_could_be_noted_is_not_forgotten() -> None:
    """The note failed, as the volume had changed; decided again on its new state, it had never been bound."""
    replay(reference_removed, "4: before it: its claimRef is removed by hand")


# ---- these checks have teeth: masters with one mistake each ----------------------------------------------------------


def decides(monkeypatch: pytest.MonkeyPatch, mistake: Callable[[NodeDisks, str], DiskStep]) -> None:
    monkeypatch.setattr(master, "next_disk_step", mistake)


def facts_of(disks: NodeDisks, name: str) -> StaticVolume | None:
    return disks.volumes[name].facts if name in disks.volumes else None


def without_reports(disks: NodeDisks) -> NodeDisks:
    """As a view that does not have the operations yet."""
    assert disks.report is not None
    return replace(disks, report=replace(disks.report, operations=(), statuses=()))


def in_the_order_of_the_seed(disks: NodeDisks, name: str) -> DiskStep:
    """The volume goes before its disk is wiped, and a view without the master's own writes offers the disk."""
    facts = facts_of(disks, name)
    if disks.report is not None and facts is not None and facts.is_wipe_decided and facts.uid in _uids(disks):
        return LetVolumeGo(master_rules.releasing_patch(facts, disks.volumes[name].version), "requested")
    return rules(without_reports(disks), name) if disks.report is not None and facts is None else rules(disks, name)


def _uids(disks: NodeDisks) -> set[str]:
    return {each.uid for each in disks.report.operations} if disks.report is not None else set()


def offers_what_is_on_record(disks: NodeDisks, name: str) -> DiskStep:
    step = rules(disks, name)
    is_free = isinstance(step, LeaveAlone | DropOperation) and name not in disks.volumes and disks.report is not None
    return offer_rules.step_of_unoffered(without_reports(disks), name) if is_free else step


def makes_volumes_without_finalizer(disks: NodeDisks, name: str) -> DiskStep:
    step = rules(disks, name)
    if isinstance(step, OfferDisk):
        step.volume["metadata"].pop("finalizers")
    facts = facts_of(disks, name)
    return LeaveAlone("as it is") if facts is not None and not facts.is_being_deleted else step


def wipes_what_is_retained(disks: NodeDisks, name: str) -> DiskStep:
    return rules(_with_facts(disks, name, policy="Delete"), name)


def wipes_what_is_bound(disks: NodeDisks, name: str) -> DiskStep:
    facts = facts_of(disks, name)
    is_ending = facts is not None and facts.is_being_deleted and facts.is_bound
    return rules(_with_facts(disks, name, phase="Released") if is_ending else disks, name)


def forgets_who_had_it(disks: NodeDisks, name: str) -> DiskStep:
    changes = {"is_ever_bound_noted": False, "was_bound_by_controller": False, "was_seen_bound": False}
    facts = facts_of(disks, name)
    if facts is None or facts.claim_uid or facts.phase != "Available" or facts.is_wipe_decided:
        return rules(disks, name)
    return rules(_with_facts(disks, name, **changes), name)


def wipes_whatever_is_there(disks: NodeDisks, name: str) -> DiskStep:
    step = rules(disks, name)
    return rules(_with_facts(disks, name, identity=""), name) if isinstance(step, RequestWipe) else step


def keeps_operations(disks: NodeDisks, name: str) -> DiskStep:
    step = rules(disks, name)
    return LeaveAlone("kept") if isinstance(step, DropOperation) else step


def wipes_what_nobody_used(disks: NodeDisks, name: str) -> DiskStep:
    return rules(_with_facts(disks, name, is_ever_bound_noted=True), name)


def _with_facts(disks: NodeDisks, name: str, **changes: Any) -> NodeDisks:
    if name not in disks.volumes:
        return disks
    volume = disks.volumes[name]
    return replace(disks, volumes={**disks.volumes, name: replace(volume, facts=replace(volume.facts, **changes))})


MISTAKES: list[tuple[Callable[[NodeDisks, str], DiskStep], Scenario, str]] = [
    (in_the_order_of_the_seed, used_and_released, "a volume is offered"),
    (offers_what_is_on_record, used_and_released, "is on record"),
    (makes_volumes_without_finalizer, reference_removed, "has the data of"),
    (wipes_what_is_retained, retained, "its volume is to be retained"),
    (wipes_what_is_bound, deleted_while_bound, "a claim has it"),
    (forgets_who_had_it, reference_removed, "has the data of"),
    (wipes_whatever_is_there, disk_swapped, "another disk is wiped"),
    (keeps_operations, used_and_released, "did not come back"),
    (wipes_what_nobody_used, deleted_unused, "its volume is to be retained"),
]


@pytest.mark.parametrize(("mistake", "scenario", "finding"), MISTAKES)
def test_a_master_that_decides_wrongly_is_found_out(
    mistake: Callable[[NodeDisks, str], DiskStep], scenario: Scenario, finding: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    decides(monkeypatch, mistake)
    with pytest.raises(Broken, match=finding):
        explore(scenario, ONE)


def test_a_master_that_writes_without_its_lease_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = MasterWrites.__init__

    def heedless(self: MasterWrites, view: MasterView, **named: Any) -> None:
        made(self, view, **named | {"may_act": lambda: None})

    monkeypatch.setattr(MasterWrites, "__init__", heedless)
    with pytest.raises(Broken, match="has lost its lease"):
        explore(used_and_released, Bounds(choices=30, only=frozenset({LEASE_LOST.name, "it comes late"})))


def test_a_master_that_deletes_a_volume_whatever_its_version_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """It deletes one that a claim got after it was decided that nobody has it."""
    monkeypatch.setattr(master_writes, "DeleteOptions", lambda uid, version="": DeleteOptions(uid=uid))
    with pytest.raises(Broken, match="nobody deleted it"):
        explore(withdrawn, Bounds(only=frozenset({LATE.name, "before it: a claim comes"})))


def test_a_master_on_a_stale_view_does_no_harm_as_every_write_is_guarded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own writes only spare it refused ones: without them, the server refuses what is decided on the past."""
    monkeypatch.setattr(LatestObjects, "get", lambda self, name: self.informer.get(name))
    explore(used_and_released, ONE if SOAK else replace(ONE, only=frozenset({"it comes late", "it comes twice"})))
