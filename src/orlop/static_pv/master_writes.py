"""Carry out the steps of the master: one guarded write each, whose result the view then contains."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, TypeAlias

from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, ApiError, Conflict, Invalid, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME, Kind
from orlop.kube.objects import Object, ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.disk_step_rules import (
    DropOperation,
    EndVolume,
    LetVolumeGo,
    OfferDisk,
    PatchVolume,
    RequestWipe,
)
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_reports import MasterReports
from orlop.static_pv.master_view import MasterView
from orlop.static_pv.node_disks_rules import NodeDisks

DiskWrite: TypeAlias = OfferDisk | PatchVolume | EndVolume | LetVolumeGo | RequestWipe | DropOperation
OTHER_THAN_DECIDED: Final = (AlreadyExists, Conflict, PatchRefused, NotFound)


class Stale(Exception):
    """The object is not as it was when the step was decided. The view has the current one."""


class MasterWrites:
    def __init__(
        self,
        view: MasterView,
        *,
        kube: KubeClient,
        runtime: Runtime,
        reports: MasterReports,
        metrics: MasterMetrics,
        may_act: Callable[[], None],
    ) -> None:
        self._view = view
        # Checked before each attempt: the client repeats a write after a pause, in which the lease may be lost. A late
        # POST of a former leader has no version to fail by.
        self._kube = kube.guarded(may_act)
        self._log = runtime.log
        self._reports = reports
        self._metrics = metrics
        self._clock = runtime.clock

    async def carry_out(self, disks: NodeDisks, name: str, step: DiskWrite) -> None:
        """Carry out a step. Raises `Stale` if the object has changed since, and `ApiError` if it cannot be written."""
        log = self._log.bind(volume=name, node=disks.name)
        match step:
            case OfferDisk(obj):
                await self._create_volume(name, obj)
                log.info("volume created", path=obj["spec"]["local"]["path"])
            case PatchVolume(patch, what):
                await self._patch_volume(name, patch)
                log.info("volume patched", what=what)
            case EndVolume(uid, version, why):
                await self._delete(PERSISTENT_VOLUME, ObjectName(None, name), DeleteOptions(uid=uid, version=version))
                log.info("volume deleted", why=why)
            case LetVolumeGo(patch, why):
                await self._patch_volume(name, patch)
                log.info("finalizer removed", why=why)
            case RequestWipe(operation, patch):
                await self._patch_report(disks.name, patch)
                log.info("wipe requested", uid=operation.uid)
                self._reports.wipe_requested(disks.volumes[name].facts)
            case DropOperation(operation, patch, why):
                await self._patch_report(disks.name, patch)
                log.info("operation removed", uid=operation.uid, why=why)

    async def delete_report(self, node: str) -> None:
        """Delete the ProvisionerStatus of a node that is gone."""
        name = self._view.report_name(node)
        if (report := self._view.reports.get(name)) is None:
            return
        with suppress(Stale):
            await self._delete(PROVISIONER_STATUS, name, DeleteOptions(uid=objects.uid(report)))
            self._log.info("status of gone node deleted", node=node)

    async def _create_volume(self, name: str, obj: Object) -> None:
        await self._write(
            "create", PERSISTENT_VOLUME, ObjectName(None, name), lambda: self._kube.create(PERSISTENT_VOLUME, obj)
        )

    async def _patch_volume(self, name: str, patch: JsonPatch) -> None:
        await self._patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)

    async def _patch_report(self, node: str, patch: JsonPatch) -> None:
        await self._patch(PROVISIONER_STATUS, self._view.report_name(node), patch)

    async def _patch(self, kind: Kind, name: ObjectName, patch: JsonPatch) -> None:
        await self._write("patch", kind, name, lambda: self._kube.patch(kind, name, patch))

    async def _delete(self, kind: Kind, name: ObjectName, options: DeleteOptions) -> None:
        await self._write("delete", kind, name, lambda: self._kube.delete(kind, name, options))

    async def _write(self, method: str, kind: Kind, name: ObjectName, act: Callable[[], Awaitable[Object]]) -> None:
        latest = self._view.all[kind]
        current = latest.get(name)
        uid = objects.uid(current) if current is not None else ""
        try:
            with latest.working(name):
                written = await self._attempt(method, kind, name, uid, act)
                # The response to a DELETE is a Status, or the object as it was before its end.
                is_over = (method == "delete" or objects.is_being_deleted(written)) and not objects.finalizers(written)
                if is_over:
                    latest.remember_gone(name, uid)
                else:
                    latest.remember(written)
        finally:
            # A change by others that arrived meanwhile was not reported as news.
            latest.observe(name)

    async def _attempt(
        self, method: str, kind: Kind, name: ObjectName, uid: str, act: Callable[[], Awaitable[Object]]
    ) -> Object:
        try:
            return await self._metrics.counted(self._clock, method, act)
        except OTHER_THAN_DECIDED as error:
            await self._refresh(kind, name, uid)
            raise Stale(str(error)) from error
        except ApiError as error:
            # Where no response came, the write may have been done, or still be done.
            if not isinstance(error, Invalid):
                await self._refresh(kind, name, uid)
            raise

    async def _refresh(self, kind: Kind, name: ObjectName, uid: str) -> None:
        """Read an object from the server, so that the view has it as it is."""
        try:
            self._view.all[kind].remember(await self._kube.get(kind, name))
        except NotFound:
            self._view.all[kind].remember_gone(name, uid)
