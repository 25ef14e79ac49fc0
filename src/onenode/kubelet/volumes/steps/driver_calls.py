"""One step's talk with a driver: two minutes for all of it, with what must be read before the driver is asked.

The driver's capabilities are read anew for each step, as kubelet does: a driver may have been replaced since. Secrets
are read from the API server for the step and go with it; they are in no error and in no log.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Final, TypeAlias, TypeVar

from google.protobuf.message import Message

from onenode.kubelet.volumes.steps import event_texts
from onenode.kubelet.volumes.steps.local_driver import LocalDriver
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed, failed_call
from onenode.kubelet.volumes.volume_seams import StepDrivers
from onenode.kubelet.volumes.volume_values import LOCAL_DRIVER
from orlop.csi.client import CsiClient
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Rpc
from orlop.foundation.clock import Clock, Deadline
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient
from orlop.kube.kinds import SECRET, InvalidPath
from orlop.kube.objects import ObjectName
from orlop.kube.secret_values import UnusableSecret, secret_values

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

    async def capabilities(self, asking: str = "") -> frozenset[str]:
        """The names of the Node service's capabilities; a driver that cannot say has changed nothing."""
        try:
            answer = await self.call(rpc.NODE_GET_CAPABILITIES, csi_pb2.NodeGetCapabilitiesRequest(), asking)
        except StepFailed as error:
            raise StepFailed(self._prefix, error.why) from None
        known = csi_pb2.NodeServiceCapability.RPC.Type.DESCRIPTOR.values_by_number
        numbers = [capability.rpc.type for capability in answer.capabilities]
        return frozenset(known[number].name for number in numbers if number in known)


AnyTalk: TypeAlias = DriverTalk | LocalDriver


@asynccontextmanager
async def talk_with(drivers: StepDrivers, clock: Clock, driver: str, prefix: str, doing: str) -> AsyncIterator[AnyTalk]:
    """Enter a session with the driver. `doing` is kubelet's name of the step, for the error if it is not registered."""
    if driver == LOCAL_DRIVER:
        yield LocalDriver(drivers.disk, prefix)
        return
    client = drivers.driver(driver)
    if client is None:
        raise StepFailed(prefix, event_texts.not_registered(doing, driver))
    yield DriverTalk(client, prefix, clock.deadline(STEP_SECONDS))


async def read_secret(client: KubeClient, name: ObjectName | None, words: str, prefix: str) -> Mapping[str, str]:
    """Return the values of a Secret as text. `words` are kubelet's, with a `{name}` and an `{error}` in them.

    A value that is not text fails the step before the driver is called: kubelet passes its bytes on, and the driver's
    protobuf library replaces or refuses them without naming the key.
    """
    if name is None:
        return {}
    try:
        return secret_values(await client.get(SECRET, name))
    except ApiError as error:
        raise StepFailed(prefix, words.format(name=name, error=error.message)) from None
    except (InvalidPath, UnusableSecret) as error:
        raise StepFailed(prefix, words.format(name=name, error=error)) from None
