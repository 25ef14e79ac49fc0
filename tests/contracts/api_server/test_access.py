"""Who may do what: RBAC, and the reviews that tell it beforehand."""

from __future__ import annotations

import pytest

from orlop.kube import kinds
from support.api.api_objects import account, allow, binding, config_map, group, lease, named, role, secret, user
from support.api.api_under_test import Api
from support.waiting import eventually_answered

EVERYTHING = {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]}


async def may(api: Api, *rules: dict, who: str = "") -> Api:
    """Somebody with a role in this namespace."""
    name = who or api.unique("u")
    await api.make(kinds.ROLE, role("r", *rules))
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", user(name)))
    await granted(api, name, rules[0])
    return api.acting_as(name)


async def granted(api: Api, who: str, rule: dict, *groups: str) -> None:
    """A server with caches learns of new roles and bindings a moment later."""
    question = {"verb": rule["verbs"][0], "resource": rule["resources"][0], "group": rule["apiGroups"][0]}
    question["resource"], _, question["subresource"] = question["resource"].partition("/")
    question |= {"namespace": api.namespace, "name": rule.get("resourceNames", [""])[0]}

    async def is_allowed() -> bool:
        return (await reviews_of(api, who, question, *groups))["allowed"]

    await eventually_answered(is_allowed)


def denied(name: str, verb: str, resource: str, where: str, api_group: str = "") -> str:
    return f'User "{name}" cannot {verb} resource "{resource}" in API group "{api_group}" {where}'


async def test_who_has_no_role_may_do_nothing(api: Api):
    name = api.unique("u")
    somebody = api.acting_as(name)
    here = f'in the namespace "{api.namespace}"'

    (await somebody.get(kinds.CONFIG_MAP, "c")).is_refused(
        403,
        "Forbidden",
        f'configmaps "c" is forbidden: {denied(name, "get", "configmaps", here)}',
        {"name": "c", "kind": "configmaps"},
    )
    (await somebody.list(kinds.CONFIG_MAP)).is_refused(
        403,
        "Forbidden",
        f"configmaps is forbidden: {denied(name, 'list', 'configmaps', here)}",
        {"kind": "configmaps"},
    )


async def test_what_is_forbidden_in_all_namespaces_and_the_cluster_is_told_so(api: Api):
    name = api.unique("u")
    somebody = api.acting_as(name)
    everywhere = "at the cluster scope"

    (await somebody.ask("GET", kinds.LEASE.collection_path(None))).is_refused(
        403,
        "Forbidden",
        "leases.coordination.k8s.io is forbidden: " + denied(name, "list", "leases", everywhere, "coordination.k8s.io"),
        {"group": "coordination.k8s.io", "kind": "leases"},
    )
    (await somebody.get(kinds.NODE, "n")).is_refused(
        403,
        "Forbidden",
        f'nodes "n" is forbidden: {denied(name, "get", "nodes", everywhere)}',
        {"name": "n", "kind": "nodes"},
    )


async def test_a_subresource_is_told_with_its_object(api: Api):
    name = api.unique("u")
    answer = await api.acting_as(name).patch(kinds.POD, "p", {}, subresource="status")

    where = f'in the namespace "{api.namespace}"'
    answer.is_refused(
        403,
        "Forbidden",
        f'pods "p" is forbidden: {denied(name, "patch", "pods/status", where)}',
        {"name": "p", "kind": "pods"},
    )


async def test_a_path_is_told_as_a_path(api: Api):
    name = api.unique("u")
    answer = await api.acting_as(name).ask("GET", "/metrics")

    answer.is_refused(403, "Forbidden", f'forbidden: User "{name}" cannot get path "/metrics"', {})


async def test_each_verb_is_granted_by_itself(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("c"))
    somebody = await may(api, allow("get create", "configmaps"))

    async def statuses() -> dict[str, int]:
        made = config_map("new")
        kind = kinds.CONFIG_MAP
        return {
            "get": (await somebody.get(kind, "c")).status,
            "create": (await somebody.create(kind, made)).status,
            "list": (await somebody.list(kind)).status,
            "watch": (await somebody.list(kind, watch="true")).status,
            "update": (await somebody.put(kind, {"apiVersion": "v1", "kind": "ConfigMap", **config_map("c")})).status,
            "patch": (await somebody.patch(kind, "c", {})).status,
            "delete": (await somebody.delete(kind, "c")).status,
            "deletecollection": (await somebody.ask("DELETE", api.path(kind))).status,
            "other resource": (await somebody.get(kinds.SECRET, "c")).status,
        }

    assert await statuses() == {"get": 200, "create": 201} | dict.fromkeys(
        ["list", "watch", "update", "patch", "delete", "deletecollection", "other resource"], 403
    )


async def test_a_role_reaches_no_further_than_its_namespace(api: Api):
    other = api.unique("other")
    await api.make(kinds.NAMESPACE, named(other))
    somebody = await may(api, EVERYTHING)

    assert (await somebody.list(kinds.CONFIG_MAP)).status == 200
    assert (await somebody.ask("GET", kinds.CONFIG_MAP.collection_path(other))).status == 403
    assert (await somebody.ask("GET", kinds.CONFIG_MAP.collection_path(None))).status == 403


async def test_names_limit_a_rule(api: Api):
    for name in ("mine", "other"):
        await api.make(kinds.SECRET, secret(name))
    somebody = await may(api, allow("get list watch", "secrets", resourceNames=["mine"]))

    assert (await somebody.get(kinds.SECRET, "mine")).status == 200
    assert (await somebody.get(kinds.SECRET, "other")).status == 403
    assert (await somebody.list(kinds.SECRET)).status == 403
    assert (await somebody.list(kinds.SECRET, fieldSelector="metadata.name=mine")).status == 200


async def test_a_resource_does_not_grant_its_subresources(api: Api):
    somebody = await may(api, allow("get patch", "deployments", "apps"))
    assert (await somebody.patch(kinds.DEPLOYMENT, "w", {}, subresource="status")).status == 403
    assert (await somebody.get(kinds.DEPLOYMENT, "w")).status == 404


@pytest.mark.parametrize("resource", ["deployments/scale", "*/scale", "*"])
async def test_subresources_are_granted_by_name_or_star(api: Api, resource: str):
    somebody = await may(api, allow("get", resource, "apps"))

    assert (await somebody.get(kinds.DEPLOYMENT, "w", "scale")).status == 404


async def test_a_cluster_role_bound_in_a_namespace_reaches_only_there(api: Api):
    name, who = api.unique("role"), api.unique("u")
    rule = allow("list", "configmaps nodes")
    await api.make(kinds.CLUSTER_ROLE, role(name, rule))
    await api.make(kinds.ROLE_BINDING, binding("b", "ClusterRole", name, user(who)))
    await granted(api, who, rule)
    somebody = api.acting_as(who)

    assert (await somebody.list(kinds.CONFIG_MAP)).status == 200
    assert (await somebody.list(kinds.NODE)).status == 403


async def test_a_cluster_role_bound_everywhere_reaches_everything(api: Api):
    name, who = api.unique("role"), api.unique("u")
    rules = [allow("list", "configmaps nodes"), {"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]
    await api.make(kinds.CLUSTER_ROLE, role(name, *rules))
    await api.make(kinds.CLUSTER_ROLE_BINDING, binding(name, "ClusterRole", name, user(who)))
    await granted(api, who, rules[0])
    somebody = api.acting_as(who)

    assert (await somebody.list(kinds.CONFIG_MAP)).status == 200
    assert (await somebody.ask("GET", kinds.CONFIG_MAP.collection_path(None))).status == 200
    assert (await somebody.list(kinds.NODE)).status == 200
    assert (await somebody.ask("GET", "/metrics")).status == 200
    assert (await somebody.ask("GET", "/logs")).status == 403


async def test_a_group_and_an_account_are_bound_like_a_user(api: Api):
    who = api.unique("g")
    rule = allow("list", "configmaps")
    await api.make(kinds.ROLE, role("r", rule))
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "r", group(who), account("robot", api.namespace)))
    await granted(api, "anybody", rule, who)

    assert (await api.acting_as("anybody", who).list(kinds.CONFIG_MAP)).status == 200
    robot = f"system:serviceaccount:{api.namespace}:robot"
    assert (await api.acting_as(robot).list(kinds.CONFIG_MAP)).status == 200
    assert (await api.acting_as(robot).list(kinds.SECRET)).status == 403


async def test_masters_may_do_everything(api: Api):
    master = api.acting_as("m", "system:masters")

    assert (await master.ask("GET", kinds.SECRET.collection_path(None))).status == 200
    assert (await master.ask("GET", "/metrics")).status == 200


async def test_a_binding_to_a_role_that_is_not_there_grants_nothing(api: Api):
    who = api.unique("u")
    await api.make(kinds.ROLE_BINDING, binding("b", "Role", "ghost", user(who)))

    assert (await api.acting_as(who).list(kinds.CONFIG_MAP)).status == 403


async def test_a_right_that_is_taken_back_is_gone(api: Api):
    somebody = await may(api, allow("list", "configmaps"))
    assert (await somebody.list(kinds.CONFIG_MAP)).status == 200
    await api.delete(kinds.ROLE_BINDING, "b")

    async def is_denied() -> bool:
        return (await somebody.list(kinds.CONFIG_MAP)).status == 403

    await eventually_answered(is_denied)


async def test_impersonation_is_itself_a_right(api: Api):
    if not api.can.authenticates:
        pytest.skip("impersonation is decided at the door, which a caller in process does not pass")
    who, other = api.unique("u"), api.unique("other")
    somebody = api.acting_as(who)
    answer = await somebody.ask("GET", "/version", headers={"impersonate-user": other})
    assert answer.status == 200  # the outer header won: nobody impersonates twice

    reviewed = await reviews_of(api, who, {"verb": "impersonate", "resource": "users", "name": other})
    assert reviewed["allowed"] is False


async def reviews_of(api: Api, who: str, question: dict, *groups: str) -> dict:
    spec = {"user": who, "groups": list(groups), "resourceAttributes": question}
    answer = await api.create(kinds.SUBJECT_ACCESS_REVIEW, {"spec": spec})
    assert answer.status == 201
    return answer.json["status"]


async def test_a_review_tells_what_somebody_may(api: Api):
    who = api.unique("u")
    await may(api, allow("get", "configmaps"), who=who)
    here = {"namespace": api.namespace, "resource": "configmaps"}

    allowed = await reviews_of(api, who, {**here, "verb": "get"})
    assert allowed["allowed"] is True
    assert allowed["reason"] == (f'RBAC: allowed by RoleBinding "b/{api.namespace}" of Role "r" to User "{who}"')
    assert (await reviews_of(api, who, {**here, "verb": "delete"})).items() >= {"allowed": False}.items()
    assert (await reviews_of(api, who, {**here, "verb": "get", "namespace": "default"}))["allowed"] is False
    assert await reviews_of(api, "m", {**here, "verb": "delete"}, "system:masters") == {"allowed": True}


async def test_a_review_of_a_path(api: Api):
    spec = {"user": api.unique("u"), "nonResourceAttributes": {"path": "/metrics", "verb": "get"}}
    answer = await api.create(kinds.SUBJECT_ACCESS_REVIEW, {"spec": spec})

    assert (answer.status, answer.json["status"]["allowed"]) == (201, False)


async def test_everybody_may_ask_what_he_may_himself(api: Api):
    somebody = await may(api, allow("list", "configmaps"))

    async def allowed(**question: str) -> bool:
        spec = {"resourceAttributes": {"namespace": api.namespace, "resource": "configmaps", **question}}
        answer = await somebody.create(kinds.SELF_SUBJECT_ACCESS_REVIEW, {"spec": spec})
        assert answer.status == 201, answer.text
        return answer.json["status"]["allowed"]

    assert [await allowed(verb="list"), await allowed(verb="delete")] == [True, False]


async def test_everybody_may_ask_who_he_is(api: Api):
    who = api.unique("u")
    answer = await api.acting_as(who, "team").create(kinds.SELF_SUBJECT_REVIEW, {})

    assert answer.status == 201, answer.text
    info = answer.json["status"]["userInfo"]
    assert info["username"] == who
    assert sorted(info["groups"]) == ["system:authenticated", "team"]


@pytest.mark.parametrize(
    ("spec", "causes"),
    [
        ({"user": "u"}, [("FieldValueInvalid", "spec")]),
        (
            {"user": "u", "resourceAttributes": {"verb": "get"}, "nonResourceAttributes": {"path": "/", "verb": "get"}},
            [("FieldValueInvalid", "spec")],
        ),
        ({"resourceAttributes": {"verb": "get"}}, [("FieldValueInvalid", "spec.user")]),
    ],
    ids=["about nothing", "about two things", "of nobody"],
)
async def test_a_review_of_nothing_is_invalid(api: Api, spec: dict, causes: list):
    answer = await api.create(kinds.SUBJECT_ACCESS_REVIEW, {"spec": spec})

    answer.is_invalid(*causes)
    assert answer.json["message"].startswith('.authorization.k8s.io "" is invalid: spec')


async def test_reviews_cannot_be_listed(api: Api):
    answer = await api.list(kinds.SUBJECT_ACCESS_REVIEW)

    answer.is_refused(405, "MethodNotAllowed", "the server does not allow this method on the requested resource", {})


async def test_a_lease_holder_needs_only_his_lease(api: Api):
    somebody = await may(api, allow("get update", "leases", "coordination.k8s.io", resourceNames=["l"]))
    made = await api.make(kinds.LEASE, lease())
    made["spec"]["holderIdentity"] = "other"

    assert (await somebody.put(kinds.LEASE, made)).made["spec"]["holderIdentity"] == "other"
