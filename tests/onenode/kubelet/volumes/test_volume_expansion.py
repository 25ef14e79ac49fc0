"""Volumes that grow: at the end of a mount and while they are in use; what their claims and people are told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.volumes.steps.expansion_rules import (
    AlreadyExpanded,
    ExpandOnNode,
    NotNow,
    claim_facts,
    decide,
    failed,
    finished,
)
from onenode.kubelet.volumes.volume_values import ClaimFacts
from orlop.foundation.quantity import Quantity
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, SECRET, STORAGE_CLASS
from orlop.kube.objects import ObjectName, uid
from support.api.api_objects import named, storage_class
from support.kubelet.volume_worlds import VolumeWorld
from support.worlds import object_name

EXPAND = "NodeExpandVolume"
ABLE = ["STAGE_UNSTAGE_VOLUME", "EXPAND_VOLUME"]
GIB = 1 << 30
TOLD = 'FileSystemResizeSuccessful: MountVolume.NodeExpandVolume succeeded for volume "pv1" node1'


class Growing:
    """A claim whose volume grows, as a resizer does it."""

    def __init__(self, world: VolumeWorld) -> None:
        self.world = world

    async def volume(self, size: str = "2Gi") -> None:
        patch = MergePatch({"spec": {"capacity": {"storage": size}}})
        await self.world.client.patch(PERSISTENT_VOLUME, object_name(PERSISTENT_VOLUME, "pv1"), patch)

    async def request(self, size: str = "2Gi") -> None:
        await self.world.client.create(STORAGE_CLASS, storage_class("none", allowVolumeExpansion=True))
        patch = MergePatch({"spec": {"resources": {"requests": {"storage": size}}}})
        await self.world.client.patch(PERSISTENT_VOLUME_CLAIM, object_name(PERSISTENT_VOLUME_CLAIM, "c"), patch)

    async def claim(self, **status: Any) -> None:
        patch = MergePatch({"status": status})
        await self.world.client.patch(
            PERSISTENT_VOLUME_CLAIM, object_name(PERSISTENT_VOLUME_CLAIM, "c"), patch, subresource="status"
        )

    async def pending(self, size: str = "2Gi", status: str = "NodeResizePending") -> None:
        waiting = {"type": "FileSystemResizePending", "status": "True"}
        await self.claim(
            allocatedResources={"storage": size},
            allocatedResourceStatuses={"storage": status},
            conditions=[waiting, {"type": "Other", "status": "True"}],
        )

    async def status(self) -> dict[str, Any]:
        found = await self.world.client.get(PERSISTENT_VOLUME_CLAIM, object_name(PERSISTENT_VOLUME_CLAIM, "c"))
        return found["status"]

    async def conditions(self) -> dict[str, str]:
        return {one["type"]: one.get("message", "") for one in (await self.status()).get("conditions", [])}

    def sizes(self) -> list[int]:
        return [request.capacity_range.required_bytes for request in self.world.requests(EXPAND)]


@asynccontextmanager
async def growing(
    *, block: bool = False, able: bool = True, read_only: bool = False, **spec: Any
) -> AsyncIterator[tuple[VolumeWorld, Growing, Any]]:
    node = ABLE if able else ABLE[:1]
    async with VolumeWorld(node=node) as world:
        await world.csi_driver(attachRequired=False)
        await world.bound_claim(volumeMode="Block" if block else "Filesystem", **spec)
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": "c", "readOnly": read_only}}
        pod = await world.device_pod() if block else await world.pod("p", volume)
        yield world, Growing(world), pod


def failing(code: str, times: int = 100) -> dict[str, Any]:
    return {EXPAND: [{"times": times, "error": {"code": code, "message": "boom"}}]}


@pytest.mark.virtual_time
@pytest.mark.parametrize("block", [False, True])
async def test_a_volume_in_use_grows_and_its_claim_and_people_are_told(*, block: bool):
    async with growing(block=block) as (world, grows, pod), world.manager() as volumes:
        found = await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.pending()
        volumes.want(pod)
        await world.clock.sleep(1)

        (request,) = world.requests(EXPAND)
        root = "/var/lib/kubelet/plugins/kubernetes.io/csi"
        published = f"{root}/volumeDevices/publish/pv1/{uid(pod)}"
        assert request.volume_path == (published if block else found.mounted["data"].path)
        assert request.staging_target_path == world.requests("NodeStageVolume")[0].staging_target_path
        assert request.capacity_range.required_bytes == 2 * GIB
        assert request.volume_capability.HasField("block" if block else "mount")
        assert await grows.status() == {
            "phase": "Bound",
            "capacity": {"storage": "2Gi"},
            "allocatedResources": {"storage": "2Gi"},
            "conditions": [{"type": "Other", "status": "True"}],
        }
        await world.clock.sleep(10)
        await world.parts.events.drain(10)
        assert [told for told in await world.events() if "SuccessfulMount" not in told] == [TOLD, TOLD]
        assert len(world.requests(EXPAND)) == 1


@pytest.mark.virtual_time
async def test_a_claim_that_could_not_be_written_after_its_volume_grew_is_written_later():
    """The driver is asked again, which it must bear: a claim that is never written keeps the resizer waiting."""
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        world.way.is_refused = lambda request: request.method == "PATCH" and bool(world.requests(EXPAND))
        await grows.volume()
        await grows.pending()
        volumes.want(pod)
        await world.clock.sleep(300)  # longer than the client itself retries
        before = await grows.status()
        world.way.is_refused = lambda _request: False
        await world.clock.sleep(300)

        assert before["capacity"] == {"storage": "1Gi"}
        assert len(grows.sizes()) > 1
        assert (await grows.status())["capacity"] == {"storage": "2Gi"}
        assert "allocatedResourceStatuses" not in await grows.status()


@pytest.mark.virtual_time
@pytest.mark.parametrize("block", [False, True])
async def test_a_volume_that_grew_before_it_was_mounted_grows_before_its_pod_has_it(*, block: bool):
    async with growing(block=block) as (world, grows, pod), world.manager() as volumes:
        await grows.volume()
        await grows.pending()
        world.play({EXPAND: [{"delay": "5s"}]})
        volumes.want(pod)
        await world.clock.sleep(3)
        assert not volumes.volumes_of(pod).is_ready
        await volumes.wait_mounted(pod)

        (request,) = world.requests(EXPAND)
        assert request.staging_target_path == world.requests("NodeStageVolume")[0].staging_target_path
        assert (await grows.status())["capacity"] == {"storage": "2Gi"}
        await world.clock.sleep(100)
        assert grows.sizes() == [2 * GIB]


@pytest.mark.virtual_time
async def test_an_older_resizer_says_nothing_and_the_node_always_tries():
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        volumes.want(pod)
        await world.clock.sleep(1)

        assert (await grows.status())["capacity"] == {"storage": "2Gi"}
        assert grows.sizes() == [2 * GIB]


@pytest.mark.virtual_time
async def test_the_node_waits_for_its_turn_and_asks_nobody_meanwhile():
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.pending(status="ControllerResizeInProgress")
        for _ in range(5):
            volumes.want(pod)
            await world.clock.sleep(60)
        assert grows.sizes() == []

        await grows.pending()
        volumes.want(pod)
        await world.clock.sleep(1)
        assert grows.sizes() == [2 * GIB]


@pytest.mark.virtual_time
async def test_what_was_done_by_the_controller_alone_is_only_noted():
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.claim(capacity={"storage": "2Gi"}, allocatedResources={"storage": "2Gi"})
        volumes.want(pod)
        await world.clock.sleep(300)

        assert grows.sizes() == []


@pytest.mark.virtual_time
@pytest.mark.parametrize("code", ["INVALID_ARGUMENT", "OUT_OF_RANGE", "NOT_FOUND"])
async def test_what_can_never_be_is_said_in_the_claim_and_not_tried_again(code: str):
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.pending()
        world.play(failing(code))
        volumes.want(pod)
        await world.clock.sleep(300)

        assert grows.sizes() == [2 * GIB]
        assert (await grows.status())["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}
        assert (await grows.status())["capacity"] == {"storage": "1Gi"}
        told = (await grows.conditions())["NodeResizeError"]
        assert told.startswith("failed to expand pvc with Expander.NodeExpand failed to expand the volume rpc error: ")
        (event,) = await world.events()
        assert event.startswith(
            'VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume "pv1" : Expander.NodeExpand '
            "failed to expand the volume rpc error: code = "
        )
        assert volumes.volumes_of(pod).is_ready


@pytest.mark.virtual_time
@pytest.mark.parametrize("code", ["INTERNAL", "UNAVAILABLE"])
async def test_what_failed_otherwise_is_tried_again_later_and_later(code: str):
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.request()
        await grows.volume()
        await grows.pending()
        world.play(failing(code, times=3))
        volumes.want(pod)
        await world.clock.sleep(1)
        assert (await grows.status())["allocatedResourceStatuses"] == {"storage": "NodeResizeInProgress"}
        assert "NodeResizeError" in await grows.conditions()
        await world.clock.sleep(10)

        assert grows.sizes() == [2 * GIB] * 4
        assert (await grows.status())["capacity"] == {"storage": "2Gi"}
        assert await grows.conditions() == {"Other": ""}


@pytest.mark.virtual_time
async def test_what_failed_twice_and_is_no_longer_asked_for_is_given_up_so_that_the_resizer_can_begin_anew():
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.pending()  # while the claim asks for another size again
        world.play(failing("INTERNAL"))
        volumes.want(pod)
        await world.clock.sleep(300)

        assert grows.sizes() == [2 * GIB] * 2
        assert (await grows.status())["allocatedResourceStatuses"] == {"storage": "NodeResizeInfeasible"}


@pytest.mark.virtual_time
async def test_a_driver_that_cannot_while_it_is_in_use_is_asked_once_and_the_pod_runs():
    async with growing() as (world, grows, pod), world.manager() as volumes:
        await grows.volume()
        await grows.pending()
        world.play(failing("FAILED_PRECONDITION"))
        await volumes.wait_mounted(pod)
        for _ in range(3):
            volumes.want(pod)
            await world.clock.sleep(60)

        assert grows.sizes() == [2 * GIB]
        assert "NodeResizeError" in await grows.conditions()


@pytest.mark.virtual_time
@pytest.mark.parametrize(
    ("block", "told"),
    [
        (False, 'FailedMount: MountVolume.Setup failed while expanding volume for volume "pv1" : '),
        (True, 'FailedMapVolume: MapVolume.MarkVolumeAsMounted failed while expanding volume for volume "pv1" : '),
    ],
)
async def test_an_error_at_the_end_of_a_mount_keeps_the_pod_waiting_and_is_undone(*, block: bool, told: str):
    async with growing(block=block) as (world, grows, pod), world.manager() as volumes:
        await grows.volume()
        await grows.pending()
        world.play(failing("INTERNAL"))
        volumes.want(pod)
        await world.clock.sleep(0.3)
        assert not volumes.volumes_of(pod).is_ready
        await volumes.wait_unmounted(uid(pod))
        await world.clock.sleep(5)
        await world.parts.events.drain(10)

        assert "NodeUnpublishVolume" in world.calls()
        assert world.left() == []
        assert [one for one in await world.events() if one.startswith(told)]


@pytest.mark.virtual_time
async def test_a_driver_that_cannot_expand_is_an_error_only_where_somebody_waits_for_it():
    async with growing(able=False) as (world, grows, pod), world.manager() as volumes:
        await grows.volume()
        await volumes.wait_mounted(pod)  # an older resizer's
        await grows.volume("3Gi")
        await grows.pending("3Gi")
        volumes.want(pod)
        await world.clock.sleep(1)
        await world.parts.events.drain(10)

        assert (await world.events())[0] == (
            'VolumeResizeFailed: NodeExpandVolume.NodeExpandVolume failed for volume "pv1" : NodeExpand is not '
            "supported by the CSI driver d.example"
        )


@pytest.mark.virtual_time
async def test_what_is_used_read_only_does_not_grow_and_people_are_told():
    async with growing(read_only=True) as (world, grows, pod), world.manager() as volumes:
        await grows.volume()
        await volumes.wait_mounted(pod)
        await grows.volume("3Gi")
        volumes.want(pod)
        await world.clock.sleep(60)
        await world.parts.events.drain(10)

        told = (
            'FileSystemResizeFailed: MountVolume.NodeExpandVolume failed for volume "pv1" requested read-only file '
            "system"
        )
        assert await world.events() == [told, told]
        assert grows.sizes() == []


@pytest.mark.virtual_time
async def test_a_kubelet_that_was_killed_while_a_volume_grew_ends_it():
    async with growing() as (world, grows, pod):
        async with world.manager() as volumes:
            await volumes.wait_mounted(pod)
            await grows.volume()
            await grows.pending()
            world.play({EXPAND: [{"hang": True}]})
            volumes.want(pod)
            await world.clock.sleep(1)
            world.driver.stop_hanging()
        world.play({})
        async with world.manager(known=False) as volumes:
            await volumes.wait_mounted(pod)
            await world.clock.sleep(5)

            assert (await grows.status())["capacity"] == {"storage": "2Gi"}
            assert "allocatedResourceStatuses" not in await grows.status()


@pytest.mark.virtual_time
async def test_the_secret_for_growing_reaches_the_driver_and_a_missing_one_is_told():
    reference = {"namespace": "default", "name": "grow"}
    async with growing(csi={"nodeExpandSecretRef": reference}) as (world, grows, pod), world.manager() as volumes:
        await volumes.wait_mounted(pod)
        await grows.volume()
        await grows.pending()
        volumes.want(pod)
        await world.clock.sleep(0.2)
        await world.client.create(SECRET, named("grow", stringData={"k": "canary"}), namespace="default")
        await world.clock.sleep(5)
        await world.parts.events.drain(10)

        assert [dict(request.secrets) for request in world.requests(EXPAND)] == [{"k": "canary"}]
        told = await world.events()
        assert [one for one in told if "expander.NodeExpand failed to get NodeExpandSecretRef default/grow: " in one]
        assert "canary" not in f"{told} {world.log} {await grows.status()}"


# ---- rules -----------------------------------------------------------------------------------------------------------

ONE, TWO = Quantity.parse("1Gi"), Quantity.parse("2Gi")
NAME = ObjectName("default", "c")


@pytest.mark.parametrize(
    ("facts", "decision"),
    [
        ({}, ExpandOnNode(TWO, is_older=True)),
        ({"size": TWO}, ExpandOnNode(TWO, is_older=True, is_told=True)),
        ({"allocated": TWO}, NotNow()),
        ({"allocated": TWO, "resize_status": "NodeResizePending"}, ExpandOnNode(TWO)),
        ({"allocated": TWO, "resize_status": "NodeResizeInProgress"}, ExpandOnNode(TWO)),
        ({"allocated": TWO, "resize_status": "NodeResizeInfeasible"}, NotNow()),
        ({"allocated": TWO, "size": TWO}, AlreadyExpanded()),
        ({"allocated": TWO, "size": TWO, "is_for_many_nodes": True}, ExpandOnNode(TWO, is_told=True)),
        ({"allocated": TWO, "size": TWO, "is_for_many_nodes": True, "is_not_required": True}, AlreadyExpanded()),
        ({"allocated": TWO, "is_for_many_nodes": True}, NotNow()),
    ],
)
def test_whose_turn_it_is_stands_in_the_claim(facts: dict[str, Any], decision: Any):
    assert decide(ClaimFacts(NAME, **{"size": ONE, **facts}), TWO) == decision


TYPES = st.sampled_from(["Resizing", "FileSystemResizePending", "NodeResizeError", "ControllerResizeError", "Mine"])
CONDITIONS = st.lists(TYPES, unique=True).map(lambda types: [{"type": one, "status": "True"} for one in types])


@given(CONDITIONS)
def test_nobody_elses_conditions_are_touched(conditions: list[dict[str, str]]):
    claim = {"metadata": {"name": "c"}, "status": {"conditions": conditions}}
    kept = finished(claim, TWO)["status"]["conditions"] or []
    told = failed(claim, "x", "now", is_infeasible=False)["status"]["conditions"]

    assert kept == [one for one in conditions if one["type"] == "Mine"]
    assert [one["type"] for one in told].count("NodeResizeError") == 1
    assert all(one in told for one in conditions)


@given(st.one_of(st.none(), st.text(), st.integers()))
def test_whatever_a_claim_says_its_facts_can_be_read(size: Any):
    claim = {"metadata": {"name": "c", "namespace": "default"}, "status": {"capacity": {"storage": size}}}
    assert claim_facts(claim).name == NAME
