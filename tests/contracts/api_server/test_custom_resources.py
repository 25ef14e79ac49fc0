"""Objects of kinds that a CustomResourceDefinition declares, from its creation on."""

from __future__ import annotations

import asyncio

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_under_test import Answer, Api
from support.api.custom_resources import defined, definition, disk, disk_kind, served, version

CRD = kinds.CUSTOM_RESOURCE_DEFINITION
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"


async def test_a_definition_is_established_with_its_names(api: Api):
    kind = await defined(api)

    made = await api.read(CRD, kind.resource)
    true = {each["type"]: each["reason"] for each in made["status"]["conditions"] if each["status"] == "True"}
    assert true.items() >= {"NamesAccepted": "NoConflicts", "Established": "InitialNamesAccepted"}.items()
    assert made["status"]["storedVersions"] == ["v1"]
    assert made["spec"]["names"] == made["status"]["acceptedNames"]
    assert (made["spec"]["names"]["singular"], made["spec"]["names"]["listKind"]) == ("disk", "DiskList")
    assert made["spec"]["conversion"] == {"strategy": "None"}
    assert made["metadata"]["generation"] == 1


async def test_the_answer_to_the_create_says_so_already(api: Api):
    if not api.can.is_orlops:
        pytest.skip("Kubernetes' controllers write the conditions a moment later")
    made = await api.make(CRD, definition(f"{api.namespace}.example.com"))

    assert [(each["type"], each["status"]) for each in made["status"]["conditions"]] == [
        ("NamesAccepted", "True"),
        ("Established", "True"),
    ]


async def test_discovery_has_the_kind_in_both_forms(api: Api):
    kind = await defined(api)

    plain = (await api.ask("GET", f"/apis/{kind.group}/v1")).json["resources"]
    whole = (await api.ask("GET", "/apis", accept=AGGREGATED)).json["items"]
    mine = next(each for each in whole if each["metadata"]["name"] == kind.group)["versions"][0]["resources"][0]
    assert [each["name"] for each in plain] == ["disks", "disks/status"]
    assert (plain[0]["shortNames"], plain[0]["categories"], plain[0]["singularName"]) == (["dk"], ["all"], "disk")
    assert plain[0]["verbs"] == ["delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"]
    assert plain[1]["verbs"] == ["get", "patch", "update"]
    assert (mine["resource"], mine["scope"], mine["shortNames"]) == ("disks", "Namespaced", ["dk"])
    assert [part["subresource"] for part in mine["subresources"]] == ["status"]


async def test_a_new_object_is_pruned_and_has_its_defaults_and_no_status(api: Api):
    kind = await defined(api)
    given = {**disk("d", unknown=1, free={"a": {"b": 1}}, reset=None, weight=None), "status": {"state": "x"}, "x": 1}

    made = await api.make(kind, given)

    assert made["spec"] == {"node": "n1", "tier": "cold", "free": {"a": {"b": 1}}, "reset": None, "allocations": []}
    assert made["metadata"]["generation"] == 1
    assert "status" not in made
    assert "x" not in made
    assert made == await api.read(kind, "d")


async def test_unknown_fields_are_refused_or_warned_of(api: Api):
    kind = await defined(api)
    given = disk("d", unknown=1, free={"a": 1}, allocations=[{"volume": "v", "odd": 1}])

    strict = await api.create(kind, given, fieldValidation="Strict")
    warned = await api.create(kind, given, fieldValidation="Warn")

    strict.says(400, "BadRequest", 'strict decoding error: unknown field "spec.')
    assert 'unknown field \\"spec.unknown\\"' in warned.headers["warning"]
    assert 'unknown field \\"spec.allocations[0].odd\\"' in warned.headers["warning"]


INVALID = [
    ({"node": 1}, "spec.node", 'Invalid value: "integer": spec.node in body must be of type string: "integer"'),
    ({"node": ""}, "spec.node", 'Invalid value: "": spec.node in body should be at least 1 chars long'),
    ({"node": "A"}, "spec.node", "Invalid value: \"A\": spec.node in body should match '^[a-z0-9-]*$'"),
    ({"node": "n" * 64}, "spec.node", "Too long: may not be more than 63 bytes"),
    ({"tier": "x"}, "spec.tier", 'Unsupported value: "x": supported values: "hot", "cold"'),
    ({"weight": -1}, "spec.weight", "Invalid value: -1: spec.weight in body should be greater than or equal to 0"),
    ({"weight": 101}, "spec.weight", "Invalid value: 101: spec.weight in body should be less than or equal to 100"),
    (
        {"port": True},
        "spec.port",
        'Invalid value: "boolean": spec.port in body must be of type integer,string: "boolean"',
    ),
    ({"tags": ["a", "b", "a"]}, "spec.tags[2]", 'Duplicate value: "a"'),
    (
        {"allocations": [{"volume": "v"}, {"volume": "v", "bytes": 3}]},
        "spec.allocations[1]",
        'Duplicate value: {"volume":"v"}',
    ),
    ({"allocations": [{}]}, "spec.allocations[0].volume", "Required value"),
]


async def test_a_client_is_warned_of_a_finalizer_without_a_domain_that_it_adds(api: Api):
    kind = await defined(api)
    name = {"name": "d", "finalizers": ["hold", "example.com/hold"]}

    made = await api.create(kind, {**disk("d"), "metadata": name})
    dotted = await api.patch(kind, "d", {"metadata": {"finalizers": ["hold", "example.com/hold", "hold.example.com"]}})
    await api.patch(kind, "d", {"metadata": {"finalizers": None}})

    prefer = 'prefer a domain-qualified finalizer name{} to avoid accidental conflicts with other finalizer writers"'
    field = r'299 - "metadata.finalizers: \"{}\": '
    assert made.headers["warning"] == field.format("hold") + prefer.format("")
    assert dotted.headers["warning"] == field.format("hold.example.com") + prefer.format(" including a path (/)")


@pytest.mark.parametrize(("spec", "field", "message"), INVALID, ids=[f"{field} {each}" for each, field, _ in INVALID])
async def test_a_value_against_the_schema_is_refused_with_its_field(api: Api, spec: dict, field: str, message: str):
    kind = await defined(api)

    answer = await api.create(kind, disk("d", **spec))

    assert answer.status == 422
    assert answer.cause_messages[field] == message


async def test_a_body_of_another_kind_or_version_is_refused(api: Api):
    kind = await defined(api)
    path = api.path(kind)

    other_kind = await api.ask("POST", path, {**disk("d"), "apiVersion": kind.api_version, "kind": "Tape"})
    other_version = await api.ask("POST", path, {**disk("d"), "apiVersion": f"{kind.group}/v9", "kind": "Disk"})

    assert other_kind.cause_messages == {"kind": 'Invalid value: "Tape": must be Disk'}
    other_version.says(400, "BadRequest", "does not match the expected API version")


async def test_the_generation_counts_changes_of_the_spec(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d"))

    labelled = (await api.patch(kind, "d", {"metadata": {"labels": {"a": "b"}}})).made
    changed = (await api.patch(kind, "d", {"spec": {"weight": 5}})).made
    status = (await api.patch(kind, "d", {"status": {"state": "Ready"}}, subresource="status")).made

    assert [each["metadata"]["generation"] for each in (labelled, changed, status)] == [1, 2, 2]


async def test_the_main_path_keeps_the_status_and_the_status_keeps_all_else(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d"))
    both = {"spec": {"weight": 9}, "status": {"state": "Ready", "odd": 1}, "metadata": {"labels": {"a": "b"}}}

    status = (await api.patch(kind, "d", both, subresource="status")).made
    main = (await api.patch(kind, "d", {"spec": {"weight": 3}, "status": {"state": "Lost"}})).made

    assert status["status"] == {"state": "Ready"}
    assert "weight" not in status["spec"]
    assert "labels" not in status["metadata"]
    assert (main["status"], main["spec"]["weight"]) == ({"state": "Ready"}, 3)


async def test_without_a_status_subresource_the_status_is_a_field(api: Api):
    kind = await defined(api, version(subresources=None))

    made = await api.make(kind, {**disk("d"), "status": {"state": "x"}})
    changed = (await api.patch(kind, "d", {"status": {"state": "y"}})).made

    assert made["status"] == {"state": "x"}
    assert (changed["status"], changed["metadata"]["generation"]) == ({"state": "y"}, 2)
    (await api.patch(kind, "d", {"status": {"state": "z"}}, subresource="status")).says(
        404, "NotFound", '"d" not found'
    )


async def test_a_replacement_needs_the_version_it_was_made_from(api: Api):
    kind = await defined(api)
    made = await api.make(kind, disk("d"))
    unversioned = {**made, "metadata": {"name": "d"}}

    assert (await api.put(kind, unversioned)).cause_messages == {
        "metadata.resourceVersion": "Invalid value: 0: must be specified for an update"
    }
    assert (await api.put(kind, made)).made == made


async def test_a_drive_is_reserved_by_one_of_many(api: Api):
    """Uid and generation are tested in the patch that adds an allocation to a list with a default."""
    kind = await defined(api)
    made = await api.make(kind, disk("d"))
    tests = [
        {"op": "test", "path": "/metadata/uid", "value": made["metadata"]["uid"]},
        {"op": "test", "path": "/metadata/generation", "value": 1},
    ]
    add = {"op": "add", "path": "/spec/allocations/-", "value": {"volume": "v1"}}

    first = await api.patch(kind, "d", [*tests, add], form="json")
    second = await api.patch(kind, "d", [*tests, add], form="json")

    assert first.made["spec"]["allocations"] == [{"volume": "v1", "bytes": 1}]
    second.is_refused(422, "Invalid", "the server rejected our request due to an error in our request", {})


async def test_of_200_reservations_at_once_one_wins_each_generation(api: Api):
    kind = await defined(api)
    made = await api.make(kind, disk("d"))

    for generation in (1, 2):
        answers = await asyncio.gather(*(reserve(api, kind, made, generation, f"v{n}") for n in range(200)))
        refused = [answer for answer in answers if answer.status != 200]
        assert len(refused) == 199
        for answer in refused:
            answer.is_refused(422, "Invalid", "the server rejected our request due to an error in our request", {})
        # The status of a drive is written all the time, and moves no generation.
        await api.patch(kind, "d", {"status": {"used": generation}}, subresource="status")

    drive = await api.read(kind, "d")
    assert (drive["metadata"]["generation"], drive["status"]) == (3, {"used": 2})
    assert len(drive["spec"]["allocations"]) == 2


async def test_a_reservation_is_for_the_drive_that_was_seen(api: Api):
    kind = await defined(api)
    seen = await api.make(kind, disk("d"))
    await api.delete(kind, "d")
    await api.make(kind, disk("d"))

    assert (await reserve(api, kind, seen, 1, "v")).status == 422
    assert (await api.read(kind, "d"))["spec"]["allocations"] == []


async def reserve(api: Api, kind: Kind, seen: dict, generation: int, volume: str) -> Answer:
    """Add an allocation in the one patch with which drives are reserved."""
    patch = [
        {"op": "test", "path": "/metadata/uid", "value": seen["metadata"]["uid"]},
        {"op": "test", "path": "/metadata/generation", "value": generation},
        {"op": "add", "path": "/spec/allocations/-", "value": {"volume": f"{volume}-{generation}", "bytes": 1}},
    ]
    return await api.patch(kind, "d", patch, form="json")


async def test_a_strategic_merge_patch_is_no_patch_of_a_custom_resource(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d"))

    (await api.patch(kind, "d", {"spec": {"weight": 5}}, form="strategic")).says(
        415, "UnsupportedMediaType", "application/json-patch+json, application/merge-patch+json"
    )


async def test_an_unchanged_invalid_value_keeps_nobody_from_changing_another(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d", node="long-name"))
    stricter = (await api.read(CRD, kind.resource))["spec"]["versions"]
    stricter[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]["node"]["maxLength"] = 3
    assert (await api.patch(CRD, kind.resource, {"spec": {"versions": stricter}})).status == 200

    unrelated = await api.patch(kind, "d", {"spec": {"weight": 5}})
    related = await api.patch(kind, "d", {"spec": {"node": "longer"}})

    assert unrelated.status == 200, unrelated.text
    assert related.status == 422


async def test_an_old_object_is_read_in_the_shape_of_the_new_schema(api: Api):
    kind = await defined(api)
    made = await api.make(kind, disk("d", weight=5))
    versions = (await api.read(CRD, kind.resource))["spec"]["versions"]
    properties = versions[0]["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    del properties["weight"]
    properties["color"] = {"type": "string", "default": "blue"}
    versions[0]["selectableFields"] = [{"jsonPath": ".spec.color"}]
    assert (await api.patch(CRD, kind.resource, {"spec": {"versions": versions}})).status == 200
    await served(api, kind)

    read = await api.read(kind, "d")
    listed = (await api.list(kind)).made["items"][0]

    assert "weight" not in read["spec"]
    assert read["spec"]["color"] == listed["spec"]["color"] == "blue"
    assert read["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
    assert await api.names(kind, fieldSelector="spec.color=blue") == ["d"]


async def test_an_object_is_shown_in_each_served_version(api: Api):
    kind = await defined(api, version("v1"), version("v1beta1", storage=False, deprecated=True))
    await api.make(kind, disk("d"))
    beta = disk_kind(kind.group, "v1beta1")

    shown = await api.get(beta, "d")
    changed = await api.patch(beta, "d", {"spec": {"weight": 5}})

    assert shown.json["apiVersion"] == beta.api_version
    assert f"{beta.api_version} Disk is deprecated; use {kind.api_version} Disk" in shown.headers["warning"]
    assert changed.made["apiVersion"] == beta.api_version
    assert (await api.read(kind, "d"))["spec"]["weight"] == 5
    listed = [(each["apiVersion"], each["kind"]) for each in (await api.list(beta)).json["items"]]
    assert listed == [(beta.api_version, "Disk")]


async def test_objects_stay_when_another_version_is_the_one_to_store(api: Api):
    kind = await defined(api, version("v1"), version("v2", storage=False))
    await api.make(kind, disk("d", weight=5))
    versions = (await api.read(CRD, kind.resource))["spec"]["versions"]
    moved = [{**versions[0], "storage": False}, {**versions[1], "storage": True}]
    assert (await api.patch(CRD, kind.resource, {"spec": {"versions": moved}})).status == 200
    await served(api, kind)

    for shown in (kind, disk_kind(kind.group, "v2")):
        assert ((await api.read(shown, "d"))["apiVersion"], (await api.names(shown))) == (shown.api_version, ["d"])
    assert (await api.patch(kind, "d", {"spec": {"weight": 6}})).made["apiVersion"] == kind.api_version
    assert (await api.read(disk_kind(kind.group, "v2"), "d"))["spec"]["weight"] == 6


async def test_a_table_has_the_columns_of_the_definition(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("d", weight=5))
    await api.patch(kind, "d", {"status": {"state": "Ready", "since": "yesterday"}}, subresource="status")

    table = (await api.list(kind, {"accept": TABLE})).json

    columns = [(each["name"], each["type"], each["priority"]) for each in table["columnDefinitions"]]
    assert columns == [
        ("Name", "string", 0),
        ("Node", "string", 0),
        ("Weight", "integer", 1),
        ("State", "string", 0),
        ("Since", "date", 0),
    ]
    assert table["rows"][0]["cells"] == ["d", "n1", 5, "Ready", "<invalid>"]


async def test_objects_are_selected_by_the_fields_of_the_definition(api: Api):
    kind = await defined(api)
    for name, spec in {"a": {"node": "n1"}, "b": {"node": "n2", "weight": 5}, "c": {"node": "n2"}}.items():
        await api.make(kind, disk(name, **spec))

    assert await api.names(kind, fieldSelector="spec.node=n2") == ["b", "c"]
    assert await api.names(kind, fieldSelector="spec.node=n2,spec.weight=5") == ["b"]
    assert await api.names(kind, fieldSelector="spec.weight=") == ["a", "c"]
    (await api.list(kind, fieldSelector="spec.tier=cold")).says(
        400, "BadRequest", "field label not supported: spec.tier"
    )


async def test_openapi_describes_the_kind_and_how_it_is_patched(api: Api):
    kind = await defined(api)
    name = f"apis/{kind.group}/v1"

    url = (await api.ask("GET", "/openapi/v3")).json["paths"][name]["serverRelativeURL"]
    path, _, digest = url.partition("?hash=")
    document = (await api.ask("GET", path, hash=digest)).json

    schema = document["components"]["schemas"][f"{'.'.join(reversed(kind.group.split('.')))}.v1.Disk"]
    gvk = {"group": kind.group, "version": "v1", "kind": "Disk"}
    assert schema["x-kubernetes-group-version-kind"] == [gvk]
    assert schema["properties"]["spec"]["properties"]["allocations"]["x-kubernetes-list-type"] == "map"
    patch = document["paths"][f"/{name}/namespaces/{{namespace}}/disks/{{name}}"]["patch"]
    assert patch["x-kubernetes-group-version-kind"] == gvk
    assert "application/strategic-merge-patch+json" not in patch["requestBody"]["content"]


async def test_a_watch_sees_custom_resources(api: Api):
    kind = await defined(api)
    await api.make(kind, disk("a"))
    async with api.watch(kind) as watching:
        assert await watching.events(1) == [("ADDED", "a")]
        await api.patch(kind, "a", {"spec": {"weight": 5}})
        await api.delete(kind, "a")

        assert await watching.events(2) == [("MODIFIED", "a"), ("DELETED", "a")]


async def test_a_kind_without_namespaces(api: Api):
    kind = await defined(api, scope="Cluster")
    await api.make(kind, disk("d"))

    assert await api.names(kind) == ["d"]
    assert (await api.ask("GET", f"/apis/{kind.group}/v1/namespaces/{api.namespace}/disks")).status == 404


async def test_what_no_definition_declares_is_no_page(api: Api):
    kind = await defined(api)

    for path in (f"/apis/{kind.group}/v1/tapes", f"/apis/{kind.group}/v9/disks", "/apis/none.example.com/v1/disks"):
        assert (await api.ask("GET", path)).text == "404 page not found\n"
