"""Any order of calls, failures, restarts and losses: what is always true of the volumes of a node."""

from __future__ import annotations

import errno
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from conftest import SOAK
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_table import DriveStanding
from orlop.records.drive_record import MIB, DriveState, DriveType
from orlop.records.volume_record import decode_volume
from orlop.testing.kill_points import KillMoment
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.drives.node_drives import DRIVE, READY, drive_record, open_drive
from support.drives.volume_node import SIZE, FakeNode, Ground, Mode, new_ground

LOST = DriveStanding(DriveState.LOST, "its disk is not there")
KINDS: dict[str, dict[str, Any]] = {
    "pvc-directory": {"backing": "directory"},
    "pvc-image": {},
    "pvc-thin": {"facts": {"thin": True}},
    "pvc-raw": {"block": True},
    "pvc-large": {"facts": {"bytes": 900 * MIB}},
}
FAILING = ("mount_image", "bind_staged", "write_volume_record", "create_volume", "make_image", "unmount", "grow_image")
CALLS = ("stage", "unstage", "expand", "write", "publish", "unpublish", "alone")
STEPS = st.one_of(
    st.tuples(st.sampled_from(CALLS), st.sampled_from(sorted(KINDS)), st.integers(0, 2)),
    st.tuples(st.sampled_from(["stage", "publish"]), st.sampled_from(sorted(KINDS)), st.integers(0, 2)),
    st.tuples(st.sampled_from(["restart", "reboot", "lose", "find"]), st.just(""), st.just(0)),
    st.tuples(st.just("fault"), st.sampled_from(FAILING), st.integers(0, 1)),
)


@dataclass
class History:
    ground: Ground
    node: FakeNode
    written: dict[str, bytes] = field(default_factory=dict)
    """What pods wrote and must find again."""

    async def take(self, step: tuple[str, str, int]) -> None:
        name, what, number = step
        machine, moment = self.ground.machine, (KillMoment.BEFORE, KillMoment.AFTER)[number % 2]
        match name:
            case "restart":
                self.node = self.ground.start()
            case "reboot":
                machine.reboot()
                for volume in self.ground.drive().volumes.values():
                    volume.devices.clear()
                self.node = self.ground.start()
            case "lose":
                self.node.table.put(DRIVE, LOST, None)
            case "find":
                self.node.table.put(DRIVE, READY, open_drive(machine, self.ground.records[0]))
            case "fault":
                machine.faults.fail(what, errno.EIO, moment=moment)
            case "write":
                self._write(what, number)
            case _:
                await self._call(name, what, number)

    def _write(self, volume_id: str, number: int) -> None:
        volume = self.ground.drive().volumes.get(volume_id)
        published = self._published(volume_id)
        if volume is not None and published and any(self.ground.machine.mounts.get(each) for each in published):
            self.written[volume_id] = volume.files["data"] = bytes((number,))

    def _published(self, volume_id: str) -> list[tuple[str, ...]]:
        return [target(volume_id, number) for number in range(3)]

    async def _call(self, name: str, volume_id: str, number: int) -> None:
        options, node = KINDS[volume_id], self.node
        block = options.get("block", False)
        try:
            match name:
                case "stage":
                    await node.stage(volume_id=volume_id, path=staging(volume_id), **options)
                case "unstage":
                    await node.service.NodeUnstageVolume(unstaging(node, volume_id))
                case "publish" | "alone":
                    mode = Mode.SINGLE_NODE_SINGLE_WRITER if name == "alone" else Mode.SINGLE_NODE_MULTI_WRITER
                    place = {"target": target(volume_id, number), "path": staging(volume_id)}
                    await node.publish(volume_id=volume_id, block=block, mode=mode, read_only=number == 2, **place)
                case "unpublish":
                    await node.unpublish(target(volume_id, number), volume_id)
                case "expand":
                    await node.expand(SIZE * (number + 1), path=staging(volume_id), volume_id=volume_id)
        except CsiError:
            return  # kubelet calls again, or gives up: both are in the histories

    def check(self) -> None:
        machine, drive = self.ground.machine, self.ground.drive()
        records = {name: decode_volume(volume.record or b"") for name, volume in drive.volumes.items()}
        assert sum(record.bytes for record in records.values()) <= self.ground.records[0].capacity_bytes
        assert sum(drive.images.values()) + drive.reserve <= self.ground.records[0].capacity_bytes
        for name, record in records.items():
            named = {record.staged, *(each.path for each in record.published)}
            paths = {"/".join(path) for path in (staging(name), *self._published(name)) if machine.mounts.get(path)}
            assert paths <= named, (name, paths, named)
            assert all(len(machine.mounts.get(path, ())) <= 1 for path in (staging(name), *self._published(name)))
            mounted = [each for each in record.published if machine.mounts.get(tuple(each.path.split("/")))]
            assert len(mounted) <= 1 or not any(each.alone for each in mounted)
            if name in self.written:
                assert drive.volumes[name].files["data"] == self.written[name]

    async def end(self) -> None:
        """Kubelet takes everything apart, with a drive that works."""
        self.ground.machine.faults.forget()
        await self.take(("find", "", 0))
        for name in KINDS:
            for number in range(3):
                await self.node.unpublish(target(name, number), name)
            await self.node.service.NodeUnstageVolume(unstaging(self.node, name))
        self.check()
        assert not any(self.ground.machine.mounts.values())
        assert not any(volume.devices for volume in self.ground.drive().volumes.values())
        for name, volume in self.ground.drive().volumes.items():
            assert self.node.index.get(name) == decode_volume(volume.record or b"")


def staging(volume_id: str) -> tuple[str, ...]:
    return ("plugins", "kubernetes.io", "csi", "csi.orlop.dev", volume_id, "globalmount")


def target(volume_id: str, number: int) -> tuple[str, ...]:
    if volume_id == "pvc-raw":
        return ("plugins", "kubernetes.io", "csi", "volumeDevices", "publish", "pv-raw", f"u{number}")
    return ("pods", f"u{number}", "volumes", "kubernetes.io~csi", volume_id, "mount")


def unstaging(node: FakeNode, volume_id: str) -> Any:
    return csi_pb2.NodeUnstageVolumeRequest(volume_id=volume_id, staging_target_path=node.paths.of(staging(volume_id)))


@given(st.lists(STEPS, max_size=25), st.sampled_from([DriveType.DISK, DriveType.FOLDER]))
@settings(max_examples=3000 if SOAK else 60, deadline=None)
def test_whatever_happens_volumes_are_recorded_kept_and_taken_apart(
    steps: list[tuple[str, str, int]], type_: DriveType
):
    async def live(_clock: VirtualClock) -> None:
        ground = new_ground(drive_record(type_=type_))
        ground.machine.total_bytes = 4096 * MIB
        ground.drive().reserve = 1024 * MIB if type_ is DriveType.FOLDER else 0
        for name in KINDS:
            ground.machine.kubelet_makes(staging(name))
            for number in range(3):
                ground.machine.kubelet_makes(target(name, number)[:-1])
        history = History(ground, ground.start())
        for step in steps:
            await history.take(step)
            history.check()
        await history.end()

    run_virtual(live)
