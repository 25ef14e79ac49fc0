"""How long a pod's processes may take to end. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.kube.objects import metadata

DEFAULT_SECONDS: Final = 30
LEAST_SECONDS: Final = 1
"""kubelet's: also who is deleted without any grace is asked first."""


def grace_seconds(pod: Mapping[str, Any]) -> int:
    """What the deletion said, else what the pod says of itself."""
    told = metadata(pod).get("deletionGracePeriodSeconds")
    if told is None:
        told = pod["spec"].get("terminationGracePeriodSeconds")
    return max(LEAST_SECONDS, DEFAULT_SECONDS if told is None else int(told))
