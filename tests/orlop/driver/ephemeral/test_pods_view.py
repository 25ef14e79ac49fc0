"""What a pod, kubelet and the other users of the host have of a folder: fsGroup, read-only, what can be reached."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Self

import pytest

from conftest import SOAK
from support.afterlife.kernel_nodes import KernelNode, made, node, publish, unpublish
from support.host.kernel_rooms import mount_room, run
from support.waiting import eventually

__all__ = ["node"]

GROUP = 4_242
SOMEBODY = 1_000
PUBLISHES = 500 if SOAK else 40


# ---- fsGroup ---------------------------------------------------------------------------------------------------------


def kubelet_gives_it_to(group: int, top: Path) -> None:
    """As kubelet does for fsGroup after a publish: every entry's group, and the group's rights; folders pass it on."""
    for place in [top, *top.rglob("*")]:
        os.chown(place, -1, group, follow_symlinks=False)
        if not place.is_symlink():
            mode = stat.S_IMODE(place.stat().st_mode)
            place.chmod(mode | (0o2770 if place.is_dir() else 0o660))


def writes_as(user: int, group: int, place: Path) -> bool:
    """Whether somebody of this user and this one further group can make a file there."""
    program = f"""
import os, sys
os.setgroups([{group}])
os.setgid({user})
os.setuid({user})
os.chdir("/")
try:
    os.close(os.open(sys.argv[1] + "/file-{user}", os.O_CREAT | os.O_WRONLY))
except PermissionError:
    sys.exit(1)
"""
    words = [sys.executable, "-S", "-c", program, str(place)]
    return subprocess.run(words, check=False, capture_output=True).returncode == 0


@pytest.fixture
def open_room(short_folder: Path) -> Iterator[Path]:
    """One that every user of the host can get to."""
    short_folder.chmod(0o755)
    with mount_room(short_folder / "room") as room:
        room.chmod(0o755)
        yield room


@contextmanager
def container(node: KernelNode, room: Path) -> Iterator[Path]:
    """The target as a container has it: bound into a root of its own."""
    root = made(room / "root" / "data")
    run("mount", "--bind", node.target(), root)
    try:
        yield root
    finally:
        run("umount", root)


def node_in(room: Path) -> KernelNode:
    return KernelNode(made(room / "work"), made(room / "kubelet"))


async def test_what_kubelet_does_for_fs_group_lasts_through_burial_and_resurrection(open_room: Path):
    node = node_in(open_room)
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), mode="0750"))
        made(node.target() / "folder")
        (node.target() / "file").write_text("x")
        (node.target() / "link").symlink_to("file")
        kubelet_gives_it_to(GROUP, node.target())
        with container(node, open_room) as root:
            assert writes_as(SOMEBODY, GROUP, root)
            assert not writes_as(SOMEBODY + 1, GROUP + 1, root)
        await service.NodeUnpublishVolume(unpublish(node.target()))
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.target(), mode="0750"))
        found = node.target().stat()
        assert (found.st_gid, stat.S_IMODE(found.st_mode)) == (GROUP, 0o2770)
        kubelet_gives_it_to(GROUP, node.target())
        (node.target() / "folder" / "new").touch()
        assert (node.target() / "folder" / "new").stat().st_gid == GROUP
        with container(node, open_room) as root:
            assert writes_as(SOMEBODY + 2, GROUP, root / "folder")
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert node.record(node.buried()).options.mode == 0o750


async def test_a_folder_that_kubelet_gave_to_a_group_is_erased_like_any_other(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        made(node.target() / "folder" / "folder")
        kubelet_gives_it_to(GROUP, node.target())
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [])


# ---- read-only -------------------------------------------------------------------------------------------------------


class Watcher:
    """Reads the mount table without a pause, and remembers the options that a mount was ever seen with."""

    def __init__(self, below: Path) -> None:
        self._beginning = f"{below}/".encode()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self.seen: set[bytes] = set()

    def _watch(self) -> None:
        while not self._end.is_set():
            for line in Path("/proc/self/mountinfo").read_bytes().splitlines():
                fields = line.split(b" ")
                if fields[4].startswith(self._beginning):
                    self.seen.add(fields[5])

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()


async def test_a_read_only_folder_is_read_only_from_the_first_instant(node: KernelNode):
    async with node.running() as service:
        with Watcher(node.kubelet) as watcher:
            for _ in range(PUBLISHES):
                await service.NodePublishVolume(publish(node.pod(), readonly=True))
                with pytest.raises(OSError, match="Read-only"):
                    (node.target() / "file").touch()
                await service.NodeUnpublishVolume(unpublish(node.target()))
            await service.NodePublishVolume(publish(node.pod(), readonly=True))
            await eventually(lambda: watcher.seen)

    for options in watcher.seen:
        assert {b"ro", b"nosuid", b"nodev"} <= {*options.split(b",")}


@contextmanager
def writing_without_a_pause(file: Path) -> Iterator[None]:
    """Makes no file: what it made in the target before anything is mounted there would be in the way."""
    end = threading.Event()

    def write() -> None:
        while not end.is_set():
            with suppress(OSError):
                opened = os.open(file, os.O_WRONLY)
                os.write(opened, b"x")
                os.close(opened)

    thread = threading.Thread(target=write)
    thread.start()
    try:
        yield
    finally:
        end.set()
        thread.join()


async def test_a_writer_that_waits_for_the_mount_never_writes_into_a_read_only_folder(node: KernelNode):
    target = node.pod()
    async with node.running() as service:
        await service.NodePublishVolume(publish(target, readonly=True))
        (node.live() / "file").touch()
        with writing_without_a_pause(target / "file"):
            for _ in range(PUBLISHES // 4):
                run("umount", "--lazy", target)
                await service.NodePublishVolume(publish(target, readonly=True))
        assert (node.live() / "file").read_bytes() == b""


# ---- what the pod sees, and who else can get there -------------------------------------------------------------------


async def test_a_mount_made_later_on_the_source_does_not_appear_in_the_pod(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        made(node.target() / "place")
        run("mount", "-t", "tmpfs", "tmpfs", node.live() / "place")
        (node.live() / "place" / "hidden").touch()
        assert list((node.target() / "place").iterdir()) == []
        assert node.mounts() == [str(node.target())]
        run("umount", node.live() / "place")


async def test_a_mount_made_by_the_pod_in_its_folder_does_not_appear_on_the_source(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        made(node.target() / "place")
        run("mount", "-t", "tmpfs", "tmpfs", node.target() / "place")
        (node.target() / "place" / "mine").touch()
        assert list((node.live() / "place").iterdir()) == []
        run("umount", node.target() / "place")


async def test_the_pods_user_writes_and_another_user_of_the_host_does_not_get_there(open_room: Path):
    node = node_in(open_room)
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        (node.kubelet / "pods").chmod(0o750)  # as kubelet has it
        with container(node, open_room) as root:
            assert writes_as(SOMEBODY, SOMEBODY, root)
            assert not writes_as(SOMEBODY, SOMEBODY, node.live())
            assert not writes_as(SOMEBODY, SOMEBODY, node.target())
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert not writes_as(SOMEBODY, SOMEBODY, node.buried())
        assert [path.name for path in node.buried().iterdir()] == [f"file-{SOMEBODY}"]


async def test_nobody_but_root_sees_that_a_folder_has_a_record(open_room: Path):
    node = node_in(open_room)
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        with container(node, open_room) as root:
            assert "trusted.orlop.record" in os.listxattr(root)
            assert attributes_seen_by(SOMEBODY, root) == "[]"


def attributes_seen_by(user: int, place: Path) -> str:
    program = f"import os; os.setuid({user}); print(os.listxattr({str(place)!r}))"
    words = [sys.executable, "-S", "-c", program]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
