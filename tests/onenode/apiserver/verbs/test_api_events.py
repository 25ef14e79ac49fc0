"""Events: one store, two forms."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.verbs.stored_objects import ALWAYS_IN_CORE, CORE_NAMES, NEW_NAMES, from_core, to_core
from onenode.testing.api_server import schemas
from orlop.kube.objects import time_text
from orlop.testing.virtual_clock import VirtualClock
from support.api.api_servers import api_server

CORE = "/api/v1/namespaces/default/events"
NEW = "/apis/events.k8s.io/v1/namespaces/default/events"
ABOUT = {"kind": "Pod", "namespace": "default", "name": "p"}
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def new_event(name: str = "e") -> dict:
    return {
        "metadata": {"name": name},
        "eventTime": "2026-01-01T00:00:00.000000Z",
        "reportingController": "x/y",
        "reportingInstance": "i",
        "action": "a",
        "reason": "Because",
        "regarding": ABOUT,
        "note": "so",
        "type": "Normal",
    }


async def test_an_event_of_one_form_is_read_in_both():
    async with api_server() as server:
        made = await server.ask("POST", NEW, new_event())
        assert made.status == 201, made.body
        assert (made.body["apiVersion"], made.body["note"]) == ("events.k8s.io/v1", "so")
        core = (await server.ask("GET", f"{CORE}/e")).body
        assert (core["apiVersion"], core["message"], core["involvedObject"]) == ("v1", "so", ABOUT)
        assert core["reportingComponent"] == "x/y"
        old = {"metadata": {"name": "o"}, "involvedObject": ABOUT, "message": "m", "count": 1, "type": "Normal"}
        assert (await server.ask("POST", CORE, old)).status == 201
        new = (await server.ask("GET", f"{NEW}/o")).body
        assert (new["regarding"], new["note"], new["deprecatedCount"]) == (ABOUT, "m", 1)
        listed = (await server.ask("GET", NEW)).body
        assert listed["kind"] == "EventList"
        assert [item["note"] for item in listed["items"]] == ["so", "m"]
        assert "kind" not in listed["items"][0]


async def test_each_form_is_changed_selected_and_watched_by_its_own_names():
    async with api_server() as server:
        await server.ask("POST", NEW, new_event())
        patch = {"message": "more", "count": 2}
        kind = "application/strategic-merge-patch+json"
        assert (await server.ask("PATCH", f"{CORE}/e", patch, content_type=kind)).body["message"] == "more"
        for path, selector in ((CORE, "involvedObject.name=p,reason=Because"), (NEW, "regarding.name=p")):
            assert len((await server.ask("GET", f"{path}?fieldSelector={selector}")).body["items"]) == 1
            assert (await server.ask("GET", f"{path}?fieldSelector={selector}x")).body["items"] == []
        assert (await server.ask("GET", f"{NEW}?fieldSelector=involvedObject.name=p")).status == 400
        async with server.watch(f"{NEW}?watch=true") as new, server.watch(f"{CORE}?watch=true") as core:
            assert (await new.next())["object"]["note"] == "more"
            assert (await core.next())["object"]["message"] == "more"
            await server.ask("DELETE", f"{NEW}/e")
            gone = await core.next()
            assert (gone["type"], gone["object"]["apiVersion"]) == ("DELETED", "v1")
            assert (await new.next())["object"]["apiVersion"] == "events.k8s.io/v1"


async def test_tables_of_both_forms_are_alike():
    async with api_server() as server:
        await server.ask("POST", NEW, new_event())
        core = (await server.ask("GET", CORE, accept=TABLE)).body
        new = (await server.ask("GET", NEW, accept=TABLE)).body
        assert core["rows"][0]["cells"] == new["rows"][0]["cells"]
        assert core["rows"][0]["cells"][3] == "pod/p"


@pytest.mark.virtual_time
async def test_events_are_kept_for_an_hour_after_they_were_last_seen():
    clock = VirtualClock()
    async with api_server(clock) as server:
        old = {"involvedObject": ABOUT, "type": "Normal"}
        for name in ("once", "again", "odd"):
            await server.ask("POST", CORE, {"metadata": {"name": name}, **old})
        await clock.sleep(3000)
        seen = {"lastTimestamp": time_text(clock.now()), "count": 2}
        kind = "application/merge-patch+json"
        await server.ask("PATCH", f"{CORE}/again", seen, content_type=kind)
        await server.ask("PATCH", f"{CORE}/odd", {"lastTimestamp": "2999-01-01T00:00:00Z"}, content_type=kind)
        assert len((await server.ask("GET", CORE)).body["items"]) == 3
        await clock.sleep(700)
        left = (await server.ask("GET", CORE)).body["items"]
        assert [event["metadata"]["name"] for event in left] == ["again"]
        await clock.sleep(3600)
        assert (await server.ask("GET", CORE)).body["items"] == []


def test_every_field_of_one_form_has_its_place_in_the_other():
    core = set(schemas().kind("v1", "Event").fields)
    new = set(schemas().kind("events.k8s.io/v1", "Event").fields)
    assert {NEW_NAMES.get(name, name) for name in core} == new
    assert {CORE_NAMES.get(name, name) for name in new} == core


@given(st.dictionaries(st.sampled_from([*NEW_NAMES, "metadata", "reason"]), st.integers()))
def test_mapping_back_and_forth_loses_nothing(event: dict):
    typed = {**event, "kind": "Event", "apiVersion": "v1"}
    assert to_core(from_core(typed)) == {**ALWAYS_IN_CORE, **typed}
