"""Pods, volumes and drivers that mean harm: what they are refused, and that nobody else is harmed."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from orlop.kube.api_errors import ApiError, Invalid
from orlop.kube.kinds import PERSISTENT_VOLUME, POD
from orlop.kube.objects import uid
from orlop.testing.fake_host.machine import KUBELET_DIR
from support.api.api_objects import container, named
from support.api.api_objects import volume as persistent_volume
from support.host.remains import NOTHING
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER

pytestmark = pytest.mark.virtual_time
PUBLISH, UNPUBLISH = "NodePublishVolume", "NodeUnpublishVolume"
OTHER = "e.example"
SPEC: dict[str, Any] = {
    "attachRequired": False,
    "podInfoOnMount": True,
    "volumeLifecycleModes": ["Ephemeral", "Persistent"],
}
INLINE = {"name": "scratch", "csi": {"driver": DRIVER}}
FROM_OTHER = {"name": "scratch", "csi": {"driver": OTHER}}
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}


@asynccontextmanager
async def machine_with_driver() -> AsyncIterator[Machine]:
    async with journey_machine() as machine:
        for name in (DRIVER, OTHER):
            await machine.world.csi_driver(name, **SPEC)
        machine.start_driver()
        await machine.start_kubelet()
        await machine.settle()
        yield machine


async def notes(machine: Machine, reason: str) -> list[str]:
    return [event.partition(": ")[2] for event in await machine.world.events() if event.startswith(f"{reason}:")]


async def ends(machine: Machine, *names: str) -> None:
    for name in names:
        await machine.delete_pod(name)
        await machine.until_phase(GONE, name)
    await machine.settle(10)
    assert machine.remains() == NOTHING


# ---- names that lead elsewhere ---------------------------------------------------------------------------------------

UP = "../../../../etc"
MOUNT = {"name": "scratch", "mountPath": "/s"}


def pod_with(volume: Any = INLINE, mount: Any = MOUNT, name: str = "p", **more: Any) -> dict[str, Any]:
    one = container(command=["sleep", "1000"], volumeMounts=[mount], **more)
    return named(name, spec={"containers": [one], "volumes": [volume]})


@pytest.mark.parametrize(
    "body",
    [
        pod_with(name=".."),
        pod_with(name=UP),
        pod_with({**INLINE, "name": ".."}, {**MOUNT, "name": ".."}),
        pod_with({**INLINE, "name": UP}, {**MOUNT, "name": UP}),
        pod_with({"name": "scratch", "csi": {"driver": ".."}}),
        pod_with({"name": "scratch", "csi": {"driver": UP}}),
        pod_with({"name": "scratch", "csi": {"driver": DRIVER, "nodePublishSecretRef": {"name": UP}}}),
        pod_with({"name": "scratch", "persistentVolumeClaim": {"claimName": UP}}),
        pod_with(mount={**MOUNT, "subPath": ".."}),
        pod_with(mount={**MOUNT, "subPath": f"a/{UP}"}),
        pod_with(mount={**MOUNT, "subPath": "/etc"}),
        pod_with(mount={**MOUNT, "subPathExpr": "../x"}),
        pod_with(env=[{"name": "X", "valueFrom": {"configMapKeyRef": {"name": UP, "key": "k"}}}]),
        pod_with(envFrom=[{"secretRef": {"name": UP}}]),
    ],
    ids=lambda body: f"{body['metadata']['name'][:2]}-{body['spec']['volumes'][0]}"[:40],
)
async def test_a_pod_whose_names_lead_elsewhere_is_refused_or_waits_and_harms_nobody(body: dict[str, Any]):
    async with machine_with_driver() as machine:
        try:
            await machine.world.client.create(POD, body, namespace="default")
        except Invalid:
            return
        await machine.settle(30)
        assert machine.containers.began == []
        await machine.make_pod("q", INLINE)
        await machine.until_phase("Running", "q")  # nobody else is harmed
        assert all(".." not in request.target_path for request in machine.world.requests(PUBLISH))
        await ends(machine, "p", "q")


@pytest.mark.parametrize(
    ("name", "source"),
    [("..", {}), (UP, {}), ("v", {"driver": ".."}), ("v", {"driver": UP})],
    ids=["name", "path", "driver", "driver-path"],
)
async def test_a_persistent_volume_whose_names_lead_elsewhere_is_refused(name: str, source: dict[str, str]):
    async with machine_with_driver() as machine:
        made = persistent_volume(name, csi={"driver": DRIVER, "volumeHandle": "h1", **source})
        with pytest.raises(ApiError):
            await machine.world.client.create(PERSISTENT_VOLUME, made)


async def test_a_handle_that_is_a_path_leads_nowhere():
    async with machine_with_driver() as machine:
        await machine.world.bound_claim(handle=UP)
        made = await machine.make_pod("p", CLAIMED)
        await machine.until_phase("Running")
        (staged,), (published,) = machine.world.requests("NodeStageVolume"), machine.world.requests(PUBLISH)

        assert staged.volume_id == UP
        assert staged.staging_target_path.startswith(f"{KUBELET_DIR}/plugins/kubernetes.io/csi/{DRIVER}/")
        assert ".." not in staged.staging_target_path
        assert published.target_path == f"{KUBELET_DIR}/pods/{uid(made)}/volumes/kubernetes.io~csi/pv1/mount"
        await ends(machine, "p")


async def test_a_sub_path_that_leads_up_by_a_variable_is_refused_and_the_pod_can_still_be_deleted():
    async with machine_with_driver() as machine:
        variable = [{"name": "UP", "value": ".."}]
        one = container(
            command=["sleep", "1"], env=variable, volumeMounts=[{**MOUNT, "subPathExpr": "$(UP)/$(UP)/etc"}]
        )
        await machine.make_pod("p", INLINE, containers=[one])
        await machine.settle(10)
        (status,) = (await machine.get(POD, "p"))["status"]["containerStatuses"]

        assert status["state"]["waiting"]["reason"] == "CreateContainerConfigError"
        assert machine.containers.began == []
        await ends(machine, "p")


# ---- drivers that do not do what they should -------------------------------------------------------------------------


async def test_a_driver_that_never_answers_harms_no_pod_of_another_driver():
    async with machine_with_driver() as machine:
        machine.start_driver("e", OTHER, **{PUBLISH: [{"times": 0, "hang": True}]})
        await machine.settle()
        stuck = [f"stuck-{number}" for number in range(20)]
        for name in stuck:
            await machine.make_pod(name, FROM_OTHER)
        await machine.settle(5)
        before = machine.clock.elapsed()
        await machine.make_pod("p", INLINE)
        await machine.until_phase("Running")
        assert machine.clock.elapsed() - before < 1.0
        before = machine.clock.elapsed()
        await machine.delete_pod("p")
        await machine.until_phase(GONE)
        assert machine.clock.elapsed() - before < 2.0
        assert {await machine.phase(name) for name in stuck} == {"Pending"}

        await machine.settle(130)  # a step has two minutes
        assert "code = DeadlineExceeded" in (await notes(machine, "FailedMount"))[0]
        for name in stuck:
            await machine.delete_pod(name)
        machine.kill_driver("e")  # it says that it is busy for as long as it lives
        machine.start_driver("e", OTHER)
        for name in stuck:
            await machine.until_phase(GONE, name)
        await machine.settle(10)
        assert machine.remains() == NOTHING


async def test_a_driver_that_never_answers_while_it_registers_keeps_no_other_from_it():
    async with journey_machine() as machine:
        await machine.world.csi_driver(**SPEC)
        machine.start_driver("a", OTHER, NodeGetInfo=[{"times": 0, "hang": True}])
        machine.start_driver("d")
        await machine.start_kubelet()
        await machine.make_pod("p", INLINE)
        await machine.until_phase("Running")
        assert list((await machine.parts()).node.drivers) == [DRIVER]
        await ends(machine, "p")


async def test_a_driver_that_says_success_and_makes_nothing_is_not_believed():
    async with machine_with_driver() as machine:
        machine.world.targets.makes = False
        await machine.make_pod("p", INLINE)
        await machine.settle(30)
        assert await machine.phase() == "Pending"
        assert machine.containers.began == []
        assert (
            "answered NodePublishVolume with success, but there is nothing at"
            in ((await notes(machine, "FailedMount"))[0])
        )

        machine.world.targets.makes = True
        await machine.until_phase("Running")
        await ends(machine, "p")


async def test_a_driver_that_says_success_and_mounts_nothing_is_noticed():
    async with machine_with_driver() as machine:
        machine.world.targets.mounts = False
        await machine.make_pod("p", INLINE)
        await machine.until_phase("Running")
        await machine.settle(1)
        (told,) = await notes(machine, "VolumeNotAMountPoint")

        assert "what the pod writes there stays on the node's own disk" in told
        await ends(machine, "p")


async def test_of_two_plugins_that_claim_one_name_the_first_has_it_until_it_goes():
    async with machine_with_driver() as machine:
        second = machine.start_driver("second")
        await machine.make_pod("p", INLINE)
        await machine.until_phase("Running")
        await machine.settle(5)
        assert {registered for registered, _ in second.told} == {False}
        assert "Another driver with the same name is already registered" in second.told[0][1]

        machine.kill_driver("second")  # it was never registered: nothing goes with it
        machine.remove_driver("second")
        await machine.make_pod("q", INLINE)
        await machine.until_phase("Running", "q")

        second = machine.start_driver("second")
        await machine.settle(5)
        machine.kill_driver()
        machine.remove_driver()
        await machine.settle(130)  # as long as the one that was refused may wait
        assert second.told[-1] == (True, "")
        assert list((await machine.parts()).node.drivers) == [DRIVER]
        await machine.make_pod("r", INLINE)
        await machine.until_phase("Running", "r")
        await ends(machine, "p", "q", "r")
