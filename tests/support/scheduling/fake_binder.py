"""A small binder and provisioner beside the scheduler: completes what the scheduler chose, and checks it.

It binds a claim to the volume that was reserved for it, and makes a volume on the node that a claim was given to. Both
as Kubernetes' binder and a provisioner with topology do it, without any of their waits. `refuse` makes provisioning
fail: the node is taken off the claim. What must never happen is noted in `broken`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import AlreadyExists, Conflict, NotFound
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName, annotations, is_being_deleted, name_of, resource_version, uid

Object = dict[str, Any]
SELECTED = "volume.kubernetes.io/selected-node"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
DRIVER = "d.example"
HOST = "kubernetes.io/hostname"
BY_CLAIM = "volumes by the claim they are reserved for"


def _claim_keys(volume: Any) -> list[str]:
    return [str((volume["spec"].get("claimRef") or {}).get("uid") or "")]


@dataclass
class FakeBinder:
    client: KubeClient
    clock: Clock
    refuse: Counter[str] = field(default_factory=Counter)
    """By claim: how many more times provisioning fails."""
    is_asleep: bool = False
    """Does nothing, until `wake`."""
    broken: list[str] = field(default_factory=list)
    given: dict[str, str] = field(default_factory=dict)
    """By volume: the uid of the claim that it was reserved for first."""
    _news: asyncio.Event = field(default_factory=asyncio.Event)
    _changed: dict[ObjectName, None] = field(default_factory=dict)

    @asynccontextmanager
    async def binding(self) -> AsyncIterator[None]:
        async with (
            Informers(self.client, clock=self.clock, random=Random(7), log=silent_log()) as informers,
            informers.using(Watched(PERSISTENT_VOLUME_CLAIM)) as claims,
            informers.using(Watched(PERSISTENT_VOLUME)) as volumes,
        ):
            volumes.add_index(BY_CLAIM, _claim_keys)
            claims.add_listener(self._note)
            volumes.add_listener(self._note)
            task = asyncio.get_running_loop().create_task(self._bind_all(claims, volumes))
            try:
                yield
            finally:
                task.cancel()
                await asyncio.wait([task])
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error

    def wake(self) -> None:
        self.is_asleep = False
        self._news.set()

    def _note(self, name: ObjectName) -> None:
        self._changed[name] = None
        self._news.set()

    async def _bind_all(self, claims: Informer, volumes: Informer) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._changed and not self.is_asleep:
                name = next(iter(self._changed))
                del self._changed[name]
                with suppress(Conflict, NotFound, AlreadyExists):  # somebody else was faster: its event will come
                    see = self._see_claim if name.namespace else self._see_volume
                    await see(claims, volumes, name)

    async def _see_volume(self, claims: Informer, volumes: Informer, name: ObjectName) -> None:
        volume = volumes.get(name)
        if volume is None:
            return
        reference = volume["spec"].get("claimRef") or {}
        if not reference and volume["status"].get("phase") != "Available":
            await self._patch(PERSISTENT_VOLUME, name, {"status": {"phase": "Available"}}, "status")
        if reference.get("uid"):
            if self.given.setdefault(name.name, reference["uid"]) != reference["uid"]:
                self.broken.append(f"{name} was given to {self.given[name.name]} and to {reference['uid']}")
            await self._bind(claims.get(ObjectName(reference["namespace"], reference["name"])), volume)

    async def _bind(self, claim: Any, volume: Any) -> None:
        is_meant = claim is not None and uid(claim) == volume["spec"]["claimRef"]["uid"]
        if not is_meant or claim["spec"].get("volumeName"):
            return
        name = name_of(claim)
        await self._patch(PERSISTENT_VOLUME, name_of(volume), {"status": {"phase": "Bound"}}, "status")
        metadata = {"annotations": {BIND_COMPLETED: "yes"}, "resourceVersion": resource_version(claim)}
        await self._patch(
            PERSISTENT_VOLUME_CLAIM, name, {"metadata": metadata, "spec": {"volumeName": name_of(volume).name}}
        )
        await self._patch(PERSISTENT_VOLUME_CLAIM, name, {"status": {"phase": "Bound"}}, "status")

    async def _see_claim(self, claims: Informer, volumes: Informer, name: ObjectName) -> None:
        claim = claims.get(name)
        if claim is None or is_being_deleted(claim) or claim["spec"].get("volumeName"):
            return
        for volume in volumes.cache.by_index(BY_CLAIM, uid(claim)):
            await self._bind(claim, volume)
        if node := annotations(claim).get(SELECTED):
            await self._provision(claim, name, node)

    async def _provision(self, claim: Any, name: ObjectName, node: str) -> None:
        if self.refuse[name.name]:
            self.refuse[name.name] -= 1
            changed = {SELECTED: None, "volume.kubernetes.io/storage-provisioner": DRIVER}
            metadata = {"annotations": changed, "resourceVersion": resource_version(claim)}
            await self._patch(PERSISTENT_VOLUME_CLAIM, name, {"metadata": metadata})
            return
        await self.client.create(PERSISTENT_VOLUME, provisioned_volume(claim, node))

    async def _patch(self, kind: Any, name: ObjectName, changes: Object, subresource: str = "") -> None:
        await self.client.patch(kind, name, MergePatch(changes), subresource=subresource)


def provisioned_volume(claim: Any, node: str) -> Object:
    """As a provisioner makes it for a claim that has a node."""
    reference = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "namespace": claim["metadata"]["namespace"],
        "name": claim["metadata"]["name"],
        "uid": uid(claim),
    }
    expression = {"key": HOST, "operator": "In", "values": [node]}
    return {
        "metadata": {"name": f"pvc-{uid(claim)}", "annotations": {"pv.kubernetes.io/provisioned-by": DRIVER}},
        "spec": {
            "capacity": claim["spec"]["resources"]["requests"],
            "accessModes": claim["spec"]["accessModes"],
            "storageClassName": claim["spec"].get("storageClassName", ""),
            "csi": {"driver": DRIVER, "volumeHandle": uid(claim)},
            "claimRef": reference,
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}},
        },
    }
