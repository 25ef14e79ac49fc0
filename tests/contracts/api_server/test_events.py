"""Events: one store, two forms."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from support.api.api_objects import core_event, named, new_event
from support.api.api_under_test import Api


async def test_an_old_event_is_read_in_the_new_form(api: Api):
    body = core_event("e", api.namespace, count=2, source={"component": "me", "host": "h"})
    body |= {"firstTimestamp": "2026-01-02T03:04:05Z", "lastTimestamp": "2026-01-02T03:04:06Z"}
    made = await api.make(kinds.CORE_EVENT, body)
    read = await api.read(kinds.EVENT, "e")

    assert (read["apiVersion"], read["kind"]) == ("events.k8s.io/v1", "Event")
    assert read["metadata"] == made["metadata"]
    assert (read["regarding"], read["note"], read["reason"]) == (body["involvedObject"], "it was tested", "Tested")
    assert read["deprecatedSource"] == {"component": "me", "host": "h"}
    assert read["deprecatedCount"] == 2
    assert read["deprecatedFirstTimestamp"] == "2026-01-02T03:04:05Z"
    assert read["deprecatedLastTimestamp"] == "2026-01-02T03:04:06Z"
    assert not read.keys() & {"involvedObject", "message", "source", "count", "firstTimestamp", "reportingComponent"}


async def test_a_new_event_is_read_in_the_old_form(api: Api):
    body = new_event("e", api.namespace)
    made = await api.make(kinds.EVENT, body)
    read = await api.read(kinds.CORE_EVENT, "e")

    assert made["reportingController"] == "example.com/tests"
    assert (read["involvedObject"], read["message"], read["action"]) == (body["regarding"], "it was tested", "Testing")
    assert (read["reportingComponent"], read["reportingInstance"]) == ("example.com/tests", "t1")
    assert read["eventTime"] == "2026-01-02T03:04:05.000006Z"
    assert (read["firstTimestamp"], read["lastTimestamp"], read["source"]) == (None, None, {})


async def test_an_old_event_repeats_by_a_strategic_patch(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("e", api.namespace, count=1))
    patch = {"count": 2, "lastTimestamp": "2026-01-02T03:04:06Z", "message": "again"}
    after = (await api.patch(kinds.CORE_EVENT, "e", patch, "strategic")).made

    assert (after["count"], after["message"]) == (2, "again")
    assert (await api.read(kinds.EVENT, "e"))["deprecatedCount"] == 2


async def test_a_new_event_becomes_a_series(api: Api):
    await api.make(kinds.EVENT, new_event("e", api.namespace))
    series = {"series": {"count": 2, "lastObservedTime": "2026-01-02T03:04:07.000000Z"}}
    after = (await api.patch(kinds.EVENT, "e", series, "strategic")).made

    assert after["series"] == {"count": 2, "lastObservedTime": "2026-01-02T03:04:07.000000Z"}
    assert (await api.read(kinds.CORE_EVENT, "e"))["series"]["count"] == 2


async def test_one_form_is_deleted_with_the_other(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("e", api.namespace))
    answer = await api.delete(kinds.EVENT, "e")

    assert answer.json["details"]["group"] == "events.k8s.io"
    assert (await api.get(kinds.CORE_EVENT, "e")).status == 404


async def test_one_name_is_one_event_in_either_form(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("e", api.namespace))

    assert (await api.create(kinds.EVENT, new_event("e", api.namespace))).status == 409


async def test_an_event_about_a_cluster_scoped_object_lives_in_default(api: Api):
    name = api.unique("e")
    about = {"kind": "Node", "name": "n1", "apiVersion": "v1"}
    body = {**core_event(name, ""), "involvedObject": about, "metadata": {"name": name, "namespace": "default"}}
    assert (await api.create(kinds.CORE_EVENT, body)).status == 201

    elsewhere = {**core_event("e", ""), "involvedObject": about}
    (await api.create(kinds.CORE_EVENT, elsewhere)).is_invalid(("FieldValueInvalid", "involvedObject.namespace"))


async def test_events_of_an_object_are_found_as_describe_does(api: Api):
    about = {"kind": "Pod", "namespace": api.namespace, "name": "p", "uid": "u1", "apiVersion": "v1"}
    await api.make(kinds.CORE_EVENT, {**core_event("e1", api.namespace), "involvedObject": about})
    await api.make(kinds.CORE_EVENT, core_event("e2", api.namespace))
    selector = f"involvedObject.uid=u1,involvedObject.name=p,involvedObject.namespace={api.namespace}"

    assert await api.names(kinds.CORE_EVENT, fieldSelector=selector) == ["e1"]


@pytest.mark.parametrize("missing", ["reportingInstance", "action", "reason"])
async def test_a_new_event_needs_all_its_parts(api: Api, missing: str):
    body = new_event("e", api.namespace)
    del body[missing]

    (await api.create(kinds.EVENT, body)).is_invalid(("FieldValueRequired", missing))


async def test_a_new_event_needs_to_say_who_reports_it(api: Api):
    body = new_event("e", api.namespace)
    del body["reportingController"]
    answer = await api.create(kinds.EVENT, body)

    twice = ("FieldValueInvalid", "reportingController")
    answer.is_invalid(("FieldValueRequired", "reportingController"), twice, twice)


async def test_what_is_wrong_with_a_new_event_is_told_in_words_of_the_old(api: Api):
    answer = await api.create(kinds.EVENT, {**new_event("e", api.namespace), "note": "x" * 1025})

    cause = {"reason": "FieldValueInvalid", "field": "message"}
    cause["message"] = 'Invalid value: "": can have at most 1024 characters'
    message = f'Event "e" is invalid: message: {cause["message"]}'
    answer.is_refused(422, "Invalid", message, {"name": "e", "kind": "Event", "causes": [cause]})


async def test_an_old_event_needs_little(api: Api):
    about = {"kind": "Pod", "namespace": api.namespace}
    made = await api.make(kinds.CORE_EVENT, named("e", involvedObject=about))

    assert (made.get("reason", ""), made["source"], made.get("count", 0)) == ("", {}, 0)
