"""`orlop static-worker` on this kernel's disks: listed when they appear, wiped when they are released, over a kill."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conftest import SOAK
from support.host.disks import LoopDisk, loop_disk
from support.host.kernel_rooms import mount_room, run
from support.processes.orlop_process import running
from support.static_volumes.static_nodes import DiskNode, disk_node
from support.waiting import eventually_answered

MIB = 1 << 20
SIZE = (1 << 30) if SOAK else 96 * MIB
SLOW = SIZE // 12
"""Bytes per second: a wipe takes twelve seconds, and has written several pieces when it is killed."""
Object = dict[str, Any]


@pytest.fixture
def room(short_folder: Path) -> Iterator[Path]:
    with mount_room(short_folder / "r") as made:
        (made / "disks").mkdir()
        (made / "config").mkdir()
        yield made


async def test_a_disk_is_listed_when_it_is_mounted_or_linked(room: Path, api_kubeconfig: Path, tmp_path: Path):
    with loop_disk(tmp_path / "disk.img", SIZE) as disk:
        async with disk_node(room, api_kubeconfig) as made:
            with made.worker():
                await eventually_answered(made.lists)
                (made.disks / "linked").symlink_to(disk.path)
                await eventually_answered(lambda: made.lists("linked"))
                (made.disks / "mounted").mkdir()
                run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", made.disks / "mounted")
                await eventually_answered(lambda: made.lists("linked", "mounted"))
                assert (await made.listed())["mounted"]["capacity"] == "64Mi"
                run("umount", made.disks / "mounted")
                await eventually_answered(lambda: made.lists("linked"))

                made.configure(namePattern="'other*'")
                await eventually_answered(made.lists)


async def test_orlop_node_contains_the_worker(room: Path, api_kubeconfig: Path):
    kubelet = room / "kubelet"
    (kubelet / "plugins_registry").mkdir(parents=True)
    async with disk_node(room, api_kubeconfig) as made:
        flags = [
            f"--nodeid={made.name}",
            f"--kubelet-dir={kubelet}",
            "--workdir=",
            f"--kubeconfig={made.the.kubeconfig}",
        ]
        static = [f"--static-config={room}/config", f"--static-namespace={made.namespace}"]
        (made.disks / "mounted").mkdir()
        run("mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", made.disks / "mounted")
        with running(room, "node", *flags, *static):
            await eventually_answered(lambda: made.lists("mounted"))


async def test_a_wipe_that_is_killed_in_the_middle_resumes_there(room: Path, api_kubeconfig: Path, tmp_path: Path):
    with loop_disk(tmp_path / "disk.img", SIZE) as disk:
        for at in range(0, SIZE, MIB):
            disk.write(at, b"secret" * 100)
        async with disk_node(room, api_kubeconfig) as made:
            (made.disks / "a").symlink_to(disk.path)
            with made.worker(f"--static-wipe-rate={SLOW}") as worker:
                await eventually_answered(lambda: made.lists("a"))
                await made.request("a", (await made.listed())["a"]["identity"])
                await eventually_answered(lambda: _has_begun(made))
                worker.signal(signal.SIGKILL)
                await worker.exit_code()
            begun = await made.deletion()
            assert begun["state"] == "InProgress"
            assert 0 < begun["bytesDone"] < SIZE
            assert all(each == 0 for each in _content(disk, begun["bytesDone"]))
            # Written into the part that is done: the next process leaves it alone.
            disk.write(0, b"mark")
            with made.worker():
                await eventually_answered(lambda: made.is_in("Complete"))

        content = _content(disk, SIZE)
        assert content[:4] == b"mark"
        assert content.strip(b"\0") == b"mark"


async def _has_begun(made: DiskNode) -> bool:
    return bool((await made.deletion()).get("bytesDone"))


def _content(disk: LoopDisk, size: int) -> bytes:
    with disk.path.open("rb") as file:
        return file.read(size)


async def test_a_mounted_disk_is_never_wiped_until_it_is_free(room: Path, api_kubeconfig: Path, tmp_path: Path):
    with loop_disk(tmp_path / "disk.img", SIZE) as disk:
        run("mkfs.ext4", "-q", disk.path)
        point = room / "plugins/kubernetes.io/local-volume/mounts/local-pv-1"
        point.mkdir(parents=True)
        run("mount", disk.path, point)
        (point / "precious").write_text("keep")
        async with disk_node(room, api_kubeconfig) as made:
            (made.disks / "a").symlink_to(disk.path)
            with made.worker():
                await eventually_answered(lambda: made.lists("a"))
                await made.request("a")
                await eventually_answered(lambda: made.is_in("Error"))
                assert "is mounted at" in (await made.deletion())["message"]
                assert (point / "precious").read_text() == "keep"

                run("umount", point)
                await eventually_answered(lambda: made.is_in("Complete"))

        assert not any(_content(disk, SIZE))
