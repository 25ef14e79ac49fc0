"""The token with which a client asks for the next page of a list: the version of the first page, and where it ended.

It looks like Kubernetes' own, and is as opaque: clients hand it back as it is. Pure.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from typing import Final

import msgspec

from orlop.embedded.apiserver.status_answers import Refusal, bad_request

FORMAT: Final = "meta.k8s.io/v1"
LONGEST: Final = 4096
# Behind the name, so that a name which begins with this one comes later.
END: Final = "\0"
NEWEST: Final = -1
"""In place of a revision: whatever is newest then."""


@dataclass(frozen=True, slots=True)
class ContinueToken:
    revision: int
    namespace: str
    name: str


class _Wire(msgspec.Struct):
    v: str
    rv: int
    start: str


_DECODER: Final = msgspec.json.Decoder(_Wire)


def write_token(token: ContinueToken) -> str:
    place = f"{token.namespace}/{token.name}" if token.namespace else token.name
    text = msgspec.json.encode(_Wire(FORMAT, token.revision, place + END))
    return base64.urlsafe_b64encode(text).rstrip(b"=").decode()


def read_token(text: str) -> ContinueToken:
    if len(text) > LONGEST:
        raise _refused(f"it is longer than {LONGEST} characters")
    try:
        wire = _DECODER.decode(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except (ValueError, binascii.Error, msgspec.DecodeError):
        raise _refused("it is not one of this server's") from None
    namespace, _, name = wire.start.removesuffix(END).rpartition("/")
    if wire.v != FORMAT or (wire.rv < 1 and wire.rv != NEWEST) or not name or "/" in namespace:
        raise _refused("it is not one of this server's")
    return ContinueToken(wire.rv, namespace, name)


def _refused(why: str) -> Refusal:
    return bad_request(f"invalid continue token: {why}")
