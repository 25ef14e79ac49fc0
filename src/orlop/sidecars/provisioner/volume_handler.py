"""Delete the volumes of released PersistentVolumes, and keep finalizers right, as `volume_deletion_rules` decides.

Order of effects: DeleteVolume → delete the object → remove the finalizer. Killed after any of them, the next process
repeats what is not visible on the object: DeleteVolume of a volume that is gone succeeds.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.error_codes import CsiError
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, RetryAfter
from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.failure_reports import ProvisioningReports, rpc_error
from orlop.sidecars.provisioner.provisioner_metrics import ProvisionerMetrics
from orlop.sidecars.provisioner.provisioner_settings import ApiObject, ProvisionerCaches, ProvisionerSettings
from orlop.sidecars.provisioner.volume_calls import VolumeCalls
from orlop.sidecars.provisioner.volume_deletion_rules import (
    DeleteObject,
    DeleteVolume,
    DeletionFacts,
    DeletionStep,
    NoVolumeStep,
    PatchFinalizers,
    RefuseDeletion,
    WaitForCalls,
    next_volume_step,
)

MOST_STEPS: Final = 8
BY_VOLUME: Final = "attachments by volume"


class NotDeleted(Exception):
    """Reported on the PersistentVolume already; to be retried."""


@dataclass(frozen=True, slots=True)
class _Next:
    """Decide again, on the object as the last write left it; None if that ended it."""

    volume: ApiObject | None


class VolumeHandler:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        caches: ProvisionerCaches,
        settings: ProvisionerSettings,
        *,
        runtime: Runtime,
        kube: KubeClient,
        calls: VolumeCalls,
        events: EventRecorder,
        metrics: ProvisionerMetrics,
        unsettled_until: Callable[[str], float],
        may_act: Callable[[], None],
    ) -> None:
        """`unsettled_until` returns until when a CreateVolume call for a volume's name may still have its effect."""
        self._caches = caches
        self._settings = settings
        self._clock = runtime.clock
        self._kube = kube
        self._calls = calls
        self._reports = ProvisioningReports(events, metrics)
        self._metrics = metrics
        self._unsettled_until = unsettled_until
        self._may_act = may_act
        self._deleted: set[str] = set()
        """Uids of objects whose volume was deleted, until the cache shows that they are gone."""
        self._gone: set[str] = set()
        """Uids of objects that our own write has ended, until the cache shows that too."""

    def is_work(self, volume: ApiObject) -> bool:
        """Return whether there is a step to take for the cached object."""
        if objects.uid(volume) in self._gone:
            return False
        return not isinstance(next_volume_step(self._facts(volume)), NoVolumeStep)

    def forget(self, uid: str) -> None:
        """The cache shows that the object is gone."""
        self._deleted.discard(uid)
        self._gone.discard(uid)

    async def reconcile(self, name: str) -> Outcome:
        volume: ApiObject | None = self._caches.volumes.get(ObjectName(None, name))
        for _ in range(MOST_STEPS):
            if volume is None or objects.uid(volume) in self._gone:
                return Done()
            step = next_volume_step(self._facts(volume))
            try:
                outcome = await self._take(step, volume)
            except (Conflict, PatchRefused):
                # The cache was older than what somebody else wrote: decide again on the object as it is.
                outcome = _Next(await self._read(name))
            if not isinstance(outcome, _Next):
                return outcome
            volume = outcome.volume
        return Failed(NotDeleted(f"the PersistentVolume {name} changed in each of {MOST_STEPS} steps"))

    def _facts(self, volume: ApiObject) -> DeletionFacts:
        return DeletionFacts(
            volume,
            self._settings.driver,
            storage_class=self._caches.classes.get(ObjectName(None, state.class_name(volume))),
            attached_to=self._attached_to(objects.name(volume)),
            is_deleted=objects.uid(volume) in self._deleted,
            unsettled_until=self._unsettled_until(objects.name(volume)),
            now=self._clock.elapsed(),
        )

    def _attached_to(self, name: str) -> str:
        if self._caches.attachments is None:
            return ""
        attachments = self._caches.attachments.cache.by_index(BY_VOLUME, name)
        return next((str((one.get("spec") or {}).get("nodeName") or "unknown") for one in attachments), "")

    async def _take(self, step: DeletionStep, volume: ApiObject) -> _Next | Outcome:
        match step:
            case NoVolumeStep():
                return Done()
            case WaitForCalls(instant):
                return RetryAfter(max(0.0, instant - self._clock.elapsed()))
            case RefuseDeletion(reason):
                return self._report(volume, reason)
            case PatchFinalizers(patch):
                self._may_act()
                try:
                    written = await self._kube.patch(PERSISTENT_VOLUME, objects.name_of(volume), patch)
                except NotFound:
                    written = {}
                return self._after_write(volume, written)
            case DeleteVolume(handle, secret):
                return await self._delete_volume(volume, handle, secret)
            case DeleteObject():
                self._may_act()
                options = DeleteOptions(uid=objects.uid(volume))
                try:
                    written = await self._kube.delete(PERSISTENT_VOLUME, objects.name_of(volume), options)
                except NotFound:
                    written = {}
                return self._after_write(volume, written)

    def _after_write(self, volume: ApiObject, written: ApiObject) -> _Next:
        """Return the object that a write left. A deletion may answer with a Status instead of an object."""
        is_object = objects.uid(written) == objects.uid(volume)
        if is_object and (objects.finalizers(written) or not objects.is_being_deleted(written)):
            return _Next(written)
        # The cache still shows the object for a moment.
        self._gone.add(objects.uid(volume))
        return _Next(None)

    async def _delete_volume(self, volume: ApiObject, handle: str, secret: SecretReference | None) -> _Next | Outcome:
        began = self._clock.elapsed()
        try:
            await self._calls.delete(handle, secret, began + self._settings.timeout)
        except CsiError as error:
            return self._report(volume, rpc_error(error))
        self._deleted.add(objects.uid(volume))
        self._metrics.deleted(state.class_name(volume), self._clock.elapsed() - began)
        return _Next(volume)

    def _report(self, volume: ApiObject, sentence: str) -> Outcome:
        return Failed(NotDeleted(self._reports.not_deleted(volume, sentence)))

    async def _read(self, name: str) -> ApiObject | None:
        try:
            return await self._kube.get(PERSISTENT_VOLUME, ObjectName(None, name))
        except NotFound:
            return None
