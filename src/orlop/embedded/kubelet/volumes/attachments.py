"""What a VolumeAttachment says: whether a volume is attached to this node, and what was told when it was.

Only read here: another controller attaches and detaches. It is asked of the API server, and no cache, because a volume
that is used though it was detached loses data.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.embedded.kubelet.volumes.step_failures import NotPrepared, StepFailed
from orlop.embedded.kubelet.volumes.volume_handles import attachment_name
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount
from orlop.kube import objects
from orlop.kube.errors import ApiError, NotFound
from orlop.kube.kinds import VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName


class Attachments:
    def __init__(self, tools: VolumeTools) -> None:
        self._client = tools.client
        self._node = tools.node

    async def verify(self, mount: DesiredMount) -> None:
        """Returns when the volume may be used here; NotPrepared while it is not attached."""
        if not mount.attach_required:
            return
        why = "Volume not attached according to node status"
        try:
            found = await self._client.get(VOLUME_ATTACHMENT, self._name(mount))
        except NotFound:
            raise NotPrepared(why, f"volume {mount.volume} is not yet in node's status") from None
        except ApiError as error:
            raise NotPrepared(why, error.message) from None
        if not _status(found).get("attached"):
            raise NotPrepared(why, f"volume {mount.volume} is not yet in node's status")

    async def publish_context(self, mount: DesiredMount, prefix: str) -> dict[str, str]:
        """What the attaching told for the node; nothing where nothing is attached."""
        if not mount.attach_required:
            return {}
        name, handle = self._name(mount), mount.spec.handle
        try:
            found = await self._client.get(VOLUME_ATTACHMENT, name)
        except ApiError as error:
            why = f"volume {handle} has GET error for volume attachment {name}: {error.message}"
            raise StepFailed(prefix, why) from None
        if (fault := _fault(found, handle)) is not None:
            raise StepFailed(prefix, fault)
        return dict(_status(found).get("attachmentMetadata") or {})

    def _name(self, mount: DesiredMount) -> ObjectName:
        return ObjectName(None, attachment_name(mount.spec.handle, mount.spec.driver, self._node))


def _fault(attachment: Mapping[str, Any], handle: str) -> str | None:
    if objects.is_being_deleted(attachment):
        return "volume attachment is being deleted"
    if _status(attachment).get("attached"):
        return None
    if (error := _status(attachment).get("attachError")) is not None:
        return str(error.get("message") or "")
    return f"volume {handle} is not attached for volume attachment {objects.name(attachment)}"


def _status(attachment: Mapping[str, Any]) -> Mapping[str, Any]:
    return attachment.get("status") or {}
