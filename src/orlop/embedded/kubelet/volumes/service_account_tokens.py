"""Tokens of the pod's service account, for drivers whose CSIDriver asks for them. Never logged, never on disk.

One is kept until it has lived four fifths of its life, or a day, and then asked for anew.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.csi_driver_facts import DriverFacts
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount, PodFacts
from orlop.foundation.structured_log import Secret
from orlop.kube.errors import ApiError
from orlop.kube.kinds import SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, read_time

LONGEST_USE: Final = timedelta(hours=24)
SHARE_OF_LIFE: Final = 0.8


@dataclass(frozen=True, slots=True)
class _Kept:
    token: Secret[str]
    expires: str
    until: datetime


class ServiceAccountTokens:
    def __init__(self, tools: VolumeTools) -> None:
        self._client = tools.client
        self._clock = tools.clock
        self._kept: dict[tuple[str, str, int], _Kept] = {}

    async def of(self, mount: DesiredMount, driver: DriverFacts) -> Mapping[str, Any] | None:
        """By audience, as the driver gets them; None: it asks for none."""
        if not driver.token_requests:
            return None
        self._forget_old()
        found: dict[str, Any] = {}
        for request in driver.token_requests:
            audience = str(request.get("audience") or "")
            kept = await self._token(mount.pod, audience, int(request.get("expirationSeconds") or 0))
            found[audience] = {"token": kept.token.reveal(), "expirationTimestamp": kept.expires}
        return found

    def _forget_old(self) -> None:
        now = self._clock.now()
        self._kept = {key: kept for key, kept in self._kept.items() if now < kept.until}

    async def _token(self, pod: PodFacts, audience: str, seconds: int) -> _Kept:
        key = (pod.uid, audience, seconds)
        if key not in self._kept:
            self._kept[key] = await self._ask(pod, audience, seconds)
        return self._kept[key]

    async def _ask(self, pod: PodFacts, audience: str, seconds: int) -> _Kept:
        bound_to = {"apiVersion": "v1", "kind": "Pod", "name": pod.name.name, "uid": pod.uid}
        spec: dict[str, Any] = {"audiences": [audience] if audience else [], "boundObjectRef": bound_to}
        if seconds:
            spec["expirationSeconds"] = seconds
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = ObjectName(pod.name.namespace, pod.service_account or "default")
        asked_at = self._clock.now()
        try:
            answer = await self._client.create_subresource(SERVICE_ACCOUNT, account, "token", body)
        except ApiError as error:
            why = f"mounter.SetUpAt failed to get service accoount token attributes: {error.message}"
            raise StepFailed(texts.SET_UP, f"{texts.PLUGIN}{why}") from None
        status = answer.get("status") or {}
        return _kept(str(status.get("token") or ""), str(status.get("expirationTimestamp") or ""), asked_at)


def _kept(token: str, expires: str, asked_at: datetime) -> _Kept:
    life = read_time(expires) - asked_at if expires else timedelta(0)
    return _Kept(Secret(token), expires, asked_at + min(LONGEST_USE, life * SHARE_OF_LIFE))
