"""The subresource `scale` of custom resources."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import SCALE, Kind
from support.api.api_under_test import Api
from support.api.custom_resources import SCHEMA, defined, definition, disk, version

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PATHS = {"specReplicasPath": ".spec.weight", "statusReplicasPath": ".status.used", "labelSelectorPath": ".status.state"}


def scaled_version(**paths: str) -> dict[str, Any]:
    """Disks whose replicas are their weight: they need not be there, and the schema does not bound them."""
    schema = deepcopy(SCHEMA)
    schema["properties"]["spec"]["properties"]["weight"] = {"type": "integer"}
    subresources = {"status": {}, "scale": {**PATHS, **paths}}
    return version(schema={"openAPIV3Schema": schema}, subresources=subresources, selectableFields=None)


async def scalable(api: Api) -> Kind:
    return await defined(api, scaled_version())


async def test_a_scale_is_read_from_the_paths_of_the_definition(api: Api):
    kind = await scalable(api)
    made = await api.make(kind, disk("d", weight=3))
    await api.patch(kind, "d", {"status": {"used": 2, "state": "a=b"}}, subresource="status")

    scale = (await api.get(kind, "d", "scale")).made

    assert (scale["kind"], scale["apiVersion"]) == ("Scale", "autoscaling/v1")
    assert (scale["spec"], scale["status"]) == ({"replicas": 3}, {"replicas": 2, "selector": "a=b"})
    same = ("name", "namespace", "uid", "creationTimestamp")
    assert {name: scale["metadata"][name] for name in same} == {name: made["metadata"][name] for name in same}


async def test_a_scale_is_written_as_a_change_of_its_object(api: Api):
    kind = await scalable(api)
    await api.make(kind, disk("d", weight=3))

    patched = await api.patch(kind, "d", {"spec": {"replicas": 5}}, subresource="scale")
    scale = (await api.get(kind, "d", "scale")).made
    replaced = await api.put(kind, {**scale, "spec": {"replicas": 7}}, subresource="scale")
    stale = await api.put(kind, {**scale, "spec": {"replicas": 9}}, subresource="scale")
    unguarded = {"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": "d"}}
    zero = await api.put(kind, unguarded, subresource="scale")

    assert (patched.made["spec"], replaced.made["spec"]) == ({"replicas": 5}, {"replicas": 7})
    stale.says(409, "Conflict", "the object has been modified")
    assert zero.made["spec"] == {}
    after = await api.read(kind, "d")
    assert (after["spec"]["weight"], after["metadata"]["generation"]) == (0, 4)


async def test_a_scale_names_its_object_by_name_alone(api: Api):
    kind = await scalable(api)
    await api.make(kind, disk("d", weight=3))

    answer = await api.patch(kind, "d", {"metadata": {"uid": "x"}, "spec": {"replicas": 5}}, subresource="scale")

    assert answer.made["spec"] == {"replicas": 5}


async def test_an_object_without_replicas_has_no_scale_until_a_patch_sets_them(api: Api):
    kind = await scalable(api)
    await api.make(kind, disk("d"))

    read = await api.get(kind, "d", "scale")
    unset = await api.patch(kind, "d", {"metadata": {}}, subresource="scale")
    scaled = await api.patch(kind, "d", {"spec": {"replicas": 2}}, subresource="scale")

    read.says(500, "InternalError", 'the spec replicas field ".spec.weight" does not exist')
    unset.says(400, "BadRequest", 'the spec replicas field ".spec.weight" cannot be empty')
    assert scaled.made["spec"] == {"replicas": 2}


@pytest.mark.parametrize(
    ("weight", "message"),
    [(-1, "should be a non-negative integer"), (2**31, "should be less than or equal to 2147483647")],
)
async def test_replicas_of_an_object_are_a_number_of_replicas(api: Api, weight: int, message: str):
    kind = await scalable(api)
    await api.make(kind, disk("a", weight=1))
    refused = {".spec.weight": f"Invalid value: {weight}: {message}"}

    assert (await api.create(kind, disk("d", weight=weight))).cause_messages == refused
    assert (await api.patch(kind, "a", {"spec": {"weight": weight}})).cause_messages == refused
    status = await api.patch(kind, "a", {"status": {"used": weight}}, subresource="status")
    assert status.cause_messages == {".status.used": f"Invalid value: {weight}: {message}"}


async def test_a_scale_below_zero_is_refused(api: Api):
    kind = await scalable(api)
    await api.make(kind, disk("d", weight=3))

    answer = await api.patch(kind, "d", {"spec": {"replicas": -1}}, subresource="scale")

    assert answer.cause_messages == {".spec.weight": "Invalid value: -1: should be a non-negative integer"}


async def test_discovery_has_the_scale_in_both_forms(api: Api):
    kind = await scalable(api)

    plain = (await api.ask("GET", kind.group_path)).json["resources"]
    entry = next(each for each in plain if each["name"] == "disks/scale")
    assert (entry["group"], entry["version"], entry["kind"]) == ("autoscaling", "v1", "Scale")
    assert sorted(entry["verbs"]) == sorted(SCALE.verbs)
    accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
    groups = (await api.ask("GET", "/apis", accept=accept)).json["items"]
    own = next(each for each in groups if each["metadata"]["name"] == kind.group)
    parts = {part["subresource"]: part for part in own["versions"][0]["resources"][0]["subresources"]}
    assert parts["scale"]["responseKind"] == {"group": "autoscaling", "version": "v1", "kind": "Scale"}


async def test_a_definition_without_scale_has_none(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d"))

    assert (await api.get(kind, "d", "status")).status == 200
    assert (await api.ask("GET", f"{api.path(kind, 'd')}/scale")).status == 404


async def test_a_scale_is_a_table_for_who_wants_one(api: Api):
    kind = await scalable(api)
    await api.make(kind, disk("d", weight=3))

    table = (await api.ask("GET", f"{api.path(kind, 'd')}/scale", accept=TABLE)).json

    assert [each["name"] for each in table["columnDefinitions"]] == ["Name", "Desired", "Available", "Age"]
    assert table["rows"][0]["cells"][:3] == ["d", 3, 0]


async def test_a_path_that_is_no_path_refuses_the_definition(api: Api):
    given = definition(f"{api.namespace}.example.com", scaled_version(specReplicasPath="spec.weight"))

    answer = await api.create(kinds.CUSTOM_RESOURCE_DEFINITION, given)

    assert answer.status == 422
    assert answer.causes[0][1] == "spec.subresources.scale.specReplicasPath"
