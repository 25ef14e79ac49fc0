from __future__ import annotations

from base64 import b64encode
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.embedded.apiserver.proto.message_table import KINDS, MESSAGES
from orlop.embedded.apiserver.protobuf_bodies import MalformedBody, UnsupportedKind, decode_body
from orlop.embedded.apiserver.protobuf_forms import DEEPEST_RAW_JSON
from orlop.embedded.apiserver.protobuf_wire import MOST_FIELDS
from support.kube_protobuf import (
    drawn_documents,
    empty_object,
    encode_like_go,
    envelope,
    full_object,
    message_bytes,
    number,
    stretch,
    table_fields,
    tag,
    varint,
)

PROMISED = {
    "v1": "Namespace ConfigMap Secret ServiceAccount DeleteOptions Binding Event Node Pod PersistentVolume "
    "PersistentVolumeClaim",
    "rbac.authorization.k8s.io/v1": "Role ClusterRole RoleBinding ClusterRoleBinding",
    "authorization.k8s.io/v1": "SubjectAccessReview SelfSubjectAccessReview SelfSubjectRulesReview "
    "LocalSubjectAccessReview",
    "authentication.k8s.io/v1": "TokenReview SelfSubjectReview TokenRequest",
    "policy/v1": "Eviction",
    "coordination.k8s.io/v1": "Lease",
    "events.k8s.io/v1": "Event",
    "storage.k8s.io/v1": "StorageClass CSINode VolumeAttachment CSIStorageCapacity",
}


def decoded(kind: str, raw: bytes, api_version: str = "v1") -> dict[str, Any]:
    """What a body with these bytes as its object becomes, without its type."""
    document = decode_body(envelope(api_version, kind, raw))
    assert (document.pop("apiVersion"), document.pop("kind")) == (api_version, kind)
    return document


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
    assert decoded("CSINode", stretch(2, b""), "storage.k8s.io/v1") == {"spec": {"drivers": []}}


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


@pytest.mark.parametrize(("message", "members"), INLINED)
def test_members_that_are_nested_in_protobuf_are_flat_in_json(message: str, members: dict[str, Any]):
    kind, *path = WHERE[message]
    raw = path_bytes(f"core.{kind}", path, message_bytes(f"core.{message}", members))
    value: Any = decoded(kind, raw)
    for name in path:
        value = value[name]
        value = value[0] if isinstance(value, list) else value
    assert value == members


def path_bytes(message: str, path: list[str], content: bytes) -> bytes:
    """The message with nothing but `content` at the end of the path."""
    for field in table_fields(message):
        if field.name == path[0]:
            inner = path_bytes(field.kind, path[1:], content) if path[1:] else content
            return stretch(field.number, inner)
        if field.mark == "<" and any(inner.name == path[0] for inner in table_fields(field.kind)):
            return stretch(field.number, path_bytes(field.kind, path, content))
    raise AssertionError(f"{message} has no {path[0]}")


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


def managed_fields(raw: bytes | str) -> dict[str, Any]:
    entry = stretch(17, stretch(7, stretch(1, raw)))
    members: dict[str, Any] = decoded("Pod", stretch(1, entry))["metadata"]["managedFields"][0]
    return members


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


def test_lists_of_numbers_are_read_packed_or_not():
    unpacked = in_pod_spec(14, number(4, 1) + number(4, -2))
    packed = in_pod_spec(14, stretch(4, varint(1) + varint(-2)))
    assert packed == unpacked
    assert packed["securityContext"] == {"supplementalGroups": [1, -2]}


# What protobuf allows.


def test_a_message_in_two_pieces_is_merged_and_a_value_sent_twice_is_the_last_one():
    first = stretch(1, stretch(1, "old") + stretch(3, "ns") + stretch(5, "u"))
    second = stretch(1, stretch(1, "new") + stretch(5, ""))
    assert decoded("Pod", first + second)["metadata"] == {"name": "new", "namespace": "ns"}


UNKNOWN = [number(9000, 7), stretch(9000, b"\xff"), tag(9000, 1) + bytes(8), tag(9000, 5) + bytes(4)]


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


# Other bodies.


@pytest.mark.parametrize("body", [b"", b"k8s", b"{}", b"K8s\0", b"k8s\x01\n\0"])
def test_a_body_without_the_envelope_s_mark_is_malformed(body: bytes):
    with pytest.raises(MalformedBody, match="6b 38 73 00"):
        decode_body(body)


def test_a_body_without_a_kind_is_malformed():
    with pytest.raises(MalformedBody, match="kind"):
        decode_body(b"k8s\0")


@pytest.mark.parametrize(
    ("api_version", "kind"), [("apps/v1", "Deployment"), ("storage.k8s.io/v1", "CSIDriver"), ("v2", "Pod"), ("", "Pod")]
)
def test_any_other_kind_is_named_as_not_supported(api_version: str, kind: str):
    with pytest.raises(UnsupportedKind, match=f"{kind} is not read in protobuf form") as raised:
        decode_body(envelope(api_version, kind, b"\xff"))
    assert (raised.value.api_version, raised.value.kind) == (api_version, kind)


MALFORMED = [
    (number(1, 5), "field 1 of core.Pod, before byte .*, has wire type 0"),
    (tag(2, 5) + bytes(4), "field 2 of core.Pod, before byte .*, has wire type 5"),
    (stretch(1, stretch(7, b"\1")), "field 7 of meta.ObjectMeta, before byte .*, has wire type 2"),
    (tag(1, 2), "does not end"),
    (tag(1, 2) + b"\x05", "5 bytes are announced at byte .*, and only 0 are there"),
    (stretch(1, tag(1, 2) + b"\x7f"), "127 bytes are announced"),
    (stretch(1, b"\x8a"), "does not end"),
    (tag(1, 2) + b"\xff" * 9, "does not end"),
    (tag(1, 2) + b"\xff" * 11, "does not end"),
    (tag(1, 2) + varint(2**63), "are announced"),
    (b"\x00", "number 0"),
    (stretch(0, b""), "number 0"),
    (tag(9000, 3), "wire type 3"),
    (tag(9000, 4), "wire type 4"),
    (tag(9000, 7), "wire type 7"),
    (tag(9000, 1) + bytes(7), "8 bytes are announced"),
    (tag(9000, 5) + bytes(3), "4 bytes are announced"),
    (tag(9000, 0), "does not end"),
    (tag(9000, 2) + b"\x01", "1 bytes are announced"),
    (stretch(1, stretch(1, b"\xff\xfe")), "not UTF-8"),
    (stretch(1, stretch(1, b"\xed\xa0\x80")), "not UTF-8"),
    (stretch(1, stretch(11, stretch(1, b"\xc3"))), "not UTF-8"),
]


@pytest.mark.parametrize(("raw", "sentence"), MALFORMED)
def test_a_malformed_object_is_refused_with_a_sentence(raw: bytes, sentence: str):
    with pytest.raises(MalformedBody, match=sentence):
        decoded("Pod", raw)


@pytest.mark.parametrize("raw", ["{", b"\xff", "[1,]", "NaN", '{"a":1}x'])
def test_malformed_json_within_the_body_is_refused(raw: bytes | str):
    with pytest.raises(MalformedBody):
        managed_fields(raw)


@pytest.mark.parametrize("depth", [DEEPEST_RAW_JSON + 1, 1_000, 300_000])
def test_json_within_the_body_that_is_nested_too_deep_is_refused(depth: int):
    with pytest.raises(MalformedBody):
        managed_fields("[" * depth + "]" * depth)
    assert managed_fields("[" * DEEPEST_RAW_JSON + "]" * DEEPEST_RAW_JSON)


@pytest.mark.parametrize(
    "raw",
    [
        stretch(1, stretch(14, "") * (MOST_FIELDS + 1)),
        stretch(2, stretch(2, b"") * MOST_FIELDS),
        stretch(1, b"") * MOST_FIELDS,
        stretch(2, stretch(14, stretch(4, b"\1" * (MOST_FIELDS + 1)))),
        stretch(9000, b"") * MOST_FIELDS,
    ],
    ids=["texts", "containers", "pieces", "packed numbers", "unknown fields"],
)
def test_a_body_of_very_many_fields_is_refused(raw: bytes):
    with pytest.raises(MalformedBody, match="more than 100000 fields"):
        decoded("Pod", raw)


def test_no_error_repeats_what_a_secret_holds():
    secret = b"hunter2-hunter2"
    bodies = [
        stretch(2, stretch(1, secret + b"\xff")),
        stretch(2, stretch(1, "k") + tag(2, 2) + b"\x7f" + secret),
        stretch(3, secret + b"\xff"),
        stretch(1, stretch(17, stretch(7, stretch(1, secret)))),
    ]
    for raw in bodies:
        with pytest.raises(MalformedBody) as raised:
            decoded("Secret", raw)
        assert "hunter2" not in f"{raised.value} {raised.value.__cause__}"


def outcome(body: bytes) -> object:
    """An object, or one of the two errors: anything else fails the test."""
    try:
        return decode_body(body)
    except (MalformedBody, UnsupportedKind):
        return None


@given(drawn_documents(), st.data())
def test_a_body_that_ends_early_is_an_error_or_an_object(document, data):
    body = encode_like_go(document)
    outcome(body[: data.draw(st.integers(0, len(body)))])


@given(drawn_documents(), st.data())
def test_an_object_that_ends_early_is_an_error_or_an_object(document, data):
    raw = message_bytes(KINDS[document["apiVersion"], document["kind"]], document)
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    outcome(envelope(document["apiVersion"], document["kind"], cut))


@given(drawn_documents(), st.data())
def test_a_body_with_changed_bytes_is_an_error_or_an_object(document, data):
    body = bytearray(encode_like_go(document))
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(4, len(body) - 1))] = data.draw(st.integers(0, 255))
    outcome(bytes(body))


@given(st.sampled_from(sorted(KINDS)), st.binary())
def test_any_bytes_are_an_error_or_an_object(kind, raw):
    outcome(envelope(*kind, raw))
    outcome(b"k8s\0" + raw)


def test_no_message_holds_itself_so_that_no_body_is_deeper_than_the_table():
    def depth(message: str) -> int:
        held = {field.kind for field in table_fields(message) if field.kind in MESSAGES}
        return 1 + max(map(depth, held), default=0)

    assert max(map(depth, KINDS.values())) < 20
