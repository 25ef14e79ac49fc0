from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.access.rbac_rules import ADMIN
from onenode.apiserver.admission.write_attributes import WriteAttributes
from onenode.apiserver.admission.write_match_rules import match_resources, matched_kind
from orlop.kube.kinds import CONFIG_MAP, CORE_EVENT, EVENT, NAMESPACE, NODE, POD, Kind

NAMESPACE_LABELS = {"team": "a"}


def write(kind: Kind = POD, part: str = "", *, old: Any = None, new: Any = None, name: str = "x") -> WriteAttributes:
    namespace = "ns" if kind.namespaced else name if kind is NAMESPACE else ""
    made = {"metadata": {"name": name}} if old is None and new is None else new
    return WriteAttributes(kind, part, kind, namespace, name, ADMIN, made, old)


def rule(**changes: Any) -> dict[str, Any]:
    return {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"], **changes}


def judges(match: dict[str, Any], asked: WriteAttributes, *equivalents: Kind) -> Kind | None:
    return matched_kind(match_resources(match), asked, equivalents, lambda: NAMESPACE_LABELS)


CASES: list[tuple[dict[str, Any], WriteAttributes, bool]] = [
    (rule(), write(), True),
    (rule(resources=["pods"]), write(POD), True),
    (rule(resources=["pods"]), write(POD, "status"), False),
    (rule(resources=["pods/status"]), write(POD, "status"), True),
    (rule(resources=["pods/status"]), write(POD), False),
    (rule(resources=["pods/*"]), write(POD), True),
    (rule(resources=["pods/*"]), write(POD, "binding"), True),
    (rule(resources=["*"]), write(POD), True),
    (rule(resources=["*"]), write(POD, "status"), False),
    (rule(resources=["*/status"]), write(NODE, "status"), True),
    (rule(resources=["*/status"]), write(NODE), False),
    (rule(operations=["CREATE"]), write(), True),
    (rule(operations=["CREATE"]), write(old={}, new={}), False),
    (rule(operations=["UPDATE"]), write(old={}, new={}), True),
    (rule(operations=["DELETE"]), write(old={}), True),
    (rule(operations=["CONNECT"]), write(), False),
    (rule(apiGroups=[""]), write(POD), True),
    (rule(apiGroups=["events.k8s.io"]), write(POD), False),
    (rule(apiVersions=["v2"]), write(POD), False),
    (rule(scope="Namespaced"), write(POD), True),
    (rule(scope="Cluster"), write(POD), False),
    (rule(scope="Cluster"), write(NODE), True),
    (rule(scope="Namespaced"), write(NODE), False),
    # A Namespace is in no namespace, though its requests name one.
    (rule(scope="Cluster"), write(NAMESPACE), True),
    (rule(scope="Namespaced"), write(NAMESPACE), False),
    (rule(resourceNames=["x"]), write(name="x"), True),
    (rule(resourceNames=["y"]), write(name="x"), False),
    (rule(resourceNames=["x"]), write(name=""), False),
]


@pytest.mark.parametrize(("given_", "asked", "expected"), CASES)
def test_a_rule_matches_a_write_or_not(given_: dict, asked: WriteAttributes, expected: bool):  # noqa: FBT001 - a column of the table
    assert (judges({"resourceRules": [given_]}, asked) is not None) is expected
    excluded = {"resourceRules": [rule()], "excludeResourceRules": [given_]}
    assert (judges(excluded, asked) is None) is expected


def test_without_rules_every_write_matches():
    assert judges({}, write()) == POD


SELECTED: list[tuple[dict[str, str], WriteAttributes, bool]] = [
    ({"team": "a"}, write(POD), True),
    ({"team": "b"}, write(POD), False),
    # A cluster-wide object is in no namespace that could be left out.
    ({"team": "b"}, write(NODE), True),
    # A Namespace counts with the labels that it gets, and with those that it has when it goes.
    ({"team": "c"}, write(NAMESPACE, new={"metadata": {"labels": {"team": "c"}}}), True),
    ({"team": "a"}, write(NAMESPACE, new={"metadata": {"labels": {"team": "c"}}}), False),
    ({"team": "a"}, write(NAMESPACE, old={"metadata": {}}), True),
    ({"team": "a"}, write(NAMESPACE, "status", old={"metadata": {}}, new={"metadata": {}}), True),
]


@pytest.mark.parametrize(("labels", "asked", "expected"), SELECTED)
def test_a_namespace_selector(labels: dict, asked: WriteAttributes, expected: bool):  # noqa: FBT001 - as above
    assert (judges({"namespaceSelector": {"matchLabels": labels}}, asked) is not None) is expected


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (None, {"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {"labels": {"a": "b"}}}, None, True),
        ({"metadata": {"labels": {"a": "b"}}}, {"metadata": {}}, True),
        ({"metadata": {}}, {"metadata": {"labels": {"a": "b"}}}, True),
        ({"metadata": {}}, {"metadata": {"labels": {"a": "c"}}}, False),
        (None, {"metadata": None}, False),
        (None, {"spec": {}}, False),
    ],
)
def test_an_object_selector_takes_either_version(old: Any, new: Any, expected: bool):  # noqa: FBT001 - as above
    match = {"objectSelector": {"matchLabels": {"a": "b"}}}

    assert (judges(match, write(old=old, new=new)) is not None) is expected


def test_a_rule_about_one_form_of_an_object_judges_the_other():
    match = {"resourceRules": [rule(apiGroups=["events.k8s.io"], resources=["events"])]}

    assert judges(match, write(CORE_EVENT), EVENT) == EVENT
    assert judges({**match, "matchPolicy": "Exact"}, write(CORE_EVENT), EVENT) is None
    excluded = {"resourceRules": [rule()], "excludeResourceRules": match["resourceRules"]}
    assert judges(excluded, write(CORE_EVENT), EVENT) is None


WORDS = st.sampled_from(["*", "", "apps", "v1", "pods", "configmaps", "CREATE", "UPDATE"])
LISTS = st.lists(WORDS, max_size=3)


@given(
    groups=LISTS,
    versions=LISTS,
    operations=LISTS,
    resources=st.lists(st.sampled_from(["*", "*/*", "pods", "pods/*", "pods/status", "*/status", "/", ""]), max_size=3),
    kind=st.sampled_from([POD, CONFIG_MAP, NODE]),
    part=st.sampled_from(["", "status"]),
)
def test_a_rule_matches_exactly_where_each_of_its_lists_does(
    groups: list[str], versions: list[str], operations: list[str], resources: list[str], kind: Kind, part: str
):
    lists = {"apiGroups": groups, "apiVersions": versions, "operations": operations, "resources": resources}
    asked = write(kind, part)

    def holds(values: list[str], value: str) -> bool:
        return "*" in values or value in values

    allowed = {kind.plural, "*"} if not part else set()
    allowed |= {f"{left}/{right}" for left in (kind.plural, "*") for right in (part, "*")}
    expected = (
        holds(groups, kind.group)
        and holds(versions, kind.version)
        and holds(operations, "CREATE")
        and bool(allowed & set(resources))
    )
    assert (judges({"resourceRules": [lists]}, asked) is not None) is expected
