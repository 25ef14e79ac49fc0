"""What tables show of objects that configure the server: definitions, bindings of roles, admission policies. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from onenode.apiserver.answers.table_columns import (
    AGE,
    NAME,
    UNSET,
    Column,
    age_cell,
    column,
    date_column,
    integer,
    name_cell,
    text_at,
    value_at,
    wide,
)
from orlop.kube.objects import metadata

Object = Mapping[str, Any]

DEFINITION_COLUMNS: Final = (
    *(NAME, column("Scope"), column("Versions"), date_column("Created At")),
    *map(wide, ("Group", "Kind", "ShortNames")),
    Column("Established", "boolean", priority=1),
)
ROLE_BINDING_COLUMNS: Final = (NAME, column("Role"), AGE, *map(wide, ("Users", "Groups", "ServiceAccounts")))
POLICY_COLUMNS: Final = (NAME, integer("Validations"), column("ParamKind"), AGE)
POLICY_BINDING_COLUMNS: Final = (NAME, column("PolicyName"), column("ParamRef"), AGE)


def definition_cells(obj: Object, _now: datetime) -> Sequence[Any]:
    spec, names = value_at(obj, "spec") or {}, value_at(obj, "spec", "names") or {}
    served = [each for each in spec.get("versions", []) if each.get("served")]
    versions = sorted(f"{each['name']}(storage)" if each.get("storage") else each["name"] for each in served)
    conditions = value_at(obj, "status", "conditions") or []
    established = any((each.get("type"), each.get("status")) == ("Established", "True") for each in conditions)
    return [
        *(name_cell(obj), spec.get("scope", ""), ",".join(versions), metadata(obj).get("creationTimestamp")),
        *(spec.get("group", ""), names.get("kind", ""), ",".join(names.get("shortNames", [])), established),
    ]


def role_binding_cells(obj: Object, now: datetime) -> Sequence[Any]:
    subjects = value_at(obj, "subjects") or []

    def of(kind: str) -> str:
        return ", ".join(_subject_text(one) for one in subjects if one.get("kind") == kind)

    role = f"{text_at(obj, 'roleRef', 'kind')}/{text_at(obj, 'roleRef', 'name')}"
    return [name_cell(obj), role, age_cell(obj, now), of("User"), of("Group"), of("ServiceAccount")]


def _subject_text(subject: Object) -> str:
    namespace = subject.get("namespace")
    return f"{namespace}/{subject.get('name', '')}" if namespace else str(subject.get("name", ""))


def policy_cells(obj: Object, now: datetime) -> Sequence[Any]:
    spec = value_at(obj, "spec") or {}
    params = spec.get("paramKind")
    kind = f"{params.get('apiVersion', '')}/{params.get('kind', '')}" if params else UNSET
    return [name_cell(obj), len(spec.get("validations") or ()), kind, age_cell(obj, now)]


def policy_binding_cells(obj: Object, now: datetime) -> Sequence[Any]:
    params = value_at(obj, "spec", "paramRef") or {}
    # Whether a parameter is in a namespace is not known from its reference.
    named = f"{params.get('namespace') or '*'}/{params['name']}" if params.get("name") else UNSET
    return [name_cell(obj), text_at(obj, "spec", "policyName"), named, age_cell(obj, now)]
