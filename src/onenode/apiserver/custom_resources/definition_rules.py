"""Validate CustomResourceDefinitions, with the causes, warnings and texts of Kubernetes. Pure.

Kubernetes keeps what all versions say alike in one place, and reports causes in it there: of a definition with one
version a cause in its schema has the path `spec.validation.openAPIV3Schema`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.custom_resources.leaf_rules import is_known_format
from onenode.apiserver.custom_resources.schema_nodes import LIST_TYPE
from onenode.apiserver.custom_resources.structural_rules import CLAUSES, schema_causes
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, duplicate, forbidden, invalid, required
from onenode.apiserver.schema.field_rules import one_of, unchanged
from onenode.go_text import quoted

Object = Mapping[str, Any]

MOST_SELECTABLE: Final = 8
LONGEST_WARNING: Final = 256
APPROVAL: Final = "api-approved.kubernetes.io"
COLUMN_TYPES: Final = ("boolean", "date", "integer", "number", "string")
COLUMN_FORMATS: Final = ("byte", "date", "date-time", "double", "float", "int32", "int64", "password")
MISSING_VERSION: Final = (
    "missing from spec.versions; {0} was previously a storage version, and must remain in spec.versions until a "
    "storage migration ensures no data remains persisted in {0} and removes {0} from status.storedVersions"
)
PRESERVED: Final = (
    "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead"
)
SELECTABLE: Final = (
    "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed."
)
NO_WEBHOOKS: Final = "the one-machine API server converts nothing: the versions of a kind must have the same fields"


def definition(obj: Object) -> Iterator[Cause]:
    """Yield the causes of a whole definition but those of its metadata."""
    spec = obj["spec"]
    plural, group = spec.get("names", {}).get("plural", ""), spec.get("group", "")
    if obj["metadata"].get("name") != f"{plural}.{group}":
        yield invalid("metadata.name", obj["metadata"].get("name", ""), 'must be spec.names.plural+"."+spec.group')
    yield from _spec(spec)
    yield from _stored_versions(obj)
    yield from _approval(obj)


def definition_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old["spec"], new["spec"]
    if is_established(old):
        yield from unchanged(before.get("scope"), after.get("scope"), "spec.scope")
        yield from unchanged(before["names"].get("kind"), after["names"].get("kind"), "spec.names.kind")
    yield from unchanged(before.get("group"), after.get("group"), "spec.group")
    yield from unchanged(before["names"].get("plural"), after["names"].get("plural"), "spec.names.plural")


def is_established(obj: Object) -> bool:
    return has_condition(obj, "Established")


def has_condition(obj: Object, type_: str) -> bool:
    conditions = obj.get("status", {}).get("conditions", [])
    return any(each.get("type") == type_ and each.get("status") == "True" for each in conditions)


def _spec(spec: Object) -> Iterator[Cause]:
    group, versions = spec.get("group", ""), spec.get("versions", [])
    if not group:
        yield required("spec.group")
    elif wrong := name_rules.dns_subdomain(group):
        yield invalid("spec.group", group, ",".join(wrong))
    elif "." not in group:
        yield invalid("spec.group", group, "should be a domain with at least one dot")
    if spec.get("scope"):
        yield from one_of(spec["scope"], ("Cluster", "Namespaced"), "spec.scope")
    else:
        yield required("spec.scope")
    yield from _versions(versions)
    yield from names(spec.get("names", {}), "spec.names")
    for field in ("plural", "singular", "kind", "listKind"):
        if not spec.get("names", {}).get(field):
            yield required(f"spec.names.{field}")
    if spec.get("conversion", {}).get("strategy", "None") != "None":
        yield forbidden("spec.conversion.strategy", NO_WEBHOOKS)
    if spec.get("preserveUnknownFields"):
        yield invalid("spec.preserveUnknownFields", True, PRESERVED)


# ---- names -----------------------------------------------------------------------------------------------------------


def names(obj: Object, path: str) -> Iterator[Cause]:
    """Yield the causes of names that are present."""
    for field in ("plural", "singular"):
        yield from _label(obj.get(field, ""), f"{path}.{field}")
    for field in ("kind", "listKind"):
        wrong = name_rules.dns_1035_label(obj.get(field, "").lower()) if obj.get(field) else []
        if wrong:
            why = f"may have mixed case, but should otherwise match: {','.join(wrong)}"
            yield invalid(f"{path}.{field}", obj[field], why)
    for field in ("shortNames", "categories"):
        for place, name in enumerate(obj.get(field, [])):
            yield from _label(name, f"{path}.{field}[{place}]")
    if obj.get("kind") and obj.get("kind") == obj.get("listKind"):
        yield invalid(f"{path}.listKind", obj["listKind"], "kind and listKind may not be the same")


def _label(name: str, path: str) -> Iterator[Cause]:
    if name and (wrong := name_rules.dns_1035_label(name)):
        yield invalid(path, name, ",".join(wrong))


# ---- versions --------------------------------------------------------------------------------------------------------


def _versions(versions: Sequence[Object]) -> Iterator[Cause]:
    shared = {part for part in _HOISTED if all(each.get(part) == versions[0].get(part) for each in versions)}
    for place, version in enumerate(versions):
        path = f"spec.versions[{place}]"
        if wrong := name_rules.dns_1035_label(version.get("name", "")):
            yield invalid(f"{path}.name", version.get("name", ""), ",".join(wrong))
        yield from _deprecation(version, path)
        if not version.get("schema", {}).get("openAPIV3Schema"):
            yield required(f"{path}.schema.openAPIV3Schema")
        for part, shared_path in _HOISTED.items():
            if part in version and (part not in shared or place == 0):
                yield from _part(version, part, shared_path if part in shared else f"{path}.{part}")
    if len({version.get("name") for version in versions}) != len(versions):
        yield invalid("spec.versions", _version_names(versions), "must contain unique version names")
    if sum(bool(version.get("storage")) for version in versions) != 1:
        why = "must have exactly one version marked as storage version"
        yield invalid("spec.versions", _version_names(versions), why)


# Where Kubernetes keeps what all versions say alike.
_HOISTED: Final = {
    "schema": "spec.validation",
    "subresources": "spec.subresources",
    "additionalPrinterColumns": "spec.additionalPrinterColumns",
    "selectableFields": "spec.selectableFields",
}


def _version_names(versions: Sequence[Object]) -> list[str]:
    return [version.get("name", "") for version in versions]


def _part(version: Object, part: str, path: str) -> Iterator[Cause]:
    schema = version.get("schema", {}).get("openAPIV3Schema", {})
    match part:
        case "schema" if schema:
            has_status = version.get("subresources", {}).get("status") is not None
            yield from schema_causes(schema, f"{path}.openAPIV3Schema", has_status=has_status)
        case "subresources":
            yield from _scale(version[part].get("scale"), f"{path}.scale")
        case "additionalPrinterColumns":
            for place, column in enumerate(version[part]):
                yield from _column(column, f"{path}[{place}]")
        case "selectableFields":
            yield from _selectable(version[part], schema, path)


def _deprecation(version: Object, path: str) -> Iterator[Cause]:
    warning = version.get("deprecationWarning")
    if warning is None:
        return
    wrong = [] if version.get("deprecated") else ["can only be set for deprecated versions"]
    wrong += ["must be <= 256 characters long"] if len(warning) > LONGEST_WARNING else []
    wrong += [] if warning else ["must not be an empty string"]
    yield from (invalid(f"{path}.deprecationWarning", warning, why) for why in wrong)


def _scale(scale: Object | None, path: str) -> Iterator[Cause]:
    if scale is None:
        return
    for field, above in (("specReplicasPath", ".spec"), ("statusReplicasPath", ".status")):
        value = scale.get(field, "")
        if not value:
            yield required(f"{path}.{field}")
        elif not value.startswith("."):
            yield invalid(f"{path}.{field}", value, "must be a simple json path starting with .")
        elif not value.startswith(f"{above}."):
            yield invalid(f"{path}.{field}", value, f"should be a json path under {above}")


def _column(column: Object, path: str) -> Iterator[Cause]:
    if not column.get("name"):
        yield required(f"{path}.name")
    kinds, formats = (f"must be one of {','.join(known)}" for known in (COLUMN_TYPES, COLUMN_FORMATS))
    if not column.get("type"):
        yield required(f"{path}.type", kinds)
    elif column["type"] not in COLUMN_TYPES:
        yield invalid(f"{path}.type", column["type"], kinds)
    if column.get("format") and column["format"] not in COLUMN_FORMATS:
        yield invalid(f"{path}.format", column["format"], formats)
    json_path = column.get("jsonPath", "")
    if not json_path:
        yield required(f"{path}.JSONPath")
    elif not json_path.startswith("."):
        yield invalid(f"{path}.JSONPath", json_path, "must be a simple json path starting with .")


def _selectable(fields: Sequence[Object], schema: Object, path: str) -> Iterator[Cause]:
    seen: set[str] = set()
    for place, field in enumerate(fields):
        json_path, field_path = field.get("jsonPath", ""), f"{path}[{place}].jsonPath"
        if not json_path:
            yield required(field_path)
            continue
        declared = _declared_at(schema, json_path)
        if isinstance(declared, str):
            yield invalid(field_path, json_path, f"is an invalid path: {declared}")
            continue
        if json_path.startswith(".metadata."):
            yield invalid(field_path, json_path, "must not point to fields in metadata")
        if declared.get("type") not in {"string", "boolean", "integer"}:
            yield invalid(field_path, json_path, SELECTABLE)
        if json_path in seen:
            yield duplicate(field_path, json_path)
        seen.add(json_path)
    if len(seen) > MOST_SELECTABLE:
        text = f"Too many: {len(seen)}: must have at most {MOST_SELECTABLE} items"
        yield Cause("FieldValueTooMany", text, path)


def _declared_at(schema: Object, json_path: str) -> Object | str:
    """Return the schema at a path, or why there is none."""
    if not re.fullmatch(r"(\.[A-Za-z_][A-Za-z0-9_-]*)+", json_path):
        return f"expected a path of names after dots, found {quoted(json_path)}"
    for name in json_path[1:].split("."):
        properties = schema.get("properties", {})
        if name not in properties:
            return f"does not refer to a valid field: {quoted(name)}"
        schema = properties[name]
    return schema


# ---- stored versions, protected groups -------------------------------------------------------------------------------


def _stored_versions(obj: Object) -> Iterator[Cause]:
    known = set(_version_names(obj["spec"].get("versions", [])))
    for place, name in enumerate(obj.get("status", {}).get("storedVersions", [])):
        if name not in known:
            yield invalid(f"status.storedVersions[{place}]", name, MISSING_VERSION.format(name))


def _approval(obj: Object) -> Iterator[Cause]:
    if not is_protected(obj["spec"].get("group", "")):
        return
    annotation, path = obj["metadata"].get("annotations", {}).get(APPROVAL, ""), f"metadata.annotations[{APPROVAL}]"
    said = f"protected groups must have approval annotation {quoted(APPROVAL)}"
    more = "see https://github.com/kubernetes/enhancements/pull/1111"
    if not annotation:
        yield required(path, f"{said}, {more}")
    elif not annotation.startswith("unapproved") and not re.match(r"[a-z][a-z0-9+.-]*://[^/]+", annotation):
        why = f'{said} with either a URL or a reason starting with "unapproved", {more}'
        yield invalid(path, annotation, why)


def is_protected(group: str) -> bool:
    return group in {"k8s.io", "kubernetes.io"} or group.endswith((".k8s.io", ".kubernetes.io"))


# ---- warnings --------------------------------------------------------------------------------------------------------


def definition_warnings(new: Object, old: Object | None) -> list[str]:
    """Return what a client is warned of in its definition, but for what it has not added."""
    known = set() if old is None else set(_schema_warnings(old))
    return [text for text in dict.fromkeys(_schema_warnings(new)) if text not in known]


def _schema_warnings(obj: Object) -> Iterator[str]:
    schemas = [each for version in obj["spec"]["versions"] for each in _within(version["schema"]["openAPIV3Schema"])]
    for schema in schemas:
        if schema.get("format") and not is_known_format(schema):
            yield f"unrecognized format {quoted(schema['format'])}"
    for type_ in ("array", "object"):
        if any(schema.get(LIST_TYPE) == "set" and schema["items"].get("type") == type_ for schema in schemas):
            what = f"{LIST_TYPE}: set for items of type {quoted(type_)}"
            yield f"{what} is not supported by server-side apply or CEL validation rules"


def _within(schema: Object) -> Iterator[Object]:
    """Yield a schema and all that are inside it."""
    yield schema
    inner = [*schema.get("properties", {}).values(), *(each for name in CLAUSES for each in schema.get(name, ()))]
    inner += [schema[name] for name in ("items", "additionalProperties", "not") if isinstance(schema.get(name), dict)]
    for each in inner:
        yield from _within(each)
