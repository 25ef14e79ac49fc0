"""The account and the policy of nodes, on a server that enforces both: a node that tries everything else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import User, service_account_user
from onenode.testing.api_server import RunningServer, api_server
from orlop.foundation.clock import SystemClock
from orlop.kube.api_errors import ApiError, StatusError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NODE, PERSISTENT_VOLUME, SECRET, Kind, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import NODE_ACCOUNT, SYSTEM_NAMESPACE, cluster_objects
from orlop.records.drive import DRIVE, Allocation, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.node_policy import NODE_OF_TOKEN
from orlop.records.volume import VOLUME, DriveVolumeSpec

MINE, OTHERS = "6355041d-f9c6-4bd6-9335-f2bccbe73929", "7355041d-f9c6-4bd6-9335-f2bccbe73929"
NEW = "8355041d-f9c6-4bd6-9335-f2bccbe73929"
ACCOUNT = service_account_user(SYSTEM_NAMESPACE, NODE_ACCOUNT)
STATUS_OF = {
    DRIVE: {"state": "Ready"},
    VOLUME: {"phase": "Staged"},
    DRIVE_REQUEST: {"state": "Done"},
    NODE_DEVICES: {"count": 1},
}


def drive(name: str, node: str, **spec: Any) -> dict[str, Any]:
    return new_object("Drive", name, DriveSpec(node_name=node, type=DriveType.DISK, **spec))


def volume(name: str, node: str, drive_id: str) -> dict[str, Any]:
    spec = DriveVolumeSpec(
        drive=drive_id, node_name=node, bytes=1, backing="image", file_system="", volume_mode="Block"
    )
    return new_object("Volume", name, spec)


def request(name: str, node: str) -> dict[str, Any]:
    return new_object("DriveRequest", name, DriveRequestSpec(node_name=node, adopt=True))


def devices(node: str) -> dict[str, Any]:
    return new_object("NodeDevices", node, NodeDevicesSpec(node_name=node))


OBJECTS = [
    (DRIVE, drive(MINE, "n1")),
    (DRIVE, drive(OTHERS, "n2")),
    (VOLUME, volume("mine", "n1", MINE)),
    (VOLUME, volume("others", "n2", OTHERS)),
    (DRIVE_REQUEST, request("mine", "n1")),
    (DRIVE_REQUEST, request("others", "n2")),
    (NODE_DEVICES, devices("n1")),
    (NODE_DEVICES, devices("n2")),
]
OF_MINE = {DRIVE: MINE, VOLUME: "mine", DRIVE_REQUEST: "mine", NODE_DEVICES: "n1"}
OF_OTHERS = {DRIVE: OTHERS, VOLUME: "others", DRIVE_REQUEST: "others", NODE_DEVICES: "n2"}


def node_user(node: str | None, *groups: str) -> User:
    return User(ACCOUNT, groups, extra=None if node is None else {NODE_OF_TOKEN: (node,)})


@dataclass(frozen=True)
class Cluster:
    server: RunningServer
    admin: KubeClient
    node: KubeClient
    """The process of the node n1."""


@asynccontextmanager
async def cluster(*, with_all_rights: bool = False) -> AsyncIterator[Cluster]:
    """With all rights: RBAC permits the account everything, so that the policy alone refuses."""
    async with api_server(SystemClock()) as server:
        admin = server.client()
        for obj in cluster_objects():
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            await admin.create(kind, obj)
        for kind, obj in OBJECTS:
            await admin.create(kind, obj)
        if with_all_rights:
            role = {"rules": [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]}
            await admin.create(CLUSTER_ROLE, {"metadata": {"name": "all"}, **role})
            subject = {"kind": "User", "name": ACCOUNT, "apiGroup": "rbac.authorization.k8s.io"}
            reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"}
            binding = {"metadata": {"name": "all"}, "roleRef": reference, "subjects": [subject]}
            await admin.create(CLUSTER_ROLE_BINDING, binding)
        yield Cluster(server, admin, server.client(node_user("n1")))


async def refusal(attempt: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await attempt
    assert isinstance(caught.value, StatusError)
    assert caught.value.code == 403
    return caught.value.message


async def state_of(admin: KubeClient) -> list[Any]:
    return [(await admin.list(kind)).items for kind in (DRIVE, VOLUME, DRIVE_REQUEST, NODE_DEVICES)]


async def test_a_node_creates_and_reports_what_is_its_own():
    async with cluster() as the:
        await the.admin.delete(NODE_DEVICES, ObjectName(None, "n1"))

        await the.node.create(NODE_DEVICES, devices("n1"))
        await the.node.create(DRIVE, drive(NEW, "n1"))
        for kind, name in OF_MINE.items():
            patch = MergePatch({"status": STATUS_OF[kind]})
            made = await the.node.patch(kind, ObjectName(None, name), patch, subresource="status")
            assert made["status"] == STATUS_OF[kind]


async def test_a_node_reads_the_objects_that_it_works_on():
    async with cluster() as the:
        for kind in OF_MINE:
            assert len((await the.node.list(kind)).items) == 2


OTHER_RESOURCES = (SECRET, NODE, PERSISTENT_VOLUME)


@pytest.mark.parametrize("kind", OTHER_RESOURCES, ids=lambda kind: kind.plural)
async def test_a_node_reads_nothing_else(kind: Kind):
    async with cluster() as the:
        assert "cannot list resource" in await refusal(the.node.list(kind))


ATTEMPTS = {
    "a drive with an allocation": lambda client: client.create(
        DRIVE, drive(NEW, "n1", allocations=(Allocation(volume="v", bytes=1),))
    ),
    "a drive that is being removed": lambda client: client.create(DRIVE, drive(NEW, "n1", removing=True)),
    "a drive of another node": lambda client: client.create(DRIVE, drive(NEW, "n2")),
    "the devices of another node": lambda client: client.create(NODE_DEVICES, devices("n3")),
    "a volume": lambda client: client.create(VOLUME, volume("new", "n1", MINE)),
    "a request": lambda client: client.create(DRIVE_REQUEST, request("new", "n1")),
    **{
        f"the status of another node's {kind.kind}": lambda client, kind=kind: client.patch(
            kind, ObjectName(None, OF_OTHERS[kind]), MergePatch({"status": STATUS_OF[kind]}), subresource="status"
        )
        for kind in OF_OTHERS
    },
    **{
        f"the labels of its own {kind.kind}": lambda client, kind=kind: client.patch(
            kind, ObjectName(None, OF_MINE[kind]), MergePatch({"metadata": {"labels": {"a": "b"}}})
        )
        for kind in OF_MINE
    },
    "an allocation on its own drive": lambda client: client.patch(
        DRIVE, ObjectName(None, MINE), MergePatch({"spec": {"allocations": [{"volume": "v", "bytes": 1}]}})
    ),
    "the tier of its own drive": lambda client: client.patch(
        DRIVE, ObjectName(None, MINE), MergePatch({"spec": {"tier": "hot"}})
    ),
    "the erasure of its own volume": lambda client: client.patch(
        VOLUME, ObjectName(None, "mine"), MergePatch({"spec": {"erase": True}})
    ),
    "the erasure of another's volume": lambda client: client.patch(
        VOLUME, ObjectName(None, "others"), MergePatch({"spec": {"erase": True}})
    ),
    "the finalizers of its own volume": lambda client: client.patch(
        VOLUME, ObjectName(None, "mine"), MergePatch({"metadata": {"finalizers": None}})
    ),
    **{
        f"the deletion of {whose} {kind.kind}": lambda client, kind=kind, name=name: client.delete(
            kind, ObjectName(None, name)
        )
        for whose, names in (("its own", OF_MINE), ("another's", OF_OTHERS))
        for kind, name in names.items()
    },
    "the deletion of all drives": lambda client: client.delete_all(DRIVE),
    "the policy": lambda client: client.patch(
        kind_of_policy(), ObjectName(None, "orlop-node-objects"), MergePatch({"spec": {"matchConditions": None}})
    ),
}


def kind_of_policy() -> Kind:
    kind = kind_of_object("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy")
    assert kind is not None
    return kind


async def test_a_node_can_do_nothing_else_with_the_rights_of_its_account():
    async with cluster() as the:
        before = await state_of(the.admin)
        for what, attempt in ATTEMPTS.items():
            assert await refusal(attempt(the.node)), what

        assert await state_of(the.admin) == before


async def test_the_policy_refuses_as_much_even_if_the_account_may_do_everything():
    async with cluster(with_all_rights=True) as the:
        before = await state_of(the.admin)
        for what, attempt in ATTEMPTS.items():
            if what != "the policy":  # no policy judges policies: only RBAC keeps them
                assert "'orlop-node-objects' denied request" in await refusal(attempt(the.node)), what

        assert await state_of(the.admin) == before


REASONS = [
    ("a drive of another node", "the object is of the node n2, and the token of the node n1"),
    (
        "a volume",
        "a node creates its Drives, its NodeDevices and its ProvisionerStatus, and changes nothing but status",
    ),
    (
        "the deletion of its own Drive",
        "a node creates its Drives, its NodeDevices and its ProvisionerStatus, and changes nothing but status",
    ),
    ("a drive with an allocation", "a node creates a Drive without allocations: the controller restores them"),
]


async def test_a_refusal_has_its_reason():
    async with cluster(with_all_rights=True) as the:
        for what, reason in REASONS:
            assert (await refusal(ATTEMPTS[what](the.node))).endswith(f"denied request: {reason}")


@pytest.mark.parametrize("extra", [None, {}, {NODE_OF_TOKEN: ("",)}], ids=["no extra", "no node", "an empty node"])
async def test_a_token_that_names_no_node_writes_nothing(extra: Any):
    async with cluster(with_all_rights=True) as the:
        unbound = the.server.client(User(ACCOUNT, extra=extra))

        why = await refusal(unbound.create(DRIVE, drive(NEW, "n1")))
        assert why.endswith("the token names no node: the process of a node needs the token of its own pod")
        patch = MergePatch({"status": {"state": "Lost"}})
        assert await refusal(unbound.patch(DRIVE, ObjectName(None, MINE), patch, subresource="status"))


async def test_the_policy_judges_nobody_else():
    async with cluster() as the:
        await the.admin.patch(DRIVE, ObjectName(None, OTHERS), MergePatch({"spec": {"tier": "hot"}}))
        await the.admin.delete(VOLUME, ObjectName(None, "mine"))


async def test_applying_everything_again_changes_nothing():
    async with api_server(SystemClock()) as server:
        client = server.client()
        for obj in cluster_objects(is_default_class=True):
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            name = ObjectName(obj["metadata"].get("namespace"), obj["metadata"]["name"])
            made = await client.create(kind, obj)
            again = await client.patch(kind, name, MergePatch(obj))
            assert again["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"], name
