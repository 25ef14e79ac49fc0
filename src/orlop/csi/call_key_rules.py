"""Decide which calls must not run concurrently: the key that a call locks from its first effect to its last. Pure.

CSI asks for at most one call in flight per volume; a second one fails with ABORTED. Calls that change nothing lock no
key. A volume may be attached to two nodes at once, so the keys of ControllerPublishVolume and ControllerUnpublishVolume
include the node. ControllerUnpublishVolume without a node (all nodes) does not wait for those: the driver must.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
    """Return the key; None if the call changes nothing, or if its id is empty, which the service refuses."""
    reader = _READERS.get(rpc.name)
    return None if reader is None else reader(request)


def _reader(rpc_name: str, field: str, second_field: str = "") -> Callable[[Message], str | None]:
    """Build the function that reads the key, once for each RPC: it runs at every call."""
    kind = f"{_KIND_OF_NAME[rpc_name]} named" if field == "name" else field.removesuffix("_id").replace("_", " ")

    def read(request: Message) -> str | None:
        first = getattr(request, field)
        second = getattr(request, second_field) if second_field else ""
        if not first:
            return None
        return f"{kind} {first} on {second}" if second else f"{kind} {first}"

    return read


_READERS: Final = {rpc_name: _reader(rpc_name, *fields) for rpc_name, fields in KEY_FIELDS.items()}
