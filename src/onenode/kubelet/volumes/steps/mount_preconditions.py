"""Check what must hold before a volume is mounted or mapped: its node, its only pod, and that it is attached here.

This module only reads attachments: another controller attaches and detaches. That controller detaches no volume that
the Node's status lists as in use. So a volume is used only after the status lists it; until then the writer of the
status is asked to write it soon. The last check reads the Node from the API server, not from a cache, because using a
volume that was detached loses data. It runs only when a cache shows the volume as attached: many volumes may wait, and
each is checked ten times a second.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.outcome_rules import NotPrepared, StepFailed
from onenode.kubelet.volumes.volume_seams import OwnNode
from onenode.kubelet.volumes.volume_values import DesiredMount, VolumeMode, attachment_name
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.kinds import NODE, VOLUME_ATTACHMENT
from orlop.kube.label_requirements import InvalidSelector, Operator, Requirement
from orlop.kube.objects import ObjectName

NOT_ATTACHED: Final = "Volume not attached according to node status"
ONE_POD: Final = ("ReadWriteOncePod",)
NOT_IN_USE: Final = "Volume has not been added to the list of VolumesInUse in the node's volume status"


class MountPreconditions:
    def __init__(self, api: NodeApi, node: OwnNode, actual: ActualState) -> None:
        self._client = api.kube
        self._node_name = ObjectName(None, api.node_name)
        self._node = node
        self._actual = actual

    async def check(self, mount: DesiredMount) -> dict[str, str]:
        """Check node affinity, then ReadWriteOncePod, then the attachment; raise StepFailed if one does not hold.

        Return the publish context of the attachment; empty for a volume that is not attached.
        """
        is_block = mount.spec.mode is VolumeMode.BLOCK
        await self._check_node(mount, texts.MAP_NODE_AFFINITY if is_block else texts.NODE_AFFINITY)
        self._check_one_pod(mount, texts.SET_UP_DEVICE if is_block else texts.SET_UP)
        return await self._publish_context(mount, texts.MAP_WAIT_FOR_ATTACH if is_block else texts.WAIT_FOR_ATTACH)

    # ---- attachment ----------------------------------------------------------------------------------------------

    async def verify_attached(self, mount: DesiredMount) -> None:
        """Return when the volume may be used here; raise NotPrepared while it is not attached."""
        if not mount.attach_required:
            return
        if (seen := self._node.seen()) is not None:
            self._check_status(seen, mount)
        try:
            node = await self._client.get(NODE, self._node_name)
        except ApiError as error:
            raise NotPrepared(NOT_ATTACHED, error.message) from None
        self._check_status(node, mount)

    def _check_status(self, node: Mapping[str, Any], mount: DesiredMount) -> None:
        status = _status(node)
        if mount.volume not in (status.get("volumesInUse") or ()):
            self._node.report_soon()
            raise NotPrepared(NOT_IN_USE, mount.volume)
        if mount.volume not in {one.get("name") for one in status.get("volumesAttached") or ()}:
            raise NotPrepared(NOT_ATTACHED, f"volume {mount.volume} is not yet in node's status")

    async def _publish_context(self, mount: DesiredMount, prefix: str) -> dict[str, str]:
        if not mount.attach_required:
            return {}
        handle = mount.spec.handle
        name = ObjectName(None, attachment_name(handle, mount.spec.driver, self._node_name.name))
        try:
            found = await self._client.get(VOLUME_ATTACHMENT, name)
        except ApiError as error:
            why = f"volume {handle} has GET error for volume attachment {name}: {error.message}"
            raise StepFailed(prefix, why) from None
        if (fault := _fault(found, handle)) is not None:
            raise StepFailed(prefix, fault)
        return dict(_status(found).get("attachmentMetadata") or {})

    # ---- node and pod --------------------------------------------------------------------------------------------

    async def _check_node(self, mount: DesiredMount, prefix: str) -> None:
        if mount.spec.node_affinity is None:
            return
        try:
            node = await self._client.get(NODE, self._node_name)
        except ApiError as error:
            raise StepFailed(prefix, f"error retrieving node: {error.message}") from None
        if not is_allowed_on(mount.spec.node_affinity, node):
            raise StepFailed(prefix, texts.NO_MATCHING_TERMS)

    def _check_one_pod(self, mount: DesiredMount, prefix: str) -> None:
        """Refuse a second pod if ReadWriteOncePod is the only access mode. Of several, a pod may mean another."""
        if mount.spec.access_modes == ONE_POD and self._actual.is_used_by_others(mount.volume, mount.pod.uid):
            raise StepFailed(prefix, texts.IN_USE_BY_ANOTHER)


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


OPERATORS: Final[Mapping[str, Operator]] = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
    "Gt": Operator.GREATER,
    "Lt": Operator.LESS,
}


def is_allowed_on(required: Mapping[str, Any] | None, node: Mapping[str, Any]) -> bool:
    """One of the terms is enough; a term that asks for nothing matches nothing."""
    if required is None:
        return True
    return any(_matches(term, node) for term in required.get("nodeSelectorTerms") or ())


def _matches(term: Mapping[str, Any], node: Mapping[str, Any]) -> bool:
    expressions, fields = term.get("matchExpressions") or (), term.get("matchFields") or ()
    if not expressions and not fields:
        return False
    labels = objects.labels(node)
    named = {"metadata.name": objects.name(node)}
    return all(_holds(one, labels) for one in expressions) and all(_field_holds(one, named) for one in fields)


def _holds(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    try:
        operator = OPERATORS[expression.get("operator", "")]
        return Requirement(expression.get("key", ""), operator, tuple(expression.get("values") or ())).matches(labels)
    except (KeyError, InvalidSelector):
        return False


def _field_holds(expression: Mapping[str, Any], fields: Mapping[str, str]) -> bool:
    value = fields.get(expression.get("key", ""))
    match expression.get("operator"):
        case "In":
            return value in (expression.get("values") or ())
        case "NotIn":
            return value is not None and value not in (expression.get("values") or ())
        case _:
            return False
