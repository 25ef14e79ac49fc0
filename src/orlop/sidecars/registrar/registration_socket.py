"""The registration socket: its path, the service that kubelet calls, and a health check.

kubelet watches a folder. For every socket that appears there it calls GetInfo (which driver, on which endpoint), then
the driver itself, then NotifyRegistrationStatus with the outcome. This module serves both calls and passes the outcome
to the registrar, which decides what to do.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from google.protobuf.message import DecodeError

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.interceptor import CallInterceptor
from orlop.csi.proto import registration_pb2, rpc, services
from orlop.csi.transport import ClientTransport

CSI_PLUGIN: Final = "CSIPlugin"
SUPPORTED_VERSIONS: Final = ("1.0.0",)
"""Versions of the kubelet plugin API, not of CSI; kubelet knows no other."""

OK: Final = 200
NOT_FOUND: Final = 404
WRONG: Final = 500

ServeSocket: TypeAlias = Callable[[UnixEndpoint, CallInterceptor], AbstractAsyncContextManager[Any]]
Connect: TypeAlias = Callable[[UnixEndpoint], ClientTransport]


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistrationFolder:
    """The folder that kubelet watches, as this process sees it, and how to serve and call a socket in it.

    `driver_endpoint` is the driver's own socket as kubelet sees it; in a container both paths differ from ours.
    """

    folder: Path
    driver_endpoint: str
    serve: ServeSocket
    connect: Connect

    def socket_path(self, driver_name: str) -> Path:
        return self.folder / f"{driver_name}-reg.sock"


# ---- the service -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RegistrationStatus:
    """The outcome that kubelet reports with NotifyRegistrationStatus."""

    registered: bool
    error: str = ""


class RegistrationService(services.Registration):
    """Serves kubelet's calls for one driver; `on_outcome` is called with the outcome that kubelet reports."""

    def __init__(self, driver_name: str, endpoint: str, on_outcome: Callable[[RegistrationStatus], None]) -> None:
        self._driver_name = driver_name
        self._endpoint = endpoint
        self._on_outcome = on_outcome

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
        self._on_outcome(RegistrationStatus(request.plugin_registered, request.error))
        return registration_pb2.RegistrationStatusResponse()


# ---- the health check ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SocketHealth:
    """An HTTP status and its text, both as the upstream registrar returns them: liveness probes rely on them."""

    status: int
    text: str


NO_SOCKET: Final = SocketHealth(NOT_FOUND, "registration socket does not exist")


async def socket_health(path: Path, driver_name: str, *, connect: Connect, seconds: float) -> SocketHealth:
    """Call GetInfo on the socket at `path`, as kubelet does, and check that the response names this driver."""
    if (fault := _file_fault(path)) is not None:
        return fault
    connection = connect(UnixEndpoint(str(path)))
    try:
        response = await connection.call(rpc.GET_INFO.path, registration_pb2.InfoRequest().SerializeToString(), seconds)
        name = rpc.GET_INFO.response.FromString(response).name
    except (CsiError, DecodeError) as error:
        return SocketHealth(WRONG, f"error getting info from the registration socket {path}: {error}")
    finally:
        await connection.close()
    return SocketHealth(OK, "ok") if name == driver_name else SocketHealth(WRONG, f"invalid driver name {name}")


def _file_fault(path: Path) -> SocketHealth | None:
    """Return what is wrong with the file: calling a path that is not a socket would wait for the whole timeout."""
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return NO_SOCKET
    except OSError as error:
        return SocketHealth(WRONG, f"cannot inspect the registration socket {path}: {error.strerror}")
    return None if is_socket else SocketHealth(WRONG, f"{path} is not a socket")
