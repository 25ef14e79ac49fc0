"""A model of what Kubernetes and its users do with PersistentVolumes: binding, releasing, protecting, deleting.

As the facts of a real controller manager have it: a volume that is being deleted is never bound, a released one stays
Released, one whose claimRef is removed becomes Available again, and `pv-protection` leaves when it is not Bound.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count

from orlop.binding.claim_state_rules import BOUND_BY_CONTROLLER
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from support.api.api_servers import TestServer
from support.static_volumes.static_objects import Object, all_of
from support.static_volumes.worker_model import DiskModel

PROTECTION = "kubernetes.io/pv-protection"
_NUMBERS = count(1)


@dataclass
class ClaimModel:
    name: str
    uid: str = field(default_factory=lambda: f"claim-{next(_NUMBERS)}")
    volume: str = ""
    """The name of the PersistentVolume that it has."""


@dataclass
class KubernetesModel:
    on: TestServer
    client: KubeClient
    clock: Clock
    disks: Mapping[str, DiskModel]
    """By the name of their PersistentVolume."""
    claims: dict[str, ClaimModel] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    """By uid of a claim: the uid of the PersistentVolume that it had."""

    binds_silently: bool = False
    """As if a user had named the claim in the volume: the binder then leaves no annotation."""

    def want(self, name: str) -> None:
        """Create a claim, and a pod that writes to its volume as soon as it is bound."""
        self.claims[name] = ClaimModel(name)

    def unwant(self, name: str) -> None:
        self.claims.pop(name, None)

    async def run(self, every: float = 1.0) -> None:
        while True:
            for volume in all_of(self.on, PERSISTENT_VOLUME):
                with suppress(ApiError):
                    await self._reconcile(volume)
            await self.clock.sleep(every)

    async def _reconcile(self, volume: Object) -> None:
        phase, reference = volume["status"]["phase"], volume["spec"].get("claimRef") or {}
        live = {each.uid: each for each in self.claims.values()}
        if reference.get("uid"):
            if phase not in ("Released", "Failed") and reference["uid"] not in live:
                await self._set_phase(volume, "Released")
            elif phase in ("Pending", "Available"):
                await self._set_phase(volume, "Bound")
        elif phase != "Available":
            await self._set_phase(volume, "Available")
        elif not objects.is_being_deleted(volume):
            await self._bind(volume)
        if objects.is_being_deleted(volume) and phase != "Bound" and objects.has_finalizer(volume, PROTECTION):
            kept = [each for each in objects.finalizers(volume) if each != PROTECTION]
            await self._merge(volume, {"metadata": {"finalizers": kept}})

    async def _bind(self, volume: Object) -> None:
        claim = next((each for each in self.claims.values() if not each.volume), None)
        if claim is None:
            return
        reference = {"kind": "PersistentVolumeClaim", "namespace": "default", "name": claim.name, "uid": claim.uid}
        changes: Object = {"spec": {"claimRef": reference}}
        if not self.binds_silently:
            changes["metadata"] = {"annotations": {BOUND_BY_CONTROLLER: "yes"}}
        await self._merge(volume, changes)
        claim.volume = objects.name(volume)
        self.owners[claim.uid] = objects.uid(volume)
        if (disk := self.disks.get(objects.name(volume))) is not None:
            assert not disk.wiped_for, f"{claim.name} was bound to a disk that is being wiped"
            disk.data = claim.uid

    async def _set_phase(self, volume: Object, phase: str) -> None:
        await self._merge(volume, {"status": {"phase": phase}}, "status")

    async def _merge(self, volume: Object, changes: Object, subresource: str = "") -> None:
        version = {"resourceVersion": objects.resource_version(volume)}
        guarded = changes | {"metadata": {**version, **changes.get("metadata", {})}}
        name = ObjectName(None, objects.name(volume))
        await self.client.patch(PERSISTENT_VOLUME, name, MergePatch(guarded), subresource=subresource)
