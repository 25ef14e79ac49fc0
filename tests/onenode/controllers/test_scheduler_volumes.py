"""Pods with late-binding claims: what is written, waited for and undone until they have their node; on virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orlop.kube.api_errors import ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import (
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
)
from orlop.kube.objects import annotations, uid
from orlop.testing.explorer.api_answers import refusal
from support.api.api_objects import attachment, csi_node
from support.scheduling.fake_binder import DRIVER, SELECTED
from support.scheduling.scheduling_worlds import SchedulingWorld, scheduling_world

pytestmark = pytest.mark.virtual_time
NO_PROVISIONER = "kubernetes.io/no-provisioner"
ROOM = {"cpu": "4", "memory": "8Gi", "pods": "110"}


async def claimed(w: SchedulingWorld, name: str = "c") -> dict[str, object]:
    return await w.find(PERSISTENT_VOLUME_CLAIM, name) or {}


async def test_a_claim_is_provisioned_on_the_node_of_its_pod():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()

        found = await claimed(w)
        assert await w.node_of() == "n1"
        assert annotations(found)[SELECTED] == "n1"
        assert await w.events() == ["Scheduled: Successfully assigned default/p to n1"]


async def test_a_free_volume_is_reserved_with_the_claims_uid_and_the_pod_goes_to_its_node():
    async with scheduling_world() as w:
        for name in ("n1", "n2"):
            await w.node(name)
        await w.late_class(provisioner=NO_PROVISIONER)
        await w.local_volume("v2", "n2")
        made = await w.claim()
        async with w.scheduling():
            await w.settle()
            await w.pod("p", "c")
            await w.settle()

        volume = await w.find(PERSISTENT_VOLUME, "v2") or {}
        assert await w.node_of() == "n2"
        assert volume["spec"]["claimRef"]["uid"] == uid(made)
        assert annotations(volume)["pv.kubernetes.io/bound-by-controller"] == "yes"
        assert SELECTED not in annotations(await claimed(w))


async def test_the_pod_is_not_bound_before_its_claims_are_and_at_once_then():
    async with scheduling_world(binds=False) as w:
        await w.node()
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(300)
            before = await w.node_of(), annotations(await claimed(w))[SELECTED]
            w.binder.wake()
            await w.settle(0.2)

            assert before == (None, "n1")
            assert await w.node_of() == "n1"


async def test_a_wait_of_ten_minutes_fails_and_the_pod_is_tried_again():
    async with scheduling_world(binds=False) as w:
        await w.node()
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(599)
            before = await w.events()
            await w.settle(3)
            why = await w.why()
            w.binder.wake()
            await w.settle(20)

        failed = 'running PreBind plugin "VolumeBinding": binding volumes: context deadline exceeded'
        assert before == []
        assert why == f"SchedulerError: {failed}"
        assert await w.node_of() == "n1"
        assert await w.events() == [f"FailedScheduling: {failed}", "Scheduled: Successfully assigned default/p to n1"]


async def test_a_node_that_the_provisioner_took_off_is_chosen_anew_with_growing_pauses():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class()
        await w.claim()
        w.binder.refuse["c"] = 3
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle(0.9)
            after_one = w.binder.refuse["c"]
            await w.settle(1.0)  # one second later the second
            after_two = w.binder.refuse["c"]
            await w.settle(1.0)
            still_two = w.binder.refuse["c"]
            await w.settle(1.0)  # two seconds later the third, and then four
            after_three = w.binder.refuse["c"]
            await w.settle(3.0)
            before = await w.node_of()
            await w.settle(2.0)

        failed = 'running PreBind plugin "VolumeBinding": binding volumes: provisioning failed for PVC "c"'
        assert (after_one, after_two, still_two, after_three, before) == (2, 1, 1, 0, None)
        assert await w.node_of() == "n1"
        assert f"FailedScheduling: {failed}" in await w.events()


async def test_a_pod_that_is_deleted_while_it_waits_frees_its_place():
    async with scheduling_world(binds=False) as w:
        await w.node(allocatable={**ROOM, "pods": "1"})
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            await w.pod("q")
            await w.settle()
            before = await w.node_of("q")
            await w.delete(POD, "p")
            await w.settle()

            assert before is None
            assert await w.node_of("q") == "n1"


async def test_two_pods_of_one_claim_go_to_one_node():
    async with scheduling_world() as w:
        for number in range(10):
            await w.node(f"n{number}", ROOM)
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            for name in ("p", "q", "r"):
                await w.pod(name, "c")
            await w.settle(5)

        assert len({await w.node_of(name) for name in ("p", "q", "r")}) == 1
        assert await w.node_of() is not None


async def test_after_a_restart_the_pod_returns_to_the_node_its_claim_was_given():
    async with scheduling_world(binds=False) as w:
        for number in range(10):
            await w.node(f"n{number}", ROOM)
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
        given = annotations(await claimed(w))[SELECTED]
        for number in range(10):  # now every other node is better
            if f"n{number}" == given:
                await w.pod("load", nodeName=given)
        async with w.scheduling():
            w.binder.wake()
            await w.settle(5)

        assert await w.node_of() == given


async def test_a_volume_that_somebody_else_takes_is_refused_to_the_pod_and_another_is_taken():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class(provisioner=NO_PROVISIONER)
        await w.local_volume("a", "n1")
        await w.local_volume("b", "n1", size="2Gi")
        await w.claim()
        async with w.scheduling():
            await w.settle()
            await w.merge(PERSISTENT_VOLUME, "a", {"spec": {"claimRef": {"namespace": "default", "name": "other"}}})
            await w.pod("p", "c")
            await w.settle(3)

        assert (await claimed(w))["spec"] is not None
        assert await w.node_of() == "n1"
        assert (await w.find(PERSISTENT_VOLUME, "b") or {})["spec"]["claimRef"]["name"] == "c"


async def test_a_pod_that_failed_leaves_its_place_to_others_while_it_backs_off():
    async with scheduling_world(binds=False) as w:
        await w.node(allocatable={**ROOM, "pods": "1"})
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            await w.pod("q")
            await w.settle()
            before = await w.node_of("q")
            await w.merge(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"annotations": {SELECTED: None, "a": "b"}}})
            await w.settle(0.5)

            assert before is None
            assert await w.node_of("q") == "n1"


# ---- when the binding of the pod is disturbed ------------------------------------------------------------------------


class DisturbedBindings:
    """A way to the API server on which the first binding of the pod `p` goes wrong."""

    def __init__(self, w: SchedulingWorld, *, lands_late: bool) -> None:
        self._inner = w.on.transport()
        self._clock = w.clock
        self._lands_late = lands_late
        self._tasks: list[asyncio.Task[object]] = []
        self.disturbed = 0

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        if not request.path.endswith("/pods/p/binding") or self.disturbed:
            return await self._inner.exchange(request, within)
        self.disturbed += 1
        if not self._lands_late:
            return refusal(409, "Conflict")
        self._tasks.append(asyncio.get_running_loop().create_task(self._land(request, within)))
        raise ConnectionBroken("the connection broke before the answer")

    async def _land(self, request: HttpRequest, within: float) -> None:
        await self._clock.sleep(0.5)
        await self._inner.exchange(request, within)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


async def test_a_pod_that_may_have_been_bound_keeps_its_place():
    async with scheduling_world() as w:
        await w.node(allocatable={**ROOM, "pods": "1"})
        way = DisturbedBindings(w, lands_late=True)
        async with w.scheduling(way):
            await w.pod("p")
            await w.settle(0.1)
            await w.pod("q")
            await w.settle(10)

        assert way.disturbed
        assert (await w.node_of("p"), await w.node_of("q")) == ("n1", None)


async def test_a_binding_that_is_refused_is_tried_again():
    async with scheduling_world() as w:
        await w.node()
        way = DisturbedBindings(w, lands_late=False)
        async with w.scheduling(way):
            await w.pod("p")
            await w.settle(5)

        assert way.disturbed
        assert await w.node_of("p") == "n1"


# ---- what wakes a pod ------------------------------------------------------------------------------------------------


async def test_a_pod_waits_for_its_claim_its_class_and_its_volume():
    async with scheduling_world() as w:
        await w.node()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            reasons = [await w.why()]
            await w.claim()
            await w.settle()
            reasons.append(await w.why())
            await w.late_class(provisioner=NO_PROVISIONER)
            await w.settle()
            reasons.append(await w.why())
            await w.local_volume("v", "n1")
            await w.settle()

        available = "Unschedulable: 0/1 nodes are available: "
        assert reasons == [
            f'{available}persistentvolumeclaim "c" not found.',
            f"{available}pod has unbound immediate PersistentVolumeClaims.",
            f"{available}1 node(s) didn't find available persistent volumes to bind.",
        ]
        assert await w.node_of() == "n1"


async def test_a_pod_waits_for_room_on_a_node_until_another_is_gone():
    async with scheduling_world() as w:
        await w.node(allocatable={"cpu": "1", "memory": "1Gi", "pods": "10"})
        one = [{"name": "main", "image": "i", "resources": {"requests": {"cpu": "600m"}}}]
        async with w.scheduling():
            await w.pod("p", containers=one)
            await w.settle()
            await w.pod("q", containers=one)
            await w.settle(600)
            why = await w.why("q")
            await w.delete(POD, "p")
            await w.settle(0.5)

        assert why == "Unschedulable: 0/1 nodes are available: 1 Insufficient cpu."
        assert await w.node_of("q") == "n1"


async def test_a_pod_waits_for_a_detach_where_the_node_is_at_its_limit():
    async with scheduling_world() as w:
        await w.node()
        await w.client.create(CSI_NODE, csi_node("n1", {"name": DRIVER, "nodeID": "n1", "allocatable": {"count": 1}}))
        await w.late_class()
        await w.local_volume("old", "n1")
        body = attachment("a", attacher=DRIVER, source={"persistentVolumeName": "old"})
        await w.client.create(VOLUME_ATTACHMENT, body)
        await w.claim("c", size="5Gi")
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            why = await w.why()
            await w.delete(VOLUME_ATTACHMENT, "a")
            await w.settle()

        assert why == "Unschedulable: 0/1 nodes are available: 1 node(s) exceed max volume count."
        assert await w.node_of() == "n1"


async def test_a_claim_for_one_pod_is_given_to_the_next_when_the_first_is_gone():
    async with scheduling_world() as w:
        await w.node()
        await w.late_class()
        await w.claim(accessModes=["ReadWriteOncePod"])
        async with w.scheduling():
            await w.pod("p", "c")
            await w.pod("q", "c")
            await w.settle(2)
            first, why = await w.node_of("p"), await w.why("q")
            await w.delete(POD, "p")
            await w.settle(2)

        assert why == (
            "Unschedulable: 0/1 nodes are available: 1 node(s) unavailable due to PersistentVolumeClaim with "
            "ReadWriteOncePod access mode already in-use by another pod."
        )
        assert first == "n1"
        assert await w.node_of("q") == "n1"


async def test_a_node_that_goes_while_claims_are_bound_fails_the_pod_and_another_node_is_tried():
    async with scheduling_world(binds=False) as w:
        await w.node()
        await w.late_class(provisioner=NO_PROVISIONER)
        await w.local_volume("v", "n1")
        await w.merge(PERSISTENT_VOLUME, "v", {"status": {"phase": "Available"}}, "status")
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            await w.delete(NODE, "n1")
            await w.settle(0.5)
            why = await w.why()
            await w.settle(5)

        assert why == (
            'SchedulerError: running PreBind plugin "VolumeBinding": binding volumes: failed to get node "n1": '
            'node "n1" not found'
        )
        assert await w.why() == "Unschedulable: no nodes available to schedule pods"


async def test_a_class_that_is_deleted_makes_its_claims_wait_for_nothing_new():
    async with scheduling_world(binds=False) as w:
        await w.node()
        await w.late_class()
        await w.claim()
        async with w.scheduling():
            await w.pod("p", "c")
            await w.settle()
            await w.delete(STORAGE_CLASS, "late")
            w.binder.wake()
            await w.settle()

        assert await w.node_of() == "n1"
