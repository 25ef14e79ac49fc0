"""Where the driver is asked to put a volume, and what is made of its answer."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.binding.topology_rules import TopologyMode
from orlop.kube.client import MergePatch
from orlop.kube.kinds import CSI_NODE, NODE
from orlop.kube.objects import ObjectName
from support.provisioning.provisioner_worlds import CREATE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
LATE = {"volumeBindingMode": "WaitForFirstConsumer"}
ZONES = {"allowedTopologies": [{"matchLabelExpressions": [{"key": "zone", "values": ["a", "b"]}]}]}
STRICT = {"topology": TopologyMode(strict=True)}
NOT_IMMEDIATE = {"topology": TopologyMode(immediate=False)}


def zones(terms: Any) -> list[str]:
    return [term.segments["zone"] for term in terms]


async def three_zones(world: ProvisionerWorld) -> None:
    for name, zone in (("n1", "a"), ("n2", "b"), ("n3", "c")):
        await world.make_node(name, zone=zone)


async def asked(world: ProvisionerWorld, name: str = "data", node: str = "", **settings: Any) -> Any:
    """Provision one more claim; return the topology of the request."""
    count = len(await world.volumes())
    await world.make_claim(name, annotations={"volume.kubernetes.io/selected-node": node} if node else {})
    async with world.provisioner(**settings):
        await world.until_provisioned(count + 1)
    return world.requests(CREATE)[-1].accessibility_requirements


# ---- late binding ----------------------------------------------------------------------------------------------------


async def test_late_binding_asks_for_all_zones_with_the_selected_nodes_first():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**LATE)
        topology = await asked(world, node="n2")
        assert sorted(zones(topology.requisite)) == ["a", "b", "c"]
        assert zones(topology.preferred) == ["b", "c", "a"]


async def test_strict_late_binding_asks_for_the_selected_nodes_zone_alone():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**LATE)
        topology = await asked(world, node="n2", **STRICT)
        assert zones(topology.requisite) == zones(topology.preferred) == ["b"]


async def test_late_binding_asks_for_the_zones_that_the_class_allows():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**LATE, **ZONES)
        topology = await asked(world, node="n2")
        assert zones(topology.requisite) == ["a", "b"]
        assert zones(topology.preferred) == ["b", "a"]


@pytest.mark.parametrize(
    ("node", "part"),
    [("n3", "is not in the class's allowedTopologies"), ("n9", 'CSINode "n9" of the selected node does not exist')],
)
@pytest.mark.parametrize("settings", [{}, STRICT], ids=["usual", "strict"])
async def test_a_node_that_cannot_be_used_is_given_back_to_the_scheduler(
    node: str, part: str, settings: dict[str, Any]
):
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**LATE, **ZONES)
        await world.make_claim()
        await world.annotate_claim(selected_node=node)
        async with world.provisioner(**settings):
            await world.until_event("ProvisioningFailed", part)

            async def is_given_back() -> bool:
                return "volume.kubernetes.io/selected-node" not in (await world.claim())["metadata"]["annotations"]

            await world.until(is_given_back)
            await world.clock.sleep(600)
            assert world.calls() == []
            await world.annotate_claim(selected_node="n1")
            await world.until_provisioned()


async def test_a_node_whose_labels_are_missing_is_waited_for():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.client.patch(NODE, ObjectName(None, "n1"), MergePatch({"metadata": {"labels": {"zone": None}}}))
        await world.make_class(**LATE)
        await world.make_claim()
        await world.annotate_claim(selected_node="n1")
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", 'node "n1" lacks a label')
            assert world.calls() == []
            await world.client.patch(NODE, ObjectName(None, "n1"), MergePatch({"metadata": {"labels": {"zone": "a"}}}))
            await world.until_provisioned()


@pytest.mark.parametrize("settings", [{}, STRICT], ids=["usual", "strict"])
async def test_a_node_on_which_the_driver_is_not_registered_is_waited_for(settings: dict[str, Any]):
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        name = ObjectName(None, "n2")
        registered = (await world.client.get(CSI_NODE, name))["spec"]
        await world.client.patch(CSI_NODE, name, MergePatch({"spec": {"drivers": []}}))
        await world.make_class(**LATE)
        await world.make_claim()
        await world.annotate_claim(selected_node="n2")
        async with world.provisioner(**settings):
            await world.until_event("ProvisioningFailed", 'no topology keys on CSINode "n2"')
            assert world.calls() == []
            assert (await world.claim())["metadata"]["annotations"]["volume.kubernetes.io/selected-node"] == "n2"
            await world.client.patch(CSI_NODE, name, MergePatch({"spec": registered}))
            await world.until_provisioned()
        assert zones(world.requests(CREATE)[-1].accessibility_requirements.preferred)[0] == "b"


# ---- immediate binding -----------------------------------------------------------------------------------------------


async def test_immediate_binding_asks_for_all_zones():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class()
        topology = await asked(world)
        assert sorted(zones(topology.requisite)) == sorted(zones(topology.preferred)) == ["a", "b", "c"]


async def test_immediate_binding_waits_until_a_node_has_the_driver():
    async with ProvisionerWorld(with_node=False) as world:
        await world.make_class()
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "no node has topology keys and labels of driver")
            assert world.calls() == []
            await three_zones(world)
            await world.until_provisioned()
        assert sorted(zones(world.requests(CREATE)[-1].accessibility_requirements.requisite)) == ["a", "b", "c"]


async def test_immediate_binding_asks_for_nothing_where_that_is_switched_off_and_the_class_allows_all():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class()
        assert not (await asked(world, **NOT_IMMEDIATE)).requisite


async def test_immediate_binding_asks_for_the_zones_that_the_class_allows_also_where_that_is_switched_off():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**ZONES)
        assert zones((await asked(world, **NOT_IMMEDIATE)).requisite) == ["a", "b"]


async def test_members_of_a_stateful_set_are_spread_over_the_zones_and_the_claims_of_one_stay_together():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class()
        first = {}
        for ordinal in range(3):
            for template in ("data", "log"):
                name = f"{template}-web-{ordinal}"
                first[name] = zones((await asked(world, name)).preferred)[0]
        assert len({first[f"data-web-{ordinal}"] for ordinal in range(3)}) == 3
        assert all(first[f"data-web-{ordinal}"] == first[f"log-web-{ordinal}"] for ordinal in range(3))


async def test_a_retry_asks_for_the_same_though_nodes_came_and_went():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        await world.make_class(**LATE)
        world.play({CREATE: [{"error": {"code": "DEADLINE_EXCEEDED", "message": "slow"}, "times": 3}]})
        await world.make_claim()
        await world.annotate_claim(selected_node="n2")
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "slow")
            await world.make_node("n4", zone="d")
            await world.client.delete(NODE, ObjectName(None, "n1"))
            await world.until_provisioned()
        requests = world.requests(CREATE)
        assert len(requests) == 4
        assert all(request == requests[0] for request in requests)


async def test_a_driver_without_topology_is_asked_for_none():
    async with ProvisionerWorld(with_node=False) as world:
        await three_zones(world)
        world.play({}, capabilities={"plugin": ["CONTROLLER_SERVICE"]})
        await world.make_class(**LATE)
        topology = await asked(world, node="n2")
        assert not topology.requisite


# ---- the answer ------------------------------------------------------------------------------------------------------


async def test_the_topology_of_the_answer_becomes_the_affinity_of_the_volume():
    async with ProvisionerWorld() as world:
        await world.make_class()
        topology = [{"segments": {"zone": "a", "rack": "1"}}, {"segments": {"zone": "b"}}]
        world.play({CREATE: [{"answer": {"volume": {"volumeId": "v", "accessibleTopology": topology}}}]})
        await asked(world)
        (volume,) = await world.volumes()
        assert volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"] == [
            {
                "matchExpressions": [
                    {"key": "rack", "operator": "In", "values": ["1"]},
                    {"key": "zone", "operator": "In", "values": ["a"]},
                ]
            },
            {"matchExpressions": [{"key": "zone", "operator": "In", "values": ["b"]}]},
        ]


async def test_a_volume_without_topology_can_be_used_everywhere():
    async with ProvisionerWorld() as world:
        await world.make_class()
        world.play({CREATE: [{"answer": {"volume": {"volumeId": "v"}}}]})
        await asked(world)
        (volume,) = await world.volumes()
        assert "nodeAffinity" not in volume["spec"]
