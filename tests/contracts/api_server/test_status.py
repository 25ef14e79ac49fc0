"""The main door never changes the status, the status's door never changes the spec."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import SMALLEST, attachment, csi_node, named, pod, volume, workload
from support.api.api_under_test import Api

STATUS: list[tuple[Kind, dict]] = [
    (kinds.PERSISTENT_VOLUME, {"phase": "Available"}),
    (kinds.PERSISTENT_VOLUME_CLAIM, {"phase": "Lost"}),
    (kinds.NODE, {"phase": "Running"}),
    (kinds.POD, {"phase": "Running"}),
    (kinds.VOLUME_ATTACHMENT, {"attached": True}),
    (kinds.DEPLOYMENT, {"replicas": 7}),
    (kinds.REPLICA_SET, {"replicas": 7}),
    (kinds.STATEFUL_SET, {"replicas": 7}),
    (kinds.DAEMON_SET, {"numberReady": 7}),
]
KEEPS_METADATA = [kinds.POD, kinds.PERSISTENT_VOLUME, kinds.PERSISTENT_VOLUME_CLAIM, kinds.NODE]


async def one(api: Api, kind: Kind) -> str:
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    name = "x" if kind.namespaced else api.unique("x")
    await api.make(kind, SMALLEST[kind](name, api.namespace))
    return name


@pytest.mark.parametrize(("kind", "status"), STATUS, ids=str)
async def test_the_main_door_leaves_the_status_alone(api: Api, kind: Kind, status: dict):
    name = await one(api, kind)
    before = await api.read(kind, name)
    answer = await api.patch(kind, name, {"status": status})

    assert answer.made["status"] == before["status"]
    assert answer.made.get("spec") == before.get("spec")


@pytest.mark.parametrize(("kind", "status"), STATUS, ids=str)
async def test_the_status_door_changes_the_status(api: Api, kind: Kind, status: dict):
    name = await one(api, kind)
    before = await api.read(kind, name)
    answer = await api.patch(kind, name, {"status": status}, subresource="status")

    assert answer.made["status"].items() >= status.items()
    assert answer.made.get("spec") == before.get("spec")
    assert answer.made["metadata"].get("generation") == before["metadata"].get("generation")
    assert (await api.get(kind, name, "status")).json == answer.json == await api.read(kind, name)


@pytest.mark.parametrize("kind", [kinds.PERSISTENT_VOLUME, kinds.DEPLOYMENT, kinds.VOLUME_ATTACHMENT], ids=str)
async def test_the_status_door_leaves_the_spec_alone(api: Api, kind: Kind):
    name = await one(api, kind)
    before = await api.read(kind, name)
    changes = {"capacity": {"storage": "9Gi"}, "replicas": 9, "attacher": "other.example.com"}
    answer = await api.patch(kind, name, {"spec": changes}, subresource="status")

    assert answer.made["spec"] == before["spec"]


@pytest.mark.parametrize("kind", KEEPS_METADATA, ids=str)
async def test_the_status_door_keeps_labels_and_annotations_of_core_kinds(api: Api, kind: Kind):
    name = await one(api, kind)
    metadata = {"labels": {"l": "1"}, "annotations": {"example.com/a": "1"}}
    after = (await api.patch(kind, name, {"metadata": metadata}, subresource="status")).made

    assert after["metadata"]["labels"]["l"] == "1"
    assert after["metadata"]["annotations"]["example.com/a"] == "1"


async def test_the_status_door_of_an_attachment_drops_labels_and_annotations(api: Api):
    name = await one(api, kinds.VOLUME_ATTACHMENT)
    metadata = {"labels": {"l": "1"}, "annotations": {"example.com/a": "1"}}
    patch = {"metadata": metadata, "status": {"attached": True}}
    after = (await api.patch(kinds.VOLUME_ATTACHMENT, name, patch, subresource="status")).made

    assert after["status"]["attached"] is True
    assert not after["metadata"].keys() & {"labels", "annotations"}


async def test_a_new_object_has_no_status_but_its_own(api: Api):
    name = api.unique("pv")
    made = await api.make(kinds.PERSISTENT_VOLUME, {**volume(name), "status": {"phase": "Bound", "reason": "mine"}})

    assert made["status"]["phase"] == "Pending"
    assert "reason" not in made["status"]


async def test_a_volumes_new_phase_gets_its_time(api: Api):
    name = await one(api, kinds.PERSISTENT_VOLUME)
    given = {"status": {"phase": "Available", "lastPhaseTransitionTime": "2001-02-03T04:05:06Z"}}
    after = (await api.patch(kinds.PERSISTENT_VOLUME, name, given, subresource="status")).made
    assert after["status"]["lastPhaseTransitionTime"] == "2001-02-03T04:05:06Z"

    bound = {"status": {"phase": "Bound"}}
    after = (await api.patch(kinds.PERSISTENT_VOLUME, name, bound, subresource="status")).made
    assert after["status"]["lastPhaseTransitionTime"] > "2020"


async def test_a_status_may_be_replaced_with_an_old_version_only_by_who_has_the_newest(api: Api):
    name = await one(api, kinds.PERSISTENT_VOLUME)
    old = await api.read(kinds.PERSISTENT_VOLUME, name)
    await api.patch(kinds.PERSISTENT_VOLUME, name, {"metadata": {"labels": {"a": "b"}}})
    answer = await api.put(kinds.PERSISTENT_VOLUME, {**old, "status": {"phase": "Bound"}}, "status")

    assert (answer.status, answer.json["reason"]) == (409, "Conflict")


@pytest.mark.parametrize("kind", [kinds.CONFIG_MAP, kinds.STORAGE_CLASS, kinds.CSI_DRIVER, kinds.LEASE], ids=str)
async def test_kinds_without_a_status_have_no_status_door(api: Api, kind: Kind):
    name = await one(api, kind)

    for answer in (await api.get(kind, name, "status"), await api.patch(kind, name, {}, subresource="status")):
        answer.is_refused(404, "NotFound", "the server could not find the requested resource", {})


async def test_a_pod_is_bound_to_a_node_once(api: Api):
    await one(api, kinds.POD)
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "x"},
        "target": {"kind": "Node", "name": "n1"},
    }
    answer = await api.ask("POST", api.path(kinds.POD, "x", "binding"), binding)

    assert (answer.status, answer.json["status"]) == (201, "Success")
    bound = await api.read(kinds.POD, "x")
    assert bound["spec"]["nodeName"] == "n1"
    conditions = {each["type"]: each["status"] for each in bound["status"]["conditions"]}
    assert conditions == {"PodScheduled": "True"}
    (await api.ask("POST", api.path(kinds.POD, "x", "binding"), binding)).is_refused(
        409,
        "Conflict",
        'Operation cannot be fulfilled on pods/binding "x": pod x is already assigned to node "n1"',
        {"name": "x", "kind": "pods/binding"},
    )


async def test_a_scale_is_read_and_written(api: Api):
    await api.make(kinds.DEPLOYMENT, workload())
    read = (await api.get(kinds.DEPLOYMENT, "w", "scale")).made
    assert (read["kind"], read["apiVersion"], read["spec"]) == ("Scale", "autoscaling/v1", {"replicas": 1})
    assert read["status"] == {"replicas": 0, "selector": "app=x"}

    scaled = (await api.patch(kinds.DEPLOYMENT, "w", {"spec": {"replicas": 4}}, subresource="scale")).made
    assert scaled["spec"] == {"replicas": 4}
    after = await api.read(kinds.DEPLOYMENT, "w")
    assert (after["spec"]["replicas"], after["metadata"]["generation"]) == (4, 2)


async def test_a_node_and_its_csi_node_are_two_objects(api: Api):
    name = await one(api, kinds.NODE)
    await api.make(kinds.CSI_NODE, csi_node(name))

    assert (await api.read(kinds.NODE, name))["metadata"]["uid"] != (await api.read(kinds.CSI_NODE, name))["metadata"][
        "uid"
    ]


async def test_an_attachments_error_text_is_bounded(api: Api):
    name = api.unique("va")
    await api.make(kinds.VOLUME_ATTACHMENT, attachment(name))
    patch = {"status": {"attached": False, "attachError": {"message": "x" * 1025}}}
    answer = await api.patch(kinds.VOLUME_ATTACHMENT, name, patch, subresource="status")

    answer.is_invalid(("FieldValueTooLong", "status.attachError.message"))


async def test_a_pods_status_needs_a_known_phase(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    await api.make(kinds.POD, pod("x"))
    answer = await api.patch(kinds.POD, "x", {"status": {"phase": "Dreaming"}}, subresource="status")

    assert answer.status in {200, 422}
