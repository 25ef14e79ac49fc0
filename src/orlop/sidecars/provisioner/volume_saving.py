"""Create the PersistentVolume of an order, and know which claims have one before the cache shows it.

A PersistentVolume of the order's name may exist already: created by a former process or by a call whose response was
lost, or by another client. Only one with our driver and the volume's id ends the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.proto import csi_pb2
from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, BadRequest, Invalid, NotFound, RequestTooLarge
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner.claim_rules import OpenOrder
from orlop.sidecars.provisioner.create_request_rules import UnusableVolume
from orlop.sidecars.provisioner.failure_reports import identity_reference
from orlop.sidecars.provisioner.open_orders import OpenOrders
from orlop.sidecars.provisioner.provisioner_metrics import ProvisionerMetrics
from orlop.sidecars.provisioner.provisioner_settings import ApiObject, ProvisionerCaches, ProvisionerSettings
from orlop.sidecars.provisioner.volume_deletion_rules import csi_source
from orlop.sidecars.provisioner.volume_object_rules import persistent_volume

BY_HANDLE: Final = "volumes by handle"


@dataclass(frozen=True, slots=True)
class _Unseen:
    name: str
    version: str


def handle_key(driver: str, handle: str) -> str:
    """Return the key of a volume in the index `BY_HANDLE`: a handle is unique only among the volumes of one driver."""
    return f"{driver}/{handle}"


class VolumeSaving:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        caches: ProvisionerCaches,
        settings: ProvisionerSettings,
        *,
        clock: Clock,
        kube: KubeClient,
        events: EventRecorder,
        open_orders: OpenOrders,
        metrics: ProvisionerMetrics,
        may_act: Callable[[], None],
    ) -> None:
        """`may_act` raises if this process has lost its lease."""
        self._volumes = caches.volumes
        self._settings = settings
        self._clock = clock
        self._kube = kube
        self._events = events
        self._open = open_orders
        self._metrics = metrics
        self._may_act = may_act
        self._saved: dict[str, str] = {}
        """resourceVersions of PersistentVolumes that we created, by the claim's uid, until the cache has them."""
        self._unseen: dict[str, _Unseen] = {}
        """PersistentVolumes that we created, by handle, until the cache has them."""

    def forget_claim(self, uid: str) -> None:
        self._saved.pop(uid, None)

    def is_saved(self, uid: str, name: str, opened: OpenOrder | None) -> bool:
        """Return whether the claim's PersistentVolume exists, or existed since the cache was last updated."""
        version = self._saved.get(uid)
        if version is not None:
            if not self._has_reached(version):
                return True  # the cache does not have our write yet: the object would seem to be missing
            del self._saved[uid]
        volume = self._volumes.get(ObjectName(None, name))
        if volume is None or not _is_for(volume, uid):
            return False
        if opened is None:
            return True
        # A PersistentVolume of this name that is not ours must not end the order: our volume may exist in the driver.
        if opened.volume is None:
            return csi_source(volume).get("driver") == self._settings.driver
        return self._is_of(volume, opened.volume.volume_id)

    def owner_of_name(self, uid: str, name: str) -> str:
        """Return what has the PersistentVolume of this name, if that is not of this claim; "" for none."""
        volume = self._volumes.get(ObjectName(None, name))
        if volume is None or _is_for(volume, uid):
            return ""
        reference = state.claim_reference(volume) or {}
        return f"the claim {reference.get('namespace')}/{reference.get('name')}" if reference else "no claim"

    def owner_of_handle(self, handle: str, own_name: str) -> str | None:
        """Return the name of another PersistentVolume with this handle, or of another order that was returned it."""
        volumes = self._volumes.cache.by_index(BY_HANDLE, handle_key(self._settings.driver, handle))
        # An order is closed once its PersistentVolume exists, perhaps before the cache has that.
        unseen = self._unseen.get(handle)
        created = [unseen.name] if unseen is not None and not self._has_reached(unseen.version) else []
        names = [*map(objects.name, volumes), *self._open.names_with_id(handle), *created]
        return next((name for name in names if name != own_name), None)

    async def save(self, order: VolumeOrder, volume: csi_pb2.Volume, uid: str) -> None:
        """Create the PersistentVolume, and change the open order as the API server responds."""
        body = persistent_volume(order, volume, self._settings.driver, self._settings.identity)
        self._may_act()
        try:
            saved: ApiObject = await self._kube.create(PERSISTENT_VOLUME, body)
        except AlreadyExists:
            # Either we created it and the response was lost, or another client created it under the same name.
            await self._compare_with_existing(order, volume, uid)
        except (BadRequest, Invalid, RequestTooLarge) as error:
            reason = f"the API server refuses the PersistentVolume {order.volume_name}: {error}"
            self._open.change(uid, fault=UnusableVolume(reason, volume.volume_id, retry_slowly=True))
        else:
            self._succeed(order, saved, uid)

    async def has_saved(self, order: VolumeOrder, volume_id: str) -> bool:
        """Return whether the API server has the PersistentVolume of this volume, whatever the cache has."""
        existing = await self._existing(order)
        return existing is not None and self._is_of(existing, volume_id)

    async def _compare_with_existing(self, order: VolumeOrder, volume: csi_pb2.Volume, uid: str) -> None:
        existing = await self._existing(order)
        if existing is None:
            return  # deleted meanwhile: decide again
        if self._is_of(existing, volume.volume_id):
            if _is_for(existing, uid):
                self._succeed(order, existing, uid)
                return
            # No id, so that it is never deleted: the driver returned the volume of another claim's PersistentVolume.
            reason = f"the volume of the PersistentVolume {order.volume_name} belongs to another claim"
            self._open.change(uid, fault=UnusableVolume(reason, retry_slowly=True))
        else:
            reason = f"the PersistentVolume {order.volume_name} exists and belongs to another volume"
            self._open.change(uid, fault=UnusableVolume(reason, volume.volume_id, retry_slowly=True))

    async def _existing(self, order: VolumeOrder) -> ApiObject | None:
        """Read the PersistentVolume of the order's name from the API server."""
        try:
            return await self._kube.get(PERSISTENT_VOLUME, ObjectName(None, order.volume_name))
        except NotFound:
            return None

    def _succeed(self, order: VolumeOrder, saved: ApiObject, uid: str) -> None:
        version = objects.resource_version(saved)
        self._saved[uid] = version
        self._unseen = {handle: each for handle, each in self._unseen.items() if not self._has_reached(each.version)}
        self._unseen[str(csi_source(saved).get("volumeHandle"))] = _Unseen(order.volume_name, version)
        self._open.change(uid, is_saved=True)
        self._metrics.provisioned(uid, order.storage.name, self._clock.elapsed())
        sentence = f"Successfully provisioned volume {order.volume_name}"
        self._events.normal(identity_reference(order.claim), "ProvisioningSucceeded", sentence)

    def _has_reached(self, version: str) -> bool:
        """Return whether the cache is at least as new as this resourceVersion."""
        return objects.version_order(self._volumes.version) >= objects.version_order(version)

    def _is_of(self, volume: ApiObject, handle: str) -> bool:
        source = csi_source(volume)
        return source.get("driver") == self._settings.driver and source.get("volumeHandle") == handle


def _is_for(volume: ApiObject, uid: str) -> bool:
    """Return whether a PersistentVolume is reserved for the claim of this uid."""
    return (state.claim_reference(volume) or {}).get("uid") == uid
