from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.admission import policy_rules
from onenode.apiserver.admission.policy_rules import Denial, SeenValues, compile_policy, denials
from onenode.apiserver.admission.write_attributes import REQUEST_FIELDS, WriteAttributes, namespace_value, request_value
from onenode.apiserver.custom_resources.expression_cost_rules import EVALUATION
from onenode.apiserver.custom_resources.expressions import InvalidExpression
from orlop.kube.kinds import CONFIG_MAP, POD, Kind

NODE_NAME = "authentication.kubernetes.io/node-name"
ROBOT = User("system:serviceaccount:ns:robot", ("a", "b"), "u1", {NODE_NAME: ("n1",)})
SCALE = Kind("autoscaling", "v1", "Scale", "scales", namespaced=True)


def write(new: Any = None, old: Any = None, **rest: Any) -> WriteAttributes:
    given_ = {"kind": CONFIG_MAP, "subresource": "", "part_kind": CONFIG_MAP, "namespace": "ns", "name": "c"}
    return WriteAttributes(**{**given_, "user": ROBOT, "object": new, "old": old, **rest})


def seen(new: Any = None, old: Any = None, **rest: Any) -> SeenValues:
    asked = write(new, old, **rest)
    request = request_value(asked, asked.kind)
    return SeenValues({"object": new, "oldObject": old, "request": request, "namespaceObject": None})


def spec(*validations: str | dict[str, str], **rest: Any) -> dict[str, Any]:
    return {"validations": [each if isinstance(each, dict) else {"expression": each} for each in validations], **rest}


def messages(given_: dict[str, Any], values: SeenValues) -> list[str]:
    return [each.message for each in denials(compile_policy(given_), values)]


OBJECT: dict[str, Any] = {"metadata": {"name": "c"}, "data": {"a": "1"}, "list": [1, 2, 3], "none": None, "text": "x"}
TRUE = [
    "object.metadata.name == 'c'",
    "request.userInfo.username == 'system:serviceaccount:ns:robot' && request.userInfo.uid == 'u1'",
    "'b' in request.userInfo.groups && size(request.userInfo.groups) == 2",
    f"request.userInfo.extra['{NODE_NAME}'][0] == 'n1'",
    f"request.userInfo.extra[?'{NODE_NAME}'][0].orValue('') == 'n1'",
    "request.userInfo.extra[?'absent'][0].orValue('') == ''",
    "!('absent' in request.userInfo.extra)",
    "object.none == null && !has(object.absent)",
    "object.list.exists(each, each == 2) && object.list.map(each, each * 2) == [2, 4, 6]",
    "object.text in ['x', 'y'] ? true : false",
    "object.data.transformed == '' || true",
    "oldObject == null && namespaceObject == null",
    "(request.operation == 'DELETE' ? oldObject : object).?metadata.name.orValue('') == 'c'",
    "'request.nothing' != '' && \"params.x\" != ''",
]


@pytest.mark.parametrize("expression", TRUE)
def test_what_an_expression_may_be(expression: str):
    assert messages(spec(expression), seen(OBJECT)) == []
    assert messages(spec(f"!({expression})"), seen(OBJECT)) == [f"failed expression: !({expression})"]


REFUSED = [
    ("object.flag", "must evaluate to bool but got dyn"),
    ("1", "must evaluate to bool but got int"),
    ("[1]", "must evaluate to bool but got list(int)"),
    ("null", "must evaluate to bool but got null_type"),
    ("request.absent == ''", "ERROR: <input>:1:8: undefined field 'absent'"),
    ("true &&\n  request.?absent == ''", "ERROR: <input>:2:11: undefined field 'absent'"),
    ("request.userInfo.name == ''", "ERROR: <input>:1:17: undefined field 'name'"),
    ("request.kind.plural == ''", "ERROR: <input>:1:13: undefined field 'plural'"),
    ("variables.x == 1", "ERROR: <input>:1:10: undefined field 'x'"),
    ("authorizer.group('').check('get').allowed()", "this API server has no authorizer in expressions of policies"),
    ("params == null", "this API server has no params in expressions of policies"),
    ("self == 1", "ERROR: <input>:1:1: undeclared reference to 'self' (in container '')"),
    ("nope('1') == 1", "ERROR: <input>:1:5: undeclared reference to 'nope' (in container '')"),
]


@pytest.mark.parametrize(("expression", "why"), REFUSED, ids=[each[0] for each in REFUSED])
def test_an_expression_that_cannot_be_compiled(expression: str, why: str):
    with pytest.raises(InvalidExpression) as raised:
        compile_policy(spec(expression))

    assert str(raised.value) == why


# ---- variables -------------------------------------------------------------------------------------------------------


def variables(**texts: str) -> list[dict[str, str]]:
    return [{"name": name, "expression": text} for name, text in texts.items()]


KEPT = ["1", "1.5", "'a'", "true", "null", "[1, 'a']", "{'a': [1]}", "b'a'", "duration('90s')", "timestamp(0)", "1u"]


@pytest.mark.parametrize("text", [*KEPT, "object.data", "object.list", "[duration('1s')]"])
def test_a_variable_keeps_its_value(text: str):
    assert messages(spec(f"variables.v == ({text})", variables=variables(v=text)), seen(OBJECT)) == []


def test_an_optional_value_is_no_variable():
    with pytest.raises(InvalidExpression, match="orValue"):
        compile_policy(spec("true", variables=variables(v="object.?a")))


def test_a_variable_has_the_type_of_its_expression():
    with pytest.raises(InvalidExpression, match="found no matching overload"):
        compile_policy(spec("variables.v + 1 == 2", variables=variables(v="'a'")))
    assert messages(spec("variables.v", variables=variables(v="object.text == 'x'")), seen(OBJECT)) == []


def test_a_variable_that_fails_is_an_error_only_where_it_is_needed():
    failing = variables(bad="object.absent", worse="variables.bad + 1", good="object.text")
    given_ = spec("variables.good == 'x'", "variables.worse == 1 || true", "variables.worse == 1", variables=failing)

    (message,) = messages(given_, seen(OBJECT))

    inner = 'composited variable "bad" fails to evaluate: no such key: absent'
    assert message == (
        f"expression 'variables.worse == 1' resulted in error: composited variable \"worse\" fails to evaluate: {inner}"
    )


def test_variables_that_nothing_names_are_not_evaluated(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_rules, "BUDGET", 4 * EVALUATION)
    many = variables(**{f"v{number}": "object.text" for number in range(10)})

    assert messages(spec("variables.v9 == 'x'", variables=many), seen(OBJECT)) == []


# ---- limits ----------------------------------------------------------------------------------------------------------


def test_a_policy_ends_at_its_budget(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(policy_rules, "BUDGET", 5 * EVALUATION // 2)

    assert messages(spec("true", "true"), seen(OBJECT)) == []
    assert messages(spec("true", "false", "true"), seen(OBJECT)) == [
        "validation failed due to running out of cost budget, no further validation rules will be run"
    ]
    assert messages(spec("true", "true", "true", failurePolicy="Ignore"), seen(OBJECT)) == []


MULTIPLYING = [
    "object.list.map(x, x).size() > 0",
    "object.list.all(x, object.list.indexOf(x) >= 0)",
    "variables.same.all(x, variables.same == object.list)",
    "object.list.all(x, object.text.split('').size() > 0)",
    "object.list.all(x, string(x).matches(r'[\\pL]{300}'))",
]


@pytest.mark.parametrize("text", MULTIPLYING)
def test_a_policy_that_multiplies_what_it_sees_ends_at_its_budget(text: str):
    policy = spec(text, variables=variables(same="object.list"))

    assert messages(policy, seen({"list": list(range(9_000)), "text": "x" * 10_000})) == [
        "validation failed due to running out of cost budget, no further validation rules will be run"
    ]


def test_an_expression_ends_after_its_iterations():
    loops = "object.list.all(a, object.list.all(b, object.list.all(c, a + b + c >= 0)))"

    (message,) = messages(spec(loops), seen({"list": list(range(100))}))

    assert message == f"expression '{loops}' resulted in error: operation cancelled: actual cost limit exceeded"


def test_a_long_message_gives_way_to_the_fixed_one():
    given_ = spec({"expression": "false", "messageExpression": "object.text + ''", "message": "no"})

    assert messages(given_, seen({"text": "x" * 5120})) == ["x" * 5120]
    assert messages(given_, seen({"text": "x" * 5121})) == ["no"]


# ---- conditions, reasons ---------------------------------------------------------------------------------------------


def conditions(*texts: str) -> list[dict[str, str]]:
    return [{"name": f"c{place}", "expression": text} for place, text in enumerate(texts)]


ABSENT = "expression 'object.{0} == 1' resulted in error: no such key: {0}"


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (("true", "true"), ["failed expression: false"]),
        (("true", "false"), []),
        (("object.absent == 1", "false"), []),
        (("object.absent == 1",), [ABSENT.format("absent")]),
        (
            ("object.a == 1", "object.b == 1"),
            [f"[{ABSENT.format('a')}, {ABSENT.format('b')}]"],
        ),
    ],
)
def test_conditions_come_before_validations(texts: tuple[str, ...], found: list[str]):
    assert messages(spec("false", matchConditions=conditions(*texts)), seen(OBJECT)) == found
    ignoring = spec("false", matchConditions=conditions(*texts), failurePolicy="Ignore")
    assert messages(ignoring, seen(OBJECT)) == [text for text in found if text.startswith("failed expression")]


def test_a_denial_has_the_reason_of_its_validation_and_an_error_none_of_its_own():
    forbidden = {"expression": "false", "reason": "Forbidden", "message": "no"}
    failing = {"expression": "object.absent == 1", "reason": "Forbidden"}

    found = denials(compile_policy(spec(forbidden, failing)), seen(OBJECT))

    assert found[0] == Denial("no", "Forbidden")
    assert found[1].reason == "Invalid"


# ---- the request -----------------------------------------------------------------------------------------------------


def test_a_request_has_the_fields_that_expressions_may_name_and_no_others():
    full = write(OBJECT, OBJECT, kind=POD, part_kind=POD, subresource="status", dry_run=True, options={"kind": "x"})
    request = request_value(full, POD)

    assert request.keys() == REQUEST_FIELDS.keys()
    for name, fields in REQUEST_FIELDS.items():
        assert not fields or request[name].keys() == set(fields)
    assert request["operation"] == "UPDATE"


def test_what_a_request_does_not_have_is_absent():
    request = request_value(write(OBJECT, namespace="", user=User("jane")), CONFIG_MAP)

    assert not {"subResource", "requestSubResource", "namespace"} & request.keys()
    assert request["userInfo"] == {"username": "jane"}


def test_the_kind_is_that_of_the_body():
    request = request_value(write(OBJECT, kind=POD, part_kind=SCALE, subresource="scale"), POD)

    assert (request["kind"]["kind"], request["resource"]["resource"]) == ("Scale", "pods")


def test_a_namespace_is_seen_without_its_managers():
    namespace = {"metadata": {"name": "n", "labels": {}, "managedFields": [], "ownerReferences": []}, "status": {}}

    assert namespace_value(namespace) == {"metadata": {"name": "n", "labels": {}}, "spec": {}, "status": {}}


# ---- anything a client may send --------------------------------------------------------------------------------------


NUMBERS = st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.text(max_size=9)
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
HOSTILE = compile_policy(
    spec(
        "object.a.b == oldObject.a.b",
        "variables.x.all(each, each > 0)",
        {"expression": "size(object.a) < 3", "messageExpression": "'a' + string(variables.y)"},
        variables=variables(x="object.a.map(each, each + 1)", y="object.?a.orValue(oldObject)"),
        matchConditions=conditions("has(object.a)"),
    )
)


@given(new=st.dictionaries(st.sampled_from("ab"), JSON), old=st.none() | st.dictionaries(st.sampled_from("ab"), JSON))
@settings(max_examples=200, deadline=None)
def test_whatever_is_written_a_policy_decides(new: dict[str, Any], old: dict[str, Any] | None):
    found = denials(HOSTILE, seen(new, old))

    assert all(each.message for each in found)
    assert denials(HOSTILE, seen(new, old)) == found


@given(text=st.text(alphabet="abc.()[]?!=&|' \"\\\n0_{}request variables", max_size=40))
@settings(max_examples=300, deadline=None)
def test_whatever_an_expression_is_it_compiles_or_is_refused(text: str):
    try:
        compiled = compile_policy(spec(text))
    except InvalidExpression:
        return
    denials(compiled, seen(OBJECT))
