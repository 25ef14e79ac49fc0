"""Whether a volume is attached to this node, and what was told when it was: from the Node and the VolumeAttachment.

Only read here: another controller attaches and detaches. It takes no volume away that the Node's status has in use, so
none is used before it stands there; whoever keeps that status is asked to tell it soon. In the end the API server is
asked, and no cache, because a volume that is used though it was detached loses data; but not before a cache says that
it is worth it, since many volumes may wait, and each looks ten times a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.embedded.kubelet.volumes.step_failures import NotPrepared, StepFailed
from orlop.embedded.kubelet.volumes.volume_handles import attachment_name
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount
from orlop.kube import objects
from orlop.kube.errors import ApiError
from orlop.kube.kinds import NODE, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName

NOT_ATTACHED: Final = "Volume not attached according to node status"
NOT_IN_USE: Final = "Volume has not been added to the list of VolumesInUse in the node's volume status"


class Attachments:
    def __init__(self, tools: VolumeTools) -> None:
        self._client = tools.client
        self._node = tools.node
        self._report_node = tools.report_node
        self._seen_node = tools.seen_node

    async def verify(self, mount: DesiredMount) -> None:
        """Returns when the volume may be used here; NotPrepared while it is not attached."""
        if not mount.attach_required:
            return
        if (seen := self._seen_node()) is not None:
            self._check(seen, mount)
        try:
            node = await self._client.get(NODE, ObjectName(None, self._node))
        except ApiError as error:
            raise NotPrepared(NOT_ATTACHED, error.message) from None
        self._check(node, mount)

    def _check(self, node: Mapping[str, Any], mount: DesiredMount) -> None:
        status = _status(node)
        if mount.volume not in (status.get("volumesInUse") or ()):
            self._report_node()
            raise NotPrepared(NOT_IN_USE, mount.volume)
        if mount.volume not in {one.get("name") for one in status.get("volumesAttached") or ()}:
            raise NotPrepared(NOT_ATTACHED, f"volume {mount.volume} is not yet in node's status")

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


def _status(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    return obj.get("status") or {}
