"""The folders of the driver that came before, on the real kernel: none is lost, none is erased, none is stuck."""

from __future__ import annotations

import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any

import pytest

from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.upkeep.takeover import PEER_DRIVER
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.folders import folder_records, peer_folders
from orlop.processes.csi_wiring import EphemeralSettings
from orlop.processes.daemon import CannotGoOn
from orlop.processes.ephemeral_wiring import EphemeralServices, serving_ephemeral
from orlop.records.ephemeral_folder import burial_of, decode_record
from support.host.kernel_rooms import room, run

__all__ = ["room"]

LIVE = "csi-" + "a" * 64
DEAD = "csi-" + "b" * 64
POD_1 = "11111111-0c3f-4a52-9d4e-6a1f0e7b2c01"
POD_2 = "22222222-0c3f-4a52-9d4e-6a1f0e7b2c02"
POD_3 = "3" * 32  # of a static pod: kubelet computes it from the manifest
POD_9 = "99999999-0c3f-4a52-9d4e-6a1f0e7b2c09"


class Node:
    def __init__(self, room: Path) -> None:
        self.workdir, self.kubelet = room / "work", room / "kubelet"
        self.workdir.mkdir()
        self.kubelet.mkdir()
        (self.workdir / "deletedVolumes.db").write_bytes(b"a bbolt file")
        self.log: list[LogEntry] = []

    def folder(self, pod: str, volume: str) -> Path:
        return self._filled(self.workdir / pod / volume)

    def folder_of_no_pod(self, volume: str) -> Path:
        """As the design of the driver has it: `<workdir>/<volume id>`; a tenant has made folders in it."""
        path = self._filled(self.workdir / volume)
        (path / "cache" / "deep").mkdir(parents=True)
        return path

    def _filled(self, path: Path) -> Path:
        path.mkdir(parents=True)
        (path / "data").write_text(path.name)
        return path

    def target(self, pod: str) -> Path:
        return self.kubelet / f"pods/{pod}/volumes/kubernetes.io~csi/scratch/mount"

    def published(self, pod: str, volume: str) -> Path:
        return self.bound(self.folder(pod, volume), pod)

    def bound(self, folder: Path, pod: str) -> Path:
        target = self.target(pod)
        target.mkdir(parents=True)
        run("mount", "--bind", folder, target)
        return target

    @asynccontextmanager
    async def running(self, driver: str = PEER_DRIVER) -> AsyncIterator[EphemeralServices]:
        settings = EphemeralSettings(
            workdir=str(self.workdir), kubelet_dir=str(self.kubelet), admin_socket=str(self.kubelet.parent / "a")
        )
        runtime = Runtime(
            clock=SystemClock(),
            random=Random(1),
            log=collecting_log(self.log),
            metrics=Metrics("test", of_process=False),
        )
        async with serving_ephemeral(settings, runtime, driver, "n1") as side:
            yield side

    def names(self, shelf: str) -> list[str]:
        return sorted(path.name for path in (self.workdir / shelf).iterdir())


@pytest.fixture
def node(room: Path) -> Node:
    return Node(room)


async def test_a_pod_keeps_its_folder_and_gives_it_back_to_the_new_driver(node: Node):
    target = node.published(POD_1, LIVE)
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
        assert not (node.workdir / POD_1).exists()


async def test_what_no_pod_uses_any_more_begins_its_afterlife(node: Node):
    node.folder(POD_2, DEAD)
    before = SystemClock().now().timestamp()
    async with node.running():
        (name,) = node.names("retained")
    burial = burial_of(name)

    assert burial is not None
    assert (burial.volume_id, burial.lifespan_seconds) == (DEAD, 12 * 3600)
    assert burial.buried_at >= before - 1


async def test_what_is_mounted_somewhere_else_is_live_until_it_is_not(node: Node):
    folder = node.folder(POD_3, DEAD)
    elsewhere = node.kubelet / "elsewhere"
    elsewhere.mkdir()
    (folder / "part").mkdir()
    run("mount", "--bind", folder / "part", elsewhere)
    async with node.running():
        assert node.names("live") == [DEAD]
        assert node.names("retained") == []


async def test_what_is_mounted_while_the_folders_are_listed_stays_its_pods(node: Node, monkeypatch: pytest.MonkeyPatch):
    """The mounts are read after the folders: the last call of the driver before us may still have been at work."""
    folder, listing = node.folder(POD_1, LIVE), peer_folders.PeerFolders.listing

    def listed_before_the_bind(peer: peer_folders.PeerFolders) -> peer_folders.PeerListing:
        found = listing(peer)
        node.bound(folder, POD_1)
        return found

    monkeypatch.setattr(peer_folders.PeerFolders, "listing", listed_before_the_bind)
    async with node.running():
        assert node.names("live") == [LIVE]
        assert node.names("retained") == []


async def test_taking_over_again_changes_nothing(node: Node):
    node.published(POD_1, LIVE)
    node.folder(POD_2, DEAD)
    async with node.running():
        first = node.names("live") + node.names("retained")
    async with node.running():
        assert node.names("live") + node.names("retained") == first


async def test_a_folder_that_had_its_record_when_the_process_was_killed_is_taken_the_next_time(node: Node):
    folder = node.folder(POD_2, DEAD)
    os.setxattr(folder, "trusted.orlop.record", b"half of something")
    async with node.running():
        assert len(node.names("retained")) == 1


async def test_under_another_name_they_are_left_alone(node: Node):
    folder = node.folder(POD_2, DEAD)
    async with node.running("csi.orlop.dev"):
        pass

    assert (folder / "data").read_text() == DEAD


async def test_strange_names_and_files_are_left_alone_and_told(node: Node):
    strange = node.folder(POD_2, "no volume!")
    (node.workdir / POD_2 / "file").touch()
    async with node.running():
        told = [entry.fields["folder"] for entry in node.log if entry.message == "not taken over"]

    assert told == [f"{POD_2}/file", f"{POD_2}/no volume!"]
    assert (strange / "data").exists()
    assert (node.workdir / POD_2 / "file").exists()


async def test_a_link_in_place_of_a_folder_is_not_followed(node: Node, tmp_path: Path):
    (tmp_path / "outside" / DEAD).mkdir(parents=True)
    (node.workdir / POD_9).symlink_to(tmp_path / "outside")
    async with node.running():
        assert node.names("retained") == []
    assert (tmp_path / "outside" / DEAD).is_dir()


async def test_while_the_other_driver_runs_nothing_is_touched(node: Node):
    folder = node.folder(POD_2, DEAD)
    database = os.open(node.workdir / "deletedVolumes.db", os.O_RDWR)
    fcntl.flock(database, fcntl.LOCK_EX)
    try:
        with pytest.raises(CannotGoOn, match="still runs"):
            async with node.running():
                pass
    finally:
        os.close(database)

    assert folder.is_dir()


async def test_a_volume_at_the_first_level_that_a_pod_has_mounted_stays_the_pods(node: Node):
    target = node.bound(node.folder_of_no_pod(LIVE), POD_1)
    async with node.running() as side:
        assert (node.names("live"), node.names("retained")) == ([LIVE], [])
        assert sorted(path.name for path in target.iterdir()) == ["cache", "data"]
        await side.node_service.NodeUnpublishVolume(
            csi_pb2.NodeUnpublishVolumeRequest(volume_id=LIVE, target_path=str(target))
        )
        (kept,) = (node.workdir / "retained").iterdir()

        assert not target.exists()
        assert (kept / "cache" / "deep").is_dir()
        assert (kept / "data").read_text() == LIVE


async def test_the_pod_of_a_volume_at_the_first_level_is_known_by_its_target(node: Node):
    node.bound(node.folder_of_no_pod(LIVE), POD_1)
    async with node.running():
        record = decode_record(os.getxattr(node.workdir / "live" / LIVE, "trusted.orlop.record"))

    assert record.owner.pod_uid == POD_1
    assert record.targets == (f"pods/{POD_1}/volumes/kubernetes.io~csi/scratch/mount",)


async def test_a_volume_at_the_first_level_that_no_pod_uses_begins_its_afterlife_whole(node: Node):
    node.folder_of_no_pod(DEAD)
    async with node.running():
        (name,) = node.names("retained")
        burial = burial_of(name)

        assert burial is not None
        assert burial.volume_id == DEAD
        assert sorted(path.name for path in (node.workdir / "retained" / name).iterdir()) == ["cache", "data"]
        assert not (node.workdir / DEAD).exists()


@pytest.mark.parametrize("part", [".", "cache"])
async def test_a_volume_at_the_first_level_that_is_mounted_elsewhere_is_not_buried(node: Node, part: str):
    folder = node.folder_of_no_pod(DEAD)
    elsewhere = node.kubelet / "elsewhere"
    elsewhere.mkdir()
    run("mount", "--bind", folder / part, elsewhere)
    async with node.running():
        assert (node.names("live"), node.names("retained")) == ([DEAD], [])


async def test_both_layouts_are_taken_over_side_by_side(node: Node):
    node.published(POD_1, LIVE)
    node.folder_of_no_pod(DEAD)
    async with node.running():
        assert node.names("live") == [LIVE]
        assert [burial_of(name).volume_id for name in node.names("retained")] == [DEAD]  # type: ignore[union-attr]


@pytest.mark.parametrize("name", ["backup", "csi-" + "b" * 63, "csi-" + "B" * 64, "pod-1", POD_1.upper()])
async def test_a_folder_that_is_neither_a_volume_nor_a_pods_is_left_alone(node: Node, name: str):
    folder = node.folder(name, DEAD)
    async with node.running():
        assert node.names("live") + node.names("retained") == []
        assert "left alone in the working directory" in [entry.message for entry in node.log]

    assert (folder / "data").read_text() == DEAD


async def test_folders_of_a_pod_that_are_no_volumes_are_left_alone(node: Node):
    folder = node.folder(POD_1, "my-data")
    async with node.running():
        assert node.names("live") + node.names("retained") == []

    assert (folder / "data").read_text() == "my-data"


async def test_volumes_in_a_pods_folder_that_is_mounted_itself_are_left_where_they_are(node: Node):
    """Moved to a shelf they would vanish from that mount, with whatever is using them there."""
    folder = node.folder(POD_1, DEAD)
    elsewhere = node.kubelet / "elsewhere"
    elsewhere.mkdir()
    run("mount", "--bind", folder.parent, elsewhere)
    async with node.running():
        assert node.names("live") + node.names("retained") == []

    assert (elsewhere / DEAD / "data").read_text() == DEAD


class Killed(BaseException):
    """The process ends here."""


@pytest.mark.parametrize("effect", ["write_record", "move", "make_durable"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
async def test_a_folder_is_whole_and_found_by_the_next_process_wherever_the_takeover_was_killed(
    node: Node, monkeypatch: pytest.MonkeyPatch, effect: str, after: object
):
    node.folder(POD_2, DEAD)
    real = getattr(folder_records, effect)

    def deadly(*arguments: Any) -> None:
        if after:
            real(*arguments)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(peer_folders.folder_records, effect, deadly)
        with pytest.raises(Killed):
            async with node.running():
                pass
    # Left by the killed process: a folder that has left the other driver's place has its record with it.
    for shelf in ("live", "retained"):
        for name in node.names(shelf):
            assert folder_records.RECORD in os.listxattr(node.workdir / shelf / name)

    async with node.running():
        (name,) = node.names("retained")
        assert (node.workdir / "retained" / name / "data").read_text() == DEAD
        assert decode_record(os.getxattr(node.workdir / "retained" / name, folder_records.RECORD))
