"""Request bodies in Kubernetes' protobuf envelope become the plain objects that JSON bodies would have been.

kubectl's typed commands, client-go's controllers and the CSI sidecars send these; answers stay JSON. After four bytes
that say so, the envelope (`runtime.Unknown`) holds apiVersion and kind, and the object as bytes. Its content encoding
and content type are sent empty and passed over, as Kubernetes does.

A body comes from anybody: whatever it holds, the outcome is an object, `UnsupportedKind` or `MalformedBody`, in time
and memory that its length bounds. No error repeats what a body holds: it may be a Secret. How long a body may be is
decided by whoever reads it from the connection.
Pure.
"""

from __future__ import annotations

from typing import Final

from onenode.apiserver.proto.message_table import KINDS
from onenode.apiserver.requests.protobuf_messages import JsonObject, Message, ValueField, message
from onenode.apiserver.requests.protobuf_wire import MalformedBody, ProtobufBody, read_text

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
    """The object in `data`. The defaults name its type where the envelope does not; they do not go into the object."""
    body = ProtobufBody(data)
    envelope = _open(body)
    sent: JsonObject = envelope.get("typeMeta", {})
    name = _message_name(sent.get("apiVersion", default_api_version), sent.get("kind", default_kind))
    start, stop = envelope.get("raw", (0, 0))
    return message(name).read(body, start, stop, dict(sent))


def _open(body: ProtobufBody) -> JsonObject:
    if not body.data.startswith(PREFIX):
        raise MalformedBody(f"the body does not begin with the bytes 6b 38 73 00: it is not {MEDIA_TYPE}")
    if len(body.data) == len(PREFIX):
        raise MalformedBody("empty body")
    return _ENVELOPE.read(body, len(PREFIX), len(body.data), {})


def _message_name(api_version: str, kind: str) -> str:
    if not kind:
        raise MalformedBody("the envelope does not name the kind of its object, and the path takes none by itself")
    name = _EVERY_GROUP_HAS.get(kind) or KINDS.get((api_version, kind))
    if name is None:
        raise UnsupportedKind(api_version, kind)
    return name


def _place(_body: ProtobufBody, start: int, stop: int) -> tuple[int, int]:
    return start, stop


def _type_meta(body: ProtobufBody, start: int, stop: int) -> JsonObject:
    return _TYPE_META.read(body, start, stop, {})


_TYPE_META: Final = Message(
    "TypeMeta",
    {10: ValueField("apiVersion", read_text, False), 18: ValueField("kind", read_text, False)},
    {},
)
_ENVELOPE: Final = Message(
    "Unknown",
    {10: ValueField("typeMeta", _type_meta, False), 18: ValueField("raw", _place, False)},
    {},
)
