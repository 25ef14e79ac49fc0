"""`orlop explain pv` for static volumes: each thing that one can wait for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteOperation, DeleteStatus
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    RELEASE,
    WIPE,
    WIPE_DECIDED,
    WIPE_FINALIZER,
    new_volume,
    release_note,
)
from support.explaining.explained_clusters import TENANT, Cluster, Explained, explained, let_tenant_read
from support.static_volumes.static_objects import (
    CLASS,
    CONFIGURATION,
    class_object,
    create_cluster,
    local_volume,
    node_object,
    report_object,
)
from support.static_volumes.static_views import NAME

OWNER = node_object("n1")
OWNER["metadata"]["uid"] = "7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d"
CLAIM = {"namespace": "team", "name": "data", "uid": "gone"}
RETAIN = {"policy": "Retain"}
USED = {"claim": CLAIM, "phase": "Released"}
DECIDED = {WIPE_DECIDED: "true"}


def volume(**changes: Any) -> dict[str, Any]:
    of_class = class_object(reclaimPolicy=changes.get("policy", "Delete"))
    listed = local_volume("disk1", identity="wwn:1")
    obj = new_volume(listed, CONFIGURATION.classes[0], OWNER, of_class, CONFIGURATION)
    obj["metadata"]["annotations"] |= changes.get("annotations", {})
    if claim := changes.get("claim"):
        obj["spec"]["claimRef"] = claim
    return obj


def explain(*, deleted: bool = False, user: Any = None, nodes: tuple[str, ...] = ("n1",), **changes: Any) -> Explained:
    """Explain the volume of a disk; `changes`: those of `volume` and `report`, and `phase`."""

    async def build(cluster: Cluster) -> None:
        await create_cluster(cluster.client, *nodes)
        obj = volume(**changes)
        metadata = {key: value for key, value in obj["metadata"].items() if key != "name"}
        made = await cluster.create(
            PERSISTENT_VOLUME,
            NAME,
            metadata=metadata,
            spec=obj["spec"],
            status={"phase": changes.get("phase", "Available")},
        )
        if deleted:
            await cluster.delete(PERSISTENT_VOLUME, made)
            await cluster.without_finalizer(PERSISTENT_VOLUME, made, "kubernetes.io/pv-protection")
        if how := changes.get("release"):
            name = ObjectName(None, NAME)
            found = await cluster.client.get(PERSISTENT_VOLUME, name)
            note = release_note(how, found["metadata"]["deletionTimestamp"])
            mark = MergePatch({"metadata": {"annotations": {RELEASE: note}}})
            await cluster.client.patch(PERSISTENT_VOLUME, name, mark)
        if "listed" in changes or "wipe" in changes:
            await report(cluster, made["metadata"]["uid"], **changes)
        if user is not None:
            await let_tenant_read(cluster, "persistentvolumes", "nodes")

    return explained("pv", NAME, build, **({"user": user} if user is not None else {}))


async def report(cluster: Cluster, uid: str, *, wipe: Any = None, listed: Any = ("wwn:1",), **_more: Any) -> None:
    obj = report_object("n1")
    if wipe is not None:
        operation = DeleteOperation(
            uid=uid, persistent_volume=NAME, volume=NAME, storage_class=CLASS, entry="disk1", identity="wwn:1"
        )
        obj["spec"]["deleteOperations"] = [msgspec.to_builtins(operation)]
    made = await cluster.client.create(PROVISIONER_STATUS, obj)
    status = {"localVolumes": [msgspec.to_builtins(local_volume("disk1", identity=each)) for each in listed]}
    if isinstance(wipe, dict):
        status["deleteStatuses"] = [msgspec.to_builtins(DeleteStatus(uid=uid, **wipe))]
    await cluster.status(PROVISIONER_STATUS, made, **status)


HERE = {"listed": ("wwn:1",)}
FAILED = {
    "state": "Error",
    "attempts": 3,
    "message": "the disk is in use.",
    "next_attempt_time": "2026-01-01T00:00:00Z",
}


@pytest.mark.parametrize(
    ("settings", "word", "sentence"),
    [
        ({**USED, **HERE}, "WaitsForWipe", "is wiped, and then offered again"),
        ({**USED, **HERE, **RETAIN}, "Released", "its policy Retain keeps it until an admin decides"),
        ({**USED, **HERE, **RETAIN, "deleted": True}, "Retained", "it was used, and its policy Retain"),
        ({**USED, **HERE, "deleted": True}, "WaitsForWipe", "is wiped before it goes"),
        (
            {**USED, **HERE, **RETAIN, "deleted": True, "release": WIPE},
            "WaitsForWipe",
            "is wiped before it goes",
        ),
        (
            {**USED, **HERE, **RETAIN, "deleted": True, "release": AS_IS},
            "BeingDeleted",
            "it is released as it is",
        ),
        ({**HERE, "deleted": True}, "BeingDeleted", "it was never bound"),
        ({**USED, **HERE, "deleted": True, "annotations": DECIDED}, "WipeRequested", "is to be wiped."),
        ({**USED, "wipe": "Requested", "deleted": True, "annotations": DECIDED}, "WipeRequested", "by its node"),
        (
            {**USED, "wipe": {"state": "InProgress", "progress": 37}, "deleted": True, "annotations": DECIDED},
            "Wiping",
            "37 % are done",
        ),
        ({**USED, "wipe": {"state": "Complete"}, "deleted": True, "annotations": DECIDED}, "Wiped", "in a moment"),
        (
            {**USED, "wipe": FAILED, "deleted": True, "annotations": DECIDED},
            "WipeFails",
            "attempt 3 to wipe its disk /mnt/fast/disk1 on n1 failed: the disk is in use. The next attempt",
        ),
    ],
)
def test_a_volume_without_a_claim_is_explained_with_what_becomes_of_its_disk(
    settings: dict[str, Any], word: str, sentence: str
):
    ended = explain(**settings)
    assert (ended.code, ended.state) == (0, word)
    assert sentence in ended.text
    assert ended.json["fields"]["staticVolume"]["problem"] is None


@pytest.mark.parametrize("settings", [{**USED, **RETAIN}, {**USED, **RETAIN, "deleted": True}])
def test_a_retained_volume_is_explained_with_the_commands_that_release_it(settings: dict[str, Any]):
    ended = explain(**settings, **HERE)
    commands = ended.json["fields"]["commands"]
    assert commands == {"wipe": f"orlop static release {NAME} --wipe", "asIs": f"orlop static release {NAME} --as-is"}
    assert all(each in ended.next for each in commands.values())


@pytest.mark.parametrize("phase", ["Available", "Bound"])
@pytest.mark.parametrize(
    ("settings", "problem", "to_do"),
    [
        ({"nodes": ()}, "NodeLost", "orlop static forget n1"),
        ({}, "NodeSilent", "Start the worker"),
        ({"listed": ()}, "DiskNotListed", "Mount or link the disk"),
        ({"listed": ("wwn:2",)}, "DiskReplaced", "Put the former disk back"),
    ],
)
def test_a_volume_whose_disk_is_not_there_is_explained_with_the_reason(
    settings: dict[str, Any], problem: str, to_do: str, phase: str
):
    more = {"claim": CLAIM} if phase == "Bound" else {}
    ended = explain(phase=phase, **settings, **more)
    assert ended.json["fields"]["staticVolume"]["problem"] == problem
    withdrawn = phase == "Available" and problem != "NodeSilent"
    assert ("it was never bound, and is deleted" if withdrawn else to_do) in ended.next


def test_a_wipe_that_waits_for_a_lost_node_names_the_node():
    ended = explain(**USED, wipe="Requested", deleted=True, annotations=DECIDED, nodes=())
    assert ended.state == "WipeRequested"
    assert "Its node n1 does not exist." in ended.text
    assert "orlop static forget n1" in ended.next


def test_what_may_not_be_read_is_unknown_and_not_missing():
    ended = explain(user=TENANT, **USED, wipe={"state": "Complete"}, deleted=True, annotations=DECIDED)
    assert ended.state == "WipeRequested"
    assert "How far that is is unknown: the list of provisionerstatuses may not be read" in ended.text
    assert ended.json["fields"]["staticVolume"]["problem"] is None


def test_a_volume_of_another_product_is_not_explained_as_ours():
    async def build(cluster: Cluster) -> None:
        await create_cluster(cluster.client, "n1")
        obj = volume(**USED)
        annotations = obj["metadata"]["annotations"]
        status = {"phase": "Released"}
        await cluster.create(
            PERSISTENT_VOLUME, NAME, metadata={"annotations": annotations}, spec=obj["spec"], status=status
        )
        stored = await cluster.client.get(PERSISTENT_VOLUME, ObjectName(None, NAME))
        assert WIPE_FINALIZER not in stored["metadata"].get("finalizers", [])

    assert "staticVolume" not in explained("pv", NAME, build).json["fields"]
