"""Bodies in Kubernetes' protobuf envelope, as kubectl's typed commands and client-go's controllers send them."""

from __future__ import annotations

from copy import deepcopy

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import SMALLEST, claim, config_map, lease, named, pod, volume
from support.api.api_under_test import Answer, Api
from support.api.kube_protobuf import encode_like_go

PROTOBUF = "application/vnd.kubernetes.protobuf"
BOTH = f"{PROTOBUF},application/json"
TAKEN = [
    kinds.NAMESPACE,
    kinds.CONFIG_MAP,
    kinds.SECRET,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.CLUSTER_ROLE,
    kinds.CLUSTER_ROLE_BINDING,
    kinds.LEASE,
    kinds.CORE_EVENT,
    kinds.EVENT,
    kinds.NODE,
    kinds.POD,
    kinds.PERSISTENT_VOLUME,
    kinds.PERSISTENT_VOLUME_CLAIM,
    kinds.STORAGE_CLASS,
    kinds.CSI_NODE,
    kinds.VOLUME_ATTACHMENT,
    kinds.CSI_STORAGE_CAPACITY,
]


def whole(kind: Kind, obj: dict) -> dict:
    return {"apiVersion": kind.api_version, "kind": kind.kind, **obj}


async def post(api: Api, kind: Kind, obj: dict) -> Answer:
    body = encode_like_go(whole(kind, obj))
    return await api.ask("POST", api.path(kind), body, content_type=PROTOBUF)


def without_identity(obj: dict) -> dict:
    rest = deepcopy(obj)
    for part in ("uid", "resourceVersion", "creationTimestamp", "managedFields", "name", "labels"):
        rest["metadata"].pop(part, None)
    return rest


@pytest.mark.parametrize("kind", TAKEN, ids=str)
async def test_an_object_in_protobuf_is_the_same_as_in_json(api: Api, kind: Kind):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    names = [each if kind.namespaced else api.unique(each) for each in ("binary", "text")]
    binary, text = (SMALLEST[kind](name, api.namespace) for name in names)
    if kind is kinds.POD:
        for each in (binary, text):
            each["spec"]["automountServiceAccountToken"] = False
    answer = await post(api, kind, binary)

    assert answer.status == 201, answer.text
    assert answer.json["metadata"]["name"] == names[0]
    made = await api.make(kind, text)
    same = without_identity(await api.read(kind, names[0]))
    if kind is kinds.PERSISTENT_VOLUME:
        for each in (same, made):
            each["status"].pop("lastPhaseTransitionTime")
    assert same == without_identity(made)


async def test_a_volumes_source_and_its_affinity_are_read(api: Api):
    affinity = {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In", "values": ["b"]}]}]}
    obj = volume(api.unique("pv"), nodeAffinity={"required": affinity})
    answer = await post(api, kinds.PERSISTENT_VOLUME, obj)

    spec = answer.made["spec"]
    assert spec["csi"] == {"driver": "csi.example.com", "volumeHandle": "v1"}
    assert spec["nodeAffinity"] == {"required": affinity}
    assert spec["capacity"] == {"storage": "1Gi"}


async def test_a_pods_volumes_and_probes_are_read(api: Api):
    await api.create(kinds.SERVICE_ACCOUNT, named("default"))
    obj = pod(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}], automountServiceAccountToken=False)
    obj["spec"]["containers"][0] |= {
        "livenessProbe": {"httpGet": {"path": "/", "port": 80}, "periodSeconds": 7},
        "env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "m", "key": "k"}}}],
    }
    made = (await post(api, kinds.POD, obj)).made["spec"]

    assert made["volumes"] == [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]
    probe = made["containers"][0]["livenessProbe"]
    assert (probe["httpGet"]["port"], probe["periodSeconds"]) == (80, 7)
    assert made["containers"][0]["env"][0]["valueFrom"] == {"configMapKeyRef": {"name": "m", "key": "k"}}


async def test_a_replacement_in_protobuf_keeps_its_guard(api: Api):
    made = await api.make(kinds.LEASE, lease())
    made.pop("metadata") | {}
    current = await api.read(kinds.LEASE, "l")
    metadata = {part: current["metadata"][part] for part in ("name", "namespace", "uid", "resourceVersion")}
    spec = {**current["spec"], "renewTime": "2026-01-02T03:04:05.678901Z"}
    body = encode_like_go(whole(kinds.LEASE, {"metadata": metadata, "spec": spec}))
    path = api.path(kinds.LEASE, "l")

    first = await api.ask("PUT", path, body, content_type=PROTOBUF)
    assert first.made["spec"]["renewTime"] == "2026-01-02T03:04:05.678901Z"
    assert (await api.ask("PUT", path, body, content_type=PROTOBUF)).status == 409


async def test_options_of_a_deletion_in_protobuf(api: Api):
    made = await api.make(kinds.CONFIG_MAP, config_map())
    path = api.path(kinds.CONFIG_MAP, "c")
    other = encode_like_go({"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": "other"}})
    assert (await api.ask("DELETE", path, other, content_type=PROTOBUF)).status == 409
    right = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": made["metadata"]["uid"]}}

    assert (await api.ask("DELETE", path, encode_like_go(right), content_type=PROTOBUF)).status == 200


async def test_reviews_in_protobuf(api: Api):
    spec = {"resourceAttributes": {"verb": "get", "resource": "pods", "namespace": api.namespace}}
    answer = await post(api, kinds.SELF_SUBJECT_ACCESS_REVIEW, {"spec": spec})
    assert (answer.status, answer.json["status"]["allowed"]) == (201, True)

    answer = await post(api, kinds.SELF_SUBJECT_REVIEW, {})
    assert (answer.status, answer.json["kind"]) == (201, "SelfSubjectReview")


async def test_a_token_request_in_protobuf(api: Api):
    await api.make(kinds.SERVICE_ACCOUNT, named("robot"))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 1200}}
    path = api.path(kinds.SERVICE_ACCOUNT, "robot", "token")
    answer = await api.ask("POST", path, encode_like_go(request), content_type=PROTOBUF)

    assert (answer.status, answer.json["spec"]["expirationSeconds"]) == (201, 1200)


async def test_a_wrong_object_in_protobuf_is_invalid_all_the_same(api: Api):
    (await post(api, kinds.CONFIG_MAP, named("Wrong"))).is_invalid(("FieldValueInvalid", "metadata.name"))
    obj = claim()
    obj["spec"]["accessModes"] = []
    (await post(api, kinds.PERSISTENT_VOLUME_CLAIM, obj)).is_invalid(("FieldValueRequired", "spec.accessModes"))


@pytest.mark.parametrize(
    "body",
    [b"", b"k8s\x00", b"k8s\x00\xff\xff\xff", b"nonsense", b"k8s\x00\n\x0f\n\x02v1\x12\tConfigMap\x12\x05\xff"],
    ids=repr,
)
async def test_bytes_that_are_no_envelope_are_a_bad_request(api: Api, body: bytes):
    answer = await api.ask("POST", api.path(kinds.CONFIG_MAP), body, content_type=PROTOBUF)

    answer.says(400, "BadRequest", "")


async def test_another_kind_in_the_envelope_is_a_bad_request(api: Api):
    body = encode_like_go(whole(kinds.SECRET, named("s")))
    answer = await api.ask("POST", api.path(kinds.CONFIG_MAP), body, content_type=PROTOBUF)

    answer.says(400, "BadRequest", 'Secret in version "v1" cannot be handled as a ConfigMap')


async def test_who_sends_protobuf_and_takes_json_gets_json(api: Api):
    body = encode_like_go(whole(kinds.CONFIG_MAP, config_map(a="1")))
    answer = await api.ask("POST", api.path(kinds.CONFIG_MAP), body, content_type=PROTOBUF, accept="application/json")

    assert answer.headers["content-type"] == "application/json"
    assert answer.made["data"] == {"a": "1"}


async def test_who_takes_both_gets_one_of_them(api: Api):
    await api.make(kinds.CONFIG_MAP, config_map())
    answer = await api.ask("GET", api.path(kinds.CONFIG_MAP, "c"), accept=BOTH)

    assert answer.status == 200
    assert answer.headers["content-type"] in {PROTOBUF, "application/json"}
