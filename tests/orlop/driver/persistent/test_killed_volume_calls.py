"""A node killed before and after every effect of a call for a volume, and every host call that fails with every error.

After a kill kubelet calls again, and the end is the same as without it. After an error nothing is mounted that kubelet
would not unmount, and the call succeeds when the machine works again.
"""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable
from itertools import product

import pytest
from msgspec.structs import replace

from conftest import SOAK
from orlop.csi.error_codes import CsiError, is_final
from orlop.host.node_host import Names
from orlop.records.drive_record import MIB, DriveType
from orlop.records.volume_record import decode_volume
from orlop.testing.kill_points import KillMoment, KillPoints, explore_kills
from support.drives.node_drives import ID, drive_record
from support.drives.volume_node import DEVICE, SIZE, STAGING, TARGET, FakeNode, Ground, new_ground

pytestmark = pytest.mark.virtual_time
Act = Callable[[FakeNode], Awaitable[object]]
KINDS = ["directory", "image", "block", "folder"]
"""A directory with quota; an image on a disk; a raw image; an image on a folder drive, which has a reserve."""
OF_KIND = pytest.mark.parametrize("kind", KINDS)
ERRORS = (errno.EIO, errno.ENOSPC, errno.EROFS, errno.ENODEV, errno.EBUSY)


def ground_of(kind: str) -> Ground:
    type_ = DriveType.FOLDER if kind == "folder" else DriveType.DISK
    ground = new_ground(drive_record(type_=type_))
    if kind == "folder":
        ground.drive().reserve = 1024 * MIB
    return ground


class Calls:
    """The calls of one kind of volume."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.block = kind == "block"
        self.target = DEVICE if self.block else TARGET

    async def stage(self, node: FakeNode) -> None:
        await node.stage(block=self.block, backing="directory" if self.kind == "directory" else "image")

    async def publish(self, node: FakeNode) -> None:
        await node.publish(block=self.block, read_only=True)

    async def unpublish(self, node: FakeNode) -> None:
        await node.unpublish(self.target)

    async def unstage(self, node: FakeNode) -> None:
        await node.unstage()

    async def expand(self, node: FakeNode) -> None:
        await node.expand(2 * SIZE)

    def before(self, name: str) -> tuple[Act, ...]:
        """The calls that come before one."""
        return {
            "stage": (),
            "publish": (self.stage,),
            "unpublish": (self.stage, self.publish),
            "unstage": (self.stage,),
            "expand": (self.stage, self.publish),
            "stage_again": (self.stage, self.unstage),
        }[name]

    def call(self, name: str) -> Act:
        act: Act = getattr(self, name.removesuffix("_again"))
        return act


async def retried(act: Act, node: FakeNode) -> None:
    """As kubelet does it: again and again."""
    for _ in range(4):
        try:
            await act(node)
        except CsiError:
            continue
        return
    raise AssertionError("it never succeeds")


def shape(ground: Ground) -> object:
    drive = ground.drive()
    records = {name: decode_volume(each.record or b"") for name, each in drive.volumes.items()}
    limits = {name: drive.limits.get(record.project) for name, record in records.items()}
    return (
        {name: replace(record, project=0) for name, record in records.items()},
        {name: (each.image, each.half_made_image, each.file_system_bytes) for name, each in drive.volumes.items()},
        {name: sorted(each.devices.values()) for name, each in drive.volumes.items()},
        {target: len(stack) for target, stack in ground.machine.mounts.items() if stack},
        (frozenset(ground.machine.kubelet_folders), frozenset(ground.machine.kubelet_files)),
        (drive.reserve, drive.half_made_volumes, limits),
    )


@OF_KIND
@pytest.mark.parametrize("name", ["stage", "publish", "unpublish", "unstage", "expand", "stage_again"])
async def test_a_call_ends_the_same_wherever_the_node_is_killed(kind: str, name: str):
    calls, shapes = Calls(kind), []

    async def build() -> Ground:
        ground = ground_of(kind)
        for act in calls.before(name):
            await act(ground.start())
        return ground

    async def run(ground: Ground, points: KillPoints) -> None:
        await retried(calls.call(name), ground.start(points))

    def check(ground: Ground) -> None:
        shapes.append(shape(ground))
        assert shapes[-1] == shapes[0]

    # An image on a folder drive has the effects of all others; killed twice, only that one.
    await explore_kills(build, run, check, deaths=2 if SOAK or kind == "folder" else 1)


@OF_KIND
@pytest.mark.parametrize("name", ["stage", "publish", "unpublish", "unstage", "expand", "stage_again"])
async def test_a_call_that_fails_is_undone_or_called_again_and_succeeds_when_the_machine_works(kind: str, name: str):
    calls = Calls(kind)
    expected = ground_of(kind)
    for act in calls.before(name):
        await act(expected.start())
    node, before_it = expected.start(), expected.machine.faults.all_calls()
    await calls.call(name)(node)
    called = sorted(expected.machine.faults.all_calls() - before_it)
    errors, ways = 0, [(KillMoment.AFTER, errno.EIO), *((KillMoment.BEFORE, number) for number in ERRORS)]
    # Also in a process that has read the volumes of the drive before the call, so that an error comes later in it.
    for function, (moment, number), is_read in product(called, ways, (False, True)):
        ground = ground_of(kind)
        for act in calls.before(name):
            await act(ground.start())
        node = ground.start()
        if is_read:
            await node.index.read_all()
        before = mounted(ground)
        ground.machine.faults.fail(function, number, moment=moment)
        error = await failure_of(calls.call(name), node)
        errors += error is not None
        # After a final error of these calls kubelet forgets the path: nothing new may be mounted there.
        if error is not None and is_final(error) and name in {"stage", "publish", "stage_again"}:
            assert mounted(ground) <= before, (function, moment, errno.errorcode[number])
        ground.machine.faults.forget()
        await retried(calls.call(name), node)
        assert shape(ground) == shape(expected), (function, moment, errno.errorcode[number], is_read)
        assert node.index.get(ID) == decode_volume(ground.drive().volumes[ID].record or b"")
    assert errors > len(ERRORS)


async def failure_of(act: Act, node: FakeNode) -> CsiError | None:
    try:
        await act(node)
    except CsiError as error:
        return error
    return None


def mounted(ground: Ground) -> set[Names]:
    return {target for target, stack in ground.machine.mounts.items() if stack}


@OF_KIND
async def test_the_record_names_every_path_before_anything_is_mounted_there(kind: str):
    ground = ground_of(kind)

    class Watched(KillPoints):
        def effect(self, name: str) -> object:  # type: ignore[override]
            volume = ground.drive().volumes.get(ID)
            if volume is not None:
                record = decode_volume(volume.record or b"")
                named = {record.staged, *(target.path for target in record.published)}
                assert {"/".join(target) for target, stack in ground.machine.mounts.items() if stack} <= named
                assert not volume.devices or record.staged
            return super().effect(name)

    calls, node = Calls(kind), ground.start(Watched())
    for act in (calls.stage, calls.publish, calls.expand, calls.unpublish, calls.unstage):
        await act(node)
    assert STAGING in ground.machine.kubelet_folders


@OF_KIND
async def test_a_volume_never_has_more_than_its_record_says(kind: str):
    """A node that dies in between would have promised the rest to others."""
    ground = ground_of(kind)

    class Watched(KillPoints):
        def effect(self, name: str) -> object:  # type: ignore[override]
            volume = ground.drive().volumes.get(ID)
            if volume is not None:
                record = decode_volume(volume.record or b"")
                limits = ground.drive().limits.get(volume.project)
                sizes = (
                    limits.bytes if limits is not None else 0,
                    volume.image.bytes if volume.image is not None else 0,
                )
                assert max(size or 0 for size in sizes) <= record.bytes
            return super().effect(name)

    calls, node = Calls(kind), ground.start(Watched())
    for act in (calls.stage, calls.publish, calls.expand):
        await act(node)


async def test_a_new_volume_is_made_in_this_order():
    points = KillPoints()
    node = ground_of("image").start(points)
    await node.stage()
    assert points.seen == [
        f"make {ID} half",
        f"name {ID}",
        f"remove the half-made image of {ID}",
        f"allocate the image of {ID}",
        f"name the image of {ID}",
        f"write record of {ID}",
        f"mount {ID} at {'/'.join(STAGING)}",
    ]


async def test_a_directory_has_its_limits_before_its_name():
    points = KillPoints()
    await ground_of("directory").start(points).stage(backing="directory")
    assert points.seen == [
        f"make {ID} half",
        f"limit {ID}",
        f"name {ID}",
        f"mount {ID} at {'/'.join(STAGING)}",
    ]
