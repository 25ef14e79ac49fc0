"""Request bodies in Kubernetes' protobuf envelope become the plain objects that JSON bodies would have been.

kubectl's typed commands, client-go's controllers and the CSI sidecars send these; answers stay JSON. After four bytes
that mark it, the envelope (`runtime.Unknown`) holds apiVersion and kind, and the object as bytes. Its content encoding
and content type are sent empty and passed over, as Kubernetes does.

A body comes from anybody: whatever it holds, the outcome is an object, `UnsupportedKind` or `MalformedBody`, in time
and memory that its length bounds. No error repeats what a body holds: it may be a Secret. How long a body may be is
decided by the reader of the connection.
Pure.
"""

from __future__ import annotations

from typing import Final

from onenode.apiserver.requests.protobuf_messages import KINDS, JsonObject, MalformedBody, parsed, read_message

__all__ = ["MEDIA_TYPE", "MalformedBody", "UnsupportedKind", "decode_body"]

MEDIA_TYPE: Final = "application/vnd.kubernetes.protobuf"
PREFIX: Final = b"k8s\0"
_EVERY_GROUP_HAS: Final = {"DeleteOptions": "meta.DeleteOptions"}


class UnsupportedKind(ValueError):
    """A kind that is not read in protobuf form; to client-go the answer, 415, is final."""

    def __init__(self, api_version: str, kind: str) -> None:
        super().__init__(f"{api_version} {kind} is not read in protobuf form: send it as application/json")
        self.api_version = api_version
        self.kind = kind


def decode_body(data: bytes, *, default_api_version: str = "", default_kind: str = "") -> JsonObject:
    """Return the object in `data`. The defaults name its type where the envelope does not, and are not added to it."""
    if not data.startswith(PREFIX):
        raise MalformedBody(f"the body does not begin with the bytes 6b 38 73 00: it is not {MEDIA_TYPE}")
    if len(data) == len(PREFIX):
        raise MalformedBody("empty body")
    envelope = parsed("Unknown", data[len(PREFIX) :])
    sent = {"apiVersion": envelope.typeMeta.apiVersion, "kind": envelope.typeMeta.kind}
    name = _message_name(sent["apiVersion"] or default_api_version, sent["kind"] or default_kind)
    return {**{key: text for key, text in sent.items() if text}, **read_message(name, envelope.raw)}


def _message_name(api_version: str, kind: str) -> str:
    if not kind:
        raise MalformedBody("the envelope does not name the kind of its object, and the path takes none by itself")
    name = _EVERY_GROUP_HAS.get(kind) or KINDS.get((api_version, kind))
    if name is None:
        raise UnsupportedKind(api_version, kind)
    return name
