"""Paths, handles and files, against vectors made by the formulas of kubelet's source."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.volumes import volume_paths, volume_values
from onenode.kubelet.volumes.steps import volume_data
from onenode.kubelet.volumes.volume_values import Lifecycle, VolumeMode, VolumeSpec

UID = "00000000-0000-0000-0000-000000000001"
SHA = "33112ee14ee469c3eb52fe90322ec81dd404a0093d565a6d71ce77cbc8124e3b"
INLINE_HANDLE = "csi-7d9b3da1c7e2ad5274a8651892defaffc2201d0bb15a061100ed84877ad6fdbe"
INLINE = VolumeSpec("scratch", "d.example", INLINE_HANDLE, Lifecycle.EPHEMERAL)
PERSISTENT = VolumeSpec("pv1", "d.example", "h1", Lifecycle.PERSISTENT)
INLINE_LINE = (
    '{"attachmentID":"csi-ee8674792af7c5de6c3b41bbae87e453694e798b0846fa3a91c4eaa9b03c3303","driverName":"d.example",'
    f'"nodeName":"node1","specVolID":"scratch","volumeHandle":"{INLINE_HANDLE}","volumeLifecycleMode":"Ephemeral"}}\n'
)
PERSISTENT_LINE = (
    '{"attachmentID":"csi-4dad0cd0b3198e222d928d9b85c6d1a1ad7f6bd527a60d655e572817484b19e2","driverName":"d.example",'
    '"nodeName":"node1","specVolID":"pv1","volumeHandle":"h1","volumeLifecycleMode":"Persistent"}\n'
)


def test_the_handle_of_an_inline_volume_is_kubelets():
    assert volume_values.inline_handle(UID, "scratch") == INLINE_HANDLE


def test_the_files_beside_a_mount_are_kubelets_to_the_byte():
    assert volume_data.encoded(volume_data.publish_data(INLINE, "node1")).decode() == INLINE_LINE
    assert volume_data.encoded(volume_data.publish_data(PERSISTENT, "node1")).decode() == PERSISTENT_LINE
    assert (
        volume_data.encoded(volume_data.stage_data(PERSISTENT)) == b'{"driverName":"d.example","volumeHandle":"h1"}\n'
    )


def test_gos_escapes_are_written_and_read():
    written = volume_data.encoded({"volumeHandle": "<a&b>"})

    assert written == b'{"volumeHandle":"\\u003ca\\u0026b\\u003e"}\n'
    assert volume_data.decoded(written) == {"volumeHandle": "<a&b>"}


def test_the_paths_are_kubelets():
    assert "/".join(volume_paths.mount_target(UID, "scratch")) == f"pods/{UID}/volumes/kubernetes.io~csi/scratch/mount"
    assert "/".join(volume_paths.global_mount("d.example", "h1")) == (
        f"plugins/kubernetes.io/csi/d.example/{SHA}/globalmount"
    )
    assert "/".join(volume_paths.block_staging("pv1")) == "plugins/kubernetes.io/csi/volumeDevices/staging/pv1"
    assert "/".join(volume_paths.block_publish("pv1", UID)) == (
        f"plugins/kubernetes.io/csi/volumeDevices/publish/pv1/{UID}"
    )
    assert "/".join(volume_paths.block_data("a/b")) == "plugins/kubernetes.io/csi/volumeDevices/a~b/data"
    assert "/".join(volume_paths.block_device("pv1", UID)) == (f"plugins/kubernetes.io/csi/volumeDevices/pv1/dev/{UID}")
    assert "/".join(volume_paths.pod_device_link(UID, "pv1")) == f"pods/{UID}/volumeDevices/kubernetes.io~csi/pv1"


def test_names_in_the_nodes_status_are_kubelets():
    assert volume_values.unique_name(INLINE, UID) == f"kubernetes.io/csi/{UID}-scratch"
    assert volume_values.unique_name(PERSISTENT, UID) == "kubernetes.io/csi/d.example^h1"


@pytest.mark.parametrize("spec", [INLINE, PERSISTENT])
def test_what_was_written_is_rebuilt(spec: VolumeSpec):
    data = volume_data.decoded(volume_data.encoded(volume_data.publish_data(spec, "node1")))

    assert volume_data.published_spec(data, VolumeMode.FILESYSTEM) == spec


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_whatever_a_file_holds_it_is_read_as_data_or_as_nothing(content: bytes):
    found = volume_data.decoded(content)

    assert found is None or all(isinstance(value, str) for value in found.values())


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=20)))
def test_data_survives_being_written(data: dict[str, str]):
    assert volume_data.decoded(volume_data.encoded(data)) == data


@given(st.text(max_size=300))
def test_a_fit_name_is_one_name_of_a_folder(name: str):
    if volume_paths.is_fit_name(name):
        assert name not in {"", ".", ".."}
        assert not {"/", "\0"} & set(name)
        assert len(name.encode()) <= 255
