"""Kinds that are stored for the programs that watch them: created, checked by schema, listed, watched, deleted."""

from __future__ import annotations

import pytest

from orlop.kube.kinds import STORED_ONLY, Kind
from support.api.api_objects import container, named
from support.api.api_under_test import Api

TEMPLATE = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [container()], "restartPolicy": "Never"}}
SPECS = {
    "Service": {"ports": [{"port": 80}]},
    "LimitRange": {"limits": [{"type": "Container"}]},
    "ResourceQuota": {"hard": {"pods": "1"}},
    "ReplicationController": {"template": {**TEMPLATE, "spec": {"containers": [container()]}}},
    "Job": {"template": TEMPLATE},
    "CronJob": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": TEMPLATE}}},
    "PodDisruptionBudget": {"minAvailable": 1},
    "DeviceClass": {},
    "ResourceClaim": {},
    "ResourceClaimTemplate": {"spec": {}},
    "ResourceSlice": {"driver": "a.example.com", "pool": {"name": "p", "resourceSliceCount": 1}, "allNodes": True},
}
FIELDS = {
    "ControllerRevision": {"revision": 1, "data": {}},
    "EndpointSlice": {"addressType": "IPv4", "endpoints": []},
    "RuntimeClass": {"handler": "h"},
    "PriorityClass": {"value": 1},
}


def whole(kind: Kind, name: str) -> dict:
    spec = {"spec": SPECS[kind.kind]} if kind.kind in SPECS else {}
    return named(name, **spec, **FIELDS.get(kind.kind, {}))


@pytest.mark.parametrize("kind", STORED_ONLY, ids=str)
async def test_a_stored_kind_is_created_listed_watched_and_deleted(api: Api, kind: Kind):
    name = "x" if kind.namespaced else api.unique("x")
    after = await api.version()
    answer = await api.create(kind, whole(kind, name))
    made = answer.made
    async with api.watch(kind, resourceVersion=after, fieldSelector=f"metadata.name={name}") as watching:
        await api.patch(kind, name, {"metadata": {"labels": {"a": "b"}}})
        assert await watching.events(2) == [("ADDED", name), ("MODIFIED", name)]
        await api.delete(kind, name)
        assert (await watching.next())["type"] in {"DELETED", "MODIFIED"}

    assert (made["apiVersion"], made["kind"]) == (kind.api_version, kind.kind)
    if api.can.is_orlops:
        warning = answer.headers["warning"]
        assert warning == f'299 - "{kind.plural} are stored and watched here, and nothing acts on them"'


@pytest.mark.parametrize("kind", [kind for kind in STORED_ONLY if kind.kind in SPECS], ids=str)
async def test_a_stored_kind_is_checked_by_its_schema(api: Api, kind: Kind):
    name = "x" if kind.namespaced else api.unique("x")

    assert (await api.create(kind, named(name, spec="no object"))).status == 400
