"""Tokens of pods' service accounts: requested from the API server, kept for a while, sent to drivers that ask for them.

Never logged, never on disk. One is kept until it has lived four fifths of its life, or a day, and then requested again;
while that fails, the old one is used for as long as it is valid.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.csi_request_rules import CsiDriverFacts
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed
from onenode.kubelet.volumes.volume_values import DesiredMount, PodFacts
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Secret
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient
from orlop.kube.kinds import SERVICE_ACCOUNT
from orlop.kube.objects import ObjectName, read_time

LONGEST_USE: Final = timedelta(hours=24)
SHARE_OF_LIFE: Final = 0.8


@dataclass(frozen=True, slots=True)
class PodToken:
    token: Secret[str]
    expires: str
    renewed_from: datetime
    valid_until: datetime


class PodTokens:
    def __init__(self, client: KubeClient, runtime: Runtime) -> None:
        self._client = client
        self._clock = runtime.clock
        self._log = runtime.log
        self._kept: dict[tuple[str, str, int], PodToken] = {}

    async def token(self, pod: PodFacts, audience: str, seconds: int) -> PodToken:
        """Bound to the pod; no seconds: as long as the server likes. Raises ApiError."""
        self._forget_expired()
        key = (pod.uid, audience, seconds)
        kept = self._kept.get(key)
        if kept is not None and self._clock.now() < kept.renewed_from:
            return kept
        try:
            self._kept[key] = await self._ask(pod, audience, seconds)
        except ApiError as error:
            if kept is None or self._clock.now() >= kept.valid_until:
                raise
            self._log.warning("service account token not renewed; using the old one", pod=pod.uid, why=error.message)
        return self._kept[key]

    def forget(self, pod_uid: str) -> None:
        """The pod is gone."""
        self._kept = {key: kept for key, kept in self._kept.items() if key[0] != pod_uid}

    def _forget_expired(self) -> None:
        now = self._clock.now()
        self._kept = {key: kept for key, kept in self._kept.items() if now < kept.valid_until}

    async def _ask(self, pod: PodFacts, audience: str, seconds: int) -> PodToken:
        bound_to = {"apiVersion": "v1", "kind": "Pod", "name": pod.name.name, "uid": pod.uid}
        spec: dict[str, Any] = {"audiences": [audience] if audience else [], "boundObjectRef": bound_to}
        if seconds:
            spec["expirationSeconds"] = seconds
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        account = ObjectName(pod.name.namespace, pod.service_account or "default")
        asked_at = self._clock.now()
        answer = await self._client.create_subresource(SERVICE_ACCOUNT, account, "token", body)
        status = answer.get("status") or {}
        return _kept(str(status.get("token") or ""), str(status.get("expirationTimestamp") or ""), asked_at)


def _kept(token: str, expires: str, asked_at: datetime) -> PodToken:
    life = read_time(expires) - asked_at if expires else timedelta(0)
    return PodToken(Secret(token), expires, asked_at + min(LONGEST_USE, life * SHARE_OF_LIFE), asked_at + life)


class ServiceAccountTokens:
    def __init__(self, client: KubeClient, runtime: Runtime) -> None:
        self._tokens = PodTokens(client, runtime)

    async def of(self, mount: DesiredMount, driver: CsiDriverFacts) -> Mapping[str, Any] | None:
        """By audience, as the driver gets them; None: it asks for none."""
        if not driver.token_requests:
            return None
        found: dict[str, Any] = {}
        for request in driver.token_requests:
            audience = str(request.get("audience") or "")
            kept = await self._token(mount, audience, int(request.get("expirationSeconds") or 0))
            found[audience] = {"token": kept.token.reveal(), "expirationTimestamp": kept.expires}
        return found

    async def _token(self, mount: DesiredMount, audience: str, seconds: int) -> PodToken:
        try:
            return await self._tokens.token(mount.pod, audience, seconds)
        except ApiError as error:
            why = f"mounter.SetUpAt failed to get service accoount token attributes: {error.message}"
            raise StepFailed(texts.SET_UP, f"{texts.PLUGIN}{why}") from None
