"""The CEL library behind one small interface: compile expressions over `self` and `oldSelf`, and evaluate them.

The library is imported when the first expression is compiled: a server whose definitions have no rules never loads it.
It stops an evaluation after 10,000 iterations of its loops. It does not know Kubernetes' own functions: those of lists
are added here, and an expression that uses another one cannot be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from itertools import pairwise
from typing import Any, Final

SELF: Final = "self"
OLD_SELF: Final = "oldSelf"
# What stands for oldSelf where it may be absent: an optional value cannot be passed to the library.
_PRESENT_OLD: Final = "__presentOldSelf"
_TEXTS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


class InvalidExpression(ValueError):
    """An expression that cannot be compiled, with the library's reason."""


class EvaluationFailed(Exception):
    """An expression whose evaluation ended in an error, with the library's reason."""


@dataclass(frozen=True, slots=True)
class CelExpression:
    """`for_absent` is evaluated in place of `program` where oldSelf is optional and there is none."""

    program: Any
    for_absent: Any = None

    def evaluate(self, value: Any, old: Any = None, *, has_old: bool = False) -> Any:
        """Return the result as a Python value; raise EvaluationFailed."""
        if self.for_absent is not None:
            data = {SELF: value, **({_PRESENT_OLD: old} if has_old else {})}
            return _evaluated(self.program if has_old else self.for_absent, data)
        return _evaluated(self.program, {SELF: value, **({OLD_SELF: old} if has_old else {})})


def uses_old_self(text: str) -> bool:
    return re.search(rf"\b{OLD_SELF}\b", _TEXTS.sub("''", text)) is not None


def compile_expression(text: str, result: str, *, optional_old: bool = False) -> CelExpression:
    """Compile an expression whose result has a type, `bool` or `string`; raise InvalidExpression."""
    program = _compiled(text, result)
    if not optional_old:
        return CelExpression(program)
    bound = (f"cel.bind({OLD_SELF}, {old}, {text})" for old in (f"optional.of({_PRESENT_OLD})", "optional.none()"))
    return CelExpression(*(_compiled(each, result) for each in bound))


def as_timestamp(moment: datetime) -> Any:
    """Return the value that the library takes for a timestamp inside other values."""
    from google.protobuf.timestamp_pb2 import Timestamp  # noqa: PLC0415 - loaded only for rules about times

    value = Timestamp()
    value.FromDatetime(moment)
    return value


def as_duration(nanoseconds: int) -> Any:
    from google.protobuf.duration_pb2 import Duration  # noqa: PLC0415 - as above

    value = Duration()
    value.FromNanoseconds(nanoseconds)
    return value


def _compiled(text: str, result: str) -> Any:
    environment, types = _environment()
    try:
        program = environment.compile(text)
    except RuntimeError as error:
        raise InvalidExpression(_reason(error)) from None
    if program.return_type() not in types[result]:
        raise InvalidExpression(f"must evaluate to a {result}")
    return program


def _evaluated(program: Any, data: Mapping[str, Any]) -> Any:
    _, types = _environment()
    try:
        value = program.eval(data=dict(data))
    except RuntimeError as error:
        raise EvaluationFailed(_reason(error)) from None
    if value.type() in types["error"]:
        raise EvaluationFailed(_reason(value))
    return value.plain_value()


def _reason(error: object) -> str:
    """The library's text without the codes around it and the line that points at the place."""
    text = str(error).split("\n", 1)[0]
    return re.sub(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$", "", text)


@cache
def _environment() -> tuple[Any, Mapping[str, Sequence[Any]]]:
    # 14 MB that most servers do not need.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # noqa: PLC0415
    from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings  # type: ignore[import-untyped]  # noqa: PLC0415

    extensions = (
        *(ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_math.ExtMath(), ext_bindings.ExtBindings()),
        _list_functions(cel),
    )
    variables = dict.fromkeys((SELF, OLD_SELF, _PRESENT_OLD), cel.Type.DYN)
    types = {
        "bool": (cel.Type.BOOL, cel.Type.DYN),
        "string": (cel.Type.STRING, cel.Type.DYN),
        "error": (cel.Type.ERROR,),
    }
    return cel.NewEnv(variables=variables, extensions=extensions), types


def _list_functions(cel: Any) -> Any:
    """Kubernetes' functions of lists that CEL does not have."""
    dyn = cel.Type.DYN
    functions = {
        "isSorted": (cel.Type.BOOL, lambda items: all(a <= b for a, b in pairwise(items))),
        "sum": (dyn, sum),
        "min": (dyn, min),
        "max": (dyn, max),
    }
    declared = []
    for name, (type_, implementation) in functions.items():
        of_lists = cel.Overload(
            id=f"{name}_list", return_type=type_, parameters=[cel.Type.LIST], is_member=True, impl=implementation
        )
        declared.append(cel.FunctionDecl(name, [of_lists]))
    return cel.CelExtension("kubernetes.lists", declared)
