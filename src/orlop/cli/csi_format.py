"""Format CSI messages: a template of a request, and the unknown fields of a response. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

DEEPEST_TEMPLATE: Final = 6
WELL_KNOWN: Final = {"google.protobuf.BoolValue": False, "google.protobuf.Timestamp": "2026-01-01T00:00:00Z"}
WHOLE_NUMBERS: Final = frozenset(
    {FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64, FieldDescriptor.CPPTYPE_UINT32}
)
# The access type that most volumes have.
PREFERRED: Final = frozenset({"mount"})


def request_template(descriptor: Descriptor, depth: int = 0) -> dict[str, Any]:
    """Return a request with all of its fields, which can be sent unchanged. Of each oneof it has one field."""
    return {field.json_name: _example(field, depth) for field in _chosen(descriptor)}


def alternatives(descriptor: Descriptor, path: str = "", depth: int = 0) -> Iterator[str]:
    """Yield the other possible fields and values of a template, one per line."""
    for oneof in descriptor.oneofs:
        names = [field.json_name for field in oneof.fields]
        if len(names) > 1:
            yield f"{path}{{{' | '.join(names)}}}: one of them"
    for field in _chosen(descriptor):
        place = f"{path}{field.json_name}"
        if field.enum_type is not None:
            yield f"{place}: {' | '.join(value.name for value in field.enum_type.values)}"
        elif _has_own_fields(field) and field.message_type is not None and depth < DEEPEST_TEMPLATE:
            yield from alternatives(field.message_type, f"{place}.", depth + 1)


def fault_in(descriptor: Descriptor, value: Any, path: str = "") -> str | None:
    """Return the first fault in a request's JSON, with its place, as a sentence; None if there is none."""
    if not isinstance(value, dict):
        return f"{path or 'the request'} must be an object, such as {{}}"
    fields = {name: field for field in descriptor.fields for name in (field.name, field.json_name)}
    for key, inner in value.items():
        place = f"{path}.{key}" if path else key
        if key not in fields:
            names = ", ".join(field.json_name for field in descriptor.fields)
            return f"{place} is no field of {descriptor.name}, which has {names or 'none'}"
        if fault := _fault_in_field(fields[key], inner, place):
            return fault
    return None


def _fault_in_field(field: FieldDescriptor, value: Any, place: str) -> str | None:
    kind = field.message_type
    if value is None or (kind is not None and kind.full_name in WELL_KNOWN):
        return None
    if kind is not None and kind.GetOptions().map_entry:
        texts = isinstance(value, dict) and all(isinstance(text, str) for text in value.values())
        return None if texts else f"{place} must be an object of strings, such as {{}}"
    if not field.is_repeated:
        return _fault_in_value(field, value, place)
    if not isinstance(value, list):
        return f"{place} must be a list, such as []"
    faults = (_fault_in_value(field, item, f"{place}[{number}]") for number, item in enumerate(value))
    return next((fault for fault in faults if fault), None)


def _fault_in_value(field: FieldDescriptor, value: Any, place: str) -> str | None:
    if field.message_type is not None:
        return fault_in(field.message_type, value, place)
    if field.enum_type is not None:
        names = [each.name for each in field.enum_type.values]
        is_allowed = value in names or (isinstance(value, int) and not isinstance(value, bool))
        return None if is_allowed else f"{place} must be one of {', '.join(names)}"
    if field.cpp_type in WHOLE_NUMBERS and not _is_whole_number(value):
        return f"{place} must be a whole number"
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not isinstance(value, str):
        return f"{place} must be a string, in quotes"
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL and not isinstance(value, bool):
        return f"{place} must be true or false"
    return None


def _is_whole_number(value: Any) -> bool:
    if isinstance(value, str):
        return value.removeprefix("-").isdecimal() and value.isascii()
    return isinstance(value, int | float) and not isinstance(value, bool) and value == int(value)


def unknown_places(message: Message, path: str = "") -> Iterator[str]:
    """Yield the places of fields that our version of CSI does not define."""
    fields: Any = UnknownFieldSet(message)  # protobuf's stubs do not declare that it is iterable
    for unknown in fields:
        yield f"{path or message.DESCRIPTOR.name} field {unknown.field_number}"
    for field, value in message.ListFields():
        if _has_own_fields(field):
            for inner in value if field.is_repeated else [value]:
                yield from unknown_places(inner, f"{path or message.DESCRIPTOR.name}.{field.json_name}")


def _has_own_fields(field: FieldDescriptor) -> bool:
    kind = field.message_type
    return kind is not None and not kind.GetOptions().map_entry and kind.full_name not in WELL_KNOWN


def _chosen(descriptor: Descriptor) -> list[FieldDescriptor]:
    left_out = {
        field.name
        for oneof in descriptor.oneofs
        for field in oneof.fields
        if field.name != next((f.name for f in oneof.fields if f.name in PREFERRED), oneof.fields[0].name)
    }
    return [field for field in descriptor.fields if field.name not in left_out]


def _example(field: FieldDescriptor, depth: int) -> Any:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        return {}
    value = _single_example(field, depth)
    return [value] if field.is_repeated else value


def _single_example(field: FieldDescriptor, depth: int) -> Any:
    if field.message_type is not None:
        if field.message_type.full_name in WELL_KNOWN:
            return WELL_KNOWN[field.message_type.full_name]
        return request_template(field.message_type, depth + 1) if depth < DEEPEST_TEMPLATE else {}
    if field.enum_type is not None:
        # The first value of an enum is UNKNOWN.
        return field.enum_type.values[min(1, len(field.enum_type.values) - 1)].name
    if field.cpp_type == FieldDescriptor.CPPTYPE_INT64:
        return "0"  # JSON numbers cannot represent every 64-bit integer, so protobuf writes a string
    if field.cpp_type == FieldDescriptor.CPPTYPE_STRING:
        return ""
    return False if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL else 0
