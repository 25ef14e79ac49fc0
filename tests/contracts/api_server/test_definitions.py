"""CustomResourceDefinitions themselves: what is refused, whose names are accepted, and how they end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_under_test import Api
from support.api.custom_resources import SCHEMA, defined, definition, disk, served, version
from support.waiting import eventually_answered

CRD = kinds.CUSTOM_RESOURCE_DEFINITION
LABEL = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with"
ROOT = "spec.validation.openAPIV3Schema"


def schema_of(**properties: Any) -> dict:
    return {"type": "object", "properties": properties}


def with_schema(schema: dict) -> list[dict]:
    return [version(schema={"openAPIV3Schema": schema}, selectableFields=None)]


REFUSED: list[tuple[str, list[dict], dict, str, str]] = [
    ("two storage versions", [version("v1"), version("v2")], {}, "spec.versions",
     "must have exactly one version marked as storage version"),
    ("a version twice", [version("v1"), version("v1", storage=False)], {}, "spec.versions",
     "must contain unique version names"),
    ("a version without a schema", [version(schema=None, selectableFields=None)], {},
     "spec.versions[0].schema.openAPIV3Schema", "Required value"),
    ("a kind that is no label", [], {"kind": "Disk_"}, "spec.names.kind", "may have mixed case, but should otherwise"),
    ("a short name that is no label", [], {"shortNames": ["D"]}, "spec.names.shortNames[0]", LABEL),
    ("kind and list kind alike", [], {"listKind": "Disk"}, "spec.names.listKind",
     "kind and listKind may not be the same"),
    ("a field without a type", with_schema(schema_of(a={})), {}, f"{ROOT}.properties[a].type",
     "must not be empty for specified object fields"),
    ("a list without items", with_schema(schema_of(a={"type": "array"})), {}, f"{ROOT}.properties[a].items",
     "must be specified"),
    ("a type nobody knows", with_schema(schema_of(a={"type": "text"})), {}, f"{ROOT}.properties[a].type",
     'Unsupported value: "text": supported values: "array", "boolean", "integer", "number", "object", "string"'),
    ("a clause that declares", with_schema({**schema_of(a={"type": "string", "anyOf": [{"type": "string"}]})}), {},
     f"{ROOT}.properties[a].anyOf[0].type", "must be empty to be structural"),
    ("a clause about what is not declared",
     with_schema({**schema_of(), "allOf": [{"properties": {"b": {"minLength": 1}}}]}), {}, f"{ROOT}.properties[b]",
     f"because it is defined in {ROOT}.allOf[0].properties[b]"),
    ("metadata that is restricted", with_schema(schema_of(metadata=schema_of(labels={"type": "object"}))), {},
     f"{ROOT}.properties[metadata]", "must not specify anything other than name and generateName"),
    ("unique items", with_schema(schema_of(a={"type": "array", "items": {"type": "string"}, "uniqueItems": True})), {},
     f"{ROOT}.properties[a].uniqueItems", "uniqueItems cannot be set to true"),
    ("a default of another type", with_schema(schema_of(a={"type": "string", "default": 1})), {},
     f"{ROOT}.properties[a].default", "must be of type string"),
    ("a default with unknown fields", with_schema(schema_of(a={**schema_of(), "default": {"b": 1}})), {},
     f"{ROOT}.properties[a].default", "must not have unknown fields"),
    ("a list map without keys",
     with_schema(schema_of(a={"type": "array", "x-kubernetes-list-type": "map", "items": schema_of()})), {},
     f"{ROOT}.properties[a].x-kubernetes-list-map-keys", "must not be empty if x-kubernetes-list-type is map"),
    ("a key that may be absent",
     with_schema(schema_of(a={"type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["k"],
                              "items": schema_of(k={"type": "string"})})), {},
     f"{ROOT}.properties[a].items.properties[k].default", "it must have a default or be a required property"),
    ("a pattern that Go does not compile",
     with_schema(schema_of(a={"type": "string", "pattern": "a(?=b)", "default": "a"})), {},
     f"{ROOT}.properties[a].pattern", "must be a valid regular expression, but isn't: error parsing regexp: "),
    ("a column without a type", [version(additionalPrinterColumns=[{"name": "A", "jsonPath": ".a", "type": "text"}])],
     {}, "spec.additionalPrinterColumns[0].type", "must be one of boolean,date,integer,number,string"),
    ("a selectable list", [version(selectableFields=[{"jsonPath": ".spec.tags"}])], {},
     "spec.selectableFields[0].jsonPath", "must point to a field of type string, boolean or integer"),
    ("a selectable field that is not there", [version(selectableFields=[{"jsonPath": ".spec.none"}])], {},
     "spec.selectableFields[0].jsonPath", "is an invalid path"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("versions", "names", "field", "part"), [case[1:] for case in REFUSED], ids=[case[0] for case in REFUSED]
)
async def test_a_definition_that_is_wrong_is_refused(
    api: Api, versions: list[dict], names: dict, field: str, part: str
):
    answer = await api.create(CRD, definition(f"{api.namespace}.example.com", *versions, **names))

    assert answer.status == 422, answer.text
    assert part in answer.cause_messages.get(field, ""), answer.text


async def test_the_name_and_the_group_are_checked(api: Api):
    other = {**definition("example.com"), "metadata": {"name": "others.example.com"}}

    name, group = await api.create(CRD, other), await api.create(CRD, definition("example"))

    assert 'must be spec.names.plural+"."+spec.group' in name.cause_messages["metadata.name"]
    assert "should be a domain with at least one dot" in group.cause_messages["spec.group"]


async def test_a_client_is_warned_of_what_a_schema_says_in_vain(api: Api):
    lists = {
        "type": "array",
        "x-kubernetes-list-type": "set",
        "items": {**schema_of(), "x-kubernetes-map-type": "atomic"},
    }
    schema = schema_of(a={"type": "string", "format": "color"}, b={"type": "string", "format": "date-time"}, c=lists)
    format_warning = r'299 - "unrecognized format \"color\""'
    given = definition(f"{api.namespace}.example.com", *with_schema(schema))

    made = await api.create(CRD, given)
    again = await api.patch(CRD, given["metadata"]["name"], {"spec": {"names": {"shortNames": ["x"]}}})

    assert made.status == 201, made.text
    assert format_warning in made.headers["warning"]
    assert 'set for items of type \\"object\\" is not supported' in made.headers["warning"]
    assert "date-time" not in made.headers["warning"]
    assert (again.status, again.headers.get("warning")) == (200, None)


async def test_a_default_must_keep_the_rules_of_its_field(api: Api):
    rules = [{"rule": "self.size() > 3", "message": "too short"}]
    schema = schema_of(a={"type": "string", "default": "abc", "x-kubernetes-validations": rules})

    refused = await api.create(CRD, definition(f"{api.namespace}.example.com", *with_schema(schema)))
    schema["properties"]["a"]["default"] = "abcd"
    accepted = await api.create(CRD, definition(f"{api.namespace}.example.com", *with_schema(schema)))

    assert refused.cause_messages == {f"{ROOT}.properties[a].default": 'Invalid value: "abc": too short'}
    assert accepted.status == 201, accepted.text


async def test_a_group_of_kubernetes_needs_an_approval(api: Api):
    answer = await api.create(CRD, definition(f"{api.namespace}.k8s.io"))

    field = "metadata.annotations[api-approved.kubernetes.io]"
    assert answer.cause_messages[field].startswith("Required value: protected groups must have approval annotation")


async def test_what_names_a_kind_cannot_be_changed(api: Api):
    kind = await defined(api)

    scope = await api.patch(CRD, kind.resource, {"spec": {"scope": "Cluster"}})
    named = await api.patch(CRD, kind.resource, {"spec": {"names": {"kind": "Tape"}}})

    assert scope.cause_messages["spec.scope"].endswith("field is immutable")
    assert named.cause_messages["spec.names.kind"].endswith("field is immutable")


async def test_a_version_in_which_objects_are_stored_cannot_be_removed(api: Api):
    kind = await defined(api, version("v1"), version("v2", storage=False))
    both = (await api.read(CRD, kind.resource))["spec"]["versions"]
    moved = [{**both[0], "storage": False}, {**both[1], "storage": True}]
    made = (await api.patch(CRD, kind.resource, {"spec": {"versions": moved}})).made

    removed = await api.patch(CRD, kind.resource, {"spec": {"versions": moved[1:]}})

    assert made["status"]["storedVersions"] == ["v1", "v2"]
    assert (
        "missing from spec.versions; v1 was previously a storage version"
        in (removed.cause_messages["status.storedVersions[0]"])
    )


async def test_a_definition_counts_its_generation_and_keeps_its_status(api: Api):
    kind = await defined(api)
    before = (await api.read(CRD, kind.resource))["status"]

    changed = (await api.patch(CRD, kind.resource, {"spec": {"names": {"shortNames": ["dsk"]}}, "status": None})).made

    assert changed["metadata"]["generation"] == 2
    assert changed["status"]["conditions"] == before["conditions"]
    if api.can.is_orlops:
        assert changed["status"]["acceptedNames"]["shortNames"] == ["dsk"]


async def test_names_of_another_definition_are_not_accepted_until_it_is_gone(api: Api):
    first = await defined(api)
    made = await api.make(CRD, definition(first.group, plural="tapes", kind="Disk", shortNames=["tp"]))
    if not api.can.is_orlops:
        pytest.skip("Kubernetes' controllers write the conditions a moment later")

    conditions = {each["type"]: each for each in made["status"]["conditions"]}
    named, established = conditions["NamesAccepted"], conditions["Established"]
    assert (named["status"], named["message"]) == ("False", '"DiskList" is already in use')
    assert (established["status"], established["reason"]) == ("False", "NotAccepted")
    assert (await api.ask("GET", f"/apis/{first.group}/v1/tapes")).status == 404

    async with api.watch(CRD, fieldSelector=f"metadata.name=tapes.{first.group}") as watching:
        await watching.next()
        await api.delete(CRD, first.resource)
        event = await watching.next()

    accepted = {each["type"]: each["status"] for each in event["object"]["status"]["conditions"]}
    assert accepted == {"NamesAccepted": "True", "Established": "True"}
    assert (await api.ask("GET", f"/apis/{first.group}/v1/tapes")).status == 200


async def gone(api: Api, kind: Kind, name: str) -> None:
    async with api.watch(kind, fieldSelector=f"metadata.name={name}") as watching:
        if (await api.get(kind, name)).status == 404:
            return
        while (await watching.next())["type"] != "DELETED":
            pass


async def test_the_objects_of_a_definition_go_before_it(api: Api):
    kind = await defined(api)
    for name in ("a", "b"):
        await api.make(kind, disk(name))

    answer = (await api.delete(CRD, kind.resource)).made

    assert answer["metadata"]["finalizers"] == ["customresourcecleanup.apiextensions.k8s.io"]
    ending = {each["type"]: each["reason"] for each in answer["status"]["conditions"]}
    assert ending["Terminating"] == "InstanceDeletionPending"
    await gone(api, CRD, kind.resource)
    assert (await api.ask("GET", api.path(kind))).status == 404
    # Objects of a definition of the same name do not come back.
    await api.make(CRD, definition(kind.group))
    await served(api, kind)
    assert await api.names(kind) == []


async def test_an_object_with_a_finalizer_holds_its_definition(api: Api):
    kind = await defined(api)
    held = disk("held")
    await api.make(kind, {**held, "metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    await api.delete(CRD, kind.resource)

    async with api.watch(kind) as watching:
        event = await watching.next()
        while "deletionTimestamp" not in event["object"]["metadata"]:
            event = await watching.next()
    refused = await api.create(kind, disk("new"))

    refused.says(403, "Forbidden", "create not allowed while custom resource definition is terminating")
    assert (await api.patch(kind, "held", {"metadata": {"finalizers": None}})).status == 200
    await gone(api, CRD, kind.resource)


async def test_a_definition_that_is_being_deleted_says_so_until_it_is_gone(api: Api):
    kind = await defined(api)
    await api.make(kind, {**disk("held"), "metadata": {"name": "held", "finalizers": ["example.com/hold"]}})
    async with api.watch(CRD, fieldSelector=f"metadata.name={kind.resource}") as watching:
        await watching.next()
        await api.delete(CRD, kind.resource)
        while condition((await watching.next())["object"], "Terminating").get("reason") != "InstanceDeletionInProgress":
            pass
        again = await api.create(CRD, definition(kind.group))
        await discovered(api, kind, ["delete", "deletecollection", "get", "list", "watch"])
        await api.patch(kind, "held", {"metadata": {"finalizers": None}})
        while (event := await watching.next())["type"] != "DELETED":
            pass

    again.says(409, "AlreadyExists", f'object is being deleted: {CRD.resource} "{kind.resource}" already exists')
    assert condition(event["object"], "Established")["status"] == "True"


def condition(obj: dict, type_: str) -> dict:
    return next((each for each in obj["status"]["conditions"] if each["type"] == type_), {})


async def discovered(api: Api, kind: Kind, verbs: list[str]) -> None:
    """Kubernetes' controllers publish discovery a moment later."""

    async def has_verbs() -> bool:
        resources = (await api.ask("GET", kind.group_path)).json["resources"]
        return any(each["name"] == kind.plural and each["verbs"] == verbs for each in resources)

    if api.can.is_orlops:
        assert await has_verbs()
    else:
        await eventually_answered(has_verbs)


async def test_of_definitions_created_at_once_one_has_a_name(api: Api):
    """None of them is durable when the others are judged."""
    if not api.can.is_orlops:
        pytest.skip("Kubernetes' controllers write the conditions a moment later")
    group = f"{api.namespace}.example.com"
    given = [definition(group, plural=plural, kind="Disk", shortNames=[]) for plural in ("disks", "tapes", "drums")]

    made = await asyncio.gather(*(api.make(CRD, each) for each in given))

    assert sorted(condition(each, "Established")["status"] for each in made) == ["False", "False", "True"]


async def test_custom_resources_go_with_their_namespace(api: Api):
    if not api.can.empties_namespaces:
        pytest.skip("nobody empties namespaces here")
    kind = await defined(api)
    other = f"{api.namespace}-b"
    await api.make(kinds.NAMESPACE, {"metadata": {"name": other}})
    await api.make(kind, {**disk("d"), "metadata": {"name": "d", "namespace": other}})

    await api.delete(kinds.NAMESPACE, other)
    await gone(api, kinds.NAMESPACE, other)

    assert (await api.ask("GET", kind.object_path(other, "d"))).status == 404
    assert (await api.ask("GET", kind.collection_path())).json["items"] == []


async def test_a_plain_schema_is_accepted(api: Api):
    """What charts bring along: descriptions, clauses of int-or-string, embedded objects."""
    int_or_string = {
        "x-kubernetes-int-or-string": True,
        "anyOf": [{"type": "integer"}, {"type": "string"}],
        "pattern": "^[0-9]+%?$",
    }
    embedded = {
        "type": "object",
        "x-kubernetes-embedded-resource": True,
        "x-kubernetes-preserve-unknown-fields": True,
    }
    plain = {**SCHEMA["properties"]["spec"]["properties"], "port": int_or_string, "object": embedded}
    schema = schema_of(
        apiVersion={"type": "string", "description": "…"},
        kind={"type": "string"},
        metadata={"type": "object"},
        spec={**schema_of(**plain), "oneOf": [{"required": ["node"]}, {"required": ["weight"]}]},
    )

    kind = await defined(api, *with_schema(schema))
    made = await api.make(kind, disk("d", port="5%", object={"apiVersion": "v1", "kind": "X", "metadata": {"a": 1}}))

    assert made["spec"]["object"] == {"apiVersion": "v1", "kind": "X", "metadata": {}}
