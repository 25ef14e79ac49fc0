"""Delete the claims of static volumes whose node is gone, after a delay. Off unless a delay is set.

As the node cleanup controller of local-static-provisioner, under its event and metrics: only a claim that still has the
volume, and that the volume still names by uid. The volume itself stays, and is wiped if the node ever comes back.

A node is missing since this process first saw that; a process that takes over waits for the whole delay again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import Object, ObjectName
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_view import MasterView
from orlop.static_pv.static_volume_rules import StaticVolume

PERIOD_SECONDS: Final = 10.0


class LostClaims:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        view: MasterView,
        delay: float,
        *,
        runtime: Runtime,
        kube: KubeClient,
        events: EventRecorder,
        metrics: MasterMetrics,
        may_act: Callable[[], None],
    ) -> None:
        self._view = view
        self._delay = delay
        self._clock = runtime.clock
        self._log = runtime.log
        self._kube = kube.guarded(may_act)
        self._events = events
        self._metrics = metrics
        self._lost_since: dict[str, float] = {}
        """By uid of the volume: since when its node is missing, in elapsed time."""

    async def run(self) -> None:
        await self._view.wait_synced()
        while True:
            await self.check()
            await self._clock.sleep(PERIOD_SECONDS)

    async def check(self) -> None:
        """Note the volumes of missing nodes, and delete the claims of those that were noted long enough ago."""
        lost = {each.uid: each for each in self._lost()}
        now = self._clock.elapsed()
        self._lost_since = {uid: self._lost_since.get(uid, now) for uid in lost}
        for uid, volume in lost.items():
            if self._lost_since[uid] == now:
                self._warn(volume)
            if now - self._lost_since[uid] >= self._delay:
                try:
                    await self._delete_claim(volume)
                except ApiError as error:
                    self._metrics.claim_not_deleted()
                    self._log.warning("claim of lost node not deleted", claim=volume.claim, error=error)

    def _lost(self) -> list[StaticVolume]:
        found = []
        for node in sorted(self._view.known_nodes()):
            if self._view.nodes.get(ObjectName(None, node)) is None:
                found += [each.facts for each in self._view.volumes_of(node).values() if each.facts.is_bound]
        return found

    def _warn(self, volume: StaticVolume) -> None:
        namespace, _, name = volume.claim.partition("/")
        kind = PERSISTENT_VOLUME_CLAIM
        self._events.warning(
            ObjectReference(kind.api_version, kind.kind, name, namespace, volume.claim_uid),
            "ReferencedNodeDeleted",
            f"PVC is tied to a deleted Node. PVC will be cleaned up in {self._delay:g}s if the Node doesn't come back",
        )

    async def _delete_claim(self, volume: StaticVolume) -> None:
        claim = await self._claim_of(volume)
        # The cache of Nodes may lag behind.
        if claim is None or await self._is_there(volume.node):
            return
        name = objects.name_of(claim)
        try:
            await self._kube.delete(PERSISTENT_VOLUME_CLAIM, name, DeleteOptions(uid=volume.claim_uid))
        except NotFound:
            return
        self._metrics.claim_deleted()
        self._log.info("claim of lost node deleted", claim=str(name), node=volume.node, volume=volume.name)

    async def _claim_of(self, volume: StaticVolume) -> Object | None:
        """Return the claim, if volume and claim still name each other and it is not being deleted."""
        try:
            claim = await self._kube.get(PERSISTENT_VOLUME_CLAIM, ObjectName.parse(volume.claim))
        except NotFound:
            return None
        is_bond = claim["spec"].get("volumeName") == volume.name and objects.uid(claim) == volume.claim_uid
        return claim if is_bond and not objects.is_being_deleted(claim) else None

    async def _is_there(self, node: str) -> bool:
        try:
            await self._kube.get(NODE, ObjectName(None, node))
        except NotFound:
            return False
        return True
