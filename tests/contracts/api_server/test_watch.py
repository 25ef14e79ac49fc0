"""Watches: from versions, selectors that begin and cease to match, bookmarks, ends."""

from __future__ import annotations

from contextlib import aclosing

import pytest

from orlop.kube import kinds
from orlop.kube.client import Selection
from support.api.api_objects import config_map, core_event, finalized, labelled, lease, named
from support.api.api_under_test import Api
from support.api.forgotten_history import forgotten_version

LEASE = kinds.LEASE
END = {"k8s.io/initial-events-end": "true"}


def version(event: dict) -> int:
    return int(event["object"]["metadata"]["resourceVersion"])


async def test_a_watch_tells_what_happens_in_order(api: Api):
    after = await api.version()
    made = await api.make(LEASE, lease())
    changed = (await api.patch(LEASE, "l", {"spec": {"holderIdentity": "other"}})).made
    await api.delete(LEASE, "l")

    async with api.watch(LEASE, resourceVersion=after) as watching:
        events = await watching.all(3)
    assert [each["type"] for each in events] == ["ADDED", "MODIFIED", "DELETED"]
    assert events[0]["object"] == made
    assert events[1]["object"] == changed
    assert version(events[2]) > version(events[1]) > version(events[0])


async def test_a_watch_tells_what_happens_while_it_is_open(api: Api):
    async with api.watch(LEASE, resourceVersion=await api.version()) as watching:
        await api.make(LEASE, lease("a"))
        assert await watching.events(1) == [("ADDED", "a")]
        await api.delete(LEASE, "a")
        assert await watching.events(1) == [("DELETED", "a")]
    assert watching.headers["content-type"] == "application/json"


async def test_a_watch_from_nowhere_begins_with_what_is_there(api: Api):
    await api.make(LEASE, lease("a"))
    await api.make(LEASE, lease("b"))

    async with api.watch(LEASE) as watching:
        assert sorted(await watching.events(2)) == [("ADDED", "a"), ("ADDED", "b")]
        await api.make(LEASE, lease("c"))
        assert await watching.events(1) == [("ADDED", "c")]


async def test_a_watch_from_a_version_to_come_shows_what_comes_after_it(api: Api):
    """Others write meanwhile, so the version is far enough away for these writes, and near enough to be reached."""
    made = await api.make(LEASE, lease("a"))
    future = int(made["metadata"]["resourceVersion"]) + 60
    async with api.watch(LEASE, resourceVersion=str(future)) as watching:
        for number in range(80):
            await api.patch(LEASE, "a", {"spec": {"holderIdentity": f"h{number}"}})
        first = await watching.next()
    assert watching.status == 200
    assert first["type"] == "MODIFIED"
    assert version(first) > future


async def test_a_deletion_has_a_version_of_its_own_to_go_on_from(api: Api):
    after = await api.version()
    await api.make(LEASE, lease("a"))
    await api.delete(LEASE, "a")
    async with api.watch(LEASE, resourceVersion=after) as watching:
        _, deleted = await watching.all(2)
    await api.make(LEASE, lease("b"))

    async with api.watch(LEASE, resourceVersion=str(version(deleted))) as watching:
        assert await watching.events(1) == [("ADDED", "b")]


async def test_an_object_that_begins_to_match_is_added_and_one_that_ceases_is_deleted(api: Api):
    after = await api.version()
    await api.make(LEASE, lease("a"))
    added = (await api.patch(LEASE, "a", {"metadata": {"labels": {"x": "1"}}})).made
    removed = (await api.patch(LEASE, "a", {"metadata": {"labels": {"x": None}}})).made

    async with api.watch(LEASE, resourceVersion=after, labelSelector="x=1") as watching:
        first, second = await watching.all(2)
    assert (first["type"], first["object"]) == ("ADDED", added)
    assert second["type"] == "DELETED"
    assert second["object"]["metadata"]["labels"] == {"x": "1"}
    assert second["object"]["metadata"]["resourceVersion"] == removed["metadata"]["resourceVersion"]


async def test_fields_select_what_is_watched(api: Api):
    after = await api.version()
    await api.make(LEASE, lease("a"))
    await api.make(LEASE, lease("b"))

    async with api.watch(LEASE, resourceVersion=after, fieldSelector="metadata.name=b") as watching:
        assert await watching.events(1) == [("ADDED", "b")]


async def test_one_object_is_watched_by_its_name(api: Api):
    await api.make(LEASE, lease("a"))
    await api.make(LEASE, lease("b"))
    async with api.watch(LEASE, fieldSelector="metadata.name=b") as watching:
        assert await watching.events(1) == [("ADDED", "b")]
        await api.delete(LEASE, "a")
        await api.delete(LEASE, "b")
        assert await watching.events(1) == [("DELETED", "b")]


async def test_the_last_finalizer_is_told_as_a_deletion_only(api: Api):
    await api.make(LEASE, finalized(lease(), "example.com/held"))
    async with api.watch(LEASE, resourceVersion=await api.version()) as watching:
        await api.delete(LEASE, "l")
        await api.patch(LEASE, "l", {"metadata": {"finalizers": None}})
        await api.make(LEASE, lease("next"))
        assert await watching.events(3) == [("MODIFIED", "l"), ("DELETED", "l"), ("ADDED", "next")]


async def test_writes_that_change_nothing_are_not_told(api: Api):
    made = await api.make(LEASE, lease())
    async with api.watch(LEASE, resourceVersion=await api.version()) as watching:
        await api.put(LEASE, made)
        await api.patch(LEASE, "l", {"spec": made["spec"]})
        await api.make(LEASE, lease("next"))
        assert await watching.events(1) == [("ADDED", "next")]


async def test_a_dry_run_is_not_told(api: Api):
    async with api.watch(LEASE, resourceVersion=await api.version()) as watching:
        await api.create(LEASE, lease("dry"), dryRun="All")
        await api.make(LEASE, lease("wet"))
        assert await watching.events(1) == [("ADDED", "wet")]


async def test_all_namespaces_are_watched_at_once(api: Api):
    after = await api.version()
    await api.make(LEASE, lease("mine"))
    async with api.watch_path(
        LEASE.collection_path(None), resourceVersion=after, fieldSelector=f"metadata.namespace={api.namespace}"
    ) as watching:
        assert await watching.events(1) == [("ADDED", "mine")]


async def test_a_collection_that_is_deleted_is_told_one_by_one(api: Api):
    for name in ("a", "b"):
        await api.make(LEASE, lease(name))
    async with api.watch(LEASE, resourceVersion=await api.version()) as watching:
        await api.ask("DELETE", api.path(LEASE))
        assert sorted(await watching.events(2)) == [("DELETED", "a"), ("DELETED", "b")]


async def test_initial_events_end_with_a_bookmark(api: Api):
    made = [await api.make(LEASE, lease(name)) for name in ("a", "b")]
    newest = max(int(each["metadata"]["resourceVersion"]) for each in made)
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(LEASE, **query) as watching:
        events = await watching.all(3)
        assert sorted((each["type"], each["object"]["metadata"].get("name")) for each in events[:2]) == [
            ("ADDED", "a"),
            ("ADDED", "b"),
        ]
        assert events[2]["type"] == "BOOKMARK"
        bookmark = events[2]["object"]
        assert (bookmark["kind"], bookmark["apiVersion"]) == ("Lease", "coordination.k8s.io/v1")
        assert bookmark["metadata"]["annotations"] == END
        assert version(events[2]) >= newest
        await api.make(LEASE, lease("c"))
        assert await watching.events(1) == [("ADDED", "c")]


async def test_initial_events_of_nothing_are_a_bookmark_alone(api: Api):
    query = {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(LEASE, labelSelector="no=such", **query) as watching:
        (event,) = await watching.all(1)
    assert event["type"] == "BOOKMARK"
    assert event["object"]["metadata"]["annotations"] == END


async def test_initial_events_can_be_declined(api: Api):
    await api.make(LEASE, lease("a"))
    after = await api.version()
    query = {"sendInitialEvents": "false", "resourceVersionMatch": "NotOlderThan", "allowWatchBookmarks": "true"}
    async with api.watch(LEASE, resourceVersion=after, **query) as watching:
        await api.make(LEASE, lease("b"))
        assert await watching.events(1) == [("ADDED", "b")]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ({"sendInitialEvents": "true"}, "resourceVersionMatch"),
        ({"sendInitialEvents": "true", "resourceVersionMatch": "Exact"}, "resourceVersionMatch"),
        ({"resourceVersionMatch": "NotOlderThan"}, "resourceVersionMatch"),
    ],
    ids=str,
)
async def test_initial_events_need_their_match(api: Api, query: dict, field: str):
    answer = await api.list(LEASE, watch="true", **query)

    assert (answer.status, answer.json["reason"]) == (422, "Invalid")
    assert answer.json["message"].startswith('ListOptions.meta.k8s.io "" is invalid: ')
    assert field in {cause["field"] for cause in answer.json["details"]["causes"]}


async def test_a_watch_ends_by_itself_after_its_time(api: Api):
    await api.make(LEASE, lease("a"))
    async with api.watch(LEASE, timeoutSeconds="1") as watching:
        events = await watching.rest()

    assert [each["type"] for each in events] == ["ADDED"]


async def test_a_bookmark_comes_before_the_end(api: Api):
    if not api.can.waits_gladly:
        pytest.skip("takes four real seconds; in process they are virtual")
    after = await api.version()
    await api.make(LEASE, lease("a"))
    query = {"resourceVersion": after, "timeoutSeconds": "4", "allowWatchBookmarks": "true"}
    async with api.watch(LEASE, labelSelector="no=such", **query) as watching:
        events = await watching.rest()

    assert events
    assert {each["type"] for each in events} == {"BOOKMARK"}
    assert events[-1]["object"]["kind"] == "Lease"
    assert version(events[-1]) >= int(after)
    assert "annotations" not in events[-1]["object"]["metadata"]


async def test_a_version_long_gone_is_told_in_an_event_of_its_own(api: Api):
    forgotten = await forgotten_version(api)
    async with api.watch(LEASE, resourceVersion=forgotten) as watching:
        (event,) = await watching.rest()

    assert event["type"] == "ERROR"
    status = event["object"]
    assert (status["kind"], status["status"], status["reason"], status["code"]) == ("Status", "Failure", "Expired", 410)
    assert status["message"].startswith(f"too old resource version: {forgotten} (")


async def test_a_version_that_is_no_number_is_refused(api: Api):
    answer = await api.list(LEASE, watch="true", resourceVersion="x")

    assert answer.status in {400, 500}, answer.text  # kube-apiserver: 500 without a reason; what is meant is 400
    assert 'resourceVersion: Invalid value: "x"' in answer.json["message"]


async def test_a_bad_selector_is_refused_before_the_watch_begins(api: Api):
    (await api.list(LEASE, watch="true", labelSelector="a b")).says(400, "BadRequest", "")
    (await api.list(LEASE, watch="true", fieldSelector="spec.x=1")).is_refused(
        400, "BadRequest", '"spec.x" is not a known field selector: only "metadata.name", "metadata.namespace"'
    )


async def test_the_client_watches_with_bookmarks_and_raises_errors(api: Api):
    await api.make(LEASE, lease("a"))
    async with aclosing(api.client.watch(LEASE, Selection(api.namespace))) as events:
        async for event in events:
            assert (event.type, event.object["metadata"]["name"]) == ("ADDED", "a")
            break


async def test_a_watch_sees_both_forms_of_an_event(api: Api):
    await api.make(kinds.CORE_EVENT, core_event("e", api.namespace))
    async with api.watch(kinds.EVENT) as watching:
        (event,) = await watching.all(1)
    assert event["object"]["apiVersion"] == "events.k8s.io/v1"
    assert event["object"]["note"] == "it was tested"


async def test_metadata_alone_can_be_watched(api: Api):
    made = await api.make(kinds.CONFIG_MAP, labelled(config_map("m", a="1"), x="y"))
    accept = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
    async with api.watch(kinds.CONFIG_MAP, accept=accept, labelSelector="x=y") as watching:
        (event,) = await watching.all(1)

    assert event["object"] == {
        "kind": "PartialObjectMetadata",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": made["metadata"],
    }


async def test_a_watched_namespace_that_is_not_there_tells_nothing(api: Api):
    async with api.watch_path(LEASE.collection_path(api.unique("missing"))) as watching:
        assert watching.status == 200


async def test_the_old_path_of_a_watch_is_not_served_or_serves_the_same(api: Api):
    await api.make(kinds.SECRET, named("s"))
    async with api.watch_path(f"/api/v1/watch/namespaces/{api.namespace}/secrets") as watching:
        assert watching.status in {200, 404}
