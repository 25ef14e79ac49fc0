"""What is read of objects that anybody may have made, and what a driver is asked with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.proto import csi_pb2
from orlop.sidecars.attacher.driver_request_rules import access_mode, publish_request, unpublish_request
from orlop.sidecars.attacher.volume_source_rules import BadObject, SecretName, VolumeSource, source_of

DRIVER = "disks.example.com"
Mode = csi_pb2.VolumeCapability.AccessMode.Mode
NAMED = {"spec": {"source": {"persistentVolumeName": "pv1"}}}
ALL_CAPABILITIES = frozenset({"PUBLISH_READONLY", "SINGLE_NODE_MULTI_WRITER"})


def volume(spec: dict[str, Any] | None = None, **csi: Any) -> dict[str, Any]:
    source = {"driver": DRIVER, "volumeHandle": "h1", **csi}
    return {"spec": {"csi": source, "accessModes": ["ReadWriteOnce"], **(spec or {})}}


def test_all_that_a_driver_is_to_know_is_read():
    secret = {"name": "s", "namespace": "ns"}
    pv = volume(
        {"volumeMode": "Block", "mountOptions": ["noatime"]},
        readOnly=True,
        fsType="xfs",
        volumeAttributes={"tier": "gold"},
        controllerPublishSecretRef=secret,
    )
    assert source_of(NAMED, pv, DRIVER) == VolumeSource(
        "pv1",
        "h1",
        read_only=True,
        fs_type="xfs",
        attributes={"tier": "gold"},
        secret=SecretName("ns", "s"),
        access_modes=("ReadWriteOnce",),
        mount_options=("noatime",),
        is_block=True,
    )


BAD: list[tuple[str, Any, Any, str]] = [
    ("no source", {"spec": {}}, None, "it must have one of them"),
    ("both sources", {"spec": {"source": {"persistentVolumeName": "a", "inlineVolumeSpec": {}}}}, None, "only one"),
    ("no such volume", NAMED, None, "there is no PersistentVolume pv1"),
    ("no spec", NAMED, {}, "has no spec"),
    ("no csi", NAMED, {"spec": {"hostPath": {"path": "/"}}}, "not a volume of a CSI driver, but of hostPath$"),
    (
        "migrated",
        NAMED,
        {"spec": {"azureDisk": {}}},
        "azureDisk, an in-tree plugin .* migrates to disk.csi.azure.com: .* spec.csi",
    ),
    ("nothing at all", NAMED, {"spec": {"accessModes": []}}, "is not a volume of a CSI driver"),
    ("another driver", NAMED, volume(driver="other"), "belongs to the driver 'other'"),
    ("no handle", NAMED, volume(volumeHandle=""), "has no csi.volumeHandle"),
    ("a handle of another kind", NAMED, volume(volumeHandle=7), "has no csi.volumeHandle"),
    ("attributes of another kind", NAMED, volume(volumeAttributes={"a": 1}), "must be strings"),
    ("huge attributes", NAMED, volume(volumeAttributes={"a": "x" * (2 << 20)}), "at most 1048576 are allowed"),
    ("half a secret", NAMED, volume(controllerPublishSecretRef={"name": "s"}), "needs a name and a namespace"),
    ("a secret of another kind", NAMED, volume(controllerPublishSecretRef="s"), "needs a name and a namespace"),
]


@pytest.mark.parametrize(("attachment", "pv", "sentence"), [row[1:] for row in BAD], ids=[row[0] for row in BAD])
def test_an_object_that_cannot_be_understood_is_told_in_a_sentence(attachment: Any, pv: Any, sentence: str):
    with pytest.raises(BadObject, match=sentence):
        source_of(attachment, pv, DRIVER)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=8,
)
ODD = st.dictionaries(
    st.sampled_from(["driver", "volumeHandle", "fsType", "readOnly", "volumeAttributes", "controllerPublishSecretRef"]),
    JSON | st.just(DRIVER),
)


@given(JSON, ODD, st.dictionaries(st.sampled_from(["accessModes", "volumeMode", "mountOptions"]), JSON))
def test_whatever_stands_in_an_object_it_is_read_or_told(source: Any, csi: dict[str, Any], rest: dict[str, Any]):
    attachment = {"spec": {"source": source if isinstance(source, dict) else {"persistentVolumeName": "pv1"}}}
    with suppress(BadObject):
        read = source_of(attachment, {"spec": {"csi": csi, **rest}}, DRIVER)
        publish_request(read, "n", ALL_CAPABILITIES, "ext4", {})


# ---- requests --------------------------------------------------------------------------------------------------------

MODES = [
    (("ReadWriteOnce",), False, Mode.SINGLE_NODE_WRITER),
    (("ReadWriteOncePod",), False, Mode.SINGLE_NODE_WRITER),
    (("ReadWriteOnce",), True, Mode.SINGLE_NODE_MULTI_WRITER),
    (("ReadWriteOncePod",), True, Mode.SINGLE_NODE_SINGLE_WRITER),
    (("ReadOnlyMany",), True, Mode.MULTI_NODE_READER_ONLY),
    (("ReadWriteMany",), True, Mode.MULTI_NODE_MULTI_WRITER),
    (("ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"), False, Mode.MULTI_NODE_MULTI_WRITER),
]


@pytest.mark.parametrize(("named", "multi_writer", "mode"), MODES)
def test_access_modes_become_the_interfaces(named: tuple[str, ...], *, multi_writer: bool, mode: Any):
    assert access_mode(named, ALL_CAPABILITIES if multi_writer else frozenset()) == mode


@pytest.mark.parametrize(
    "named", [(), ("ReadWriteSometimes",), ("ReadOnlyMany", "ReadWriteOnce"), ("ReadWriteOncePod", "ReadWriteMany")]
)
def test_access_modes_that_contradict_each_other_are_refused(named: tuple[str, ...]):
    with pytest.raises(BadObject):
        access_mode(named, ALL_CAPABILITIES)


def test_a_file_system_is_the_volumes_own_or_the_default():
    request = publish_request(VolumeSource("pv1", "h1", access_modes=("ReadWriteOnce",)), "n", frozenset(), "ext4", {})
    assert request.volume_capability.mount.fs_type == "ext4"
    own = VolumeSource("pv1", "h1", fs_type="xfs", access_modes=("ReadWriteOnce",))
    assert publish_request(own, "n", frozenset(), "ext4", {}).volume_capability.mount.fs_type == "xfs"


def test_a_block_volume_has_no_file_system():
    block = VolumeSource("pv1", "h1", fs_type="xfs", access_modes=("ReadWriteOnce",), is_block=True)
    capability = publish_request(block, "n", frozenset(), "ext4", {}).volume_capability
    assert capability.HasField("block")
    assert not capability.HasField("mount")


def test_only_a_driver_that_can_is_asked_for_read_only():
    source = VolumeSource("pv1", "h1", read_only=True, access_modes=("ReadOnlyMany",))
    assert publish_request(source, "n", ALL_CAPABILITIES, "", {}).readonly
    assert not publish_request(source, "n", frozenset(), "", {}).readonly


def test_both_requests_carry_the_secrets():
    source = VolumeSource("pv1", "h1", attributes={"a": "b"}, access_modes=("ReadWriteOnce",))
    asked = publish_request(source, "n", frozenset(), "", {"key": "value"})
    assert (asked.volume_id, asked.node_id, dict(asked.volume_context)) == ("h1", "n", {"a": "b"})
    assert dict(asked.secrets) == dict(unpublish_request("h1", "n", {"key": "value"}).secrets) == {"key": "value"}
