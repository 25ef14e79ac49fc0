"""The expressions of an admission policy: compiled once, evaluated for each write that the policy matches. Pure.

A variable is evaluated when the first expression names it. One that fails is without a value, so it fails only the
expressions that come to it. All expressions of one policy share a budget (`expression_cost_rules`), which is spent
before each evaluation.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, Final

from onenode.apiserver.admission.write_attributes import REQUEST_FIELDS
from onenode.apiserver.custom_resources.expression_cost_rules import ExpressionValues, spend_on
from onenode.apiserver.custom_resources.expression_rules import LONGEST_MESSAGE, OUT_OF_BUDGET
from onenode.apiserver.custom_resources.expression_value_rules import BUDGET, BudgetSpent, CostBudget
from onenode.apiserver.custom_resources.expressions import (
    CelScope,
    CelValues,
    EvaluationFailed,
    InvalidExpression,
    ScopedProgram,
    without_texts,
)

Object = Mapping[str, Any]

NAMES: Final = ("object", "oldObject", "request", "namespaceObject")
VARIABLES: Final = "variables."
INVALID: Final = "Invalid"
# Of these the types are known in Kubernetes, and not here: what is made of them may be of any type.
_OF_KNOWN_TYPES: Final = re.compile(r"\b(request|namespaceObject|variables)\b")
_VARIABLE: Final = re.compile(r"(?<![\w.])variables\.(\w+)")
_REQUEST: Final = re.compile(r"(?<![\w.])request\.\??(\w+)(?:\.\??(\w+))?")
_NOT_HERE: Final = re.compile(r"(?<![\w.])(authorizer|params)\b")


# ---- compiling -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PolicyExpression:
    """`variables` are the names of all that the expression needs, also through other variables."""

    program: ScopedProgram
    variables: frozenset[str] = frozenset()

    @property
    def text(self) -> str:
        return self.program.text


class ExpressionCompiler:
    """Compiles the expressions of one policy, its variables first: each sees those before it."""

    def __init__(self) -> None:
        self._scope = _scope()
        self._known: set[str] = set()
        self.variables: dict[str, PolicyExpression] = {}

    def add_variable(self, name: str, text: str) -> None:
        """Raise InvalidExpression; also then the name is known, so that what uses it is not refused as well."""
        expression = None
        try:
            expression = self.compile(text)
            if expression.program.type_name.startswith("optional"):
                raise InvalidExpression("an optional value cannot be kept in a variable here: end it with orValue()")
            self.variables[name] = expression
        finally:
            self._known.add(name)
            self._scope = self._scope.with_name(
                f"{VARIABLES}{name}", None if expression is None else expression.program
            )

    def compile(self, text: str, *results: str) -> PolicyExpression:
        """Compile an expression of one of the types `results`, or of any; raise InvalidExpression."""
        plain = without_texts(text)
        _refuse_unknown_names(plain, self._known)
        program = self._scope.compile(text)
        is_any = program.type_name == "dyn" and _OF_KNOWN_TYPES.search(plain) is not None
        if results and program.type_name not in results and not is_any:
            expected = results[0] if len(results) == 1 else f"one of [{' '.join(results)}]"
            raise InvalidExpression(f"must evaluate to {expected} but got {program.type_name}")
        direct = frozenset(_VARIABLE.findall(plain)) & self.variables.keys()
        needed = direct.union(*(self.variables[name].variables for name in direct))
        return PolicyExpression(program, needed)


@cache
def _scope() -> CelScope:
    return CelScope.of(*NAMES)


def _refuse_unknown_names(plain: str, variables: Collection[str]) -> None:
    if match := _NOT_HERE.search(plain):
        raise InvalidExpression(f"this API server has no {match[1]} in expressions of policies")
    for match in _VARIABLE.finditer(plain):
        if match[1] not in variables:
            raise _undefined(plain, match.start(1), match[1])
    for match in _REQUEST.finditer(plain):
        name, inner = match.groups()
        if name not in REQUEST_FIELDS:
            raise _undefined(plain, match.start(1), name)
        if inner and REQUEST_FIELDS[name] and inner not in REQUEST_FIELDS[name]:
            raise _undefined(plain, match.start(2), inner)


def _undefined(plain: str, place: int, name: str) -> InvalidExpression:
    before = plain[:place]
    column = len(before) - (before.rfind("\n") + 1)
    return InvalidExpression(f"ERROR: <input>:{before.count(chr(10)) + 1}:{column}: undefined field '{name}'")


@dataclass(frozen=True, slots=True)
class PolicyValidation:
    expression: PolicyExpression
    message: str
    message_expression: PolicyExpression | None
    reason: str


@dataclass(frozen=True, slots=True)
class PolicyExpressions:
    conditions: tuple[PolicyExpression, ...]
    variables: Mapping[str, PolicyExpression]
    validations: tuple[PolicyValidation, ...]
    fails_closed: bool


def compile_policy(spec: Object) -> PolicyExpressions:
    """Compile the expressions of a policy that was validated; raise InvalidExpression."""
    conditions = [ExpressionCompiler().compile(each["expression"], "bool") for each in spec.get("matchConditions", ())]
    compiler = ExpressionCompiler()
    for each in spec.get("variables", ()):
        compiler.add_variable(each["name"], each["expression"])
    validations = [_validation(compiler, each) for each in spec.get("validations", ())]
    fails_closed = spec.get("failurePolicy") != "Ignore"
    return PolicyExpressions(tuple(conditions), compiler.variables, tuple(validations), fails_closed)


def _validation(compiler: ExpressionCompiler, spec: Object) -> PolicyValidation:
    message = spec.get("messageExpression")
    return PolicyValidation(
        compiler.compile(spec["expression"], "bool"),
        spec.get("message", "").strip() or f"failed expression: {spec['expression'].strip()}",
        compiler.compile(message, "string") if message else None,
        spec.get("reason") or INVALID,
    )


# ---- evaluating ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Denial:
    message: str
    reason: str = INVALID


class SeenValues:
    """The values of `NAMES` for one write. Policies share them, and so their conversion."""

    def __init__(self, data: Mapping[str, Any]) -> None:
        self.data = data
        self.measured = ExpressionValues(data)
        self.converted = _scope().values(data)


class _Evaluation:
    """One policy on one write."""

    def __init__(self, policy: PolicyExpressions, seen: SeenValues) -> None:
        self._policy = policy
        self._seen = seen
        self._budget = CostBudget(BUDGET)
        self._values: dict[str, Any] = {}
        self._failed: dict[str, str] = {}
        self._converted: CelValues = seen.converted
        self._converted_values = 0
        self._measured = seen.measured

    def result(self, expression: PolicyExpression) -> Any:
        """Raise EvaluationFailed."""
        for name in self._policy.variables if expression.variables else ():
            if name in expression.variables and name not in self._values and name not in self._failed:
                self._evaluate_variable(name)
        return self._evaluated(expression)

    def _evaluate_variable(self, name: str) -> None:
        try:
            self._values[name] = self._evaluated(self._policy.variables[name])
        except EvaluationFailed as error:
            self._failed[name] = str(error)

    def _evaluated(self, expression: PolicyExpression) -> Any:
        values = self._values_for(expression)
        spend_on(expression.program.syntax, self._measured, self._budget)
        try:
            return expression.program.evaluate(values)
        except EvaluationFailed as error:
            raise EvaluationFailed(self._reason(str(error))) from None

    def _values_for(self, expression: PolicyExpression) -> CelValues:
        """Values are converted again only when there are more variables than before."""
        if not expression.variables:
            return self._seen.converted
        if len(self._values) != self._converted_values:
            variables = {f"{VARIABLES}{name}": value for name, value in self._values.items()}
            self._converted = _scope().values({**self._seen.data, **variables})
            self._measured = ExpressionValues({**self._seen.data, **variables})
            self._converted_values = len(self._values)
        return self._converted

    def _reason(self, text: str) -> str:
        match = re.search(r'No value with name "variables\.(\w+)"', text)
        if match is None or match[1] not in self._failed:
            return text
        return f'composited variable "{match[1]}" fails to evaluate: {self._failed[match[1]]}'


def denials(policy: PolicyExpressions, seen: SeenValues) -> list[Denial]:
    """Return a denial for each validation of a policy that fails. An error denies as well, or is ignored."""
    evaluation = _Evaluation(policy, seen)
    try:
        errors: list[str] = []
        results = [_condition(evaluation, condition, errors) for condition in policy.conditions]
        if False in results:
            return []
        if errors:
            return _on_error(policy, errors[0] if len(errors) == 1 else f"[{', '.join(errors)}]")
        return [found for each in policy.validations for found in _denials(policy, evaluation, each)]
    except BudgetSpent:
        return _on_error(policy, OUT_OF_BUDGET)


def _on_error(policy: PolicyExpressions, message: str) -> list[Denial]:
    return [Denial(message)] if policy.fails_closed else []


def _condition(evaluation: _Evaluation, condition: PolicyExpression, errors: list[str]) -> Any:
    try:
        return evaluation.result(condition)
    except EvaluationFailed as error:
        errors.append(_error_text(condition, error))
        return None


def _error_text(expression: PolicyExpression, error: EvaluationFailed) -> str:
    return f"expression '{expression.text}' resulted in error: {error}"


def _denials(policy: PolicyExpressions, evaluation: _Evaluation, validation: PolicyValidation) -> Iterator[Denial]:
    try:
        if evaluation.result(validation.expression) is not True:
            yield Denial(_message(evaluation, validation), validation.reason)
    except EvaluationFailed as error:
        yield from _on_error(policy, _error_text(validation.expression, error))


def _message(evaluation: _Evaluation, validation: PolicyValidation) -> str:
    if validation.message_expression is None:
        return validation.message
    try:
        text = evaluation.result(validation.message_expression)
    except EvaluationFailed:
        return validation.message
    text_line = text.strip() if isinstance(text, str) else ""
    is_fit = text_line and "\n" not in text_line and len(text_line.encode()) <= LONGEST_MESSAGE
    return text_line if is_fit else validation.message
