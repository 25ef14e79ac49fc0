"""Scratch folders on a kernel that has quotas. Run inside one by support/host/quota_kernel, not collected elsewhere."""

from __future__ import annotations

import fcntl
import itertools
import os
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity, NodeRules
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.ephemeral.upkeep.quota_watch import QuotaWatch, why_limits_cannot_be_held
from orlop.driver.ephemeral.upkeep.volume_health import VolumeHealth
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import LogEntry, collecting_log
from orlop.host.folders.project_quota import ProjectLimits
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderState
from orlop.testing.virtual_clock import VirtualClock
from support.afterlife.ephemeral_node import ID, UID, names_of, order, right_here
from support.afterlife.node_worlds import LinuxWorld, live
from support.host.kernel_rooms import SHUT_DOWN, WITHOUT_FLUSHING_THE_LOG
from support.host.quota_kernel import FILE_SYSTEMS
from support.waiting import eventually

MIB = 2**20
ROOMS = itertools.count()
pytestmark = pytest.mark.virtual_time
LIMITS = AdminLimits(3600.0, 3600.0)


class Node:
    """As a process has it that has just started."""

    def __init__(self, room: Path) -> None:
        self.room = room
        self.target = room.joinpath("kubelet", *names_of(UID))
        self.host = LinuxNodeHost(str(room / "work"), str(room / "kubelet"))
        self.clock, self.log = VirtualClock(), list[LogEntry]()
        book = read_index(self.host.workdir, Moment(0.0, 0.0))
        log = collecting_log(self.log)
        self.folders = Folders(self.host, book, threads=right_here, clock=self.clock, log=log)
        self.watch = QuotaWatch(
            self.folders,
            self.host.workdir,
            threads=right_here,
            clock=self.clock,
            log=log,
            metrics=Metrics("test", of_process=False),
        )
        self.service = EphemeralNodeService(
            self.folders,
            self.host,
            NodeIdentity("n1", "csi.orlop.dev/node"),
            NodeRules((str(room / "kubelet"),), LIMITS),
            timed_threads=right_here,
            clock=self.clock,
            health=VolumeHealth(self.host, self.watch.escapes),
        )

    async def stop(self) -> None:
        self.host.kubelet_dir.unmount(names_of(UID))
        self.host.close()


@pytest.fixture(params=["xfs", "ext4"])
def drive(request: pytest.FixtureRequest) -> Path:
    return Path(os.environ[FILE_SYSTEMS]) / request.param


@pytest.fixture
def room(drive: Path) -> Iterator[Path]:
    room = drive / f"node-{next(ROOMS)}"
    room.joinpath("kubelet", *names_of(UID)[:-1]).mkdir(parents=True)
    (room / "work").mkdir()
    subprocess.run(["mount", "--make-shared", drive], check=True, capture_output=True)  # as kubelet's folder is
    yield room
    subprocess.run(["umount", room.joinpath("kubelet", *names_of(UID))], check=False, capture_output=True)


async def test_a_pod_is_held_to_its_size_where_it_sees_its_volume(room: Path):
    node = Node(room)
    await node.folders.publish(order(size_bytes=8 * MIB, inodes=20))
    (node.target / "data").write_bytes(bytes(2 * MIB))
    os.sync()

    size = os.statvfs(node.target)
    assert size.f_blocks * size.f_frsize == 8 * MIB
    asked = csi_pb2.NodeGetVolumeStatsRequest(volume_id=ID, volume_path=str(node.target))
    in_bytes, in_inodes = (await node.service.NodeGetVolumeStats(asked)).usage
    assert 2 * MIB <= in_bytes.used <= 4 * MIB
    assert (in_bytes.total, in_inodes.total, in_inodes.used) == (8 * MIB, 20, 2)
    assert in_bytes.available == in_bytes.total - in_bytes.used
    assert why_limits_cannot_be_held(node.host.workdir, AdminLimits(1.0, 1.0, MIB, MIB)) is None
    await node.stop()


async def test_a_tenant_that_leaves_its_quota_is_found_and_told(room: Path):
    node = Node(room)
    await node.folders.publish(order(size_bytes=8 * MIB))
    (node.target / "folder").mkdir()
    (node.target / "folder" / "data").write_bytes(bytes(2 * MIB))
    await node.watch.check()
    assert node.watch.escapes == {}

    with (node.target / "folder" / "data").open() as file:
        flags, *sizes, _project, copied = struct.unpack("=IIIII8x", fcntl.ioctl(file, 0x801C581F, bytes(28)))
        fcntl.ioctl(file, 0x401C5820, struct.pack("=IIIII8x", flags, *sizes, 0, copied))
    await node.watch.check()

    assert (node.watch.escapes[ID].count, node.watch.escapes[ID].first) == (1, "folder/data")
    assert [entry.fields["volume"] for entry in node.log] == [ID]
    asked = csi_pb2.NodeGetVolumeHealthRequest(volume_id=ID, volume_publish_path=str(node.target))
    (trouble,) = (await node.service.NodeGetVolumeHealth(asked)).volume_health.health_statuses
    assert (trouble.reason, trouble.status) == ("QuotaLeft", csi_pb2.VolumeHealthErrorType.DEGRADED)
    await node.stop()


async def test_a_number_is_free_again_when_its_folder_was_erased(room: Path):
    node = Node(room)
    await node.folders.publish(order(size_bytes=8 * MIB, lifespan_seconds=0.0))
    (node.target / "data").write_bytes(bytes(MIB))
    number = node.folders.book.live[ID].project
    await node.folders.unpublish(ID, order().target)
    assert node.folders.numbers.release_unused() == 0

    (name,) = node.host.workdir.names_in_trash()
    LinuxWorld.erase_below(room / "work", name)
    await eventually(node.folders.numbers.release_unused)

    usage = node.host.workdir.quota_usage(number)
    assert usage.is_nothing
    assert usage.limits == ProjectLimits(None, None)
    await node.folders.publish(order(size_bytes=4 * MIB))
    assert node.folders.book.live[ID].project == number
    await node.stop()


async def test_a_restart_gives_nobody_the_number_of_another(room: Path):
    first = Node(room)
    await first.folders.publish(order(size_bytes=8 * MIB))
    await first.folders.unpublish(ID, order().target)
    await first.stop()
    second = Node(room)
    await second.folders.publish(order("csi-2", size_bytes=8 * MIB))

    assert second.folders.book.live["csi-2"].project != second.folders.book.retained[ID].record.project
    await second.stop()


async def test_limits_survive_power_loss_with_their_folder(room: Path, drive: Path):
    """The last one: it takes the drive away for a moment."""
    node = Node(room)
    await node.folders.publish(order(size_bytes=8 * MIB))
    number = node.folders.book.live[ID].project
    await node.stop()
    lose_power(drive)

    node = Node(room)
    usage = node.host.workdir.quota_usage(number)
    assert [folder.name for folder in node.host.workdir.listing(FolderState.LIVE).folders] == [ID]
    assert (usage.limits, usage.inodes) == (ProjectLimits(8 * MIB, None), 1)
    assert node.host.workdir.strays(live(ID), number, lambda: False) is None
    await node.stop()


def lose_power(drive: Path) -> None:
    (device,) = {line.split()[0] for line in Path("/proc/mounts").read_text().splitlines() if f" {drive} " in line}
    folder = os.open(drive, os.O_RDONLY)
    fcntl.ioctl(folder, SHUT_DOWN, struct.pack("=I", WITHOUT_FLUSHING_THE_LOG))
    os.close(folder)
    subprocess.run(["umount", drive], check=True)
    subprocess.run(["mount", "-t", drive.name, "-o", "prjquota", device, drive], check=True)
