"""Selectors: what they match, one canonical form, and the API server's words for those that cannot be read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.selectors import (
    EVERYTHING,
    NOTHING,
    FieldSelector,
    FieldTerm,
    InvalidSelector,
    LabelSelector,
    Operator,
    Requirement,
    field_text,
)
from support.random_tests import FEWER

# ---- label selectors, by example -------------------------------------------------------------------------------------

CANONICAL = [
    ("", ""),
    ("   ", ""),
    ("a=b", "a=b"),
    ("a==b", "a=b"),
    (" a = b ", "a=b"),
    ("a\t=\nb\r", "a=b"),
    ("a!=b", "a!=b"),
    ("a=", "a="),
    ("a= , b", "a=,b"),
    ("b,a", "a,b"),
    ("!a", "!a"),
    ("! a", "!a"),
    ("a in (y,x,x)", "a in (x,y)"),
    ("a in( x ,y )", "a in (x,y)"),
    ("a notin (z)", "a notin (z)"),
    ("a in ()", "a in ()"),
    ("a in (,)", "a in ()"),
    ("a in (x,)", "a in (,x)"),
    ("a in (x,,y)", "a in (,x,y)"),
    ("in in (in,notin)", "in in (in,notin)"),
    ("notin", "notin"),
    ("a=in", "a=in"),
    ("a>1,b<2", "a>1,b<2"),
    ("example.com/Role=db,a.b_c-1", "a.b_c-1,example.com/Role=db"),
    ("a=b,a=b", "a=b"),
    ("a!=b,a=c", "a!=b,a=c"),
    ("a=b,c!=d,e in (x,y),f notin (z),g,!h", "a=b,c!=d,e in (x,y),f notin (z),g,!h"),
]


@pytest.mark.parametrize(("text", "canonical"), CANONICAL, ids=[text or "empty" for text, _ in CANONICAL])
def test_a_selector_is_written_in_one_form_however_it_was_typed(text: str, canonical: str):
    assert str(LabelSelector.parse(text)) == canonical
    assert LabelSelector.parse(canonical) == LabelSelector.parse(text)


NAME_RULE = (
    "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric "
    "character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is "
    "'([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')"
)
VALUE_RULE = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and "
    "end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)
INTEGER_RULE = "for 'Gt', 'Lt' operators, the value must be an integer"

REFUSED = [
    ("=b", "found '=', expected: !, identifier, or 'end of string'"),
    (",", "found ',', expected: !, identifier, or 'end of string'"),
    ("a,", "found '', expected: identifier after ','"),
    ("a,,b", "found ',', expected: identifier after ','"),
    ("a=b c", "found 'c', expected: ',' or 'end of string'"),
    ("!a=b", "found '=', expected: ',' or 'end of string'"),
    ("a==b==c", "found '==', expected: ',' or 'end of string'"),
    ("!", "unable to parse requirement: found '', expected: identifier"),
    ("!=a", "found '!=', expected: !, identifier, or 'end of string'"),
    ("a b", "unable to parse requirement: found 'b', expected: in, notin, =, ==, !=, gt, lt"),
    ("a (b)", "unable to parse requirement: found '(', expected: in, notin, =, ==, !=, gt, lt"),
    ("a=(b)", "unable to parse requirement: found '(', expected: identifier"),
    ("a in b", "unable to parse requirement: found 'b' expected: '('"),
    ("a in", "unable to parse requirement: found '' expected: '('"),
    ("a in (", "unable to parse requirement: found '', expected: ',', ')' or identifier"),
    ("a in (b", "unable to parse requirement: found '', expected: ',' or ')'"),
    ("a in (b c)", "unable to parse requirement: found 'c', expected: ',' or ')'"),
    ("a in (b,=)", "unable to parse requirement: found '=', expected: ',', or identifier"),
    ("a in (=)", "unable to parse requirement: found '=', expected: ',', ')' or identifier"),
    ("-a=b", f'unable to parse requirement: <nil>: Invalid value: "-a": {NAME_RULE}'),
    ("a=b@c", f'unable to parse requirement: values[0][a]: Invalid value: "b@c": {VALUE_RULE}'),
    ("a>b", f'unable to parse requirement: values[0]: Invalid value: "b": {INTEGER_RULE}'),
    (f"a={'x' * 64}", f'values[0][a]: Invalid value: "{"x" * 64}": must be no more than 63 bytes'),
    ("X.y/z", "prefix part a lowercase RFC 1123 subdomain must consist of"),
    ("/z", "prefix part must be non-empty"),
    ("a/", "name part must be non-empty"),
    ("a/b/c", "with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"),
    ("ключ=1", 'Invalid value: "ключ": name part must consist of'),
    ("a\x00=b", "Invalid value"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED, ids=[text for text, _ in REFUSED])
def test_what_cannot_be_read_is_refused_in_the_words_of_the_api_server(text: str, message: str):
    with pytest.raises(InvalidSelector) as caught:
        LabelSelector.parse(text)
    assert message in str(caught.value)
    if "unable to parse" in message or "expected" in message:
        assert str(caught.value) == message


LABELS = {"app": "web", "tier": "", "size": "10", "note": "x"}

MATCHES = [
    ("", True),
    ("app=web", True),
    ("app=db", False),
    ("app!=web", False),
    ("missing!=web", True),
    ("missing=", False),
    ("tier=", True),
    ("tier", True),
    ("!tier", False),
    ("!missing", True),
    ("app in (db,web)", True),
    ("app in (db)", False),
    ("app notin (db)", True),
    ("app notin (web,db)", False),
    ("missing notin (web)", True),
    ("missing in (web,)", False),
    ("size>9", True),
    ("size>10", False),
    ("size<11", True),
    ("note>1", False),
    ("note<1", False),
    ("missing<1", False),
    ("app=web,size>9,!x", True),
    ("app=web,size>10,!x", False),
]


@pytest.mark.parametrize(("text", "expected"), MATCHES, ids=[text or "empty" for text, _ in MATCHES])
def test_a_selector_matches_labels(text: str, expected: bool):  # noqa: FBT001 - a column of the table
    assert LabelSelector.parse(text).matches(LABELS) is expected


def test_numbers_are_compared_as_far_as_64_bits_go():
    at_most = str(2**63 - 1)
    assert LabelSelector.parse(f"a<{at_most}").matches({"a": "5"})
    assert not LabelSelector.parse("a>1").matches({"a": str(2**63)})
    with pytest.raises(InvalidSelector, match="must be an integer"):
        LabelSelector.parse(f"a<{2**63}")


# ---- label selectors in objects --------------------------------------------------------------------------------------


def test_a_selector_in_an_object_says_the_same_as_its_text():
    selector = {
        "matchLabels": {"app": "web"},
        "matchExpressions": [
            {"key": "tier", "operator": "In", "values": ["b", "a"]},
            {"key": "zone", "operator": "NotIn", "values": ["x"]},
            {"key": "on", "operator": "Exists"},
            {"key": "off", "operator": "DoesNotExist", "values": []},
        ],
    }
    assert LabelSelector.of_object(selector) == LabelSelector.parse("app=web,tier in (a,b),zone notin (x),on,!off")


def test_an_empty_selector_in_an_object_matches_everything_and_a_missing_one_nothing():
    assert LabelSelector.of_object({}) == LabelSelector.of_object({"matchLabels": None}) == EVERYTHING
    assert LabelSelector.of_object(None) is NOTHING
    assert EVERYTHING.matches({})
    assert not NOTHING.matches({})
    assert not NOTHING.matches(LABELS)
    assert not EVERYTHING
    assert NOTHING
    with pytest.raises(InvalidSelector):
        LabelSelector.parse(str(NOTHING))


BAD_EXPRESSIONS = [
    ({"key": "a", "operator": "Near"}, '"Near" is not a valid label selector operator'),
    ({"key": "a"}, "is not a valid label selector operator"),
    ({"key": "a", "operator": "In", "values": []}, "for 'in', 'notin' operators, values set can't be empty"),
    ({"key": "a", "operator": "Exists", "values": ["x"]}, "values set must be empty for exists and does not exist"),
    ({"operator": "Exists"}, "name part must be non-empty"),
]


@pytest.mark.parametrize(("expression", "message"), BAD_EXPRESSIONS, ids=[text for _, text in BAD_EXPRESSIONS])
def test_a_wrong_expression_is_refused(expression, message: str):
    with pytest.raises(InvalidSelector) as caught:
        LabelSelector.of_object({"matchExpressions": [expression]})
    assert message in str(caught.value)


def test_every_fault_of_a_requirement_is_named_at_once():
    with pytest.raises(InvalidSelector, match=r"^\[key: Invalid value: .*, values: Invalid value: \[\]: for 'in'"):
        Requirement("a b", Operator.IN)
    with pytest.raises(InvalidSelector, match="exact-match compatibility requires one single value"):
        Requirement("a", Operator.EQUALS, ("x", "y"))
    with pytest.raises(InvalidSelector, match="exactly one value is required"):
        Requirement("a", Operator.GREATER, ("1", "2"))


def test_the_one_value_a_label_must_have_is_known():
    selector = LabelSelector.parse("a=b,c in (d),e in (f,g),h!=i")
    assert [selector.exact_value(key) for key in ("a", "c", "e", "h", "x")] == ["b", "d", None, None, None]


# ---- the laws of label selectors -------------------------------------------------------------------------------------

KEYS = st.sampled_from(["a", "b", "example.com/c", "in", "notin", "A.b-c_d"])
VALUES = st.sampled_from(["", "x", "y", "in", "notin", "1", "20", "A.b-c_d"])
LABEL_SETS = st.dictionaries(KEYS, VALUES, max_size=4)


@st.composite
def requirements(draw, operators=tuple(Operator)) -> Requirement:
    operator = draw(st.sampled_from(operators))
    if operator in {Operator.EXISTS, Operator.NOT_EXISTS}:
        values: list[str] = []
    elif operator in {Operator.IN, Operator.NOT_IN}:
        values = draw(st.lists(VALUES, min_size=1, max_size=3))
    elif operator in {Operator.GREATER, Operator.LESS}:
        values = [str(draw(st.integers(0, 30)))]
    else:
        values = [draw(VALUES)]
    return Requirement(draw(KEYS), operator, tuple(values))


SELECTORS = st.builds(LabelSelector, st.lists(requirements(), max_size=4).map(tuple))


@FEWER
@given(SELECTORS)
def test_reading_undoes_writing(selector: LabelSelector):
    assert LabelSelector.parse(str(selector)) == selector


@FEWER
@given(requirements([one for one in Operator if one not in {Operator.GREATER, Operator.LESS}]), LABEL_SETS)
def test_a_requirement_matches_exactly_what_its_negation_does_not(requirement: Requirement, labels: dict[str, str]):
    assert requirement.matches(labels) != requirement.negated().matches(labels)
    assert requirement.negated().negated() == requirement


def test_a_comparison_has_no_negation():
    with pytest.raises(ValueError, match="no requirement that matches exactly what a>1 does not"):
        Requirement("a", Operator.GREATER, ("1",)).negated()


@FEWER
@given(SELECTORS, SELECTORS, LABEL_SETS)
def test_two_selectors_joined_match_what_both_match(one: LabelSelector, other: LabelSelector, labels: dict[str, str]):
    joined = LabelSelector.parse(",".join(text for text in (str(one), str(other)) if text))
    assert joined.matches(labels) == (one.matches(labels) and other.matches(labels))


@FEWER
@given(SELECTORS, st.data())
def test_the_order_and_repetition_of_requirements_mean_nothing(selector: LabelSelector, data: st.DataObject):
    shuffled = data.draw(st.permutations([*selector.requirements, *selector.requirements]))
    assert LabelSelector(tuple(shuffled)) == selector


@FEWER
@given(LABEL_SETS, LABEL_SETS)
def test_the_selector_of_some_labels_matches_whoever_has_them_all(wanted: dict[str, str], labels: dict[str, str]):
    assert LabelSelector.of_labels(wanted).matches(labels) == (wanted.items() <= labels.items())


@FEWER
@given(st.text(st.sampled_from("ab=!(), <>\tin\\@é\x00"), max_size=12))
def test_any_text_is_read_or_refused_and_what_is_read_is_written_canonically(text: str):
    try:
        selector = LabelSelector.parse(text)
    except InvalidSelector:
        return
    assert LabelSelector.parse(str(selector)) == selector


# ---- field selectors -------------------------------------------------------------------------------------------------

FIELDS = [
    ("", ""),
    (",", ""),
    ("a=b", "a=b"),
    ("a==b", "a=b"),
    ("a!=b", "a!=b"),
    ("a=", "a="),
    ("b=1,a=1", "a=1,b=1"),
    (r"a=x\,y", r"a=x\,y"),
    (r"a=x\=y\\", r"a=x\=y\\"),
    (
        "spec.nodeName=n1,status.phase!=Succeeded,status.phase!=Failed",
        "spec.nodeName=n1,status.phase!=Failed,status.phase!=Succeeded",
    ),
]


@pytest.mark.parametrize(("text", "canonical"), FIELDS, ids=[text or "empty" for text, _ in FIELDS])
def test_a_field_selector_is_written_in_one_form(text: str, canonical: str):
    assert str(FieldSelector.parse(text)) == canonical


REFUSED_FIELDS = [
    ("a", "invalid selector: 'a'; can't understand 'a'"),
    ("a=b,c", "invalid selector: 'a=b,c'; can't understand 'c'"),
    ("a=b=c", "invalid field selector: unescaped character in value: 61"),
    (r"a=b\c", r"invalid field selector: invalid escape sequence: \c"),
    ("a=b\\", "invalid field selector: invalid escape sequence: \\"),
]


@pytest.mark.parametrize(("text", "message"), REFUSED_FIELDS, ids=[text for text, _ in REFUSED_FIELDS])
def test_a_field_selector_that_cannot_be_read_is_refused(text: str, message: str):
    with pytest.raises(InvalidSelector) as caught:
        FieldSelector.parse(text)
    assert str(caught.value) == message


OBJECT = {
    "metadata": {"name": "x"},
    "spec": {"unschedulable": True, "replicas": 3, "hostNetwork": False, "odd": None},
    "type": "Opaque",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("metadata.name=x", True),
        ("metadata.name=y", False),
        ("metadata.name!=y", True),
        ("metadata.namespace=", True),
        ("metadata.namespace!=", False),
        ("metadata.name.first=", True),
        ("spec.unschedulable=true", True),
        ("spec.hostNetwork=false", True),
        ("spec.replicas=3", True),
        ("spec.odd=", True),
        ("type=Opaque,metadata.name=x", True),
        ("type=Opaque,metadata.name=y", False),
        ("", True),
    ],
)
def test_a_field_selector_compares_what_stands_at_a_path_and_empty_is_unset(text: str, expected: bool):  # noqa: FBT001
    selector = FieldSelector.parse(text)
    assert selector.matches(OBJECT) is expected
    assert selector.matches_values({field: field_text(OBJECT, field) for field in selector.fields}) is expected
    assert bool(selector) is bool(text)


def test_the_one_value_a_field_must_have_is_known():
    selector = FieldSelector.parse("metadata.name=x,status.phase!=Failed")
    assert selector.exact_value("metadata.name") == "x"
    assert selector.exact_value("status.phase") is None
    assert selector.fields == {"metadata.name", "status.phase"}


FIELD_TERMS = st.builds(FieldTerm, st.sampled_from(["metadata.name", "a", "b.c"]), st.booleans(), st.text(max_size=6))


@FEWER
@given(st.lists(FIELD_TERMS, max_size=4))
def test_reading_a_field_selector_undoes_writing_it_whatever_the_values_hold(terms: list[FieldTerm]):
    selector = FieldSelector(tuple(terms))
    assert FieldSelector.parse(str(selector)) == selector


@FEWER
@given(FIELD_TERMS, st.text(max_size=6))
def test_a_field_term_matches_exactly_what_its_opposite_does_not(term: FieldTerm, value: str):
    assert term.matches(value) != FieldTerm(term.field, not term.equals, term.value).matches(value)


@FEWER
@given(st.text(st.sampled_from("ab=!,\\ "), max_size=10))
def test_any_text_is_a_field_selector_or_refused(text: str):
    try:
        selector = FieldSelector.parse(text)
    except InvalidSelector:
        return
    assert FieldSelector.parse(str(selector)) == selector
