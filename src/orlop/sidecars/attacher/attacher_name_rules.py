"""The names by which an attacher is known on other people's objects: upstream's, so that either can take over. Pure."""

from __future__ import annotations

import re
from typing import Final

NODE_ID_ANNOTATION: Final = "csi.alpha.kubernetes.io/node-id"
"""On a VolumeAttachment: what the driver calls the node it is attached to."""
NODE_IDS_ANNOTATION: Final = "csi.volume.kubernetes.io/nodeid"
"""On a Node: JSON, from the driver's name to what that driver calls the node."""
_UNFIT: Final = re.compile(r"[^a-zA-Z0-9-]")


def finalizer_of(driver: str) -> str:
    """On VolumeAttachments and PersistentVolumes."""
    return f"external-attacher/{_sanitized(driver)}"


def lease_of(driver: str) -> str:
    return f"external-attacher-leader-{_sanitized(driver)}"


def _sanitized(driver: str) -> str:
    """Neither a finalizer nor a lease may end with a dash."""
    name = _UNFIT.sub("-", driver)
    return f"{name}X" if name.endswith("-") else name
