"""Takes one VolumeAttachment from where it is to where it should be, step by step as `attach_rules` says.

Order of effects: those of the rules; after each the object as the API server gave it back is decided upon, so nobody
acts on what was before his own write. A write that was refused, because somebody else wrote meanwhile, changes nothing:
both objects are read anew, and decided upon anew.

What fails is told on the object, with the driver's code, and as an event; it never holds a secret. Secrets are fetched
for one call and held no longer.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from orlop.csi.error_codes import CsiError, Unavailable
from orlop.csi.proto import rpc
from orlop.csi.rpc_type import Request, Response, Rpc
from orlop.kube import objects, patches
from orlop.kube.errors import ApiError, Conflict, Invalid, NotFound, PatchRefused, RequestTooLarge, ServerError
from orlop.kube.kinds import PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT, InvalidPath
from orlop.kube.objects import ObjectName, time_text
from orlop.kube.patches import JsonPatch
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
    is_to_be_detached,
    needs_node_id,
    next_step,
    node_name_of,
)
from orlop.sidecars.attacher.node_ids import NodeIds
from orlop.sidecars.attacher.tools import AttacherSettings, Tools
from orlop.sidecars.attacher.volume_source_rules import BadObject, SecretName, VolumeSource, volume_name_of

MOST_STEPS: Final = 12
MOST_REFUSED: Final = 3
LONGEST_MESSAGE: Final = 1024
"""Bytes that the API server takes as the message of an error."""


class NotSettled(Exception):
    """Told on the object already; tried again later."""


@dataclass(slots=True)
class _Subject:
    """One VolumeAttachment and its PersistentVolume, as they are known at the moment. None: it is not there."""

    name: ObjectName
    attachment: Mapping[str, Any] | None
    volume: Mapping[str, Any] | None
    published: bool | None = None
    annotated: tuple[str, str | None] | None = None
    """What a Node was found to say, which is read once."""
    taken_back: tuple[str, str, str] | None = None
    """The uid, the handle and the node's id that the driver has unpublished: it is asked once, however often writes are
    refused."""
    given: tuple[tuple[str, str, str], Mapping[str, str]] | None = None
    """The same of what it has published, and with which metadata."""


class AttachmentWork:
    def __init__(
        self,
        node_ids: NodeIds,
        settings: AttacherSettings,
        tools: Tools,
        when_written: Callable[[ObjectName, Mapping[str, Any]], None],
    ) -> None:
        """`when_written` is told of every VolumeAttachment as it is after a write of ours."""
        self._node_ids = node_ids
        self._when_written = when_written
        self._settings = settings
        self._kube = tools.kube
        self._csi = tools.csi
        self._events = tools.events
        self._clock = tools.clock
        self._may_act = tools.may_act

    async def bring_to_its_end(
        self,
        name: ObjectName,
        attachment: Mapping[str, Any],
        volume: Mapping[str, Any] | None,
        published: bool | None = None,  # noqa: FBT001 - a fact, not a switch
    ) -> Mapping[str, Any] | None:
        """The object as it is then; None when it is gone. `NotSettled`: it failed, and that is told.

        One way only: who attached it gives it back when it is to be detached, and the other way round.
        """
        subject = _Subject(name, attachment, volume, published)
        detaching = is_to_be_detached(attachment)
        refused = 0
        for _ in range(MOST_STEPS):
            if subject.attachment is None or is_to_be_detached(subject.attachment) != detaching:
                return subject.attachment
            try:
                if await self._is_done(subject):
                    return subject.attachment
            except (Conflict, PatchRefused):
                refused += 1
                if refused > MOST_REFUSED:
                    raise
                await self._read_anew(subject)
        raise NotSettled(
            f"{name} has changed at each of {MOST_STEPS} looks: somebody else is writing to it all the time"
        )

    async def _is_done(self, subject: _Subject) -> bool:
        step = await self._next(subject)
        if isinstance(step, Nothing):
            return True
        try:
            await self._take(step, subject)
        except (CsiError, BadObject) as error:
            told = _printable(str(error))
            await self._tell_failure(subject, told, error.code if isinstance(error, CsiError) else None)
            raise NotSettled(str(error)) from error
        return False

    async def _next(self, subject: _Subject) -> Step:
        assert subject.attachment is not None  # noqa: S101 - the caller has looked
        return next_step(
            AttachmentFacts(
                subject.attachment,
                subject.volume,
                await self._node_id(subject, subject.attachment),
                self._settings.driver,
                self._settings.finalizer,
                subject.published,
            )
        )

    async def _node_id(self, subject: _Subject, attachment: Mapping[str, Any]) -> str | None:
        node = node_name_of(attachment)
        known = self._node_ids.known(node)
        if known is not None or not needs_node_id(attachment):
            return known
        if subject.annotated is None or subject.annotated[0] != node:
            subject.annotated = node, await self._node_ids.annotated(node)
        return subject.annotated[1]

    async def _take(self, step: Step, subject: _Subject) -> None:
        match step:
            case Refuse(sentence):
                raise BadObject(sentence)
            case ProtectVolume(volume, patch):
                subject.volume = await self._protected(volume, patch)
            case ProtectAttachment(patch):
                await self._patch(subject, patch)
            case Publish(source, node_id):
                this = objects.uid(_known(subject)), source.handle, node_id
                if subject.given is None or subject.given[0] != this:
                    subject.given = this, await self._publish(source, node_id)
                subject.taken_back, subject.published = None, None  # what was asked before is answered by this
                await self._tell_attached(subject, subject.given[1])
            case UnpublishFormer(source, node_id, then):
                subject.given = None  # also where the node is called as before again: it is published nowhere now
                await self._unpublish(source, node_id)
                await self._patch(subject, then)
            case Unpublish(source, node_id):
                this = objects.uid(_known(subject)), source.handle, node_id
                if subject.taken_back != this:
                    await self._unpublish(source, node_id)
                subject.taken_back, subject.given, subject.published = this, None, None
                await self._let_go(subject)
            case MarkDetached(patch):
                await self._patch(subject, patch, "status")

    # ---- the driver ----------------------------------------------------------------------------------------------

    async def _publish(self, source: VolumeSource, node_id: str) -> Mapping[str, str]:
        abilities = await self._csi.controller_abilities()
        request = driver_request_rules.publish_request(
            source, node_id, abilities, self._settings.default_fs_type, await self._secrets(source.secret)
        )
        answer = await self._call(rpc.CONTROLLER_PUBLISH_VOLUME, request)
        return dict(answer.publish_context)

    async def _unpublish(self, source: VolumeSource, node_id: str) -> None:
        request = driver_request_rules.unpublish_request(source.handle, node_id, await self._secrets(source.secret))
        await self._call(rpc.CONTROLLER_UNPUBLISH_VOLUME, request)

    async def _call(self, method: Rpc[Request, Response], request: Request) -> Response:
        """Another driver that came to the socket is not asked; and where it was, nothing that it said is believed."""
        await self._be_sure_of_driver()
        self._may_act()
        answer = await self._csi.call(method, request, within=self._settings.timeout)
        await self._be_sure_of_driver()
        return answer

    async def _be_sure_of_driver(self) -> None:
        name = await self._csi.driver_name()
        if name != self._settings.driver:
            raise Unavailable(f"the driver {self._settings.driver} is away: {name!r} answers in its place")

    async def _secrets(self, name: SecretName | None) -> Mapping[str, str]:
        if name is None:
            return {}
        try:
            found = await self._kube.get(SECRET, ObjectName(name.namespace, name.name))
        except (ApiError, InvalidPath) as error:
            raise BadObject(f"the secret {name} cannot be read: {error}") from error
        return {key: _decoded(value, key, name) for key, value in (found.get("data") or {}).items()}

    # ---- the objects ---------------------------------------------------------------------------------------------

    async def _patch(self, subject: _Subject, patch: JsonPatch, subresource: str = "") -> None:
        self._may_act()
        try:
            subject.attachment = await self._kube.patch(VOLUME_ATTACHMENT, subject.name, patch, subresource=subresource)
            self._when_written(subject.name, subject.attachment)
        except NotFound:
            subject.attachment = None

    async def _protected(self, volume: str, patch: JsonPatch) -> Mapping[str, Any]:
        """Told where it is looked for: who waits for a VolumeAttachment sees nothing of its volume."""
        self._may_act()
        try:
            return await self._kube.patch(PERSISTENT_VOLUME, ObjectName(None, volume), patch)
        except (Conflict, PatchRefused):
            raise
        except ApiError as error:
            raise BadObject(f"our finalizer cannot be set on the PersistentVolume {volume}: {error}") from error

    async def _let_go(self, subject: _Subject) -> None:
        """The finalizer first: what others keep is told to be detached when it is so."""
        patch = patches.remove_finalizer(_known(subject), self._settings.finalizer)
        if patch is not None:
            await self._patch(subject, patch)
        if subject.attachment is not None and objects.finalizers(subject.attachment):
            await self._patch(subject, detached_patch(subject.attachment), "status")
        else:
            subject.attachment = None

    async def _read_anew(self, subject: _Subject) -> None:
        try:
            subject.attachment = await self._kube.get(VOLUME_ATTACHMENT, subject.name)
        except NotFound:
            subject.attachment = None
            return
        subject.volume = await self._read_volume(volume_name_of(subject.attachment))

    async def _read_volume(self, name: str) -> Mapping[str, Any] | None:
        if not name:
            return None
        try:
            return await self._kube.get(PERSISTENT_VOLUME, ObjectName(None, name))
        except NotFound:
            return None

    async def _tell_attached(self, subject: _Subject, metadata: Mapping[str, str]) -> None:
        try:
            await self._patch(subject, attached_patch(_known(subject), metadata), "status")
        except PatchRefused:
            raise
        except (
            Invalid,
            RequestTooLarge,
            ServerError,
        ) as error:  # there is a limit to what an object may hold, and none to what a driver may answer
            raise BadObject(f"the driver has attached it, and what it answered cannot be told: {error}") from error

    async def _tell_failure(self, subject: _Subject, sentence: str, code: int | None) -> None:
        found = _known(subject)
        detaching = is_to_be_detached(found)
        reason = "FailedDetachVolume" if detaching else "FailedAttachVolume"
        self._events.warning(
            {"kind": VOLUME_ATTACHMENT.kind, "apiVersion": VOLUME_ATTACHMENT.api_version, **found},
            reason,
            sentence,
            action="Detaching" if detaching else "Attaching",
        )
        patch = failed_patch(found, _cut(sentence), code, time_text(self._clock.now()))
        with suppress(Conflict, PatchRefused):  # something else was told meanwhile: it is tried again, and told then
            await self._patch(subject, patch, "status")


def _known(subject: _Subject) -> Mapping[str, Any]:
    if subject.attachment is None:
        raise ValueError(f"{subject.name} is gone, and was asked for")
    return subject.attachment


def _decoded(value: Any, key: str, name: SecretName) -> str:
    try:
        return base64.b64decode(value, validate=True).decode()
    except (TypeError, ValueError, binascii.Error):
        # The value is quoted nowhere, also not by what caused this.
        raise BadObject(
            f"the value of {key!r} in the secret {name} is no text in UTF-8, as drivers are given"
        ) from None


def _printable(sentence: str) -> str:
    """A driver may say anything, and people read it on terminals."""
    characters = (one if one.isprintable() else one.encode("unicode_escape").decode() for one in sentence)
    return sentence if sentence.isprintable() else "".join(characters)


def _cut(sentence: str) -> str:
    encoded = sentence.encode(errors="replace")
    return encoded[:LONGEST_MESSAGE].decode(errors="ignore")
