"""What a tenant may leave behind, through the whole of its folder's life: published, unpublished, erased.

Afterwards the trash is empty, and what stands beside the folder is as it was.
"""

from __future__ import annotations

import os
import socket
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import SOAK
from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife import reaper
from orlop.foundation.backoff import Backoff
from orlop.foundation.duration import Duration
from support.afterlife.kernel_nodes import KernelNode, made, publish, unpublish
from support.host.deep_trees import dig
from support.host.file_systems import FileSystems, file_systems
from support.host.kernel_rooms import mount_room, other_namespace, run
from support.host.trees import Entry, seen
from support.waiting import eventually

__all__ = ["file_systems"]

OFTEN = Duration.parse("20ms")
MANY = 100_000 if SOAK else 3_000
PATIENCE = 600 if SOAK else 40
"""Seconds: so many files take a while on a machine that has other work."""


@dataclass
class Scene:
    """A node on a disk of its own, and what stands beside its folders and must not be touched."""

    node: KernelNode
    canary: Path
    clean_up: ExitStack

    def outside(self) -> tuple[Entry, int]:
        return seen(self.canary), (self.canary / "file").stat().st_nlink


@pytest.fixture(params=["ext4", "xfs"])
def scene(request: pytest.FixtureRequest, file_systems: FileSystems, tmp_path: Path) -> Iterator[Scene]:
    with mount_room(tmp_path / "room") as room, ExitStack() as clean_up:
        disk = file_systems.new_folder(request.param)
        canary = made(disk / "canary")
        made(canary / "folder" / "folder")
        (canary / "file").write_text("mine")
        (canary / "folder" / "file").write_text("mine too")
        yield Scene(KernelNode(made(disk / "work"), made(room / "kubelet")), canary, clean_up)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be erased is tried again at once: time is not what is tested here."""
    monkeypatch.setattr(reaper, "RETRY", Backoff(initial=0.05, factor=1.0, cap=0.05, jitter=0.0))


# ---- what tenants leave ----------------------------------------------------------------------------------------------


def immutable(scene: Scene) -> None:
    place = made(scene.node.target() / "immutable" / "folder")
    for flag in "ia":
        (place / flag).write_text("x")
        run("chattr", f"+{flag}", place / flag)
    scene.clean_up.callback(subprocess.run, ["chattr", "-Rf", "-ia", scene.node.workdir], check=False)
    run("chattr", "+i", place)
    run("chattr", "+a", place.parent)


def thousands_of_levels(scene: Scene) -> None:
    dig(scene.node.target() / "deep", 20_000 if SOAK else 5_000)


def deep_and_wide(scene: Scene) -> None:
    for number in range(5):
        dig(scene.node.target() / f"deep-{number}", 300)


def fifos_sockets_and_devices(scene: Scene) -> None:
    place = made(scene.node.target() / "special")
    os.mkfifo(place / "fifo")
    os.mknod(place / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    os.mknod(place / "disk", stat.S_IFBLK | 0o666, os.makedev(7, 0))
    there = os.open(place, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"/proc/self/fd/{there}/socket")
    os.close(there)


def names_that_are_not_utf8(scene: Scene) -> None:
    place = os.fsencode(made(scene.node.target() / "names"))
    for name in (b"\xff\xfe", b"\x80" * 255, b"line\nbreak", b"\x1b[2J", b" ", b"-rf", b"\\", b"*", b".rest-0", b"..."):
        os.mkdir(place + b"/" + name)  # noqa: PTH102 - names are bytes
        Path(os.fsdecode(place + b"/" + name + b"/" + name[:200])).touch()


def hard_links(scene: Scene) -> None:
    place = made(scene.node.target() / "links")
    (place / "one").write_text("x")
    for number in range(100):
        (place / f"again-{number}").hardlink_to(place / "one")
    # Across mounts the kernel refuses it; on the host it can be done.
    (scene.node.live() / "links" / "canary").hardlink_to(scene.canary / "file")


def links_out(scene: Scene) -> None:
    place = made(scene.node.target() / "links-out")
    for number, to in enumerate(["..", scene.canary, scene.canary / "file", "/", "4"]):
        (place / str(number)).symlink_to(to)


def a_huge_folder(scene: Scene) -> None:
    place = made(scene.node.target() / "huge")
    there = os.open(place, os.O_RDONLY)
    for number in range(MANY):
        os.close(os.open(f"file-{number}", os.O_CREAT, dir_fd=there))
        if number % 10 == 0:
            os.mkdir(f"folder-{number}", dir_fd=there)
    os.close(there)


def without_permissions(scene: Scene) -> None:
    place = made(scene.node.target() / "closed" / "closed")
    (place / "file").touch()
    place.chmod(0)
    place.parent.chmod(0)


def mounts_inside(scene: Scene) -> None:
    """Made on the host, below the folder itself: a bind of something else, a tmpfs, a file, one upon another."""
    place = made(scene.node.live() / "mounts")
    for name in ("bind", "tmpfs", "stacked"):
        made(place / name)
    (place / "file").touch()
    run("mount", "--bind", scene.canary, place / "bind")
    run("mount", "-t", "tmpfs", "tmpfs", place / "tmpfs")
    run("mount", "-t", "tmpfs", "tmpfs", place / "stacked")
    run("mount", "--bind", scene.canary, place / "stacked")
    run("mount", "--bind", scene.canary / "file", place / "file")


def mounts_of_another_namespace(scene: Scene) -> None:
    other = scene.clean_up.enter_context(other_namespace("private"))
    place = made(scene.node.live() / "elsewhere")
    for name in ("bind", "tmpfs"):
        made(place / name)
    run("nsenter", f"--target={other}", "--mount", "mount", "--bind", scene.canary, place / "bind")
    run("nsenter", f"--target={other}", "--mount", "mount", "-t", "tmpfs", "tmpfs", place / "tmpfs")


ATTACKS: list[Callable[[Scene], None]] = [
    immutable,
    thousands_of_levels,
    deep_and_wide,
    fifos_sockets_and_devices,
    names_that_are_not_utf8,
    hard_links,
    links_out,
    a_huge_folder,
    without_permissions,
    mounts_inside,
    mounts_of_another_namespace,
]


TOGETHER = [attack for attack in ATTACKS if SOAK or attack is not thousands_of_levels]


async def live_and_die(scene: Scene, *attacks: Callable[[Scene], None]) -> None:
    node, before = scene.node, scene.outside()
    async with node.running(prune_interval=OFTEN) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        for attack in attacks:
            attack(scene)
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [], within=PATIENCE)

    assert scene.outside() == before
    assert not node.target().exists()
    assert [entry for entry in node.log if entry.message.startswith("not erased")] == []


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
async def test_whatever_a_tenant_leaves_is_erased_and_nothing_beside_it(scene: Scene, attack: Callable[[Scene], None]):
    await live_and_die(scene, attack)


async def test_all_of_it_at_once_is_erased_and_nothing_beside_it(scene: Scene):
    await live_and_die(scene, *TOGETHER)


async def test_a_retained_folder_with_all_of_it_comes_back_whole_and_is_erased_in_the_end(scene: Scene):
    node, before = scene.node, scene.outside()
    gentle = [attack for attack in TOGETHER if attack not in {mounts_inside, mounts_of_another_namespace, hard_links}]
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        for attack in gentle:
            attack(scene)
        held = sorted(os.listdir(node.target()))  # noqa: PTH208 - names may be any
        await service.NodeUnpublishVolume(unpublish(node.target()))
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.target()))
        assert sorted(os.listdir(node.target())) == held  # noqa: PTH208 - as above
        await service.NodeUnpublishVolume(unpublish(node.target()))
        node.buried().rename(node.workdir / "trash" / "by hand")
    async with node.running():
        await eventually(lambda: node.names("trash") == [], within=PATIENCE)
    assert scene.outside() == before


# ---- what keeps a folder ---------------------------------------------------------------------------------------------


async def test_a_mount_in_the_pods_own_view_of_its_folder_keeps_the_folder_until_it_is_gone(scene: Scene):
    node, before = scene.node, scene.outside()
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        inside = made(node.target() / "inside")
        run("mount", "--bind", scene.canary, inside)
        with pytest.raises(CsiError, match="cannot be unmounted"):
            await service.NodeUnpublishVolume(unpublish(node.target()))
        assert node.left() == [f"live/{node.live().name}"]
        assert (inside / "file").read_text() == "mine"
        run("umount", inside)
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [])
    assert scene.outside() == before


WRITE = """
import itertools, os, sys
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("ready", flush=True)
for number in itertools.count():
    try:
        os.mkdir(f"d{number}")
        open(f"d{number}/file", "w").close()
    except OSError:
        sys.exit(0)
"""


@contextmanager
def writer(folder: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process of no rights that fills the folder it stands in until that is impossible."""
    words = [sys.executable, "-S", "-c", WRITE]
    with subprocess.Popen(words, stdout=subprocess.PIPE, cwd=folder) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        try:
            yield process
        finally:
            process.kill()


async def test_a_process_that_stands_in_the_folder_keeps_it(scene: Scene):
    node = scene.node
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        with writer(node.target()):
            with pytest.raises(CsiError):
                await service.NodeUnpublishVolume(unpublish(node.target()))
            assert node.volumes("live") == [node.live().name]
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [], within=PATIENCE)


async def test_a_process_that_goes_on_writing_after_its_mount_was_torn_away_is_shut_out(scene: Scene):
    node, before = scene.node, scene.outside()
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        with writer(node.target()) as process:
            run("umount", "--lazy", node.target())
            await service.NodeUnpublishVolume(unpublish(node.target()))
            await eventually(lambda: node.left() == [], within=PATIENCE)
            await eventually(lambda: process.poll() is not None)
    assert scene.outside() == before
