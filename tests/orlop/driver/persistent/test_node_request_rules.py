"""What a node's requests may ask for: every request is an order below kubelet's folder, or an error with a reason."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import CsiError, FailedPrecondition, InvalidArgument, OutOfRange, ResourceExhausted
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.node_request_rules import (
    MOUNT_WORDS,
    drive_expand_order,
    drive_publish_order,
    is_path_of_kubelet,
    stage_order,
)
from orlop.driver.persistent.volume_record_rules import (
    inodes_of,
    refuse_second_target,
    refuse_without_room,
    with_targets,
    without_target,
)
from orlop.records.volume_context import DRIVE_KEY
from orlop.records.volume_record import LARGEST_RECORD, VolumeTarget, encode_volume
from support.drives.node_drives import volume_record
from support.drives.volume_node import DEVICE, STAGING, TARGET, Mode, Paths

KUBELET = ("/var/lib/kubelet", "/data/kubelet")
PATHS = Paths()
MODES = st.sampled_from([Mode.Value(name) for name in Mode.keys()])  # noqa: SIM118 - an enum of protobuf
PATH = st.one_of(
    st.text(max_size=80),
    st.lists(st.sampled_from(["..", ".", "", "a", "pods", "plugins", "x\0y"]), max_size=8).map(
        lambda names: "/".join(("/var/lib/kubelet", *names))
    ),
)
CAPABILITY = st.builds(
    csi_pb2.VolumeCapability,
    mount=st.builds(
        csi_pb2.VolumeCapability.MountVolume,
        fs_type=st.sampled_from(["", "xfs", "ext4", "XFS", "btrfs"]),
        mount_flags=st.lists(st.sampled_from([*MOUNT_WORDS, "rw", "discard", "ro,noexec", ""]), max_size=3),
    ),
    access_mode=st.builds(csi_pb2.VolumeCapability.AccessMode, mode=MODES),
)
CONTEXT = st.dictionaries(
    st.sampled_from([DRIVE_KEY, "orlop.dev/bytes", "orlop.dev/backing", "csi.storage.k8s.io/pod.name", "x"]),
    st.text(max_size=40),
    max_size=5,
)


def is_below(path: str) -> bool:
    names = path.split("/")
    return bool(path) and ".." not in names and "." not in names and "" not in names


@given(volume_id=st.text(max_size=30), path=PATH, capability=CAPABILITY, changed=CONTEXT)
def test_a_stage_order_names_a_path_below_kubelets_folder_or_there_is_none(
    volume_id: str, path: str, capability: csi_pb2.VolumeCapability, changed: dict[str, str]
):
    request = PATHS.staging(changed=changed)
    request.volume_capability.CopyFrom(capability)
    for fields in ({}, {"volume_id": volume_id}, {"staging_target_path": path}):
        asked = csi_pb2.NodeStageVolumeRequest.FromString(request.SerializeToString())
        for field, value in fields.items():
            setattr(asked, field, value)
        try:
            order = stage_order(asked, KUBELET)
        except CsiError:
            continue
        assert is_below(order.staging)
        assert order.context.bytes % 4096 == 0


@given(target=PATH, staging=PATH, capability=CAPABILITY, context=CONTEXT, read_only=st.booleans())
def test_a_publish_order_names_two_paths_below_kubelets_folder_or_there_is_none(
    target: str,
    staging: str,
    capability: csi_pb2.VolumeCapability,
    context: dict[str, str],
    read_only: bool,  # noqa: FBT001
):
    request = csi_pb2.NodePublishVolumeRequest(
        volume_id="pvc-1",
        target_path=target,
        staging_target_path=staging,
        volume_capability=capability,
        volume_context=context,
        readonly=read_only,
    )
    try:
        order = drive_publish_order(request, KUBELET)
    except CsiError:
        return
    assert is_below(order.staging)
    assert is_below(order.target.path)
    assert not order.target.path.startswith(order.staging)
    assert order.target.read_only or not read_only
    assert order.target.read_only == ("ro" in order.form.mount_options)


@given(required=st.integers(-(2**40), 2**62), limit=st.integers(-(2**40), 2**62))
def test_a_size_is_within_the_asked_range_and_a_multiple_of_a_block(required: int, limit: int):
    request = csi_pb2.NodeExpandVolumeRequest(
        volume_id="pvc-1",
        volume_path=PATHS.of(TARGET),
        capacity_range=csi_pb2.CapacityRange(required_bytes=required, limit_bytes=limit),
    )
    try:
        size = drive_expand_order(request, KUBELET).bytes
    except OutOfRange:
        return
    assert size >= required
    assert size % 4096 == 0
    assert not limit or size <= limit


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"changed": {DRIVE_KEY: ""}}, InvalidArgument),
        ({"fs_type": "ext4"}, FailedPrecondition),
        ({"fs_type": "zfs"}, InvalidArgument),
        ({"flags": ["noatime,strictatime"]}, InvalidArgument),
        ({"mode": Mode.MULTI_NODE_MULTI_WRITER}, InvalidArgument),
        ({"path": ()}, InvalidArgument),
        ({"path": ("..", "x")}, InvalidArgument),
    ],
    ids=str,
)
def test_what_cannot_be_staged_is_refused(options: dict[str, Any], error: type[CsiError]):
    with pytest.raises(error):
        stage_order(PATHS.staging(**options), KUBELET)


def test_requests_without_a_capability_or_a_path_are_refused():
    staging, publishing = PATHS.staging(), PATHS.publishing()
    staging.ClearField("volume_capability")
    with pytest.raises(InvalidArgument, match="no volume_capability"):
        stage_order(staging, KUBELET)
    publishing.ClearField("volume_capability")
    with pytest.raises(InvalidArgument, match="no volume_capability"):
        drive_publish_order(publishing, KUBELET)
    for field in ("target_path", "volume_id"):
        publishing = PATHS.publishing()
        publishing.ClearField(field)
        with pytest.raises(InvalidArgument, match=field):
            drive_publish_order(publishing, KUBELET)


def test_paths_of_kubelet_are_those_that_it_names_to_drivers():
    for path in (STAGING, TARGET, DEVICE):
        assert is_path_of_kubelet("/".join(path))
    for text in ("etc", "pods/u1/etc-hosts", "pods/u1/volumes/kubernetes.io~secret/s", "plugins/other/csi.sock"):
        assert not is_path_of_kubelet(text)


@given(capacity=st.integers(0, 2**50), promised=st.integers(0, 2**50), needed=st.integers(1, 2**50))
def test_no_more_is_promised_than_the_drive_has(capacity: int, promised: int, needed: int):
    if needed > capacity:
        with pytest.raises(OutOfRange):
            refuse_without_room(capacity, promised, needed)
    elif promised + needed > capacity:
        with pytest.raises(ResourceExhausted):
            refuse_without_room(capacity, promised, needed)
    else:
        refuse_without_room(capacity, promised, needed)


@given(alone=st.booleans(), others=st.lists(st.booleans(), max_size=4))
def test_a_pod_that_wants_the_volume_alone_never_shares_it(alone: bool, others: list[bool]):  # noqa: FBT001
    targets = [VolumeTarget(f"t{number}", alone=each) for number, each in enumerate(others)]
    shares = bool(targets) and (alone or any(others))
    if shares:
        with pytest.raises(FailedPrecondition):
            refuse_second_target(volume_record(), VolumeTarget("x", alone=alone), targets)
    else:
        refuse_second_target(volume_record(), VolumeTarget("x", alone=alone), targets)


@given(st.lists(st.text("abcdef", min_size=1, max_size=200), max_size=60, unique=True))
def test_a_record_with_many_targets_stays_small_and_keeps_every_path(paths: list[str]):
    targets = tuple(VolumeTarget(path, pod_name=path * 2, pod_uid=path[::-1]) for path in paths)
    try:
        record = with_targets(volume_record(), targets)
    except ResourceExhausted:
        assert sum(map(len, paths)) > LARGEST_RECORD
        return
    assert len(encode_volume(record)) <= LARGEST_RECORD
    assert [each.path for each in record.published] == paths
    for path in paths:
        assert path not in [each.path for each in without_target(record, path).published]


@given(size=st.integers(1, 2**50), file_system=st.sampled_from(["xfs", "ext4"]))
def test_every_directory_may_have_some_files(size: int, file_system: str):
    assert inodes_of(volume_record(bytes=size, file_system=file_system)) >= 1024
