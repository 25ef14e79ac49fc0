"""Reconcile one VolumeAttachment of a driver that can attach, step by step, as `attach_rules` decides.

Order of effects: that of the rules. After each step the next one is decided on the object that the API server
returned, so no step is based on a state from before our own write. A write that is refused because another client wrote
meanwhile changes nothing: both objects are read again, and the next step is decided again.

A failure is written to the object's status, with the driver's code, and recorded as an event; neither ever holds a
secret. Secrets are fetched for one call and not kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError, Unavailable
from orlop.csi.proto import rpc
from orlop.csi.redacted_messages import printable_text
from orlop.csi.rpc_type import Request, Response, Rpc
from orlop.foundation.runtime import Runtime
from orlop.kube import objects, patches
from orlop.kube.api_errors import (
    ApiError,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
    PatchRefused,
    RequestTooLarge,
    ServerError,
)
from orlop.kube.client import KubeClient
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT, InvalidPath, Kind
from orlop.kube.objects import ObjectName, time_text
from orlop.kube.patches import JsonPatch
from orlop.kube.secret_values import UnusableSecret, secret_values
from orlop.sidecars.attacher import driver_request_rules
from orlop.sidecars.attacher.attach_rules import (
    AttachmentFacts,
    MarkDetached,
    Nothing,
    ProtectAttachment,
    ProtectVolume,
    Publish,
    Refuse,
    Step,
    Unpublish,
    UnpublishFormer,
    attached_patch,
    detached_patch,
    failed_patch,
    id_in_annotation,
    id_in_csi_node,
    is_to_be_detached,
    needs_node_id,
    next_step,
    node_name_of,
)
from orlop.sidecars.attacher.drift import DriftDetection
from orlop.sidecars.attacher.handler import (
    AttacherCaches,
    AttacherSettings,
    AttachmentWrites,
    NotReconciled,
)
from orlop.sidecars.attacher.volume_source_rules import BadObject, SecretName, VolumeSource, volume_name_of

MOST_STEPS: Final = 12
MOST_REFUSED: Final = 3
LONGEST_MESSAGE: Final = 1024
"""Bytes that the API server accepts as the message of an error."""

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Placement:
    """One volume on one node, for one VolumeAttachment."""

    uid: str
    handle: str
    node_id: str


@dataclass(frozen=True, slots=True)
class Published:
    """A placement that the driver has published, and the metadata it returned."""

    placement: Placement
    metadata: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class NodeAnnotation:
    """The driver's id of a node, as its Node has it; None if it has none."""

    node_name: str
    node_id: str | None


@dataclass(slots=True)
class _Subject:
    """The objects of one reconciliation as last read or written, None if they do not exist, and the calls made."""

    name: ObjectName
    attachment: ApiObject | None
    volume: ApiObject | None
    published: bool | None = None
    """Whether the driver lists the volume, as in `AttachmentFacts`."""
    annotation: NodeAnnotation | None = None
    """Kept so that the Node is read only once."""
    done_publish: Published | None = None
    done_unpublish: Placement | None = None
    """Kept so that the driver is called once, however often the write after the call is refused."""

    @property
    def existing_attachment(self) -> ApiObject:
        if self.attachment is None:
            raise ValueError(f"{self.name} does not exist any more")
        return self.attachment

    def placement(self, source: VolumeSource, node_id: str) -> Placement:
        return Placement(objects.uid(self.existing_attachment), source.handle, node_id)


class AttachHandler:
    def __init__(  # noqa: PLR0913 - all of it by name
        self,
        caches: AttacherCaches,
        settings: AttacherSettings,
        *,
        runtime: Runtime,
        kube: KubeClient,
        csi: CsiClient,
        events: EventRecorder,
        own_writes: AttachmentWrites,
        may_act: Callable[[], None],
    ) -> None:
        """`may_act` raises if this process has lost its lease; it is called before each effect."""
        self._volumes = caches.volumes
        self._csi_nodes = caches.csi_nodes
        self._settings = settings
        self._clock = runtime.clock
        self._kube = kube
        self._csi = csi
        self._events = events
        self._own_writes = own_writes
        self._may_act = may_act
        self._drift = DriftDetection(caches, settings, csi=csi, log=runtime.log)

    async def drifted(self) -> Mapping[ObjectName, bool]:
        return await self._drift.drifted()

    async def reconcile_attachment(
        self,
        name: ObjectName,
        attachment: ApiObject,
        published: bool | None = None,  # noqa: FBT001 - a fact, not a switch
    ) -> ApiObject | None:
        """Reconcile in one direction only: an object that is to be detached meanwhile is returned as it is."""
        volume_name = volume_name_of(attachment)
        volume = self._volumes.get(ObjectName(None, volume_name)) if volume_name else None
        subject = _Subject(name, attachment, volume, published)
        detaching = is_to_be_detached(attachment)
        refused = 0
        for _ in range(MOST_STEPS):
            if subject.attachment is None or is_to_be_detached(subject.attachment) != detaching:
                return subject.attachment
            try:
                step = await self._next(subject)
                if isinstance(step, Nothing):
                    return subject.attachment
                await self._take_or_report(step, subject)
            except (Conflict, PatchRefused):
                refused += 1
                if refused > MOST_REFUSED:
                    raise
                await self._read_again(subject)
        raise NotReconciled(f"{name} changed in each of {MOST_STEPS} steps: another client keeps writing to it")

    async def _next(self, subject: _Subject) -> Step:
        return next_step(
            AttachmentFacts(
                subject.existing_attachment,
                subject.volume,
                await self._node_id(subject),
                self._settings.driver,
                self._settings.finalizer,
                subject.published,
            )
        )

    async def _node_id(self, subject: _Subject) -> str | None:
        """Return the id from the CSINode; else from the Node, which is requested only if the next step needs it."""
        node = node_name_of(subject.existing_attachment)
        node_id = id_in_csi_node(self._csi_nodes.get(ObjectName(None, node)), self._settings.driver) if node else None
        if node_id is not None or not needs_node_id(subject.existing_attachment):
            return node_id
        if subject.annotation is None or subject.annotation.node_name != node:
            subject.annotation = NodeAnnotation(node, await self._annotated_node_id(node))
        return subject.annotation.node_id

    async def _annotated_node_id(self, node: str) -> str | None:
        if not node:
            return None
        # Most attachers may not read Nodes, and do without. InvalidPath: no node can have such a name.
        with suppress(NotFound, Forbidden, InvalidPath):
            return id_in_annotation(await self._kube.get(NODE, ObjectName(None, node)), self._settings.driver)
        return None

    async def _take_or_report(self, step: Step, subject: _Subject) -> None:
        try:
            await self._take(step, subject)
        except (CsiError, BadObject) as error:
            code = error.code if isinstance(error, CsiError) else None
            await self._report_failure(subject, printable_text(str(error)), code)
            raise NotReconciled(str(error)) from error

    async def _take(self, step: Step, subject: _Subject) -> None:
        match step:
            case Refuse(sentence):
                raise BadObject(sentence)
            case ProtectVolume(volume, patch):
                subject.volume = await self._protect_volume(volume, patch)
            case ProtectAttachment(patch):
                await self._patch(subject, patch)
            case Publish(source, node_id):
                placement = subject.placement(source, node_id)
                if subject.done_publish is None or subject.done_publish.placement != placement:
                    subject.done_publish = Published(placement, await self._publish(source, node_id))
                # The publish makes an earlier unpublish, and the driver's list from before it, out of date.
                subject.done_unpublish, subject.published = None, None
                await self._mark_attached(subject, subject.done_publish.metadata)
            case UnpublishFormer(source, node_id, then):
                # Forget the publish before the call: if the node gets its former id back, publish must be called again.
                subject.done_publish = None
                # Record the new id only after the call: the annotation is the only record of the former id, and after a
                # crash in between the next process must still unpublish from it.
                await self._unpublish(source, node_id)
                await self._patch(subject, then)
            case Unpublish(source, node_id):
                placement = subject.placement(source, node_id)
                if subject.done_unpublish != placement:
                    await self._unpublish(source, node_id)
                subject.done_unpublish, subject.done_publish, subject.published = placement, None, None
                await self._release(subject)
            case MarkDetached(patch):
                await self._patch(subject, patch, "status")

    # ---- the driver ----------------------------------------------------------------------------------------------

    async def _publish(self, source: VolumeSource, node_id: str) -> Mapping[str, str]:
        capabilities = await self._csi.controller_capabilities()
        request = driver_request_rules.publish_request(
            source, node_id, capabilities, self._settings.default_fs_type, await self._secrets(source.secret)
        )
        response = await self._call(rpc.CONTROLLER_PUBLISH_VOLUME, request)
        return dict(response.publish_context)

    async def _unpublish(self, source: VolumeSource, node_id: str) -> None:
        request = driver_request_rules.unpublish_request(source.handle, node_id, await self._secrets(source.secret))
        await self._call(rpc.CONTROLLER_UNPUBLISH_VOLUME, request)

    async def _call(self, method: Rpc[Request, Response], request: Request) -> Response:
        # Check before the call: another driver may listen on the socket now, and must not be called for our volumes.
        # Check after it too: that driver may have replaced ours in between, and then the success proves nothing.
        await self._check_driver()
        self._may_act()
        response = await self._csi.call(method, request, within=self._settings.timeout)
        await self._check_driver()
        return response

    async def _check_driver(self) -> None:
        name = await self._csi.driver_name()
        if name != self._settings.driver:
            raise Unavailable(f"the driver {self._settings.driver} is not available: {name!r} responds on its socket")

    async def _secrets(self, name: SecretName | None) -> Mapping[str, str]:
        if name is None:
            return {}
        try:
            return secret_values(await self._kube.get(SECRET, ObjectName(name.namespace, name.name)))
        except (ApiError, InvalidPath) as error:
            raise BadObject(f"the secret {name} cannot be read: {error}") from error
        except UnusableSecret as error:
            raise BadObject(str(error)) from None

    # ---- the objects ---------------------------------------------------------------------------------------------

    async def _patch(self, subject: _Subject, patch: JsonPatch, subresource: str = "") -> None:
        self._may_act()
        try:
            subject.attachment = await self._kube.patch(VOLUME_ATTACHMENT, subject.name, patch, subresource=subresource)
        except NotFound:
            subject.attachment = None
        else:
            self._own_writes.remember(subject.name, subject.attachment)

    async def _protect_volume(self, volume: str, patch: JsonPatch) -> ApiObject:
        self._may_act()
        try:
            return await self._kube.patch(PERSISTENT_VOLUME, ObjectName(None, volume), patch)
        except (Conflict, PatchRefused):
            raise
        except ApiError as error:
            # Report it on the VolumeAttachment: kubelet and people wait for that object, and do not read the volume.
            raise BadObject(f"our finalizer cannot be added to the PersistentVolume {volume}: {error}") from error

    async def _release(self, subject: _Subject) -> None:
        # Remove the finalizer first: this usually removes the object, and then there is no status to write. If this
        # process dies in between, the next attacher resets the status of an object without our finalizer.
        patch = patches.remove_finalizer(subject.existing_attachment, self._settings.finalizer)
        if patch is not None:
            await self._patch(subject, patch)
        if subject.attachment is not None and objects.finalizers(subject.attachment):
            await self._patch(subject, detached_patch(subject.attachment), "status")
        else:
            subject.attachment = None

    async def _read_again(self, subject: _Subject) -> None:
        # Read from the API server, not the cache: that may be older than the write that made ours fail.
        subject.attachment = await self._get(VOLUME_ATTACHMENT, subject.name.name)
        if subject.attachment is not None:
            subject.volume = await self._get(PERSISTENT_VOLUME, volume_name_of(subject.attachment))

    async def _get(self, kind: Kind, name: str) -> ApiObject | None:
        if not name:
            return None
        try:
            return await self._kube.get(kind, ObjectName(None, name))
        except NotFound:
            return None

    async def _mark_attached(self, subject: _Subject, metadata: Mapping[str, str]) -> None:
        try:
            await self._patch(subject, attached_patch(subject.existing_attachment, metadata), "status")
        except PatchRefused:
            raise
        except (Invalid, RequestTooLarge, ServerError) as error:
            # The API server limits the size of an object, but nothing limits the size of a driver's response.
            raise BadObject(f"the volume is attached, but the driver's response cannot be stored: {error}") from error

    async def _report_failure(self, subject: _Subject, sentence: str, code: int | None) -> None:
        attachment = subject.existing_attachment
        detaching = is_to_be_detached(attachment)
        self._events.warning(
            {"kind": VOLUME_ATTACHMENT.kind, "apiVersion": VOLUME_ATTACHMENT.api_version, **attachment},
            "FailedDetachVolume" if detaching else "FailedAttachVolume",
            sentence,
            action="Detaching" if detaching else "Attaching",
        )
        patch = failed_patch(attachment, _shortened(sentence), code, time_text(self._clock.now()))
        # Another client wrote the status meanwhile: the retry reports the failure, if it fails again.
        with suppress(Conflict, PatchRefused):
            await self._patch(subject, patch, "status")


def _shortened(sentence: str) -> str:
    return sentence.encode(errors="replace")[:LONGEST_MESSAGE].decode(errors="ignore")
