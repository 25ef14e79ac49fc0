"""Whether kubelet could register the driver right now: asked over the very socket, as kubelet asks.

The answers are those of the upstream registrar, by which liveness probes were written: 200 `ok`, 404 where there is no
socket, 500 for everything else.
"""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.proto import registration_pb2, rpc
from orlop.csi.transport import ClientTransport

OK: Final = 200
NOT_FOUND: Final = 404
WRONG: Final = 500


@dataclass(frozen=True, slots=True)
class Health:
    """A status of HTTP and a sentence."""

    status: int
    text: str


NO_SOCKET: Final = Health(NOT_FOUND, "registration socket does not exist")


async def health_of(
    path: Path, driver_name: str, *, connect: Callable[[UnixEndpoint], ClientTransport], within: float
) -> Health:
    objection = _why_not_to_ask(path)
    return objection or await _asked(path, driver_name, connect(UnixEndpoint(str(path))), within)


def _why_not_to_ask(path: Path) -> Health | None:
    try:
        is_socket = stat.S_ISSOCK(path.lstat().st_mode)
    except FileNotFoundError:
        return NO_SOCKET
    except OSError as error:
        return Health(WRONG, f"the registration socket {path} cannot be looked at: {error.strerror}")
    return None if is_socket else Health(WRONG, f"{path} is no socket")


async def _asked(path: Path, driver_name: str, connection: ClientTransport, within: float) -> Health:
    question = registration_pb2.InfoRequest().SerializeToString()
    try:
        answer = await connection.call(rpc.GET_INFO.path, question, within)
        name = rpc.GET_INFO.response.FromString(answer).name
    except (CsiError, DecodeError) as error:
        return Health(WRONG, f"error getting info from the registration socket {path}: {error}")
    finally:
        await connection.close()
    return Health(OK, "ok") if name == driver_name else Health(WRONG, f"invalid driver name {name}")
