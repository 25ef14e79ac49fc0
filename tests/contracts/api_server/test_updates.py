"""Replacing objects: optimistic locking, what may not change, what changes nothing."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api_objects import (
    SMALLEST,
    attachment,
    binding,
    capacity,
    claim,
    config_map,
    csi_driver,
    csi_node,
    lease,
    named,
    pod,
    role,
    secret,
    storage_class,
    user,
    volume,
    workload,
)
from support.api_under_test import Api

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


IMMUTABLE_SPEC = (
    "Forbidden: spec is immutable after creation except resources.requests and volumeAttributesClassName "
    "for bound claims"
)


async def test_a_claims_spec_cannot_change(api: Api):
    await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim())
    answer = await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", {"spec": {"accessModes": ["ReadOnlyMany"]}})

    answer.is_invalid(("FieldValueForbidden", "spec"))
    assert answer.cause_messages["spec"].startswith(IMMUTABLE_SPEC)


async def test_a_claim_that_is_not_bound_cannot_grow(api: Api):
    await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim())
    bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}
    answer = await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", bigger)

    answer.is_invalid(("FieldValueForbidden", "spec"))


async def bound_claim(api: Api, storage_class_name: str) -> None:
    await api.make(kinds.PERSISTENT_VOLUME_CLAIM, claim(storageClassName=storage_class_name, volumeName="pv1"))
    status = {"status": {"phase": "Bound", "capacity": {"storage": "1Gi"}}}
    (await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", status, subresource="status")).made  # noqa: B018


async def test_a_bound_claim_grows_where_its_class_allows_it(api: Api):
    name = api.unique("sc")
    await api.make(kinds.STORAGE_CLASS, storage_class(name, allowVolumeExpansion=True))
    await bound_claim(api, name)
    bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}

    after = await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", bigger)
    assert after.made["spec"]["resources"]["requests"] == {"storage": "2Gi"}


async def test_a_bound_claim_cannot_grow_where_its_class_does_not_allow_it(api: Api):
    name = api.unique("sc")
    await api.make(kinds.STORAGE_CLASS, storage_class(name))
    await bound_claim(api, name)
    bigger = {"spec": {"resources": {"requests": {"storage": "2Gi"}}}}

    (await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", bigger)).is_refused(
        403,
        "Forbidden",
        'persistentvolumeclaims "c" is forbidden: only dynamically provisioned pvc can be resized and the '
        "storageclass that provisions the pvc must support resize",
        {"name": "c", "kind": "persistentvolumeclaims"},
    )


async def test_a_bound_claim_cannot_shrink_below_what_it_has(api: Api):
    name = api.unique("sc")
    await api.make(kinds.STORAGE_CLASS, storage_class(name, allowVolumeExpansion=True))
    await bound_claim(api, name)
    smaller = {"spec": {"resources": {"requests": {"storage": "500Mi"}}}}
    answer = await api.patch(kinds.PERSISTENT_VOLUME_CLAIM, "c", smaller)

    answer.is_invalid(("FieldValueForbidden", "spec.resources.requests.storage"))
    message = answer.cause_messages["spec.resources.requests.storage"]
    assert message == "Forbidden: field can not be less than status.capacity"


async def test_a_volumes_source_cannot_change(api: Api):
    name = api.unique("pv")
    await api.make(kinds.PERSISTENT_VOLUME, volume(name))
    answer = await api.patch(kinds.PERSISTENT_VOLUME, name, {"spec": {"csi": {"volumeHandle": "v2"}}})

    answer.is_invalid(("FieldValueForbidden", "spec.persistentvolumesource"))
    message = answer.cause_messages["spec.persistentvolumesource"]
    assert message.startswith("Forbidden: spec.persistentvolumesource is immutable after creation")


async def test_a_volumes_mode_cannot_change_and_its_size_can(api: Api):
    name = api.unique("pv")
    await api.make(kinds.PERSISTENT_VOLUME, volume(name))

    answer = await api.patch(kinds.PERSISTENT_VOLUME, name, {"spec": {"volumeMode": "Block"}})
    answer.is_invalid(("FieldValueInvalid", "volumeMode"))
    assert answer.cause_messages["volumeMode"] == 'Invalid value: "Block": field is immutable'
    grown = await api.patch(kinds.PERSISTENT_VOLUME, name, {"spec": {"capacity": {"storage": "2Gi"}}})
    assert grown.made["spec"]["capacity"] == {"storage": "2Gi"}


async def test_a_storage_classes_ways_are_fixed_and_its_expansion_is_not(api: Api):
    name = api.unique("sc")
    await api.make(kinds.STORAGE_CLASS, storage_class(name))
    different = {"provisioner": "other.example.com", "parameters": {"a": "b"}, "reclaimPolicy": "Retain"}
    answer = await api.patch(kinds.STORAGE_CLASS, name, {**different, "volumeBindingMode": "WaitForFirstConsumer"})

    fields = ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode")
    answer.is_invalid(*(("FieldValueInvalid", field) for field in fields))
    assert set(answer.cause_messages.values()) == {"Invalid value: null: field is immutable"}
    assert (await api.patch(kinds.STORAGE_CLASS, name, {"allowVolumeExpansion": True})).made["allowVolumeExpansion"]


async def test_whether_a_driver_attaches_is_fixed(api: Api):
    name = api.unique("d")
    await api.make(kinds.CSI_DRIVER, csi_driver(name))

    answer = await api.patch(kinds.CSI_DRIVER, name, {"spec": {"attachRequired": False}})
    answer.is_invalid(("FieldValueInvalid", "spec.attachedRequired"))
    answer = await api.patch(kinds.CSI_DRIVER, name, {"spec": {"volumeLifecycleModes": ["Ephemeral"]}})
    answer.is_invalid(("FieldValueInvalid", "spec.volumeLifecycleModes"))


async def test_a_driver_of_a_csi_node_is_fixed_while_it_is_there(api: Api):
    name = api.unique("n")
    entry = {"name": "a.example.com", "nodeID": "id1", "topologyKeys": []}
    made = await api.make(kinds.CSI_NODE, csi_node(name, entry))
    other = {**entry, "nodeID": "id2"}

    (await api.put(kinds.CSI_NODE, changed(made, spec={"drivers": [other]}))).is_invalid(
        ("FieldValueInvalid", "spec.drivers"),
    )
    emptied = (await api.put(kinds.CSI_NODE, changed(made, spec={"drivers": []}))).made
    assert (await api.put(kinds.CSI_NODE, changed(emptied, spec={"drivers": [other]}))).status == 200


async def test_an_attachments_spec_is_fixed(api: Api):
    name = api.unique("va")
    await api.make(kinds.VOLUME_ATTACHMENT, attachment(name))
    answer = await api.patch(kinds.VOLUME_ATTACHMENT, name, {"spec": {"nodeName": "n2"}})

    answer.is_invalid(("FieldValueInvalid", "spec"))
    assert answer.cause_messages["spec"].endswith("field is immutable")


async def test_a_storage_capacitys_class_is_fixed(api: Api):
    await api.make(kinds.CSI_STORAGE_CAPACITY, capacity())
    answer = await api.patch(kinds.CSI_STORAGE_CAPACITY, "k", {"storageClassName": "slow"})

    answer.is_invalid(("FieldValueInvalid", "storageClassName"))


async def test_a_secrets_type_is_fixed(api: Api):
    await api.make(kinds.SECRET, secret())
    answer = await api.patch(kinds.SECRET, "s", {"type": "example.com/other"})

    answer.is_invalid(("FieldValueInvalid", "type"))
    assert answer.cause_messages["type"] == 'Invalid value: "example.com/other": field is immutable'


@pytest.mark.parametrize(("kind", "data"), [(kinds.SECRET, {"a": "Yg=="}), (kinds.CONFIG_MAP, {"a": "b"})], ids=str)
async def test_what_was_made_immutable_stays_as_it_is(api: Api, kind: Kind, data: dict):
    await api.make(kind, named("x", data=data, immutable=True))
    fixed = "Forbidden: field is immutable when `immutable` is set"

    answer = await api.patch(kind, "x", {"data": {"more": "Yg=="}})
    answer.is_invalid(("FieldValueForbidden", "data"))
    assert answer.cause_messages == {"data": fixed}
    answer = await api.patch(kind, "x", {"immutable": False})
    answer.is_invalid(("FieldValueForbidden", "immutable"))
    assert (await api.patch(kind, "x", {"metadata": {"labels": {"a": "b"}}})).status == 200


async def test_a_pods_image_may_change_and_its_volumes_may_not(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod())
    image = {"spec": {"containers": [{"name": "main", "image": "busybox:2"}]}}
    after = await api.patch(kinds.POD, "p", image, "strategic")
    assert after.made["spec"]["containers"][0]["image"] == "busybox:2"
    assert after.made["metadata"]["generation"] == 2

    answer = await api.patch(kinds.POD, "p", {"spec": {"hostNetwork": True}})
    answer.is_invalid(("FieldValueForbidden", "spec"))
    assert answer.cause_messages["spec"].startswith("Forbidden: pod updates may not change fields other than ")


async def test_a_bindings_role_is_fixed(api: Api):
    await api.make(kinds.ROLE, role("r"))
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", user("u")))
    answer = await api.patch(kinds.ROLE_BINDING, "b", {"roleRef": {"name": "other"}})

    answer.is_invalid(("FieldValueInvalid", "roleRef"))
    assert answer.cause_messages["roleRef"].endswith("field is immutable")


async def test_a_selector_of_a_workload_is_fixed(api: Api):
    await api.make(kinds.DEPLOYMENT, workload())
    other = {"selector": {"matchLabels": {"app": "y"}}, "template": {"metadata": {"labels": {"app": "y"}}}}
    answer = await api.patch(kinds.DEPLOYMENT, "w", {"spec": other})

    answer.is_invalid(("FieldValueInvalid", "spec.selector"))
    assert answer.cause_messages["spec.selector"].endswith("field is immutable")
