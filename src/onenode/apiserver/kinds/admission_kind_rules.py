"""ValidatingAdmissionPolicies and their bindings: what they must say, and that every expression can be compiled."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.admission.policy_rules import ExpressionCompiler
from onenode.apiserver.custom_resources.expressions import InvalidExpression
from onenode.apiserver.custom_resources.schema_types import RESERVED
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, duplicate, forbidden, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import named, named_well, one_of, repeated_places

Object = Mapping[str, Any]

FAILURE_POLICIES: Final = ("Fail", "Ignore")
MATCH_POLICIES: Final = ("Equivalent", "Exact")
OPERATIONS: Final = ("*", "CONNECT", "CREATE", "DELETE", "UPDATE")
SCOPES: Final = ("*", "Cluster", "Namespaced")
REASONS: Final = ("Forbidden", "Invalid", "RequestEntityTooLarge")
ACTIONS: Final = ("Audit", "Deny", "Warn")
MOST_CONDITIONS: Final = 64
MOST_ANNOTATIONS: Final = 20
IDENTIFIER: Final = re.compile(r"[_a-zA-Z][_a-zA-Z0-9]*")
NO_PARAMETERS: Final = "this API server has no parameters for policies: write their values into the expressions"
NOTHING_VALIDATED: Final = "validations or auditAnnotations must contain at least one item"
DENY_AND_WARN: Final = (
    "must not contain both Deny and Warn (repeating the same validation failure information in the API response and "
    "headers serves no purpose)"
)


def admission_policy(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    yield from one_of(spec.get("failurePolicy"), FAILURE_POLICIES, "spec.failurePolicy")
    if spec.get("paramKind") is not None:
        yield forbidden("spec.paramKind", NO_PARAMETERS)
    if spec.get("matchConstraints") is None:
        yield required("spec.matchConstraints")
    else:
        yield from _match(spec["matchConstraints"], "spec.matchConstraints")
        if not spec["matchConstraints"].get("resourceRules"):
            yield required("spec.matchConstraints.resourceRules")
    yield from _conditions(spec.get("matchConditions", ()))
    compiler = ExpressionCompiler()
    for place, variable in enumerate(spec.get("variables", ())):
        yield from _variable(compiler, variable, f"spec.variables[{place}]")
    if not spec.get("validations") and not spec.get("auditAnnotations"):
        yield from (required(f"spec.{field}", NOTHING_VALIDATED) for field in ("validations", "auditAnnotations"))
    for place, validation in enumerate(spec.get("validations", ())):
        yield from _validation(compiler, validation, f"spec.validations[{place}]")
    yield from _annotations(compiler, obj["metadata"].get("name", ""), spec.get("auditAnnotations", ()))


def admission_binding(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    yield from named(name_rules.dns_subdomain, spec.get("policyName"), "spec.policyName")
    if spec.get("paramRef") is not None:
        yield forbidden("spec.paramRef", NO_PARAMETERS)
    if spec.get("matchResources") is not None:
        yield from _match(spec["matchResources"], "spec.matchResources")
    yield from _actions(spec.get("validationActions", ()), "spec.validationActions")


def _actions(actions: Sequence[str], path: str) -> Iterator[Cause]:
    for place, action in enumerate(actions):
        yield from one_of(action, ACTIONS, f"{path}[{place}]")
    yield from (duplicate(f"{path}[{place}]", actions[place]) for place in repeated_places(actions))
    if {"Deny", "Warn"} <= set(actions):
        yield invalid(path, list(actions), DENY_AND_WARN)
    if not actions:
        yield required(path, "at least one validation action is required")


# ---- match rules -----------------------------------------------------------------------------------------------------


def _match(match: Object, path: str) -> Iterator[Cause]:
    """Selectors are validated wherever they stand."""
    yield from one_of(match.get("matchPolicy"), MATCH_POLICIES, f"{path}.matchPolicy")
    for field in ("resourceRules", "excludeResourceRules"):
        for place, rule in enumerate(match.get(field, ())):
            yield from _rule(rule, f"{path}.{field}[{place}]")


def _rule(rule: Object, path: str) -> Iterator[Cause]:
    names = rule.get("resourceNames", ())
    for place, name in enumerate(names):
        yield from named_well(name_rules.path_segment, name, f"{path}.resourceNames[{place}]")
    yield from (duplicate(f"{path}.resourceNames[{place}]", names[place]) for place in repeated_places(names))
    operations = rule.get("operations", ())
    yield from _alone(operations, f"{path}.operations", "operations")
    for place, operation in enumerate(operations):
        yield from one_of(operation, OPERATIONS, f"{path}.operations[{place}]")
    yield from _alone(rule.get("apiGroups", ()), f"{path}.apiGroups", "API groups")
    yield from _alone(rule.get("apiVersions", ()), f"{path}.apiVersions", "API versions")
    for place, version in enumerate(rule.get("apiVersions", ())):
        if not version:
            yield required(f"{path}.apiVersions[{place}]")
    yield from _resources(rule.get("resources", ()), f"{path}.resources")
    yield from one_of(rule.get("scope"), SCOPES, f"{path}.scope")


def _alone(values: Sequence[str], path: str, what: str) -> Iterator[Cause]:
    if not values:
        yield required(path)
    elif len(values) > 1 and "*" in values:
        yield invalid(path, list(values), f"if '*' is present, must not specify other {what}")


def _resources(resources: Sequence[str], path: str) -> Iterator[Cause]:
    if not resources:
        yield required(path)
    whole: set[str] = set()
    everywhere: set[str] = set()
    for place, each in enumerate(resources):
        resource, slash, part = each.partition("/")
        if not each:
            yield required(f"{path}[{place}]")
        elif slash and resource in whole:
            yield invalid(f"{path}[{place}]", each, f"if '{resource}/*' is present, must not specify {each}")
        elif slash and part in everywhere:
            yield invalid(f"{path}[{place}]", each, f"if '*/{part}' is present, must not specify {each}")
        whole |= {resource} if part == "*" else set()
        everywhere |= {part} if slash and resource == "*" else set()
    if len(resources) > 1 and "*/*" in resources:
        yield invalid(path, list(resources), "if '*/*' is present, must not specify other resources")
    if "*" in resources and any("/" not in each and each != "*" for each in resources):
        why = "if '*' is present, must not specify other resources without subresources"
        yield invalid(path, list(resources), why)


# ---- expressions -----------------------------------------------------------------------------------------------------


def _compiled(compiler: ExpressionCompiler, text: str, path: str, *results: str) -> Iterator[Cause]:
    try:
        compiler.compile(text, *results)
    except InvalidExpression as error:
        yield _failed(path, text, error)


def _failed(path: str, text: str, error: InvalidExpression) -> Cause:
    why = str(error)
    return invalid(path, text, f"compilation failed: {why}" if why.startswith("ERROR") else why)


def _conditions(conditions: Sequence[Object]) -> Iterator[Cause]:
    path = "spec.matchConditions"
    if len(conditions) > MOST_CONDITIONS:
        text = f"Too many: {len(conditions)}: must have at most {MOST_CONDITIONS} items"
        yield Cause("FieldValueTooMany", text, path)
        return
    for place, condition in enumerate(conditions):
        text = condition.get("expression", "").strip()
        if text:
            yield from _compiled(ExpressionCompiler(), text, f"{path}[{place}].expression", "bool")
        else:
            yield required(f"{path}[{place}].expression")
        yield from named(name_rules.label_key, condition.get("name"), f"{path}[{place}].name")
    names = [condition.get("name", "") for condition in conditions]
    yield from (duplicate(f"{path}[{place}].name", names[place]) for place in repeated_places(names))


def _variable(compiler: ExpressionCompiler, variable: Object, path: str) -> Iterator[Cause]:
    name, text = variable.get("name", ""), variable.get("expression", "")
    is_name = IDENTIFIER.fullmatch(name) is not None and name not in RESERVED
    if not name.strip():
        yield required(f"{path}.name", "name is not specified")
    elif not is_name:
        yield invalid(f"{path}.name", name, "name is not a valid CEL identifier")
    if not text.strip():
        yield required(f"{path}.expression", "expression is not specified")
    elif is_name:
        try:
            compiler.add_variable(name, text)
        except InvalidExpression as error:
            yield _failed(f"{path}.expression", text, error)


def _validation(compiler: ExpressionCompiler, validation: Object, path: str) -> Iterator[Cause]:
    text, message = validation.get("expression", ""), validation.get("message", "")
    if not text.strip():
        yield required(f"{path}.expression", "expression is not specified")
    else:
        yield from _compiled(compiler, text, f"{path}.expression", "bool")
    expression = validation.get("messageExpression", "")
    if expression and not expression.strip():
        yield invalid(f"{path}.messageExpression", expression, "must be non-empty if specified")
    elif expression:
        yield from _compiled(compiler, expression, f"{path}.messageExpression", "string")
    if message and not message.strip():
        yield invalid(f"{path}.message", message, "message must be non-empty if specified")
    elif re.search(r"[\n\r]", message.strip()):
        yield invalid(f"{path}.message", message, "message must not contain line breaks")
    if validation.get("reason") is not None and validation["reason"] not in REASONS:
        yield not_supported(f"{path}.reason", validation["reason"], REASONS)


def _annotations(compiler: ExpressionCompiler, policy: str, annotations: Sequence[Object]) -> Iterator[Cause]:
    path = "spec.auditAnnotations"
    if len(annotations) > MOST_ANNOTATIONS:
        yield invalid(path, list(annotations), f"must not have more than {MOST_ANNOTATIONS} auditAnnotations")
        return
    for place, annotation in enumerate(annotations):
        key, text = annotation.get("key", ""), annotation.get("valueExpression", "")
        yield from named_well(name_rules.label_key, f"{policy}/{key}", f"{path}[{place}].key")
        if not text.strip():
            yield required(f"{path}[{place}].valueExpression", "valueExpression is not specified")
        else:
            yield from _compiled(compiler, text.strip(), f"{path}[{place}].valueExpression", "string", "null_type")
    keys = [annotation.get("key", "") for annotation in annotations]
    yield from (duplicate(f"{path}[{place}].key", keys[place]) for place in repeated_places(keys))
