"""Events against a model of a server: what people see in the end, and that nobody waits for it or fails by it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.kube.api_errors import ConnectionBroken, NotConnected
from orlop.kube.events.event_bodies import ObjectReference, Reporter, make_occurrence
from orlop.kube.events.event_book import EventBook
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import CORE_EVENT, EVENT
from orlop.testing.virtual_clock import VirtualClock
from support.api.kube_model import ModelServer, encoded, status

pytestmark = pytest.mark.virtual_time

POD = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "ns", "uid": "u"}}


class Setting:
    def __init__(self, *, in_core: bool) -> None:
        self.server = ModelServer()
        self.metrics = Metrics("test", of_process=False)
        self.entries: list[LogEntry] = []
        self.recorder = EventRecorder(
            self.server.client(),
            Reporter("orlop.dev/test", "me", in_core=in_core),
            clock=VirtualClock(),
            random=Random(1),
            log=collecting_log(self.entries),
            metrics=self.metrics,
        )

    def events(self, kind: Any = EVENT) -> list[dict[str, Any]]:
        return self.server.of(kind)

    def dropped(self) -> dict[str, float]:
        families = text_string_to_metric_families(self.metrics.render()[0].decode())
        samples = (sample for family in families for sample in family.samples)
        return {one.labels["reason"]: one.value for one in samples if one.name == "orlop_events_dropped_total"}

    def warnings(self) -> list[str]:
        return [entry.message for entry in self.entries if entry.level.name == "WARNING"]


@asynccontextmanager
async def recording(*, in_core: bool = False) -> AsyncIterator[Setting]:
    setting = Setting(in_core=in_core)
    task = asyncio.create_task(setting.recorder.run())
    try:
        yield setting
    finally:
        task.cancel()
        await asyncio.wait([task])


async def pass_time(seconds: float) -> None:
    await VirtualClock().sleep(seconds)


async def test_what_happened_is_on_the_server_soon():
    async with recording() as setting:
        setting.recorder.warning(POD, "Failed", "no room", action="Provision")
        setting.recorder.normal(POD, "Bound", "all is well", related=ObjectReference("v1", "Node", "n"))
        await pass_time(0.1)

        first, second = setting.events()
        assert (first["type"], first["reason"], first["note"], first["action"]) == (
            "Warning",
            "Failed",
            "no room",
            "Provision",
        )
        assert (second["type"], second["related"]) == ("Normal", {"apiVersion": "v1", "kind": "Node", "name": "n"})
        assert first["metadata"]["name"] != second["metadata"]["name"]


async def test_a_recorder_of_the_older_form_counts_and_has_a_source_and_the_last_time():
    about = ObjectReference.to(POD, "spec.containers{main}")
    async with recording(in_core=True) as setting:
        for _ in range(3):
            setting.recorder.warning(about, "BackOff", "once more")
        await pass_time(0.1)
        (event,) = setting.events(CORE_EVENT)

    assert (event["count"], event["source"]) == (3, {"component": "orlop.dev/test", "host": "me"})
    assert event["firstTimestamp"] <= event["lastTimestamp"]
    assert event["involvedObject"]["fieldPath"] == "spec.containers{main}"
    assert "eventTime" not in event


async def test_the_same_again_is_a_series_and_no_second_event():
    async with recording() as setting:
        for _ in range(30):
            setting.recorder.warning(POD, "Failed", "no room")
            await pass_time(1)
        last = VirtualClock().now().replace(microsecond=0)
        await pass_time(300)

        (event,) = setting.events()
        assert event["series"]["count"] == 30
        assert event["series"]["lastObservedTime"] < last.isoformat()
        assert len(setting.server.asked) < 10


async def test_repetitions_before_the_first_was_written_are_counted_in_it():
    async with recording() as setting:
        for _ in range(5):
            setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(0.1)
        assert [event["series"]["count"] for event in setting.events()] == [5]
        assert len(setting.server.asked) == 1


async def test_a_repetition_while_the_first_is_being_written_is_counted_later():
    async with recording() as setting:
        setting.server.delay = 1.0
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(0.5)
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(60)
        assert [event["series"]["count"] for event in setting.events()] == [2]


async def test_what_happens_again_after_a_long_time_is_something_new():
    async with recording() as setting:
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(400)
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(1)
        assert len(setting.events()) == 2


async def test_a_note_with_a_number_in_it_does_not_flood_the_server():
    async with recording() as setting:
        for number in range(200):
            setting.recorder.warning(POD, "Failed", f"attempt {number} failed")
            await pass_time(0.5)
        await pass_time(300)
        assert len(setting.events()) == 10
        assert sum(event.get("series", {"count": 1})["count"] for event in setting.events()) == 200


async def test_a_series_whose_event_has_expired_goes_on_in_a_new_one():
    async with recording() as setting:
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(1)
        setting.server.remove(EVENT, setting.events()[0]["metadata"]["name"], "ns")
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(60)
        assert [event["series"]["count"] for event in setting.events()] == [2]


def only_core(request: HttpRequest) -> HttpResponse | None:
    return status(403, "Forbidden") if "events.k8s.io" in request.path else None


def not_served(request: HttpRequest) -> HttpResponse | None:
    return status(404, "NotFound") if "events.k8s.io" in request.path else None


@pytest.mark.parametrize("refuse", [only_core, not_served])
async def test_where_only_the_older_form_is_permitted_that_is_written_and_said_once(refuse: Any):
    async with recording() as setting:
        setting.server.refuse = refuse
        for _ in range(3):
            setting.recorder.warning(POD, "Failed", "no room")
            setting.recorder.normal(POD, "Bound", "well")
            await pass_time(30)
        counts = {event["reason"]: event["count"] for event in setting.events(CORE_EVENT)}
        assert counts == {"Failed": 3, "Bound": 3}
        assert len(setting.warnings()) == 1
        tries = [request for request in setting.server.asked if "events.k8s.io" in request.path]
        assert len(tries) == 1


async def test_no_right_at_all_is_said_once_and_lived_without():
    async with recording() as setting:
        setting.server.refuse = lambda _: status(403, "Forbidden")
        for number in range(100):
            setting.recorder.warning(POD, f"Failed{number}", "no room")
            await pass_time(1)
        assert setting.warnings() == ["events are not written: Forbidden"]
        assert setting.dropped() == {"refused": 100}
        assert len(setting.server.asked) < 10
        setting.server.refuse = lambda _: None
        await pass_time(300)
        setting.recorder.warning(POD, "Failed", "now it is permitted")
        await pass_time(1)
        assert len(setting.events()) == 1


async def test_no_right_in_one_namespace_keeps_nothing_from_another():
    elsewhere = {**POD, "metadata": {"name": "p", "namespace": "other"}}
    async with recording() as setting:
        setting.server.refuse = lambda asked: status(403, "Forbidden") if "/ns/" in asked.path else None
        setting.recorder.warning(POD, "Failed", "no room")
        setting.recorder.warning(elsewhere, "Failed", "no room")
        await pass_time(1)
        assert [event["metadata"]["namespace"] for event in setting.events()] == ["other"]


async def test_without_the_right_to_patch_the_first_is_told_and_that_is_said_once():
    async with recording() as setting:
        setting.server.refuse = lambda asked: status(403, "Forbidden") if asked.method == "PATCH" else None
        for _ in range(5):
            setting.recorder.warning(POD, "Failed", "no room")
            await pass_time(60)
        assert len(setting.events()) == 1
        assert len(setting.warnings()) == 1


def going(_: HttpRequest) -> HttpResponse:
    details = {"causes": [{"reason": "NamespaceTerminating", "message": "x"}]}
    return HttpResponse(403, {}, encoded({"kind": "Status", "reason": "Forbidden", "code": 403, "details": details}))


def gone(_: HttpRequest) -> HttpResponse:
    details = {"name": "ns", "kind": "namespaces"}
    return HttpResponse(404, {}, encoded({"kind": "Status", "reason": "NotFound", "code": 404, "details": details}))


@pytest.mark.parametrize("refuse", [going, gone])
async def test_a_namespace_that_goes_says_nothing_of_our_rights(refuse: Any):
    async with recording() as setting:
        setting.server.refuse = refuse
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(1)
        assert len(setting.server.asked) == 1
        setting.server.refuse = lambda _: None
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(1)
        assert (len(setting.events()), setting.warnings(), setting.dropped()) == (1, [], {"refused": 1})


async def test_an_event_whose_answer_was_lost_is_not_written_twice():
    async with recording() as setting:
        create = setting.server._created

        def lose_the_answer(*asked: Any) -> HttpResponse:
            create(*asked)
            setting.server._created = create  # type: ignore[method-assign]
            raise ConnectionBroken("reset")

        setting.server._created = lose_the_answer  # type: ignore[method-assign, assignment]
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(60)
        assert len(setting.events()) == 1
        assert setting.dropped() == {}


async def test_a_server_that_stays_away_costs_events_and_nothing_else():
    async with recording() as setting:
        setting.server.refuse = lambda _: NotConnected("refused")
        for number in range(1500):
            setting.recorder.warning({**POD, "metadata": {"name": f"p{number}", "namespace": "ns"}}, "Failed", "x")
        assert setting.dropped() == {"no room": 500}
        await pass_time(60)
        setting.server.refuse = lambda _: None
        await pass_time(3600)
        assert len(setting.events()) >= 990


@pytest.mark.parametrize("nonsense", [None, 5, {"metadata": 7, "kind": []}, {}])
async def test_nonsense_harms_nobody(nonsense: Any):
    async with recording() as setting:
        setting.recorder.warning(nonsense, "Failed", "no room")
        setting.recorder.warning(POD, None, None)  # type: ignore[arg-type]
        setting.recorder.normal(POD, "Fine", "the next one")
        await pass_time(1)
        assert "Fine" in {event["reason"] for event in setting.events()}


async def test_at_the_end_what_waits_is_told_at_once():
    async with recording() as setting:
        for _ in range(7):
            setting.recorder.warning(POD, "Failed", "no room")
            await pass_time(0.1)
        await setting.recorder.drain(5)
        assert [event["series"]["count"] for event in setting.events()] == [7]
        assert VirtualClock().elapsed() < 1


async def test_a_drain_while_an_event_is_being_written_does_not_write_a_series_of_one():
    async with recording() as setting:
        setting.server.delay = 1.0
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(0.5)
        await setting.recorder.drain(5)
        assert ["series" in event for event in setting.events()] == [False]
        assert len(setting.server.asked) == 1


async def test_the_end_waits_for_an_event_that_is_to_be_tried_again():
    async with recording() as setting:
        setting.server.faults.append(ConnectionBroken("reset"))
        setting.recorder.warning(POD, "Failed", "no room")
        await pass_time(0.1)
        setting.server.faults.append(ConnectionBroken("reset again"))
        await setting.recorder.drain(30)
        assert len(setting.events()) == 1


async def test_the_end_does_not_wait_for_a_server_that_is_away():
    async with recording() as setting:
        setting.server.refuse = lambda _: NotConnected("refused")
        setting.recorder.warning(POD, "Failed", "no room")
        await setting.recorder.drain(5)
        assert VirtualClock().elapsed() == 5


STEPS = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([0.0, 1.0, 100.0, 400.0]), st.booleans()), max_size=80)


@given(STEPS, st.integers(1, 8))
def test_the_book_is_bounded_and_loses_nothing_it_took(steps: list[Any], most: int):
    book, now, told, taken, lost = EventBook(Random(1), most), 0.0, 0, 0, 0
    for number, seconds, write in steps:
        now += seconds
        about = ObjectReference("v1", "Pod", f"p{number % 3}", "ns")
        what = make_occurrence(about, warning=True, reason="Failed", note=str(number), action="", related=None)
        if book.add(what, datetime.fromtimestamp(now, UTC), now):
            taken += 1
        else:
            lost += 1
        assert len(book) <= most
        for entry in book.take_due(now) if write else ():
            told += entry.count - entry.written
            book.written(entry, entry.count, now)
    for entry in book.take_due(now + 10_000):
        told += entry.count - entry.written
        book.written(entry, entry.count, now)

    assert told == taken
    assert taken + lost == len(steps)
    assert book.waiting() == 0
