"""Tokens of the pod's service account, for drivers whose CSIDriver asks for them; `pod_tokens` keeps them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes.csi_driver_facts import DriverFacts
from orlop.embedded.kubelet.volumes.pod_tokens import PodToken, PodTokens
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount
from orlop.kube.errors import ApiError


class ServiceAccountTokens:
    def __init__(self, tools: VolumeTools) -> None:
        self._tokens = PodTokens(tools.client, tools.clock, tools.log)

    async def of(self, mount: DesiredMount, driver: DriverFacts) -> Mapping[str, Any] | None:
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
