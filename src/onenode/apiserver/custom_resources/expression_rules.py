"""The rules in `x-kubernetes-validations`: validated with their definition, evaluated for each write. Pure.

A rule belongs to a node of the schema and is evaluated where the object has a value there. A transition rule (one that
uses `oldSelf`) is evaluated only where the old object has a value, too; a value that did not change is not held against
any other rule. All rules of one object share a budget (`expression_cost_rules`), which is spent before each evaluation.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from onenode.apiserver.custom_resources.expression_cost_rules import ExpressionValues, spend_on
from onenode.apiserver.custom_resources.expression_value_rules import BUDGET, BudgetSpent, CostBudget
from onenode.apiserver.custom_resources.expressions import (
    OLD_SELF,
    PRESENT_OLD,
    SELF,
    CelExpression,
    EvaluationFailed,
    InvalidExpression,
    as_duration,
    as_timestamp,
    compile_expression,
    uses_old_self,
)
from onenode.apiserver.custom_resources.leaf_rules import NO_FIELD
from onenode.apiserver.custom_resources.schema_nodes import (
    LIST_TYPE,
    MAP_TYPE,
    VALIDATIONS,
    JsonSchema,
    SchemaNode,
)
from onenode.apiserver.custom_resources.schema_types import SchemaTypes, escaped
from onenode.apiserver.custom_resources.value_rules import NO_OLD, item_key
from onenode.apiserver.schema.field_errors import Cause, invalid, not_supported, required, shown
from orlop.foundation.duration import Duration

LONGEST_MESSAGE: Final = 5 * 1024
OUT_OF_BUDGET: Final = "validation failed due to running out of cost budget, no further validation rules will be run"
REASONS: Final = ("FieldValueDuplicate", "FieldValueForbidden", "FieldValueInvalid", "FieldValueRequired")
_TITLES: Final = {"FieldValueRequired": "Required value", "FieldValueForbidden": "Forbidden"}


@dataclass(frozen=True, slots=True)
class ExpressionRule:
    """One rule, compiled. `path` is appended to the field that a cause names."""

    text: str
    expression: CelExpression
    is_transition: bool
    is_optional: bool
    message: str
    message_expression: CelExpression | None
    reason: str
    path: str


@dataclass(frozen=True, slots=True)
class RuleTree:
    """The nodes of a schema that have rules, or have nodes with rules below them."""

    node: SchemaNode
    rules: tuple[ExpressionRule, ...]
    properties: Mapping[str, RuleTree] = field(default_factory=dict)
    other: RuleTree | None = None
    items: RuleTree | None = None


def rule_tree(node: SchemaNode) -> RuleTree | None:
    """Compile the rules of a schema that was validated; None where there are none."""
    properties = {name: tree for name, inner in node.properties.items() if (tree := rule_tree(inner)) is not None}
    other, items = (None if inner is None else rule_tree(inner) for inner in (node.other, node.items))
    rules = tuple(_compiled(rule) for rule in node.schema.get(VALIDATIONS, ()))
    if not rules and not properties and other is None and items is None:
        return None
    return RuleTree(node, rules, properties, other, items)


def _compiled(rule: Mapping[str, Any]) -> ExpressionRule:
    """Raise InvalidExpression."""
    is_optional = bool(rule.get("optionalOldSelf"))
    message = rule.get("messageExpression")
    return ExpressionRule(
        rule["rule"],
        compile_expression(rule["rule"], "bool", optional_old=is_optional),
        uses_old_self(rule["rule"]),
        is_optional,
        rule.get("message", "").strip() or f"failed rule: {' '.join(rule['rule'].split())}",
        None if message is None else compile_expression(message, "string", optional_old=is_optional),
        rule.get("reason", "FieldValueInvalid"),
        rule.get("fieldPath", ""),
    )


# ---- evaluation ------------------------------------------------------------------------------------------------------


def expression_causes(tree: RuleTree, value: Any, old: Any = NO_OLD, path: str = "") -> list[Cause]:
    """Return a cause for each rule that a value breaks; the path of a whole object is empty."""
    causes: list[Cause] = []
    try:
        causes.extend(_below(tree, value, old, path, CostBudget(BUDGET)))
    except BudgetSpent:
        causes.append(invalid(NO_FIELD, None, OUT_OF_BUDGET))
    return causes


def _below(tree: RuleTree, value: Any, old: Any, path: str, budget: CostBudget) -> Iterator[Cause]:
    if value is None:
        return
    if tree.rules:
        yield from _broken(tree, value, old, path, budget)
    if isinstance(value, dict):
        before = old if isinstance(old, dict) and tree.node.map_type != "atomic" else {}
        for key, inner in value.items():
            below = tree.properties.get(key, None if key in tree.node.properties else tree.other)
            if below is not None:
                inner_path = f"{path}.{key}" if path else key
                yield from _below(below, inner, before.get(key, NO_OLD), inner_path, budget)
    elif isinstance(value, list) and tree.items is not None:
        counterparts = {}
        if tree.node.list_type == "map" and isinstance(old, list):
            counterparts = {item_key(item, tree.node): item for item in old}
        for place, item in enumerate(value):
            counterpart = counterparts.get(item_key(item, tree.node), NO_OLD) if counterparts else NO_OLD
            yield from _below(tree.items, item, counterpart, f"{path}[{place}]", budget)


def _broken(tree: RuleTree, value: Any, old: Any, path: str, budget: CostBudget) -> Iterator[Cause]:
    has_old, is_same = old is not NO_OLD and old is not None, old is not NO_OLD and value == old
    bound = bound_value(value, tree.node, is_root=not path)
    bound_old = bound_value(old, tree.node, is_root=not path) if has_old else None
    measured = ExpressionValues({SELF: bound, OLD_SELF: bound_old, PRESENT_OLD: bound_old})
    for rule in tree.rules:
        if (rule.is_transition and not has_old and not rule.is_optional) or (is_same and not rule.is_transition):
            continue
        # oldSelf is bound for transition rules alone: no other one can refer to it.
        passed = (bound, bound_old) if rule.is_transition else (bound, None)
        present = has_old and rule.is_transition
        spend_on(rule.expression.syntax(has_old=present), measured, budget)
        try:
            if rule.expression.evaluate(*passed, has_old=present) is True:
                continue
            if rule.message_expression is not None:
                spend_on(rule.message_expression.syntax(has_old=present), measured, budget)
            message = _message(rule, passed, has_old=present)
        except EvaluationFailed as error:
            message = f"{rule.message} evaluating rule: {error}"
        yield _cause(rule, message, value, path)


def _message(rule: ExpressionRule, passed: tuple[Any, Any], *, has_old: bool) -> str:
    if rule.message_expression is None:
        return rule.message
    try:
        text = rule.message_expression.evaluate(*passed, has_old=has_old)
    except EvaluationFailed:
        return rule.message
    fits = isinstance(text, str) and text.strip() and "\n" not in text and len(text.encode()) <= LONGEST_MESSAGE
    return text.strip() if fits else rule.message


def _cause(rule: ExpressionRule, message: str, value: Any, path: str) -> Cause:
    where = f"{path}{rule.path}".removeprefix(".") or NO_FIELD
    if rule.reason in _TITLES:
        return Cause(rule.reason, f"{_TITLES[rule.reason]}: {message}", where)
    title = "Duplicate value" if rule.reason == "FieldValueDuplicate" else "Invalid value"
    of = "" if isinstance(value, dict | list) else f"{shown(value)}: "
    return Cause(rule.reason, f"{title}: {of}{message}", where)


# ---- values as expressions see them ----------------------------------------------------------------------------------


def bound_value(value: Any, node: SchemaNode | None, *, is_root: bool = False) -> Any:
    """Return a value with the names and types that expressions have for it: only declared fields are visible."""
    if node is None or value is None:
        return value
    if isinstance(value, dict):
        return _bound_object(value, node, is_root=is_root)
    if isinstance(value, list):
        return [bound_value(item, node.items) for item in value]
    return _bound_text(value, node) if isinstance(value, str) else value


def _bound_object(value: Mapping[str, Any], node: SchemaNode, *, is_root: bool) -> dict[str, Any]:
    if node.takes_any_key:
        return {key: bound_value(inner, node.other) for key, inner in value.items()}
    fields = {
        escaped(name): bound_value(value[name], inner) for name, inner in node.properties.items() if name in value
    }
    if is_root or node.embedded:
        metadata = value.get("metadata") or {}
        visible = {name: metadata[name] for name in ("name", "generateName") if name in metadata}
        fields |= {"apiVersion": value.get("apiVersion", ""), "kind": value.get("kind", ""), "metadata": visible}
    return fields


def _bound_text(value: str, node: SchemaNode) -> Any:
    try:
        match node.schema.get("format"):
            case "date-time" | "date":
                moment = datetime.fromisoformat(value)
                return as_timestamp(moment if moment.tzinfo else moment.replace(tzinfo=UTC))
            case "duration":
                return as_duration(Duration.parse(value).nanoseconds)
            case "byte":
                return base64.b64decode(value)
            case _:
                return value
    except ValueError:
        return value


# ---- the rules of a definition ---------------------------------------------------------------------------------------


def rules_causes(schema: JsonSchema, path: str, uncorrelatable: str = "") -> Iterator[Cause]:
    """Yield why rules of a schema are refused; `uncorrelatable` is the path below which no value has an old one."""
    types = SchemaTypes(schema) if schema.get(VALIDATIONS) else None
    for place, rule in enumerate(schema.get(VALIDATIONS, ())):
        yield from _rule_causes(rule, types, f"{path}.{VALIDATIONS}[{place}]", uncorrelatable)
    atomic = uncorrelatable or (path if schema.get(MAP_TYPE) == "atomic" else "")
    for name, inner in schema.get("properties", {}).items():
        yield from rules_causes(inner, f"{path}.properties[{name}]", atomic)
    if isinstance(schema.get("additionalProperties"), dict):
        yield from rules_causes(schema["additionalProperties"], f"{path}.additionalProperties", atomic)
    if isinstance(schema.get("items"), dict):
        below = uncorrelatable or (path if schema.get(LIST_TYPE) != "map" else "")
        yield from rules_causes(schema["items"], f"{path}.items", below)


def _rule_causes(rule: Mapping[str, Any], types: SchemaTypes | None, path: str, uncorrelatable: str) -> Iterator[Cause]:
    text, message = rule.get("rule", ""), rule.get("message", "")
    if not text.strip():
        yield required(f"{path}.rule", "rule is not specified")
        return
    if message and not message.strip():
        yield invalid(f"{path}.message", message, "must be non-empty if specified")
    elif re.search(r"[\n\r]", message.strip()):
        yield invalid(f"{path}.message", message, "must not contain line breaks")
    elif re.search(r"[\n\r]", text.strip()) and not message:
        yield required(f"{path}.message", "message must be specified if rule contains line breaks")
    if rule.get("reason") is not None and rule["reason"] not in REASONS:
        yield not_supported(f"{path}.reason", rule["reason"], REASONS)
    try:
        compiled = _compiled(rule)
        if types is not None:
            _check_types(rule, types)
    except InvalidExpression as error:
        yield invalid(f"{path}.rule", dict(rule), f"compilation failed: {error}")
        return
    if compiled.is_transition and uncorrelatable:
        why = f"oldSelf cannot be used on the uncorrelatable portion of the schema within {uncorrelatable}"
        yield invalid(f"{path}.rule", text, why)
    if not compiled.is_transition and rule.get("optionalOldSelf") is not None:
        yield invalid(
            f"{path}.optionalOldSelf", rule["optionalOldSelf"], "may not be set if oldSelf is not used in rule"
        )


def _check_types(rule: Mapping[str, Any], types: SchemaTypes) -> None:
    """Raise InvalidExpression."""
    is_optional = bool(rule.get("optionalOldSelf"))
    types.check(rule["rule"], "bool", optional_old=is_optional)
    if rule.get("messageExpression") is not None:
        types.check(rule["messageExpression"], "string", optional_old=is_optional)
