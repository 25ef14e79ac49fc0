"""The cluster that every run of the provisioner in the explorer finds, and the driver in it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from onenode.apiserver.store.journal import JournalState, NoJournal
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import DEFAULT_LIMITS
from orlop.binding import claim_state_rules as state
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import (
    BUILT_IN,
    CSI_NODE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
)
from orlop.kube.kinds import NAMESPACE as NAMESPACE_KIND
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.volume_object_rules import DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, FINALIZER
from orlop.testing.driver_model import DriverFacts, DriverModel
from support.api.api_objects import csi_node, named
from support.api.api_servers import TestServer, api_server, api_server_on
from support.provisioning.provisioner_worlds import DRIVER, NAMESPACE

CANARY = "c4n4ry-of-the-secret"
CLAIM, CLASS, NODE_NAME = "data", "fast", "n1"
SOURCE = "source"
"""The name of a bound claim that can be cloned, of its PersistentVolume and of its volume."""
TOPOLOGY_KEY = "topology.example.com/node"
SECRETS = "csi.storage.k8s.io/provisioner-secret-"
Object = dict[str, Any]


def storage_class(parameters: dict[str, str], **fields: Any) -> Object:
    secrets = {f"{SECRETS}name": "s", f"{SECRETS}namespace": NAMESPACE}
    return named(CLASS, provisioner=DRIVER, parameters={**parameters, **secrets}, **fields)


_PREPARED: dict[bool, JournalState] = {}
"""What every run finds, with a claim to clone or without, made once: it takes as long as a run does."""
PREPARED_KINDS = (
    "namespaces", "clusterroles", "clusterrolebindings", "storageclasses", "csinodes", "nodes", "secrets",
    "persistentvolumes", "persistentvolumeclaims", "serviceaccounts",
)  # fmt: skip


@asynccontextmanager
async def prepared_cluster(clock: Clock, *, with_source: bool) -> AsyncIterator[tuple[TestServer, DriverModel]]:
    """Yield an API server with a class of late binding and a node with topology, and a driver on that node.

    `with_source`: there is a bound claim to clone.
    """
    if with_source not in _PREPARED:
        _PREPARED[with_source] = await _prepared(clock, with_source=with_source)
    store = ObjectStore(NoJournal(), _PREPARED[with_source], DEFAULT_LIMITS)
    model = DriverModel(DriverFacts(name=DRIVER), clock)
    if with_source:
        model.storage.add_volume(SOURCE, 1 << 30)
    try:
        async with api_server_on(store, clock) as on:
            yield on, model
    finally:
        await store.close()


async def _prepared(clock: Clock, *, with_source: bool) -> JournalState:
    async with api_server(clock) as on:
        client = on.client()
        await client.create(NAMESPACE_KIND, named(NAMESPACE))
        await client.create(SERVICE_ACCOUNT, {"metadata": {"name": "default", "namespace": NAMESPACE}})
        await client.create(SECRET, {"metadata": {"name": "s", "namespace": NAMESPACE}, "stringData": {"k": CANARY}})
        late = "WaitForFirstConsumer"
        await client.create(STORAGE_CLASS, storage_class({"tier": "hot"}, volumeBindingMode=late))
        driver = {"name": DRIVER, "nodeID": "id-1", "topologyKeys": [TOPOLOGY_KEY]}
        await client.create(CSI_NODE, csi_node(NODE_NAME, driver))
        labels = {TOPOLOGY_KEY: NODE_NAME}
        await client.create(NODE, {"metadata": {"name": NODE_NAME, "labels": labels}})
        if with_source:
            await _create_source(client)
        kinds = [kind for kind in BUILT_IN if kind.plural in PREPARED_KINDS]
        stored = [each for kind in kinds for each in on.store.list(kind.resource).items]
        return JournalState(on.store.revision, on.store.revision, {each.key: each for each in stored})


async def _create_source(client: KubeClient) -> None:
    """Create a bound claim to clone, and its volume."""
    modes, size = ["ReadWriteOnce"], {"storage": "1Gi"}
    spec = {"accessModes": modes, "resources": {"requests": size}, "storageClassName": CLASS, "volumeName": SOURCE}
    metadata = {"name": SOURCE, "namespace": NAMESPACE}
    claim = await client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})
    secret = {DELETION_SECRET_NAME: "s", DELETION_SECRET_NAMESPACE: NAMESPACE}
    volume = {
        "metadata": {
            "name": SOURCE,
            "finalizers": [FINALIZER],
            "annotations": {state.PROVISIONED_BY: DRIVER, **secret},
        },
        "spec": {
            "capacity": size,
            "accessModes": modes,
            "storageClassName": CLASS,
            "persistentVolumeReclaimPolicy": "Delete",
            "claimRef": {**metadata, "uid": objects.uid(claim)},
            "csi": {"driver": DRIVER, "volumeHandle": SOURCE},
        },
    }
    await client.create(PERSISTENT_VOLUME, volume)
    bound = MergePatch({"status": {"phase": "Bound"}})
    await client.patch(PERSISTENT_VOLUME, ObjectName(None, SOURCE), bound, subresource="status")
    await client.patch(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, SOURCE), bound, subresource="status")
