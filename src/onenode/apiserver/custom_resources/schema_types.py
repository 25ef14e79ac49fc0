"""The types that a schema declares to expressions: with them a rule of a wrong type is refused with its definition.

Evaluated is another program, which takes any values: the CEL library would need a protobuf message for each object. So
the types of a schema become message types that no message ever has, only to compile against. What no message can
declare (lists in lists, values of any type) is of any type here; the evaluation decides. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import count
from typing import Any, Final

from onenode.apiserver.custom_resources.expressions import InvalidExpression, compile_expression, rule_environment
from onenode.apiserver.custom_resources.schema_nodes import EMBEDDED, INT_OR_STRING, PRESERVES, JsonSchema

RESERVED: Final = frozenset(
    {
        *("true", "false", "null", "in", "as", "break", "const", "continue", "else", "for", "function", "if"),
        *("import", "let", "loop", "package", "namespace", "return", "var", "void", "while"),
    }
)
_ESCAPES: Final = {"__": "__underscores__", ".": "__dot__", "-": "__dash__", "/": "__slash__"}
_FIELD_NAME: Final = re.compile("[A-Za-z_][A-Za-z0-9_]*")
_PACKAGE: Final = "schema"
_ANY: Final = "google.protobuf.Value"
_TIMES: Final = {"date-time": "google.protobuf.Timestamp", "date": "google.protobuf.Timestamp"}
_TEXTS: Final = {**_TIMES, "duration": "google.protobuf.Duration", "byte": "bytes"}
_SCALARS: Final = {"integer": "int64", "number": "double", "boolean": "bool"}
_VISIBLE: Final[Mapping[str, JsonSchema]] = {
    "apiVersion": {"type": "string"},
    "kind": {"type": "string"},
    "metadata": {"type": "object", "properties": {"name": {"type": "string"}, "generateName": {"type": "string"}}},
}
# Kubernetes compares whole numbers with others; the library does so only where it does not know their types.
_COMPARES_NUMBERS: Final = re.compile(r"overload for '_[<>]=?_' applied to '\((int, double|double, int)\)'")
_STRUCT: Final = re.compile(r" not found in struct '[^']*'")


def escaped(name: str) -> str:
    """Return how expressions name a field: `namespace` is `__namespace__`, and a dash is `__dash__`."""
    if name in RESERVED:
        return f"__{name}__"
    return re.sub(r"__|[./-]", lambda match: _ESCAPES[match[0]], name)


class SchemaTypes:
    """The types of `self` and `oldSelf` where a schema has rules."""

    def __init__(self, schema: JsonSchema) -> None:
        declarations = _Declarations()
        self_type = declarations.expression_type(schema)
        self._environment = rule_environment(declarations.pool(), self_type)

    def check(self, text: str, result: str, *, optional_old: bool = False) -> None:
        """Raise InvalidExpression where parts of an expression do not fit, or its result is of another type."""
        try:
            compile_expression(text, result, optional_old=optional_old, environment=self._environment)
        except InvalidExpression as error:
            if _COMPARES_NUMBERS.search(str(error)) is None:
                raise InvalidExpression(_STRUCT.sub("", str(error))) from None


class _Declarations:
    """One file of messages, one for each object of a schema that has fields of its own."""

    def __init__(self) -> None:
        # Loaded only for definitions with rules.
        from google.protobuf import descriptor_pb2, duration_pb2, struct_pb2, timestamp_pb2  # noqa: PLC0415

        self._protobuf = descriptor_pb2
        self._imports = [module.DESCRIPTOR for module in (duration_pb2, struct_pb2, timestamp_pb2)]
        self._file = descriptor_pb2.FileDescriptorProto(name="schema.proto", package=_PACKAGE, syntax="proto2")
        self._file.dependency.extend(each.name for each in self._imports)
        self._numbers = count(1)

    def pool(self) -> Any:
        from google.protobuf.descriptor_pool import DescriptorPool  # noqa: PLC0415 - as above

        pool = DescriptorPool()
        for imported in self._imports:
            pool.AddSerializedFile(imported.serialized_pb)
        pool.AddSerializedFile(self._file.SerializeToString())
        return pool

    def expression_type(self, schema: JsonSchema) -> str:
        """Return how the library names the type of a value of a schema."""
        match _shape(schema):
            case "list":
                return f"list({self.expression_type(schema['items'])})"
            case "map":
                return f"map(string, {self.expression_type(schema['additionalProperties'])})"
        name = self._field_type(schema)
        return {_ANY: "dyn", "int64": "int"}.get(name, name)

    def _field_type(self, schema: JsonSchema) -> str:
        """Return the type of a field that is neither a list nor a map: a scalar, or the name of a message."""
        match _shape(schema):
            case "object":
                return self._message(schema)
            case "text":
                return _TEXTS.get(schema.get("format", ""), "string")
            case "integer" | "number" | "boolean" as scalar:
                return _SCALARS[scalar]
            case _:
                return _ANY

    def _message(self, schema: JsonSchema) -> str:
        name = f"Object{next(self._numbers)}"
        message = self._file.message_type.add(name=name)
        # Fields may differ in one underscore; no message is ever written as JSON.
        message.options.deprecated_legacy_json_field_conflicts = True
        for field, inner in declared_fields(schema).items():
            self._add_field(message, field, inner)
        return f"{_PACKAGE}.{name}"

    def _add_field(self, message: Any, name: str, schema: JsonSchema) -> None:
        match _shape(schema):
            case "list":
                self._add(message, name, self._field_type(schema["items"]), repeated=True)
            case "map":
                entry = message.nested_type.add(name=f"{_entry_name(name)}Entry")
                entry.options.map_entry = True
                self._add(entry, "key", "string")
                self._add(entry, "value", self._field_type(schema["additionalProperties"]))
                self._add(message, name, f"{_PACKAGE}.{message.name}.{entry.name}", repeated=True)
            case _:
                self._add(message, name, self._field_type(schema))

    def _add(self, message: Any, name: str, type_: str, *, repeated: bool = False) -> None:
        field = message.field.add(name=name, number=len(message.field) + 1)
        kind = self._protobuf.FieldDescriptorProto
        field.label = kind.LABEL_REPEATED if repeated else kind.LABEL_OPTIONAL
        if "." in type_:
            field.type, field.type_name = kind.TYPE_MESSAGE, f".{type_}"
        else:
            field.type = getattr(kind, f"TYPE_{type_.upper()}")


def declared_fields(schema: JsonSchema) -> dict[str, JsonSchema]:
    """Return the fields that expressions see, by their names there. Some names cannot be written there."""
    fields = {escaped(name): inner for name, inner in schema.get("properties", {}).items()}
    if schema.get(EMBEDDED):
        fields |= _VISIBLE
    return {name: inner for name, inner in fields.items() if _FIELD_NAME.fullmatch(name)}


def _shape(schema: JsonSchema) -> str:
    """Return what a schema declares as far as expressions know it: "any" where the evaluation decides."""
    type_ = schema.get("type", "")
    if schema.get(INT_OR_STRING) or schema.get(PRESERVES):
        return "any"
    if type_ == "object" and not isinstance(schema.get("additionalProperties", False), bool):
        return "map"
    if type_ == "object" and schema.get("additionalProperties"):
        return "any"
    # With null a scalar can be compared only where its type is not known.
    if type_ not in {"object", "array"} and schema.get("nullable"):
        return "any"
    if type_ == "array" and isinstance(schema.get("items"), dict):
        return "list"
    return {"string": "text", "object": "object"}.get(type_, type_ if type_ in _SCALARS else "any")


def _entry_name(field: str) -> str:
    """As protobuf wants it: the name of the field in camel case."""
    return "".join(part[:1].upper() + part[1:] for part in field.split("_"))
