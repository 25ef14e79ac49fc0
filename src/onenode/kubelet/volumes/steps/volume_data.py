"""`vol_data.json`: what stands beside a mount, so that a kubelet which starts anew knows what it is. Pure.

One line, keys sorted, every value a string, a newline at the end, `<`, `>` and `&` escaped: as Go writes it. A file
that is broken, or was written by something else, reads as None: it is then nobody's volume that could be rebuilt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from onenode.kubelet.volumes.volume_values import Lifecycle, VolumeMode, VolumeSpec, attachment_name

LARGEST_FILE: Final = 64 * 1024
ESCAPES: Final = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}


def encoded(data: Mapping[str, str]) -> bytes:
    text = json.dumps(dict(data), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return f"{text}\n".encode("utf-8", "replace")


def decoded(content: bytes | None) -> Mapping[str, str] | None:
    if content is None or len(content) > LARGEST_FILE:
        return None
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return None
    is_data = isinstance(found, dict) and all(isinstance(value, str) for value in found.values())
    return found if is_data else None


def publish_data(spec: VolumeSpec, node: str) -> Mapping[str, str]:
    """Beside the mount in a pod; a raw block volume's does not say which lifecycle it has."""
    data = {
        "specVolID": spec.name,
        "volumeHandle": spec.handle,
        "driverName": spec.driver,
        "nodeName": node,
        "attachmentID": attachment_name(spec.handle, spec.driver, node),
    }
    if spec.mode is VolumeMode.FILESYSTEM:
        data["volumeLifecycleMode"] = spec.lifecycle.value
    return data


def stage_data(spec: VolumeSpec) -> Mapping[str, str]:
    return {"driverName": spec.driver, "volumeHandle": spec.handle}


def published_spec(data: Mapping[str, str] | None, mode: VolumeMode) -> VolumeSpec | None:
    """Return what the file of a volume says about it; None if that is too little to unmount it."""
    if data is None:
        return None
    name, driver, handle = (data.get(key, "") for key in ("specVolID", "driverName", "volumeHandle"))
    if not (name and driver and handle):
        return None
    is_inline = data.get("volumeLifecycleMode") == Lifecycle.EPHEMERAL.value
    lifecycle = Lifecycle.EPHEMERAL if is_inline else Lifecycle.PERSISTENT
    return VolumeSpec(name, driver, handle, lifecycle, mode)


def staged_spec(data: Mapping[str, str] | None) -> VolumeSpec | None:
    """The file does not say what the PV is called: the handle stands for it."""
    if data is None or not (data.get("driverName") and data.get("volumeHandle")):
        return None
    return VolumeSpec(data["volumeHandle"], data["driverName"], data["volumeHandle"], Lifecycle.PERSISTENT)
