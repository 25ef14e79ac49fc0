"""What kubelet asks on a registration socket: who the driver is and where it listens; and what it says of the outcome.

Answers, and hands the outcome on: what follows from it is not decided here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from orlop.csi.proto import registration_pb2, services

CSI_PLUGIN: Final = "CSIPlugin"
SUPPORTED_VERSIONS: Final = ("1.0.0",)
"""Of the interface between kubelet and the driver, in the only form that kubelet knows."""


@dataclass(frozen=True, slots=True)
class Outcome:
    registered: bool
    error: str = ""


class RegistrationService(services.Registration):
    """`endpoint` is the driver's socket as kubelet sees it, which is not where we see it."""

    def __init__(self, driver_name: str, endpoint: str, when_told: Callable[[Outcome], None]) -> None:
        self._driver_name = driver_name
        self._endpoint = endpoint
        self._when_told = when_told

    async def GetInfo(self, request: registration_pb2.InfoRequest) -> registration_pb2.PluginInfo:  # noqa: ARG002
        return registration_pb2.PluginInfo(
            type=CSI_PLUGIN,
            name=self._driver_name,
            endpoint=self._endpoint,
            supported_versions=SUPPORTED_VERSIONS,
        )

    async def NotifyRegistrationStatus(
        self, request: registration_pb2.RegistrationStatus
    ) -> registration_pb2.RegistrationStatusResponse:
        self._when_told(Outcome(request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()
