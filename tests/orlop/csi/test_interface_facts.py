"""Pins the facts of CSI 1.13.0 and of kubelet plugin registration v1 that other programs rely on.

A change that breaks one of these tests breaks the wire: it must not be answered by changing the test, unless the
published interface itself has changed.
"""

import asyncio
import hashlib
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor, MethodDescriptor
from google.protobuf.descriptor_pb2 import DescriptorProto, EnumDescriptorProto, FileDescriptorProto
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from orlop.csi.error_codes import Unimplemented
from orlop.csi.proto import csi_pb2, registration_pb2, rpc, services
from orlop.csi.rpc_type import Rpc

INTERFACES: tuple[FileDescriptor, ...] = (csi_pb2.DESCRIPTOR, registration_pb2.DESCRIPTOR)

RPCS = {
    "csi.v1.Identity": ("GetPluginInfo", "GetPluginCapabilities", "Probe"),
    "csi.v1.Controller": (
        "CreateVolume",
        "DeleteVolume",
        "ControllerPublishVolume",
        "ControllerUnpublishVolume",
        "ValidateVolumeCapabilities",
        "ListVolumes",
        "ControllerListVolumeHealth",
        "ControllerGetVolumeHealth",
        "GetCapacity",
        "ControllerGetCapabilities",
        "CreateSnapshot",
        "DeleteSnapshot",
        "ListSnapshots",
        "GetSnapshot",
        "ControllerExpandVolume",
        "ControllerGetVolume",
        "ControllerModifyVolume",
    ),
    "csi.v1.GroupController": (
        "GroupControllerGetCapabilities",
        "CreateVolumeGroupSnapshot",
        "DeleteVolumeGroupSnapshot",
        "GetVolumeGroupSnapshot",
    ),
    "csi.v1.SnapshotMetadata": ("GetMetadataAllocated", "GetMetadataDelta"),
    "csi.v1.Node": (
        "NodeStageVolume",
        "NodeUnstageVolume",
        "NodePublishVolume",
        "NodeUnpublishVolume",
        "NodeGetVolumeStats",
        "NodeGetVolumeHealth",
        "NodeGetStorageHealth",
        "NodeExpandVolume",
        "NodeGetCapabilities",
        "NodeGetInfo",
    ),
    "pluginregistration.Registration": ("GetInfo", "NotifyRegistrationStatus"),
}

ALPHA_RPCS = {
    "ControllerListVolumeHealth",
    "ControllerGetVolumeHealth",
    "GetSnapshot",
    "ControllerGetVolume",
    "NodeGetVolumeHealth",
    "NodeGetStorageHealth",
}

SECRETS = {
    "CreateVolumeRequest": 5,
    "DeleteVolumeRequest": 2,
    "ControllerPublishVolumeRequest": 5,
    "ControllerUnpublishVolumeRequest": 3,
    "ValidateVolumeCapabilitiesRequest": 5,
    "ControllerListVolumeHealthRequest": 3,
    "ControllerGetVolumeHealthRequest": 2,
    "ControllerModifyVolumeRequest": 2,
    "CreateSnapshotRequest": 3,
    "DeleteSnapshotRequest": 2,
    "ListSnapshotsRequest": 5,
    "GetSnapshotRequest": 2,
    "ControllerExpandVolumeRequest": 3,
    "NodeStageVolumeRequest": 5,
    "NodePublishVolumeRequest": 7,
    "NodeGetStorageHealthRequest": 1,
    "NodeExpandVolumeRequest": 6,
    "CreateVolumeGroupSnapshotRequest": 3,
    "DeleteVolumeGroupSnapshotRequest": 3,
    "GetVolumeGroupSnapshotRequest": 3,
    "GetMetadataAllocatedRequest": 4,
    "GetMetadataDeltaRequest": 5,
}

FIELDS = (
    ("csi.v1.GetPluginInfoResponse", "name", 1),
    ("csi.v1.GetPluginInfoResponse", "vendor_version", 2),
    ("csi.v1.GetPluginCapabilitiesResponse", "capabilities", 1),
    ("csi.v1.PluginCapability", "service", 1),
    ("csi.v1.PluginCapability", "volume_expansion", 2),
    ("csi.v1.ProbeResponse", "ready", 1),
    ("csi.v1.CreateVolumeRequest", "name", 1),
    ("csi.v1.CreateVolumeRequest", "capacity_range", 2),
    ("csi.v1.CreateVolumeRequest", "volume_capabilities", 3),
    ("csi.v1.CreateVolumeRequest", "parameters", 4),
    ("csi.v1.CreateVolumeRequest", "volume_content_source", 6),
    ("csi.v1.CreateVolumeRequest", "accessibility_requirements", 7),
    ("csi.v1.CreateVolumeRequest", "mutable_parameters", 8),
    ("csi.v1.VolumeContentSource", "snapshot", 1),
    ("csi.v1.VolumeContentSource", "volume", 2),
    ("csi.v1.VolumeCapability", "block", 1),
    ("csi.v1.VolumeCapability", "mount", 2),
    ("csi.v1.VolumeCapability", "access_mode", 3),
    ("csi.v1.VolumeCapability.MountVolume", "fs_type", 1),
    ("csi.v1.VolumeCapability.MountVolume", "mount_flags", 2),
    ("csi.v1.VolumeCapability.MountVolume", "volume_mount_group", 3),
    ("csi.v1.CapacityRange", "required_bytes", 1),
    ("csi.v1.CapacityRange", "limit_bytes", 2),
    ("csi.v1.Volume", "capacity_bytes", 1),
    ("csi.v1.Volume", "volume_id", 2),
    ("csi.v1.Volume", "volume_context", 3),
    ("csi.v1.Volume", "content_source", 4),
    ("csi.v1.Volume", "accessible_topology", 5),
    ("csi.v1.TopologyRequirement", "requisite", 1),
    ("csi.v1.TopologyRequirement", "preferred", 2),
    ("csi.v1.Topology", "segments", 1),
    ("csi.v1.ControllerPublishVolumeRequest", "node_id", 2),
    ("csi.v1.ControllerPublishVolumeRequest", "readonly", 4),
    ("csi.v1.ControllerPublishVolumeResponse", "publish_context", 1),
    ("csi.v1.ListVolumesResponse", "entries", 1),
    ("csi.v1.ListVolumesResponse", "next_token", 2),
    ("csi.v1.GetCapacityResponse", "available_capacity", 1),
    ("csi.v1.GetCapacityResponse", "maximum_volume_size", 2),
    ("csi.v1.GetCapacityResponse", "minimum_volume_size", 3),
    ("csi.v1.Snapshot", "size_bytes", 1),
    ("csi.v1.Snapshot", "snapshot_id", 2),
    ("csi.v1.Snapshot", "source_volume_id", 3),
    ("csi.v1.Snapshot", "creation_time", 4),
    ("csi.v1.Snapshot", "ready_to_use", 5),
    ("csi.v1.Snapshot", "group_snapshot_id", 6),
    ("csi.v1.Snapshot", "accessible_topology", 7),
    ("csi.v1.CreateSnapshotRequest", "accessibility_requirements", 5),
    ("csi.v1.ControllerExpandVolumeResponse", "node_expansion_required", 2),
    ("csi.v1.NodeStageVolumeRequest", "staging_target_path", 3),
    ("csi.v1.NodeStageVolumeRequest", "volume_context", 6),
    ("csi.v1.NodePublishVolumeRequest", "staging_target_path", 3),
    ("csi.v1.NodePublishVolumeRequest", "target_path", 4),
    ("csi.v1.NodePublishVolumeRequest", "readonly", 6),
    ("csi.v1.NodePublishVolumeRequest", "volume_context", 8),
    ("csi.v1.NodeUnpublishVolumeRequest", "target_path", 2),
    ("csi.v1.NodeGetVolumeStatsResponse", "usage", 1),
    ("csi.v1.VolumeUsage", "unit", 4),
    ("csi.v1.VolumeHealth", "volume_id", 1),
    ("csi.v1.VolumeHealth", "health_statuses", 2),
    ("csi.v1.VolumeHealth.VolumeHealthEntry", "status", 1),
    ("csi.v1.VolumeHealth.VolumeHealthEntry", "reason", 2),
    ("csi.v1.VolumeHealth.VolumeHealthEntry", "message", 3),
    ("csi.v1.ControllerListVolumeHealthResponse", "entries", 1),
    ("csi.v1.ControllerGetVolumeHealthResponse", "volume_health", 1),
    ("csi.v1.NodeGetVolumeHealthRequest", "volume_publish_path", 2),
    ("csi.v1.NodeGetVolumeHealthRequest", "staging_target_path", 3),
    ("csi.v1.NodeGetVolumeHealthResponse", "volume_health", 1),
    ("csi.v1.NodeGetStorageHealthResponse", "backend_health", 1),
    ("csi.v1.NodeGetStorageHealthResponse.StorageBackendHealth", "status", 1),
    ("csi.v1.NodeGetStorageHealthResponse.StorageBackendHealth", "volume_capability", 4),
    ("csi.v1.NodeGetInfoResponse", "node_id", 1),
    ("csi.v1.NodeGetInfoResponse", "max_volumes_per_node", 2),
    ("csi.v1.NodeGetInfoResponse", "accessible_topology", 3),
    ("csi.v1.NodeExpandVolumeRequest", "volume_capability", 5),
    ("csi.v1.GetMetadataDeltaRequest", "target_snapshot_id", 2),
    ("pluginregistration.PluginInfo", "type", 1),
    ("pluginregistration.PluginInfo", "name", 2),
    ("pluginregistration.PluginInfo", "endpoint", 3),
    ("pluginregistration.PluginInfo", "supported_versions", 4),
    ("pluginregistration.RegistrationStatus", "plugin_registered", 1),
    ("pluginregistration.RegistrationStatus", "error", 2),
)

ENUMS = {
    "csi.v1.PluginCapability.Service.Type": {
        "UNKNOWN": 0,
        "CONTROLLER_SERVICE": 1,
        "VOLUME_ACCESSIBILITY_CONSTRAINTS": 2,
        "GROUP_CONTROLLER_SERVICE": 3,
        "SNAPSHOT_METADATA_SERVICE": 4,
        "SNAPSHOT_ACCESSIBILITY_CONSTRAINTS": 5,
    },
    "csi.v1.PluginCapability.VolumeExpansion.Type": {"UNKNOWN": 0, "ONLINE": 1, "OFFLINE": 2},
    "csi.v1.VolumeCapability.AccessMode.Mode": {
        "UNKNOWN": 0,
        "SINGLE_NODE_WRITER": 1,
        "SINGLE_NODE_READER_ONLY": 2,
        "MULTI_NODE_READER_ONLY": 3,
        "MULTI_NODE_SINGLE_WRITER": 4,
        "MULTI_NODE_MULTI_WRITER": 5,
        "SINGLE_NODE_SINGLE_WRITER": 6,
        "SINGLE_NODE_MULTI_WRITER": 7,
    },
    "csi.v1.ControllerServiceCapability.RPC.Type": {
        "UNKNOWN": 0,
        "CREATE_DELETE_VOLUME": 1,
        "PUBLISH_UNPUBLISH_VOLUME": 2,
        "LIST_VOLUMES": 3,
        "GET_CAPACITY": 4,
        "CREATE_DELETE_SNAPSHOT": 5,
        "LIST_SNAPSHOTS": 6,
        "CLONE_VOLUME": 7,
        "PUBLISH_READONLY": 8,
        "EXPAND_VOLUME": 9,
        "LIST_VOLUMES_PUBLISHED_NODES": 10,
        "GET_VOLUME": 12,
        "SINGLE_NODE_MULTI_WRITER": 13,
        "MODIFY_VOLUME": 14,
        "GET_SNAPSHOT": 15,
        "GET_VOLUME_HEALTH": 16,
        "LIST_VOLUME_HEALTH": 17,
    },
    "csi.v1.NodeServiceCapability.RPC.Type": {
        "UNKNOWN": 0,
        "STAGE_UNSTAGE_VOLUME": 1,
        "GET_VOLUME_STATS": 2,
        "EXPAND_VOLUME": 3,
        "SINGLE_NODE_MULTI_WRITER": 5,
        "VOLUME_MOUNT_GROUP": 6,
        "GET_VOLUME_HEALTH": 7,
        "GET_STORAGE_HEALTH": 8,
    },
    "csi.v1.GroupControllerServiceCapability.RPC.Type": {"UNKNOWN": 0, "CREATE_DELETE_GET_VOLUME_GROUP_SNAPSHOT": 1},
    "csi.v1.VolumeUsage.Unit": {"UNKNOWN": 0, "BYTES": 1, "INODES": 2},
    "csi.v1.VolumeHealthErrorType": {
        "UNKNOWN_VOLUME_HEALTH_TYPE": 0,
        "DEGRADED": 1,
        "INACCESSIBLE": 2,
        "DATA_LOSS": 3,
    },
    "csi.v1.StorageHealthErrorType": {
        "UNKNOWN_STORAGE_HEALTH_ERROR_TYPE": 0,
        "STORAGE_DEGRADED": 1,
        "STORAGE_UNREACHABLE": 2,
    },
    "csi.v1.BlockMetadataType": {"UNKNOWN": 0, "FIXED_LENGTH": 1, "VARIABLE_LENGTH": 2},
}

# The messages whose field 2 was the volume condition, and the two capabilities of it, until 1.12.0.
WITHOUT_FIELD_2: tuple[type[Message], ...] = (
    csi_pb2.ListVolumesResponse.VolumeStatus,
    csi_pb2.ControllerGetVolumeResponse.VolumeStatus,
    csi_pb2.NodeGetVolumeStatsResponse,
)

# Of the lines that `facts_of_file` gives for the descriptor in the Go module of the released 1.13.0.
DIGEST_OF_1_13_0 = "e7a0f893c0ecd74ddc80a64d81b573bbfe725afbec16a0dc5ec7f5d8f8bb9b43"


def messages_within(message: Descriptor) -> Iterator[Descriptor]:
    yield message
    for nested in message.nested_types:
        yield from messages_within(nested)


def all_messages() -> list[Descriptor]:
    tops = [top for file in INTERFACES for top in file.message_types_by_name.values()]
    return [message for top in tops for message in messages_within(top)]


def all_methods() -> list[MethodDescriptor]:
    return [method for file in INTERFACES for service in file.services_by_name.values() for method in service.methods]


def is_secret(field: FieldDescriptor) -> bool:
    return csi_pb2.CSI_SECRET_FIELD_NUMBER in numbers_of(field.GetOptions())


def is_alpha(method: MethodDescriptor) -> bool:
    return csi_pb2.ALPHA_METHOD_FIELD_NUMBER in numbers_of(method.GetOptions())


def proto_of(message: type[Message]) -> DescriptorProto:
    proto = DescriptorProto()
    message.DESCRIPTOR.CopyToProto(proto)
    return proto


def facts_of_file(file: FileDescriptorProto) -> Iterator[str]:
    """Everything that another program can notice, a line for each fact: all but comments and file names."""
    for option in file.extension:
        yield f"option {option.name} {option.number} {option.extendee} {option.type}"
    for service in file.service:
        yield f"service {service.name} {numbers_of(service.options)}"
        for method in service.method:
            ways = f"{method.client_streaming} {method.server_streaming} {numbers_of(method.options)}"
            yield f"rpc {service.name}.{method.name} {method.input_type} {method.output_type} {ways}"
    for enum in file.enum_type:
        yield from facts_of_enum(enum, file.package)
    for message in file.message_type:
        yield from facts_of_message(message, file.package)


def facts_of_message(message: DescriptorProto, scope: str) -> Iterator[str]:
    name = f"{scope}.{message.name}"
    reserved = [(each.start, each.end) for each in message.reserved_range]
    yield f"message {name} {numbers_of(message.options)} {reserved}"
    for field in message.field:
        one_of = message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        kind = f"{field.label} {field.type} {field.type_name}"
        yield f"field {name}.{field.name} {field.number} {kind} {one_of} {numbers_of(field.options)}"
    for enum in message.enum_type:
        yield from facts_of_enum(enum, name)
    for nested in message.nested_type:
        yield from facts_of_message(nested, name)


def facts_of_enum(enum: EnumDescriptorProto, scope: str) -> Iterator[str]:
    reserved = [(each.start, each.end) for each in enum.reserved_range]
    yield f"enum {scope}.{enum.name} {numbers_of(enum.options)} {reserved}"
    for value in enum.value:
        yield f"value {scope}.{enum.name}.{value.name} {value.number} {numbers_of(value.options)}"


def numbers_of(options: Message) -> list[int]:
    return [option.number for option, _ in options.ListFields()]


def test_the_services_and_their_rpcs_are_those_of_the_interface() -> None:
    found = {
        service.full_name: tuple(method.name for method in service.methods)
        for file in INTERFACES
        for service in file.services_by_name.values()
    }
    assert found == RPCS


def test_only_the_snapshot_metadata_rpcs_stream_and_only_from_the_server() -> None:
    methods = all_methods()
    assert {method.name for method in methods if method.server_streaming} == set(RPCS["csi.v1.SnapshotMetadata"])
    assert not [method.name for method in methods if method.client_streaming]


def test_the_rpcs_that_may_still_change_are_marked_alpha() -> None:
    assert {method.name for method in all_methods() if is_alpha(method)} == ALPHA_RPCS


def test_the_options_of_the_interface_have_their_numbers() -> None:
    numbers = {name: option.number for name, option in csi_pb2.DESCRIPTOR.extensions_by_name.items()}
    assert numbers == {
        "csi_secret": 1059,
        "alpha_enum": 1060,
        "alpha_enum_value": 1060,
        "alpha_field": 1060,
        "alpha_message": 1060,
        "alpha_method": 1060,
        "alpha_service": 1060,
    }


def test_every_secret_field_of_the_interface_is_marked() -> None:
    marked = {message.name: field.number for message in all_messages() for field in message.fields if is_secret(field)}
    named_so = {
        message.name: field.number for message in all_messages() for field in message.fields if "secret" in field.name
    }
    assert marked == named_so == SECRETS


def test_the_whole_interface_equals_the_released_one() -> None:
    described = FileDescriptorProto()
    csi_pb2.DESCRIPTOR.CopyToProto(described)
    listing = "\n".join(facts_of_file(described))
    assert hashlib.sha256(listing.encode()).hexdigest() == DIGEST_OF_1_13_0


@pytest.mark.parametrize(("message", "field", "number"), FIELDS)
def test_a_field_of_the_interface_keeps_its_number(message: str, field: str, number: int) -> None:
    described = {each.full_name: each for each in all_messages()}[message]
    assert described.fields_by_name[field].number == number


def test_every_enum_of_the_interface_has_its_published_values() -> None:
    nested = [enum for message in all_messages() for enum in message.enum_types]
    enums = [*nested, *csi_pb2.DESCRIPTOR.enum_types_by_name.values()]
    assert {enum.full_name: {value.name: value.number for value in enum.values} for enum in enums} == ENUMS


def test_the_numbers_of_the_former_volume_condition_stay_reserved() -> None:
    for message in WITHOUT_FIELD_2:
        assert [(each.start, each.end) for each in proto_of(message).reserved_range] == [(2, 3)]
    controller = proto_of(csi_pb2.ControllerServiceCapability.RPC).enum_type[0]
    node = proto_of(csi_pb2.NodeServiceCapability.RPC).enum_type[0]
    assert [(each.start, each.end) for each in controller.reserved_range] == [(11, 11)]
    assert [(each.start, each.end) for each in node.reserved_range] == [(4, 4)]


def test_the_interface_files_are_registered_under_our_own_path() -> None:
    names = [file.name for file in INTERFACES]
    assert names == ["orlop/csi/proto/csi.proto", "orlop/csi/proto/registration.proto"]
    assert [file.package for file in INTERFACES] == ["csi.v1", "pluginregistration"]


def test_every_rpc_constant_equals_its_descriptor() -> None:
    from_descriptors = [
        Rpc(
            service=method.containing_service.name,
            name=method.name,
            path=f"/{method.containing_service.full_name}/{method.name}",
            request=GetMessageClass(method.input_type),
            response=GetMessageClass(method.output_type),
            streams=method.server_streaming,
        )
        for method in all_methods()
    ]
    assert list(rpc.ALL) == from_descriptors


def test_the_rpc_tables_hold_every_rpc_once() -> None:
    assert list(rpc.BY_PATH.values()) == list(rpc.ALL)
    assert all(path == each.path for path, each in rpc.BY_PATH.items())
    assert [each for group in rpc.SERVICES.values() for each in group] == list(rpc.ALL)
    assert list(rpc.SERVICES) == [name.rpartition(".")[2] for name in RPCS]


def test_an_rpc_constant_is_named_after_its_rpc() -> None:
    assert rpc.GET_PLUGIN_INFO.path == "/csi.v1.Identity/GetPluginInfo"
    assert rpc.NODE_GET_VOLUME_HEALTH.path == "/csi.v1.Node/NodeGetVolumeHealth"
    assert rpc.NOTIFY_REGISTRATION_STATUS.path == "/pluginregistration.Registration/NotifyRegistrationStatus"


@pytest.mark.parametrize("each", rpc.ALL, ids=lambda each: f"{each.service}.{each.name}")
def test_a_service_base_class_says_of_each_rpc_that_it_is_not_served(each: Rpc[Any, Any]) -> None:
    server = getattr(services, each.service)()
    with pytest.raises(Unimplemented, match=f"this driver does not serve {each.service}.{each.name}"):
        answer = getattr(server, each.name)(each.request())
        if isinstance(answer, Coroutine):
            asyncio.run(answer)


def test_a_create_volume_request_of_bytes_made_by_hand_parses() -> None:
    sent = (
        b"\x0a\x04pvc1"  # 1: name
        b"\x12\x06\x08\x80\x80\x80\x80\x04"  # 2: capacity_range { 1: required_bytes = 1 GiB }
        b"\x1a\x0c\x12\x06\x0a\x04ext4\x1a\x02\x08\x01"  # 3: a capability { 2: mount, 3: access_mode }
        b"\x22\x0c\x0a\x04tier\x12\x04fast"  # 4: parameters
        b"\x2a\x0a\x0a\x03key\x12\x03abc"  # 5: secrets
        b"\x32\x07\x0a\x05\x0a\x03s-1"  # 6: volume_content_source { 1: snapshot { 1: snapshot_id } }
    )
    request = csi_pb2.CreateVolumeRequest.FromString(sent)
    (capability,) = request.volume_capabilities
    assert request.name == "pvc1"
    assert request.capacity_range.required_bytes == 2**30
    assert capability.mount.fs_type == "ext4"
    assert capability.access_mode.mode == csi_pb2.VolumeCapability.AccessMode.SINGLE_NODE_WRITER
    assert dict(request.parameters) == {"tier": "fast"}
    assert dict(request.secrets) == {"key": "abc"}
    assert request.volume_content_source.snapshot.snapshot_id == "s-1"
    assert request.SerializeToString(deterministic=True) == sent


def test_a_volume_health_answer_of_bytes_made_by_hand_parses() -> None:
    sent = b"\x0a\x17\x0a\x02v1\x12\x11\x08\x02\x12\x08PathLost\x1a\x03why"
    health = csi_pb2.NodeGetVolumeHealthResponse.FromString(sent).volume_health
    (entry,) = health.health_statuses
    assert health.volume_id == "v1"
    assert (entry.status, entry.reason, entry.message) == (csi_pb2.INACCESSIBLE, "PathLost", "why")


def test_a_condition_sent_by_an_older_driver_is_kept_as_an_unknown_field() -> None:
    sent = b"\x0a\x04\x10\x64\x20\x01\x12\x02\x08\x01"  # 1: usage { total = 100, unit = BYTES }, 2: { abnormal = true }
    stats = csi_pb2.NodeGetVolumeStatsResponse.FromString(sent)
    (usage,) = stats.usage
    assert (usage.total, usage.unit) == (100, csi_pb2.VolumeUsage.BYTES)
    assert stats.SerializeToString() == sent


def test_a_plugin_info_of_bytes_made_by_hand_parses() -> None:
    sent = b"\x0a\x09CSIPlugin\x12\x05d.org\x1a\x09/csi.sock\x22\x051.0.0"
    info = registration_pb2.PluginInfo.FromString(sent)
    assert (info.type, info.name, info.endpoint) == ("CSIPlugin", "d.org", "/csi.sock")
    assert list(info.supported_versions) == ["1.0.0"]


def test_a_registration_status_of_bytes_made_by_hand_parses() -> None:
    refused = registration_pb2.RegistrationStatus.FromString(b"\x12\x06no way")
    accepted = registration_pb2.RegistrationStatus.FromString(b"\x08\x01")
    assert (refused.plugin_registered, refused.error) == (False, "no way")
    assert (accepted.plugin_registered, accepted.error) == (True, "")
