"""Replacing objects: optimistic locking, and what changes nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import SMALLEST, config_map, csi_driver, lease, workload
from support.api.api_under_test import Api

STALE = (
    'Operation cannot be fulfilled on {} "{}": the object has been modified; '
    "please apply your changes to the latest version and try again"
)


def changed(obj: dict, **fields: object) -> dict:
    return {**deepcopy(obj), **fields}


async def test_a_replacement_raises_the_version_and_keeps_the_identity(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    answer = await api.put(kinds.CONFIG_MAP, changed(made, data={"a": "2"}))

    assert answer.status == 200
    after = answer.json
    assert after["data"] == {"a": "2"}
    assert int(after["metadata"]["resourceVersion"]) > int(made["metadata"]["resourceVersion"])
    for part in ("uid", "creationTimestamp", "name", "namespace"):
        assert after["metadata"][part] == made["metadata"][part]


async def test_a_replacement_with_an_old_version_is_a_conflict(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    await api.put(kinds.CONFIG_MAP, changed(made, data={"a": "2"}))

    (await api.put(kinds.CONFIG_MAP, changed(made, data={"a": "3"}))).is_refused(
        409, "Conflict", STALE.format("configmaps", "c"), {"name": "c", "kind": "configmaps"}
    )
    assert (await api.read(kinds.CONFIG_MAP, "c"))["data"] == {"a": "2"}


async def test_a_conflict_in_a_named_group_tells_the_group(api: Api):
    made = await api.make(kinds.LEASE, lease())
    await api.put(kinds.LEASE, changed(made, spec={"holderIdentity": "other"}))

    (await api.put(kinds.LEASE, made)).is_refused(
        409,
        "Conflict",
        STALE.format("leases.coordination.k8s.io", "l"),
        {"name": "l", "group": "coordination.k8s.io", "kind": "leases"},
    )


async def test_a_replacement_without_a_version_overwrites_what_is_there(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    answer = await api.put(kinds.CONFIG_MAP, {"apiVersion": "v1", "kind": "ConfigMap", **config_map(a="2")})

    assert answer.made["data"] == {"a": "2"}


GUARDED = [kinds.LEASE, kinds.CSI_DRIVER, kinds.CSI_NODE, kinds.VOLUME_ATTACHMENT, kinds.CSI_STORAGE_CAPACITY]


@pytest.mark.parametrize("kind", GUARDED, ids=str)
async def test_some_kinds_are_never_replaced_without_a_version(api: Api, kind: Kind):
    name = "x" if kind.namespaced else api.unique("x")
    made = await api.make(kind, SMALLEST[kind](name, api.namespace))
    del made["metadata"]["resourceVersion"]

    (await api.put(kind, made)).is_refused(
        422,
        "Invalid",
        f'{kind.resource} "{name}" is invalid: metadata.resourceVersion: Invalid value: 0: '
        "must be specified for an update",
        {
            "name": name,
            "group": kind.group,
            "kind": kind.plural,
            "causes": [
                {
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: 0: must be specified for an update",
                    "field": "metadata.resourceVersion",
                }
            ],
        },
    )


async def test_a_replacement_of_what_is_not_there_is_not_found(api: Api):
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map()}

    (await api.put(kinds.CONFIG_MAP, body)).is_refused(
        404, "NotFound", 'configmaps "c" not found', {"name": "c", "kind": "configmaps"}
    )


UPSERTED = [
    kinds.LEASE,
    kinds.CORE_EVENT,
    kinds.EVENT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.CLUSTER_ROLE,
    kinds.CLUSTER_ROLE_BINDING,
]


@pytest.mark.parametrize("kind", UPSERTED, ids=str)
async def test_some_kinds_are_made_by_a_replacement(api: Api, kind: Kind):
    name = "x" if kind.namespaced else api.unique("x")
    whole = {"apiVersion": kind.api_version, "kind": kind.kind, **SMALLEST[kind](name, api.namespace)}
    if kind.namespaced:
        whole["metadata"]["namespace"] = api.namespace
    answer = await api.put(kind, whole)

    assert answer.status == 201, answer.text
    assert answer.json["metadata"]["uid"]


async def test_a_replacement_that_changes_nothing_keeps_the_version(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))

    assert (await api.put(kinds.CONFIG_MAP, made)).made == made


async def test_the_server_ignores_what_a_replacement_says_of_birth_and_death(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    said = {"creationTimestamp": "2001-01-01T00:00:00Z", "generation": 9}
    after = (await api.put(kinds.CONFIG_MAP, changed(made, metadata={**made["metadata"], **said}))).made

    assert after["metadata"] == made["metadata"]


async def test_nobody_dies_by_a_replacement(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map(a="1"))
    said = {"deletionTimestamp": "2001-01-01T00:00:00Z"}
    answer = await api.put(kinds.CONFIG_MAP, changed(made, metadata={**made["metadata"], **said}))

    answer.is_invalid(("FieldValueInvalid", "metadata.deletionTimestamp"))
    message = answer.cause_messages["metadata.deletionTimestamp"]
    assert message == 'Invalid value: "2001-01-01T00:00:00Z": field is immutable'


async def test_another_uid_in_a_replacement_is_a_conflict(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())
    other = changed(made, metadata={**made["metadata"], "uid": "other"}, data={"a": "1"})

    (await api.put(kinds.CONFIG_MAP, other)).is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on configmaps "c": StorageError: invalid object, Code: 4, Key: '
        f"/registry/configmaps/{api.namespace}/c, ResourceVersion: 0, AdditionalErrorMsg: Precondition failed: "
        f"UID in precondition: other, UID in object meta: {made['metadata']['uid']}",
        {"name": "c", "kind": "configmaps"},
    )


async def test_the_name_in_the_body_must_be_that_of_the_path(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("a"))
    body = {"apiVersion": "v1", "kind": "ConfigMap", **config_map("b")}

    (await api.ask("PUT", api.path(kinds.CONFIG_MAP, "a"), body)).is_refused(
        400, "BadRequest", "the name of the object (b) does not match the name on the URL (a)"
    )


async def test_the_namespace_in_the_body_must_be_that_of_the_path(api: Api):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c", "namespace": "other"}}
    message = "the namespace of the provided object does not match the namespace sent on the request"

    (await api.ask("POST", api.path(kinds.CONFIG_MAP), body)).is_refused(400, "BadRequest", message)


async def test_a_changed_spec_raises_the_generation_and_a_label_does_not(api: Api):
    made = await api.make(kinds.DEPLOYMENT, workload())
    labelled = await api.patch(kinds.DEPLOYMENT, "w", {"metadata": {"labels": {"a": "b"}}})
    assert labelled.made["metadata"]["generation"] == made["metadata"]["generation"] == 1

    scaled = await api.patch(kinds.DEPLOYMENT, "w", {"spec": {"replicas": 3}})
    assert scaled.made["metadata"]["generation"] == 2


async def test_a_csi_drivers_generation_begins_with_its_first_change(api: Api):
    name = api.unique("d")
    made = await api.make(kinds.CSI_DRIVER, csi_driver(name))
    assert "generation" not in made["metadata"]

    after = await api.patch(kinds.CSI_DRIVER, name, {"spec": {"requiresRepublish": True}})
    assert after.made["metadata"]["generation"] == 1


async def test_an_owner_that_is_named_twice_is_kept_once(api: Api):
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "o", "uid": "3f0ff1f5-6b3c-4f3a-9a53-6f6d8a5f1c01"}
    twice = {"finalizers": ["example.com/hold"], "ownerReferences": [owner, {**owner, "controller": True}, owner]}

    made = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", **twice}})
    patched = await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"ownerReferences": [owner, owner]}})
    await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"finalizers": None}})

    assert made.made["metadata"]["ownerReferences"] == [owner, {**owner, "controller": True}]
    assert patched.made["metadata"]["ownerReferences"] == [owner]
    for answer in (made, patched):
        assert ".metadata.ownerReferences contains duplicate entries" in answer.headers["warning"]
        assert answer.headers["warning"].endswith(f'duplicate UID(s) observed: {owner["uid"]}"')
