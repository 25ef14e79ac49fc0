"""How objects go: at once, after their finalizers, after their grace; alone, or a whole collection."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import (
    SMALLEST,
    STORED,
    config_map,
    finalized,
    labelled,
    lease,
    named,
    pod,
    storage_class,
)
from support.api.api_under_test import Api

HELD = "example.com/held"
ANSWERED_WITH_THE_OBJECT = {
    kinds.NAMESPACE,
    kinds.POD,
    kinds.PERSISTENT_VOLUME,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.SERVICE_ACCOUNT,
    kinds.STORAGE_CLASS,
    kinds.CSI_DRIVER,
    kinds.CSI_NODE,
    kinds.VOLUME_ATTACHMENT,
}


@pytest.mark.parametrize("kind", [each for each in STORED if each is not kinds.NAMESPACE], ids=str)
async def test_a_deleted_object_is_gone_and_the_answer_tells_which_it_was(api: Api, kind: Kind):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    name = "x" if kind.namespaced else api.unique("x")
    made = await api.make(kind, SMALLEST[kind](name, api.namespace))
    answer = await api.delete(kind, name)
    if made["metadata"].get("finalizers"):  # where nobody protects it; who does would only put them back before
        await api.patch(kind, name, {"metadata": {"finalizers": None}})

    assert answer.status == 200
    if kind in ANSWERED_WITH_THE_OBJECT:
        assert (answer.json["kind"], answer.json["metadata"]["uid"]) == (kind.kind, made["metadata"]["uid"])
    else:
        details = {"name": name, "kind": kind.plural, "uid": made["metadata"]["uid"]}
        details |= {"group": kind.group} if kind.group else {}
        succeeded = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "details": details}
        assert answer.json == succeeded
    assert (await api.get(kind, name)).status == 404


async def test_what_is_not_there_cannot_be_deleted(api: Api):
    (await api.delete(kinds.CONFIG_MAP, "ghost")).is_refused(
        404, "NotFound", 'configmaps "ghost" not found', {"name": "ghost", "kind": "configmaps"}
    )


async def test_an_object_with_finalizers_stays_and_is_marked(api: Api):
    made = await api.make(kinds.CONFIG_MAP, finalized(config_map(), HELD))
    answer = await api.delete(kinds.CONFIG_MAP, "c")

    assert answer.status == 200
    metadata = answer.json["metadata"]
    assert metadata["deletionTimestamp"] >= metadata["creationTimestamp"]
    assert metadata["deletionGracePeriodSeconds"] == 0
    assert metadata["resourceVersion"] != made["metadata"]["resourceVersion"]
    assert await api.read(kinds.CONFIG_MAP, "c") == answer.json


async def test_deleting_it_again_changes_nothing(api: Api):
    await api.make(kinds.CONFIG_MAP, finalized(config_map(), HELD))
    first = await api.delete(kinds.CONFIG_MAP, "c")
    second = await api.delete(kinds.CONFIG_MAP, "c")

    assert (second.status, second.json) == (200, first.json)


async def test_it_goes_with_its_last_finalizer(api: Api):
    await api.make(kinds.CONFIG_MAP, finalized(config_map(), HELD, "example.com/too"))
    await api.delete(kinds.CONFIG_MAP, "c")
    kept = await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"finalizers": [HELD]}})
    assert kept.made["metadata"]["finalizers"] == [HELD]
    last = await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"finalizers": None}})

    assert last.status == 200
    assert "finalizers" not in last.json["metadata"]
    assert (await api.get(kinds.CONFIG_MAP, "c")).status == 404


async def test_a_dying_object_gets_no_new_finalizers(api: Api):
    await api.make(kinds.CONFIG_MAP, finalized(config_map(), HELD))
    await api.delete(kinds.CONFIG_MAP, "c")
    answer = await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"finalizers": [HELD, "example.com/y"]}})

    answer.is_invalid(("FieldValueForbidden", "metadata.finalizers"))
    assert answer.cause_messages["metadata.finalizers"] == (
        "Forbidden: no new finalizers can be added if the object is being deleted, "
        'found new finalizers []string{"example.com/y"}'
    )


async def test_a_dying_object_raises_a_counted_generation(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, finalized(pod(), HELD))
    answer = await api.delete(kinds.POD, "p")

    assert answer.made["metadata"]["generation"] == 2


@pytest.mark.parametrize("policy", ["Orphan", "Foreground"])
async def test_a_policy_for_dependents_becomes_a_finalizer(api: Api, policy: str):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.delete(kinds.CONFIG_MAP, "c", {"propagationPolicy": policy})

    finalizer = {"Orphan": "orphan", "Foreground": "foregroundDeletion"}[policy]
    assert answer.made["metadata"]["finalizers"] == [finalizer]
    assert answer.made["metadata"]["deletionTimestamp"]


async def test_deleting_in_the_background_adds_none(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.delete(kinds.CONFIG_MAP, "c", {"propagationPolicy": "Background"})

    assert answer.json["status"] == "Success"
    assert (await api.get(kinds.CONFIG_MAP, "c")).status == 404


async def test_another_uid_than_the_one_meant_is_not_deleted(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.delete(kinds.CONFIG_MAP, "c", {"preconditions": {"uid": "other"}})

    answer.is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on ConfigMap "c": the UID in the precondition (other) does not match the UID '
        f"in record ({made['metadata']['uid']}). The object might have been deleted and then recreated",
        {"name": "c", "kind": "ConfigMap"},
    )
    assert (await api.get(kinds.CONFIG_MAP, "c")).status == 200


async def test_another_version_than_the_one_meant_is_not_deleted(api: Api):
    made = await api.make(kinds.LEASE, lease())
    answer = await api.delete(kinds.LEASE, "l", {"preconditions": {"resourceVersion": "1"}})

    answer.is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on Lease.coordination.k8s.io "l": the ResourceVersion in the precondition (1) '
        f"does not match the ResourceVersion in record ({made['metadata']['resourceVersion']}). "
        "The object might have been modified",
        {"name": "l", "group": "coordination.k8s.io", "kind": "Lease"},
    )


async def test_fulfilled_preconditions_let_it_go(api: Api):
    made = (await api.make(kinds.CONFIG_MAP, config_map()))["metadata"]
    fulfilled = {"preconditions": {"uid": made["uid"], "resourceVersion": made["resourceVersion"]}}

    assert (await api.delete(kinds.CONFIG_MAP, "c", fulfilled)).status == 200
    assert (await api.get(kinds.CONFIG_MAP, "c")).status == 404


async def test_options_may_stand_in_the_query(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.delete(kinds.CONFIG_MAP, "c", propagationPolicy="Orphan")

    assert answer.made["metadata"]["finalizers"] == ["orphan"]


async def test_an_unknown_policy_is_invalid(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.delete(kinds.CONFIG_MAP, "c", {"propagationPolicy": "Fancy"})

    answer.is_invalid(("FieldValueNotSupported", "propagationPolicy"))
    assert answer.json["message"] == (
        'DeleteOptions.meta.k8s.io "" is invalid: propagationPolicy: Unsupported value: "Fancy": '
        'supported values: "Foreground", "Background", "Orphan", "nil"'
    )


async def pod_on_a_node(api: Api, **spec: object) -> None:
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod(nodeName=api.unique("node"), **spec))


async def test_a_pod_on_a_node_stays_for_its_grace(api: Api):
    await pod_on_a_node(api)
    metadata = (await api.delete(kinds.POD, "p")).made["metadata"]

    assert metadata["deletionGracePeriodSeconds"] == 30
    assert metadata["deletionTimestamp"]
    assert metadata["generation"] == 2
    assert (await api.get(kinds.POD, "p")).status == 200


async def test_a_pods_grace_can_only_be_made_shorter(api: Api):
    await pod_on_a_node(api)

    async def grace(seconds: int) -> int:
        answer = await api.delete(kinds.POD, "p", {"gracePeriodSeconds": seconds})
        return answer.made["metadata"]["deletionGracePeriodSeconds"]

    assert [await grace(seconds) for seconds in (20, 25, 10)] == [20, 20, 10]


async def test_a_pod_without_grace_is_gone_at_once(api: Api):
    await pod_on_a_node(api)
    await api.delete(kinds.POD, "p")

    assert (await api.delete(kinds.POD, "p", {"gracePeriodSeconds": 0})).status == 200
    assert (await api.get(kinds.POD, "p")).status == 404


async def test_a_pod_that_was_never_scheduled_is_gone_at_once(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod())

    assert (await api.delete(kinds.POD, "p")).status == 200
    assert (await api.get(kinds.POD, "p")).status == 404


async def test_a_pod_that_has_finished_is_gone_at_once(api: Api):
    await pod_on_a_node(api)
    await api.patch(kinds.POD, "p", {"status": {"phase": "Succeeded"}}, subresource="status")

    assert (await api.delete(kinds.POD, "p")).status == 200
    assert (await api.get(kinds.POD, "p")).status == 404


async def test_a_collection_is_deleted_as_far_as_it_is_selected(api: Api):
    for name, team in (("a", "red"), ("b", "blue"), ("c", "red")):
        await api.make(kinds.CONFIG_MAP, labelled(config_map(name), team=team))
    answer = await api.ask("DELETE", api.path(kinds.CONFIG_MAP), labelSelector="team=red")

    assert answer.made["kind"] == "ConfigMapList"
    assert sorted(item["metadata"]["name"] for item in answer.json["items"]) == ["a", "c"]
    assert await api.names(kinds.CONFIG_MAP, labelSelector="team") == ["b"]


async def test_a_collection_is_deleted_by_field(api: Api):
    for name in ("a", "b"):
        await api.make(kinds.SECRET, named(name))
    answer = await api.ask("DELETE", api.path(kinds.SECRET), fieldSelector="metadata.name=a")

    assert answer.status == 200
    assert await api.names(kinds.SECRET) == ["b"]


async def test_finalizers_hold_members_of_a_deleted_collection(api: Api):
    await api.make(kinds.LEASE, finalized(lease("held"), HELD))
    await api.make(kinds.LEASE, lease("free"))
    assert (await api.ask("DELETE", api.path(kinds.LEASE))).status == 200

    assert await api.names(kinds.LEASE) == ["held"]
    assert (await api.read(kinds.LEASE, "held"))["metadata"]["deletionTimestamp"]


async def test_a_deleted_name_is_free_again(api: Api):
    name = api.unique("sc")
    first = await api.make(kinds.STORAGE_CLASS, storage_class(name))
    await api.delete(kinds.STORAGE_CLASS, name)
    second = await api.make(kinds.STORAGE_CLASS, storage_class(name))

    assert first["metadata"]["uid"] != second["metadata"]["uid"]


async def test_a_finalizer_of_a_built_in_kind_has_a_domain(api: Api):
    answer = await api.create(kinds.CONFIG_MAP, finalized(config_map(), "mine"))

    answer.is_invalid(("FieldValueInvalid", "metadata.finalizers[0]"))
    assert answer.cause_messages["metadata.finalizers[0]"] == (
        'Invalid value: "mine": name is neither a standard finalizer name nor is it fully qualified'
    )
