"""The objects that `orlop up` stores for our driver, so that nothing has to be applied by hand.

Two sorts. What belongs to this version of Orlop, such as the definitions of its kinds, is made as this version has it
at each start. What an admin may change, such as the CSIDriver, is created where it is missing, and otherwise left.
An object that is refused is logged, and the others are stored.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onenode.apiserver.access.rbac_rules import service_account_user
from onenode.processes.up_static import STATIC_CLASS
from orlop.binding.class_rules import NO_PROVISIONER
from orlop.foundation.structured_log import Log
from orlop.kube.api_errors import AlreadyExists, ApiError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import STORAGE_CLASS, Kind, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.records.cluster_objects import (
    NODE_ACCOUNT,
    SYSTEM_NAMESPACE,
    controller_access,
    csi_driver,
    labelled_object,
    namespace_object,
    node_access,
    storage_class,
)
from orlop.records.definitions import definitions
from orlop.records.node_policy import node_policy
from orlop.records.static_policy import STATIC_NAMESPACE, access_of_shared_processes, static_namespace


@dataclass(frozen=True, slots=True)
class StoredObject:
    """`is_ours`: changes of others are undone at the next start."""

    kind: Kind
    object: dict[str, Any]
    is_ours: bool = True

    @property
    def name(self) -> ObjectName:
        metadata = self.object["metadata"]
        return ObjectName(metadata.get("namespace"), metadata["name"])


def first_objects() -> list[StoredObject]:
    """Return what is stored before the kubelet begins: it judges volumes by the CSIDriver."""
    ours = [namespace_object(SYSTEM_NAMESPACE), *node_access(SYSTEM_NAMESPACE)]
    return [_stored(csi_driver(), is_ours=False), *map(_stored, ours)]


def drive_objects() -> list[StoredObject]:
    """Return what volumes on drives need, and what holds the node process to the objects of its own node.

    The policy comes first: definitions, with their rules, take most of the time. The class is the default one, so that
    a claim that names none works.
    """
    policy = node_policy(service_account_user(SYSTEM_NAMESPACE, NODE_ACCOUNT))
    ours = [*policy, *controller_access(SYSTEM_NAMESPACE), *definitions()]
    return [*map(_stored, ours), _stored(storage_class(is_default=True), is_ours=False)]


def static_objects() -> list[StoredObject]:
    """Return the additional objects for static volumes served by `orlop node` and `orlop controller`."""
    ours = [static_namespace(STATIC_NAMESPACE), *access_of_shared_processes(STATIC_NAMESPACE, SYSTEM_NAMESPACE)]
    return [*map(_stored, ours), _stored(static_class(), is_ours=False)]


def static_class() -> dict[str, Any]:
    """Return the StorageClass: its volumes are bound after the pod is scheduled, and wiped when they are released."""
    settings = {"volumeBindingMode": "WaitForFirstConsumer", "reclaimPolicy": "Delete"}
    return {**labelled_object(STORAGE_CLASS, STATIC_CLASS), "provisioner": NO_PROVISIONER, **settings}


async def store_objects(objects: Sequence[StoredObject], client: KubeClient, log: Log) -> None:
    for each in objects:
        try:
            await _store(each, client)
        except ApiError as error:
            log.warning("object not stored", kind=each.kind.kind, name=str(each.name), error=error.message)


async def _store(stored: StoredObject, client: KubeClient) -> None:
    with suppress(AlreadyExists):
        await client.create(stored.kind, stored.object)
        return
    if stored.is_ours:
        # A merge patch replaces lists as a whole, and keeps labels and annotations that others have added.
        await client.patch(stored.kind, stored.name, MergePatch(stored.object))


def _stored(obj: dict[str, Any], *, is_ours: bool = True) -> StoredObject:
    kind = kind_of_object(obj["apiVersion"], obj["kind"])
    if kind is None:
        raise ValueError(f"{obj['kind']} of {obj['apiVersion']} is no kind of this API server")
    return StoredObject(kind, obj, is_ours)
