"""What the model says of itself, and what it refuses before it looks at its storage."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.csi.error_codes import (
    CsiError,
    InvalidArgument,
    NotFound,
    Unimplemented,
)
from orlop.csi.proto import rpc as rpc_table
from orlop.testing.driver_model import ALL_CAPABILITIES
from orlop.testing.driver_script import CSI_SERVICES, RPCS
from support.csi.csi_drivers import (
    CREATE,
    MANY_PODS,
    MOUNT,
    ON_NODE_1,
    PUBLISH,
    STAGE,
    Bench,
    Way,
    create,
    in_process_bench,
    without,
)


async def test_the_driver_says_who_it_is_and_what_it_can(way: Way):
    async with way(driver={"name": "d.example.com", "version": "2"}) as bench:
        assert await bench.call("GetPluginInfo") == {"name": "d.example.com", "vendorVersion": "2"}
        assert await bench.call("Probe") == {"ready": True}
        assert await bench.client.capabilities() == ALL_CAPABILITIES


async def test_exactly_the_capabilities_that_are_on_are_listed(way: Way):
    on = {
        "plugin": ["CONTROLLER_SERVICE", "VOLUME_EXPANSION_OFFLINE", "GROUP_CONTROLLER_SERVICE"],
        "controller": ["LIST_VOLUMES"],
        "groupController": [],
        "node": ["GET_VOLUME_STATS"],
    }
    async with way(capabilities=on) as bench:
        capabilities = await bench.client.capabilities()
    assert capabilities.plugin == set(on["plugin"])
    assert (capabilities.controller, capabilities.group_controller) == ({"LIST_VOLUMES"}, frozenset())
    assert capabilities.node == {"GET_VOLUME_STATS"}


async def test_a_driver_that_is_not_ready_says_so(way: Way):
    async with way(driver={"ready": False}) as bench:
        assert await bench.call("Probe") == {"ready": False}


ABILITY_OF_RPC = {
    "CreateVolume": ("controller", "CREATE_DELETE_VOLUME"),
    "DeleteVolume": ("controller", "CREATE_DELETE_VOLUME"),
    "ControllerPublishVolume": ("controller", "PUBLISH_UNPUBLISH_VOLUME"),
    "ControllerUnpublishVolume": ("controller", "PUBLISH_UNPUBLISH_VOLUME"),
    "ListVolumes": ("controller", "LIST_VOLUMES"),
    "ControllerListVolumeHealth": ("controller", "LIST_VOLUME_HEALTH"),
    "ControllerGetVolumeHealth": ("controller", "GET_VOLUME_HEALTH"),
    "GetCapacity": ("controller", "GET_CAPACITY"),
    "CreateSnapshot": ("controller", "CREATE_DELETE_SNAPSHOT"),
    "DeleteSnapshot": ("controller", "CREATE_DELETE_SNAPSHOT"),
    "ListSnapshots": ("controller", "LIST_SNAPSHOTS"),
    "GetSnapshot": ("controller", "GET_SNAPSHOT"),
    "ControllerExpandVolume": ("controller", "EXPAND_VOLUME"),
    "ControllerGetVolume": ("controller", "GET_VOLUME"),
    "ControllerModifyVolume": ("controller", "MODIFY_VOLUME"),
    "CreateVolumeGroupSnapshot": ("groupController", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    "DeleteVolumeGroupSnapshot": ("groupController", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    "GetVolumeGroupSnapshot": ("groupController", "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT"),
    "GetMetadataAllocated": ("plugin", "SNAPSHOT_METADATA_SERVICE"),
    "GetMetadataDelta": ("plugin", "SNAPSHOT_METADATA_SERVICE"),
    "NodeStageVolume": ("node", "STAGE_UNSTAGE_VOLUME"),
    "NodeUnstageVolume": ("node", "STAGE_UNSTAGE_VOLUME"),
    "NodeGetVolumeStats": ("node", "GET_VOLUME_STATS"),
    "NodeGetVolumeHealth": ("node", "GET_VOLUME_HEALTH"),
    "NodeGetStorageHealth": ("node", "GET_STORAGE_HEALTH"),
    "NodeExpandVolume": ("node", "EXPAND_VOLUME"),
}


async def answer_of(bench: Bench, method: str) -> CsiError | None:
    """What an empty request is answered with."""
    try:
        await (bench.stream(method) if RPCS[method].streams else bench.call(method))
    except CsiError as error:
        return error
    return None


@pytest.mark.parametrize("method", ABILITY_OF_RPC)
async def test_an_rpc_whose_capability_is_off_is_not_served_and_one_that_is_on_is(method: str):
    group, ability = ABILITY_OF_RPC[method]
    async with in_process_bench(without(group, ability)) as bench:
        assert isinstance(await answer_of(bench, method), Unimplemented)
    async with in_process_bench() as bench:
        assert not isinstance(await answer_of(bench, method), Unimplemented)


@pytest.mark.parametrize(
    ("service", "ability"), [("Controller", "CONTROLLER_SERVICE"), ("GroupController", "GROUP_CONTROLLER_SERVICE")]
)
async def test_a_service_that_is_off_serves_none_of_its_rpcs(service: str, ability: str):
    async with in_process_bench(without("plugin", ability)) as bench:
        for each in rpc_table.SERVICES[service]:
            assert isinstance(await answer_of(bench, each.name), Unimplemented), each.name


async def test_every_other_rpc_is_always_served():
    everything_off = {"plugin": ["CONTROLLER_SERVICE", "GROUP_CONTROLLER_SERVICE"], "controller": [], "node": []}
    always = [rpc.name for service in CSI_SERVICES for rpc in rpc_table.SERVICES[service]]
    async with in_process_bench({"capabilities": everything_off}) as bench:
        for method in sorted(set(always) - set(ABILITY_OF_RPC)):
            assert not isinstance(await answer_of(bench, method), Unimplemented), method


WRONG_ARGUMENTS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    ("CreateVolume", {**CREATE, "name": ""}, {}, "name is missing in the CreateVolumeRequest: it is required"),
    ("CreateVolume", {**CREATE, "volumeCapabilities": []}, {}, "volume_capabilities is missing"),
    ("CreateVolume", {**CREATE, "volumeCapabilities": [{"mount": {}}]}, {}, "no access mode"),
    ("CreateVolume", {**CREATE, "volumeCapabilities": [{"accessMode": {"mode": 1}}]}, {}, "no access type"),
    ("CreateVolume", {**CREATE, "name": "ä" * 65}, {}, "the name has 130 bytes: at most 128"),
    ("CreateVolume", {**CREATE, "name": "a\x00"}, {}, "control characters"),
    ("CreateVolume", {**CREATE, "capacityRange": {}}, {}, "capacity_range is empty"),
    ("CreateVolume", {**CREATE, "capacityRange": {"requiredBytes": -1}}, {}, "negative"),
    ("CreateVolume", {**CREATE, "volumeContentSource": {}}, {}, "names no source"),
    (
        "CreateVolume",
        {**CREATE, "volumeContentSource": {"volume": {"volumeId": "v"}}},
        without("controller", "CLONE_VOLUME"),
        "a volume from a volume needs the capability CLONE_VOLUME",
    ),
    (
        "CreateVolume",
        {**CREATE, "volumeContentSource": {"snapshot": {"snapshotId": "s"}}},
        without("controller", "CREATE_DELETE_SNAPSHOT"),
        "a volume from a snapshot needs the capability CREATE_DELETE_SNAPSHOT",
    ),
    (
        "CreateVolume",
        {**CREATE, "mutableParameters": {"iops": "5"}},
        without("controller", "MODIFY_VOLUME"),
        "mutable_parameters need the capability MODIFY_VOLUME",
    ),
    (
        "CreateVolume",
        {**CREATE, "mutableParameters": {"colour": "5"}},
        {"mutableParameters": ["iops"]},
        "mutable_parameters holds colour: allowed are iops",
    ),
    (
        "CreateVolume",
        {**CREATE, "volumeCapabilities": [MANY_PODS]},
        without("controller", "SINGLE_NODE_MULTI_WRITER"),
        "the access mode SINGLE_NODE_MULTI_WRITER needs the capability SINGLE_NODE_MULTI_WRITER",
    ),
    (
        "CreateVolume",
        {**CREATE, "accessibilityRequirements": {"requisite": [{"segments": {"zone": "a"}}]}},
        without("plugin", "VOLUME_ACCESSIBILITY_CONSTRAINTS"),
        "accessibility_requirements need the capability VOLUME_ACCESSIBILITY_CONSTRAINTS",
    ),
    (
        "CreateVolume",
        {
            **CREATE,
            "accessibilityRequirements": {
                "requisite": [{"segments": {"zone": "a"}}],
                "preferred": [{"segments": {"zone": "b"}}],
            },
        },
        {},
        "prefers {'zone': 'b'}, which is not among the requisite places",
    ),
    ("DeleteVolume", {}, {}, "volume_id is missing"),
    ("ControllerPublishVolume", ON_NODE_1, {}, "volume_id is missing"),
    ("ControllerPublishVolume", {"volumeId": "v", "volumeCapability": MOUNT}, {}, "node_id is missing"),
    ("ControllerPublishVolume", {"volumeId": "v", "nodeId": "n"}, {}, "volume_capability is missing"),
    (
        "ControllerPublishVolume",
        {**ON_NODE_1, "volumeId": "v", "readonly": True},
        without("controller", "PUBLISH_READONLY"),
        "readonly needs the capability PUBLISH_READONLY",
    ),
    ("ControllerUnpublishVolume", {}, {}, "volume_id is missing"),
    ("ValidateVolumeCapabilities", {"volumeId": "v"}, {}, "volume_capabilities is missing"),
    ("ListVolumes", {"maxEntries": -1}, {}, "max_entries is -1"),
    ("ListSnapshots", {"maxEntries": -1}, {}, "max_entries is -1"),
    ("ControllerListVolumeHealth", {"maxEntries": -1}, {}, "max_entries is -1"),
    ("ControllerGetVolume", {}, {}, "volume_id is missing"),
    ("ControllerGetVolumeHealth", {}, {}, "volume_id is missing"),
    ("ControllerExpandVolume", {"volumeId": "v"}, {}, "capacity_range is missing"),
    ("ControllerModifyVolume", {}, {}, "volume_id is missing"),
    ("GetCapacity", {"volumeCapabilities": [{}]}, {}, "no access type"),
    ("CreateSnapshot", {"name": "s"}, {}, "source_volume_id is missing"),
    ("CreateSnapshot", {"sourceVolumeId": "v"}, {}, "name is missing"),
    ("DeleteSnapshot", {}, {}, "snapshot_id is missing"),
    ("GetSnapshot", {}, {}, "snapshot_id is missing"),
    ("CreateVolumeGroupSnapshot", {"name": "g"}, {}, "source_volume_ids is missing"),
    ("DeleteVolumeGroupSnapshot", {}, {}, "group_snapshot_id is missing"),
    ("GetVolumeGroupSnapshot", {}, {}, "group_snapshot_id is missing"),
    ("GetMetadataAllocated", {}, {}, "snapshot_id is missing"),
    ("GetMetadataDelta", {"baseSnapshotId": "s"}, {}, "target_snapshot_id is missing"),
    ("NodeStageVolume", {"volumeId": "v", "volumeCapability": MOUNT}, {}, "staging_target_path is missing"),
    ("NodeStageVolume", {**STAGE, "volumeId": "v", "stagingTargetPath": "x"}, {}, "must be an absolute path"),
    ("NodeUnstageVolume", {"volumeId": "v"}, {}, "staging_target_path is missing"),
    ("NodePublishVolume", {"volumeId": "v", "volumeCapability": MOUNT}, {}, "target_path is missing"),
    ("NodePublishVolume", {"volumeId": "v", "targetPath": "/t"}, {}, "volume_capability is missing"),
    ("NodePublishVolume", {**PUBLISH, "volumeId": "v", "targetPath": "t"}, {}, "must be an absolute path"),
    (
        "NodePublishVolume",
        {**PUBLISH, "volumeId": "v", "volumeCapability": {**MOUNT, "mount": {"volumeMountGroup": "5"}}},
        without("node", "VOLUME_MOUNT_GROUP"),
        "volume_mount_group needs the capability VOLUME_MOUNT_GROUP",
    ),
    ("NodeUnpublishVolume", {"volumeId": "v"}, {}, "target_path is missing"),
    ("NodeGetVolumeStats", {"volumeId": "v"}, {}, "volume_path is missing"),
    ("NodeGetVolumeHealth", {}, {}, "volume_id is missing"),
    ("NodeExpandVolume", {"volumeId": "v"}, {}, "volume_path is missing"),
]


@pytest.mark.parametrize(
    ("method", "fields", "script", "sentence"),
    WRONG_ARGUMENTS,
    ids=[f"{m}: {s[:40]}" for m, _, _, s in WRONG_ARGUMENTS],
)
async def test_a_wrong_argument_is_named(method: str, fields: dict[str, Any], script: dict[str, Any], sentence: str):
    async with in_process_bench(script) as bench:
        with pytest.raises(InvalidArgument) as caught:
            await (bench.stream(method, **fields) if RPCS[method].streams else bench.call(method, **fields))
    assert sentence in caught.value.message


UNKNOWN_THINGS: list[tuple[str, dict[str, Any]]] = [
    ("ControllerPublishVolume", ON_NODE_1),
    ("ValidateVolumeCapabilities", {"volumeCapabilities": [MOUNT]}),
    ("ControllerGetVolume", {}),
    ("ControllerGetVolumeHealth", {}),
    ("ControllerExpandVolume", {"capacityRange": {"requiredBytes": 5}}),
    ("ControllerModifyVolume", {"mutableParameters": {"a": "b"}}),
    ("NodeStageVolume", STAGE),
    ("NodeUnstageVolume", {"stagingTargetPath": "/staging"}),
    ("NodePublishVolume", PUBLISH),
    ("NodeUnpublishVolume", {"targetPath": "/target"}),
    ("NodeGetVolumeStats", {"volumePath": "/target"}),
    ("NodeGetVolumeHealth", {}),
    ("NodeExpandVolume", {"volumePath": "/target"}),
]


@pytest.mark.parametrize(("method", "fields"), UNKNOWN_THINGS, ids=[method for method, _ in UNKNOWN_THINGS])
async def test_an_unknown_volume_is_not_found(way: Way, method: str, fields: dict[str, Any]):
    async with way() as bench:
        with pytest.raises(NotFound, match="there is no volume gone"):
            await bench.call(method, volumeId="gone", **fields)


async def test_an_unknown_source_snapshot_or_group_is_not_found(way: Way):
    async with way() as bench:
        for source in ({"volume": {"volumeId": "gone"}}, {"snapshot": {"snapshotId": "gone"}}):
            with pytest.raises(NotFound, match="gone"):
                await create(bench, volumeContentSource=source)
        with pytest.raises(NotFound, match="gone"):
            await bench.call("CreateSnapshot", name="s", sourceVolumeId="gone")
        with pytest.raises(NotFound, match="gone"):
            await bench.call("GetSnapshot", snapshotId="gone")
        with pytest.raises(NotFound, match="gone"):
            await bench.call("CreateVolumeGroupSnapshot", name="g", sourceVolumeIds=["gone"])
        with pytest.raises(NotFound, match="gone"):
            await bench.call("GetVolumeGroupSnapshot", groupSnapshotId="gone")
        with pytest.raises(NotFound, match="gone"):
            await bench.stream("GetMetadataAllocated", snapshotId="gone")


async def test_what_is_gone_can_be_deleted_and_detached_again(way: Way):
    async with way() as bench:
        assert await bench.call("DeleteVolume", volumeId="gone") == {}
        assert await bench.call("ControllerUnpublishVolume", volumeId="gone", nodeId="node-1") == {}
        assert await bench.call("DeleteSnapshot", snapshotId="gone") == {}
        assert await bench.call("DeleteVolumeGroupSnapshot", groupSnapshotId="gone") == {}
