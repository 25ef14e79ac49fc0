"""The Node object of a kubelet and its heartbeat, on virtual time: what stands there, and when it is written."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.host.machine_facts import MachineFacts
from onenode.kubelet.node import node_status_rules as rules
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.node_registration import NodeLease, NodeRegistration
from onenode.kubelet.node.node_status_rules import Condition, Contribution, NodeSettings
from orlop.foundation.quantity import Quantity
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.client import MergePatch, StrategicPatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CSI_NODE, LEASE, NODE
from orlop.kube.objects import ObjectName, read_time
from orlop.testing.virtual_clock import START
from support.kubelet.plugin_worlds import NODE_NAME, Plugin, PluginWorld
from support.worlds import running

MACHINE = MachineFacts(
    hostname="the-host",
    address="192.0.2.7",
    cpus=2,
    memory_bytes=8 * 2**30,
    disk_bytes=100 * 2**30,
    machine_id="machine",
    system_uuid="uuid",
    boot_id="boot-1",
    kernel="6.1.0",
    os_image="Some Linux",
    architecture="amd64",
)
NOTHING = Contribution()
SETTINGS = NodeSettings(NODE_NAME, "v1.37.0+orlop", "orlop://0.1", {"mine": "yes"})
ME = ObjectName(None, NODE_NAME)
MY_LEASE = ObjectName("kube-node-lease", NODE_NAME)


@dataclass
class Kubelet:
    the: PluginWorld
    machine: MachineFacts = MACHINE
    says: Contribution = NOTHING
    reported: list[Mapping[str, Any]] = field(default_factory=list)
    made: list[Mapping[str, Any]] = field(default_factory=list)

    @asynccontextmanager
    async def running(self, server: Any = None) -> AsyncIterator[NodeRegistration]:
        async with self.the.api(server) as (api, parts):
            registration = self.registration(api, parts.runtime)
            lease = NodeLease(registration.node, api, parts.runtime)
            async with running(registration.run(), lease.run()):
                yield registration

    def registration(self, api: NodeApi, runtime: Runtime) -> NodeRegistration:
        async def machine() -> MachineFacts:
            return self.machine

        made = NodeRegistration(SETTINGS, machine, api, runtime)
        made.add_part(lambda: self.says)
        made.when_reported(self.reported.append)
        made.when_made(self.made.append)
        return made

    async def node(self) -> dict[str, Any]:
        return await self.the.get(NODE)

    async def lease(self) -> dict[str, Any]:
        return await self.the.on.client().get(LEASE, MY_LEASE)

    async def reasons(self) -> list[str]:
        return [event["reason"] for event in await self.the.events()]


@asynccontextmanager
async def kubelet() -> AsyncIterator[Kubelet]:
    async with PluginWorld() as the:
        await the.on.client().delete(NODE, ME)
        yield Kubelet(the)


# ---- the Node --------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_node_is_made_with_what_kubelet_says_of_its_machine():
    async with kubelet() as one, one.running():
        await one.the.settle(0.5)
        node = await one.node()

        assert objects.labels(node) == {
            "beta.kubernetes.io/arch": "amd64",
            "beta.kubernetes.io/os": "linux",
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/hostname": NODE_NAME,
            "kubernetes.io/os": "linux",
            "mine": "yes",
        }
        assert objects.annotations(node) == {"volumes.kubernetes.io/controller-managed-attach-detach": "true"}
        status = node["status"]
        assert status["capacity"] == {"cpu": "2", "memory": "8Gi", "ephemeral-storage": "100Gi", "pods": "110"}
        assert status["allocatable"] == {"cpu": "2", "memory": "8092Mi", "ephemeral-storage": "90Gi", "pods": "110"}
        assert status["addresses"] == [
            {"type": "InternalIP", "address": "192.0.2.7"},
            {"type": "Hostname", "address": NODE_NAME},
        ]
        assert status["nodeInfo"]["kubeletVersion"] == "v1.37.0+orlop"
        assert status["nodeInfo"]["bootID"] == "boot-1"
        conditions = [(one["type"], one["status"], one["reason"]) for one in status["conditions"]]
        assert conditions == [
            ("MemoryPressure", "False", "KubeletHasSufficientMemory"),
            ("DiskPressure", "False", "KubeletHasNoDiskPressure"),
            ("PIDPressure", "False", "KubeletHasSufficientPID"),
            ("Ready", "True", "KubeletReady"),
        ]


@pytest.mark.virtual_time
async def test_a_ready_node_has_no_taint_and_one_that_is_not_has_it():
    async with kubelet() as one, one.running() as registration:
        await one.the.settle(0.5)
        assert "taints" not in (await one.node()).get("spec", {})

        one.says = Contribution(not_ready=("the disk is gone", "so is the network"))
        registration.report_soon()
        await one.the.settle(0.5)
        node = await one.node()
        assert node["spec"]["taints"] == [{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]
        ready = objects.condition(node, "Ready")
        assert ready is not None
        assert (ready["status"], ready["reason"]) == ("False", "KubeletNotReady")
        assert ready["message"] == "the disk is gone,so is the network"

        one.says = Contribution()
        await one.the.settle(11.0)
        assert "taints" not in (await one.node()).get("spec", {})
        assert await one.reasons() == ["Starting", "NodeNotReady", "NodeReady"]


@pytest.mark.virtual_time
async def test_a_node_becomes_ready_soon_after_what_it_waited_for():
    async with kubelet() as one:
        one.says = Contribution(not_ready=("CSINode is not yet initialized",))
        async with one.running():
            await one.the.settle(5.0)
            assert not objects.is_condition_true(await one.node(), "Ready")
            one.says = Contribution()
            await one.the.settle(0.2)

            assert objects.is_condition_true(await one.node(), "Ready")


@pytest.mark.virtual_time
async def test_what_others_put_on_the_node_is_kept():
    async with kubelet() as one:
        async with one.running():
            await one.the.settle(0.5)
        changes = {"metadata": {"labels": {"other": "l"}, "annotations": {"other": "a"}}}
        await one.the.on.client().patch(NODE, ME, MergePatch(changes))
        foreign = {"type": "KernelDeadlock", "status": "False"}
        status = {"status": {"conditions": [foreign], "volumesAttached": [{"name": "v", "devicePath": ""}]}}
        await one.the.on.client().patch(NODE, ME, StrategicPatch(status), subresource="status")
        taint = {"key": "mine", "effect": "NoSchedule"}
        await one.the.on.client().patch(NODE, ME, MergePatch({"spec": {"taints": [taint], "unschedulable": True}}))
        one.machine = replace(MACHINE, cpus=4)
        async with one.running():
            await one.the.settle(12.0)

        node = await one.node()
        assert objects.labels(node)["other"] == "l"
        assert objects.annotations(node)["other"] == "a"
        assert node["spec"] == {"taints": [taint], "unschedulable": True}
        assert objects.condition(node, "KernelDeadlock") is not None
        assert node["status"]["volumesAttached"] == [{"name": "v", "devicePath": ""}]
        assert node["status"]["capacity"]["cpu"] == "4"


@pytest.mark.virtual_time
async def test_a_node_that_is_there_gets_the_labels_it_lacks():
    async with kubelet() as one:
        await one.the.on.client().create(
            NODE, {"metadata": {"name": NODE_NAME, "labels": {"kubernetes.io/os": "plan9"}}}
        )
        async with one.running():
            await one.the.settle(0.5)

        node = await one.node()
        assert objects.labels(node)["kubernetes.io/os"] == "linux"
        assert objects.annotations(node)[rules.ATTACH_ANNOTATION] == "true"
        assert one.made == []


@pytest.mark.virtual_time
async def test_a_status_that_does_not_change_is_written_every_five_minutes_and_no_more():
    async with kubelet() as one, one.running():
        await one.the.settle(1.0)
        versions = {objects.resource_version(await one.node())}
        for _ in range(100):
            await one.the.settle(10.0)
            versions.add(objects.resource_version(await one.node()))

        assert len(versions) == 1 + 3


@pytest.mark.virtual_time
async def test_volumes_in_use_are_told_and_what_was_told_is_heard():
    async with kubelet() as one, one.running() as registration:
        await one.the.settle(1.0)
        one.says = Contribution(volumes_in_use=("kubernetes.io/csi/d^2", "kubernetes.io/csi/d^1"))
        registration.report_soon()
        await one.the.settle(0.1)
        assert (await one.node())["status"]["volumesInUse"] == ["kubernetes.io/csi/d^1", "kubernetes.io/csi/d^2"]
        assert one.reported[-1]["status"]["volumesInUse"] == ["kubernetes.io/csi/d^1", "kubernetes.io/csi/d^2"]

        one.says = Contribution(volumes_in_use=())
        registration.report_soon()
        await one.the.settle(0.1)
        assert not (await one.node())["status"].get("volumesInUse")


@pytest.mark.virtual_time
async def test_a_part_can_add_a_condition_of_its_own_and_change_one_of_kubelet_s():
    async with kubelet() as one, one.running():
        pressure = Condition("DiskPressure", True, "KubeletHasDiskPressure", "kubelet has disk pressure")
        one.says = Contribution(conditions=(pressure, Condition("Tired", True, "Late", "it is late")))
        await one.the.settle(12.0)

        node = await one.node()
        assert objects.is_condition_true(node, "DiskPressure")
        assert objects.is_condition_true(node, "Tired")
        assert objects.is_condition_true(node, "Ready")


@pytest.mark.virtual_time
async def test_another_boot_is_told_in_an_event():
    async with kubelet() as one:
        async with one.running():
            await one.the.settle(0.5)
        one.machine = replace(MACHINE, boot_id="boot-2")
        async with one.running():
            await one.the.settle(0.5)

        [event] = [event for event in await one.the.events() if event["reason"] == "Rebooted"]
        assert event["note"] == f"Node {NODE_NAME} has been rebooted, boot id: boot-2"
        assert event["regarding"]["uid"] == NODE_NAME


@pytest.mark.virtual_time
async def test_a_node_that_somebody_deletes_is_made_anew():
    async with kubelet() as one, one.running() as registration:
        await one.the.settle(1.0)
        first = objects.uid(await one.node())
        await one.the.on.client().delete(NODE, ME)
        await one.the.settle(12.0)

        node = await one.node()
        assert objects.uid(node) != first
        assert objects.is_condition_true(node, "Ready")
        assert len(one.made) == 2
        assert objects.uid(await registration.node()) == objects.uid(node)
        await one.the.settle(12.0)
        assert objects.owner_references(await one.lease())[0]["uid"] == objects.uid(node)


@pytest.mark.virtual_time
async def test_drivers_stand_on_a_node_that_was_made_anew():
    async with kubelet() as one, one.running() as registration, one.the.watcher() as watcher:
        registration.when_made(lambda _node: watcher.node_was_made())
        one.the.make("a", Plugin("a.example.com", topology={"zone": "z"}))
        await one.the.settle(2.0)
        await one.the.on.client().delete(NODE, ME)
        await one.the.settle(15.0)

        node = await one.node()
        assert objects.labels(node)["zone"] == "z"
        [entry] = await one.the.csi_drivers()
        assert entry["name"] == "a.example.com"
        owners = objects.owner_references(await one.the.get(CSI_NODE))
        assert [owner["uid"] for owner in owners] == [objects.uid(node)]


# ---- the Lease -------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_the_lease_is_renewed_every_ten_seconds():
    async with kubelet() as one, one.running():
        times = []
        for _ in range(6):
            await one.the.settle(10.0)
            lease = await one.lease()
            times.append((read_time(lease["spec"]["renewTime"]) - START).total_seconds())

        gaps = [later - earlier for earlier, later in itertools.pairwise(times[1:])]
        assert gaps == pytest.approx([10.0] * 4, abs=0.1)
        assert (lease["spec"]["holderIdentity"], lease["spec"]["leaseDurationSeconds"]) == (NODE_NAME, 40)
        assert objects.owner_references(lease)[0]["uid"] == objects.uid(await one.node())


@pytest.mark.virtual_time
async def test_a_lease_that_is_deleted_or_written_by_somebody_is_ours_again():
    async with kubelet() as one, one.running():
        await one.the.settle(1.0)
        await one.the.on.client().delete(LEASE, MY_LEASE)
        await one.the.settle(11.0)
        assert (await one.lease())["spec"]["holderIdentity"] == NODE_NAME

        await one.the.on.client().patch(LEASE, MY_LEASE, MergePatch({"spec": {"holderIdentity": "me"}}))
        await one.the.settle(11.0)
        assert (await one.lease())["spec"]["holderIdentity"] == NODE_NAME


# ---- an API server that is away --------------------------------------------------------------------------------------


class Flaky:
    """Breaks every connection while it is down."""

    def __init__(self, one: Kubelet) -> None:
        self.server = one.the.on.server
        self.down = True

    async def answer(self, request: HttpRequest, user: Any) -> Any:
        if self.down:
            raise ConnectionBroken("the server is away")
        return await self.server.answer(request, user)


@pytest.mark.virtual_time
async def test_a_server_that_is_away_is_waited_for_and_its_return_is_noticed():
    async with kubelet() as one:
        server = Flaky(one)
        async with one.running(server):
            await one.the.settle(600.0)
            server.down = False
            await one.the.settle(60.0)
            assert objects.is_condition_true(await one.node(), "Ready")

            server.down = True
            await one.the.settle(600.0)
            server.down = False
            await one.the.settle(120.0)
            lease = await one.lease()
            assert one.the.clock.now().timestamp() - read_time(lease["spec"]["renewTime"]).timestamp() < 20


# ---- rules -----------------------------------------------------------------------------------------------------------

PARTS = st.lists(
    st.builds(
        Contribution,
        not_ready=st.lists(st.text(max_size=5), max_size=2).map(tuple),
        conditions=st.lists(
            st.builds(Condition, st.sampled_from(["A", "B", "DiskPressure"]), st.booleans(), st.text(), st.text()),
            max_size=2,
        ).map(tuple),
        volumes_in_use=st.none() | st.lists(st.text(max_size=3), max_size=3).map(tuple),
    ),
    max_size=3,
)


@given(PARTS, PARTS)
def test_a_status_says_nothing_new_exactly_when_the_parts_say_the_same(before: Any, after: Any):
    node = rules.new_node(SETTINGS, MACHINE, before, START)
    same = rules.status_of(node, SETTINGS, MACHINE, before, START.replace(year=2027))
    other = rules.status_of(node, SETTINGS, MACHINE, after, START.replace(year=2027))

    assert not rules.has_changed(node, same)
    if rules.ready_condition(before) != rules.ready_condition(after):
        assert rules.has_changed(node, other)


@given(PARTS, PARTS)
def test_a_condition_keeps_the_time_of_its_last_change(before: Any, after: Any):
    node = rules.new_node(SETTINGS, MACHINE, before, START)
    status = rules.status_of(node, SETTINGS, MACHINE, after, START.replace(year=2027))

    for condition in status["conditions"]:
        was = objects.condition(node, condition["type"])
        kept = was is not None and was["status"] == condition["status"]
        assert condition["lastTransitionTime"].startswith("2026" if kept else "2027")


@given(st.integers(0, 2**45), st.integers(0, 2**60))
def test_no_machine_gives_more_than_it_has(memory: int, disk: int):
    machine = replace(MACHINE, memory_bytes=memory, disk_bytes=disk)
    status = rules.status_of({}, SETTINGS, machine, [], START)

    for name in ("memory", "ephemeral-storage"):
        has, gives = (Quantity.parse(status[field][name]).value() for field in ("capacity", "allocatable"))
        assert 0 <= gives <= has
