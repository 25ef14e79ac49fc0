"""Patches: JSON, merge and strategic merge, and what is wrong with them."""

from __future__ import annotations

import asyncio

import pytest

from orlop.kube import kinds
from support.api.api_objects import (
    config_map,
    container,
    finalized,
    labelled,
    named,
    pod,
    stateful_set,
    volume,
    workload,
)
from support.api.api_under_test import Api

CONFIG_MAP = kinds.CONFIG_MAP


async def test_a_merge_patch_changes_adds_and_removes(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1", b="2"))
    after = (await api.patch(CONFIG_MAP, "c", {"data": {"a": "9", "b": None, "c": "3"}})).made

    assert after["data"] == {"a": "9", "c": "3"}


async def test_a_patch_that_changes_nothing_keeps_the_version(api: Api):
    made = await api.make(CONFIG_MAP, labelled(config_map(a="1"), x="y"))

    for form, patch in (
        ("merge", {"metadata": {"labels": {"x": "y"}}}),
        ("merge", {}),
        ("strategic", {"data": {"a": "1"}}),
        ("json", []),
        ("json", [{"op": "test", "path": "/data/a", "value": "1"}]),
    ):
        assert (await api.patch(CONFIG_MAP, "c", patch, form)).made == made


async def test_one_empty_entry_drops_who_manages_which_field(api: Api):
    entry = {"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsType": "FieldsV1"}
    fields = [{**entry, "fieldsV1": {"f:data": {"f:a": {}}}}]
    made = await api.make(CONFIG_MAP, {**config_map(a="1"), "metadata": {"name": "c", "managedFields": fields}})
    assert made["metadata"]["managedFields"]
    reset = [{"op": "add", "path": "/metadata/managedFields", "value": [{}]}]
    after = (await api.patch(CONFIG_MAP, "c", reset, "json")).made

    assert (after["data"], "managedFields" in after["metadata"]) == ({"a": "1"}, False)


async def test_a_patch_of_what_is_not_there_is_not_found(api: Api):
    (await api.patch(CONFIG_MAP, "ghost", {"data": {"a": "1"}})).is_refused(
        404, "NotFound", 'configmaps "ghost" not found', {"name": "ghost", "kind": "configmaps"}
    )


async def test_a_patch_with_an_old_version_is_a_conflict(api: Api):
    made = await api.make(CONFIG_MAP, config_map())
    await api.patch(CONFIG_MAP, "c", {"data": {"a": "1"}})
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "2"}}

    (await api.patch(CONFIG_MAP, "c", patch)).is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on configmaps "c": the object has been modified; '
        "please apply your changes to the latest version and try again",
        {"name": "c", "kind": "configmaps"},
    )


async def test_a_patch_with_the_newest_version_is_applied(api: Api):
    made = await api.make(CONFIG_MAP, config_map())
    patch = {"metadata": {"resourceVersion": made["metadata"]["resourceVersion"]}, "data": {"a": "2"}}

    assert (await api.patch(CONFIG_MAP, "c", patch)).made["data"] == {"a": "2"}


async def test_a_patch_cannot_rename(api: Api):
    await api.make(CONFIG_MAP, config_map())
    answer = await api.patch(CONFIG_MAP, "c", {"metadata": {"name": "d"}})

    answer.is_refused(400, "BadRequest", "the name of the object (d) does not match the name on the URL (c)")


async def test_each_operation_of_a_json_patch_does_its_work(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1", b="2", c="3"))
    patch = [
        {"op": "test", "path": "/data/a", "value": "1"},
        {"op": "add", "path": "/data/new", "value": "4"},
        {"op": "replace", "path": "/data/a", "value": "9"},
        {"op": "remove", "path": "/data/b"},
        {"op": "move", "from": "/data/c", "path": "/data/moved"},
        {"op": "copy", "from": "/data/a", "path": "/data/copied"},
    ]
    after = (await api.patch(CONFIG_MAP, "c", patch, "json")).made

    assert after["data"] == {"a": "9", "new": "4", "moved": "3", "copied": "9"}


async def test_a_json_patch_works_on_lists(api: Api):
    await api.make(CONFIG_MAP, finalized(config_map(), "example.com/a", "example.com/b"))
    patch = [
        {"op": "add", "path": "/metadata/finalizers/-", "value": "example.com/c"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    after = (await api.patch(CONFIG_MAP, "c", patch, "json")).made

    assert after["metadata"]["finalizers"] == ["example.com/b", "example.com/c"]


@pytest.mark.parametrize(
    "operation",
    [
        {"op": "test", "path": "/data/a", "value": "other"},
        {"op": "remove", "path": "/data/ghost"},
        {"op": "add", "path": "/ghost/deeper", "value": "x"},
        {"op": "move", "from": "/data/ghost", "path": "/data/x"},
    ],
    ids=lambda operation: operation["op"],
)
async def test_a_json_patch_that_does_not_fit_changes_nothing(api: Api, operation: dict):
    await api.make(CONFIG_MAP, config_map(a="1"))
    first = {"op": "replace", "path": "/data/a", "value": "changed"}
    patch = [operation] if operation["op"] == "test" else [first, operation]
    answer = await api.patch(CONFIG_MAP, "c", patch, "json")

    answer.is_refused(422, "Invalid", "the server rejected our request due to an error in our request", {})
    assert (await api.read(CONFIG_MAP, "c"))["data"] == {"a": "1"}


async def test_what_a_json_patch_replaces_need_not_be_there(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1"))
    answer = await api.patch(CONFIG_MAP, "c", [{"op": "replace", "path": "/data/b", "value": "2"}], "json")

    assert answer.made["data"] == {"a": "1", "b": "2"}


@pytest.mark.parametrize("body", [b"{", b'{"a":1}', b"[1]", b'"x"', b""], ids=repr)
async def test_a_json_patch_that_cannot_be_read_is_refused(api: Api, body: bytes):
    await api.make(CONFIG_MAP, config_map(a="1"))

    (await api.patch(CONFIG_MAP, "c", body, "json")).says(400, "BadRequest", "")


@pytest.mark.parametrize("form", ["merge", "strategic"])
@pytest.mark.parametrize("body", [b"{", b"[1]", b'"x"', b"nonsense"], ids=repr)
async def test_a_merge_patch_that_cannot_be_read_is_refused(api: Api, form: str, body: bytes):
    await api.make(CONFIG_MAP, config_map(a="1"))

    (await api.patch(CONFIG_MAP, "c", body, form)).says(400, "BadRequest", "")


@pytest.mark.parametrize("form", ["merge", "strategic"])
async def test_a_patch_whose_result_is_no_object_of_the_kind_is_invalid(api: Api, form: str):
    await api.make(CONFIG_MAP, config_map(a="1"))
    answer = await api.patch(CONFIG_MAP, "c", {"data": {"a": 5}}, form)

    answer.is_invalid(("FieldValueInvalid", "patch"))
    assert answer.json["message"].startswith(' "" is invalid: patch: Invalid value: ')
    assert (await api.read(CONFIG_MAP, "c"))["data"] == {"a": "1"}


async def test_a_patch_whose_result_is_wrong_is_invalid_with_its_causes(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1"))
    answer = await api.patch(CONFIG_MAP, "c", {"data": {"not a key": "x"}})

    answer.is_invalid(("FieldValueInvalid", "data[not a key]"))


async def test_a_patch_may_be_checked_strictly(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1"))
    answer = await api.patch(CONFIG_MAP, "c", {"foo": 1}, fieldValidation="Strict")
    answer.is_invalid(("FieldValueInvalid", "patch"))
    assert answer.json["message"].endswith('strict decoding error: unknown field "foo"')

    warned = await api.patch(CONFIG_MAP, "c", {"foo": 1})
    assert (warned.status, warned.headers["warning"]) == (200, '299 - "unknown field \\"foo\\""')


async def test_a_content_type_that_is_no_patch_is_refused(api: Api):
    await api.make(CONFIG_MAP, config_map())
    answer = await api.patch(CONFIG_MAP, "c", {}, "application/json")

    answer.is_refused(415, "UnsupportedMediaType", "415: Unsupported Media Type", {})


async def workload_with(api: Api, *containers: dict) -> None:
    made = workload()
    made["spec"]["template"]["spec"]["containers"] = list(containers)
    await api.make(kinds.DEPLOYMENT, made)


def pod_spec(**fields: object) -> dict:
    return {"spec": {"template": {"spec": fields}}}


async def patched_spec(api: Api, **fields: object) -> dict:
    return (await api.patch(kinds.DEPLOYMENT, "w", pod_spec(**fields), "strategic")).made["spec"]["template"]["spec"]


async def test_strategic_lists_are_merged_by_their_keys(api: Api):
    await workload_with(api, container("a", env=[{"name": "X", "value": "1"}]), container("b"))
    after = await patched_spec(
        api, containers=[{"name": "a", "env": [{"name": "Y", "value": "2"}]}, {"name": "c", "image": "busybox:3"}]
    )

    containers = {each["name"]: each for each in after["containers"]}
    assert sorted(containers) == ["a", "b", "c"]
    assert {each["name"]: each["value"] for each in containers["a"]["env"]} == {"X": "1", "Y": "2"}


async def test_a_merge_patch_replaces_the_same_lists_whole(api: Api):
    await workload_with(api, container("a"), container("b"))
    after = await api.patch(kinds.DEPLOYMENT, "w", pod_spec(containers=[container("c")]), "merge")

    assert [each["name"] for each in after.made["spec"]["template"]["spec"]["containers"]] == ["c"]


async def test_strategic_directives_delete_and_replace(api: Api):
    await workload_with(api, container("a", env=[{"name": "X", "value": "1"}]), container("b"))
    after = await patched_spec(api, containers=[{"$patch": "delete", "name": "b"}])
    assert [each["name"] for each in after["containers"]] == ["a"]

    after = await patched_spec(api, containers=[{"$patch": "replace"}, container("z")])
    assert [each["name"] for each in after["containers"]] == ["z"]


async def test_a_volume_turns_into_another_when_its_keys_are_retained(api: Api):
    await workload_with(api, container("a"))
    await patched_spec(api, volumes=[{"name": "v", "emptyDir": {}}])
    after = await patched_spec(
        api, volumes=[{"name": "v", "configMap": {"name": "m"}, "$retainKeys": ["name", "configMap"]}]
    )

    assert after["volumes"] == [{"name": "v", "configMap": {"name": "m", "defaultMode": 420}}]


async def test_the_order_of_a_merged_list_can_be_told(api: Api):
    await workload_with(api, container("a"), container("b"))
    order = {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}
    after = await patched_spec(api, **order, containers=[{"name": "a", "image": "busybox:9"}])

    assert [(each["name"], each["image"]) for each in after["containers"]] == [("b", "busybox:1"), ("a", "busybox:9")]


async def test_an_order_alone_changes_nothing_that_is_in_order(api: Api):
    await workload_with(api, container("a"), container("b"))
    before = await api.read(kinds.DEPLOYMENT, "w")
    order = pod_spec(**{"$setElementOrder/containers": [{"name": "a"}, {"name": "b"}]})

    assert (await api.patch(kinds.DEPLOYMENT, "w", order, "strategic")).made == before


async def test_finalizers_are_merged_as_a_set_and_taken_out_by_a_directive(api: Api):
    await api.make(CONFIG_MAP, finalized(config_map(), "example.com/a"))
    after = await api.patch(CONFIG_MAP, "c", {"metadata": {"finalizers": ["example.com/b"]}}, "strategic")
    assert sorted(after.made["metadata"]["finalizers"]) == ["example.com/a", "example.com/b"]

    gone = {"metadata": {"$deleteFromPrimitiveList/finalizers": ["example.com/a"]}}
    after = await api.patch(CONFIG_MAP, "c", gone, "strategic")
    assert after.made["metadata"]["finalizers"] == ["example.com/b"]


async def test_one_condition_of_a_node_is_patched_and_the_others_stay(api: Api):
    name = api.unique("n")
    await api.make(kinds.NODE, named(name))
    both = [{"type": "Ready", "status": "True"}, {"type": "DiskPressure", "status": "False"}]
    await api.patch(kinds.NODE, name, {"status": {"conditions": both}}, "strategic", "status")
    one = [{"type": "DiskPressure", "status": "True"}]
    after = await api.patch(kinds.NODE, name, {"status": {"conditions": one}}, "strategic", "status")

    assert {each["type"]: each["status"] for each in after.made["status"]["conditions"]} == {
        "Ready": "True",
        "DiskPressure": "True",
    }


async def test_lists_without_keys_are_replaced(api: Api):
    name = api.unique("n")
    taints = [{"key": "a", "effect": "NoSchedule"}, {"key": "b", "effect": "NoSchedule"}]
    await api.make(kinds.NODE, named(name, spec={"taints": taints}))
    after = await api.patch(kinds.NODE, name, {"spec": {"taints": [{"key": "c", "effect": "NoSchedule"}]}}, "strategic")

    assert [each["key"] for each in after.made["spec"]["taints"]] == ["c"]


async def test_owners_are_merged_by_uid(api: Api):
    async def owner(name: str) -> dict:
        uid = (await api.make(CONFIG_MAP, config_map(name)))["metadata"]["uid"]
        return {"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}

    first, second = await owner("first"), await owner("second")
    await api.make(CONFIG_MAP, {"metadata": {"name": "c", "ownerReferences": [first]}})
    after = await api.patch(CONFIG_MAP, "c", {"metadata": {"ownerReferences": [second]}}, "strategic")

    assert sorted(each["name"] for each in after.made["metadata"]["ownerReferences"]) == ["first", "second"]


async def test_a_keyed_list_without_its_key_is_refused(api: Api):
    await workload_with(api, container("a"))
    answer = await api.patch(kinds.DEPLOYMENT, "w", pod_spec(containers=[{"image": "x"}]), "strategic")

    assert answer.status in {400, 422, 500}, answer.text
    assert "does not contain declared merge key: name" in answer.json["message"]


async def test_an_unknown_directive_is_refused(api: Api):
    await workload_with(api, container("a"))
    answer = await api.patch(
        kinds.DEPLOYMENT, "w", pod_spec(containers=[{"name": "a", "$patch": "fancy"}]), "strategic"
    )

    assert answer.status in {400, 422, 500}, answer.text


async def test_a_volumes_finalizer_is_taken_off_while_it_is_as_seen(api: Api):
    name = api.unique("pv")
    await api.make(kinds.PERSISTENT_VOLUME, finalized(volume(name), "example.com/x"))
    before = await api.read(kinds.PERSISTENT_VOLUME, name)
    place = before["metadata"]["finalizers"].index("example.com/x")
    patch = [
        {"op": "test", "path": f"/metadata/finalizers/{place}", "value": "example.com/x"},
        {"op": "remove", "path": f"/metadata/finalizers/{place}"},
    ]
    after = (await api.patch(kinds.PERSISTENT_VOLUME, name, patch, "json")).made

    assert after["metadata"]["finalizers"] == ["kubernetes.io/pv-protection"]


async def test_a_stateful_sets_service_cannot_be_patched(api: Api):
    await api.make(kinds.STATEFUL_SET, stateful_set())
    answer = await api.patch(kinds.STATEFUL_SET, "w", {"spec": {"serviceName": "other"}})

    answer.is_invalid(("FieldValueInvalid", "spec.serviceName"))


async def test_patches_of_many_at_once_all_take_effect(api: Api):
    await api.make(CONFIG_MAP, config_map())
    answers = await asyncio.gather(*(api.patch(CONFIG_MAP, "c", {"data": {f"k{n}": "v"}}) for n in range(10)))

    assert {answer.status for answer in answers} == {200}
    assert len((await api.read(CONFIG_MAP, "c"))["data"]) == 10


async def test_a_pod_gains_a_toleration_and_loses_none(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    made = await api.make(kinds.POD, pod())
    before = made["spec"]["tolerations"]
    more = [*before, {"key": "x", "operator": "Exists"}]

    assert (await api.patch(kinds.POD, "p", {"spec": {"tolerations": more}})).made["spec"]["tolerations"] == more
    answer = await api.patch(kinds.POD, "p", {"spec": {"tolerations": before}})
    assert (answer.status, answer.json["reason"]) == (422, "Invalid")


async def test_server_side_apply_is_done_by_kubernetes_and_refused_by_us_with_what_to_do(api: Api):
    body = b'{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "1"}}'
    path = api.path(kinds.CONFIG_MAP, "c")
    answer = await api.ask("PATCH", path, body, content_type="application/apply-patch+yaml", fieldManager="test")

    if api.can.is_orlops:
        answer.says(415, "UnsupportedMediaType", "use client-side apply (kubectl apply --server-side=false, helm")
    else:
        assert answer.made["data"] == {"a": "1"}
