from __future__ import annotations

from typing import Any

import pytest

from orlop.csi.proto import csi_pb2
from orlop.records.volume_order import TopologyRequest
from orlop.sidecars.provisioner.create_request_rules import create_request, delete_request, fault_of_volume
from support.provisioning.volume_orders import GIB, order

Mode = csi_pb2.VolumeCapability.AccessMode.Mode
PRECISE = frozenset({"SINGLE_NODE_MULTI_WRITER"})


def requested(capabilities: frozenset[str] = frozenset(), secrets: Any = None, **fields: Any) -> Any:
    return create_request(order(**fields), capabilities, secrets or {})


def test_the_request_asks_for_the_size_with_no_upper_limit():
    request = requested(size_bytes=5 * GIB)

    assert request.name == "pvc-11111111-2222-3333-4444-555555555555"
    assert (request.capacity_range.required_bytes, request.capacity_range.limit_bytes) == (5 * GIB, 0)


@pytest.mark.parametrize(
    ("mode", "plain", "precise"),
    [
        ("ReadWriteOnce", Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_MULTI_WRITER),
        ("ReadWriteOncePod", Mode.SINGLE_NODE_WRITER, Mode.SINGLE_NODE_SINGLE_WRITER),
        ("ReadOnlyMany", Mode.MULTI_NODE_READER_ONLY, Mode.MULTI_NODE_READER_ONLY),
        ("ReadWriteMany", Mode.MULTI_NODE_MULTI_WRITER, Mode.MULTI_NODE_MULTI_WRITER),
    ],
)
def test_each_access_mode_is_a_capability_of_its_own(mode: str, plain: Any, precise: Any):
    for capabilities, expected in ((frozenset[str](), plain), (PRECISE, precise)):
        (capability,) = requested(capabilities, access_modes=(mode,)).volume_capabilities
        assert capability.access_mode.mode == expected


def test_a_file_system_has_its_type_and_mount_options_and_a_block_volume_neither():
    storage = {"fs_type": "xfs", "mount_options": ("noatime", "nodiratime")}
    (mounted,) = requested(storage=storage).volume_capabilities
    (raw,) = requested(storage=storage, volume_mode="Block").volume_capabilities

    assert (mounted.mount.fs_type, list(mounted.mount.mount_flags)) == ("xfs", ["noatime", "nodiratime"])
    assert raw.WhichOneof("access_type") == "block"


def test_names_of_claim_and_volume_are_sent_only_where_that_was_asked_for():
    parameters = {"parameters": (("type", "fast"),)}

    assert dict(requested(storage=parameters).parameters) == {"type": "fast"}
    assert dict(requested(storage=parameters, claim_metadata=True).parameters) == {
        "type": "fast",
        "csi.storage.k8s.io/pvc/name": "data",
        "csi.storage.k8s.io/pvc/namespace": "team",
        "csi.storage.k8s.io/pv/name": "pvc-11111111-2222-3333-4444-555555555555",
    }


def test_topology_source_mutable_parameters_and_secrets_are_sent():
    zone_a, zone_b = (("zone", "a"),), (("zone", "b"),)
    request = requested(
        secrets={"password": "p"},
        placement=TopologyRequest((zone_a, zone_b), (zone_b, zone_a)),
        source_volume_id="vol-1",
        storage={"mutable_parameters": (("iops", "100"),)},
    )

    needed = request.accessibility_requirements
    assert [dict(one.segments) for one in needed.requisite] == [{"zone": "a"}, {"zone": "b"}]
    assert [dict(one.segments) for one in needed.preferred] == [{"zone": "b"}, {"zone": "a"}]
    assert request.volume_content_source.volume.volume_id == "vol-1"
    assert dict(request.mutable_parameters) == {"iops": "100"}
    assert dict(request.secrets) == {"password": "p"}


def test_without_topology_and_source_neither_field_is_set():
    request = requested()

    assert not request.HasField("accessibility_requirements")
    assert not request.HasField("volume_content_source")


def test_a_deletion_names_the_volume_and_has_its_secrets():
    request = delete_request("vol-1", {"password": "p"})

    assert (request.volume_id, dict(request.secrets)) == ("vol-1", {"password": "p"})


def volume(**fields: Any) -> csi_pb2.Volume:
    return csi_pb2.Volume(**{"volume_id": "vol-1", "capacity_bytes": GIB, **fields})


MANY_TOPOLOGIES = [csi_pb2.Topology(segments={"zone": f"z{number:05}"}) for number in range(30_000)]


@pytest.mark.parametrize("size", [0, GIB, 2 * GIB])
def test_a_volume_of_at_least_the_size_or_of_an_unknown_one_is_good(size: int):
    assert fault_of_volume(order(), volume(capacity_bytes=size)) is None


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (volume(capacity_bytes=GIB - 1), "less than requested capacity"),
        (volume(accessible_topology=[csi_pb2.Topology(segments={"no key!": "a"})]), "illegal topology"),
        (volume(volume_context={"k": "v" * (256 << 10)}), "volume context is larger"),
        (volume(volume_context={"k": "\u20ac" * (100 << 10)}), "volume context is larger"),
        (volume(accessible_topology=MANY_TOPOLOGIES), "topology of the volume is larger"),
    ],
)
def test_a_volume_that_does_not_serve_is_named_so_that_it_can_be_deleted(answer: Any, reason: str):
    fault = fault_of_volume(order(), answer)

    assert fault is not None
    assert reason in fault.reason
    assert fault.volume_id == "vol-1"


def test_a_clone_without_its_source_does_not_serve():
    clone = order(source_volume_id="vol-0")
    source = csi_pb2.VolumeContentSource(volume=csi_pb2.VolumeContentSource.VolumeSource(volume_id="vol-0"))

    assert fault_of_volume(clone, volume()) is not None
    assert fault_of_volume(clone, volume(content_source=source)) is None


def test_a_volume_without_an_id_cannot_be_deleted():
    fault = fault_of_volume(order(), volume(volume_id=""))

    assert fault is not None
    assert (fault.volume_id, fault.retry_slowly) == ("", True)


@pytest.mark.parametrize("length", [4097, 2 << 20])
def test_a_volume_whose_id_is_too_long_to_be_stored_is_deleted_by_that_id(length: int):
    fault = fault_of_volume(order(), volume(volume_id="x" * length))

    assert fault is not None
    assert fault.volume_id == "x" * length
    assert len(fault.reason) < 200
