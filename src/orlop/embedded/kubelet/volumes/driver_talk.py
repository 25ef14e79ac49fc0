"""One step's talk with a driver: two minutes for all of it, with what must be read before the driver is asked.

The driver's abilities are asked anew for each step, as kubelet does: a driver may have been replaced since. Secrets are
read from the API server for the step and go with it; they are in no error and in no log.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, TypeVar

from google.protobuf.message import Message

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Rpc
from orlop.embedded.kubelet.volumes import event_texts
from orlop.embedded.kubelet.volumes.step_failures import StepFailed, failed_call
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools
from orlop.foundation.clock import Deadline
from orlop.kube.client import KubeClient
from orlop.kube.errors import ApiError
from orlop.kube.kinds import SECRET, InvalidPath
from orlop.kube.objects import ObjectName

STEP_SECONDS: Final = 120.0
Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


class DriverTalk:
    """`prefix` is what an event about a failure of this step begins with."""

    def __init__(self, client: CsiClient, prefix: str, deadline: Deadline) -> None:
        self._client = client
        self._prefix = prefix
        self._deadline = deadline

    async def call(self, method: Rpc[Request, Response], request: Request, asking: str = "") -> Response:
        """`asking` is what kubelet says before the driver's own words."""
        try:
            return await self._client.call(method, request, within=max(0.001, self._deadline.remaining()))
        except CsiError as error:
            raise failed_call(self._prefix, error, asking) from None

    async def abilities(self, asking: str = "") -> frozenset[str]:
        """The names of the Node service's capabilities; a driver that cannot say has changed nothing."""
        try:
            answer = await self.call(rpc.NODE_GET_CAPABILITIES, csi_pb2.NodeGetCapabilitiesRequest(), asking)
        except StepFailed as error:
            raise StepFailed(self._prefix, error.why) from None
        known = csi_pb2.NodeServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
        numbers = [capability.rpc.type for capability in answer.capabilities]
        return frozenset(known[number].name for number in numbers if number in known)


@asynccontextmanager
async def talk_with(tools: VolumeTools, driver: str, prefix: str, doing: str) -> AsyncIterator[DriverTalk]:
    """`doing` is how kubelet calls the step where the driver is not registered."""
    client = tools.drivers.driver(driver)
    if client is None:
        raise StepFailed(prefix, event_texts.not_registered(doing, driver))
    yield DriverTalk(client, prefix, tools.clock.deadline(STEP_SECONDS))


async def read_secret(client: KubeClient, name: ObjectName | None, told: str, prefix: str) -> Mapping[str, str]:
    """All that a Secret holds, as text; `told` are kubelet's words, with a `{name}` and an `{error}` in them."""
    if name is None:
        return {}
    try:
        secret = await client.get(SECRET, name)
    except ApiError as error:
        raise StepFailed(prefix, told.format(name=name, error=error.message)) from None
    except InvalidPath as error:
        raise StepFailed(prefix, told.format(name=name, error=error)) from None
    return _texts(secret)


def _texts(secret: Mapping[str, Any]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, value in (secret.get("data") or {}).items():
        try:
            found[key] = base64.b64decode(value).decode("utf-8", "replace")
        except (binascii.Error, TypeError, ValueError):
            found[key] = ""
    return found
