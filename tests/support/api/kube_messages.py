"""Our definitions of Kubernetes' protobuf messages as texts: of each message its fields, as `number name type`.

Before the type: `*` presence counts, `!` in the JSON also when empty, `[]` a list, `{}` a map from texts, `<` its
members are members of the object that holds it. Read from the descriptors alone, apart from the product's own reader.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto, FileDescriptorSet
from google.protobuf.message import Message

from onenode.apiserver.proto.message_descriptors import DESCRIPTORS
from onenode.apiserver.requests import protobuf_messages

NAME_PREFIX = ".orlop.kube."
# The numbers of the options that json_form.proto defines.
ALWAYS, INLINE, API_VERSION = 50001, 50002, 50001
OF_THE_ENVELOPE = ("Unknown", "TypeMeta")
SCALARS = {
    FieldDescriptorProto.TYPE_STRING: "string",
    FieldDescriptorProto.TYPE_BYTES: "bytes",
    FieldDescriptorProto.TYPE_BOOL: "bool",
    FieldDescriptorProto.TYPE_INT32: "int32",
    FieldDescriptorProto.TYPE_INT64: "int64",
}


def _top_level_messages() -> Iterator[tuple[str, DescriptorProto]]:
    for file in FileDescriptorSet.FromString(DESCRIPTORS).file:
        for message in file.message_type:
            yield f".{file.package}.{message.name}".removeprefix(NAME_PREFIX), message


def _fields_text(message: DescriptorProto) -> str:
    fields = sorted(message.field, key=lambda field: field.number)
    return ", ".join(f"{field.number} {field.json_name} {_type_text(message, field)}" for field in fields)


def _type_text(message: DescriptorProto, field: FieldDescriptorProto) -> str:
    always = "!" if _option(field.options, ALWAYS) else ""
    entry = _map_entry(message, field)
    if entry is not None:
        key, value = entry.field
        assert key.type == FieldDescriptorProto.TYPE_STRING, f"{message.name} has a map whose keys are no texts"
        return f"{always}{{}}{_base_type(value)}"
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"{always}[]{_base_type(field)}"
    if _option(field.options, INLINE):
        return f"<{_base_type(field)}"
    assert not (always and field.proto3_optional), f"{message.name}.{field.name} is optional and always there"
    return f"{'*' if field.proto3_optional else always}{_base_type(field)}"


def _map_entry(message: DescriptorProto, field: FieldDescriptorProto) -> DescriptorProto | None:
    for nested in message.nested_type:
        if nested.options.map_entry and field.type_name.endswith(f".{message.name}.{nested.name}"):
            return nested
    return None


def _base_type(field: FieldDescriptorProto) -> str:
    if field.type == FieldDescriptorProto.TYPE_MESSAGE:
        return field.type_name.removeprefix(NAME_PREFIX)
    return SCALARS[field.type]


def _option(options: Message, number: int) -> str:
    """The value of one of our own options, as text; empty where it is not set."""
    return next((str(value) for field, value in options.ListFields() if field.number == number), "")


# The product adds our options to the pool of the library, which without them does not know these fields.
assert protobuf_messages.KINDS
_ALL = dict(sorted(_top_level_messages()))
MESSAGES: Mapping[str, str] = {
    name: _fields_text(message) for name, message in _ALL.items() if name not in OF_THE_ENVELOPE
}
KINDS: Mapping[tuple[str, str], str] = {
    (version, message.name): name
    for name, message in _ALL.items()
    if (version := _option(message.options, API_VERSION))
}
