from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.access.rbac_rules import (
    Allowed,
    Denied,
    PathQuestion,
    Policy,
    ResourceQuestion,
    User,
    decide,
    rules_of,
)


def role(name: str, *rules: dict[str, Any], namespace: str = "") -> dict[str, Any]:
    return {"metadata": {"name": name, "namespace": namespace}, "rules": list(rules)}


def rule(verbs: str, resources: str, groups: str = "", names: str = "") -> dict[str, Any]:
    granted: dict[str, Any] = {"verbs": verbs.split(), "apiGroups": groups.split(",") if groups else [""]}
    granted["resources"] = resources.split()
    return {**granted, "resourceNames": names.split()} if names else granted


def binding(role_kind: str, role_name: str, *subjects: dict[str, str], namespace: str = "") -> dict[str, Any]:
    metadata = {"name": "b", "namespace": namespace}
    return {"metadata": metadata, "roleRef": {"kind": role_kind, "name": role_name}, "subjects": list(subjects)}


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def cluster(*rules: dict[str, Any], subject: dict[str, str] | None = None) -> Policy:
    return Policy(
        cluster_roles=(role("r", *rules),),
        cluster_role_bindings=(binding("ClusterRole", "r", subject or user("u")),),
    )


U = User("u", ("system:authenticated",))


def may(policy: Policy, question: ResourceQuestion | PathQuestion, who: User = U) -> bool:
    return isinstance(decide(who, question, policy), Allowed)


def test_masters_may_do_everything():
    assert may(Policy(), ResourceQuestion("delete", "", "nodes", name="n1"), User("root", ("system:masters",)))


def test_what_no_rule_grants_is_denied_in_kubernetes_words():
    decision = decide(U, ResourceQuestion("get", "", "pods", namespace="default", name="p"), Policy())

    assert decision == Denied(
        'pods "p" is forbidden: User "u" cannot get resource "pods" in API group "" in the namespace "default"'
    )


def test_a_list_of_everything_is_denied_at_the_cluster_scope():
    decision = decide(U, ResourceQuestion("list", "storage.k8s.io", "csinodes"), Policy())

    assert decision == Denied(
        'csinodes.storage.k8s.io is forbidden: User "u" cannot list resource "csinodes" '
        'in API group "storage.k8s.io" at the cluster scope'
    )


def test_a_path_is_denied_by_its_name():
    assert decide(U, PathQuestion("get", "/x"), Policy()) == Denied('forbidden: User "u" cannot get path "/x"')


def test_a_cluster_wide_binding_holds_in_every_namespace():
    policy = cluster(rule("get list", "pods"))

    assert may(policy, ResourceQuestion("list", "", "pods"))
    assert may(policy, ResourceQuestion("get", "", "pods", namespace="a", name="p"))
    assert not may(policy, ResourceQuestion("delete", "", "pods", namespace="a", name="p"))


def test_a_binding_in_a_namespace_holds_there_alone_with_a_role_or_a_cluster_role():
    policy = Policy(
        roles=(role("r", rule("get", "pods"), namespace="a"), role("r", rule("*", "*"), namespace="b")),
        cluster_roles=(role("c", rule("get", "secrets")),),
        role_bindings=(
            binding("Role", "r", user("u"), namespace="a"),
            binding("ClusterRole", "c", user("u"), namespace="a"),
        ),
    )

    assert may(policy, ResourceQuestion("get", "", "pods", namespace="a"))
    assert may(policy, ResourceQuestion("get", "", "secrets", namespace="a"))
    assert not may(policy, ResourceQuestion("get", "", "pods", namespace="b"))
    assert not may(policy, ResourceQuestion("get", "", "secrets"))


RESOURCES = [
    ("pods", "pods", "", True),
    ("pods", "pods", "log", False),
    ("pods/log", "pods", "log", True),
    ("pods/log", "pods", "", False),
    ("*", "pods", "log", True),
    ("*/scale", "deployments", "scale", True),
    ("*/scale", "deployments", "status", False),
    ("*/scale", "scale", "", False),
    ("pods/*", "pods", "log", False),
    ("pods/*", "pods", "", False),
    ("*/*", "pods", "log", False),
    ("pods/lo*", "pods", "log", False),
    ("po*", "pods", "", False),
]


@pytest.mark.parametrize(("granted", "resource", "subresource", "allowed"), RESOURCES)
def test_a_resource_grants_itself_and_not_its_parts(granted: str, resource: str, subresource: str, *, allowed: bool):
    question = ResourceQuestion("get", "", resource, subresource, "a", "x")

    assert may(cluster(rule("get", granted)), question) == allowed


def test_a_rule_with_names_grants_only_those():
    policy = cluster(rule("get list create", "leases", "coordination.k8s.io", names="mine"))

    assert may(policy, ResourceQuestion("get", "coordination.k8s.io", "leases", name="mine"))
    assert not may(policy, ResourceQuestion("get", "coordination.k8s.io", "leases", name="yours"))
    assert not may(policy, ResourceQuestion("list", "coordination.k8s.io", "leases"))
    assert may(policy, ResourceQuestion("list", "coordination.k8s.io", "leases", name="mine"))


def test_groups_and_service_accounts_are_subjects():
    question = ResourceQuestion("get", "", "pods")
    by_group = cluster(rule("get", "pods"), subject={"kind": "Group", "name": "system:authenticated"})
    by_account = cluster(rule("get", "pods"), subject={"kind": "ServiceAccount", "name": "sa", "namespace": "ns"})

    assert may(by_group, question)
    assert may(by_account, question, User("system:serviceaccount:ns:sa"))
    assert not may(by_account, question, User("system:serviceaccount:other:sa"))


def test_a_service_account_without_a_namespace_is_of_the_binding_s():
    policy = Policy(
        roles=(role("r", rule("get", "pods"), namespace="a"),),
        role_bindings=(binding("Role", "r", {"kind": "ServiceAccount", "name": "sa"}, namespace="a"),),
    )

    question = ResourceQuestion("get", "", "pods", namespace="a")
    assert may(policy, question, User("system:serviceaccount:a:sa"))
    assert not may(policy, question, User("system:serviceaccount:b:sa"))


PATHS = [("/metrics", "/metrics", True), ("/apis/*", "/apis/apps", True), ("/apis/*", "/api", False), ("*", "/x", True)]


@pytest.mark.parametrize(("pattern", "path", "allowed"), PATHS)
def test_paths_are_granted_exactly_or_by_their_beginning(pattern: str, path: str, *, allowed: bool):
    policy = cluster({"verbs": ["get"], "nonResourceURLs": [pattern]})

    assert may(policy, PathQuestion("get", path)) == allowed


def test_a_denial_names_the_roles_one_is_bound_to_that_are_not_there():
    policy = Policy(
        cluster_role_bindings=(binding("ClusterRole", "gone", user("u")),),
        role_bindings=(binding("Role", "lost", user("u"), namespace="n"),),
    )

    one = decide(U, ResourceQuestion("get", "", "nodes", name="a"), policy)
    both = decide(U, ResourceQuestion("list", "", "pods", namespace="n"), policy)

    cluster_role = 'clusterrole.rbac.authorization.k8s.io "gone" not found'
    assert isinstance(one, Denied)
    assert one.message.endswith(f"at the cluster scope: RBAC: {cluster_role}")
    assert isinstance(both, Denied)
    assert both.message.endswith(f': RBAC: [{cluster_role}, role.rbac.authorization.k8s.io "lost" not found]')


def test_a_binding_to_a_role_that_is_not_there_grants_nothing():
    policy = Policy(cluster_role_bindings=(binding("ClusterRole", "gone", user("u")),))

    assert not may(policy, ResourceQuestion("get", "", "pods"))


def test_the_rules_of_a_user_are_listed():
    granted = rule("get", "pods")

    assert rules_of(U, "default", cluster(granted)) == [granted]
    assert rules_of(User("x"), "default", cluster(granted)) == []


WORDS = st.sampled_from(["get", "list", "pods", "nodes", "*", "", "a", "b"])


@given(st.lists(st.tuples(WORDS, WORDS)), WORDS, WORDS, st.tuples(WORDS, WORDS))
def test_more_rules_never_take_a_right_away(
    rules: list[tuple[str, str]], verb: str, resource: str, more: tuple[str, str]
):
    made = [rule(verbs, resources) for verbs, resources in rules]
    question = ResourceQuestion(verb, "", resource)

    if may(cluster(*made), question):
        assert may(cluster(*made, rule(*more)), question)


def test_a_subject_of_another_kind_is_nobody():
    policy = cluster(rule("*", "*"), subject={"kind": "Robot", "name": "u"})

    assert not may(policy, ResourceQuestion("get", "", "pods"))
