"""A small program that publishes and unpublishes, killed at every effect on both hosts: the same world in the end."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orlop.host.block.image_files import ImageShape
from orlop.host.block.image_formats import MIB
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import MountOptions
from orlop.host.node_host import FolderState, NodeHost
from orlop.testing.kill_points import KillPoints, explore_kills
from support.afterlife.node_worlds import FakeWorld, LinuxWorld, NodeWorld, live, retained
from support.host.kernel_rooms import mount_room

POD = ("pods", "uid-1", "volumes", "kubernetes.io~csi", "scratch")
TARGET = (*POD, "mount")
EXT4 = ImageShape(16 * MIB, "ext4", keeps_space=True)


@pytest.fixture(params=["fake", "linux"])
def new_world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[], NodeWorld]]:
    with ExitStack() as clean_up:

        def build() -> NodeWorld:
            if request.param == "fake":
                return FakeWorld()
            number = len(list(tmp_path.iterdir()))
            return LinuxWorld(clean_up.enter_context(mount_room(tmp_path / f"room-{number}")), clean_up)

        yield build


def publish(host: NodeHost, image: ImageShape | None = None) -> None:
    for name in host.workdir.listing(FolderState.LIVE).half_made:
        host.workdir.remove_half_made(live(name))
    try:
        host.workdir.create(live("a"), b"record", 0o777, None, image)
    except HostError as error:
        if error.errno != errno.EEXIST:
            raise
    host.kubelet_dir.make_target(TARGET)
    if host.kubelet_dir.mounted_at(TARGET) is not None:
        return
    if image is not None:
        host.mount_image(live("a"), image.file_system, TARGET, MountOptions())
    else:
        host.bind(live("a"), TARGET, MountOptions())


def unpublish(host: NodeHost) -> None:
    host.kubelet_dir.unmount(TARGET)
    host.kubelet_dir.remove_target(TARGET)
    if any(folder.name == "a" for folder in host.workdir.listing(FolderState.LIVE).folders):
        assert live("a") not in host.workdir.mounted_folders()
        host.workdir.move(live("a"), retained("a"))


@pytest.mark.parametrize("image", [None, EXT4], ids=["folder", "image"])
async def test_publishing_ends_the_same_whatever_dies_when(
    new_world: Callable[[], NodeWorld], image: ImageShape | None
):
    def build() -> NodeWorld:
        world = new_world()
        world.kubelet_makes(POD)
        return world

    async def run(world: NodeWorld, points: KillPoints) -> None:
        await asyncio.to_thread(lambda: publish(world.host(points), image))

    def check(world: NodeWorld) -> None:
        host = world.host()
        listing = host.workdir.listing(FolderState.LIVE)
        assert [folder.name for folder in listing.folders] == ["a"]
        assert (listing.strangers, listing.half_made) == ((), ())
        mounted = host.kubelet_dir.mounted_at(TARGET)
        assert mounted is not None
        assert host.workdir.is_shown_by(live("a"), mounted.root)
        assert host.workdir.mounted_folders() == {live("a")}
        assert host.kubelet_dir.unmount(TARGET) == 1

    explored = await explore_kills(build, run, check)

    assert explored.runs >= 7


@pytest.mark.parametrize("image", [None, EXT4], ids=["folder", "image"])
async def test_unpublishing_ends_the_same_whatever_dies_when(
    new_world: Callable[[], NodeWorld], image: ImageShape | None
):
    def build() -> NodeWorld:
        world = new_world()
        world.kubelet_makes(POD)
        publish(world.host(), image)
        world.tenant_writes_at(TARGET, "file", b"x")
        return world

    async def run(world: NodeWorld, points: KillPoints) -> None:
        await asyncio.to_thread(lambda: unpublish(world.host(points)))

    def check(world: NodeWorld) -> None:
        host = world.host()
        assert host.kubelet_dir.names_in(POD) == frozenset()
        assert host.workdir.listing(FolderState.LIVE).folders == ()
        assert host.workdir.mounted_folders() == frozenset()
        if image is None:
            assert world.tenant_reads(retained("a"), "file") == b"x"
            return
        host.kubelet_dir.make_target(TARGET)
        host.mount_image(retained("a"), image.file_system, TARGET, MountOptions())
        assert world.tenant_reads_at(TARGET, "file") == b"x"
        host.kubelet_dir.unmount(TARGET)

    explored = await explore_kills(build, run, check)

    assert explored.runs >= 7
