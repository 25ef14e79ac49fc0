"""Find claims by uid, never older than our own writes, and remove the selected node from one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.client import KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM
from orlop.sidecars.provisioner.provisioner_settings import ApiObject

BY_UID: Final = "claims by uid"


class ClaimCache:
    def __init__(self, claims: Informer, *, kube: KubeClient, may_act: Callable[[], None]) -> None:
        """`claims` has the index `BY_UID`. `may_act` raises if this process has lost its lease."""
        self._claims = claims
        self._kube = kube
        self._may_act = may_act
        self._written: dict[str, str] = {}
        """resourceVersions of claims that we wrote, by uid, until the cache has them."""

    def forget(self, uid: str) -> None:
        self._written.pop(uid, None)

    def cached(self, uid: str) -> ApiObject | None:
        return next(iter(self._claims.cache.by_index(BY_UID, uid)), None)

    async def current(self, uid: str) -> ApiObject | None:
        """Return the cached claim, with our own last write."""
        if (version := self._written.get(uid)) is not None:
            # Wait for our own write: the older claim has the node that we removed, and would be provisioned for it.
            await self._claims.reached(version)
            self._written.pop(uid, None)
        return self.cached(uid)

    async def return_to_scheduler(self, claim: ApiObject) -> None:
        """Remove the selected node, so that the scheduler selects one again. By PUT, as upstream."""
        annotations = {key: value for key, value in objects.annotations(claim).items() if key != state.SELECTED_NODE}
        metadata = {**objects.metadata(claim), "annotations": annotations}
        self._may_act()
        written = await self._kube.replace(PERSISTENT_VOLUME_CLAIM, {**claim, "metadata": metadata})
        self._written[objects.uid(claim)] = objects.resource_version(written)
