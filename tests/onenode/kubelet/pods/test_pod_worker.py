"""Pods run, end, are restarted and go, on virtual time, with a model of a machine."""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

import pytest

from orlop.kube.client import Selection
from orlop.kube.kinds import CONFIG_MAP, CORE_EVENT, POD, SECRET
from orlop.kube.objects import condition, is_being_deleted
from orlop.testing.kill_points import KillPoints, explore_kills
from support.api.api_objects import config_map, container, secret
from support.kubelet.running_pods import NODE, PodWorld

pytestmark = pytest.mark.virtual_time


def sh(script: str, name: str = "main", **rest: Any) -> dict[str, Any]:
    return container(name, command=["sh", "-c", script], **rest)


# ---- running ---------------------------------------------------------------------------------------------------------


async def test_a_pod_runs():
    async with PodWorld() as w, w.node():
        await w.make()
        await w.settle()
        found = await w.pod()

    assert found is not None
    status = found["status"]
    assert (status["phase"], status["hostIP"], status["podIP"]) == ("Running", "127.0.0.1", "127.0.0.1")
    (main,) = status["containerStatuses"]
    assert (main["ready"], main["started"], main["restartCount"]) == (True, True, 0)
    assert main["state"] == {"running": {"startedAt": status["startTime"]}}
    truths = {one["type"]: one["status"] for one in status["conditions"]}
    assert truths == dict.fromkeys(
        ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"), "True"
    )


async def test_a_status_names_its_generation_and_what_its_containers_were_started_with():
    asked = {"requests": {"cpu": "100m"}, "limits": {"cpu": "1"}}
    mounts = [{"name": "v", "mountPath": "/a"}, {"name": "v", "mountPath": "/b", "readOnly": True}]
    async with PodWorld() as w, w.node():
        main = sh("sleep 100000", resources=asked, volumeMounts=mounts)
        await w.make(containers=[main], volumes=[{"name": "v", "emptyDir": {}}])
        await w.settle()
        found = await w.pod()
        events = (await w.client.list(CORE_EVENT)).items

    assert found is not None
    status, (main,) = found["status"], found["status"]["containerStatuses"]
    assert status["observedGeneration"] == found["metadata"]["generation"] == 1
    assert (main["resources"], main["allocatedResources"]) == (asked, {"cpu": "100m"})
    assert [mount for mount in main["volumeMounts"] if mount["name"] == "v"] == [
        {"name": "v", "mountPath": "/a"},
        {"name": "v", "mountPath": "/b", "readOnly": True, "recursiveReadOnly": "Disabled"},
    ]
    paths = {event["reason"]: event["involvedObject"].get("fieldPath") for event in events}
    assert (paths["ImageNotPulled"], paths["Started"]) == (None, "spec.containers{main}")


async def test_a_pod_of_another_node_is_none_of_ours():
    async with PodWorld() as w, w.node():
        await w.make(nodeName="elsewhere")
        await w.settle(60)

        assert await w.phase() == "Pending"
        assert w.containers.all == []


async def test_a_pod_waits_for_its_volumes():
    async with PodWorld() as w, w.node():
        w.volumes.seconds = 30
        await w.make()
        await w.settle(20)
        waiting = await w.main_status()
        began = list(w.containers.began)
        await w.settle(20)

        assert waiting["state"] == {"waiting": {"reason": "ContainerCreating"}}
        assert began == []
        assert await w.phase() == "Running"


async def test_volumes_that_cannot_be_had_are_told_and_asked_for_again():
    async with PodWorld() as w, w.node():
        w.volumes.trouble = "unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: no"
        await w.make()
        await w.settle(5)
        told = await w.events()
        w.volumes.trouble = ""
        await w.settle(20)

        assert ("FailedMount", f"Unable to attach or mount volumes: {told_trouble()}") in told
        assert await w.phase() == "Running"


def told_trouble() -> str:
    return "unmounted volumes=[v], unattached volumes=[], failed to process volumes=[v]: no"


@pytest.mark.parametrize(
    ("policy", "script", "phase", "reason"),
    [
        ("Never", "exit 0", "Succeeded", "Completed"),
        ("Never", "exit 3", "Failed", "Error"),
        ("OnFailure", "exit 0", "Succeeded", "Completed"),
    ],
)
async def test_a_pod_that_has_ended_says_how(policy: str, script: str, phase: str, reason: str):
    async with PodWorld() as w, w.node():
        made = await w.make(script, restartPolicy=policy)
        await w.settle(5)
        status = await w.main_status()

        assert await w.phase() == phase
        assert status["state"]["terminated"]["reason"] == reason
        assert status["state"]["terminated"]["exitCode"] == int(script.split()[1])
        assert made["metadata"]["uid"] not in w.volumes.held


async def test_a_container_that_fails_is_restarted_ever_later():
    async with PodWorld() as w, w.node():
        await w.make("exit 1", restartPolicy="OnFailure")
        counts = []
        for _ in range(4):
            await w.settle(5)
            counts.append((await w.main_status())["restartCount"])
            await w.settle(5)
        await w.settle(400)
        status = await w.main_status()
        told = await w.events()

    assert counts == [1, 2, 2, 3]
    assert status["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    assert "back-off 5m0s restarting failed container=main pod=p_default(" in status["state"]["waiting"]["message"]
    assert status["lastState"]["terminated"]["exitCode"] == 1
    assert ("BackOff", "Back-off restarting failed container main in pod p") in told


async def test_the_back_off_of_a_crash_counts_from_the_end_of_the_container_and_not_from_its_start():
    """One that runs for longer than its back-off before it crashes would otherwise be restarted without any pause."""
    async with PodWorld() as w, w.node():
        await w.make("sleep 15; exit 1")
        await w.settle(32)  # both attempts without a pause have ended
        ended = await w.main_status()
        await w.settle(7)
        waiting = len(w.containers.began)
        await w.settle(3)

        assert (ended["restartCount"], ended["state"]["waiting"]["reason"]) == (1, "CrashLoopBackOff")
        assert waiting == 2
        assert len(w.containers.began) == 3


async def test_a_container_that_is_restarted_does_not_bring_its_init_containers_back():
    async with PodWorld() as w, w.node():
        await w.make("exit 1", initContainers=[sh("exit 0", "init")])
        await w.settle(60)
        names = [one.split("/")[1] for one in w.containers.began]

    assert names == ["init#0", "main#0", "main#1", "main#2", "main#3"]


async def test_always_also_restarts_what_succeeded():
    async with PodWorld() as w, w.node():
        await w.make("sleep 1; exit 0")
        await w.settle(5)

        assert await w.phase() == "Running"
        assert (await w.main_status())["restartCount"] == 1


async def test_init_containers_run_one_after_the_other_before_all_others():
    async with PodWorld() as w, w.node():
        init = [sh("sleep 10", "first"), sh("sleep 10", "second")]
        await w.make(initContainers=init, containers=[sh("sleep 1000", "a"), sh("sleep 1000", "b")])
        await w.settle(5)
        early = await w.status()
        await w.settle(30)
        late = await w.status()
        names = [one.split("/")[1] for one in w.containers.began]

    assert names == ["first#0", "second#0", "a#0", "b#0"]
    assert early["phase"] == "Pending"
    initialized = condition({"status": early}, "Initialized")
    assert initialized is not None
    assert initialized["message"] == "containers with incomplete status: [first second]"
    assert early["containerStatuses"][0]["state"] == {"waiting": {"reason": "PodInitializing"}}
    assert late["phase"] == "Running"
    assert [one["state"]["terminated"]["reason"] for one in late["initContainerStatuses"]] == ["Completed"] * 2


async def test_a_failed_init_container_fails_a_pod_that_is_never_restarted():
    async with PodWorld() as w, w.node():
        await w.make(initContainers=[sh("exit 2", "init")], restartPolicy="Never")
        await w.settle(60)

        assert await w.phase() == "Failed"
        assert len(w.containers.began) == 1


async def test_a_container_without_a_command_is_told_to_have_one():
    async with PodWorld() as w, w.node():
        await w.make(containers=[container("main")])
        await w.settle(60)
        waiting = (await w.main_status())["state"]["waiting"]
        told = await w.events()

        assert waiting["reason"] == "CreateContainerError"
        assert 'Set "command" of container "main"' in waiting["message"]
        assert ("Failed", f"Error: {waiting['message']}") in told
        assert await w.phase() == "Pending"


async def test_an_unknown_program_is_a_start_error():
    async with PodWorld() as w, w.node():
        await w.make(containers=[container("main", command=["nonsense"])], restartPolicy="Never")
        await w.settle(5)
        ended = (await w.main_status())["state"]["terminated"]

        assert await w.phase() == "Failed"
        assert (ended["exitCode"], ended["reason"]) == (128, "StartError")
        assert ended["message"] == 'exec: "nonsense": executable file not found in $PATH'


async def test_what_is_not_done_is_told_once():
    async with PodWorld() as w, w.node():
        probe = {"exec": {"command": ["true"]}}
        await w.make(containers=[sh("exit 1", livenessProbe=probe)])
        await w.settle(1000)
        told = await w.events()

    assert [note for reason, note in told if reason == "NotSupported"] == [
        "This pod asks for what is not done here: spec.containers{main}.livenessProbe."
    ]
    assert len([reason for reason, _ in told if reason == "ImageNotPulled"]) == 1


async def test_the_environment_comes_from_config_maps_and_secrets_when_they_are_there():
    async with PodWorld() as w, w.node():
        env = [
            {"name": "A", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}},
            {"name": "B", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}},
            {"name": "C", "value": "$(A) and $(NOTHING)"},
            {"name": "D", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        ]
        await w.make(containers=[sh("sleep 1000", env=env)])
        await w.settle(5)
        waiting = (await w.main_status())["state"]["waiting"]
        await w.client.create(CONFIG_MAP, config_map("c", k="from a map"), namespace="default")
        await w.client.create(SECRET, secret("s", k="hush-canary"), namespace="default")
        await w.settle(20)
        (running,) = w.containers.running()
        told = await w.events()

    assert waiting == {"reason": "CreateContainerConfigError", "message": 'configmap "c" not found'}
    found = dict(running.wanted.request.command.environment)
    assert (found["A"], found["B"], found["C"], found["D"]) == (
        "from a map",
        "hush-canary",
        "from a map and $(NOTHING)",
        "p",
    )
    assert "hush-canary" not in repr(told)
    assert "hush-canary" not in repr(w.on.told.entries)


# ---- deletion --------------------------------------------------------------------------------------------------------


async def test_a_deleted_pod_goes_when_its_containers_have_ended():
    async with PodWorld() as w, w.node():
        await w.make("trap 'exit 5' TERM; sleep 100000")
        await w.settle()
        await w.delete_pod()
        await w.settle()
        told = await w.events()

        assert await w.pod() is None
        assert w.containers.running() == []
        assert w.volumes.held == set()
        assert w.containers.logs == {}
    assert ("Killing", "Stopping container main") in told


async def test_a_container_that_does_not_listen_has_its_grace_period():
    async with PodWorld() as w, w.node():
        await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=20)
        await w.settle()
        await w.delete_pod()
        await w.settle(19)
        still = await w.pod()
        await w.settle(3)

        assert still is not None
        assert is_being_deleted(still)
        assert await w.pod() is None
        assert w.containers.all[0].code == 137


async def test_a_grace_period_can_be_shortened():
    async with PodWorld() as w, w.node():
        await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=1000)
        await w.settle()
        await w.delete_pod()
        await w.settle(5)
        await w.delete_pod(grace=2)
        await w.settle(3)

        assert await w.pod() is None


async def test_a_pod_whose_object_was_removed_by_force_is_ended_all_the_same():
    async with PodWorld() as w, w.node():
        await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=5)
        await w.settle()
        await w.delete_pod(grace=0)
        await w.settle(10)

        assert w.containers.running() == []
        assert w.volumes.held == set()


async def test_a_second_pod_of_the_name_begins_while_the_first_is_ending():
    async with PodWorld() as w, w.node():
        first = await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=30)
        await w.settle()
        await w.delete_pod(grace=0)
        second = await w.make()
        await w.settle(10)
        both = {one.wanted.pod_uid for one in w.containers.running()}
        await w.settle(40)

        assert both == {first["metadata"]["uid"], second["metadata"]["uid"]}
        assert [one.wanted.pod_uid for one in w.containers.running()] == [second["metadata"]["uid"]]
        assert await w.phase() == "Running"


async def test_a_pod_that_is_deleted_while_its_container_does_not_come_up_goes():
    async with PodWorld() as w, w.node():
        w.containers.start_seconds = 1_000_000
        made = await w.make()
        await w.settle(5)
        held = made["metadata"]["uid"] in w.volumes.held
        await w.delete_pod()
        await w.settle(5)

        assert held
        assert await w.pod() is None
        assert w.containers.began == []
        assert made["metadata"]["uid"] not in w.volumes.held


async def test_a_container_that_is_slow_to_come_up_runs():
    async with PodWorld() as w, w.node():
        w.containers.start_seconds = 30
        await w.make()
        await w.settle(20)
        before = await w.phase()
        await w.settle(20)

        assert (before, await w.phase()) == ("Pending", "Running")


async def test_a_pod_that_is_deleted_while_it_waits_for_volumes_goes():
    async with PodWorld() as w, w.node():
        w.volumes.seconds = 50
        await w.make()
        await w.settle(10)
        await w.delete_pod()
        await w.settle(100)

        assert await w.pod() is None
        assert w.containers.began == []


# ---- restarts of ours ------------------------------------------------------------------------------------------------


async def test_after_a_restart_of_ours_pods_begin_again_as_after_a_reboot():
    async with PodWorld() as w:
        async with w.node():
            await w.make()
            await w.settle()
        await w.settle(60)
        async with w.node():
            await w.settle()
            status = await w.main_status()

            assert await w.phase() == "Running"
    assert status["restartCount"] == 1
    assert (status["lastState"]["terminated"]["exitCode"], status["lastState"]["terminated"]["reason"]) == (
        255,
        "Unknown",
    )


async def test_after_a_restart_of_ours_a_pod_that_is_never_restarted_has_failed():
    async with PodWorld() as w:
        async with w.node():
            await w.make(restartPolicy="Never")
            await w.settle()
        async with w.node():
            await w.settle()

            assert await w.phase() == "Failed"
            assert w.containers.running() == []
            ended = (await w.main_status())["state"]["terminated"]

    assert (ended["exitCode"], ended["reason"]) == (255, "Unknown")
    assert ended["message"].startswith("The container ended with the node's process, which could not see how")


async def test_after_a_restart_of_ours_init_containers_run_once_more_before_the_others():
    """Nothing of the pod is left but its volumes, as after a reboot: what init containers prepare may be gone."""
    async with PodWorld() as w:
        async with w.node():
            await w.make(initContainers=[sh("exit 0", "first"), sh("exit 0", "second")])
            await w.settle()
        async with w.node():
            await w.settle()
            names = [one.split("/")[1] for one in w.containers.began]
            phase = await w.phase()

    assert names == ["first#0", "second#0", "main#0", "first#1", "second#1", "main#1"]
    assert phase == "Running"


@pytest.mark.parametrize(
    ("init", "main", "began"),
    [
        ([("exit 0", "a"), ("exit 0", "b")], "sleep 1000", ["a#0", "b#0", "main#0"]),
        ([("exit 0", "a"), ("sleep 1000", "b")], "sleep 1000", ["a#0", "b#0"]),
        ([("exit 0", "a"), ("exit 2", "b")], "sleep 1000", ["a#0", "b#0"]),
    ],
    ids=["a container ran", "an init container ran", "an init container failed"],
)
async def test_after_a_restart_of_ours_no_init_container_of_a_pod_that_is_never_restarted_runs_again(
    init: list[tuple[str, str]], main: str, began: list[str]
):
    async with PodWorld() as w:
        async with w.node():
            await w.make(main, restartPolicy="Never", initContainers=[sh(*one) for one in init])
            await w.settle()
        async with w.node():
            await w.settle(60)
            names = [one.split("/")[1] for one in w.containers.began]

            assert await w.phase() == "Failed"
    assert names == began


async def test_after_a_restart_of_ours_a_pod_that_never_got_past_its_init_containers_goes_on_with_the_next():
    async with PodWorld() as w:
        async with w.node():
            w.containers.start_seconds = 10.0
            await w.make("exit 0", restartPolicy="Never", initContainers=[sh("exit 0", "a"), sh("exit 0", "b")])
            await w.settle(15)  # the second is being started
        w.containers.start_seconds = 0.0
        async with w.node():
            await w.settle(60)
            names = [one.split("/")[1] for one in w.containers.began]

            assert await w.phase() == "Succeeded"
    assert names == ["a#0", "b#0", "main#0"]


async def test_after_a_restart_of_ours_what_succeeded_is_not_run_again_where_only_failures_are():
    async with PodWorld() as w:
        async with w.node():
            both = [sh("exit 0", "done"), sh("sleep 1000", "lost")]
            await w.make(restartPolicy="OnFailure", initContainers=[sh("exit 0", "init")], containers=both)
            await w.settle()
        async with w.node():
            await w.settle()
            names = [one.split("/")[1] for one in w.containers.began]

    assert names == ["init#0", "done#0", "lost#0", "init#1", "lost#1"]


async def test_a_pod_of_which_nothing_starts_after_a_restart_of_ours_is_not_told_of_images_again():
    async with PodWorld() as w:
        for _ in range(2):
            async with w.node():
                if await w.pod() is None:
                    await w.make(restartPolicy="Never")
                await w.settle()
        told = [reason for reason, _ in await w.events()]

    assert told.count("ImageNotPulled") == 1


@pytest.mark.parametrize("policy", ["Never", "OnFailure"])
async def test_after_a_restart_of_ours_what_has_finished_stays_finished(policy: str):
    """This holds for its init containers too: they run again only if a container is started after them."""
    async with PodWorld() as w:
        async with w.node():
            await w.make("exit 0", restartPolicy=policy, initContainers=[sh("exit 0", "init")])
            await w.settle()
        before = await w.status()
        assert before["phase"] == "Succeeded"
        async with w.node():
            await w.settle(60)

            assert await w.status() == before
            assert len(w.containers.began) == 2


async def test_many_pods_run_and_go():
    async with PodWorld() as w, w.node() as manager:
        for number in range(50):
            await w.make(name=f"p-{number}")
        await w.settle(5)
        found = await w.client.list(POD, Selection(fields=f"spec.nodeName={NODE}"))
        phases = {one["status"]["phase"] for one in found.items}
        for number in range(50):
            await w.delete_pod(f"p-{number}")
        await w.settle(5)
        left = await w.client.list(POD)

        assert phases == {"Running"}
        assert list(left.items) == []
        assert manager._workers == {}


@pytest.mark.timeout(900)
async def test_a_pod_killed_anywhere_in_its_life_ends_with_nothing_left():
    """The node is killed before and after each of its effects; its next life ends the pod all the same."""

    async def run(w: PodWorld, points: KillPoints) -> None:
        async with w.node(points):
            if await w.pod() is None and not w.containers.began:
                await w.make("sleep 3; exit 1", initContainers=[sh("sleep 1", "init")])
            await w.settle(30)
            if await w.pod() is not None:
                await w.delete_pod()
            await w.settle(60)

    async def check(w: PodWorld) -> None:
        assert await w.pod() is None
        assert w.containers.running() == []
        assert w.volumes.held == set()
        assert w.containers.logs == {}

    async with AsyncExitStack() as stack:

        async def build() -> PodWorld:
            await stack.aclose()  # the last world: all live on one clock, and each pass of it costs
            return await stack.enter_async_context(PodWorld())

        explored = await explore_kills(build, run, check, deaths=2 if os.environ.get("ORLOP_SOAK") else 1)

    assert explored.runs > 20
