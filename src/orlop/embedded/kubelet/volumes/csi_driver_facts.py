"""What a CSIDriver object says, with Kubernetes' answers where it is missing or says nothing. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orlop.embedded.kubelet.volumes.volume_values import Lifecycle


@dataclass(frozen=True, slots=True)
class DriverFacts:
    exists: bool = False
    attach_required: bool = True
    pod_info_on_mount: bool = False
    lifecycle_modes: tuple[str, ...] = (Lifecycle.PERSISTENT.value,)
    fs_group_policy: str | None = "ReadWriteOnceWithFSType"
    """None: an object that says nothing, which no API server stores."""
    requires_republish: bool = False
    token_requests: tuple[Mapping[str, Any], ...] = ()
    tokens_in_secrets: bool = False


def driver_facts(driver: Mapping[str, Any] | None) -> DriverFacts:
    if driver is None:
        return DriverFacts()
    spec = driver.get("spec") or {}
    return DriverFacts(
        exists=True,
        attach_required=spec.get("attachRequired") is not False,
        pod_info_on_mount=spec.get("podInfoOnMount") is True,
        lifecycle_modes=tuple(spec.get("volumeLifecycleModes") or (Lifecycle.PERSISTENT.value,)),
        fs_group_policy=spec.get("fsGroupPolicy") or None,
        requires_republish=spec.get("requiresRepublish") is True,
        token_requests=tuple(spec.get("tokenRequests") or ()),
        tokens_in_secrets=spec.get("serviceAccountTokenInSecrets") is True,
    )
