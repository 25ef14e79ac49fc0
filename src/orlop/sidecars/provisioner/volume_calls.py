"""Call CreateVolume and DeleteVolume: with secrets read for this call, and only if the expected driver responds."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from orlop.csi.client import CsiClient
from orlop.csi.error_codes import Code, CsiError, DeadlineExceeded, Delivery, error_of, unsent
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
"""Status codes that are not final: the driver may still execute the call. RESOURCE_EXHAUSTED is final, as upstream."""


TIMER_SECONDS = 0.01
"""How much too early an event loop may end a call at its deadline."""


class SecretUnavailable(Exception):
    """A Secret cannot be read or used. The message names the Secret, and never quotes a value."""


def may_still_run(error: CsiError) -> bool:
    """Return whether the driver may still execute the call that failed with this error, or has executed it.

    An error that our client made after it sent the request proves nothing, whatever its code.
    """
    if error.delivery is Delivery.RETURNED:
        return error.code in MAY_STILL_RUN
    return error.delivery is Delivery.UNANSWERED


class VolumeCalls:
    def __init__(
        self,
        driver: str,
        *,
        timeout: float,
        runtime: Runtime,
        csi: CsiClient,
        kube: KubeClient,
        may_act: Callable[[], None],
    ) -> None:
        """Create it. Callers compute deadlines from `timeout`. `may_act` raises if this process has lost its lease."""
        self._driver = driver
        self._timeout = timeout
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
        await self._call(rpc.DELETE_VOLUME, delete_request(handle, await self.secrets_if_any(secret)), deadline)

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

    async def secrets_if_any(self, reference: SecretReference | None) -> Mapping[str, str]:
        """Return the values of a secret; none if it cannot be read. For calls whose end is to delete a volume."""
        # When a namespace is deleted, its secrets may be gone before its volumes. Call the driver all the same: most
        # drivers do not need a secret to delete a volume, and others return an error.
        try:
            return await self.secrets(reference)
        except SecretUnavailable as error:
            self._log.warning("secret cannot be read; calling the driver without it", error=error)
            return {}

    async def _call(self, method: Rpc[Request, Response], request: Request, deadline: float) -> Response:
        # Check the driver's name before and after the call. Before: another driver may listen on the socket now, and
        # must not get our calls. After: it may have replaced ours in between, and then its success proves nothing.
        await self._check_driver(Delivery.UNSENT)
        self._may_act()
        # The deadline is in the journal, and the next process relies on it: a process that was suspended after it wrote
        # the journal must not call the driver later.
        within = deadline - self._clock.elapsed()
        if within <= 0:
            raise unsent(Code.DEADLINE_EXCEEDED, f"{method.name} was not called: its deadline had already passed")
        try:
            response = await self._csi.call(method, request, within=within)
        except DeadlineExceeded as error:
            if self._clock.elapsed() < deadline - TIMER_SECONDS:
                raise
            # Use the timeout and not the remaining time: that differs with each retry, and the API server counts only
            # equal events as repetitions.
            sentence = f"no response within {self._timeout:g} seconds"
            raise error_of(error.code, sentence, error.delivery) from None
        await self._check_driver(Delivery.UNANSWERED)
        return response

    async def _check_driver(self, delivery: Delivery) -> None:
        """Raise `Unavailable`, with this delivery of the call that is checked, unless the expected driver responds."""
        try:
            name = await self._csi.driver_name()
        except CsiError as error:
            # Do not raise it with its own code: that could be mistaken for a final status of Create- or DeleteVolume.
            problem = f"the driver {self._driver} does not return its name: {error.message}"
            raise error_of(Code.UNAVAILABLE, problem, delivery) from None
        if name != self._driver:
            problem = f"the driver {self._driver} is not available: {name!r} responds on its socket"
            raise error_of(Code.UNAVAILABLE, problem, delivery)
