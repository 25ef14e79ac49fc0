"""What a killed `orlop up` left goes with its folder, also what it held of block devices."""

from __future__ import annotations

from pathlib import Path

import pytest

from orlop.admin.up_state import UpState
from orlop.embedded.kubelet.volumes import block_folders, volume_paths
from orlop.host import loop_devices
from orlop.host.linux_volume_host import LinuxVolumeHost
from orlop.processes.up_end import erase
from support.block_devices import block_device, loops_about, publish_device
from support.kernel_rooms import mount_points_of, mount_room, run


@pytest.mark.parametrize("made", [[], ["kubelet"], ["kubelet/processes"]], ids=str)
def test_a_folder_whose_orlop_up_was_killed_early_is_erased_too(tmp_path: Path, made: list[str]):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    for name in made:
        (state.folder / name).mkdir(parents=True)

    erase(state, lambda _: None)

    assert not state.folder.exists()


def test_devices_are_let_go_unmounted_and_erased_and_others_are_not_touched(tmp_path: Path):
    with mount_room(tmp_path / "room") as room, block_device(tmp_path / "disk") as device:
        state = UpState(room / "state")
        (state.kubelet / "processes").mkdir(parents=True)
        run("mount", "--bind", state.folder, state.folder)
        with LinuxVolumeHost(str(state.kubelet)) as host:
            block_folders.prepare_pod(host, "pv1", "u1")
            publish_device(device, state.kubelet.joinpath(*volume_paths.block_publish("pv1", "u1")))
            block_folders.map_device(host, "pv1", "u1")
            held = host.path_of(volume_paths.block_device("pv1", "u1"))
        assert loops_about(state.folder) == loop_devices.held_below(str(state.folder)) == [held]

        told: list[str] = []
        try:
            erase(state, told.append)
        finally:
            loop_devices.release(held)

        assert told[0] == f"let go of {held}"
        assert loops_about(room) == []
        assert [path for path in mount_points_of("self") if path.startswith(f"{room}/")] == []
        assert not state.folder.exists()
        assert loop_devices.holder_of(str(tmp_path / "disk")) == str(device)
