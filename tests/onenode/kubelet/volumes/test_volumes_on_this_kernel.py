"""The volume manager with our own scratch folders, on this kernel: real folders, files and mounts."""

from __future__ import annotations

import itertools
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from onenode.host.linux_volume_host import LinuxVolumeHost
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube.objects import uid
from support.afterlife.kernel_nodes import KernelNode, node
from support.kubelet.volume_worlds import VolumeWorld

__all__ = ["node"]
ORLOP = "csi.orlop.dev"


@asynccontextmanager
async def scratch_world(node: KernelNode) -> AsyncIterator[tuple[VolumeWorld, LinuxVolumeHost]]:
    clock = SystemClock()
    async with VolumeWorld(clock) as world, node.running() as service:
        await world.csi_driver(
            ORLOP,
            attachRequired=False,
            podInfoOnMount=True,
            volumeLifecycleModes=["Ephemeral"],
            fsGroupPolicy="File",
        )
        numbers = itertools.count()
        interceptor = CallInterceptor(
            methods_of(service),
            driver_name=ORLOP,
            log=silent_log(),
            metrics=Metrics("t"),
            clock=clock,
            new_id=lambda: f"r-{next(numbers)}",
        )
        connection = InProcessConnection(interceptor)
        world.register(ORLOP, connection)
        with LinuxVolumeHost(str(node.kubelet)) as host:
            yield world, host
        await connection.close()
        await interceptor.drain(5.0)


async def scratch_pod(world: VolumeWorld, **spec: Any) -> Any:
    return await world.pod("p", {"name": "scratch", "csi": {"driver": ORLOP}}, **spec)


def below(node: KernelNode) -> list[str]:
    return sorted(str(path.relative_to(node.kubelet)) for path in node.kubelet.rglob("*"))


async def test_a_scratch_folder_is_mounted_for_its_pod_and_all_of_it_goes_but_what_the_driver_keeps(node: KernelNode):
    async with scratch_world(node) as (world, host), world.manager(host=host) as volumes:
        pod = await scratch_pod(world, securityContext={"fsGroup": 2000})
        found = await volumes.wait_mounted(pod)
        target = Path(found.mounted["scratch"].path)
        (target / "hello").write_text("world")

        assert node.mounts() == [str(target)]
        assert (target.stat().st_gid, oct(target.stat().st_mode & 0o2770)) == (2000, "0o2770")
        assert oct(target.parent.stat().st_mode & 0o777) == "0o750"

        await volumes.wait_unmounted(uid(pod))
        assert node.mounts() == []
        assert below(node) == ["pods"]
        (kept,) = (path for path in (node.workdir / "retained").iterdir())
        assert "hello" in os.listdir(kept)  # noqa: PTH208 - names alone


async def test_a_kubelet_that_comes_back_finds_what_it_mounted_and_takes_it_away_when_the_pod_is_gone(
    node: KernelNode,
):
    async with scratch_world(node) as (world, host):
        pod = await scratch_pod(world)
        async with world.manager(host=host) as volumes:
            await volumes.wait_mounted(pod)
        async with world.manager(host=host, known=False) as volumes:
            await volumes.wait_mounted(pod)
            volumes.all_pods_known()
            assert len(node.mounts()) == 1
        async with world.manager(host=host) as volumes:
            await volumes.wait_unmounted(uid(pod))
        assert node.mounts() == []
        assert below(node) == ["pods"]


async def test_what_somebody_else_left_in_a_target_is_not_removed(node: KernelNode):
    async with scratch_world(node) as (world, host), world.manager(host=host) as volumes:
        pod = await scratch_pod(world)
        found = await volumes.wait_mounted(pod)
        target = Path(found.mounted["scratch"].path)
        (target.parent / "stray").write_text("mine")
        volumes.let_go(uid(pod))
        while node.mounts():
            await world.clock.sleep(0.01)
        await world.clock.sleep(0.2)

        assert (target.parent / "stray").read_text() == "mine"
        (target.parent / "stray").unlink()
        await volumes.wait_unmounted(uid(pod))
        assert below(node) == ["pods"]
