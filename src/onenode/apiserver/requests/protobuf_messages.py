"""From a protobuf message to the object it is in JSON, as Kubernetes' own Go types would write that object.

google.protobuf reads the bytes, by our own definitions of the messages (`onenode/apiserver/proto`); this module gives
what it has read the form of JSON. Go writes every field that is not a pointer, empty or not; in the JSON it is left out
when it is empty, unless the definition marks it `always`. Where Go writes null, the member is left out (to Kubernetes
that is the same), and `[]` stands for an empty list that Go always writes. Fields without a definition are passed over;
one with a wrong wire type is an error, as it is in Go.

No message holds itself, so the definitions bound the depth of a body. The members of a message are derived from its
definition when the first one of its kind arrives. Pure: bytes in, plain values out.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

import msgspec
from google.protobuf import descriptor_pool
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet

from onenode.apiserver.proto.message_descriptors import DESCRIPTORS

JsonObject = dict[str, Any]

MOST_FIELDS: Final = 100_000
"""Of one body: those of a pod with 1,500 containers, or of a ConfigMap with 33,000 keys."""
DEEPEST_RAW_JSON: Final = 100
PACKAGE: Final = "orlop.kube."

_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - written with a Z below; an offset would be written as +00:00
_UNSET: Final = datetime.min  # noqa: DTZ901 - Go's zero time, which it writes as null
_TEXT_TYPE: Final = 1


class MalformedBody(ValueError):
    """A body that is not what its content type promises; the text says what is wrong."""


def read_message(name: str, data: bytes) -> JsonObject:
    """Return the object in the bytes of one message."""
    return _Reading().members(parsed(name, data))


def parsed(name: str, data: bytes) -> Any:
    """Return the message in the bytes, as google.protobuf has it."""
    try:
        return _message_class(name).FromString(data)
    except DecodeError as error:
        # The library names the kind of message and what is wrong, and repeats nothing of the bytes.
        raise MalformedBody(str(error).replace(PACKAGE, "")) from None


# ---- definitions -----------------------------------------------------------------------------------------------------


def _load() -> dict[tuple[str, str], str]:
    """Add our definitions to the library's pool; return the messages that are bodies, by apiVersion and kind."""
    kinds: dict[tuple[str, str], str] = {}
    for file in FileDescriptorSet.FromString(DESCRIPTORS).file:
        added = _POOL.AddSerializedFile(file.SerializeToString())
        for name, descriptor in added.message_types_by_name.items():
            if version := _option(descriptor, "api_version"):
                kinds[version, name] = descriptor.full_name.removeprefix(PACKAGE)
    return kinds


def _option(descriptor: Descriptor | FieldDescriptor, name: str) -> Any:
    """Return the value of one of the options that json_form.proto defines."""
    options: Any = descriptor.GetOptions()
    return options.Extensions[_POOL.FindExtensionByName(f"{PACKAGE}{name}")]


_POOL: Final = descriptor_pool.Default()
KINDS: Final[Mapping[tuple[str, str], str]] = _load()


@cache
def _message_class(name: str) -> type[Message]:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{PACKAGE}{name}"))


@dataclass(frozen=True, slots=True)
class JsonMember:
    """A field as a member of a JSON object: `name` is empty for inline fields, `form` None where it changes nothing."""

    name: str
    form: ValueForm | None
    is_kept_empty: bool


@dataclass(frozen=True, slots=True)
class MessageShape:
    """The fields of a message; `empty` is the JSON of one whose fields are all empty."""

    members: Members
    numbers: frozenset[int]
    empty: bytes


@cache
def _shape(descriptor: Descriptor) -> MessageShape:
    members = {field: _member(field) for field in descriptor.fields}
    empty = GetMessageClass(descriptor)()
    always = [(field, getattr(empty, field.name)) for field in descriptor.fields if _is_always_shown(field)]
    shown = _Reading().shown(members, always, {})
    return MessageShape(members, frozenset(field.number for field in descriptor.fields), msgspec.json.encode(shown))


def _is_always_shown(field: FieldDescriptor) -> bool:
    return bool(_option(field, "always") or _option(field, "inline"))


def _member(field: FieldDescriptor) -> JsonMember:
    """A field that is `optional` counts by its presence: its value may be empty."""
    name = "" if _option(field, "inline") else field.json_name
    is_kept_empty = _option(field, "always") or field.is_repeated or field.containing_oneof is not None
    return JsonMember(name, _form(field), is_kept_empty)


# ---- reading ---------------------------------------------------------------------------------------------------------


class _Reading:
    """One body on its way into JSON: its fields are counted, so that it costs no more than the largest honest one."""

    def __init__(self) -> None:
        self._fields_left = MOST_FIELDS

    def members(self, message: Message) -> JsonObject:
        shape, sent = _shape(message.DESCRIPTOR), message.ListFields()
        unknown: Any = UnknownFieldSet(message)
        self._count(len(sent) + len(unknown))
        for field in unknown:
            # The library passes over a field with another wire type than defined; Go refuses it.
            if field.field_number in shape.numbers:
                of = message.DESCRIPTOR.full_name.removeprefix(PACKAGE)
                raise MalformedBody(f"field {field.field_number} of {of} has wire type {field.wire_type}")
        return self.shown(shape.members, sent, msgspec.json.decode(shape.empty))

    def shown(self, members: Members, values: Iterable[tuple[FieldDescriptor, Any]], into: JsonObject) -> JsonObject:
        for field, value in values:
            member = members[field]
            formed = value if member.form is None else member.form(self, value)
            if not member.name:
                into |= formed
            elif formed or (member.is_kept_empty and formed is not None):
                into[member.name] = formed
        return into

    def items(self, values: Sequence[Any], form: ValueForm | None) -> list[Any]:
        self._count(len(values))
        return list(values) if form is None else [form(self, value) for value in values]

    def entries(self, values: Mapping[str, Any], form: ValueForm | None) -> JsonObject:
        self._count(3 * len(values))
        return dict(values) if form is None else {key: form(self, value) for key, value in values.items()}

    def _count(self, fields: int) -> None:
        self._fields_left -= fields
        if self._fields_left < 0:
            raise MalformedBody(f"the body has more than {MOST_FIELDS} fields: split the object, or send it as JSON")


# ---- values as JSON has them -----------------------------------------------------------------------------------------


Members = Mapping[FieldDescriptor, JsonMember]
ValueForm = Callable[[_Reading, Any], Any]
"""What Kubernetes writes in JSON for a value; None stands for a null, which is left out."""


def _form(field: FieldDescriptor) -> ValueForm | None:
    if not field.is_repeated:
        return _form_of_one(field)
    if field.message_type is not None and field.message_type.GetOptions().map_entry:
        form = _form_of_one(field.message_type.fields_by_name["value"])
        return lambda reading, values: reading.entries(values, form)
    form = _form_of_one(field)
    return lambda reading, values: reading.items(values, form)


def _form_of_one(field: FieldDescriptor) -> ValueForm | None:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda _reading, value: b64encode(value).decode()
    if field.message_type is None:
        return None
    form = FORMS.get(field.message_type.name)
    return _Reading.members if form is None else lambda _reading, value: form(value)


def quantity(value: Any) -> str:
    """Return its text, which the schema checks, for JSON and protobuf alike."""
    return str(value.string) if value.HasField("string") else "0"


def time(value: Any) -> str | None:
    """Whole seconds: Kubernetes drops the rest."""
    moment = _moment(value, nanos=0)
    return None if moment is None else f"{moment.isoformat()}Z"


def micro_time(value: Any) -> str | None:
    moment = _moment(value, nanos=value.nanos)
    return None if moment is None else f"{moment.isoformat(timespec='microseconds')}Z"


def _moment(value: Any, *, nanos: int) -> datetime | None:
    if not value.ListFields():
        return None
    try:
        moment = _EPOCH + timedelta(seconds=value.seconds, microseconds=int(nanos / 1000))
    except OverflowError:
        raise MalformedBody("a time is before the year 1 or after the year 9999") from None
    return None if moment == _UNSET else moment


def int_or_string(value: Any) -> int | str:
    shown: int | str = value.strVal if value.type == _TEXT_TYPE else value.intVal
    return shown


def raw_json(value: Any) -> Any:
    if not value.raw:
        return None
    try:
        decoded = msgspec.json.decode(value.raw)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedBody(f"JSON within the protobuf body cannot be read: {error}") from None
    _refuse_depth(decoded)
    return decoded


def _refuse_depth(value: Any) -> None:
    """Level by level, so that what is too deep is refused without going there."""
    level = [value]
    for _ in range(DEEPEST_RAW_JSON):
        level = [inner for outer in level for inner in _within(outer)]
        if not level:
            return
    raise MalformedBody(f"JSON within the protobuf body is nested more than {DEEPEST_RAW_JSON} levels deep")


def _within(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return list(value.values())
    return value if isinstance(value, list) else []


FORMS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "Quantity": quantity,
    "Time": time,
    "MicroTime": micro_time,
    "IntOrString": int_or_string,
    "RawJson": raw_json,
    "TextList": lambda value: list(value.items),
}
