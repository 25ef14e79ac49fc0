from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.custom_resources.expressions import InvalidExpression
from onenode.apiserver.custom_resources.schema_types import SchemaTypes, escaped

TEXT = {"type": "string"}
WHOLE = {"type": "integer"}
OF_ANYTHING = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
INNER = {"type": "object", "properties": {"in": TEXT, "a-b": TEXT}}
FIELDS: dict[str, Any] = {
    "inner": INNER,
    "any": OF_ANYTHING,
    "open": {"type": "object", "additionalProperties": True},
    "numbers": {"type": "object", "additionalProperties": WHOLE},
    "named": {"type": "object", "additionalProperties": INNER},
    "list": {"type": "array", "items": INNER},
    "texts": {"type": "array", "items": TEXT},
    "nested": {"type": "array", "items": {"type": "array", "items": WHOLE}},
    "listsByName": {"type": "object", "additionalProperties": {"type": "array", "items": WHOLE}},
    "count": WHOLE,
    "share": {"type": "number"},
    "ready": {"type": "boolean"},
    "port": {"x-kubernetes-int-or-string": True},
    "since": {"type": "string", "format": "date-time"},
    "after": {"type": "string", "format": "duration"},
    "bytes": {"type": "string", "format": "byte"},
    "maybe": {"type": "string", "nullable": True},
    "foo_bar": TEXT,
    "fooBar": TEXT,
    "$ref": TEXT,
}
ROOT = {"type": "object", "properties": FIELDS, "x-kubernetes-embedded-resource": True}
UNDEFINED = "ERROR: <input>:{}: undefined field '{}'$"


def test_names_are_escaped():
    names = ["namespace", "a.b", "a-b", "a/b", "a__b", "plain"]
    assert [escaped(name) for name in names] == [
        *("__namespace__", "a__dot__b", "a__dash__b", "a__slash__b", "a__underscores__b", "plain")
    ]


@pytest.mark.parametrize(
    "rule",
    [
        "self.inner.__in__ == '' && self.inner.a__dash__b == self.kind",
        "has(self.inner) || self.metadata.name.size() > 1 || self.?inner.?a__dash__b.orValue('') == 'x'",
        "self.any.thing.else && self.open.b && self.numbers.one == 1 && 'self.nothing' == ''",
        "self.named.all(name, self.named[name].__in__ != '') && self.list.exists(each, each.__in__ == 'a')",
        "self.nested.all(each, each.all(one, one > 0)) && self.nested[0][0] == 1 && self.listsByName['a'][0] == 1",
        "self.count > 1.5 || self.share > 1",
        "self.port == 1 || self.port == 'http' || self.port > 3",
        "self.since > timestamp('2020-01-01T00:00:00Z') && self.after < duration('1h') && self.bytes != b'x'",
        "self.maybe == null || self.maybe == 'x'",
        "self.ready",
        "self.foo_bar + self.fooBar == ''",
        "self.texts == oldSelf.texts && quantity(self.foo_bar).isGreaterThan(quantity('1'))",
        "self.inner == oldSelf.inner || self == oldSelf",
    ],
)
def test_what_fits_a_schema_is_accepted(rule: str):
    SchemaTypes(ROOT).check(rule, "bool")


@pytest.mark.parametrize(
    ("rule", "reason"),
    [
        ("self.kind == 'A' ||\n self.sort == 'B'", UNDEFINED.format("2:6", "sort")),
        ("self.inner.out == ''", UNDEFINED.format("1:11", "out")),
        ("oldSelf.nothing == 1", UNDEFINED.format("1:8", "nothing")),
        ("self.list.all(each, each.whatever == 1)", UNDEFINED.format("1:25", "whatever")),
        ("self.metadata.labels.size() == 0", UNDEFINED.format("1:14", "labels")),
        ("self.count", "must evaluate to a bool"),
        ("self.foo_bar", "must evaluate to a bool"),
        ("self.inner", "must evaluate to a bool"),
        ("self.texts.map(x, x)", "must evaluate to a bool"),
        ("self.count == 'one'", "no matching overload for '_==_' applied to '.int, string.'"),
        ("self.foo_bar + self.count == ''", "no matching overload"),
        ("self.inner.all(x, true)", "cannot be the range of a comprehension"),
        ("self.texts.all(x, x > 1)", "no matching overload"),
        ("self.numbers['a'] == 'x'", "no matching overload"),
        ("self.since == 'x'", "no matching overload"),
        ("self.foo_bar == null", "no matching overload"),
    ],
)
def test_what_does_not_fit_a_schema_is_refused(rule: str, reason: str):
    with pytest.raises(InvalidExpression, match=reason):
        SchemaTypes(ROOT).check(rule, "bool")


@pytest.mark.parametrize(
    ("schema", "rule"),
    [
        (WHOLE, "self"),
        (TEXT, "self + 'a'"),
        ({"type": "array", "items": TEXT}, "self[0]"),
        ({"type": "array", "items": INNER}, "self[0].nope == ''"),
        ({"type": "object", "additionalProperties": WHOLE}, "self.a == 'x'"),
        ({"type": "array", "items": {"type": "array", "items": WHOLE}}, "self[0][0] == 'x'"),
    ],
)
def test_a_schema_of_any_type_can_have_rules(schema: dict[str, Any], rule: str):
    types = SchemaTypes(schema)

    types.check("self == oldSelf", "bool")
    with pytest.raises(InvalidExpression):
        types.check(rule, "bool")


def test_an_old_value_that_may_be_absent_is_optional():
    types = SchemaTypes(WHOLE)

    types.check("!oldSelf.hasValue() || self > oldSelf.value()", "bool", optional_old=True)
    with pytest.raises(InvalidExpression):
        types.check("self > oldSelf", "bool", optional_old=True)


def test_a_message_is_a_text():
    types = SchemaTypes(ROOT)

    types.check("'no ' + self.foo_bar", "string")
    with pytest.raises(InvalidExpression, match="must evaluate to a string"):
        types.check("self.count", "string")
