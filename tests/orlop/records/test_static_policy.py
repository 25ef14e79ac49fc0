"""The accounts of worker and master on a server that enforces RBAC and the policy: each tries what is the other's."""

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
from orlop.kube.client import KubeClient, MergePatch, Selection
from orlop.kube.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    SECRET,
    Kind,
    kind_of_object,
)
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import new_object, part_of
from orlop.records.definitions import definitions
from orlop.records.node_policy import NODE_OF_TOKEN
from orlop.records.provisioner_status import (
    PROVISIONER_STATUS,
    DeleteOperation,
    ProvisionerSpec,
    ProvisionerStatusStatus,
)
from orlop.records.static_policy import MASTER_ACCOUNT, WORKER_ACCOUNT, master_access, worker_access, worker_policy

SPACE = "static"
MINE, OTHERS = ObjectName(SPACE, "n1"), ObjectName(SPACE, "n2")
OPERATION = {
    "uid": "u1",
    "persistentVolume": "local-pv-1",
    "volume": "local-pv-1",
    "storageClass": "fast",
    "entry": "disk1",
}
STATUS = {"localVolumes": [], "disks": 0}


def status_object(node: str, *operations: DeleteOperation, namespace: str = SPACE) -> dict[str, Any]:
    spec = ProvisionerSpec(node_name=node, delete_operations=operations)
    return new_object("ProvisionerStatus", node, spec, namespace=namespace)


@dataclass(frozen=True)
class Cluster:
    server: RunningServer
    admin: KubeClient
    worker: KubeClient
    """Of the node n1."""
    master: KubeClient


async def _create(client: KubeClient, obj: dict[str, Any]) -> None:
    kind = kind_of_object(obj["apiVersion"], obj["kind"])
    assert kind is not None
    await client.create(kind, obj)


@asynccontextmanager
async def cluster(*, with_all_rights: bool = False) -> AsyncIterator[Cluster]:
    """With all rights: RBAC permits workers everything, so that the policy alone refuses."""
    worker, master = (service_account_user(SPACE, account) for account in (WORKER_ACCOUNT, MASTER_ACCOUNT))
    async with api_server(SystemClock()) as server:
        admin = server.client()
        for space in (SPACE, "other"):
            await admin.create(NAMESPACE, {"metadata": {"name": space}})
        for definition in definitions():
            if definition["spec"]["names"]["kind"] == PROVISIONER_STATUS.kind:
                await admin.create(CUSTOM_RESOURCE_DEFINITION, definition)
        for obj in (*worker_policy(SPACE), *worker_access(SPACE), *master_access(SPACE)):
            await _create(admin, obj)
        for node in ("n1", "n2"):
            await admin.create(PROVISIONER_STATUS, status_object(node))
        if with_all_rights:
            rules = [{"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}]
            await admin.create(CLUSTER_ROLE, {"metadata": {"name": "all"}, "rules": rules})
            group = "rbac.authorization.k8s.io"
            binding = {
                "metadata": {"name": "all"},
                "subjects": [{"kind": "User", "name": worker, "apiGroup": group}],
                "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "all"},
            }
            await admin.create(CLUSTER_ROLE_BINDING, binding)
        of_worker = server.client(User(worker, extra={NODE_OF_TOKEN: ("n1",)}))
        yield Cluster(server, admin, of_worker, server.client(User(master)))


async def refusal(attempt: Any) -> str:
    with pytest.raises(ApiError) as caught:
        await attempt
    assert isinstance(caught.value, StatusError)
    return caught.value.message


async def state_of(admin: KubeClient) -> list[Any]:
    return list((await admin.list(PROVISIONER_STATUS)).items)


def requested(**changes: Any) -> JsonPatch:
    return JsonPatch().add("spec", "deleteOperations", "-", value=OPERATION | changes)


async def test_worker_and_master_write_what_is_theirs():
    async with cluster() as the:
        await the.admin.delete(PROVISIONER_STATUS, MINE)
        made = await the.worker.create(PROVISIONER_STATUS, status_object("n1"))
        assert part_of(made, "status", ProvisionerStatusStatus).local_volumes is None

        await the.worker.patch(PROVISIONER_STATUS, MINE, MergePatch({"status": STATUS}), subresource="status")
        await the.master.patch(PROVISIONER_STATUS, MINE, requested())
        begun = MergePatch({"status": {"deleteStatuses": [{"uid": "u1", "state": "InProgress"}]}})
        after = await the.worker.patch(PROVISIONER_STATUS, MINE, begun, subresource="status")
        assert part_of(after, "spec", ProvisionerSpec).delete_operations[0].entry == "disk1"
        assert part_of(after, "status", ProvisionerStatusStatus).local_volumes == ()
        assert part_of(after, "status", ProvisionerStatusStatus).delete_statuses[0].state == "InProgress"

        after = await the.master.patch(PROVISIONER_STATUS, MINE, JsonPatch().remove("spec", "deleteOperations", "0"))
        assert after["spec"] == {"nodeName": "n1", "deleteOperations": []}
        await the.master.delete(PROVISIONER_STATUS, OTHERS)


OF_WORKER = {
    "an operation on its own object": lambda client: client.patch(PROVISIONER_STATUS, MINE, requested()),
    "the labels of its own object": lambda client: client.patch(
        PROVISIONER_STATUS, MINE, MergePatch({"metadata": {"labels": {"a": "b"}}})
    ),
    "the status of another node": lambda client: client.patch(
        PROVISIONER_STATUS, OTHERS, MergePatch({"status": STATUS}), subresource="status"
    ),
    "an object for another node": lambda client: client.create(PROVISIONER_STATUS, status_object("n3")),
    "an object with an operation": lambda client: client.create(
        PROVISIONER_STATUS,
        status_object(
            "n1", DeleteOperation(uid="u", persistent_volume="a", volume="local-pv-1", storage_class="c", entry="e")
        ),
    ),
    "its own object deleted": lambda client: client.delete(PROVISIONER_STATUS, MINE),
    "all objects deleted": lambda client: client.delete_all(PROVISIONER_STATUS, Selection(SPACE)),
}


async def test_a_worker_can_do_nothing_else_with_the_rights_of_its_account():
    async with cluster() as the:
        before = await state_of(the.admin)
        for what, attempt in OF_WORKER.items():
            assert await refusal(attempt(the.worker)), what

        assert await state_of(the.admin) == before


async def test_the_policy_refuses_as_much_even_if_the_account_may_do_everything():
    async with cluster(with_all_rights=True) as the:
        before = await state_of(the.admin)
        for what, attempt in OF_WORKER.items():
            assert "denied request" in await refusal(attempt(the.worker)), what
        unbound = the.server.client(User(service_account_user(SPACE, WORKER_ACCOUNT)))
        assert "the token names no node" in await refusal(unbound.delete(PROVISIONER_STATUS, MINE))

        assert await state_of(the.admin) == before


OUT_OF_REACH: tuple[Kind, ...] = (PERSISTENT_VOLUME, NODE, SECRET)


@pytest.mark.parametrize("kind", OUT_OF_REACH, ids=lambda kind: kind.plural)
async def test_a_worker_reads_neither_volumes_nor_nodes(kind: Kind):
    async with cluster() as the:
        assert "cannot list resource" in await refusal(the.worker.list(kind))


async def test_a_worker_has_no_rights_in_other_namespaces():
    async with cluster() as the:
        attempt = the.worker.create(PROVISIONER_STATUS, status_object("n1", namespace="other"))
        assert "cannot create resource" in await refusal(attempt)


CHANGES = [{"entry": "disk2"}, {"storageClass": "slow"}, {"identity": "wwn:1"}, {"volume": "local-pv-2"}]


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
async def test_a_master_cannot_change_an_operation(change: dict[str, str]):
    async with cluster() as the:
        await the.master.patch(PROVISIONER_STATUS, MINE, requested())
        before = await state_of(the.admin)

        patch = MergePatch({"spec": {"deleteOperations": [OPERATION | change]}})
        assert "cannot be changed" in await refusal(the.master.patch(PROVISIONER_STATUS, MINE, patch))
        assert await state_of(the.admin) == before


async def test_a_master_cannot_write_the_status_of_a_node():
    async with cluster() as the:
        before = await state_of(the.admin)
        patch = MergePatch({"status": STATUS})
        assert "cannot patch resource" in await refusal(
            the.master.patch(PROVISIONER_STATUS, MINE, patch, subresource="status")
        )

        # On the object itself, a status is ignored.
        await the.master.patch(PROVISIONER_STATUS, MINE, patch)
        assert await state_of(the.admin) == before


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"entry": ".."}, "must be the name of a file, and no path"),
        ({"entry": "../disk1"}, "must be the name of a file, and no path"),
        ({"entry": "a/b"}, "must be the name of a file, and no path"),
        ({"entry": ""}, "spec.deleteOperations[0].entry"),
        ({"volume": "/dev/sda"}, "spec.deleteOperations[0].volume"),
        ({"uid": ""}, "spec.deleteOperations[0].uid"),
    ],
)
async def test_an_operation_is_never_a_path(change: dict[str, str], sentence: str):
    async with cluster() as the:
        assert sentence in await refusal(the.master.patch(PROVISIONER_STATUS, MINE, requested(**change)))


async def test_an_object_of_a_node_has_the_name_of_the_node():
    async with cluster() as the:
        obj = status_object("n3") | {"metadata": {"name": "other", "namespace": SPACE}}
        assert "the object of a node has the name of the node" in await refusal(
            the.admin.create(PROVISIONER_STATUS, obj)
        )
