"""The CEL library behind one small interface: compile expressions over named values, and evaluate them.

Rules of custom resources see `self` and `oldSelf`; admission policies see the names of a `CelScope`. The library is
imported when the first expression is compiled: a server without rules and policies never loads it.
It stops an evaluation after 10,000 iterations of its loops; what one costs is estimated before it, from the syntax tree
of the expression (`expression_cost_rules`). It does not know Kubernetes' own functions: they are added
here, and an expression that uses another one cannot be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from typing import Any, Final

from onenode.apiserver.custom_resources.cel_address_functions import ADDRESS_FUNCTIONS
from onenode.apiserver.custom_resources.cel_number_functions import NUMBER_FUNCTIONS
from onenode.apiserver.custom_resources.cel_text_functions import TEXT_FUNCTIONS
from onenode.apiserver.custom_resources.expression_syntax import Syntax, syntax_of

SELF: Final = "self"
OLD_SELF: Final = "oldSelf"
# What stands for oldSelf where it may be absent: an optional value cannot be passed to the library.
PRESENT_OLD: Final = "__presentOldSelf"
_TEXTS: Final = re.compile(r'"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'')


class InvalidExpression(ValueError):
    """An expression that cannot be compiled, with the library's reason."""


class EvaluationFailed(Exception):
    """An expression whose evaluation ended in an error, with the library's reason."""


@dataclass(frozen=True, slots=True)
class CelExpression:
    """`for_absent` is evaluated in place of `program` where oldSelf is optional and there is none."""

    program: _Program
    for_absent: _Program | None = None

    def syntax(self, *, has_old: bool = False) -> Syntax:
        """Return the syntax tree of what is evaluated."""
        return self._chosen(has_old=has_old).syntax

    def _chosen(self, *, has_old: bool) -> _Program:
        return self.program if self.for_absent is None or has_old else self.for_absent

    def evaluate(self, value: Any, old: Any = None, *, has_old: bool = False) -> Any:
        """Return the result as a Python value; raise EvaluationFailed."""
        name = OLD_SELF if self.for_absent is None else PRESENT_OLD
        data = {SELF: value, **({name: old} if has_old else {})}
        return _evaluated(self._chosen(has_old=has_old).compiled, data)


@dataclass(frozen=True, slots=True)
class _Program:
    compiled: Any
    syntax: Syntax


def uses_old_self(text: str) -> bool:
    return re.search(rf"\b{OLD_SELF}\b", without_texts(text)) is not None


def without_texts(text: str) -> str:
    """Return an expression of the same length whose quoted texts are blank, so that names can be searched for."""
    return _TEXTS.sub(lambda quoted: f"'{' ' * (len(quoted[0]) - 2)}'", text)


def compile_expression(text: str, result: str, *, optional_old: bool = False, environment: Any = None) -> CelExpression:
    """Compile an expression whose result has a type, `bool` or `string`; raise InvalidExpression.

    The types of its names are those of `environment`, or any.
    """
    environment = environment or _environment()
    if not optional_old:
        return CelExpression(_compiled(environment, text, result))
    bound = (f"cel.bind({OLD_SELF}, {old}, {text})" for old in (f"optional.of({PRESENT_OLD})", "optional.none()"))
    return CelExpression(*(_compiled(environment, each, result) for each in bound))


def rule_environment(pool: Any, self_type: str) -> Any:
    """Return an environment in which the names of rules have a type; `pool` has the descriptors of its messages."""
    type_ = _loaded().cel.Type(self_type)
    return _new_environment(dict.fromkeys((SELF, OLD_SELF, PRESENT_OLD), type_), pool)


# ---- expressions over any names --------------------------------------------------------------------------------------


class CelScope:
    """The names that expressions may use, and their types: of any type, or of that of an expression."""

    def __init__(self, names: Mapping[str, Any]) -> None:
        self._names = dict(names)
        self._environment = _new_environment(self._names)

    @classmethod
    def of(cls, *names: str) -> CelScope:
        return cls(dict.fromkeys(names, _loaded().dyn))

    def with_name(self, name: str, program: ScopedProgram | None = None) -> CelScope:
        """Return the scope in which `name` has the type of an expression, or any."""
        return CelScope({**self._names, name: _loaded().dyn if program is None else program.type})

    def compile(self, text: str) -> ScopedProgram:
        """Raise InvalidExpression."""
        program = _program(self._environment, text)
        return ScopedProgram(text, program.compiled, program.compiled.return_type(), program.syntax)

    def values(self, data: Mapping[str, Any]) -> CelValues:
        """Return values for expressions; a name without a value is an error where an expression comes to it."""
        return CelValues(self._environment.Activation(data=dict(data)))


@dataclass(frozen=True, slots=True)
class CelValues:
    """What the names of a scope stand for, converted at the first use and kept."""

    activation: Any


@dataclass(frozen=True, slots=True)
class ScopedProgram:
    text: str
    program: Any
    type: Any
    syntax: Syntax

    @property
    def type_name(self) -> str:
        """The type as Kubernetes names it: bool, string, dyn, list(int)."""
        name = str(self.type.name()).lower().replace("<", "(").replace(">", ")")
        return "null_type" if name == "null" else name

    def evaluate(self, values: CelValues) -> Any:
        """Return the result as a value that expressions take; raise EvaluationFailed."""
        return _bindable(_result(lambda: self.program.eval(activation=values.activation)))


def _bindable(value: Any) -> Any:
    match value:
        case datetime():
            return as_timestamp(value)
        case timedelta():
            return as_duration((value // timedelta(microseconds=1)) * 1000)
        case list():
            return [_bindable(item) for item in value]
        case dict():
            return {key: _bindable(inner) for key, inner in value.items()}
        case bytearray():
            return bytes(value)
        case _:
            return value


# ---- the library -----------------------------------------------------------------------------------------------------


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


def _compiled(environment: Any, text: str, result: str) -> _Program:
    program = _program(environment, text)
    if program.compiled.return_type() not in _loaded().types[result]:
        raise InvalidExpression(f"must evaluate to a {result}")
    return program


def _program(environment: Any, text: str) -> _Program:
    try:
        compiled = environment.compile(text)
        return _Program(compiled, syntax_of(compiled.serialize()))
    except RuntimeError as error:
        raise InvalidExpression(_reason(error)) from None


def _evaluated(program: Any, data: Mapping[str, Any]) -> Any:
    return _result(lambda: program.eval(data=dict(data)))


def _result(evaluate: Callable[[], Any]) -> Any:
    try:
        value = evaluate()
    except RuntimeError as error:
        raise EvaluationFailed(_runtime_reason(error)) from None
    if value.type() in _loaded().types["error"]:
        raise EvaluationFailed(_runtime_reason(value))
    return value.plain_value()


def _reason(error: object) -> str:
    """The library's text without the codes around it and the line that points at the place."""
    text = str(error).split("\n", 1)[0]
    return re.sub(r"^[A-Z_]+: |\s*\[[A-Z_]+\]$", "", text)


def _runtime_reason(error: object) -> str:
    """The same in the words of Kubernetes' library, which clients know."""
    text = _reason(error)
    if text == "Iteration budget exceeded":
        return "operation cancelled: actual cost limit exceeded"
    return re.sub(r'^Key not found in map : "?(.*?)"?$', r"no such key: \1", text)


@dataclass(frozen=True, slots=True)
class _Library:
    cel: Any
    extensions: Sequence[Any]
    types: Mapping[str, Sequence[Any]]
    dyn: Any


@cache
def _environment() -> Any:
    return _new_environment(dict.fromkeys((SELF, OLD_SELF, PRESENT_OLD), _loaded().dyn))


def _new_environment(names: Mapping[str, Any], pool: Any = None) -> Any:
    library = _loaded()
    return library.cel.NewEnv(descriptor_pool=pool, variables=dict(names), extensions=library.extensions)


@cache
def _loaded() -> _Library:
    # 14 MB that most servers do not need.
    from cel_expr_python import cel  # type: ignore[import-untyped]  # noqa: PLC0415
    from cel_expr_python.ext import ext_bindings, ext_math, ext_optional, ext_strings  # type: ignore[import-untyped]  # noqa: PLC0415

    extensions = (
        *(ext_strings.ExtStrings(), ext_optional.ExtOptional(), ext_math.ExtMath(), ext_bindings.ExtBindings()),
        _kubernetes_functions(cel),
    )
    types = {
        "bool": (cel.Type.BOOL, cel.Type.DYN),
        "string": (cel.Type.STRING, cel.Type.DYN),
        "error": (cel.Type.ERROR,),
    }
    return _Library(cel, extensions, types, cel.Type.DYN)


def _kubernetes_functions(cel: Any) -> Any:
    """Kubernetes' own functions, which the library does not have."""
    declared: dict[str, list[Any]] = {}
    for function in (*TEXT_FUNCTIONS, *NUMBER_FUNCTIONS, *ADDRESS_FUNCTIONS):
        overload = cel.Overload(
            id="_".join([*function.name.split("."), *function.parameters]).lower(),
            return_type=getattr(cel.Type, function.result),
            parameters=[getattr(cel.Type, name) for name in function.parameters],
            is_member=function.is_member,
            impl=function.implementation,
        )
        declared.setdefault(function.name, []).append(overload)
    return cel.CelExtension("kubernetes", [cel.FunctionDecl(name, each) for name, each in declared.items()])
