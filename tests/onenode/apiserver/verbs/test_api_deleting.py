"""Deleting objects: at once, with finalizers, pods with their time, collections, namespaces."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.verbs.deletion_rules import KeepObject, RemoveObject, deletion, is_over
from support.api.api_servers import TestServer, api_server

MAPS = "/api/v1/namespaces/default/configmaps"
PODS = "/api/v1/namespaces/default/pods"
MERGE = "application/merge-patch+json"
NOW = datetime(2026, 1, 1, tzinfo=UTC)


def named(name: str, **metadata: object) -> dict:
    return {"metadata": {"name": name, **metadata}}


async def pod_on_node(server: TestServer, name: str = "p", **metadata: object) -> None:
    await server.ask("POST", "/api/v1/namespaces/default/serviceaccounts", named("default"))
    spec = {"containers": [{"name": "c", "image": "i"}], "nodeName": "n"}
    answer = await server.ask("POST", PODS, {**named(name, **metadata), "spec": spec})
    assert answer.status == 201, answer.body


async def test_some_kinds_are_answered_with_themselves_and_others_with_a_status():
    async with api_server() as server:
        made = (await server.ask("POST", MAPS, named("a"))).body
        answer = await server.ask("DELETE", f"{MAPS}/a", {"propagationPolicy": "Background"})
        details = {"name": "a", "kind": "configmaps", "uid": made["metadata"]["uid"]}
        assert (answer.status, answer.body["status"], answer.body["details"]) == (200, "Success", details)
        path = "/apis/storage.k8s.io/v1/storageclasses"
        await server.ask("POST", path, {**named("s"), "provisioner": "p"})
        assert (await server.ask("DELETE", f"{path}/s")).body["kind"] == "StorageClass"
        assert (await server.ask("DELETE", f"{path}/s")).status == 404


async def test_an_object_with_finalizers_goes_with_the_last_of_them_and_watchers_see_it_go():
    async with api_server() as server:
        made = (await server.ask("POST", MAPS, named("a", finalizers=["x/y"]))).body
        version = made["metadata"]["resourceVersion"]
        marked = (await server.ask("DELETE", f"{MAPS}/a")).body
        assert marked["metadata"]["deletionTimestamp"]
        assert marked["metadata"]["deletionGracePeriodSeconds"] == 0
        assert (await server.ask("DELETE", f"{MAPS}/a")).body == marked
        more = {"metadata": {"finalizers": ["x/y", "x/z"]}}
        refused = await server.ask("PATCH", f"{MAPS}/a", more, content_type=MERGE)
        assert refused.status == 422
        assert 'found new finalizers []string{"x/z"}' in refused.body["message"]
        gone = await server.ask("PATCH", f"{MAPS}/a", {"metadata": {"finalizers": None}}, content_type=MERGE)
        assert gone.status == 200
        assert (await server.ask("GET", f"{MAPS}/a")).status == 404
        async with server.watch(f"{MAPS}?watch=1&resourceVersion={version}") as watch:
            events = [await watch.next() for _ in range(2)]
        assert [event["type"] for event in events] == ["MODIFIED", "DELETED"]
        versions = [int(event["object"]["metadata"]["resourceVersion"]) for event in events]
        assert versions[0] < versions[1]


async def test_preconditions_are_looked_at_first():
    async with api_server() as server:
        made = (await server.ask("POST", MAPS, named("a"))).body["metadata"]
        wrong_uid = await server.ask("DELETE", f"{MAPS}/a", {"preconditions": {"uid": "u"}})
        assert wrong_uid.status == 409
        assert wrong_uid.body["message"] == (
            f'Operation cannot be fulfilled on ConfigMap "a": the UID in the precondition (u) does not match the UID '
            f"in record ({made['uid']}). The object might have been deleted and then recreated"
        )
        assert wrong_uid.body["details"]["kind"] == "ConfigMap"
        wrong_version = await server.ask("DELETE", f"{MAPS}/a", {"preconditions": {"resourceVersion": "1"}})
        assert wrong_version.body["message"].endswith(
            f"the ResourceVersion in the precondition (1) does not match the ResourceVersion in record "
            f"({made['resourceVersion']}). The object might have been modified"
        )
        right = {"preconditions": {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}}
        assert (await server.ask("DELETE", f"{MAPS}/a", right)).status == 200


async def test_a_pod_on_a_node_is_given_its_time_and_goes_when_that_is_nothing():
    async with api_server() as server:
        await pod_on_node(server)
        marked = (await server.ask("DELETE", f"{PODS}/p")).body["metadata"]
        assert marked["deletionGracePeriodSeconds"] == 30
        assert marked["generation"] == 2
        longer = (await server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 60})).body["metadata"]
        assert longer == marked
        shorter = (await server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 5})).body["metadata"]
        assert shorter["deletionGracePeriodSeconds"] == 5
        assert shorter["deletionTimestamp"] < marked["deletionTimestamp"]
        assert (await server.ask("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})).status == 200
        assert (await server.ask("GET", f"{PODS}/p")).status == 404


async def test_a_dying_pod_without_finalizers_stays_for_its_time():
    async with api_server() as server:
        await pod_on_node(server, finalizers=["x/y"])
        await server.ask("DELETE", f"{PODS}/p")
        await server.ask("PATCH", f"{PODS}/p", {"metadata": {"finalizers": None}}, content_type=MERGE)
        assert (await server.ask("GET", f"{PODS}/p")).status == 200


async def test_a_pod_that_runs_nowhere_goes_at_once():
    async with api_server() as server:
        await pod_on_node(server, "other")
        spec = {"containers": [{"name": "c", "image": "i"}]}
        await server.ask("POST", PODS, {**named("p"), "spec": spec})
        assert (await server.ask("DELETE", f"{PODS}/p")).status == 200
        assert (await server.ask("GET", f"{PODS}/p")).status == 404


@pytest.mark.parametrize(("policy", "finalizer"), [("Orphan", "orphan"), ("Foreground", "foregroundDeletion")])
async def test_what_dependents_need_is_left_to_a_garbage_collector(policy: str, finalizer: str):
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        marked = (await server.ask("DELETE", f"{MAPS}/a", {"propagationPolicy": policy})).body
        assert marked["metadata"]["finalizers"] == [finalizer]
        assert marked["metadata"]["deletionTimestamp"]


async def test_a_selection_is_deleted_together():
    async with api_server() as server:
        for name, team in (("a", "x"), ("b", "y"), ("c", "x")):
            await server.ask("POST", MAPS, named(name, labels={"team": team}))
        answer = await server.ask("DELETE", f"{MAPS}?labelSelector=team=x")
        assert answer.body["kind"] == "ConfigMapList"
        assert [item["metadata"]["name"] for item in answer.body["items"]] == ["a", "c"]
        left = (await server.ask("GET", MAPS)).body["items"]
        assert [item["metadata"]["name"] for item in left] == ["b"]


@pytest.mark.parametrize("body", [b"{", b"[]", b'{"kind":"Cake"}', b'{"gracePeriodSeconds":"x"}'])
async def test_a_body_that_is_no_options_deletes_nothing(body: bytes):
    async with api_server() as server:
        await server.ask("POST", MAPS, named("a"))
        assert (await server.ask("DELETE", f"{MAPS}/a", body)).status == 400
        assert (await server.ask("GET", f"{MAPS}/a")).status == 200


# ---- the rule --------------------------------------------------------------------------------------------------------

OPTIONS = st.builds(
    DeletionOptions,
    propagation=st.sampled_from(["", "Background", "Orphan", "Foreground"]),
    grace_seconds=st.none() | st.integers(-2, 60),
)
OBJECTS = st.builds(
    lambda kind, finalizers, node, phase: {
        "kind": kind,
        "metadata": {"name": "o", "generation": 1, **({"finalizers": finalizers} if finalizers else {})},
        "spec": {"terminationGracePeriodSeconds": 30, **({"nodeName": "n"} if node else {})},
        "status": {"phase": phase},
    },
    st.sampled_from(["Pod", "ConfigMap", "PersistentVolume"]),
    st.lists(st.sampled_from(["x/a", "x/b", "orphan"]), unique=True),
    st.booleans(),
    st.sampled_from(["Pending", "Running", "Succeeded"]),
)


@given(OBJECTS, st.lists(OPTIONS, min_size=1, max_size=5))
def test_deleting_again_never_brings_back_nor_lengthens(obj: dict, many: list[DeletionOptions]):
    moment = NOW
    before = obj
    for options in many:
        outcome = deletion(before, options, moment)
        after = outcome.object
        if isinstance(outcome, RemoveObject):
            assert set(after["metadata"].get("finalizers", [])) <= {"orphan"}  # seen last as it was stored
            return
        assert isinstance(outcome, KeepObject)
        assert after["metadata"]["deletionTimestamp"]
        assert after["metadata"].get("finalizers") or after["metadata"]["deletionGracePeriodSeconds"] > 0
        assert not is_over(after)
        if "deletionTimestamp" in before["metadata"]:
            assert after["metadata"]["deletionTimestamp"] <= before["metadata"]["deletionTimestamp"]
            assert after["metadata"]["generation"] == before["metadata"]["generation"] == 2
        before, moment = after, moment + timedelta(seconds=1)
