"""Delete the volumes of released PersistentVolumes, and maintain finalizers, as `volume_deletion_rules` decides.

Order of effects: DeleteVolume → delete the object → remove the finalizer. If the process is killed in between, the next
one calls DeleteVolume again, which succeeds for a volume that is gone, and then does the rest.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.csi.error_codes import CsiError
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused, StatusError
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import ObjectName
from orlop.kube.queue.reconcile_loop import Done, Failed, Outcome, RetryAfter
from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.failure_reports import ProvisioningReports, refused_request, rpc_error
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
    WaitForDetach,
    csi_source,
    needs_volume,
    next_volume_step,
)
from orlop.sidecars.provisioner.volume_saving import BY_HANDLE, handle_key

MOST_STEPS: Final = 8
"""Steps of one reconciliation: the limit only ends an endless loop."""
BY_VOLUME: Final = "attachments by volume"


class NotDeleted(Exception):
    """The deletion failed. Already reported on the PersistentVolume; the work queue retries."""


@dataclass(frozen=True, slots=True)
class _Next:
    """Decide again, on the object that the last write returned; None if it is gone."""

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
        may_run_until: Callable[[str], float],
        may_act: Callable[[], None],
    ) -> None:
        """Create it. `may_run_until` returns until when a CreateVolume call for a name may still take effect."""
        self._caches = caches
        self._settings = settings
        self._clock = runtime.clock
        self._log = runtime.log
        self._kube = kube
        self._calls = calls
        self._reports = ProvisioningReports(events, metrics)
        self._metrics = metrics
        self._may_run_until = may_run_until
        self._may_act = may_act
        self._deleted: set[str] = set()
        """Uids of objects whose volume was deleted, until the cache shows that they are gone."""
        self._gone: set[str] = set()
        """Uids of objects that our own write removed, until the cache shows that they are gone."""

    def needs_step(self, volume: ApiObject) -> bool:
        """Return whether there is a step to take for the cached object."""
        if objects.uid(volume) in self._gone:
            return False
        return not isinstance(next_volume_step(self._facts(volume)), NoVolumeStep)

    def forget(self, uid: str) -> None:
        """Drop what is kept for an object that is gone from the cache."""
        self._deleted.discard(uid)
        self._gone.discard(uid)

    async def reconcile(self, name: str) -> Outcome:
        """Take steps for a PersistentVolume until there is none, or one has to wait."""
        volume: ApiObject | None = self._caches.volumes.get(ObjectName(None, name))
        for _ in range(MOST_STEPS):
            if volume is None or objects.uid(volume) in self._gone:
                return Done()
            step = next_volume_step(self._facts(volume))
            try:
                outcome = await self._take(step, volume)
            except (Conflict, PatchRefused):
                # The cache was stale: read the object, and decide again.
                outcome = _Next(await self._read(name))
            except StatusError as error:
                if (sentence := refused_request(error)) is None:
                    raise
                outcome = self._report(volume, sentence)
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
            needed_by=self._needed_by(volume),
            is_deleted=objects.uid(volume) in self._deleted,
            may_run_until=self._may_run_until(objects.name(volume)),
            now=self._clock.elapsed(),
        )

    def _attached_to(self, name: str) -> str:
        if self._caches.attachments is None:
            return ""
        attachments = self._caches.attachments.cache.by_index(BY_VOLUME, name)
        nodes = (str((attachment.get("spec") or {}).get("nodeName") or "unknown") for attachment in attachments)
        return next(nodes, "")

    def _needed_by(self, volume: ApiObject) -> str:
        key = handle_key(self._settings.driver, str(csi_source(volume).get("volumeHandle")))
        others = self._caches.volumes.cache.by_index(BY_HANDLE, key)
        names = (objects.name(each) for each in others if needs_volume(each))
        return min((name for name in names if name != objects.name(volume)), default="")

    async def _take(  # noqa: PLR0911 - one return for each step
        self, step: DeletionStep, volume: ApiObject
    ) -> _Next | Outcome:
        match step:
            case NoVolumeStep():
                return Done()
            case WaitForCalls(instant):
                return RetryAfter(max(0.0, instant - self._clock.elapsed()))
            case WaitForDetach(node):
                self._log.info(
                    "volume still attached; waiting until it is detached", name=objects.name(volume), node=node
                )
                return Done()
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
                # By uid: a new object of the same name must not be deleted, its volume was not.
                options = DeleteOptions(uid=objects.uid(volume))
                try:
                    written = await self._kube.delete(PERSISTENT_VOLUME, objects.name_of(volume), options)
                except NotFound:
                    written = {}
                # Without finalizers the object is gone, and the response is what it was, not yet being deleted.
                return self._after_write(volume, written if objects.finalizers(written) else {})

    def _after_write(self, volume: ApiObject, written: ApiObject) -> _Next:
        """Return the object after a write. The response to a DELETE may be a Status instead of the object."""
        is_object = objects.uid(written) == objects.uid(volume)
        if is_object and (objects.finalizers(written) or not objects.is_being_deleted(written)):
            return _Next(written)
        # The last finalizer is removed, so the object is gone, but the cache still has it for a moment.
        self._gone.add(objects.uid(volume))
        return _Next(None)

    async def _delete_volume(self, volume: ApiObject, handle: str, secret: SecretReference | None) -> _Next | Outcome:
        began = self._clock.elapsed()
        try:
            await self._calls.delete(handle, secret, began + self._settings.timeout)
        except CsiError as error:
            return self._report(volume, rpc_error(error))
        # Remember it until the object is gone: a retry of the next step must not call the driver again.
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
