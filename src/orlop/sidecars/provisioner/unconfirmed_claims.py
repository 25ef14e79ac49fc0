"""Know which cached claims may be gone already, and confirm them with the API server before a new order.

The caches of claims and of PersistentVolumes are updated independently. A claim that was provisioned, and deleted with
its PersistentVolume, may still be in the cache when the PersistentVolume is not: it then looks as if it was never
provisioned, and CreateVolume would be called for it again. Two kinds of claims can look so:

- those found at the start: their PersistentVolumes may have been deleted between the lists of claims and of volumes;
- those whose order this process has finished, until the cache shows them bound.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from orlop.kube import objects
from orlop.kube.api_errors import ApiError, NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM
from orlop.sidecars.provisioner.provisioner_settings import ApiObject
from orlop.sidecars.provisioner.volume_order_rules import why_not_wanted

LISTED_FOR_ONE: Final = 20
"""Reading this many claims in a list costs about as much as reading one claim alone."""


class UnconfirmedClaims:
    def __init__(self, kube: KubeClient, driver: str) -> None:
        self._kube = kube
        self._driver = driver
        self._uids: set[str] = set()

    async def begin(self, cached: Iterable[ApiObject]) -> None:
        """Take all cached claims that wait for one of the driver's volumes; the caches of both kinds are complete.

        If many wait, confirm them with one list: it is newer than both caches.
        """
        claims = list(cached)
        self._uids.update(objects.uid(claim) for claim in claims if self._waits(claim))
        if len(self._uids) * LISTED_FOR_ONE <= len(claims):
            return
        try:
            current = (await self._kube.list(PERSISTENT_VOLUME_CLAIM)).items
        except ApiError:
            return  # Each is read when its turn comes.
        self._uids.difference_update(objects.uid(claim) for claim in current if self._waits(claim))

    def add(self, uid: str) -> None:
        self._uids.add(uid)

    def forget(self, uid: str) -> None:
        """Forget a claim that is gone from the cache, or that names a volume there: it is never provisioned again."""
        self._uids.discard(uid)

    async def is_wanted(self, claim: ApiObject) -> bool:
        """Return whether the cached claim exists and still waits for a volume. Reads it only if that is in doubt."""
        uid = objects.uid(claim)
        if uid not in self._uids:
            return True
        try:
            current = await self._kube.get(PERSISTENT_VOLUME_CLAIM, objects.name_of(claim))
        except NotFound:
            return False
        if objects.uid(current) != uid or not self._waits(current):
            return False
        self._uids.discard(uid)
        return True

    def _waits(self, claim: ApiObject) -> bool:
        return why_not_wanted(claim, self._driver) is None
