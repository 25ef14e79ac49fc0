"""What of an object cannot change any more, or only under conditions."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import (
    attachment,
    binding,
    capacity,
    claim,
    csi_driver,
    csi_node,
    named,
    pod,
    role,
    secret,
    storage_class,
    user,
    volume,
    workload,
)
from support.api.api_under_test import Api


def changed(obj: dict, **fields: object) -> dict:
    return {**deepcopy(obj), **fields}


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
