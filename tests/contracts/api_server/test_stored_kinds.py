"""Kinds that are stored for the programs that watch them: created, checked by schema, listed, watched, deleted."""

from __future__ import annotations

import pytest

from orlop.kube.kinds import STORED_ONLY, Kind
from support.api.api_objects import container, named
from support.api.api_under_test import Api
from support.api.kube_protobuf import encode_like_go

PROTOBUF = "application/vnd.kubernetes.protobuf"

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
    "HorizontalPodAutoscaler": {
        "maxReplicas": 1,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "d"},
    },
    "ServiceCIDR": {"cidrs": ["10.77.0.0/24"]},
    "DeviceTaintRule": {"taint": {"key": "example.com/broken", "effect": "NoSchedule"}},
    "StorageVersionMigration": {"resource": {"group": "", "resource": "configmaps"}},
}
WITHOUT_PROTOBUF = {
    *("autoscaling", "certificates.k8s.io", "networking.k8s.io", "resource.k8s.io", "storagemigration.k8s.io")
}
NEEDS_MORE = {"CertificateSigningRequest", "PodCertificateRequest", "IPAddress"}
"""What Kubernetes checks further than we do: a signed request, a proof, the address that is the name."""
FIELDS = {
    "EndpointSlice": {"addressType": "IPv4", "endpoints": []},
    "RuntimeClass": {"handler": "h"},
    "PriorityClass": {"value": 1},
}


def whole(kind: Kind, name: str) -> dict:
    spec = {"spec": SPECS[kind.kind]} if kind.kind in SPECS else {}
    return named(name, **spec, **FIELDS.get(kind.kind, {}))


@pytest.mark.parametrize("kind", [kind for kind in STORED_ONLY if kind.kind not in NEEDS_MORE], ids=str)
async def test_a_stored_kind_is_created_listed_watched_and_deleted(api: Api, kind: Kind):
    name = "x" if kind.namespaced else api.unique("x")
    after = await api.version()
    answer = await api.create(kind, whole(kind, name))
    made = answer.made
    async with api.watch(kind, resourceVersion=after, fieldSelector=f"metadata.name={name}") as watching:
        # Kubernetes gives some of them the labels of their template.
        await api.patch(kind, name, {"metadata": {"labels": {"other": "label"}}})
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


@pytest.mark.parametrize("kind", [kind for kind in STORED_ONLY if kind.group not in WITHOUT_PROTOBUF], ids=str)
async def test_a_stored_kind_in_protobuf_is_the_same_as_in_json(api: Api, kind: Kind):
    binary, text = ("x", "y") if kind.namespaced else (api.unique("x"), api.unique("y"))
    typed = {"apiVersion": kind.api_version, "kind": kind.kind, **whole(kind, binary)}

    answer = await api.ask("POST", api.path(kind), encode_like_go(typed), content_type=PROTOBUF)

    assert answer.status == 201, answer.text
    made = await api.make(kind, whole(kind, text))
    assert essence(await api.read(kind, binary)) == essence(made)


def essence(obj: dict) -> dict:
    """Without what differs from object to object: Kubernetes gives a Service an address, and a Job its own label."""
    rest = {name: part for name, part in obj.items() if name not in {"metadata", "status", "spec"}}
    spec = {name: part for name, part in obj.get("spec", {}).items() if name not in {"clusterIP", "clusterIPs"}}
    return {**rest, "spec": {name: part for name, part in spec.items() if name not in {"template", "selector"}}}


async def test_a_port_of_a_service_without_a_target_has_its_own_number_as_target(api: Api):
    kind = next(kind for kind in STORED_ONLY if kind.kind == "Service")
    ports = [{"name": "a", "port": 80, "targetPort": 0}, {"name": "b", "port": 81, "targetPort": "named"}]

    made = await api.make(kind, named("x", spec={"ports": ports}))

    assert [(port["protocol"], port["targetPort"]) for port in made["spec"]["ports"]] == [("TCP", 80), ("TCP", "named")]


async def test_a_job_is_completed_for_the_controller_that_may_run_it(api: Api):
    kind = next(kind for kind in STORED_ONLY if kind.kind == "Job")
    made = await api.make(kind, named("x", spec={"template": TEMPLATE}))
    spec, uid = made["spec"], made["metadata"]["uid"]

    counts = {"completions": 1, "parallelism": 1, "backoffLimit": 6, "completionMode": "NonIndexed"}
    policies = {"suspend": False, "manualSelector": False, "podReplacementPolicy": "TerminatingOrFailed"}
    assert counts.items() | policies.items() <= {name: spec[name] for name in counts | policies}.items()
    assert spec["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
    assert spec["template"]["metadata"]["labels"] == {
        "a": "b",
        "controller-uid": uid,
        "batch.kubernetes.io/controller-uid": uid,
        "job-name": "x",
        "batch.kubernetes.io/job-name": "x",
    }


async def test_a_replication_controller_is_scaled(api: Api):
    kind = next(kind for kind in STORED_ONLY if kind.kind == "ReplicationController")
    template = {**TEMPLATE, "spec": {"containers": [container()]}}
    await api.make(kind, named("x", spec={"replicas": 0, "selector": {"a": "b"}, "template": template}))

    scaled = await api.patch(kind, "x", {"spec": {"replicas": 2}}, subresource="scale")

    assert (scaled.made["kind"], scaled.made["spec"]["replicas"]) == ("Scale", 2)
    assert scaled.made["status"]["selector"] == "a=b"
    assert (await api.read(kind, "x"))["spec"]["replicas"] == 2
