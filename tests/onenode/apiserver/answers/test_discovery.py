from __future__ import annotations

from onenode.apiserver.answers import discovery
from orlop.kube.kinds import BUILT_IN, PERSISTENT_VOLUME, Kind


def test_the_core_group_is_told_apart_from_the_named_ones():
    groups = [group["name"] for group in discovery.group_list(BUILT_IN)["groups"]]

    assert "" not in groups
    assert {"storage.k8s.io", "apps", "coordination.k8s.io"} <= set(groups)
    assert discovery.core_versions("127.0.0.1:1")["versions"] == ["v1"]


def test_a_resource_is_listed_with_its_parts():
    listed = discovery.resource_list(BUILT_IN, "", "v1", {})

    assert listed is not None
    by_name = {resource["name"]: resource for resource in listed["resources"]}
    assert listed["groupVersion"] == "v1"
    assert by_name["pods"]["shortNames"] == ["po"]
    assert by_name["pods/eviction"] == {
        "name": "pods/eviction",
        "singularName": "",
        "namespaced": True,
        "kind": "Eviction",
        "group": "policy",
        "version": "v1",
        "verbs": ["create"],
    }


def test_a_group_or_version_that_is_not_there_is_none():
    assert discovery.resource_list(BUILT_IN, "", "v2", {}) is None
    assert discovery.group(BUILT_IN, "nobody.example.com") is None


def test_the_aggregated_form_holds_what_the_plain_forms_hold():
    core = discovery.aggregated(BUILT_IN, core=True)
    named = discovery.aggregated(BUILT_IN, core=False)

    resources = {
        (group["metadata"].get("name", ""), resource["resource"])
        for group in [*core["items"], *named["items"]]
        for version in group["versions"]
        for resource in version["resources"]
    }
    assert resources == {(kind.group, kind.plural) for kind in BUILT_IN}
    assert core["items"][0]["metadata"] == {}


def test_a_resource_of_the_aggregated_form_leaves_group_and_version_to_its_parent():
    (group,) = discovery.aggregated([PERSISTENT_VOLUME], core=True)["items"]

    assert group["versions"][0]["resources"] == [
        {
            "resource": "persistentvolumes",
            "responseKind": {"group": "", "version": "", "kind": "PersistentVolume"},
            "scope": "Cluster",
            "singularResource": "persistentvolume",
            "verbs": ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"],
            "shortNames": ["pv"],
            "subresources": [
                {
                    "subresource": "status",
                    "responseKind": {"group": "", "version": "", "kind": "PersistentVolume"},
                    "verbs": ["get", "patch", "update"],
                }
            ],
        }
    ]


def test_a_group_prefers_the_version_named_first():
    kinds = [
        Kind("x.dev", "v2", "Thing", "things", namespaced=True),
        Kind("x.dev", "v1", "Thing", "things", namespaced=True),
    ]

    group = discovery.group(kinds, "x.dev")

    assert group is not None
    assert group["preferredVersion"] == {"groupVersion": "x.dev/v2", "version": "v2"}
