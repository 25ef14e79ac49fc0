"""The names that Kubernetes makes for volumes by hashing, and those it writes into a Node's status. Pure.

Nothing stands between the parts that are hashed: this is how every kubelet and every attacher does it.
"""

from __future__ import annotations

import hashlib

from orlop.embedded.kubelet.volumes.volume_values import PodUid, UniqueName, VolumeSpec


def inline_handle(pod_uid: PodUid, volume: str) -> str:
    """Of a volume that a pod has in its own spec."""
    return _hashed(pod_uid + volume)


def attachment_name(handle: str, driver: str, node: str) -> str:
    """Of the VolumeAttachment; also written where nothing is attached."""
    return _hashed(handle + driver + node)


def unique_name(spec: VolumeSpec, pod_uid: PodUid) -> UniqueName:
    if spec.is_inline:
        return f"kubernetes.io/csi/{pod_uid}-{spec.name}"
    return f"kubernetes.io/csi/{spec.driver}^{spec.handle}"


def _hashed(text: str) -> str:
    return f"csi-{hashlib.sha256(text.encode()).hexdigest()}"
