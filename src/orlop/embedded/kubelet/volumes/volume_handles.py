"""The names that Kubernetes makes for volumes by hashing, and those it writes into a Node's status. Pure.

Nothing stands between the parts that are hashed: this is how every kubelet and every attacher does it.
"""

from __future__ import annotations

import hashlib
from typing import Final

from orlop.embedded.kubelet.volumes.volume_values import PodUid, UniqueName, VolumeSpec

PREFIX: Final = "kubernetes.io/csi/"


def inline_handle(pod_uid: PodUid, volume: str) -> str:
    """Of a volume that a pod has in its own spec."""
    return _hashed(pod_uid + volume)


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Of the VolumeAttachment; also written where nothing is attached."""
    return _hashed(handle + driver + node)


def unique_name(spec: VolumeSpec, pod_uid: PodUid) -> UniqueName:
    return f"{PREFIX}{pod_uid}-{spec.name}" if spec.is_inline else persistent_name(spec.driver, spec.handle)


def persistent_name(driver: str, handle: str) -> UniqueName:
    return f"{PREFIX}{driver}^{handle}"


def driver_and_handle(name: UniqueName) -> tuple[str, str] | None:
    """Of a persistent volume of a CSI driver; None where it is the name of something else.

    A handle may hold any character, also the one that stands before it; the name of a driver may not.
    """
    driver, mark, handle = name.removeprefix(PREFIX).partition("^")
    is_ours = name.startswith(PREFIX) and mark and driver and handle
    return (driver, handle) if is_ours else None


def _hashed(text: str) -> str:
    return f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
