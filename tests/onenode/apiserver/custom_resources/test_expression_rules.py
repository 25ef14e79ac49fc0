from __future__ import annotations

from typing import Any

import pytest

from onenode.apiserver.custom_resources import expression_rules
from onenode.apiserver.custom_resources.expression_cost_rules import EVALUATION
from onenode.apiserver.custom_resources.expression_rules import expression_causes, rule_tree, rules_causes
from onenode.apiserver.custom_resources.expressions import InvalidExpression, compile_expression, uses_old_self
from onenode.apiserver.custom_resources.schema_nodes import node_of
from onenode.apiserver.custom_resources.value_rules import NO_OLD

VALIDATIONS = "x-kubernetes-validations"
TEXT: dict[str, Any] = {"type": "string"}
WHOLE: dict[str, Any] = {"type": "integer"}


def ruled(schema: dict[str, Any], *rules: str, **rest: Any) -> dict[str, Any]:
    return {**schema, VALIDATIONS: [{"rule": rule, **rest} for rule in rules]}


def of(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties}


def causes(schema: dict[str, Any], value: Any, old: Any = NO_OLD) -> list[str]:
    tree = rule_tree(node_of(of(x=schema)))
    assert tree is not None
    return [str(cause) for cause in expression_causes(tree, {"x": value}, old if old is NO_OLD else {"x": old})]


# Expressions as the charts in use have them: each holds for the first value and not for the second.
EXPRESSIONS = [
    (of(a=WHOLE, b=WHOLE), "self.a <= self.b", {"a": 1, "b": 2}, {"a": 3, "b": 2}),
    (of(a=TEXT, b=TEXT), "has(self.a) != has(self.b)", {"a": ""}, {}),
    (of(a=TEXT), "!has(self.a) || self.a.startsWith('x')", {}, {"a": "y"}),
    (of(**{"a-b": TEXT, "namespace": TEXT}), "self.a__dash__b == self.__namespace__", {"a-b": "n", "namespace": "n"},
     {"a-b": "n", "namespace": "m"}),
    ({"type": "array", "items": TEXT}, "self.all(item, item.size() > 1)", ["ab"], ["a"]),
    ({"type": "array", "items": WHOLE}, "self.isSorted() && self.sum() < 10", [1, 2], [2, 1]),
    ({"type": "object", "additionalProperties": TEXT}, "'a' in self && self['a'] != ''", {"a": "b"}, {"a": ""}),
    ({"type": "object", "additionalProperties": TEXT}, "self.?a.orValue('') == ''", {}, {"a": "b"}),
    (TEXT, "self.matches('^[a-z]+$')", "abc", "ABC"),
    (TEXT, "self.split(',').size() == 2", "a,b", "a"),
    ({**TEXT, "format": "duration"}, "self > duration('1m')", "1h", "1s"),
    ({**TEXT, "format": "date-time"}, "self.getFullYear() == 2026", "2026-01-01T00:00:00Z", "2025-01-01T00:00:00Z"),
    ({"x-kubernetes-int-or-string": True}, "type(self) == int ? self > 0 : self == '50%'", "50%", 0),
    ({"type": "number"}, "self > 1", 1.5, 0.5),
    ({"type": "array", "items": of(name=TEXT)}, "self.exists_one(e, e.name == 'a')", [{"name": "a"}], []),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "rule", "valid", "wrong"), EXPRESSIONS, ids=[each[1] for each in EXPRESSIONS])
def test_a_rule_holds_or_fails(schema: dict, rule: str, valid: Any, wrong: Any):
    schema = ruled(schema, rule, message="no")

    assert causes(schema, valid) == []
    (found,) = causes(schema, wrong)
    assert found.startswith("x: Invalid value: ")
    assert found.endswith(": no")


TEXTS = [
    (ruled(TEXT, "self == 'a'"), "b", "x: Invalid value: \"b\": failed rule: self == 'a'"),
    (ruled(of(a=TEXT), "self.a == 'a'"), {"a": "b"}, "x: Invalid value: failed rule: self.a == 'a'"),
    (ruled(TEXT, "self == 'a'", message=" m "), "b", 'x: Invalid value: "b": m'),
    (ruled(TEXT, "self == 'a'", messageExpression="self + '!'"), "b", 'x: Invalid value: "b": b!'),
    (ruled(TEXT, "self == 'a'", message="m", messageExpression="self + '\\n'"), "b", 'x: Invalid value: "b": m'),
    (ruled(TEXT, "self == 'a'", message="m", reason="FieldValueForbidden"), "b", "x: Forbidden: m"),
    (ruled(TEXT, "self == 'a'", message="m", reason="FieldValueRequired"), "b", "x: Required value: m"),
    (ruled(TEXT, "self == 'a'", message="m", reason="FieldValueDuplicate"), "b", 'x: Duplicate value: "b": m'),
    (ruled(of(a=TEXT), "false", message="m", fieldPath=".a"), {}, "x.a: Invalid value: m"),
]


@pytest.mark.parametrize(("schema", "value", "text"), TEXTS)
def test_a_rule_that_fails_has_kubernetes_text(schema: dict, value: Any, text: str):
    assert causes(schema, value) == [text]


def test_an_error_counts_as_a_failure():
    (found,) = causes(ruled(of(a=TEXT), "self.a == 'a'"), {})

    assert "evaluating rule: no such key: a" in found


def test_a_rule_is_evaluated_where_there_is_a_value():
    assert causes(of(a=ruled(TEXT, "false")), {}) == []
    assert causes(of(a=ruled({**TEXT, "nullable": True}, "false")), {"a": None}) == []


def test_a_transition_rule_needs_an_old_value():
    immutable = ruled(TEXT, "self == oldSelf", message="immutable")

    assert causes(immutable, "a") == []
    assert causes(immutable, "a", "a") == []
    assert causes(immutable, "b", "a") == ['x: Invalid value: "b": immutable']


def test_an_unchanged_value_is_held_against_transition_rules_alone():
    assert causes(ruled(WHOLE, "self > 5"), 1, 1) == []
    assert len(causes(ruled(WHOLE, "self > oldSelf"), 1, 1)) == 1


def test_an_old_value_may_be_optional():
    schema = ruled(WHOLE, "oldSelf.hasValue() ? self > oldSelf.value() : self == 0", optionalOldSelf=True)

    assert causes(schema, 0) == []
    assert len(causes(schema, 1)) == 1
    assert causes(schema, 2, 1) == []
    assert len(causes(schema, 1, 2)) == 1


def test_items_of_a_list_map_have_old_values_by_their_keys():
    item = of(k=TEXT, v=ruled(WHOLE, "self >= oldSelf", message="less"))
    schema = {
        "type": "array",
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["k"],
        "items": item,
    }

    moved = [{"k": "b", "v": 1}, {"k": "a", "v": 1}]
    assert causes(schema, moved, [{"k": "a", "v": 1}]) == []
    assert causes(schema, moved, [{"k": "a", "v": 2}]) == ["x[1].v: Invalid value: 1: less"]


def test_all_rules_of_an_object_share_a_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(expression_rules, "BUDGET", 20 * EVALUATION)
    schema = {"type": "array", "items": ruled(of(a=TEXT), "true")}

    assert causes(schema, [{"a": "b"}] * 5) == []
    (found,) = causes(schema, [{"a": "b"}] * 50)
    assert "validation failed due to running out of cost budget" in found


def test_a_rule_that_loops_too_long_fails():
    (found,) = causes(ruled({"type": "array", "items": WHOLE}, "self.all(a, self.all(b, a != b || true))"), [1] * 300)

    assert "operation cancelled: actual cost limit exceeded" in found


def test_a_rule_that_multiplies_what_it_sees_ends_at_the_budget():
    """Without a limit a text of 1.4 MB becomes one of two terabytes, and 9,000 items are converted 9,000 times.

    `map` copies its list for each item: a list of 9,000 takes 2 seconds and a gigabyte.
    """
    (text,) = causes(ruled(of(a=TEXT), "self.a.replace('', self.a) != ''"), {"a": "x" * 1_400_000})
    items = {"type": "array", "items": TEXT}
    (calls,) = causes(ruled(items, "self.all(x, self.indexOf(x) >= 0)"), [str(number) for number in range(9_000)])

    (copies,) = causes(ruled(items, "self.map(x, x).size() > 0"), [str(number) for number in range(9_000)])

    assert "running out of cost budget" in text
    assert "running out of cost budget" in calls
    assert "running out of cost budget" in copies


def test_a_message_that_costs_too_much_ends_at_the_budget():
    long_message = ruled(of(a=TEXT), "false", messageExpression="self.a.replace('', self.a)")

    (found,) = causes(long_message, {"a": "x" * 1_400_000})
    assert "running out of cost budget" in found


REFUSED = [
    (ruled(TEXT, "self.nope("), ".rule", "compilation failed: "),
    (ruled(TEXT, "made.up"), ".rule", "compilation failed: ERROR: <input>:1:5: undeclared reference to 'made.up'"),
    (ruled(TEXT, "self + 'a'"), ".rule", "compilation failed: must evaluate to a bool"),
    (ruled(TEXT, "1"), ".rule", "compilation failed: must evaluate to a bool"),
    (ruled(TEXT, " "), ".rule", "Required value: rule is not specified"),
    (ruled(TEXT, "true", message=" "), ".message", "must be non-empty if specified"),
    (ruled(TEXT, "true", message="a\nb"), ".message", "must not contain line breaks"),
    (ruled(TEXT, "true\n&& true"), ".message", "message must be specified if rule contains line breaks"),
    (ruled(TEXT, "true", reason="Other"), ".reason", "Unsupported value"),
    (ruled(TEXT, "true", optionalOldSelf=True), ".optionalOldSelf", "may not be set if oldSelf is not used in rule"),
]


@pytest.mark.parametrize(("schema", "field", "part"), REFUSED)
def test_a_rule_that_cannot_be_used_is_refused(schema: dict, field: str, part: str):
    found = list(rules_causes(of(a=schema), "p"))

    (cause,) = found
    assert cause.field == f"p.properties[a].{VALIDATIONS}[0]{field}"
    assert part in cause.message


def test_a_transition_rule_is_refused_where_values_do_not_correlate():
    (cause,) = rules_causes(of(a={"type": "array", "items": ruled(TEXT, "self == oldSelf")}), "p")

    assert "oldSelf cannot be used on the uncorrelatable portion of the schema within p.properties[a]" in cause.message


def test_old_self_in_a_text_is_no_use_of_it():
    assert not uses_old_self("self == 'oldSelf'")
    assert uses_old_self("self == oldSelf")


def test_a_sentence_of_the_library_has_no_codes():
    with pytest.raises(InvalidExpression, match=r"^ERROR: <input>:1:[0-9]+: Syntax error[^\[]*"):
        compile_expression("self ==", "bool")
