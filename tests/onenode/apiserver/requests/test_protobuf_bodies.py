from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from google.protobuf import descriptor_pool
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.requests.protobuf_bodies import MalformedBody, decode_body
from onenode.apiserver.requests.protobuf_messages import KINDS, read_message
from support.api.kube_protobuf import (
    decoded,
    drawn_documents,
    empty_object,
    encode_like_go,
    envelope,
    full_object,
    managed_fields,
    message_bytes,
    number,
    of_drawn_objects,
    stretch,
    table_fields,
    tag,
    varint,
)

PROMISED = {
    "v1": "Namespace ConfigMap Secret ServiceAccount DeleteOptions Binding Event Node Pod PersistentVolume "
    "PersistentVolumeClaim Service Endpoints ReplicationController ResourceQuota LimitRange",
    "rbac.authorization.k8s.io/v1": "Role ClusterRole RoleBinding ClusterRoleBinding",
    "authorization.k8s.io/v1": "SubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview "
    "LocalSubjectAccessReview",
    "authentication.k8s.io/v1": "TokenReview SelfSubjectReview TokenRequest",
    "policy/v1": "Eviction PodDisruptionBudget",
    "coordination.k8s.io/v1": "Lease",
    "events.k8s.io/v1": "Event",
    "storage.k8s.io/v1": "StorageClass CSINode VolumeAttachment CSIStorageCapacity VolumeAttributesClass CSIDriver",
    "apps/v1": "Deployment ReplicaSet StatefulSet DaemonSet ControllerRevision",
    "batch/v1": "CronJob Job",
    "discovery.k8s.io/v1": "EndpointSlice",
    "node.k8s.io/v1": "RuntimeClass",
    "scheduling.k8s.io/v1": "PriorityClass",
    "autoscaling/v1": "Scale",
}


def in_pod_spec(field: int, raw: bytes) -> dict[str, Any]:
    spec: dict[str, Any] = decoded("Pod", stretch(2, stretch(field, raw)))["spec"]
    return spec


def test_the_kinds_that_are_read_are_the_promised_ones():
    assert set(KINDS) == {(version, kind) for version, kinds in PROMISED.items() for kind in kinds.split()}


# The same object as from JSON.


@pytest.mark.parametrize(("api_version", "kind"), KINDS)
def test_an_object_with_every_field_set_is_read_as_it_was(api_version: str, kind: str):
    document = {"apiVersion": api_version, "kind": kind, **full_object(KINDS[api_version, kind])}
    assert decode_body(encode_like_go(document)) == document


@pytest.mark.parametrize(("api_version", "kind"), KINDS)
def test_an_object_with_nothing_set_shows_what_go_always_shows(api_version: str, kind: str):
    document = {"apiVersion": api_version, "kind": kind, **empty_object(KINDS[api_version, kind])}
    assert decode_body(encode_like_go(document)) == document


@of_drawn_objects
@given(drawn_documents())
def test_what_go_writes_is_read_as_what_it_would_have_written_in_json(document):
    assert decode_body(encode_like_go(document)) == document


def test_the_bytes_that_kubectl_sends_for_a_config_map_are_read():
    """Recorded from kubectl 1.37: create configmap c --from-literal=a=b."""
    body = bytes.fromhex(
        "6b3873000a0f0a0276311209436f6e6669674d6170121b0a110a016312001a0022002a0032003800420012060a01611201621a002200"
    )
    expected = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": {"a": "b"}}
    assert decode_body(body) == expected


def test_presence_counts_where_go_has_a_pointer():
    spec = stretch(1, "") + number(2, 0) + number(5, 0)
    lease = decoded("Lease", stretch(2, spec), "coordination.k8s.io/v1")
    assert lease == {"spec": {"holderIdentity": "", "leaseDurationSeconds": 0, "leaseTransitions": 0}}
    assert decoded("StorageClass", number(6, 0), "storage.k8s.io/v1")["allowVolumeExpansion"] is False


def test_what_json_shows_also_when_empty_is_there():
    attachment = decoded("VolumeAttachment", stretch(3, number(1, 0)), "storage.k8s.io/v1")
    assert attachment == {"spec": {"attacher": "", "source": {}, "nodeName": ""}, "status": {"attached": False}}
    assert decoded("VolumeAttachment", stretch(3, b""), "storage.k8s.io/v1") == attachment
    assert decoded("CSINode", b"", "storage.k8s.io/v1") == {"spec": {"drivers": []}}
    assert in_pod_spec(34, b"")["ephemeralContainers"] == [{"name": ""}]


def test_any_field_can_be_one_that_json_always_shows():
    pool = descriptor_pool.Default()
    file = FileDescriptorProto(name="always.proto", package="orlop.kube.test", syntax="proto3")
    file.dependency.append("onenode/apiserver/proto/json_form.proto")
    message = file.message_type.add(name="M")
    entry = message.nested_type.add(name="MapEntry")
    entry.options.map_entry = True
    kinds = [("map", ".orlop.kube.test.M.MapEntry"), ("numbers", ""), ("time", ".orlop.kube.Time")]
    for place, (name, type_name) in enumerate(kinds, 1):
        field = message.field.add(
            name=name, number=place, label=1 if name == "time" else 3, type_name=type_name or None
        )
        field.type = field.TYPE_MESSAGE if type_name else field.TYPE_INT64
        field.options.Extensions[pool.FindExtensionByName("orlop.kube.always")] = True
    for place, name in enumerate(("key", "value"), 1):
        entry.field.add(name=name, number=place, label=1, type=9)
    pool.AddSerializedFile(file.SerializeToString())
    assert read_message("test.M", b"") == {"map": {}, "numbers": []}
    assert read_message("test.M", number(2, 5)) == {"map": {}, "numbers": [5]}


def test_an_empty_message_is_left_out_unless_go_has_a_pointer_to_it():
    assert decoded("Namespace", stretch(1, b"") + stretch(2, b"") + stretch(3, stretch(1, ""))) == {}
    assert in_pod_spec(14, b"") == {"containers": [], "securityContext": {}}
    assert in_pod_spec(2, b"") == {"containers": [{"name": ""}]}


INLINED = [
    ("Volume", {"name": "v", "emptyDir": {}}),
    ("Volume", {"name": "v", "configMap": {"name": "c", "items": [{"key": "k", "path": "p"}]}}),
    ("VolumeProjection", {"secret": {"name": "s", "optional": False}}),
    ("VolumeProjection", {"configMap": {"name": "c"}}),
    ("PersistentVolumeSpec", {"csi": {"driver": "d", "volumeHandle": "h"}, "storageClassName": "x"}),
    ("Probe", {"httpGet": {"port": "http"}, "periodSeconds": 5}),
    ("EphemeralContainer", {"name": "e", "image": "i", "targetContainerName": "t"}),
    ("EnvVarSource", {"configMapKeyRef": {"name": "c", "key": "k"}}),
    ("EnvVarSource", {"secretKeyRef": {"name": "s", "key": "k"}}),
    ("EnvFromSource", {"configMapRef": {"name": "c"}, "secretRef": {"name": "s"}}),
]
WHERE = {
    "Volume": ("Pod", "spec", "volumes"),
    "VolumeProjection": ("Pod", "spec", "volumes", "projected", "sources"),
    "PersistentVolumeSpec": ("PersistentVolume", "spec"),
    "Probe": ("Pod", "spec", "containers", "livenessProbe"),
    "EphemeralContainer": ("Pod", "spec", "ephemeralContainers"),
    "EnvVarSource": ("Pod", "spec", "containers", "env", "valueFrom"),
    "EnvFromSource": ("Pod", "spec", "containers", "envFrom"),
}


@pytest.mark.parametrize(("name", "members"), INLINED)
def test_members_that_are_nested_in_protobuf_are_flat_in_json(name: str, members: dict[str, Any]):
    kind, *path = WHERE[name]
    raw = path_bytes(f"core.{kind}", path, message_bytes(f"core.{name}", members))
    value: Any = decoded(kind, raw)
    for step in path:
        value = value[step]
        value = value[0] if isinstance(value, list) else value
    assert value == members


def path_bytes(name: str, path: list[str], content: bytes) -> bytes:
    """The message with nothing but `content` at the end of the path."""
    for field in table_fields(name):
        if field.name == path[0]:
            inner = path_bytes(field.kind, path[1:], content) if path[1:] else content
            return stretch(field.number, inner)
        if field.mark == "<" and any(inner.name == path[0] for inner in table_fields(field.kind)):
            return stretch(field.number, path_bytes(field.kind, path, content))
    raise AssertionError(f"{name} has no {path[0]}")


# Messages that are no objects in JSON.


def metadata_time(raw: bytes) -> object:
    metadata: dict[str, Any] = decoded("Pod", stretch(1, stretch(8, raw))).get("metadata", {})
    return metadata.get("creationTimestamp")


@pytest.mark.parametrize(
    ("raw", "text"),
    [
        (b"", None),
        (number(1, 0) + number(2, 0), "1970-01-01T00:00:00Z"),
        (number(1, 1_800_000_000) + number(2, 999_999_999), "2027-01-15T08:00:00Z"),
        (number(1, -1), "1969-12-31T23:59:59Z"),
        (number(2, 5), "1970-01-01T00:00:00Z"),
        (number(1, -62_135_596_800), None),
        (number(1, 253_402_300_799), "9999-12-31T23:59:59Z"),
    ],
)
def test_a_time_has_whole_seconds_and_is_left_out_when_unset(raw: bytes, text: str | None):
    assert metadata_time(raw) == text


@pytest.mark.parametrize(
    ("nanos", "fraction"),
    [(0, "00.000000"), (1_000, "00.000001"), (999_999_999, "00.999999"), (-1_000_000, "59.999000")],
)
def test_a_micro_time_has_six_decimals(nanos: int, fraction: str):
    spec = stretch(4, number(1, 1_800_000_000) + number(2, nanos))
    lease = decoded("Lease", stretch(2, spec), "coordination.k8s.io/v1")
    assert lease["spec"]["renewTime"].removesuffix("Z").endswith(fraction)


@pytest.mark.parametrize("seconds", [253_402_300_800, -62_135_596_801, 2**63 - 1, -(2**63)])
def test_a_time_outside_the_calendar_is_malformed(seconds: int):
    with pytest.raises(MalformedBody, match="year"):
        metadata_time(number(1, seconds))


def test_a_quantity_is_a_text_and_zero_when_unset():
    capacity = stretch(1, stretch(1, "storage") + stretch(2, stretch(1, "5Gi")))
    assert decoded("PersistentVolume", stretch(2, capacity)) == {"spec": {"capacity": {"storage": "5Gi"}}}
    bare = stretch(1, stretch(1, "storage"))
    assert decoded("PersistentVolume", stretch(2, bare)) == {"spec": {"capacity": {"storage": "0"}}}


@pytest.mark.parametrize(
    ("raw", "port"),
    [
        (number(1, 0) + number(2, 8080) + stretch(3, ""), 8080),
        (number(1, 1) + number(2, 0) + stretch(3, "http"), "http"),
        (b"", 0),
    ],
)
def test_an_int_or_string_is_either(raw: bytes, port: object):
    probe = stretch(1, stretch(3, stretch(1, raw)))
    container = in_pod_spec(2, stretch(10, probe))["containers"][0]
    assert container["livenessProbe"] == {"tcpSocket": {"port": port}}


def test_the_data_of_a_secret_are_base64():
    secret = stretch(2, stretch(1, "k") + stretch(2, b"\xff\0")) + stretch(2, stretch(1, "empty"))
    assert decoded("Secret", secret) == {"data": {"k": b64encode(b"\xff\0").decode(), "empty": ""}}


def test_the_extra_of_a_user_is_a_list_of_texts_for_each_key():
    entries = stretch(5, stretch(1, "k") + stretch(2, stretch(1, "a") + stretch(1, "b"))) + stretch(5, stretch(1, "n"))
    review = decoded("SubjectAccessReview", stretch(2, entries), "authorization.k8s.io/v1")
    assert review["spec"]["extra"] == {"k": ["a", "b"], "n": []}


def test_json_within_the_body_is_read():
    assert managed_fields('{"f:spec": {".": {}}}') == {"fieldsV1": {"f:spec": {".": {}}}}
    assert managed_fields("null") == managed_fields("") == {}


def test_the_uid_of_a_token_s_owner_has_its_json_name():
    request = decoded("TokenRequest", stretch(2, stretch(3, stretch(4, "u1"))), "authentication.k8s.io/v1")
    assert request["spec"] == {"audiences": [], "boundObjectRef": {"uid": "u1"}}


@pytest.mark.parametrize(("sent", "meant"), [(2**64 - 1, -1), (2**31, -(2**31)), (2**32 + 5, 5)])
def test_a_number_of_32_bits_is_cut_as_go_cuts_it(sent: int, meant: int):
    lease = decoded("Lease", stretch(2, number(2, sent)), "coordination.k8s.io/v1")
    assert lease["spec"]["leaseDurationSeconds"] == meant


def test_of_a_number_of_more_than_64_bits_the_lower_ones_count():
    beyond = tag(6, 0) + b"\x80" * 9 + b"\x02"
    assert decoded("StorageClass", beyond, "storage.k8s.io/v1")["allowVolumeExpansion"] is False


def test_lists_of_numbers_are_read_packed_or_not():
    unpacked = in_pod_spec(14, number(4, 1) + number(4, -2))
    packed = in_pod_spec(14, stretch(4, varint(1) + varint(-2)))
    assert packed == unpacked
    assert packed["securityContext"] == {"supplementalGroups": [1, -2]}


# What protobuf allows.


def test_a_message_in_two_pieces_is_merged_and_a_value_sent_twice_is_the_last_one():
    first = stretch(1, stretch(1, "old") + stretch(3, "ns") + stretch(5, "u") + number(7, 2))
    second = stretch(1, stretch(1, "new") + stretch(5, "") + number(7, 0))
    assert decoded("Pod", first + second)["metadata"] == {"name": "new", "namespace": "ns"}


UNKNOWN = [number(9000, 7), stretch(9000, b"\xff"), tag(9000, 1) + bytes(8), tag(9000, 5) + bytes(4)]


@of_drawn_objects
@given(drawn_documents(), st.sampled_from(UNKNOWN))
def test_fields_that_nobody_knows_are_passed_over(document, unknown):
    name = KINDS[document["apiVersion"], document["kind"]]
    raw = unknown + message_bytes(name, document) + unknown
    assert decode_body(envelope(document["apiVersion"], document["kind"], raw) + unknown) == document


@pytest.mark.parametrize("api_version", ["v1", "storage.k8s.io/v1", "apps/v1", "meta.k8s.io/v1"])
def test_delete_options_come_with_the_version_of_any_group(api_version: str):
    body = envelope(api_version, "DeleteOptions", number(1, 0) + stretch(4, "Background"))
    assert decode_body(body) == {
        "apiVersion": api_version,
        "kind": "DeleteOptions",
        "gracePeriodSeconds": 0,
        "propagationPolicy": "Background",
    }


def test_delete_options_without_a_kind_are_read_where_they_are_expected():
    body = envelope("", "", number(1, 30))
    assert decode_body(body, default_api_version="v1", default_kind="DeleteOptions") == {"gracePeriodSeconds": 30}


def test_a_version_that_is_not_sent_is_the_expected_one():
    document = decode_body(envelope("", "Lease", b""), default_api_version="coordination.k8s.io/v1")
    assert document == {"kind": "Lease"}
