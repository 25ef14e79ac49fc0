"""Volumes of Kubernetes' own kinds for pods, on virtual time: what a pod gets, what is told, what is left: nothing."""

from __future__ import annotations

import asyncio
import base64
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from onenode.host.payload_files import FileKind, FolderPermissions, HostPath
from onenode.kubelet.plain_volumes.plain_volume_work import PlainVolumeWork, host_path_limit
from onenode.kubelet.plain_volumes.plain_volumes import plain_volumes
from onenode.kubelet.plain_volumes.plain_volumes_rules import PlainKind, PlainVolume
from onenode.kubelet.plain_volumes.references import ReferenceReader
from onenode.kubelet.volumes.steps.subpaths import SubPathMount
from onenode.testing.fake_plain_volume_host import FakePlainVolumeHost
from orlop.kube.client import DeleteOptions, MergePatch
from orlop.kube.kinds import CONFIG_MAP, POD, SECRET, SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, uid
from orlop.testing.kill_points import KillPoints, explore_kills
from support.api.api_objects import config_map, container, secret
from support.kubelet.joined_nodes import ALLOCATABLE, Node, node_with_driver
from support.kubelet.volume_worlds import VolumeWorld

pytestmark = pytest.mark.virtual_time
Object = dict[str, Any]
AT_ONCE = DeleteOptions(grace_seconds=0)


async def make(node: Node, *volumes: Object, mounts: list[Object] | None = None, **spec: Any) -> Object:
    """A pod that mounts each volume at its name, and nothing else of the API."""
    used = mounts or [{"name": one["name"], "mountPath": f"/{one['name']}"} for one in volumes]
    one = container(command=["sleep", "100000"], volumeMounts=used)
    body = {"containers": [one], "volumes": list(volumes), "automountServiceAccountToken": False, **spec}
    return await node.make(**body)


def files(world: VolumeWorld, of: Object, kind: str, name: str) -> dict[str, bytes]:
    payload = world.machine.payloads[folder(of, kind, name)]
    return {"/".join(names): file.content for names, file in payload.items()}


def folder(of: Object, kind: str, name: str) -> tuple[str, ...]:
    return ("pods", uid(of), "volumes", f"kubernetes.io~{kind}", name)


async def failures(world: VolumeWorld) -> list[str]:
    return [event for event in await world.events() if event.startswith("FailedMount")]


async def test_every_pod_has_its_way_to_the_api():
    async with node_with_driver() as (node, world), node.running():
        made = await node.make()
        await node.settle()
        name = made["spec"]["volumes"][-1]["name"]
        found = files(world, made, "projected", name)
        (running,) = node.containers.running()

        assert await node.phase() == "Running"
        assert found == {"token": b"token-canary-1", "ca.crt": b"x", "namespace": b"default"}
        assert running.wanted.volumes[-1] == folder(made, "projected", name)
        assert running.wanted.request.root.volumes[-1].read_only
        assert world.machine.mounts.get(folder(made, "projected", name))

        await node.delete()
        await node.settle(3)
        assert world.left() == []
        assert world.machine.payloads == {}


async def test_each_kind_is_where_kubernetes_has_it_and_goes_with_its_pod():
    volumes: list[Object] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        {"name": "cm", "configMap": {"name": "c", "items": [{"key": "b", "path": "sub/b", "mode": 0o400}]}},
        {"name": "sec", "secret": {"secretName": "s", "defaultMode": 0o440}},
        {"name": "down", "downwardAPI": {"items": [{"path": "n", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"name": "host", "hostPath": {"path": "/srv/data", "type": "DirectoryOrCreate"}},
    ]
    async with node_with_driver() as (node, world), node.running():
        await world.client.create(CONFIG_MAP, config_map("c", a="1", b="2"), namespace="default")
        await world.client.create(SECRET, secret("s", key="canary"), namespace="default")
        made = await make(node, *volumes)
        await node.settle()
        (running,) = node.containers.running()
        mounted = {names[-2:] for names, stack in world.machine.mounts.items() if stack}

        assert running.wanted.volumes == (
            folder(made, "empty-dir", "disk"),
            folder(made, "empty-dir", "ram"),
            folder(made, "configmap", "cm"),
            folder(made, "secret", "sec"),
            folder(made, "downward-api", "down"),
            HostPath("/srv/data"),
        )
        assert [each.read_only for each in running.wanted.request.root.volumes] == [False] * 2 + [True] * 3 + [False]
        assert files(world, made, "configmap", "cm") == {"sub/b": b"2"}
        assert files(world, made, "secret", "sec") == {"key": b"canary"}
        assert files(world, made, "downward-api", "down") == {"n": b"p"}
        assert world.machine.payloads[folder(made, "secret", "sec")]["key",].mode == 0o440
        assert world.machine.payloads[folder(made, "configmap", "cm")]["sub", "b"].mode == 0o400
        assert world.machine.memory_sizes[folder(made, "empty-dir", "ram")] == 1 << 20
        assert mounted == {
            ("kubernetes.io~empty-dir", "ram"),
            ("kubernetes.io~secret", "sec"),
            ("kubernetes.io~downward-api", "down"),
        }
        assert world.machine.host_files["/srv/data"] is FileKind.FOLDER

        world.machine.kubelet_files.add((*folder(made, "empty-dir", "disk"), "of a tenant"))
        await node.delete()
        await node.settle(3)
        assert await node.is_gone()
        assert world.left() == []
        assert world.machine.host_files["/srv/data"] is FileKind.FOLDER
        shown = repr(world.log) + repr(await world.events())
        assert "canary" not in shown
        assert base64.b64encode(b"canary").decode() not in shown


@pytest.mark.parametrize(
    ("source", "why"),
    [
        ({"configMap": {"name": "nope"}}, 'configmap "nope" not found'),
        ({"secret": {"secretName": "nope"}}, 'secret "nope" not found'),
        (
            {"configMap": {"name": "c", "items": [{"key": "k", "path": "k"}]}},
            "configmap references non-existent config key: k",
        ),
        (
            {"secret": {"secretName": "s", "items": [{"key": "k", "path": "k"}]}},
            "references non-existent secret key: k",
        ),
        (
            {"projected": {"sources": [{"configMap": {"name": "nope"}}, {"secret": {"name": "nope"}}]}},
            '[configmap "nope" not found, secret "nope" not found]',
        ),
        (
            {"hostPath": {"path": "/srv/x", "type": "Directory"}},
            "hostPath type check failed: /srv/x is not a directory",
        ),
        ({"hostPath": {"path": "/", "type": "Socket"}}, "hostPath type check failed: / is not a socket file"),
    ],
    ids=["map", "secret", "map key", "secret key", "both", "folder", "socket"],
)
async def test_what_cannot_be_had_is_told_in_kubelets_words(source: Object, why: str):
    async with node_with_driver() as (node, world):
        async with node.running():
            await world.client.create(CONFIG_MAP, config_map("c", a="1"), namespace="default")
            await world.client.create(SECRET, secret("s", a="1"), namespace="default")
            await make(node, {"name": "v", **source})
            await node.settle(2)
            phase = await node.phase()
            await node.delete()
            await node.settle(3)

            assert await node.is_gone()
            assert world.left() == []
        assert phase == "Pending"
        assert set(await failures(world)) == {f'FailedMount: MountVolume.SetUp failed for volume "v" : {why}'}


async def test_a_pod_starts_as_soon_as_what_it_waits_for_comes():
    async with node_with_driver() as (node, world), node.running():
        made = await make(node, {"name": "v", "configMap": {"name": "late"}})
        await node.settle(5)
        before = await node.phase()
        await world.client.create(CONFIG_MAP, config_map("late", a="1"), namespace="default")
        await node.settle(5)

        assert (before, await node.phase()) == ("Pending", "Running")
        assert files(world, made, "configmap", "v") == {"a": b"1"}


async def test_what_is_optional_may_be_missing_and_comes_later():
    async with node_with_driver() as (node, world), node.running():
        made = await make(node, {"name": "v", "configMap": {"name": "late", "optional": True}})
        await node.settle(2)
        before = await node.phase(), files(world, made, "configmap", "v")
        await world.client.create(CONFIG_MAP, config_map("late", a="1"), namespace="default")
        await node.settle(110)

        assert before == ("Running", {})
        assert files(world, made, "configmap", "v") == {"a": b"1"}


async def test_changes_reach_a_pod_that_runs_within_a_sync_and_a_loss_leaves_its_files():
    volumes: list[Object] = [
        {"name": "cm", "configMap": {"name": "c"}},
        {"name": "sec", "secret": {"secretName": "s"}},
        {"name": "down", "downwardAPI": {"items": [{"path": "l", "fieldRef": {"fieldPath": "metadata.annotations"}}]}},
    ]
    async with node_with_driver() as (node, world):
        async with node.running():
            await world.client.create(CONFIG_MAP, config_map("c", a="1"), namespace="default")
            await world.client.create(SECRET, secret("s", a="1"), namespace="default")
            made = await make(node, *volumes)
            await node.settle(2)
            for kind, name, change in (
                (CONFIG_MAP, "c", {"data": {"a": None, "b": "2"}}),
                (SECRET, "s", {"data": {"a": base64.b64encode(b"2").decode()}}),
                (POD, "p", {"metadata": {"annotations": {"x": 'q"'}}}),
            ):
                await world.client.patch(kind, ObjectName("default", name), MergePatch(change))
            await node.settle(110)
            found = [
                files(world, made, *of) for of in (("configmap", "cm"), ("secret", "sec"), ("downward-api", "down"))
            ]
            await world.client.delete(CONFIG_MAP, ObjectName("default", "c"))
            await node.settle(110)

            assert found == [{"b": b"2"}, {"a": b"2"}, {"l": b'x="q\\""'}]
            assert files(world, made, "configmap", "cm") == {"b": b"2"}
            assert await node.phase() == "Running"
        assert (await failures(world))[0] == (
            'FailedMount: MountVolume.SetUp failed for volume "cm" : configmap "c" not found'
        )


async def test_a_token_is_renewed_at_four_fifths_of_its_life_and_bound_to_its_pod():
    token = {"serviceAccountToken": {"path": "t", "expirationSeconds": 1000, "audience": "vault"}}
    async with node_with_driver() as (node, world), node.running():
        made = await make(node, {"name": "v", "projected": {"sources": [token]}})
        await node.settle(700)
        before = files(world, made, "projected", "v")
        await node.settle(220)

        assert before == {"t": b"token-canary-1"}
        assert files(world, made, "projected", "v") == {"t": b"token-canary-2"}
        assert "token-canary" not in repr(world.log) + repr(await world.events())


async def test_a_token_that_cannot_be_had_is_told_without_one():
    async with node_with_driver() as (node, world):
        async with node.running():
            await node.make()
            await world.client.delete(SERVICE_ACCOUNT, ObjectName("default", "default"))
            await node.settle(3)
            name = (await world.client.get(POD, ObjectName("default", "p")))["spec"]["volumes"][-1]["name"]
        told = await failures(world)
        assert all("failed to fetch token: serviceaccounts" in each for each in told), (name, told)


async def test_a_group_and_a_user_get_what_they_need():
    sources = [{"serviceAccountToken": {"path": "t"}}, {"configMap": {"name": "c"}}]
    volumes: list[Object] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "ram", "emptyDir": {"medium": "Memory"}},
        {"name": "v", "projected": {"sources": sources}},
    ]
    async with node_with_driver() as (node, world), node.running():
        await world.client.create(CONFIG_MAP, config_map("c", a="1"), namespace="default")
        made = await make(node, *volumes, securityContext={"fsGroup": 2000, "runAsUser": 1000})
        await node.settle(2)
        payload = world.machine.payloads[folder(made, "projected", "v")]

        assert world.machine.access_of[folder(made, "empty-dir", "disk")] == FolderPermissions(0o2777, 2000)
        assert world.machine.access_of[folder(made, "empty-dir", "ram")] == FolderPermissions(0o3777, 2000)
        assert (payload["t",].mode, payload["t",].owner) == (0o600, 1000)
        assert (payload["a",].mode, payload["a",].owner) == (0o644, None)


async def test_parts_of_plain_volumes_are_mounted_and_unmounted_first():
    volumes: list[Object] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "cm", "configMap": {"name": "c"}},
        {"name": "host", "hostPath": {"path": "/srv"}},
    ]
    mounts = [{"name": each["name"], "mountPath": f"/{each['name']}", "subPath": "a"} for each in volumes]
    async with node_with_driver() as (node, world), node.running():
        await world.client.create(CONFIG_MAP, config_map("c", a="1"), namespace="default")
        made = await make(node, *volumes, mounts=mounts)
        await node.settle(2)
        (running,) = node.containers.running()
        targets = [("pods", uid(made), "volume-subpaths", one["name"], "main", str(n)) for n, one in enumerate(volumes)]

        assert list(running.wanted.volumes) == targets
        assert [bool(world.machine.mounts.get(each)) for each in targets] == [True] * 3
        assert [each.read_only for each in running.wanted.request.root.volumes] == [False, True, False]
        await node.delete()
        await node.settle(3)
        assert world.left() == []


async def test_other_volumes_can_be_mounted_inside_one_that_is_only_read():
    volumes: list[Object] = [{"name": "cm", "configMap": {"name": "c"}}, {"name": "disk", "emptyDir": {}}]
    mounts = [{"name": "cm", "mountPath": "/etc/x"}, {"name": "disk", "mountPath": "/etc/x/cache/deep"}]
    async with node_with_driver() as (node, world), node.running():
        await world.client.create(CONFIG_MAP, config_map("c", a="1"), namespace="default")
        made = await make(node, *volumes, mounts=mounts)
        await node.settle(2)

        assert (*folder(made, "configmap", "cm"), "cache", "deep") in world.machine.kubelet_folders


async def test_a_volume_in_use_is_waited_for_and_its_pod_stays_until_it_is_gone():
    async with node_with_driver() as (node, world), node.running():
        made = await make(node, {"name": "ram", "emptyDir": {"medium": "Memory"}})
        await node.settle(2)
        world.machine.busy.add(folder(made, "empty-dir", "ram"))
        await node.delete()
        await node.settle(10)
        was_gone = await node.is_gone()
        world.machine.busy.clear()
        await node.settle(20)

        assert not was_gone
        assert await node.is_gone()
        assert world.left() == []


@pytest.mark.parametrize("how", ["pod gone", "pod being deleted", "pod stays"])
async def test_what_an_earlier_life_left_is_found_by_its_folders(how: str):
    volumes: list[Object] = [
        {"name": "disk", "emptyDir": {}},
        {"name": "sec", "secret": {"secretName": "s"}},
        {"name": "host", "hostPath": {"path": "/srv"}},
    ]
    mounts = [
        {"name": "disk", "mountPath": "/disk"},
        {"name": "sec", "mountPath": "/s", "subPath": "a"},
        {"name": "host", "mountPath": "/h", "subPath": "a"},
    ]
    async with node_with_driver() as (node, world):
        async with node.running():
            await world.client.create(SECRET, secret("s", a="1"), namespace="default")
            made = await make(node, *volumes, mounts=mounts)
            await node.settle(2)
            world.machine.kubelet_files.add((*folder(made, "empty-dir", "disk"), "of a tenant"))
        if how == "pod gone":
            await world.client.delete(POD, ObjectName("default", "p"), AT_ONCE)
        if how == "pod being deleted":
            await node.delete()
        async with node.running():
            await node.settle(10)
            if how == "pod stays":
                assert await node.phase() == "Running"
                assert (*folder(made, "empty-dir", "disk"), "of a tenant") in world.machine.kubelet_files
                assert files(world, made, "secret", "sec") == {"a": b"1"}
                return
            assert await node.is_gone()
            assert world.left() == []


VOLUMES: list[Object] = [
    {"name": "ram", "emptyDir": {"medium": "Memory"}},
    {"name": "cm", "configMap": {"name": "kube-root-ca.crt"}},
]


async def live(world: VolumeWorld, points: KillPoints) -> None:
    """A kubelet's life: a pod has its volumes, and parts of them; it is deleted, and they go."""
    async with (
        world.manager(points, known=False),
        plain_volumes(
            world.api, world.disk, FakePlainVolumeHost(world.machine, points), ALLOCATABLE, world.parts.runtime
        ) as plain,
    ):
        pods = (await world.client.list(POD)).items
        plain.all_known([uid(pod) for pod in pods])
        for pod in pods:
            await plain.wait_ready(pod)
            await plain.mount_subpath(uid(pod), SubPathMount("ram", "main", 0, "a"))
            await world.client.delete(POD, ObjectName("default", "p"), AT_ONCE)
            await plain.let_go(uid(pod))
        await world.clock.sleep(200)  # as long as the longest delay: what is due is done by then


def check(world: VolumeWorld) -> None:
    assert world.left() == []
    assert world.machine.payloads == {}


async def test_killed_at_any_effect_nothing_is_left_once_it_is_back():
    async with AsyncExitStack() as stack:

        async def build() -> VolumeWorld:
            await stack.aclose()  # the last world: all live on one clock, and each pass of it costs
            world = await stack.enter_async_context(VolumeWorld())
            await world.pod("p", *VOLUMES, automountServiceAccountToken=False)
            return world

        explored = await explore_kills(build, live, check)

        assert len(explored.effects) > 15


async def test_host_paths_on_a_disk_that_hangs_leave_threads_for_everybody_else():
    async with VolumeWorld() as world, world.manager():
        looked_at: list[object] = []

        async def hangs(work: Any) -> Any:
            looked_at.append(work)
            await asyncio.Event().wait()

        disk, host, limit = replace(world.disk, in_thread=hangs), FakePlainVolumeHost(world.machine), host_path_limit()
        wanted = PlainVolume("h", PlainKind.HOST_PATH, {"path": "/mnt/dead"})
        pod = {"metadata": {"name": "p", "uid": "u"}}
        references = ReferenceReader(world.api.kube, ALLOCATABLE, world.parts.runtime)
        pods = [PlainVolumeWork(disk, host, limit, references, ALLOCATABLE, world.clock) for _ in range(40)]
        waiting = [asyncio.ensure_future(one.set_up(pod, wanted)) for one in pods]
        await world.clock.sleep(1)
        assert len(looked_at) == 4
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
