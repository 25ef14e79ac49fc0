"""Rules in the schemas of custom resources: `x-kubernetes-validations`."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_under_test import Api
from support.api.custom_resources import SCHEMA, defined, definition, disk, version

CRD = kinds.CUSTOM_RESOURCE_DEFINITION
VALIDATIONS = "x-kubernetes-validations"


def with_rules(where: str, *rules: dict) -> dict:
    """Return a version whose schema has these rules at a node, named by its path below `spec`."""
    schema = deepcopy(SCHEMA)
    node = schema["properties"]["spec"]
    for name in filter(None, where.split(".")):
        node = node["items"] if name == "items" else node["properties"][name]
    node[VALIDATIONS] = list(rules)
    return version(schema={"openAPIV3Schema": schema})


async def ruled(api: Api, where: str, *rules: dict) -> Kind:
    return await defined(api, with_rules(where, *rules))


async def test_an_object_that_breaks_a_rule_is_refused_with_its_message(api: Api):
    rule = {"rule": "self.tier != 'hot' || has(self.weight)", "message": "hot disks have a weight"}
    kind = await ruled(api, "", rule)

    refused = await api.create(kind, disk("d", tier="hot"))

    assert (await api.create(kind, disk("a", tier="hot", weight=1))).status == 201
    assert refused.status == 422
    assert refused.cause_messages["spec"] == "Invalid value: hot disks have a weight"


async def test_an_immutable_field(api: Api):
    kind = await ruled(api, "node", {"rule": "self == oldSelf", "message": "node is immutable"})
    await api.make(kind, disk("d"))

    moved = await api.patch(kind, "d", {"spec": {"node": "n2"}})

    assert moved.cause_messages == {"spec.node": 'Invalid value: "n2": node is immutable'}
    assert (await api.patch(kind, "d", {"spec": {"weight": 1}})).status == 200


async def test_allocations_are_never_changed(api: Api):
    """Items of a list map are compared with the old ones of the same key."""
    kind = await ruled(api, "allocations.items", {"rule": "self.bytes == oldSelf.bytes", "message": "fixed"})
    await api.make(kind, disk("d", allocations=[{"volume": "a", "bytes": 1}]))

    added = await api.patch(kind, "d", [add({"volume": "b", "bytes": 2}, 0)], form="json")
    changed = await api.patch(kind, "d", {"spec": {"allocations": [{"volume": "a", "bytes": 2}]}})

    assert added.status == 200, added.text
    assert changed.cause_messages == {"spec.allocations[0]": "Invalid value: fixed"}


def add(allocation: dict, place: int) -> dict:
    return {"op": "add", "path": f"/spec/allocations/{place}", "value": allocation}


@pytest.mark.parametrize(
    "rule",
    [
        "quantity('1Gi').isGreaterThan(quantity('1023Mi')) && quantity('1').add(1) == quantity('2')",
        "semver('1.10.0').isGreaterThan(semver('1.9.0')) && isSemver('v1.0', true)",
        "ip('0:0::1') == ip('::1') && string(ip('0:0::1')) == '::1' && !isIP('::ffff:1.2.3.4')",
        "cidr('10.0.0.0/8').containsIP('10.1.2.3') && cidr('10.0.0.0/8').containsCIDR('10.1.0.0/16')",
        "url('https://[::1]:80/a b?k=1').getPort() == '80' && url('https://e.com/a b').getEscapedPath() == '/a%20b'",
        "format.dns1123Label().validate('A').hasValue() && !format.named('x').hasValue()",
        "'a1b2'.findAll('[0-9]') == ['1', '2'] && sets.contains([1, 2], [2]) && [1, 2].indexOf(2) == 1",
    ],
)
async def test_a_rule_uses_kubernetes_functions(api: Api, rule: str):
    kind = await ruled(api, "", {"rule": rule}, {"rule": f"!({rule})", "message": "the opposite"})

    answer = await api.create(kind, disk("d"))

    assert answer.cause_messages == {"spec": "Invalid value: the opposite"}


async def test_rules_wait_for_a_valid_object(api: Api):
    kind = await ruled(api, "", {"rule": "false"})

    answer = await api.create(kind, disk("d", tier="lukewarm"))

    assert "some validation rules were not checked" in answer.cause_messages["<nil>"]


@pytest.mark.parametrize(
    ("where", "rule", "part"),
    [
        ("node", "self.startsWith(", "compilation failed: ERROR: <input>:1:"),
        ("node", "self.size()", "must evaluate to a bool"),
        ("", "self.tier == 'hot' || self.colour == 'red'", "<input>:1:27: undefined field 'colour'"),
        ("", "!has(oldSelf.colour.name)", "undefined field 'colour'"),
        ("tags.items", "self == oldSelf", "oldSelf cannot be used on the uncorrelatable portion of the schema within"),
    ],
)
async def test_a_rule_that_cannot_be_compiled_refuses_the_definition(api: Api, where: str, rule: str, part: str):
    given = definition(f"{api.namespace}.example.com", with_rules(where, {"rule": rule}))

    answer = await api.create(CRD, given)

    assert answer.status == 422
    assert part in answer.text.replace("\\u003c", "<").replace("\\u003e", ">"), answer.text
    assert any(VALIDATIONS in field for _, field in answer.causes)
