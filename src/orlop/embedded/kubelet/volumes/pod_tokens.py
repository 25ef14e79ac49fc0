"""Tokens of pods' service accounts, asked of the API server and kept for a while. Never logged, never on disk.

One is kept until it has lived four fifths of its life, or a day, and then asked for anew; while that fails, the old one
is given for as long as it is valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.embedded.kubelet.volumes.volume_values import PodFacts
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log, Secret
from orlop.kube.client import KubeClient
from orlop.kube.errors import ApiError
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
    def __init__(self, client: KubeClient, clock: Clock, log: Log) -> None:
        self._client = client
        self._clock = clock
        self._log = log
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
            self._log.warning("a token could not be renewed; the old one is used", pod=pod.uid, why=error.message)
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
