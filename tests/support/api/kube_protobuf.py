"""Kubernetes objects as Go writes them in protobuf form, and objects to write: one full, one empty, or drawn.

The opposite of `onenode/apiserver/requests/protobuf_messages`, written apart from it over the same definitions: every
field that Go does not hold by a pointer is written, empty or not.
"""

from __future__ import annotations

import json
import re
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from onenode.apiserver.requests.protobuf_bodies import decode_body
from support.api.kube_messages import KINDS, MESSAGES

Json = dict[str, Any]
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = ("Quantity", "Time", "MicroTime", "IntOrString", "RawJson", "TextList")
NEVER_EMPTY = {"Quantity": "0", "IntOrString": 0}
"""Structs without an empty form: Go writes them to JSON even where omitempty stands."""
DEEPEST_DRAWN = 8


@dataclass(frozen=True)
class TableField:
    number: int
    name: str
    mark: str
    kind: str

    @property
    def is_object(self) -> bool:
        return self.kind in MESSAGES and self.kind not in FORMS

    @property
    def is_value(self) -> bool:
        """Held by value in Go: written whether or not it is set."""
        return self.mark in {"", "!"}


def table_fields(message: str) -> Iterator[TableField]:
    for text in filter(None, MESSAGES[message].split(", ")):
        number, name, rest = text.split(" ")
        mark, kind = re.fullmatch(r"([^\w]*)([\w.]+)", rest).groups()  # type: ignore[union-attr]
        yield TableField(int(number), name, mark, kind)


# What is written.


def varint(value: int) -> bytes:
    value &= 2**64 - 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def tag(number: int, wire_type: int) -> bytes:
    return varint(number << 3 | wire_type)


def stretch(number: int, content: bytes | str) -> bytes:
    content = content.encode() if isinstance(content, str) else content
    return tag(number, 2) + varint(len(content)) + content


def number(field: int, value: int) -> bytes:
    return tag(field, 0) + varint(value)


def envelope(api_version: str, kind: str, raw: bytes) -> bytes:
    type_meta = stretch(1, api_version) + stretch(2, kind)
    return b"k8s\0" + stretch(1, type_meta) + stretch(2, raw) + stretch(3, "") + stretch(4, "")


def encode_like_go(document: Json) -> bytes:
    api_version, kind = document["apiVersion"], document["kind"]
    return envelope(api_version, kind, message_bytes(KINDS[api_version, kind], document))


def message_bytes(message: str, members: Json) -> bytes:
    return b"".join(field_bytes(field, members) for field in table_fields(message))


def field_bytes(field: TableField, members: Json) -> bytes:
    value = members.get(field.name)
    match field.mark.removeprefix("!"):
        case "<":
            return one_bytes(field.number, field.kind, members)
        case "[]":
            return b"".join(one_bytes(field.number, field.kind, item) for item in value or [])
        case "{}":
            entries = ((stretch(1, key) + one_bytes(2, field.kind, item)) for key, item in (value or {}).items())
            return b"".join(stretch(field.number, entry) for entry in entries)
        case "*" if value is None:
            return b""
        case _:
            return one_bytes(field.number, field.kind, value)


def one_bytes(field: int, kind: str, value: Any) -> bytes:
    if kind in {"bool", "int32", "int64"}:
        return number(field, int(value or 0))
    if kind == "string":
        return stretch(field, value or "")
    if kind == "bytes":
        return stretch(field, b64decode(value or ""))
    if kind in FORMS:
        return stretch(field, FORM_BYTES[kind](value))
    return stretch(field, message_bytes(kind, value or {}))


def time_bytes(text: str | None) -> bytes:
    if text is None:
        return b""
    since = datetime.fromisoformat(text) - EPOCH
    return number(1, since.days * 86400 + since.seconds) + number(2, since.microseconds * 1000)


def int_or_string_bytes(value: int | str | None) -> bytes:
    is_text = isinstance(value, str)
    return number(1, is_text) + number(2, 0 if is_text else int(value or 0)) + stretch(3, value if is_text else "")


FORM_BYTES: dict[str, Callable[[Any], bytes]] = {
    "Quantity": lambda text: stretch(1, text or "0"),
    "Time": time_bytes,
    "MicroTime": time_bytes,
    "IntOrString": int_or_string_bytes,
    "RawJson": lambda value: stretch(1, json.dumps(value)),
    "TextList": lambda items: b"".join(stretch(1, item) for item in items or []),
}

# What is read of it.


def decoded(kind: str, raw: bytes, api_version: str = "v1") -> dict[str, Any]:
    """What a body with these bytes as its object becomes, without its type."""
    document = decode_body(envelope(api_version, kind, raw))
    assert (document.pop("apiVersion"), document.pop("kind")) == (api_version, kind)
    return document


def managed_fields(raw: bytes | str) -> dict[str, Any]:
    entry = stretch(17, stretch(7, stretch(1, raw)))
    members: dict[str, Any] = decoded("Pod", stretch(1, entry))["metadata"]["managedFields"][0]
    return members


# What there is to write: objects as JSON would give them.

ZERO: dict[str, Any] = {"string": "", "bytes": "", "bool": False, "int32": 0, "int64": 0}


def empty_object(message: str) -> Json:
    """What JSON shows of a message of which nothing is set."""
    members: Json = {}
    for field in table_fields(message):
        members |= _empty_member(field)
    return members


def _empty_member(field: TableField) -> Json:
    if field.mark == "<":
        return empty_object(field.kind)
    if field.mark == "![]":
        return {field.name: []}
    if field.is_value and field.kind in NEVER_EMPTY:
        return {field.name: NEVER_EMPTY[field.kind]}
    if field.is_value and field.is_object:
        inner = empty_object(field.kind)
        return {field.name: inner} if inner or field.mark == "!" else {}
    # Raw JSON that is not set is null.
    return {field.name: ZERO[field.kind]} if field.mark == "!" and field.kind in ZERO else {}


FULL: dict[str, Callable[[str], Any]] = {
    "string": lambda name: f"{name}-text",
    "bytes": lambda name: b64encode(name.encode() + b"\xff\0").decode(),
    "bool": lambda name: True,
    "int32": lambda name: -len(name),
    "int64": lambda name: 2**40 + len(name),
    "Quantity": lambda name: f"{len(name)}Gi",
    "Time": lambda name: f"2026-08-02T03:04:{len(name):02}Z",
    "MicroTime": lambda name: f"2026-08-02T03:04:05.{len(name):06}Z",
    "IntOrString": lambda name: name,
    "RawJson": lambda name: {"f:spec": {f"f:{name}": {}}},
    "TextList": lambda name: [name, ""],
}


def full_object(message: str) -> Json:
    """Every field set."""
    members: Json = {}
    for field in table_fields(message):
        value = FULL[field.kind](field.name) if field.kind in FULL else full_object(field.kind)
        if field.mark == "<":
            members |= value
        else:
            members[field.name] = _in_container(field, value)
    return members


def _in_container(field: TableField, value: Any) -> Any:
    if "[]" in field.mark:
        return [value, value]
    return {"one": value, "": value} if "{}" in field.mark else value


texts = st.text(st.characters(codec="utf-8"), max_size=8)
times = st.datetimes(datetime(1, 1, 2), datetime(9999, 12, 30))  # noqa: DTZ001
DRAWN: dict[str, st.SearchStrategy[Any]] = {
    "string": texts,
    "bytes": st.binary(max_size=8).map(lambda data: b64encode(data).decode()),
    "bool": st.booleans(),
    "int32": st.integers(-(2**31), 2**31 - 1),
    "int64": st.integers(-(2**63), 2**63 - 1),
    "Quantity": st.sampled_from(["0", "1", "5Gi", "100m", "1e3", "9223372036854775807"]),
    "Time": times.map(lambda moment: moment.replace(microsecond=0).isoformat() + "Z"),
    "MicroTime": times.map(lambda moment: moment.isoformat(timespec="microseconds") + "Z"),
    "IntOrString": st.integers(-(2**31), 2**31 - 1) | texts,
    "RawJson": st.recursive(
        st.none() | st.booleans() | st.integers(-(2**53), 2**53) | texts,
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
        max_leaves=4,
    ).map(lambda value: {"f:x": value}),
    "TextList": st.lists(texts, max_size=2),
}


# Drawing an object costs milliseconds: a tenth of the soak's examples still fits into a test's minute.
of_drawn_objects = settings(max_examples=max(100, settings().max_examples // 10))


@st.composite
def drawn_documents(draw: st.DrawFn) -> Json:
    """An object of any kind that is read in protobuf form."""
    (api_version, kind), message = draw(st.sampled_from(sorted(KINDS.items())))
    return {"apiVersion": api_version, "kind": kind, **_drawn_object(draw, message, depth=0)}


def _drawn_object(draw: st.DrawFn, message: str, depth: int) -> Json:
    fields = list(table_fields(message))
    most = 3 if depth < DEEPEST_DRAWN else 0
    chosen = draw(st.lists(st.sampled_from(fields), max_size=most, unique=True)) if fields else []
    members = empty_object(message)
    for field in chosen:
        members |= _drawn_member(draw, field, depth)
    return members


def _drawn_member(draw: st.DrawFn, field: TableField, depth: int) -> Json:
    if field.mark == "<":
        return _drawn_object(draw, field.kind, depth + 1)
    value = _drawn_value(draw, field, depth)
    if field.mark == "" and field.kind in NEVER_EMPTY:
        return {field.name: value}
    return {} if field.mark in {"", "[]", "{}"} and not value else {field.name: value}


def _drawn_value(draw: st.DrawFn, field: TableField, depth: int) -> Any:
    def one() -> Any:
        return draw(DRAWN[field.kind]) if field.kind in DRAWN else _drawn_object(draw, field.kind, depth + 1)

    if "[]" in field.mark:
        return [one() for _ in range(draw(st.integers(0, 2)))]
    if "{}" in field.mark:
        return {key: one() for key in draw(st.sets(texts, max_size=2))}
    return one()
