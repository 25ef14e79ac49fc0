"""`orlop static-worker` on this kernel's disks: listed when they appear, wiped when they are released, over a kill."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import SOAK
from orlop.kube.api_errors import AlreadyExists, NotFound
from orlop.kube.kinds import NAMESPACE, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.definitions import definitions
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.naming_rules import volume_name
from support.attaching.attacher_places import Place, place
from support.host.disks import LoopDisk, loop_disk
from support.host.kernel_rooms import mount_room, run
from support.processes.orlop_process import Running, running
from support.waiting import eventually_answered

MIB = 1 << 20
SIZE = (1 << 30) if SOAK else 96 * MIB
SLOW = SIZE // 12
"""Bytes per second: a wipe takes twelve seconds, and has written several pieces when it is killed."""
Object = dict[str, Any]


@dataclass
class Node:
    """A node with a folder of disks, and the worker's configuration."""

    the: Place
    room: Path

    @property
    def name(self) -> str:
        return self.the.named("node")

    @property
    def namespace(self) -> str:
        return self.the.named("static")

    @property
    def disks(self) -> Path:
        return self.room / "disks"

    def configure(self, **more: str) -> None:
        keys = "".join(f"  {key}: {value}\n" for key, value in {"hostDir": str(self.disks), **more}.items())
        (self.room / "config/storageClassMap").write_text(f"fast:\n{keys}")

    def worker(self, *more: str) -> AbstractContextManager[Running]:
        flags = [f"--node-name={self.name}", f"--static-config={self.room}/config"]
        flags += [f"--static-namespace={self.namespace}", f"--kubeconfig={self.the.kubeconfig}"]
        # Only events: without one, nothing is looked for.
        return running(self.room, "static-worker", *flags, "--static-discovery-period=1000s", *more)

    async def status(self) -> Object:
        with suppress(NotFound):
            found = await self.the.client.get(PROVISIONER_STATUS, ObjectName(self.namespace, self.name))
            return dict(found.get("status") or {})
        return {}

    async def listed(self) -> dict[str, Object]:
        return {each["entry"]: each for each in (await self.status()).get("localVolumes") or []}

    async def lists(self, *entries: str) -> bool:
        return set(await self.listed()) == set(entries) and "localVolumes" in await self.status()

    async def deletion(self) -> Object:
        return next(iter((await self.status()).get("deleteStatuses") or []), {})

    async def request(self, entry: str, identity: str = "") -> None:
        name = volume_name(entry, self.name, "fast")
        about = {"uid": "u1", "persistentVolume": name, "volume": name, "storageClass": "fast", "entry": entry}
        operations = [about | ({"identity": identity} if identity else {})]
        patch = JsonPatch().add("spec", "deleteOperations", value=operations)
        await self.the.client.patch(PROVISIONER_STATUS, ObjectName(self.namespace, self.name), patch)

    async def is_in(self, state: str) -> bool:
        return (await self.deletion()).get("state") == state


@pytest.fixture
def room(short_folder: Path) -> Iterator[Path]:
    with mount_room(short_folder / "r") as made:
        (made / "disks").mkdir()
        (made / "config").mkdir()
        yield made


@asynccontextmanager
async def node(room: Path, api: Path, **configuration: str) -> AsyncIterator[Node]:
    async with place(room, api) as the:
        for obj in definitions():
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            with suppress(AlreadyExists):
                await the.client.create(kind, obj)
        made = Node(the, room)
        await the.client.create(NAMESPACE, {"metadata": {"name": made.namespace}})
        made.configure(**configuration)
        yield made
        await the.client.delete(NAMESPACE, ObjectName(None, made.namespace))


async def test_a_disk_is_listed_when_it_is_mounted_or_linked(room: Path, api_kubeconfig: Path, tmp_path: Path):
    with loop_disk(tmp_path / "disk.img", SIZE) as disk:
        async with node(room, api_kubeconfig) as made:
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
    async with node(room, api_kubeconfig) as made:
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
        async with node(room, api_kubeconfig) as made:
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


async def _has_begun(made: Node) -> bool:
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
        async with node(room, api_kubeconfig) as made:
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
