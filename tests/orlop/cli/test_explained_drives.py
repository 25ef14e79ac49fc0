"""`orlop explain` of claims and volumes on drives."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orlop.binding import claim_state_rules as state
from orlop.binding.class_rules import LATE_BINDING
from orlop.kube.kinds import CSI_NODE, CUSTOM_RESOURCE_DEFINITION, NODE
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.drive import DRIVE, Allocation, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.volume import ERASE_FINALIZER, VOLUME, DriveVolumeSpec
from orlop.records.volume_context import TOPOLOGY_NODE
from support.drives.typed_commands import GIB, drive_id, kinds_of_drives
from support.explaining.explained_clusters import (
    TENANT,
    Build,
    Cluster,
    Explained,
    explained,
    let_tenant_read,
)

D1, D2 = drive_id(1), drive_id(2)


async def definitions_in(cluster: Cluster) -> None:
    for definition in kinds_of_drives():
        await cluster.client.create(CUSTOM_RESOURCE_DEFINITION, definition)


async def drive(cluster: Cluster, number: int = 1, node: str = "n1", capacity: int = 10 * GIB, **more: Any) -> None:
    spec = DriveSpec(node_name=node, type=DriveType.DISK, **more.pop("spec", {}))
    made = await cluster.client.create(DRIVE, new_object("Drive", drive_id(number), spec))
    status = {
        "state": "Ready",
        "capacityBytes": capacity,
        "fileSystem": "xfs",
        "backings": ["directory", "image"],
        "allocationsRestored": True,
        "device": {"name": "sdb"},
        **more,
    }
    await cluster.status(DRIVE, made, **status)


async def volume(cluster: Cluster, name: str = "pv1", number: int = 1, node: str = "n1", **more: Any) -> None:
    spec = DriveVolumeSpec(
        drive=drive_id(number), node_name=node, bytes=GIB, backing="image", file_system="xfs", volume_mode="Filesystem"
    )
    spec = msgspec.structs.replace(spec, **more.pop("spec", {}))
    obj = new_object("Volume", name, spec, finalizers=[ERASE_FINALIZER])
    made = await cluster.client.create(VOLUME, obj)
    if more:
        await cluster.status(VOLUME, made, **more)


async def node(cluster: Cluster, name: str = "n1", ready: str = "True") -> None:
    condition = {"type": "Ready", "status": ready, "lastTransitionTime": "2026-01-02T03:04:05Z"}
    metadata = {"labels": {TOPOLOGY_NODE: name}}
    await cluster.create(NODE, name, metadata=metadata, status={"conditions": [condition]})


async def drive_class(cluster: Cluster, name: str = "orlop", **more: Any) -> None:
    await cluster.storage_class(name, **{"provisioner": DRIVER_NAME, **more})


SOURCE = {"csi": {"driver": DRIVER_NAME, "volumeHandle": "pv1", "volumeAttributes": {"orlop.dev/drive": D1}}}


def explain(kind: str, build: Build, **more: Any) -> Explained:
    async def with_definitions(cluster: Cluster) -> None:
        await definitions_in(cluster)
        await build(cluster)

    ended = explained(kind, {"pvc": "team/data", "pv": "pv1"}[kind], with_definitions, **more)
    assert (ended.code, ended.errors) == (0, "")
    for part in ("what", "state", "next"):
        assert ended.json[part] in ended.text
    return ended


# ---- a claim that waits ----------------------------------------------------------------------------------------------

MARKED = {state.STORAGE_PROVISIONER: DRIVER_NAME}


def pending(**options: Any) -> Build:
    async def build(cluster: Cluster) -> None:
        for number, facts in enumerate(options.get("drives", ()), start=1):
            await drive(cluster, number, **facts)
        await drive_class(cluster, **options.get("terms", {}))
        metadata = {"annotations": {**MARKED, **options.get("annotations", {})}}
        await cluster.claim(storageClassName="orlop", metadata=metadata, size=options.get("size", "5Gi"))

    return build


def test_the_choice_itself_names_how_many_drives_fail_which_test():
    drives = [
        {"state": "Lost"},
        {"spec": {"unschedulable": True}},
        {"spec": {"allocations": (Allocation(volume="v", bytes=8 * GIB),)}},
        {"spec": {"allocations": (Allocation(volume="v", bytes=9 * GIB),)}},
    ]
    ended = explain("pvc", pending(drives=drives))
    assert ended.state == "NoDriveFits"
    assert (
        "On the drives as they are now, no drive can take 5Gi: of 4 drives, 1 is not Ready, 1 is cordoned, "
        "2 have too little free space (the most is 2Gi)."
    ) in ended.text
    assert [row["why"] for row in ended.json["table"]] == [
        "too little free space",
        "too little free space",
        "cordoned",
        "not Ready",
    ]
    assert [row["free"] for row in ended.json["table"]][:2] == ["2Gi", "1Gi"]
    assert "Make room" in ended.next


def test_a_claim_that_a_drive_fits_is_explained_with_the_drive():
    ended = explain("pvc", pending(drives=[{}]))
    assert ended.state == "WaitsForProvisioner"
    assert f"It fits on the drive {D1} of the node n1." in ended.text


def test_a_cluster_without_drives_says_how_to_make_one():
    ended = explain("pvc", pending())
    assert ended.state == "NoDriveFits"
    assert "there are no drives: make one with `orlop drives init` or `orlop drives add-folder`" in ended.text


def test_a_size_that_no_drive_has_is_not_waited_for():
    ended = explain("pvc", pending(drives=[{}], size="11Gi"))
    assert "No drive is large enough: 11Gi is more than any drive has: the largest has 10Gi." in ended.text


def test_a_class_that_the_driver_refuses_is_explained_by_the_drivers_own_words():
    terms = {"parameters": {"orlop.dev/acces-tier": "hot"}}
    ended = explain("pvc", pending(drives=[{}], terms=terms))
    assert ended.state == "NoDriveFits"
    assert "the parameter orlop.dev/acces-tier is unknown" in ended.text


def test_a_class_that_combines_to_too_many_topologies_is_explained_without_building_them():
    values = list(map(str, range(101)))
    allowed = [{"matchLabelExpressions": [{"key": key, "values": values} for key in (TOPOLOGY_NODE, "rack")]}]
    ended = explain("pvc", pending(drives=[{}], terms={"allowedTopologies": allowed}))
    assert ended.state == "NoDriveFits"
    assert "the class's allowedTopologies combine to 10201 topologies; at most 10000 are supported." in ended.text


def test_a_claim_whose_node_has_no_drive_names_the_node_that_has_one():
    async def build(cluster: Cluster) -> None:
        await node(cluster, "n1")
        await cluster.create(
            CSI_NODE,
            "n1",
            spec={"drivers": [{"name": DRIVER_NAME, "nodeID": "n1", "topologyKeys": [TOPOLOGY_NODE]}]},
        )
        await drive(cluster, 1, "n2")
        await drive_class(cluster, volumeBindingMode=LATE_BINDING)
        annotations = {**MARKED, state.SELECTED_NODE: "n1"}
        await cluster.claim(storageClassName="orlop", metadata={"annotations": annotations}, size="5Gi")

    ended = explain("pvc", build)
    assert "1 is on a node that the request does not allow" in ended.text
    assert f"The drive {D1} of the node n2 could take it" in ended.next


def test_a_claim_that_waits_for_a_pod_is_explained_with_the_drives_too():
    ended = explain("pvc", pending(drives=[{"state": "Lost"}], terms={"volumeBindingMode": LATE_BINDING}))
    assert ended.state == "NoDriveFits"
    assert ended.json["fields"]["waiting"] == "WaitsForFirstConsumer"
    assert "binds only for a pod" in ended.text


def test_whoever_may_not_list_drives_gets_the_explanation_without_them():
    async def build(cluster: Cluster) -> None:
        await pending(drives=[{}])(cluster)
        await let_tenant_read(
            cluster, "persistentvolumeclaims", "persistentvolumes", "storageclasses", "pods", "events", "leases"
        )

    ended = explain("pvc", build, user=TENANT)
    assert ended.state == "WaitsForProvisioner"
    assert "drives" in " ".join(ended.json["fields"]["unreadable"])


# ---- a volume on a drive ---------------------------------------------------------------------------------------------


def bound(ready: str = "True", *, with_volume: bool = True, **facts: Any) -> Build:
    async def build(cluster: Cluster) -> None:
        await node(cluster, "n1", ready)
        await drive(cluster, 1, **facts.get("drive", {}))
        if with_volume:
            await volume(cluster, **facts.get("volume", {}))
        await cluster.volume_of(await cluster.bound_claim(), source=SOURCE)

    return build


@pytest.mark.parametrize("kind", ["pvc", "pv"])
def test_a_bound_volume_is_explained_with_its_drive(kind: str):
    ended = explain(kind, bound())
    assert f"It is on the drive {D1} (sdb) of the node n1, which is Ready." in ended.text
    assert ended.state == "Bound"
    assert "Nothing to do" in ended.next
    assert ended.json["fields"]["driveVolume"]["driveState"] == "Ready"


@pytest.mark.parametrize("kind", ["pvc", "pv"])
def test_a_volume_whose_drive_is_lost_names_why_and_what_to_do(kind: str):
    lost = {"state": "Lost", "message": "Its disk is not there."}
    ended = explain(kind, bound(drive=lost))
    assert f"{D1} (sdb) of the node n1, which is Lost: Its disk is not there." in ended.text
    assert "Put its disk or folder back" in ended.next
    assert "orlop drives adopt" in ended.next


def test_a_node_that_is_away_is_named_since_when():
    ended = explain("pv", bound("Unknown"))
    assert "The node n1 is not Ready for" in ended.text
    assert "this is what it wrote last." in ended.text
    assert "Bring the node n1 back" in ended.next


def test_an_abnormal_volume_is_explained_with_its_condition():
    condition = {"abnormal": True, "message": "The disk returned 3 I/O errors."}
    ended = explain("pv", bound(volume={"condition": condition}))
    assert "The volume is abnormal: The disk returned 3 I/O errors." in ended.text


def test_a_volume_without_its_object_can_be_adopted():
    ended = explain("pv", bound(with_volume=False))
    assert "No Volume object describes it." in ended.text
    assert "orlop adopt" in ended.next


def test_a_volume_whose_drive_has_no_object_can_be_adopted():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await volume(cluster)
        await cluster.volume_of(await cluster.bound_claim(), source=SOURCE)

    ended = explain("pv", build)
    assert f"Its drive {D1} has no object any more." in ended.text
    assert "orlop drives adopt --node n1" in ended.next


def test_a_retained_volume_on_a_drive_can_be_deleted_with_its_data():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await drive(cluster, 1)
        await volume(cluster)
        gone = {"metadata": {"name": "data", "namespace": "team", "uid": "former"}}
        retained = {"phase": "Released", "persistentVolumeReclaimPolicy": "Retain"}
        await cluster.volume_of(gone, source=SOURCE, **retained)

    assert "To delete it with its data: `orlop volumes clean pv1`." in explain("pv", build).next


def test_a_volume_of_another_driver_is_explained_without_drives():
    async def build(cluster: Cluster) -> None:
        await drive(cluster)
        await cluster.volume_of(await cluster.bound_claim())

    assert "drive" not in explain("pv", build).text.replace("of the driver", "")


# ---- a PersistentVolume that is gone ---------------------------------------------------------------------------------


async def deleted(cluster: Cluster, **facts: Any) -> None:
    await drive(cluster)
    await volume(cluster, spec={"erase": True}, **facts)
    await cluster.client.delete(VOLUME, ObjectName(None, "pv1"))


def test_a_deleted_volume_whose_node_is_away_waits_for_it():
    async def build(cluster: Cluster) -> None:
        await node(cluster, ready="Unknown")
        await deleted(cluster)

    ended = explain("pv", build)
    assert ended.state == "Erasing"
    assert "The PersistentVolume pv1 does not exist any more. Its volume, created 5m ago, is left." in ended.text
    assert "Deleted for 5m: its data is erased by the node n1." in ended.text
    assert "Bring the node n1 back" in ended.next


def test_a_deleted_volume_shows_why_its_node_has_not_erased_it():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await deleted(cluster, message="It is not erased yet: something has it mounted.")

    assert "It is not erased yet: something has it mounted." in explain("pv", build).text


def test_a_deleted_volume_whose_node_is_there_needs_nothing():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await deleted(cluster)

    assert explain("pv", build).next == "Nothing to do: its space returns when the data is erased."


def test_a_deleted_volume_that_is_still_used_waits_for_the_pods():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await deleted(cluster, phase="Published", published=[{"path": "/p", "podNamespace": "team", "podName": "w"}])

    assert "Delete the pods that use it" in explain("pv", build).next


def test_a_volume_that_nothing_names_can_be_adopted_or_cleaned():
    async def build(cluster: Cluster) -> None:
        await node(cluster)
        await drive(cluster)
        await volume(cluster)

    ended = explain("pv", build)
    assert ended.state == "Left"
    assert "orlop adopt" in ended.next
    assert "orlop volumes clean pv1" in ended.next


def test_a_persistent_volume_that_never_was_is_not_found():
    ended = explained("pv", "pv1", definitions_in)
    assert ended.code == 3
    assert "There is no PersistentVolume pv1." in ended.errors
