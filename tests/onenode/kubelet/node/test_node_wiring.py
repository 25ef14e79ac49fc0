"""The whole node side on virtual time: ready soon, drivers registered, their limits asked again as CSIDrivers say."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onenode.host.machine_facts import MachineFacts
from onenode.kubelet.node.node_status_rules import Contribution, NodeSettings
from onenode.kubelet.node.node_wiring import PluginPlaces, RunningNode, running_node
from orlop.csi.error_codes import Internal
from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_DRIVER, LEASE, NODE
from orlop.kube.objects import ObjectName
from support.kubelet.plugin_worlds import NODE_NAME, PLUGINS, Plugin, PluginWorld

pytestmark = pytest.mark.virtual_time

A, B = "a.example.com", "b.example.com"
MACHINE = MachineFacts("h", "192.0.2.7", 2, 2**33, 2**36, "m", "u", "b", "6.1", "Linux", "amd64")
SETTINGS = NodeSettings(NODE_NAME, "v1.37.0+orlop", "orlop://0.1")
ME = ObjectName(None, NODE_NAME)


async def machine() -> MachineFacts:
    return MACHINE


@asynccontextmanager
async def node_of(the: PluginWorld) -> AsyncIterator[RunningNode]:
    the.folder.is_socket = the.is_socket  # type: ignore[method-assign]
    places = PluginPlaces(the.folder, PLUGINS, the.connect)
    async with (
        the.api() as (api, parts),
        running_node(SETTINGS, machine, places, parts.informers, api, parts.runtime) as node,
    ):
        yield node


@asynccontextmanager
async def fresh() -> AsyncIterator[PluginWorld]:
    async with PluginWorld() as the:
        await the.on.client().delete(NODE, ME)
        yield the


async def csi_driver(the: PluginWorld, name: str, period: int | None) -> None:
    spec: dict[str, Any] = {"nodeAllocatableUpdatePeriodSeconds": period} if period else {}
    await the.on.client().create(CSI_DRIVER, {"metadata": {"name": name}, "spec": spec})


async def limits(the: PluginWorld) -> dict[str, int | None]:
    return {entry["name"]: entry.get("allocatable", {}).get("count") for entry in await the.csi_drivers()}


async def test_a_node_is_ready_and_has_its_lease_and_drivers_within_half_a_second():
    async with fresh() as the:
        plugin = the.make("a", Plugin(A, topology={"zone": "z"}))
        async with node_of(the) as running_now:
            await the.settle(0.5)

            node = await the.get(NODE)
            assert objects.is_condition_true(node, "Ready")
            assert "taints" not in node.get("spec", {})
            assert objects.labels(node)["zone"] == "z"
            assert list(running_now.drivers) == [A]
            assert plugin.told == [(True, "")]
            await the.on.client().get(LEASE, ObjectName("kube-node-lease", NODE_NAME))


async def test_other_parts_have_their_say_in_whether_the_node_is_ready():
    async with fresh() as the, node_of(the) as running_now:
        running_now.registration.add_part(lambda: Contribution(not_ready=("the volumes are not known yet",)))
        await the.settle(1.0)

        ready = objects.condition(await the.get(NODE), "Ready")
        assert ready is not None
        assert ready["message"] == "the volumes are not known yet"


async def test_a_stopped_kubelet_leaves_everything_and_one_that_is_started_again_finds_it_right():
    async with fresh() as the:
        the.make("a", Plugin(A))
        async with node_of(the):
            await the.settle(1.0)
        node, csi_node = await the.get(NODE), await the.csi_drivers()
        async with node_of(the) as running_now:
            await the.settle(1.0)
            assert list(running_now.drivers) == [A]

        assert objects.uid(await the.get(NODE)) == objects.uid(node)
        assert await the.csi_drivers() == csi_node


async def test_a_driver_is_asked_again_for_its_limit_as_often_as_its_csidriver_says():
    async with fresh() as the:
        await csi_driver(the, A, 30)
        await csi_driver(the, B, None)
        async with node_of(the):
            asked, other = the.make("a", Plugin(A, max_volumes=5)), the.make("b", Plugin(B, max_volumes=5))
            await the.settle(1.0)
            asked.max_volumes, other.max_volumes = 3, 3
            asked.topology = {"changed": "without effect"}
            await the.settle(25.0)
            assert await limits(the) == {A: 5, B: 5}

            await the.settle(10.0)
            assert await limits(the) == {A: 3, B: 5}
            assert "changed" not in await the.labels()

            asked.max_volumes = 0
            await the.settle(30.0)
            assert await limits(the) == {A: None, B: 5}


async def test_a_period_that_comes_later_changes_or_goes_is_followed():
    async with fresh() as the, node_of(the):
        plugin = the.make("a", Plugin(A))
        await the.settle(100.0)
        assert plugin.asked.count("NodeGetInfo") == 1

        await csi_driver(the, A, 100)
        await the.settle(350.0)
        assert plugin.asked.count("NodeGetInfo") == 4

        spec = {"spec": {"nodeAllocatableUpdatePeriodSeconds": 10}}
        await the.on.client().patch(CSI_DRIVER, ObjectName(None, A), MergePatch(spec))
        await the.settle(55.0)
        assert plugin.asked.count("NodeGetInfo") == 9

        await the.on.client().delete(CSI_DRIVER, ObjectName(None, A))
        await the.settle(500.0)
        assert plugin.asked.count("NodeGetInfo") == 9


@pytest.mark.parametrize("fault", [Internal("no"), None], ids=["fails", "hangs"])
async def test_a_driver_that_does_not_say_its_limit_keeps_no_other_waiting(fault: Any):
    async with fresh() as the:
        await csi_driver(the, A, 10)
        await csi_driver(the, B, 10)
        async with node_of(the) as running_now:
            bad, good = the.make("a", Plugin(A, max_volumes=5)), the.make("b", Plugin(B, max_volumes=5))
            await the.settle(1.0)
            bad.behaviour["NodeGetInfo"] = fault
            good.max_volumes = 2
            await the.settle(12.0)
            assert await limits(the) == {A: 5, B: 2}

            await the.settle(50.0)
            assert bad.asked.count("NodeGetInfo") == (7 if fault else 2)

            bad.behaviour.clear()
            bad.max_volumes = 1
            await the.settle(150.0)
            assert await limits(the) == {A: 1, B: 2}
            assert set(running_now.drivers) == {A, B}


async def test_a_node_that_somebody_deletes_is_made_anew_with_its_drivers():
    async with fresh() as the, node_of(the) as running_now:
        the.make("a", Plugin(A, topology={"zone": "z"}))
        await the.settle(1.0)
        await the.on.client().delete(NODE, ME)
        await the.settle(12.0)

        node = await the.get(NODE)
        assert objects.is_condition_true(node, "Ready")
        assert objects.labels(node)["zone"] == "z"
        assert list(await limits(the)) == list(running_now.drivers) == [A]
