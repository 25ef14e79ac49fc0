"""ValidatingAdmissionPolicies: which writes they judge, what expressions see, how a client learns of a denial."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube import kinds
from support.api.admission import (
    BINDING,
    POLICY,
    enforce,
    in_namespace,
    is_denied,
    policy,
    policy_binding,
    rule,
    validation,
)
from support.api.api_objects import config_map, labelled, named, pod, workload
from support.api.api_under_test import Api
from support.api.custom_resources import defined, disk, version
from support.waiting import eventually_answered

NO = validation("false", message="no")
CONFIG_MAPS = [rule("configmaps")]


# ---- what a denial is ------------------------------------------------------------------------------------------------


async def test_a_denial_names_the_object_the_policy_and_the_binding(api: Api):
    name = await enforce(api, CONFIG_MAPS, validation("object.metadata.name != 'c'", message="c is taken"))

    answer = await api.create(kinds.CONFIG_MAP, config_map("c"))

    why = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: c is taken"
    details = {"name": "c", "kind": "configmaps", "causes": [{"message": why}]}
    answer.is_refused(422, "Invalid", f'configmaps "c" is forbidden: {why}', details)
    assert (await api.create(kinds.CONFIG_MAP, config_map("d"))).status == 201


async def test_a_denial_of_a_custom_resource_names_its_group(api: Api):
    kind = await defined(api)
    name = await enforce(api, [rule("disks", group=kind.group)], NO)

    answer = await api.create(kind, disk("d"))

    why = f"ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: no"
    details = {"name": "d", "group": kind.group, "kind": "disks", "causes": [{"message": why}]}
    answer.is_refused(422, "Invalid", f'disks.{kind.group} "d" is forbidden: {why}', details)


async def test_a_policy_chooses_the_reason(api: Api):
    await enforce(api, CONFIG_MAPS, validation("false", reason="Forbidden", message="no"))

    (await api.create(kinds.CONFIG_MAP, config_map("c"))).says(403, "Forbidden", 'configmaps "c" is forbidden: ')


MESSAGES = [
    (validation("1 == 2"), "failed expression: 1 == 2"),
    (validation("false", message="  no  "), "no"),
    (validation("false", message="no", messageExpression="'not ' + object.metadata.name"), "not c"),
    (validation("false", message="no", messageExpression="'a\\nb'"), "no"),
    (validation("false", message="no", messageExpression="' '"), "no"),
    (validation("false", message="no", messageExpression="string(object.absent)"), "no"),
]


@pytest.mark.parametrize(("given", "message"), MESSAGES, ids=[str(each[0]) for each in MESSAGES])
async def test_the_message_is_the_most_precise_one(api: Api, given: dict, message: str):
    await enforce(api, CONFIG_MAPS, given)

    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c")), message)


async def test_a_binding_that_warns_lets_the_write_pass(api: Api):
    name = await enforce(api, CONFIG_MAPS, NO, actions=("Warn",))

    made = await api.create(kinds.CONFIG_MAP, config_map("c"))
    deleted = await api.delete(kinds.CONFIG_MAP, "c")

    text = f"Validation failed for ValidatingAdmissionPolicy '{name}' with binding '{name}': no"
    assert made.status == 201
    assert made.headers["warning"] == f'299 - "{text}"'
    assert deleted.headers["warning"] == f'299 - "{text}"'


async def test_a_binding_that_audits_lets_the_write_pass(api: Api):
    await enforce(api, CONFIG_MAPS, NO, actions=("Audit",))

    assert (await api.create(kinds.CONFIG_MAP, config_map("c"))).status == 201


# ---- when a policy is in force ---------------------------------------------------------------------------------------


async def test_a_policy_without_a_binding_judges_nothing(api: Api):
    await api.make(POLICY, policy(api.unique("p"), CONFIG_MAPS, NO, match=in_namespace(api)))

    assert (await api.create(kinds.CONFIG_MAP, config_map("c"))).status == 201


async def test_a_changed_policy_applies_to_the_next_write(api: Api):
    name = await enforce(api, CONFIG_MAPS, NO)
    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c")), "no")

    await api.patch(POLICY, name, {"spec": {"validations": [validation("object.metadata.name == 'c'")]}})

    await admitted(api, config_map("c"))
    is_denied(await api.create(kinds.CONFIG_MAP, config_map("d")), "failed expression: object.metadata.name == 'c'")
    assert (await api.read(POLICY, name))["metadata"]["generation"] == 2


@pytest.mark.parametrize("kind", [POLICY, BINDING], ids=["policy", "binding"])
async def test_a_policy_ends_with_its_deletion_or_that_of_its_binding(api: Api, kind: kinds.Kind):
    name = await enforce(api, CONFIG_MAPS, NO)

    assert (await api.delete(kind, name)).status == 200

    await admitted(api, config_map("c"))


async def admitted(api: Api, obj: dict) -> None:
    """A real server forgets a policy some time after it is gone."""

    async def is_made() -> bool:
        return (await api.create(kinds.CONFIG_MAP, obj)).status == 201

    if api.can.is_orlops:
        assert await is_made()
    else:
        await eventually_answered(is_made)


async def test_no_policy_locks_policies_in(api: Api):
    """Whatever a policy says, it and its binding can be changed and deleted."""
    rules = [rule("*", group="admissionregistration.k8s.io", scope="*")]
    name = await enforce(api, rules, NO)

    assert (await api.patch(POLICY, name, {"metadata": {"labels": {"a": "b"}}})).status == 200
    assert (await api.delete(BINDING, name)).status == 200
    assert (await api.delete(POLICY, name)).status == 200


async def test_the_first_denial_is_the_one_that_is_named(api: Api):
    await enforce(api, CONFIG_MAPS, validation("true"), validation("false", message="b"), NO)

    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c")), "b")


# ---- which writes are judged -----------------------------------------------------------------------------------------


async def test_every_kind_of_write_is_judged(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("c"))
    made = await api.read(kinds.CONFIG_MAP, "c")
    await enforce(api, CONFIG_MAPS, validation("false", messageExpression="request.operation"))

    is_denied(await api.create(kinds.CONFIG_MAP, config_map("d")), "CREATE")
    is_denied(await api.put(kinds.CONFIG_MAP, {**made, "data": {"a": "b"}}), "UPDATE")
    is_denied(await api.patch(kinds.CONFIG_MAP, "c", {"data": {"a": "b"}}), "UPDATE")
    is_denied(await api.patch(kinds.CONFIG_MAP, "c", {}), "UPDATE")
    is_denied(await api.delete(kinds.CONFIG_MAP, "c"), "DELETE")
    is_denied(await api.ask("DELETE", api.path(kinds.CONFIG_MAP)), "DELETE")
    assert await api.names(kinds.CONFIG_MAP, fieldSelector="metadata.name=c") == ["c"]


async def test_a_dry_run_is_judged(api: Api):
    await enforce(api, CONFIG_MAPS, validation("!request.dryRun", message="dry"))

    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c"), dryRun="All"), "dry")
    assert (await api.create(kinds.CONFIG_MAP, config_map("c"))).status == 201


async def test_reading_is_not_judged(api: Api):
    await enforce(api, [rule("*", operations=["*"])], NO)

    assert (await api.list(kinds.CONFIG_MAP)).status == 200


MATCHES: list[tuple[str, dict[str, Any], dict[str, Any], bool]] = [
    ("another operation", {"rules": [rule("configmaps", operations=["UPDATE", "DELETE"])]}, {}, False),
    ("this operation", {"rules": [rule("configmaps", operations=["CREATE"])]}, {}, True),
    ("every resource", {"rules": [rule("*")]}, {}, True),
    ("every resource and subresource", {"rules": [rule("*/*")]}, {}, True),
    ("subresources only", {"rules": [rule("*/status")]}, {}, False),
    ("the resource with its subresources", {"rules": [rule("configmaps/*")]}, {}, True),
    ("every group and version", {"rules": [rule("configmaps", group="*", apiVersions=["*"])]}, {}, True),
    ("another group", {"rules": [rule("configmaps", group="apps")]}, {}, False),
    ("another version", {"rules": [rule("configmaps", apiVersions=["v2"])]}, {}, False),
    ("what is in namespaces", {"rules": [rule("configmaps", scope="Namespaced")]}, {}, True),
    ("what is in no namespace", {"rules": [rule("configmaps", scope="Cluster")]}, {}, False),
    ("this name", {"rules": [rule("configmaps", resourceNames=["c", "d"])]}, {}, True),
    ("another name", {"rules": [rule("configmaps", resourceNames=["d"])]}, {}, False),
    ("excluded", {"match": {"excludeResourceRules": [rule("configmaps", resourceNames=["c"])]}}, {}, False),
    ("excluded by another name", {"match": {"excludeResourceRules": [rule("*", resourceNames=["d"])]}}, {}, True),
    ("the object's label", {"match": {"objectSelector": {"matchLabels": {"a": "b"}}}}, {"a": "b"}, True),
    ("another label", {"match": {"objectSelector": {"matchLabels": {"a": "b"}}}}, {"a": "c"}, False),
    ("a condition", {"matchConditions": [{"name": "c", "expression": "object.metadata.name == 'c'"}]}, {}, True),
    ("a false condition", {"matchConditions": [{"name": "c", "expression": "request.name != 'c'"}]}, {}, False),
    (
        "a false condition beside an error",
        {"matchConditions": [{"name": "a", "expression": "object.x == 1"}, {"name": "b", "expression": "false"}]},
        {},
        False,
    ),
]


@pytest.mark.parametrize(
    ("given", "labels", "judged"), [each[1:] for each in MATCHES], ids=[each[0] for each in MATCHES]
)
async def test_a_policy_judges_what_it_matches(api: Api, given: dict, labels: dict, judged: bool):  # noqa: FBT001 - a column of the table
    given = dict(given)
    await enforce(api, given.pop("rules", CONFIG_MAPS), NO, **given)

    answer = await api.create(kinds.CONFIG_MAP, labelled(config_map("c"), **labels))

    assert answer.status == (422 if judged else 201), answer.text


async def test_another_namespace_is_not_judged(api: Api):
    await enforce(api, CONFIG_MAPS, NO)
    elsewhere = api.unique("other")
    await api.make(kinds.NAMESPACE, named(elsewhere))

    made = await api.create(kinds.CONFIG_MAP, {"metadata": {"name": "c", "namespace": elsewhere}})

    assert made.status == 201


async def test_a_binding_narrows_what_its_policy_matches(api: Api):
    name = api.unique("p")
    await api.make(POLICY, policy(name, CONFIG_MAPS, NO, match=in_namespace(api)))
    narrow = {"resourceRules": [rule("configmaps", resourceNames=["c"])]}
    await api.make(BINDING, policy_binding(name, name, matchResources=narrow))

    async def is_denied_now() -> bool:
        return (await api.create(kinds.CONFIG_MAP, config_map("c"), dryRun="All")).status == 422

    assert await eventually_answered(is_denied_now)
    assert (await api.create(kinds.CONFIG_MAP, config_map("d"))).status == 201


async def test_a_label_that_is_taken_off_was_there(api: Api):
    await api.make(kinds.CONFIG_MAP, labelled(config_map("c"), a="b"))
    await enforce(api, CONFIG_MAPS, NO, match={"objectSelector": {"matchLabels": {"a": "b"}}})

    is_denied(await api.patch(kinds.CONFIG_MAP, "c", {"metadata": {"labels": None}}), "no")


VERSIONS = [version("v1"), version("v2", storage=False)]


@pytest.mark.parametrize(("policy_", "status"), [("Equivalent", 422), ("Exact", 201)])
async def test_a_rule_about_one_version_judges_the_others(api: Api, policy_: str, status: int):
    kind = await defined(api, *VERSIONS)
    seen = validation(f"object.apiVersion != '{kind.group}/v1' || request.resource.version != 'v1'", message="no")
    await enforce(api, [rule("disks", group=kind.group)], seen, match={"matchPolicy": policy_})
    newer = kinds.Kind(kind.group, "v2", kind.kind, kind.plural, namespaced=True)

    assert (await api.create(newer, disk("d"))).status == status


# ---- subresources ----------------------------------------------------------------------------------------------------


async def a_pod(api: Api) -> None:
    """With an account that the test makes: the default one comes a moment after its namespace."""
    await api.make(kinds.SERVICE_ACCOUNT, named("robot"))
    await api.make(kinds.POD, pod("p", serviceAccountName="robot"))


async def test_a_rule_about_a_resource_leaves_its_status_alone(api: Api):
    await a_pod(api)
    await enforce(api, [rule("pods")], NO)

    assert (await api.patch(kinds.POD, "p", {"status": {"phase": "Running"}}, subresource="status")).status == 200
    is_denied(await api.patch(kinds.POD, "p", {"metadata": {"labels": {"a": "b"}}}), "no")


async def test_a_rule_about_a_status_judges_it_alone(api: Api):
    await a_pod(api)
    phase = validation("object.status.phase == oldObject.status.phase", messageExpression="request.subResource")
    await enforce(api, [rule("pods/status")], phase)

    is_denied(await api.patch(kinds.POD, "p", {"status": {"phase": "Running"}}, subresource="status"), "status")
    assert (await api.patch(kinds.POD, "p", {"status": {"reason": "x"}}, subresource="status")).status == 200
    assert (await api.patch(kinds.POD, "p", {"metadata": {"labels": {"a": "b"}}})).status == 200


async def test_the_status_of_a_custom_resource_is_judged(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d"))
    expression = "has(request.subResource) && request.subResource == 'status' && object.status.state == 'Ready'"
    rules = [rule("disks/status", group=kind.group, operations=["UPDATE"])]
    await enforce(api, rules, validation(expression, message="not so"))

    is_denied(await api.patch(kind, "d", {"status": {"state": "Lost"}}, subresource="status"), "not so")
    assert (await api.patch(kind, "d", {"status": {"state": "Ready"}}, subresource="status")).status == 200
    assert (await api.patch(kind, "d", {"spec": {"weight": 3}})).status == 200


async def test_the_scale_of_a_workload_is_judged_as_a_scale(api: Api):
    await api.make(kinds.DEPLOYMENT, workload("w", replicas=1))
    few = validation("request.kind.kind == 'Scale' && object.spec.replicas < 3", message="too many")
    await enforce(api, [rule("deployments/scale", group="apps")], few)

    is_denied(await api.patch(kinds.DEPLOYMENT, "w", {"spec": {"replicas": 3}}, subresource="scale"), "too many")
    assert (await api.patch(kinds.DEPLOYMENT, "w", {"spec": {"replicas": 2}}, subresource="scale")).status == 200


async def test_bindings_evictions_and_tokens_are_judged(api: Api):
    await a_pod(api)
    which = validation("false", messageExpression="request.operation + ' ' + request.kind.kind")
    await enforce(api, [rule("pods/binding", "pods/eviction", "serviceaccounts/token")], which)

    bound = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "p"}, "target": {"kind": "Node", "name": "n"}}
    evicted = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"}}
    token = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    is_denied(await api.ask("POST", api.path(kinds.POD, "p", "binding"), bound), "CREATE Binding")
    is_denied(await api.ask("POST", api.path(kinds.POD, "p", "eviction"), evicted), "CREATE Eviction")
    is_denied(await api.ask("POST", api.path(kinds.SERVICE_ACCOUNT, "robot", "token"), token), "CREATE TokenRequest")


# ---- what expressions see --------------------------------------------------------------------------------------------


CREATED = {"metadata": {"name": "c", "labels": {"a": "b"}}, "data": {"k": "v"}}
SEEN = [
    "object.kind == 'ConfigMap' && object.apiVersion == 'v1' && object.data.k == 'v'",
    "oldObject == null",
    "object.metadata.uid != '' && has(object.metadata.creationTimestamp)",
    "object.metadata.labels['a'] == 'b' && object.?metadata.?labels['c'].orValue('') == ''",
    "request.name == 'c' && request.namespace == object.metadata.namespace && request.operation == 'CREATE'",
    "request.kind.group == '' && request.kind.version == 'v1' && request.kind.kind == 'ConfigMap'",
    "request.resource.resource == 'configmaps' && request.requestResource.resource == 'configmaps'",
    "request.requestKind.kind == 'ConfigMap' && !has(request.subResource) && !has(request.requestSubResource)",
    "request.dryRun == false && request.options.kind == 'CreateOptions'",
    "request.options.fieldManager == 'tests'",
    "'system:authenticated' in request.userInfo.groups && request.userInfo.username != ''",
    "namespaceObject.metadata.name == request.namespace && namespaceObject.status.phase == 'Active'",
    "namespaceObject.metadata.labels['kubernetes.io/metadata.name'] == request.namespace",
    "size(object.data) == 1 && object.data.all(key, key.startsWith('k')) && object.data.k.matches('^[a-z]$')",
]


@pytest.mark.parametrize("expression", SEEN)
async def test_an_expression_sees_the_object_and_the_request(api: Api, expression: str):
    await enforce(api, CONFIG_MAPS, validation(expression))

    answer = await api.create(kinds.CONFIG_MAP, CREATED, fieldManager="tests")

    assert answer.status == 201, answer.text


async def test_an_update_sees_both_versions_and_a_deletion_the_old_one(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map("c", a="1"))
    operation = "request.operation == 'DELETE' ? object == null && oldObject.data.a == '2' : "
    expression = f"{operation}object.data.a == '2' && oldObject.data.a == '1' && request.operation == 'UPDATE'"
    await enforce(api, CONFIG_MAPS, validation(expression))

    assert (await api.patch(kinds.CONFIG_MAP, "c", {"data": {"a": "2"}})).status == 200
    assert (await api.delete(kinds.CONFIG_MAP, "c")).status == 200


async def test_a_generated_name_is_seen(api: Api):
    await enforce(api, CONFIG_MAPS, validation("request.name == object.metadata.name && request.name.startsWith('c-')"))

    assert (await api.create(kinds.CONFIG_MAP, {"metadata": {"generateName": "c-"}})).status == 201


async def test_a_namespace_is_judged_with_its_own_labels(api: Api):
    """A namespace that is created counts with the labels that it gets."""
    label = {"of": api.namespace}
    selector = {"namespaceSelector": {"matchLabels": label}}
    expression = "request.operation == 'CREATE' && request.namespace == request.name && namespaceObject == null"
    await enforce(api, [rule("namespaces", scope="Cluster")], validation(expression, message="no"), match=selector)

    made = await api.create(kinds.NAMESPACE, labelled(named(api.unique("a")), **label))

    assert made.status == 201, made.text
    is_denied(await api.patch(kinds.NAMESPACE, api.unique("a"), {"metadata": {"labels": {"c": "d"}}}), "no")
    assert (await api.create(kinds.NAMESPACE, named(api.unique("b")))).status == 201


async def test_variables_build_on_each_other_and_are_evaluated_when_they_are_needed(api: Api):
    variables = [
        {"name": "part", "expression": "request.subResource"},
        {"name": "name", "expression": "object.metadata.name"},
        {"name": "long", "expression": "size(variables.name) > 3"},
    ]
    given = validation("!variables.long || variables.part == 'x'", messageExpression="'not ' + variables.name")
    await enforce(api, CONFIG_MAPS, given, variables=variables)

    assert (await api.create(kinds.CONFIG_MAP, config_map("c"))).status == 201
    failed = 'composited variable "part" fails to evaluate: no such key: subResource'
    expression = "!variables.long || variables.part == 'x'"
    is_denied(
        await api.create(kinds.CONFIG_MAP, config_map("c-long")),
        f"expression '{expression}' resulted in error: {failed}",
    )


# ---- errors ----------------------------------------------------------------------------------------------------------


async def test_an_error_denies(api: Api):
    await enforce(api, CONFIG_MAPS, validation("request.subResource == 'status'", message="no"))

    text = "expression 'request.subResource == 'status'' resulted in error: no such key: subResource"
    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c")), text)


async def test_an_error_of_a_condition_denies(api: Api):
    conditions = [{"name": "c", "expression": "object.absent == 1"}]
    await enforce(api, CONFIG_MAPS, validation("true"), matchConditions=conditions)

    text = "expression 'object.absent == 1' resulted in error: no such key: absent"
    is_denied(await api.create(kinds.CONFIG_MAP, config_map("c")), text)


async def test_errors_may_be_ignored_and_denials_not(api: Api):
    given = [validation("object.absent == 1"), validation("object.metadata.name != 'd'", message="no")]
    await enforce(api, CONFIG_MAPS, *given, failurePolicy="Ignore")

    assert (await api.create(kinds.CONFIG_MAP, config_map("c"))).status == 201
    is_denied(await api.create(kinds.CONFIG_MAP, config_map("d")), "no")


async def test_an_expensive_expression_ends_at_a_limit(api: Api):
    expression = "object.data.all(a, object.data.all(b, object.data.all(c, a != b || b != c || a == c)))"
    await enforce(api, CONFIG_MAPS, validation(expression))

    answer = await api.create(kinds.CONFIG_MAP, config_map("c", **{f"k{number}": "v" for number in range(400)}))

    assert answer.status == 422
    assert "cost" in answer.json["message"]


# ---- policies and bindings themselves --------------------------------------------------------------------------------


async def test_a_policy_gets_its_defaults(api: Api):
    given = policy(api.unique("p"), [{key: value for key, value in rule("pods").items() if key != "scope"}], NO)

    made = await api.make(POLICY, {**given, "status": {"observedGeneration": 7}})

    assert made["spec"]["failurePolicy"] == "Fail"
    constraints = made["spec"]["matchConstraints"]
    assert (constraints["matchPolicy"], constraints["namespaceSelector"], constraints["objectSelector"]) == (
        "Equivalent",
        {},
        {},
    )
    assert constraints["resourceRules"][0]["scope"] == "*"
    assert made["metadata"]["generation"] == 1
    assert made["status"] == {}


def one(**changes: Any) -> dict:
    return {"spec": {"matchConstraints": {"resourceRules": [rule("pods")]}, "validations": [NO], **changes}}


def ruled(**changes: Any) -> dict:
    return one(matchConstraints={"resourceRules": [rule("pods", **changes)]})


V = "spec.validations[0]"
R = "spec.matchConstraints.resourceRules[0]"
REFUSED = [
    (one(validations=[]), ("FieldValueRequired", "spec.validations"), ("FieldValueRequired", "spec.auditAnnotations")),
    (one(matchConstraints={"resourceRules": []}), ("FieldValueRequired", "spec.matchConstraints.resourceRules")),
    (one(failurePolicy="Never"), ("FieldValueNotSupported", "spec.failurePolicy")),
    (one(validations=[validation("")]), ("FieldValueRequired", f"{V}.expression")),
    (one(validations=[validation("1 +")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("'a'")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("object.spec.flag")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("request.subresource == ''")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("request.userInfo.user == ''")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("params.a == ''")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("unknown == ''")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("variables.x == ''")]), ("FieldValueInvalid", f"{V}.expression")),
    (one(validations=[validation("true", messageExpression="1")]), ("FieldValueInvalid", f"{V}.messageExpression")),
    (one(validations=[validation("true", message="a\nb")]), ("FieldValueInvalid", f"{V}.message")),
    (one(validations=[validation("true", reason="Because")]), ("FieldValueNotSupported", f"{V}.reason")),
    (one(variables=[{"name": "a-b", "expression": "1"}]), ("FieldValueInvalid", "spec.variables[0].name")),
    (one(variables=[{"name": "a", "expression": "1 +"}]), ("FieldValueInvalid", "spec.variables[0].expression")),
    (
        one(variables=[{"name": "a", "expression": "variables.b"}, {"name": "b", "expression": "1"}]),
        ("FieldValueInvalid", "spec.variables[0].expression"),
    ),
    (
        one(matchConditions=[{"name": "a", "expression": "variables.x"}]),
        ("FieldValueInvalid", "spec.matchConditions[0].expression"),
    ),
    (
        one(matchConditions=[{"name": "a", "expression": "true"}, {"name": "a", "expression": "true"}]),
        ("FieldValueDuplicate", "spec.matchConditions[1].name"),
    ),
    (ruled(operations=[]), ("FieldValueRequired", f"{R}.operations")),
    (ruled(operations=["READ"]), ("FieldValueNotSupported", f"{R}.operations[0]")),
    (ruled(operations=["*", "CREATE"]), ("FieldValueInvalid", f"{R}.operations")),
    (ruled(apiGroups=["*", "a"]), ("FieldValueInvalid", f"{R}.apiGroups")),
    (ruled(apiVersions=[""]), ("FieldValueRequired", f"{R}.apiVersions[0]")),
    (ruled(resources=["*", "pods"]), ("FieldValueInvalid", f"{R}.resources")),
    (ruled(resources=["pods/*", "pods/status"]), ("FieldValueInvalid", f"{R}.resources[1]")),
    (ruled(scope="Galaxy"), ("FieldValueNotSupported", f"{R}.scope")),
]


@pytest.mark.parametrize("case", REFUSED, ids=[str(each[1][1]) + str(at) for at, each in enumerate(REFUSED)])
async def test_a_policy_that_is_wrong_is_refused(api: Api, case: tuple):
    given, *causes = case

    (await api.create(POLICY, {"metadata": {"name": api.unique("p")}, **given})).is_invalid(*causes)


async def test_a_policy_with_an_expression_that_cannot_be_compiled_says_where(api: Api):
    given = one(validations=[validation("object.spec.x == request.subresource")])

    answer = await api.create(POLICY, {"metadata": {"name": api.unique("p")}, **given})

    assert "compilation failed: ERROR: <input>:1:25: undefined field 'subresource'" in answer.json["message"]


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        ({"policyName": ""}, ("FieldValueRequired", "spec.policyName")),
        ({"validationActions": []}, ("FieldValueRequired", "spec.validationActions")),
        ({"validationActions": ["Deny", "Warn"]}, ("FieldValueInvalid", "spec.validationActions")),
        ({"validationActions": ["Refuse"]}, ("FieldValueNotSupported", "spec.validationActions[0]")),
    ],
)
async def test_a_binding_that_is_wrong_is_refused(api: Api, spec: dict, cause: tuple[str, str]):
    given = policy_binding(api.unique("b"), "p")

    (await api.create(BINDING, {**given, "spec": {**given["spec"], **spec}})).is_invalid(cause)


async def test_parameters_are_refused_in_a_sentence(api: Api):
    if not api.can.is_orlops:
        pytest.skip("Kubernetes has parameters")
    params = one(paramKind={"apiVersion": "v1", "kind": "ConfigMap"})
    whole = policy_binding(api.unique("b"), "p", paramRef={"name": "c", "parameterNotFoundAction": "Deny"})

    of_policy = await api.create(POLICY, {"metadata": {"name": api.unique("p")}, **params})
    of_binding = await api.create(BINDING, whole)

    of_policy.is_invalid(("FieldValueForbidden", "spec.paramKind"))
    of_binding.is_invalid(("FieldValueForbidden", "spec.paramRef"))
    assert "this API server has no parameters for policies" in of_binding.json["message"]
