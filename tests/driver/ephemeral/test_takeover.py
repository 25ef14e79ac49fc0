"""The folders of the driver that came before, on the real kernel: none is lost, none is erased, none is stuck."""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest

from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.takeover import PEER_DRIVER
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Entry, collecting_log
from orlop.processes.daemon import CannotGoOn, Surroundings
from orlop.processes.ephemeral_settings import EphemeralSettings
from orlop.processes.ephemeral_side import EphemeralSide, ephemeral_side
from orlop.records.ephemeral_folder import burial_of
from support.kernel_rooms import room, run

__all__ = ["room"]

LIVE = "csi-" + "a" * 64
DEAD = "csi-" + "b" * 64


class Node:
    def __init__(self, room: Path) -> None:
        self.workdir, self.kubelet = room / "work", room / "kubelet"
        self.workdir.mkdir()
        self.kubelet.mkdir()
        (self.workdir / "deletedVolumes.db").write_bytes(b"a bbolt file")
        self.log: list[Entry] = []

    def folder(self, pod: str, volume: str) -> Path:
        path = self.workdir / pod / volume
        path.mkdir(parents=True)
        (path / "data").write_text(volume)
        return path

    def target(self, pod: str) -> Path:
        return self.kubelet / f"pods/{pod}/volumes/kubernetes.io~csi/scratch/mount"

    def published(self, pod: str, volume: str) -> Path:
        target = self.target(pod)
        target.mkdir(parents=True)
        run("mount", "--bind", self.folder(pod, volume), target)
        return target

    @asynccontextmanager
    async def running(self, driver: str = PEER_DRIVER) -> AsyncIterator[EphemeralSide]:
        settings = EphemeralSettings(
            workdir=str(self.workdir), kubelet_dir=str(self.kubelet), admin_socket=str(self.kubelet.parent / "a")
        )
        given = Surroundings(
            collecting_log(self.log), Metrics("test", of_process=False), SystemClock(), Random(1), asyncio.Event()
        )
        async with ephemeral_side(settings, given, driver, "n1") as side:
            yield side

    def names(self, shelf: str) -> list[str]:
        return sorted(path.name for path in (self.workdir / shelf).iterdir())


@pytest.fixture
def node(room: Path) -> Node:
    return Node(room)


async def test_a_pod_keeps_its_folder_and_gives_it_back_to_the_new_driver(node: Node):
    target = node.published("pod-1", LIVE)
    async with node.running() as side:
        taken = node.names("live")
        (target / "more").write_text("written meanwhile")
        await side.node_service.NodeUnpublishVolume(
            csi_pb2.NodeUnpublishVolumeRequest(volume_id=LIVE, target_path=str(target))
        )
        (kept,) = (node.workdir / "retained").iterdir()

        assert taken == [LIVE]
        assert not target.exists()
        assert sorted(path.name for path in kept.iterdir()) == ["data", "more"]
        assert not (node.workdir / "pod-1").exists()


async def test_what_no_pod_uses_any_more_begins_its_afterlife(node: Node):
    node.folder("pod-2", DEAD)
    before = SystemClock().now().timestamp()
    async with node.running():
        (name,) = node.names("retained")
    burial = burial_of(name)

    assert burial is not None
    assert (burial.volume_id, burial.lifespan_seconds) == (DEAD, 12 * 3600)
    assert burial.buried_at >= before - 1


async def test_what_is_mounted_somewhere_else_is_live_until_it_is_not(node: Node):
    folder = node.folder("pod-3", DEAD)
    elsewhere = node.kubelet / "elsewhere"
    elsewhere.mkdir()
    (folder / "part").mkdir()
    run("mount", "--bind", folder / "part", elsewhere)
    async with node.running():
        assert node.names("live") == [DEAD]
        assert node.names("retained") == []


async def test_taking_over_again_changes_nothing(node: Node):
    node.published("pod-1", LIVE)
    node.folder("pod-2", DEAD)
    async with node.running():
        first = node.names("live") + node.names("retained")
    async with node.running():
        assert node.names("live") + node.names("retained") == first


async def test_a_folder_that_had_its_record_when_the_process_was_killed_is_taken_the_next_time(node: Node):
    folder = node.folder("pod-2", DEAD)
    os.setxattr(folder, "trusted.orlop.record", b"half of something")
    async with node.running():
        assert len(node.names("retained")) == 1


async def test_under_another_name_they_are_left_alone(node: Node):
    folder = node.folder("pod-2", DEAD)
    async with node.running("csi.orlop.dev"):
        pass

    assert (folder / "data").read_text() == DEAD


async def test_strange_names_and_files_are_left_alone_and_told(node: Node):
    strange = node.folder("pod-2", "no volume!")
    (node.workdir / "pod-2" / "file").touch()
    async with node.running():
        told = [entry.fields["folder"] for entry in node.log if entry.message == "not taken over"]

    assert told == ["pod-2/no volume!"]
    assert (strange / "data").exists()
    assert (node.workdir / "pod-2" / "file").exists()


async def test_a_link_in_place_of_a_folder_is_not_followed(node: Node, tmp_path: Path):
    (tmp_path / "outside" / DEAD).mkdir(parents=True)
    (node.workdir / "pod-9").symlink_to(tmp_path / "outside")
    async with node.running():
        assert node.names("retained") == []
    assert (tmp_path / "outside" / DEAD).is_dir()


async def test_while_the_other_driver_runs_nothing_is_touched(node: Node):
    folder = node.folder("pod-2", DEAD)
    database = os.open(node.workdir / "deletedVolumes.db", os.O_RDWR)
    fcntl.flock(database, fcntl.LOCK_EX)
    try:
        with pytest.raises(CannotGoOn, match="still runs"):
            async with node.running():
                pass
    finally:
        os.close(database)

    assert folder.is_dir()
