"""Mark every VolumeAttachment attached: the handler for a driver that cannot attach. No calls, no finalizers.

A driver may lose the capability while volumes are attached, in most cases by mistake: a rollout with a wrong flag, or
without the controller service. Attached objects keep our finalizer, so that their volumes are detached when the
capability is back; a metric and one warning show how many objects wait for that. Objects that are being deleted lose
the finalizer, because no call could detach their volumes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from orlop.foundation.metrics import Gauge, Metrics
from orlop.foundation.runtime import Runtime
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.sidecars.attacher.attach_rules import Nothing, attacher_of
from orlop.sidecars.attacher.handler import AttacherCaches, AttacherSettings, AttachmentWrites, NotReconciled
from orlop.sidecars.attacher.trivial_rules import AnnotateMarked, MarkAttached, ReleaseFinalizer, next_trivial_step

ApiObject = Mapping[str, Any]
MOST_STEPS: Final = 4
"""Steps of one reconciliation: one more than an object needs, which ends an endless loop."""


def finalizers_kept(metrics: Metrics) -> Gauge:
    """Return the metric of objects that wait for the capability; another handler sets it to 0."""
    return metrics.gauge(
        "orlop_attacher_finalizers_kept",
        "VolumeAttachments that keep the attacher's finalizer because the driver has lost its attach capability.",
    )


class TrivialHandler:
    def __init__(
        self,
        caches: AttacherCaches,
        settings: AttacherSettings,
        *,
        runtime: Runtime,
        kube: KubeClient,
        own_writes: AttachmentWrites,
        may_act: Callable[[], None],
    ) -> None:
        """`may_act` raises if this process has lost its lease; it is called before each effect."""
        self._attachments = caches.attachments
        self._settings = settings
        self._log = runtime.log
        self._kube = kube
        self._own_writes = own_writes
        self._may_act = may_act
        self._kept = finalizers_kept(runtime.metrics)
        self._has_counted = False

    async def drifted(self) -> Mapping[ObjectName, bool]:
        """Return nothing: a driver that cannot attach has no list to compare with. Update the metric."""
        self._count_kept()
        return {}

    async def reconcile_attachment(
        self,
        name: ObjectName,
        attachment: ApiObject,
        _published: bool | None = None,  # noqa: FBT001 - a fact, not a switch
    ) -> ApiObject | None:
        if not self._has_counted:  # later only at each check for drift, because counting reads the whole cache
            self._has_counted = True
            if count := self._count_kept():
                self._log.warning("driver cannot detach; attached volumes keep the finalizer", attachments=count)
        current: ApiObject | None = attachment
        for _ in range(MOST_STEPS):
            if current is None:
                return None
            match next_trivial_step(current, self._settings.finalizer):
                case Nothing():
                    return current
                case ReleaseFinalizer(patch):
                    self._log.info("finalizer removed from an attachment that cannot be detached", attachment=str(name))
                    current = await self._patch(name, patch)
                    return current if current is not None and objects.finalizers(current) else None
                case AnnotateMarked(patch):
                    current = await self._patch(name, patch)
                case MarkAttached(patch):
                    current = await self._patch(name, patch, "status")
        raise NotReconciled(f"{name} was not marked attached in {MOST_STEPS} steps: the API server drops our writes")

    async def _patch(self, name: ObjectName, patch: JsonPatch, subresource: str = "") -> ApiObject | None:
        self._may_act()
        try:
            patched = await self._kube.patch(VOLUME_ATTACHMENT, name, patch, subresource=subresource)
        except NotFound:
            return None
        self._own_writes.remember(name, patched)
        return patched

    def _count_kept(self) -> int:
        count = sum(1 for each in self._attachments.cache if self._keeps_finalizer(each))
        self._kept.set(count)
        return count

    def _keeps_finalizer(self, attachment: ApiObject) -> bool:
        return (
            attacher_of(attachment) == self._settings.driver
            and objects.has_finalizer(attachment, self._settings.finalizer)
            and not objects.is_being_deleted(attachment)
        )
