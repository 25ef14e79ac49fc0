"""Raw block volumes on this kernel: real devices, mounts, loop devices and containers; nothing of them is left."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onenode.containers.container_request import Account, VolumePlace
from onenode.host.linux_volume_host import LinuxVolumeHost
from onenode.kubelet.pods.container_runtime import ContainerRefused
from onenode.kubelet.volumes.volume_manager import VolumeManager
from orlop.foundation.clock import SystemClock
from orlop.host.block import loop_devices
from orlop.kube.objects import uid
from support.host.block_devices import SIZE, block_device, loops_about, publish_device, unpublish_device
from support.host.kernel_rooms import mount_points_of, mount_room, run
from support.kubelet.machine_pods import Kubelet, kubelet_in
from support.kubelet.volume_worlds import VolumeWorld
from support.waiting import eventually


@dataclass
class Machine:
    """Kubelet's directory, and a device that the driver publishes."""

    kubelet: Path
    device: Path

    def make(self, path: str, *, block: bool) -> None:
        assert block
        if path not in self.mounts():
            publish_device(self.device, Path(path))

    def remove(self, path: str) -> None:
        if Path(path).exists():
            unpublish_device(Path(path))

    def mounts(self) -> list[str]:
        return [path for path in mount_points_of("self") if path.startswith(f"{self.kubelet}/")]

    def left(self) -> list[str]:
        files = [f"{folder}/{name}" for folder, _, names in os.walk(self.kubelet) for name in names]
        return [*files, *self.mounts(), *loops_about(self.kubelet)]


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    with mount_room(tmp_path / "room") as room, block_device(tmp_path / "disk") as device:
        yield Machine(room, device)
        for path in loops_about(room):
            loop_devices.release(path)
        for path in reversed([one for one in mount_points_of("self") if one.startswith(f"{room}/")]):
            run("umount", path)


@asynccontextmanager
async def device_world(machine: Machine, **source: Any) -> AsyncIterator[tuple[VolumeWorld, LinuxVolumeHost, Any]]:
    async with VolumeWorld(SystemClock()) as world:
        world.targets = machine  # type: ignore[assignment]
        world.play({})
        await world.csi_driver(attachRequired=False)
        await world.bound_claim(volumeMode="Block")
        pod = await world.device_pod(**source)
        with LinuxVolumeHost(str(machine.kubelet)) as host:
            yield world, host, pod


async def gone(machine: Machine, volumes: VolumeManager, pod: Any) -> None:
    await volumes.wait_unmounted(uid(pod))
    await eventually(lambda: not machine.left())


def folders(machine: Machine) -> list[str]:
    walked = os.walk(machine.kubelet)
    return sorted(os.path.relpath(f"{above}/{name}", machine.kubelet) for above, names, _ in walked for name in names)


async def test_a_device_is_mounted_linked_and_held_for_its_pod_and_all_of_it_goes(machine: Machine):
    async with device_world(machine) as (world, host, pod), world.manager(host=host) as volumes:
        found = await volumes.wait_mounted(pod)

        device = Path(found.mounted["data"].path)
        root = machine.kubelet / "plugins/kubernetes.io/csi/volumeDevices"
        published = root / "publish/pv1" / uid(pod)
        assert device == root / "pv1/dev" / uid(pod)
        assert device.stat().st_rdev == machine.device.stat().st_rdev
        assert machine.mounts() == [str(published), str(device)]
        assert loops_about(machine.kubelet) == [str(device)]
        link = machine.kubelet / "pods" / uid(pod) / "volumeDevices/kubernetes.io~csi/pv1"
        assert link.readlink() == published
        assert {oct(path.stat().st_mode & 0o777) for path in (root / "staging/pv1", published.parent)} == {"0o750"}

        await gone(machine, volumes, pod)
        base = ["plugins", "plugins/kubernetes.io", "plugins/kubernetes.io/csi"]
        blocks = "plugins/kubernetes.io/csi/volumeDevices"
        kept = sorted([*base, blocks, f"{blocks}/publish", f"{blocks}/staging", "pods"])
        await eventually(lambda: folders(machine) == kept)


async def test_a_kubelet_that_comes_back_uses_the_loop_device_it_had_and_takes_it_away_when_the_pod_is_gone(
    machine: Machine,
):
    async with device_world(machine) as (world, host, pod):
        async with world.manager(host=host) as volumes:
            device = (await volumes.wait_mounted(pod)).mounted["data"].path
        held = loop_devices.holder_of(device)
        async with world.manager(host=host, known=False) as volumes:
            await volumes.wait_mounted(pod)
            assert loop_devices.holder_of(device) == held
            assert len(machine.mounts()) == 2
        async with world.manager(host=host) as volumes:
            await gone(machine, volumes, pod)


async def test_after_a_reboot_the_device_is_mapped_anew(machine: Machine):
    async with device_world(machine) as (world, host, pod):
        async with world.manager(host=host) as volumes:
            device = (await volumes.wait_mounted(pod)).mounted["data"].path
        loop_devices.release(device)
        for path in reversed(machine.mounts()):
            run("umount", path)
        for volume in world.volumes_of_driver():
            volume.published.clear()
            volume.staged.clear()
        async with world.manager(host=host, known=False) as volumes:
            await volumes.wait_mounted(pod)
            volumes.all_pods_known()
            assert loops_about(machine.kubelet) == [device]
            await gone(machine, volumes, pod)


# ---- in containers ---------------------------------------------------------------------------------------------------


@dataclass
class Inside:
    """Runs commands in containers that have the device."""

    kubelet: Kubelet
    volumes: VolumeManager
    pod: Any

    async def run(self, script: str, path: str = "/dev/xvda", **how: Any) -> tuple[int, list[str]]:
        found = self.volumes.volumes_of(self.pod).mounted["data"]
        place = VolumePlace(path, found.read_only, is_device=True)
        return await self.kubelet.run(script, places=(place,), volumes=(found.names,), **how)


@asynccontextmanager
async def inside(machine: Machine, **source: Any) -> AsyncIterator[Inside]:
    async with device_world(machine, **source) as (world, host, pod), world.manager(host=host) as volumes:
        await volumes.wait_mounted(pod)
        async with kubelet_in(machine.kubelet) as kubelet:
            yield Inside(kubelet, volumes, pod)
        for name in ("logs", "processes"):
            run("rm", "-r", machine.kubelet / name)
        await gone(machine, volumes, pod)


READ = "head -c 5 /dev/xvda; echo; "
WRITE = "echo HELLO | dd of=/dev/xvda conv=fsync,notrunc status=none"


async def test_a_container_reads_and_writes_its_device_at_its_path(machine: Machine):
    machine.device.write_bytes(b"hello")
    async with inside(machine) as one:
        assert await one.run(f"{READ}{WRITE} && blockdev --getsize64 /dev/xvda") == (0, ["hello", str(SIZE)])

    assert machine.device.read_bytes()[:5] == b"HELLO"


@pytest.mark.parametrize("path", ["/dev/xvda", "/dev/disks/by/name", "/data/disk", "/etc/hostname"])
async def test_the_device_may_be_anywhere_below_the_root(machine: Machine, path: str):
    machine.device.write_bytes(b"hello")
    before = Path("/etc/hostname").read_bytes()
    async with inside(machine) as one:
        assert await one.run(f"head -c 5 {path}; test -b {path}", path) == (0, ["hello"])

    assert Path("/etc/hostname").read_bytes() == before


async def test_two_containers_have_one_device(machine: Machine):
    async with inside(machine) as one:
        assert (await one.run(WRITE))[0] == 0
        assert await one.run(READ, attempt=1) == (0, [])
        assert one.kubelet.lines(attempt=1) == ["HELLO"]


async def test_a_container_that_may_only_read_cannot_write_though_it_is_root(machine: Machine):
    machine.device.write_bytes(b"hello")
    async with inside(machine, readOnly=True) as one:
        code, _ = await one.run(f"{READ}chmod 666 /dev/xvda; {WRITE} || echo refused; blockdev --getro /dev/xvda")
        told = one.kubelet.lines("stdout")

    assert (code, told) == (0, ["hello", "refused", "1"])
    assert machine.device.read_bytes()[:5] == b"hello"


async def test_what_a_container_does_to_its_node_does_not_reach_the_machines(machine: Machine):
    mode, owner = machine.device.stat().st_mode, machine.device.stat().st_uid
    async with inside(machine) as one:
        assert (await one.run("chmod 777 /dev/xvda && chown 1000 /dev/xvda && stat -c %a /dev/xvda")) == (0, ["777"])

    assert (machine.device.stat().st_mode, machine.device.stat().st_uid) == (mode, owner)


async def test_a_container_sees_no_other_device_and_can_make_none(machine: Machine):
    number = machine.device.stat().st_rdev
    async with inside(machine) as one:
        look = "for f in /dev/* /dev/.??*; do test -b $f && echo $f; done; "
        make = f"mknod /dev/mine b {number >> 8} {number & 255} || mknod /mine b 7 0 || echo none"
        code, _ = await one.run(look + make)
        told = one.kubelet.lines("stdout")

    assert (code, told) == (0, ["/dev/xvda", "none"])


async def test_a_user_without_rights_to_the_device_cannot_read_it(machine: Machine):
    async with inside(machine) as one:
        code, _ = await one.run("cat /dev/xvda > /dev/null", account=Account(1234, 1234))

    assert code != 0


@pytest.mark.parametrize("path", ["/dev/../etc/passwd", "/..", "/", "/dev"])
async def test_a_path_that_leads_elsewhere_or_is_a_folder_is_refused(machine: Machine, path: str):
    async with inside(machine) as one:
        with pytest.raises(ContainerRefused, match=r"Nothing can be mounted at /"):
            await one.run("true", path)


async def test_what_is_no_device_is_not_given_as_one(machine: Machine):
    (machine.kubelet / "pods").mkdir()
    (machine.kubelet / "pods/file").write_text("x")
    async with kubelet_in(machine.kubelet) as kubelet:
        places = (VolumePlace("/dev/xvda", is_device=True),)
        with pytest.raises(ContainerRefused, match="is no block device"):
            await kubelet.run("true", places=places, volumes=(("pods", "file"),))
