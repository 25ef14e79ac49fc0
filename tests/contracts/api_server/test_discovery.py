"""What a server tells of itself: discovery, OpenAPI, version and health."""

from __future__ import annotations

import re

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import BUILT_IN, Kind
from support.api.api_under_test import Api

AGGREGATED = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"
VERSIONS = {kind.group: kind.version for kind in BUILT_IN}
GROUPS = sorted(group for group in VERSIONS if group)


async def test_the_core_group_has_one_version(api: Api):
    answer = await api.ask("GET", "/api")

    assert (answer.made["kind"], answer.made["versions"]) == ("APIVersions", ["v1"])
    assert answer.made["serverAddressByClientCIDRs"]


async def test_the_groups_are_listed_with_their_preferred_versions(api: Api):
    answer = await api.ask("GET", "/apis")

    assert (answer.made["kind"], answer.made["apiVersion"]) == ("APIGroupList", "v1")
    preferred = {group["name"]: group["preferredVersion"] for group in answer.made["groups"]}
    for group in GROUPS:
        version = VERSIONS[group]
        assert preferred[group] == {"groupVersion": f"{group}/{version}", "version": version}


@pytest.mark.parametrize("group", GROUPS)
async def test_each_group_describes_itself(api: Api, group: str):
    answer = await api.ask("GET", f"/apis/{group}")

    version = {"groupVersion": f"{group}/{VERSIONS[group]}", "version": VERSIONS[group]}
    assert (answer.made["kind"], answer.made["apiVersion"], answer.made["name"]) == ("APIGroup", "v1", group)
    assert version in answer.made["versions"]
    assert answer.made["preferredVersion"] == version


async def resources_of(api: Api, kind: Kind) -> dict[str, dict]:
    answer = (await api.ask("GET", kind.group_path)).made
    assert (answer["kind"], answer["groupVersion"]) == ("APIResourceList", kind.api_version)
    assert answer.get("apiVersion") == ("v1" if kind.group else None)
    return {each["name"]: each for each in answer["resources"]}


@pytest.mark.parametrize("kind", BUILT_IN, ids=str)
async def test_each_kind_is_discovered_with_its_names_and_verbs(api: Api, kind: Kind):
    found = (await resources_of(api, kind))[kind.plural]

    assert (found["kind"], found["namespaced"], found["singularName"]) == (kind.kind, kind.namespaced, kind.singular)
    assert sorted(found["verbs"]) == sorted(kind.verbs)
    assert tuple(found.get("shortNames", ())) == kind.short_names
    assert tuple(found.get("categories", ())) == kind.categories


@pytest.mark.parametrize("kind", [kind for kind in BUILT_IN if kind.subresources], ids=str)
async def test_subresources_are_discovered_beside_their_kinds(api: Api, kind: Kind):
    resources = await resources_of(api, kind)

    for subresource in kind.subresources:
        if (found := resources.get(f"{kind.plural}/{subresource.name}")) is None:
            assert subresource.name not in {"status", "token", "binding", "scale", "eviction"}
            continue
        assert found["kind"] == (subresource.kind or kind.kind)
        assert (found.get("group"), found.get("version")) == (subresource.group, subresource.version or None)
        if subresource.name in {"status", "scale", "token", "binding", "eviction"}:
            assert sorted(found["verbs"]) == sorted(subresource.verbs)


@pytest.mark.parametrize("path", ["/api", "/apis"])
async def test_aggregated_discovery_repeats_its_type(api: Api, path: str):
    answer = await api.ask("GET", path, accept=AGGREGATED)

    assert answer.headers["content-type"] == AGGREGATED
    assert (answer.made["kind"], answer.made["apiVersion"]) == ("APIGroupDiscoveryList", "apidiscovery.k8s.io/v2")


async def aggregated(api: Api) -> dict[str, dict]:
    """By group, the version that has our kinds."""
    groups = [*(await api.ask("GET", "/api", accept=AGGREGATED)).made["items"]]
    groups += (await api.ask("GET", "/apis", accept=AGGREGATED)).made["items"]
    return {
        group["metadata"].get("name", ""): version
        for group in groups
        for version in group["versions"]
        if version["version"] == VERSIONS.get(group["metadata"].get("name", ""))
    }


async def test_aggregated_discovery_tells_the_same(api: Api):
    found = await aggregated(api)

    for kind in BUILT_IN:
        version = found[kind.group]
        assert version["freshness"] == "Current"
        (resource,) = [each for each in version["resources"] if each["resource"] == kind.plural]
        assert resource["responseKind"]["kind"] == kind.kind
        assert resource["scope"] == ("Namespaced" if kind.namespaced else "Cluster")
        assert resource["singularResource"] == kind.singular
        assert sorted(resource["verbs"]) == sorted(kind.verbs)
        assert tuple(resource.get("shortNames", ())) == kind.short_names


async def test_aggregated_discovery_names_kinds_of_other_groups(api: Api):
    core = {each["resource"]: each for each in (await aggregated(api))[""]["resources"]}
    pods = {each["subresource"]: each["responseKind"] for each in core["pods"]["subresources"]}
    accounts = {each["subresource"]: each["responseKind"] for each in core["serviceaccounts"]["subresources"]}

    assert pods["eviction"] == {"group": "policy", "version": "v1", "kind": "Eviction"}
    assert pods["status"]["kind"] == "Pod"
    assert accounts["token"] == {"group": "authentication.k8s.io", "version": "v1", "kind": "TokenRequest"}


async def test_the_openapi_index_leads_to_a_document_for_each_group(api: Api):
    paths = (await api.ask("GET", "/openapi/v3")).made["paths"]

    for kind in BUILT_IN:
        place = kind.group_path.removeprefix("/")
        url = paths[place]["serverRelativeURL"]
        assert re.fullmatch(rf"/openapi/v3/{re.escape(place)}\?hash=[0-9A-F]+", url)


async def document_of(api: Api, place: str) -> dict:
    url = (await api.ask("GET", "/openapi/v3")).made["paths"][place]["serverRelativeURL"]
    path, _, value = url.partition("?hash=")
    answer = await api.ask("GET", path, hash=value)
    assert answer.headers["cache-control"] == "public, immutable"
    assert answer.headers["etag"]
    return answer.made


async def test_a_document_describes_its_kinds(api: Api):
    document = await document_of(api, "apis/storage.k8s.io/v1")

    assert document["openapi"].startswith("3.0")
    described = {
        (each["group"], each["version"], each["kind"]): schema
        for schema in document["components"]["schemas"].values()
        for each in schema.get("x-kubernetes-group-version-kind", ())
    }
    schema = described["storage.k8s.io", "v1", "StorageClass"]
    assert schema["properties"]["provisioner"]["type"] == "string"
    assert "provisioner" in schema["required"]


async def test_a_document_tells_what_a_patch_may_be(api: Api):
    document = await document_of(api, "api/v1")
    patch = document["paths"]["/api/v1/namespaces/{namespace}/configmaps/{name}"]["patch"]

    assert patch["x-kubernetes-group-version-kind"] == {"group": "", "version": "v1", "kind": "ConfigMap"}
    assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]
    assert "fieldValidation" in {each.get("name") for each in patch["parameters"]}


async def test_a_document_with_the_wrong_hash_is_elsewhere(api: Api):
    answer = await api.ask("GET", "/openapi/v3/api/v1", hash="ABCD")

    assert answer.status == 301
    assert re.fullmatch(r".*/openapi/v3/api/v1\?hash=[0-9A-F]+", answer.headers["location"])


async def test_a_document_may_be_asked_for_without_a_hash(api: Api):
    answer = await api.ask("GET", "/openapi/v3/api/v1")

    assert answer.made["openapi"].startswith("3.0")
    assert "immutable" not in answer.headers.get("cache-control", "")


async def test_the_version_is_told(api: Api):
    told = (await api.ask("GET", "/version")).made

    assert (told["major"], told["gitVersion"].rpartition(".")[0][:5]) == ("1", f"v1.{told['minor'][:2]}")
    if api.can.is_orlops:
        assert (told["minor"], told["gitVersion"]) == ("37", "v1.37.0+orlop")
    assert told["platform"] in {"linux/amd64", "linux/arm64"}
    assert told.keys() >= {"gitCommit", "gitTreeState", "buildDate", "goVersion", "compiler", "platform"}


@pytest.mark.parametrize("path", ["/healthz", "/livez", "/readyz"])
async def test_health_is_ok(api: Api, path: str):
    answer = await api.ask("GET", path, accept="*/*")

    assert (answer.status, answer.text) == (200, "ok")
    assert answer.headers["content-type"].startswith("text/plain")


async def test_metrics_are_shown(api: Api):
    answer = await api.ask("GET", "/metrics", accept="*/*")

    assert answer.status == 200
    assert "# TYPE" in answer.text


async def test_health_and_version_are_for_everybody_and_nothing_else_is(api: Api):
    if not api.can.authenticates:
        pytest.skip("this connection means admin")
    nobody = api.nobody()

    for path in ("/healthz", "/livez", "/readyz", "/version"):
        assert (await nobody.ask("GET", path, accept="*/*")).status == 200, path
    for path in ("/api", "/apis", "/api/v1", "/openapi/v3", "/metrics", api.path(kinds.CONFIG_MAP)):
        assert (await nobody.ask("GET", path)).status in {401, 403}, path


async def test_a_kind_that_is_stored_names_its_storage_version_by_a_hash(api: Api):
    core, apps = await resources_of(api, kinds.POD), await resources_of(api, kinds.DEPLOYMENT)
    reviews = await resources_of(api, kinds.TOKEN_REVIEW)

    # Of the first bytes of a SHA-256 of group, version and kind.
    assert core["pods"]["storageVersionHash"] == "xPOwRZ+Yhw8="
    assert apps["deployments"]["storageVersionHash"] == "8aSe+NMegvE="
    assert "storageVersionHash" not in core["pods/status"]
    assert "storageVersionHash" not in reviews["tokenreviews"]
