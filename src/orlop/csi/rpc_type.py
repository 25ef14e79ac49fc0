"""The type of one RPC: its name, its path on the wire and its two message types.

`orlop.csi.proto.rpc` holds one constant of this type for each RPC; servers and clients are built from those constants.
"""

from dataclasses import dataclass
from typing import Generic, TypeVar

from google.protobuf.message import Message

Request = TypeVar("Request", bound=Message)
Response = TypeVar("Response", bound=Message)


@dataclass(frozen=True, slots=True)
class Rpc(Generic[Request, Response]):
    """One RPC: `service` is the short name ("Identity"), `path` is what gRPC sends ("/csi.v1.Identity/Probe")."""

    service: str
    name: str
    path: str
    request: type[Request]
    response: type[Response]
    streams: bool
    """Whether the server sends a stream of responses instead of one."""
