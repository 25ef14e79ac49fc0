"""The attacher in every history within bounds: I5 and I8 hold, and in the end the driver has what the objects say.

`make test` plays all histories with one departure, of one scenario also those in which two writes conflict, lose their
reply or are the last of a process, and of each a random sample of those with more. `make soak` plays all with at most
two departures (two faults, or a fault and an early act) of each.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

from orlop.csi import client as csi_client
from orlop.kube.client import KubeClient
from orlop.sidecars.attacher import attach_handler, attach_rules, attachment_controller
from orlop.sidecars.attacher.attach_rules import (
    AttachmentFacts,
    Nothing,
    ProtectAttachment,
    ProtectVolume,
    Publish,
    Step,
    Unpublish,
)
from orlop.testing.explorer import Bounds, Broken, explore, explore_randomly, replay
from orlop.testing.explorer.api_seam import CONFLICT
from orlop.testing.explorer.effects import DIES_AFTER, REPLY_LOST
from orlop.testing.explorer.search import Scenario
from support.attaching.attacher_scenarios import SCENARIOS, attached_and_given_up, node_gone

SOAK = bool(os.environ.get("ORLOP_SOAK"))
ONE = Bounds(faults=1, departures=1)
UNHEARD = Bounds(only=frozenset({"the reply is lost", "before it: it is wanted no more"}))
TWICE = Bounds(only=frozenset({REPLY_LOST.name, DIES_AFTER.name, CONFLICT}))
MANY = Bounds(faults=4, early_acts=2, departures=5, choices=60)
RANDOM_HISTORIES = 500 if SOAK else 5
rules = attach_rules.next_step


@pytest.mark.timeout(900)
def test_in_every_history_with_two_departures_what_is_attached_is_published_and_nothing_is_left() -> None:
    explored = explore(attached_and_given_up, Bounds() if SOAK else TWICE)
    assert explored.histories > (3_000 if SOAK else 150)
    assert len(explored.choices) >= 14


@pytest.mark.timeout(900)
@pytest.mark.parametrize("scenario", SCENARIOS[1:] if SOAK else SCENARIOS)
def test_the_same_holds_whatever_happens_to_the_object_its_volume_and_its_node(scenario: Scenario) -> None:
    explore(scenario, Bounds() if SOAK else ONE)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("scenario", SCENARIOS)
def test_the_same_holds_in_random_histories_with_more_departures(scenario: Scenario) -> None:
    explore_randomly(scenario, seed=7, histories=RANDOM_HISTORIES, bounds=MANY)


# ---- what was found once ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("late", ["7: the reply is lost, and it is late", "8: it comes late"])
def test_an_error_that_is_told_late_does_not_stay_on_what_is_attached(late: str) -> None:
    replay(attached_and_given_up, f"6: a final error; {late}")


# ---- these checks have teeth: attachers with one mistake each --------------------------------------------------------


def next_step_with(monkeypatch: pytest.MonkeyPatch, mistake: object) -> None:
    monkeypatch.setattr(attach_handler, "next_step", mistake)


def no_protection_of_the_volume(facts: AttachmentFacts) -> Step:
    step = rules(facts)
    if not isinstance(step, ProtectVolume) or facts.node_id is None:
        return step
    return ProtectAttachment(attach_rules._protection(facts.attachment, facts.finalizer, facts.node_id))


def detaches_what_was_attached_alone(facts: AttachmentFacts) -> Step:
    step = rules(facts)
    if isinstance(step, Unpublish) and not attach_rules.is_attached(facts.attachment):
        return Nothing("it never was")
    return step


def asks_where_the_node_is_now(facts: AttachmentFacts) -> Step:
    step = rules(facts)
    return Unpublish(step.source, facts.node_id or "unknown") if isinstance(step, Unpublish) else step


def publishes_at_any_id(facts: AttachmentFacts) -> Step:
    step = rules(facts)
    return Publish(step.source, "id-9") if isinstance(step, Publish) else step


@pytest.mark.parametrize(
    ("mistake", "scenario", "bounds"),
    [
        (no_protection_of_the_volume, attached_and_given_up, ONE),
        (publishes_at_any_id, attached_and_given_up, ONE),
        (asks_where_the_node_is_now, node_gone, ONE),
        (detaches_what_was_attached_alone, attached_and_given_up, UNHEARD),
    ],
)
def test_an_attacher_that_decides_wrongly_is_found_out(
    mistake: object, scenario: Scenario, bounds: Bounds, monkeypatch: pytest.MonkeyPatch
) -> None:
    next_step_with(monkeypatch, mistake)
    with pytest.raises(Broken):
        explore(scenario, bounds)


def test_an_attacher_that_tells_before_it_is_so_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    take = attach_handler.AttachHandler._take

    async def hasty(self: attach_handler.AttachHandler, step: Step, subject: Any) -> None:
        if isinstance(step, Publish):
            told = attach_rules.attached_patch(subject.existing_attachment, {})
            await self._patch(subject, told, "status")
        await take(self, step, subject)

    monkeypatch.setattr(attach_handler.AttachHandler, "_take", hasty)
    with pytest.raises(Broken, match="the driver has not published it"):
        explore(attached_and_given_up, ONE)


def test_an_attacher_that_goes_on_without_its_lease_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    made = attach_handler.AttachHandler.__init__

    def heedless(self: attach_handler.AttachHandler, *given: Any, **named: Any) -> None:
        made(self, *given, **named)
        self._may_act = lambda: None

    monkeypatch.setattr(attach_handler.AttachHandler, "__init__", heedless)
    monkeypatch.setattr(KubeClient, "guarded", lambda self, _may_write: self)
    with pytest.raises(Broken, match="has lost its lease"):
        explore(attached_and_given_up, ONE)


def test_an_attacher_that_forgets_its_volumes_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_controller, "volume_release_patch", lambda *_facts: None)
    with pytest.raises(Broken, match="our finalizer still"):
        explore(attached_and_given_up, ONE)


@pytest.mark.parametrize("option", ["a final error", "no connection", "the reply is lost"])
def test_an_attacher_that_tells_what_the_driver_quotes_is_found_out(
    option: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(csi_client, "hide", lambda text, _secrets: text)
    with pytest.raises(Broken, match="the secret stands on VolumeAttachment va1"):
        explore(attached_and_given_up, Bounds(faults=1, departures=1, only=frozenset({option})))
