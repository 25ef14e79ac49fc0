"""A model of the binder and of the protection of claims and volumes, for the explorer: short, and half a second late.

After each change it binds a claim to the volume that names it, releases a volume whose claim is gone, and removes the
finalizers of protection: a volume's when it is released, a claim's when no pod names it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Final

from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.binding import claim_state_rules as state
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, Kind
from orlop.kube.objects import ObjectName
from support.api.api_servers import TestServer

SECONDS_AFTER_A_CHANGE: Final = 0.5
Object = dict[str, Any]


def stored_objects(on: TestServer, kind: Kind) -> list[Object]:
    """Return all objects of a kind, from the store: a check must take no time."""
    kept = KindInStore(kind, kind)
    return [kept.kept_object(found) for found in on.store.list(kept.resource).items]


class BindingControllers:
    def __init__(self, on: TestServer, clock: Clock) -> None:
        self._on = on
        self._clock = clock
        self._client = on.client()

    async def run(self) -> None:
        while True:
            seen = self._on.store.revision
            await self._clock.sleep(SECONDS_AFTER_A_CHANGE)
            for volume in stored_objects(self._on, PERSISTENT_VOLUME):
                # Another process may have changed it meanwhile: that change starts the next round.
                with suppress(ApiError):
                    await self._bind(volume)
            for claim in stored_objects(self._on, PERSISTENT_VOLUME_CLAIM):
                with suppress(ApiError):
                    await self._release_claim(claim)
            # Not polled: the minute of rest after each act would take most of a history's time.
            await self._on.store.reached(seen + 1)

    async def _bind(self, volume: Object) -> None:
        reference, name = volume["spec"]["claimRef"], objects.name_of(volume)
        claims = stored_objects(self._on, PERSISTENT_VOLUME_CLAIM)
        claim = next((each for each in claims if objects.uid(each) == reference["uid"]), None)
        if claim is None:
            if volume["status"]["phase"] != "Released":
                await self._set_phase(PERSISTENT_VOLUME, name, "Released")
            if objects.is_being_deleted(volume):
                await self._remove_finalizer(PERSISTENT_VOLUME, volume, state.PV_PROTECTION)
            return
        if not state.volume_name(claim):
            bound = {**claim, "spec": {**claim["spec"], "volumeName": name.name}}
            await self._client.replace(PERSISTENT_VOLUME_CLAIM, bound)
        if volume["status"]["phase"] != "Bound":
            await self._set_phase(PERSISTENT_VOLUME, name, "Bound")
        if state.phase(claim) != "Bound":
            await self._set_phase(PERSISTENT_VOLUME_CLAIM, objects.name_of(claim), "Bound")

    async def _release_claim(self, claim: Object) -> None:
        volumes = [volume for pod in stored_objects(self._on, POD) for volume in pod["spec"].get("volumes", ())]
        used = {volume["persistentVolumeClaim"]["claimName"] for volume in volumes if "persistentVolumeClaim" in volume}
        if objects.is_being_deleted(claim) and objects.name(claim) not in used:
            await self._remove_finalizer(PERSISTENT_VOLUME_CLAIM, claim, state.PVC_PROTECTION)

    async def _remove_finalizer(self, kind: Kind, obj: Object, finalizer: str) -> None:
        if objects.has_finalizer(obj, finalizer):
            kept = [each for each in objects.finalizers(obj) if each != finalizer]
            await self._client.replace(kind, {**obj, "metadata": {**obj["metadata"], "finalizers": kept}})

    async def _set_phase(self, kind: Kind, name: ObjectName, phase: str) -> None:
        await self._client.patch(kind, name, MergePatch({"status": {"phase": phase}}), subresource="status")
