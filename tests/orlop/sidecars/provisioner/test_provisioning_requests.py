"""Which claims the driver is called for, what it is asked, and what the PersistentVolume says."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.csi.proto import csi_pb2
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.volume_object_rules import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    FINALIZER,
)
from support.provisioning.provisioner_worlds import CREATE, DRIVER, NAMESPACE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
Mode = csi_pb2.VolumeCapability.AccessMode.Mode
GIB = 1 << 30
PLAIN = {"controller": ["CREATE_DELETE_VOLUME"], "plugin": ["CONTROLLER_SERVICE"]}


async def provisioned(world: ProvisionerWorld, settings: dict[str, Any] | None = None, **claim: Any) -> tuple[Any, Any]:
    """Provision a claim of the class `fast`; return the request and the PersistentVolume."""
    await world.make_claim(**claim)
    async with world.provisioner(**(settings or {})):
        (volume,) = await world.until_provisioned()
        await world.until_journal_is_empty()
    (request,) = world.requests(CREATE)
    return request, volume


# ---- which claims ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "claim",
    [
        {"annotations": {state.STORAGE_PROVISIONER: "other.example.com"}},
        {"annotations": {state.STORAGE_PROVISIONER: ""}},
        {"volumeName": "static"},
        {"storageClassName": "late"},
        {"storageClassName": "late", "annotations": {state.ALPHA_SELECTED_NODE: "n1"}},
        {"storageClassName": "others"},
        {"dataSourceRef": {"apiGroup": "example.com", "kind": "Hello", "name": "x"}},
    ],
    ids=["another's", "unmarked", "has a volume", "no node", "alpha key", "class of another", "populated"],
)
async def test_the_driver_is_not_called_for_a_claim_that_is_not_ours_or_not_yet(claim: dict[str, Any]):
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_class("late", volumeBindingMode="WaitForFirstConsumer")
        await world.make_class("others", provisioner="other.example.com")
        await world.make_claim(**claim)
        async with world.provisioner():
            await world.clock.sleep(900)
        assert world.calls() == []
        assert await world.journal() == []
        assert not [event for event in await world.events() if event.startswith("ProvisioningFailed")]


@pytest.mark.parametrize("key", [state.STORAGE_PROVISIONER, state.BETA_STORAGE_PROVISIONER])
async def test_a_claim_is_provisioned_when_it_is_marked_by_either_key(key: str):
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim(annotations={state.STORAGE_PROVISIONER: ""})
        async with world.provisioner():
            await world.clock.sleep(5)
            assert world.calls() == []
            await world.annotate_claim(**{key: DRIVER})
            await world.until_provisioned()


async def test_a_claim_with_a_populator_is_told_so():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim(dataSourceRef={"apiGroup": "example.com", "kind": "Hello", "name": "x"})
        async with world.provisioner():
            await world.until_event("Provisioning", "Assuming an external populator will provision the volume")


async def test_a_late_binding_claim_is_provisioned_when_the_scheduler_has_chosen():
    async with ProvisionerWorld() as world:
        await world.make_class(volumeBindingMode="WaitForFirstConsumer")
        await world.make_node("n1", zone="a")
        await world.make_claim()
        async with world.provisioner():
            await world.clock.sleep(60)
            assert world.calls() == []
            await world.annotate_claim(selected_node="n1")
            await world.until_provisioned()


# ---- the class -------------------------------------------------------------------------------------------------------


async def test_a_claim_whose_class_does_not_exist_is_provisioned_when_it_is_created():
    async with ProvisionerWorld() as world:
        await world.make_claim()
        async with world.provisioner(retry_start=300.0):
            await world.until_event("ProvisioningFailed", 'storageclass.storage.k8s.io "fast" not found')
            created = world.clock.elapsed()
            await world.make_class()
            await world.until_provisioned()
            assert world.clock.elapsed() - created < 5


async def test_the_class_is_read_when_the_call_is_made():
    async with ProvisionerWorld() as world:
        await world.make_class(parameters={"type": "old"})
        world.play({CREATE: [{"error": {"code": "INTERNAL", "message": "no"}}]})
        await world.make_claim()
        async with world.provisioner(retry_start=60.0):
            await world.until_event("ProvisioningFailed", "desc = no")
            await world.client.delete(STORAGE_CLASS, ObjectName(None, "fast"))
            await world.make_class(parameters={"type": "new"})
            await world.until_provisioned()
        assert [request.parameters["type"] for request in world.requests(CREATE)] == ["old", "new"]


# ---- the request -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "asked"), [("1", 1), ("1500m", 2), ("5Gi", 5 * GIB), ("1e3", 1000)])
async def test_the_driver_is_asked_for_the_size_of_the_claim(size: str, asked: int):
    async with ProvisionerWorld() as world:
        await world.make_class()
        request, volume = await provisioned(world, resources={"requests": {"storage": size}})
        assert (request.capacity_range.required_bytes, request.capacity_range.limit_bytes) == (asked, 0)
        assert request.name == volume["metadata"]["name"]


async def test_a_driver_that_rounds_up_gives_the_persistent_volume_its_size_and_one_that_is_silent_the_claims():
    async with ProvisionerWorld() as world:
        await world.make_class()
        world.play(
            {
                CREATE: [
                    {"answer": {"volume": {"volumeId": "a", "capacityBytes": str(4 * GIB)}}},
                    {"answer": {"volume": {"volumeId": "b"}}},
                ]
            }
        )
        await world.make_claim("one")
        async with world.provisioner():
            await world.until_provisioned()
            await world.make_claim("two")
            volumes = await world.until_provisioned(2)
        sizes = {volume["spec"]["csi"]["volumeHandle"]: volume["spec"]["capacity"]["storage"] for volume in volumes}
        assert sizes == {"a": "4Gi", "b": "1Gi"}


async def test_reserved_parameters_are_kept_from_the_driver():
    async with ProvisionerWorld() as world:
        await world.make_class(parameters={"type": "ssd", "csi.storage.k8s.io/fstype": "xfs", "fstypeish": "x"})
        request, volume = await provisioned(world)
        assert dict(request.parameters) == {"type": "ssd", "fstypeish": "x"}
        assert request.volume_capabilities[0].mount.fs_type == "xfs"
        assert volume["spec"]["csi"]["fsType"] == "xfs"


async def test_an_unknown_reserved_parameter_is_reported_and_nothing_is_created():
    async with ProvisionerWorld() as world:
        await world.make_class(parameters={"csi.storage.k8s.io/typo": "x"})
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "unknown parameter csi.storage.k8s.io/typo")
        assert world.calls() == []


async def test_names_are_sent_with_extra_create_metadata():
    async with ProvisionerWorld() as world:
        await world.make_class()
        request, volume = await provisioned(world, {"claim_metadata": True})
        assert dict(request.parameters) == {
            "csi.storage.k8s.io/pvc/name": "data",
            "csi.storage.k8s.io/pvc/namespace": NAMESPACE,
            "csi.storage.k8s.io/pv/name": volume["metadata"]["name"],
        }


@pytest.mark.parametrize(
    ("parameters", "default", "fs_type"),
    [({}, "", ""), ({}, "ext4", "ext4"), ({"fsType": "xfs"}, "ext4", "xfs"), ({"fstype": "xfs"}, "", "xfs")],
)
async def test_the_file_system_is_the_classs_or_the_default(parameters: dict[str, str], default: str, fs_type: str):
    async with ProvisionerWorld() as world:
        await world.make_class(parameters=parameters)
        request, volume = await provisioned(world, {"default_fs_type": default})
        assert request.volume_capabilities[0].mount.fs_type == fs_type
        assert volume["spec"]["csi"].get("fsType", "") == fs_type


async def test_mount_options_reach_the_driver_and_the_persistent_volume():
    async with ProvisionerWorld() as world:
        await world.make_class(mountOptions=["noatime", "discard"])
        request, volume = await provisioned(world)
        assert list(request.volume_capabilities[0].mount.mount_flags) == ["noatime", "discard"]
        assert volume["spec"]["mountOptions"] == ["noatime", "discard"]


@pytest.mark.parametrize(
    ("modes", "precise", "asked"),
    [
        (["ReadWriteOnce"], False, [Mode.SINGLE_NODE_WRITER]),
        (["ReadWriteOnce"], True, [Mode.SINGLE_NODE_MULTI_WRITER]),
        (["ReadWriteOncePod"], False, [Mode.SINGLE_NODE_WRITER]),
        (["ReadWriteOncePod"], True, [Mode.SINGLE_NODE_SINGLE_WRITER]),
        (["ReadWriteMany", "ReadOnlyMany"], False, [Mode.MULTI_NODE_MULTI_WRITER, Mode.MULTI_NODE_READER_ONLY]),
    ],
)
async def test_access_modes_are_those_that_the_driver_knows(modes: list[str], asked: list[Any], *, precise: bool):
    more = ["SINGLE_NODE_MULTI_WRITER"] if precise else []
    async with ProvisionerWorld() as world:
        world.play({}, capabilities={**PLAIN, "controller": ["CREATE_DELETE_VOLUME", *more]})
        await world.make_class()
        request, volume = await provisioned(world, accessModes=modes)
        assert [one.access_mode.mode for one in request.volume_capabilities] == asked
        assert volume["spec"]["accessModes"] == modes


async def test_a_block_volume_has_no_file_system():
    async with ProvisionerWorld() as world:
        await world.make_class(parameters={"fstype": "xfs"}, mountOptions=["noatime"])
        request, volume = await provisioned(world, volumeMode="Block")
        assert request.volume_capabilities[0].WhichOneof("access_type") == "block"
        assert volume["spec"]["volumeMode"] == "Block"
        assert "fsType" not in volume["spec"]["csi"]


async def test_a_volume_attributes_class_is_sent_and_kept():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_attributes_class("gold", iops="100")
        request, volume = await provisioned(world, volumeAttributesClassName="gold")
        assert dict(request.mutable_parameters) == {"iops": "100"}
        assert volume["spec"]["volumeAttributesClassName"] == "gold"


# ---- the PersistentVolume --------------------------------------------------------------------------------------------


async def test_the_persistent_volume_is_for_the_claim_alone_and_is_kept_until_its_volume_is_deleted():
    async with ProvisionerWorld() as world:
        await world.make_class()
        _, volume = await provisioned(world)
        claim = (await world.claim())["metadata"]
        reference = volume["spec"]["claimRef"]
        assert {key: reference[key] for key in ("kind", "namespace", "name", "uid")} == {
            "kind": "PersistentVolumeClaim",
            "namespace": NAMESPACE,
            "name": "data",
            "uid": claim["uid"],
        }
        annotations = volume["metadata"]["annotations"]
        assert annotations[state.PROVISIONED_BY] == DRIVER
        assert (annotations[DELETION_SECRET_NAME], annotations[DELETION_SECRET_NAMESPACE]) == ("", "")
        assert FINALIZER in volume["metadata"]["finalizers"]
        assert volume["spec"]["storageClassName"] == "fast"
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Delete"


async def test_a_volume_that_is_to_be_retained_has_no_finalizer_of_ours():
    async with ProvisionerWorld() as world:
        await world.make_class(reclaimPolicy="Retain")
        _, volume = await provisioned(world)
        assert FINALIZER not in volume["metadata"].get("finalizers", [])
        assert volume["spec"]["persistentVolumeReclaimPolicy"] == "Retain"


async def test_volumes_are_named_as_the_flags_say():
    async with ProvisionerWorld() as world:
        await world.make_class()
        request, volume = await provisioned(world, {"volume_name_prefix": "kube", "volume_name_uuid_length": 10})
        uid = (await world.claim())["metadata"]["uid"].replace("-", "")
        assert request.name == volume["metadata"]["name"] == f"kube-{uid[:10]}"


async def test_two_claims_whose_cut_names_are_equal_never_share_a_volume():
    async with ProvisionerWorld() as world:
        await world.make_class()
        claims = []
        while len({uid[0] for uid in claims}) == len(claims):
            claims.append((await world.make_claim(f"data-{len(claims)}"))["metadata"]["uid"])
        async with world.provisioner(volume_name_uuid_length=1):
            await world.clock.sleep(600)
        volumes = await world.volumes()
        handles = [volume["spec"]["csi"]["volumeHandle"] for volume in volumes]
        assert len(handles) == len(set(handles)) == len({uid[0] for uid in claims})
        assert len(world.names()) == len(handles)


async def test_a_claim_whose_cut_name_is_ordered_for_another_is_told_how_to_get_longer_names():
    async with ProvisionerWorld() as world:
        await world.make_class()
        world.play({CREATE: [{"delay": "5s", "times": 0}]})
        first = (await world.make_claim("first"))["metadata"]["uid"]
        number = 0
        while (await world.make_claim(f"data-{number}"))["metadata"]["uid"][0] != first[0]:
            await world.delete_claim(f"data-{number}")
            number += 1
        async with world.provisioner(volume_name_uuid_length=1):
            await world.until_event("ProvisioningFailed", "use a longer --volume-name-uuid-length")
            await world.clock.sleep(600)
        assert world.calls() == [CREATE]
        assert len([event for event in await world.events() if event.startswith("ProvisioningSucceeded")]) == 1


# ---- events ----------------------------------------------------------------------------------------------------------


async def test_events_are_in_upstreams_words():
    async with ProvisionerWorld() as world:
        await world.make_class()
        world.play({CREATE: [{"error": {"code": "INTERNAL", "message": "the disk is on fire"}}]})
        _, volume = await _provisioned_at_last(world)
        failed = "rpc error: code = Internal desc = the disk is on fire"
        assert set(await world.events()) == {
            'Provisioning: External provisioner is provisioning volume for claim "team/data"',
            f'ProvisioningFailed: failed to provision volume with StorageClass "fast": {failed}',
            f"ProvisioningSucceeded: Successfully provisioned volume {volume['metadata']['name']}",
        }


async def _provisioned_at_last(world: ProvisionerWorld) -> tuple[Any, Any]:
    await world.make_claim()
    async with world.provisioner():
        (volume,) = await world.until_provisioned()
    return world.requests(CREATE)[-1], volume


async def test_two_hundred_claims_become_two_hundred_volumes():
    async with ProvisionerWorld() as world:
        await world.make_class()
        for number in range(200):
            await world.make_claim(f"data-{number}")
        async with world.provisioner():
            await world.until_provisioned(200)
            await world.until_journal_is_empty()
        assert len(world.names()) == len(world.calls()) == 200


async def test_a_claim_that_is_deleted_and_created_again_has_a_volume_of_its_own():
    async with ProvisionerWorld() as world:
        await world.make_class()
        first = await world.make_claim()
        async with world.provisioner():
            await world.until_provisioned()
            await world.delete_claim()
            second = await world.make_claim()
            await world.until_provisioned(2)
        uids = {volume["spec"]["claimRef"]["uid"] for volume in await world.volumes()}
        assert uids == {first["metadata"]["uid"], second["metadata"]["uid"]}


async def test_a_persistent_volume_of_the_name_that_exists_already_is_taken_for_the_claims():
    async with ProvisionerWorld() as world:
        await world.make_class()
        claim = await world.make_claim()
        body = {
            "metadata": {"name": f"pvc-{claim['metadata']['uid']}"},
            "spec": {
                "capacity": {"storage": "1Gi"},
                "accessModes": ["ReadWriteOnce"],
                "csi": {"driver": DRIVER, "volumeHandle": "theirs"},
            },
        }
        await world.client.create(PERSISTENT_VOLUME, body)
        async with world.provisioner():
            await world.clock.sleep(600)
        assert world.calls() == []


async def test_a_claim_that_is_being_deleted_is_not_provisioned():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim()
        await world.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, "data"))
        async with world.provisioner():
            await world.clock.sleep(600)
        assert (await world.claim())["metadata"]["deletionTimestamp"]
        assert world.calls() == []
