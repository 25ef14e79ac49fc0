"""What is wrong with the parts of an object: each part of a type that has a rule is asked, wherever it stands.

Status is left out: what a status may hold is said by its kind alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from orlop.embedded.apiserver.causes import Cause, required
from orlop.embedded.apiserver.claim_rules import claim_spec
from orlop.embedded.apiserver.container_rules import CONTAINER_RULES
from orlop.embedded.apiserver.field_rules import is_empty, label_selector, node_selector
from orlop.embedded.apiserver.pod_rules import POD_RULES
from orlop.embedded.apiserver.schemas import Definition, ListOf, MapOf, Reference, Scalar, Schemas, Type
from orlop.embedded.apiserver.volume_source_rules import REQUIRED_BY_SCHEMA, SOURCE_RULES

Object = Mapping[str, Any]

TYPE_RULES: Final[Mapping[str, Callable[[Object, str], Iterator[Cause]]]] = {
    **CONTAINER_RULES,
    **POD_RULES,
    **SOURCE_RULES,
    "core.v1.NodeSelector": node_selector,
    "core.v1.PersistentVolumeClaimSpec": claim_spec,
    "meta.v1.LabelSelector": label_selector,
}


def part_causes(schemas: Schemas, definition: Definition, value: Object, path: str = "") -> list[Cause]:
    """`value` was decoded, so that all of it is of the types its definition says."""
    found: list[Cause] = []
    rule = TYPE_RULES.get(definition.name)
    if rule is not None:
        found += rule(value, path)
    if definition.name in REQUIRED_BY_SCHEMA:
        found += _required(definition, value, path)
    for name, inner in value.items():
        field = definition.fields.get(name)
        # Plain values have no parts: most fields end here.
        if field is not None and not isinstance(field.type, Scalar) and name != "status":
            found += _inside(schemas, field.type, inner, f"{path}.{name}" if path else name)
    return found


def _required(definition: Definition, value: Object, path: str) -> Iterator[Cause]:
    for name in definition.required:
        if is_empty(value.get(name)) and not _is_number(definition.fields[name].type):
            yield required(f"{path}.{name}")


def _is_number(type_: Type) -> bool:
    return type_ in {Scalar("int32"), Scalar("int64"), Scalar("bool")}


def _inside(schemas: Schemas, type_: Type, value: Any, path: str) -> list[Cause]:
    match type_:
        case Reference(name):
            return part_causes(schemas, schemas.definition(name), value, path)
        case ListOf(Reference(name)):
            inner = schemas.definition(name)
            parts = (part_causes(schemas, inner, item, f"{path}[{place}]") for place, item in enumerate(value))
        case MapOf(Reference(name)):
            inner = schemas.definition(name)
            parts = (part_causes(schemas, inner, item, f"{path}[{key}]") for key, item in value.items())
        case _:
            return []
    return [cause for causes in parts for cause in causes]
