"""Make the provisioner's calls to the driver: with secrets fetched for one call, and only to the right driver."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import Code, CsiError, DeadlineExceeded, Unavailable
from orlop.csi.proto import csi_pb2, rpc
from orlop.csi.rpc_type import Request, Response, Rpc
from orlop.foundation.runtime import Runtime
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient
from orlop.kube.kinds import SECRET, InvalidPath
from orlop.kube.objects import ObjectName
from orlop.kube.secret_values import UnusableSecret, secret_values
from orlop.records.volume_order import SecretReference
from orlop.sidecars.provisioner.create_request_rules import delete_request

MAY_STILL_RUN = frozenset({Code.CANCELLED, Code.DEADLINE_EXCEEDED, Code.UNAVAILABLE, Code.ABORTED})
"""Codes after which the driver may still be at work. For CreateVolume RESOURCE_EXHAUSTED is final, as for upstream."""


class SecretUnavailable(Exception):
    """The sentence names the Secret, and never quotes a value."""


def may_still_run(error: CsiError) -> bool:
    return error.code in MAY_STILL_RUN


class VolumeCalls:
    def __init__(
        self, driver: str, *, runtime: Runtime, csi: CsiClient, kube: KubeClient, may_act: Callable[[], None]
    ) -> None:
        """`may_act` raises if this process has lost its lease; it is called before each call to the driver."""
        self._driver = driver
        self._csi = csi
        self._kube = kube
        self._clock = runtime.clock
        self._log = runtime.log
        self._may_act = may_act

    async def capabilities(self) -> frozenset[str]:
        return await self._csi.controller_capabilities()

    async def create(self, request: csi_pb2.CreateVolumeRequest, deadline: float) -> csi_pb2.Volume:
        """Call CreateVolume. The call ends at `deadline`, by the clock's elapsed time, whenever it is sent."""
        return (await self._call(rpc.CREATE_VOLUME, request, deadline)).volume

    async def delete(self, handle: str, secret: SecretReference | None, deadline: float) -> None:
        await self._call(rpc.DELETE_VOLUME, delete_request(handle, await self._secrets_if_any(secret)), deadline)

    async def secrets(self, reference: SecretReference | None) -> Mapping[str, str]:
        """Return the values of a secret. Raises `SecretUnavailable`."""
        if reference is None:
            return {}
        name = ObjectName(reference.namespace, reference.name)
        try:
            return secret_values(await self._kube.get(SECRET, name))
        except (ApiError, InvalidPath) as error:
            raise SecretUnavailable(f"failed to get secret {name}: {error}") from error
        except UnusableSecret as error:
            raise SecretUnavailable(str(error)) from None

    async def _secrets_if_any(self, reference: SecretReference | None) -> Mapping[str, str]:
        # Whoever deletes a namespace deletes its secrets first. Most drivers can delete a volume without them.
        try:
            return await self.secrets(reference)
        except SecretUnavailable as error:
            self._log.warning("volume is deleted without its secret", error=error)
            return {}

    async def _call(self, method: Rpc[Request, Response], request: Request, deadline: float) -> Response:
        # Before the call: another driver may have taken the socket, and must not be called for our volumes. After it:
        # it may have taken the socket in between, and its success says nothing of our driver.
        await self._check_driver()
        self._may_act()
        # The journal has the deadline. A process that was suspended since it wrote that must not call later.
        within = deadline - self._clock.elapsed()
        if within <= 0:
            raise DeadlineExceeded(f"{method.name} was not called: its deadline had passed before")
        response = await self._csi.call(method, request, within=within)
        await self._check_driver()
        return response

    async def _check_driver(self) -> None:
        try:
            name = await self._csi.driver_name()
        except CsiError as error:
            # Whatever its code: it is no answer to the call, and must not pass for a final one.
            raise Unavailable(f"the driver {self._driver} does not say who it is: {error.message}") from None
        if name != self._driver:
            raise Unavailable(f"the driver {self._driver} is away: {name!r} responds on its socket")
