"""Which calls must not run side by side: the key that a call holds from its first effect to its last.

The interface asks for at most one call in flight per volume; a second one is answered ABORTED. Calls that change
nothing hold no key. A volume may be attached to two nodes at once, so attaching and detaching are keyed by the node as
well; a driver whose detaching from all nodes at once must wait for those has to see to that itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.message import Message

from orlop.csi.rpc_type import Rpc

KEY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "CreateVolume": ("name",),
    "DeleteVolume": ("volume_id",),
    "ControllerPublishVolume": ("volume_id", "node_id"),
    "ControllerUnpublishVolume": ("volume_id", "node_id"),
    "ControllerExpandVolume": ("volume_id",),
    "ControllerModifyVolume": ("volume_id",),
    "CreateSnapshot": ("name",),
    "DeleteSnapshot": ("snapshot_id",),
    "CreateVolumeGroupSnapshot": ("name",),
    "DeleteVolumeGroupSnapshot": ("group_snapshot_id",),
    "NodeStageVolume": ("volume_id",),
    "NodeUnstageVolume": ("volume_id",),
    "NodePublishVolume": ("volume_id",),
    "NodeUnpublishVolume": ("volume_id",),
    "NodeExpandVolume": ("volume_id",),
}

_KIND_OF_NAME: Final[Mapping[str, str]] = {
    "CreateVolume": "volume",
    "CreateSnapshot": "snapshot",
    "CreateVolumeGroupSnapshot": "group snapshot",
}


def changes_something(rpc: Rpc[Any, Any]) -> bool:
    return rpc.name in KEY_FIELDS


def key_of(rpc: Rpc[Any, Any], request: Message) -> str | None:
    """None where the call changes nothing, or names nothing (which the service will refuse)."""
    fields = KEY_FIELDS.get(rpc.name)
    if fields is None or not getattr(request, fields[0]):
        return None
    if fields[0] == "name":
        return f"{_KIND_OF_NAME[rpc.name]} named {request.name}"  # type: ignore[attr-defined]  # the table says so
    kind = fields[0].removesuffix("_id").replace("_", " ")
    values = [getattr(request, name) for name in fields]
    return f"{kind} {' on '.join(value for value in values if value)}"
