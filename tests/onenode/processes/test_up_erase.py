"""What a killed `orlop up` left goes with its folder, also what it held of block devices."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from onenode.apiserver.store.database_files import DATABASE
from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.host.self_bind_mount import bind_on_itself
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import block_folders
from onenode.processes import up_folder
from onenode.processes.up_folder import NotEnded, erase, why_not_erasable
from orlop.admin import up_state
from orlop.admin.up_state import UpState, held
from orlop.host.block import loop_devices
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.erase.erasure import Erasure
from support.host.block_devices import block_device, loops_about, publish_device
from support.host.kernel_rooms import mount_points_of, mount_room, run


@pytest.mark.parametrize("made", [[], ["kubelet"], ["kubelet/processes"]], ids=str)
def test_a_folder_whose_orlop_up_was_killed_early_is_erased_too(tmp_path: Path, made: list[str]):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    for name in made:
        (state.folder / name).mkdir(parents=True)

    erase(state, lambda _: None)

    assert not state.folder.exists()


def test_an_erasure_that_was_killed_goes_on_when_it_is_asked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    with held(state, ""):
        for name in ("api", "kubelet", "scratch"):
            (state.folder / name).mkdir()
    erased: list[str] = []

    def until_killed(parent: int, name: str, stop: threading.Event) -> Erasure:
        if len(erased) == 2:
            raise KeyboardInterrupt
        erased.append(name)
        return erase_folder(parent, name, stop)

    monkeypatch.setattr(up_folder, "erase_folder", until_killed)
    with pytest.raises(KeyboardInterrupt):
        erase(state, lambda _: None)
    assert (len(list(state.folder.iterdir())), why_not_erasable(state)) == (2, None)

    monkeypatch.undo()
    erase(state, lambda _: None)
    assert not state.folder.exists()


def test_volumes_at_a_driver_that_cannot_be_listed_are_reported_as_such_and_all_is_erased(tmp_path: Path):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    with held(state, "", "unix:///run/theirs.sock"):
        state.api.mkdir()
        (state.api / DATABASE).write_bytes(b"no database" * 1000)
    told: list[str] = []

    erase(state, told.append)

    assert told[0].startswith("volumes at the driver unix:///run/theirs.sock stay there, and which ones is unknown: ")
    assert not state.folder.exists()


def test_nobody_begins_in_a_folder_whose_lock_was_erased_while_he_waited(tmp_path: Path):
    state = UpState(tmp_path)
    with held(state, ""):
        state.lock.unlink()
        state.lock.touch()
        with held(state, ""):
            pass  # the new file is another lock
    descriptor = os.open(state.lock, os.O_RDWR)
    try:
        state.lock.unlink()
        assert not up_state._is_there(state.lock, descriptor)
    finally:
        os.close(descriptor)


def test_what_the_admin_had_mounted_in_the_folder_before_is_named_and_left(tmp_path: Path):
    with mount_room(tmp_path / "room") as room:
        state = UpState(room / "state")
        state.scratch.mkdir(parents=True)
        (room / "disk").mkdir()
        (room / "disk" / "data").touch()
        run("mount", "--bind", room / "disk", state.scratch)
        bind_on_itself(str(state.folder))
        with pytest.raises(NotEnded, match="Something of your own is mounted below"):
            erase(state, lambda _: None)
        assert (state.scratch / "data").exists()
        run("umount", state.scratch)
        erase(state, lambda _: None)
        assert not state.folder.exists()
        assert (room / "disk" / "data").exists()


def test_devices_are_let_go_unmounted_and_erased_and_others_are_not_touched(tmp_path: Path):
    with mount_room(tmp_path / "room") as room, block_device(tmp_path / "disk") as device:
        state = UpState(room / "state")
        (state.kubelet / "processes").mkdir(parents=True)
        run("mount", "--bind", state.folder, state.folder)
        with LinuxVolumeHost(str(state.kubelet)) as host:
            block_folders.prepare_pod(host, "pv1", "u1")
            publish_device(device, state.kubelet.joinpath(*volume_paths.block_publish("pv1", "u1")))
            block_folders.map_device(host, "pv1", "u1")
            held_device = host.path_of(volume_paths.block_device("pv1", "u1"))
        assert loops_about(state.folder) == loop_devices.held_below(str(state.folder)) == [held_device]

        told: list[str] = []
        try:
            erase(state, told.append)
        finally:
            loop_devices.release(held_device)

        assert told[0] == f"released {held_device}"
        assert loops_about(room) == []
        assert [path for path in mount_points_of("self") if path.startswith(f"{room}/")] == []
        assert not state.folder.exists()
        assert loop_devices.holder_of(str(tmp_path / "disk")) == str(device)
