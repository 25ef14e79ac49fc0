r"""Label selectors and field selectors: read, matched, and written in one canonical form. Pure.

    a=b,c!=d,e in (x,y),f notin (z),g,!h        label selectors, as kubectl and the API have them; also a>1 and a<1
    metadata.name=x,status.phase!=Running       field selectors; in values "," "=" and "\" have a "\" before them

Two selectors that differ in spaces, order, repetition or `==` for `=` are written the same. Errors are worded as the
API server's, which answers them with 400. Which fields can be selected by is the server's to know.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.kube.label_requirements import SETS, InvalidSelector, Operator, Requirement
from orlop.kube.label_syntax import faults_of_label_key, invalid_value

__all__ = [
    "EVERYTHING",
    "NOTHING",
    "FieldSelector",
    "FieldTerm",
    "InvalidSelector",
    "LabelSelector",
    "Operator",
    "Requirement",
    "field_text",
]

# ---- label selectors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelSelector:
    """A label selector: all requirements must match; without any it matches everything. `NOTHING` matches nothing."""

    requirements: tuple[Requirement, ...] = ()
    nothing: bool = False

    def __post_init__(self) -> None:
        in_order = sorted(set(self.requirements), key=lambda one: (one.key, one.operator.value, one.values))
        object.__setattr__(self, "requirements", tuple(in_order))

    @classmethod
    def parse(cls, text: str) -> LabelSelector:
        """Parse a label selector; the empty text selects everything."""
        return cls(tuple(_Parser(text).requirements()))

    @classmethod
    def of_labels(cls, labels: Mapping[str, str]) -> LabelSelector:
        return cls(tuple(Requirement(key, Operator.EQUALS, (value,)) for key, value in labels.items()))

    @classmethod
    def of_object(cls, selector: Mapping[str, Any] | None) -> LabelSelector:
        """Build from `matchLabels` and `matchExpressions`; an empty one selects everything, None nothing."""
        if selector is None:
            return NOTHING
        exact = cls.of_labels(selector.get("matchLabels") or {})
        expressions = (_of_expression(one) for one in selector.get("matchExpressions") or ())
        return cls((*exact.requirements, *expressions))

    def matches(self, labels: Mapping[str, str]) -> bool:
        return not self.nothing and all(requirement.matches(labels) for requirement in self.requirements)

    def exact_value(self, key: str) -> str | None:
        """Return the only value that a label may have, if there is one, for use with an index."""
        return next((one.values[0] for one in self.requirements if one.key == key and _is_exact(one)), None)

    def __bool__(self) -> bool:
        """Return whether it excludes anything."""
        return self.nothing or bool(self.requirements)

    def __str__(self) -> str:
        """Format for a query. `NOTHING` has no such form; servers refuse the text that it returns."""
        return "(nothing)" if self.nothing else ",".join(map(str, self.requirements))


EVERYTHING: Final = LabelSelector()
NOTHING: Final = LabelSelector(nothing=True)

EXPRESSION_OPERATORS: Final = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.NOT_EXISTS,
}


def _of_expression(expression: Mapping[str, Any]) -> Requirement:
    operator = EXPRESSION_OPERATORS.get(str(expression.get("operator")))
    if operator is None:
        raise InvalidSelector(f'"{expression.get("operator")}" is not a valid label selector operator')
    return Requirement(str(expression.get("key") or ""), operator, tuple(expression.get("values") or ()))


def _is_exact(requirement: Requirement) -> bool:
    return requirement.operator in {Operator.EQUALS, Operator.IN} and len(requirement.values) == 1


# ---- reading label selectors -----------------------------------------------------------------------------------------

TOKENS: Final = re.compile(r"==|!=|[=!(),<>]|[^=!(),<> \t\r\n]+")  # White space is between them.
END: Final = ""
SYMBOLS: Final = frozenset({"==", "!=", "=", "!", "(", ")", ",", "<", ">"})
BINARY: Final = {
    "in": Operator.IN,
    "notin": Operator.NOT_IN,
    "=": Operator.EQUALS,
    "==": Operator.EQUALS,
    "!=": Operator.NOT_EQUALS,
    ">": Operator.GREATER,
    "<": Operator.LESS,
}
BINARY_NAMES: Final = "in, notin, =, ==, !=, gt, lt"


def _is_word(token: str) -> bool:
    return token != END and token not in SYMBOLS


class _Parser:
    """Read the tokens once; the last one is empty."""

    def __init__(self, text: str) -> None:
        self._tokens = TOKENS.findall(text)
        self._next = 0

    def requirements(self) -> Iterator[Requirement]:
        first = self._look()
        if first == END:
            return
        if first != "!" and not _is_word(first):
            raise InvalidSelector(f"found '{first}', expected: !, identifier, or 'end of string'")
        while True:
            yield self._requirement()
            separator = self._take()
            if separator == END:
                return
            if separator != ",":
                raise InvalidSelector(f"found '{separator}', expected: ',' or 'end of string'")
            if self._look() != "!" and not _is_word(self._look()):
                raise InvalidSelector(f"found '{self._look()}', expected: identifier after ','")

    def _requirement(self) -> Requirement:
        try:
            return self._parsed_requirement()
        except InvalidSelector as error:
            raise InvalidSelector(f"unable to parse requirement: {error}") from None

    def _parsed_requirement(self) -> Requirement:
        if self._look() == "!":
            self._take()
            return Requirement(self._key(), Operator.NOT_EXISTS)
        key = self._key()
        if self._look() in {END, ","}:
            return Requirement(key, Operator.EXISTS)
        operator = self._operator()
        values = self._value_set() if operator in SETS else (self._value(),)
        return Requirement(key, operator, tuple(values))

    def _key(self) -> str:
        key = self._take()
        if not _is_word(key):
            raise InvalidSelector(f"found '{key}', expected: identifier")
        if faults := faults_of_label_key(key):
            raise InvalidSelector(invalid_value("<nil>", key, faults))
        return key

    def _operator(self) -> Operator:
        token = self._take()
        if token not in BINARY:
            raise InvalidSelector(f"found '{token}', expected: {BINARY_NAMES}")
        return BINARY[token]

    def _value(self) -> str:
        if self._look() in {END, ","}:
            return ""
        value = self._take()
        if not _is_word(value):
            raise InvalidSelector(f"found '{value}', expected: identifier")
        return value

    def _value_set(self) -> set[str]:
        opening = self._take()
        if opening != "(":
            raise InvalidSelector(f"found '{opening}' expected: '('")
        if self._look() not in {",", ")"} and not _is_word(self._look()):
            raise InvalidSelector(f"found '{self._look()}', expected: ',', ')' or identifier")
        values = {self._value_in_set()}
        while (separator := self._take()) == ",":
            values.add(self._value_in_set())
        if separator != ")":
            raise InvalidSelector(f"found '{separator}', expected: ',' or ')'")
        return values

    def _value_in_set(self) -> str:
        """Parse values; two commas in a row have an empty value between them."""
        if self._look() in {",", ")"}:
            return ""
        value = self._take()
        if not _is_word(value):
            raise InvalidSelector(f"found '{value}', expected: ',', or identifier")
        return value

    def _look(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else END

    def _take(self) -> str:
        token = self._look()
        self._next += 1
        return token


# ---- field selectors -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FieldTerm:
    field: str
    equals: bool
    value: str

    def matches(self, value: str) -> bool:
        return (value == self.value) == self.equals

    def __str__(self) -> str:
        escaped = re.sub(r"([\\,=])", r"\\\1", self.value)
        return f"{self.field}{'=' if self.equals else '!='}{escaped}"


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """A field selector: all terms must match; without any it matches everything."""

    terms: tuple[FieldTerm, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(sorted(set(self.terms), key=str)))

    @classmethod
    def parse(cls, text: str) -> FieldSelector:
        """Parse a field selector; the empty text selects everything, an empty term is ignored."""
        return cls(tuple(_field_term(term, text) for term in FIELD_TERMS.findall(text)))

    @property
    def fields(self) -> frozenset[str]:
        return frozenset(term.field for term in self.terms)

    def matches(self, obj: Mapping[str, Any]) -> bool:
        return all(term.matches(field_text(obj, term.field)) for term in self.terms)

    def matches_values(self, values: Mapping[str, str]) -> bool:
        """Match against computed values of fields; a missing one is empty."""
        return all(term.matches(values.get(term.field, "")) for term in self.terms)

    def exact_value(self, field: str) -> str | None:
        return next((term.value for term in self.terms if term.field == field and term.equals), None)

    def __bool__(self) -> bool:
        """Return whether it excludes anything."""
        return bool(self.terms)

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


def field_text(obj: Mapping[str, Any], field: str) -> str:
    """Return a field by its dotted path as selectors compare it; an unset one is empty."""
    value: Any = obj
    for part in field.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    if isinstance(value, bool):
        return "true" if value else "false"
    return "" if value is None else str(value)


FIELD_TERMS: Final = re.compile(r"(?:[^\\,]|\\.?)+", re.DOTALL)
FIELD_OPERATOR: Final = re.compile(r"!=|==|=")
ESCAPABLE: Final = frozenset("\\,=")


def _field_term(term: str, selector: str) -> FieldTerm:
    match = FIELD_OPERATOR.search(term)
    if match is None:
        raise InvalidSelector(f"invalid selector: '{selector}'; can't understand '{term}'")
    return FieldTerm(term[: match.start()], match[0] != "!=", "".join(_unescaped(term[match.end() :])))


def _unescaped(value: str) -> Iterator[str]:
    characters = iter(value)
    for character in characters:
        if character == "\\":
            escaped = next(characters, "")
            if escaped not in ESCAPABLE:
                raise InvalidSelector(f"invalid field selector: invalid escape sequence: \\{escaped}")
            yield escaped
        elif character in ESCAPABLE:
            # The API server prints the number of the character.
            raise InvalidSelector(f"invalid field selector: unescaped character in value: {ord(character)}")
        else:
            yield character
