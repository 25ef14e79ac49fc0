"""The type of one remote procedure of an interface: its name, its path on the wire and its two messages.

`orlop.csi.proto.rpc` holds one constant of this type for each RPC; servers and clients are built from those constants.
It must know nothing of gRPC channels or servers, nor of what a driver does with a request.
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
    """Whether the server answers with a stream of responses instead of one."""
