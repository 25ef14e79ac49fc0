"""OpenAPI v3, as far as kubectl reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onenode.apiserver.answers.openapi import OpenApi
from onenode.apiserver.schema.schemas import Schemas
from orlop.kube.kinds import BUILT_IN

OPENAPI = OpenApi(Schemas.load(), BUILT_IN, "v1.37.0")
NAMES = sorted(OPENAPI.index()["paths"])


def document(name: str) -> dict[str, Any]:
    written = OPENAPI.document(name)
    assert written is not None
    read: dict[str, Any] = json.loads(written.body)
    return read


def test_the_index_names_every_group_version_with_the_hash_of_its_document():
    assert {"api/v1", "apis/storage.k8s.io/v1", "apis/apps/v1"} <= set(NAMES)
    for name in NAMES:
        written = OPENAPI.document(name)
        assert written is not None
        url = OPENAPI.index()["paths"][name]["serverRelativeURL"]
        assert url == f"/openapi/v3/{name}?hash={written.hash}"


def test_what_is_not_served_has_no_document():
    assert OPENAPI.document("apis/made.up/v1") is None


@pytest.mark.parametrize("name", NAMES)
def test_every_reference_leads_to_a_schema_of_the_same_document(name: str):
    made = document(name)
    schemas = made["components"]["schemas"]

    assert {f"#/components/schemas/{schema}" for schema in schemas} >= set(references(made))


@pytest.mark.parametrize("kind", BUILT_IN, ids=str)
def test_every_kind_has_one_schema_and_its_paths(kind):
    made = document(kind.group_path.removeprefix("/"))
    gvk = {"group": kind.group, "kind": kind.kind, "version": kind.version}
    having = [
        schema
        for schema in made["components"]["schemas"].values()
        if gvk in schema.get("x-kubernetes-group-version-kind", [])
    ]

    assert len(having) == 1
    namespace = "{namespace}" if kind.namespaced else None
    collection = f"{kind.group_path}/namespaces/{namespace}/{kind.plural}" if namespace else kind.collection_path()
    assert made["paths"][collection]["post"]["x-kubernetes-group-version-kind"] == gvk
    if "patch" in kind.verbs:
        patch = made["paths"][f"{collection}/{{name}}"]["patch"]
        assert {"name": "fieldValidation", "in": "query", "schema": {"type": "string"}} in patch["parameters"]
        assert "application/strategic-merge-patch+json" in patch["requestBody"]["content"]


def test_lists_say_how_they_are_merged():
    schemas = document("api/v1")["components"]["schemas"]
    volumes = schemas["io.k8s.api.core.v1.PodSpec"]["properties"]["volumes"]

    assert volumes["x-kubernetes-patch-merge-key"] == "name"
    assert volumes["x-kubernetes-patch-strategy"] == "merge,retainKeys"
    assert volumes["x-kubernetes-list-map-keys"] == ["name"]
    assert schemas["io.k8s.api.core.v1.PodSpec"]["required"] == ["containers"]


def references(value: Any) -> list[str]:
    if isinstance(value, dict):
        here = [value["$ref"]] if isinstance(value.get("$ref"), str) else []
        return here + [found for inner in value.values() for found in references(inner)]
    return [found for inner in value for found in references(inner)] if isinstance(value, list) else []
