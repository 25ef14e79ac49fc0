"""Bodies that anybody may send: whatever they hold, the outcome is an object or an error with a sentence."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.requests.protobuf_bodies import MalformedBody, UnsupportedKind, decode_body
from onenode.apiserver.requests.protobuf_messages import DEEPEST_RAW_JSON, KINDS, MOST_FIELDS
from support.api.kube_messages import MESSAGES
from support.api.kube_protobuf import (
    decoded,
    drawn_documents,
    encode_like_go,
    envelope,
    managed_fields,
    message_bytes,
    number,
    of_drawn_objects,
    stretch,
    table_fields,
    tag,
    varint,
)


@pytest.mark.parametrize("body", [b"", b"k8s", b"{}", b"K8s\0", b"k8s\x01\n\0"])
def test_a_body_without_the_envelope_s_mark_is_malformed(body: bytes):
    with pytest.raises(MalformedBody, match="6b 38 73 00"):
        decode_body(body)


def test_a_body_without_a_kind_is_malformed():
    with pytest.raises(MalformedBody, match="kind"):
        decode_body(b"k8s\0\x1a\0")
    with pytest.raises(MalformedBody, match="empty body"):
        decode_body(b"k8s\0", default_kind="Pod")


OTHERS = [("batch/v2", "Job"), ("v1", "Job"), ("resource.k8s.io/v1", "DeviceClass"), ("v2", "Pod"), ("", "Pod")]


@pytest.mark.parametrize(("api_version", "kind"), OTHERS)
def test_any_other_kind_is_named_as_not_supported(api_version: str, kind: str):
    with pytest.raises(UnsupportedKind, match=f"{kind} is not read in protobuf form") as raised:
        decode_body(envelope(api_version, kind, b"\xff"))
    assert (raised.value.api_version, raised.value.kind) == (api_version, kind)


CORRUPT = "parsing message with type 'core.Pod': Wire format was corrupt"
MALFORMED = [
    (number(1, 5), "field 1 of core.Pod has wire type 0"),
    (tag(2, 5) + bytes(4), "field 2 of core.Pod has wire type 5"),
    (stretch(1, stretch(7, b"\1")), "field 7 of meta.ObjectMeta has wire type 2"),
    (tag(1, 2), CORRUPT),
    (tag(1, 2) + b"\x05", CORRUPT),
    (stretch(1, tag(1, 2) + b"\x7f"), CORRUPT),
    (stretch(1, b"\x8a"), CORRUPT),
    (tag(1, 2) + b"\xff" * 9, CORRUPT),
    (tag(1, 2) + b"\xff" * 11, CORRUPT),
    (tag(1, 2) + varint(2**63), CORRUPT),
    (tag(1, 2) + b"\x80" * 10 + b"\0", CORRUPT),
    (stretch(1, tag(7, 0)) + stretch(2, b""), CORRUPT),
    (stretch(1, tag(1, 2)) + stretch(2, b""), CORRUPT),
    (b"\x00", CORRUPT),
    (stretch(0, b""), CORRUPT),
    (tag(9000, 3), CORRUPT),
    (tag(9000, 4), CORRUPT),
    (tag(9000, 7), CORRUPT),
    (tag(9000, 1) + bytes(7), CORRUPT),
    (tag(9000, 5) + bytes(3), CORRUPT),
    (tag(9000, 0), CORRUPT),
    (tag(9000, 2) + b"\x01", CORRUPT),
    (stretch(1, stretch(1, b"\xff\xfe")), "bad UTF-8"),
    (stretch(1, stretch(1, b"\xed\xa0\x80")), "bad UTF-8"),
    (stretch(1, stretch(11, stretch(1, b"\xc3"))), "bad UTF-8"),
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
        stretch(2, stretch(14, stretch(4, b"\1" * (MOST_FIELDS + 1)))),
        stretch(9000, b"") * (MOST_FIELDS + 1),
    ],
    ids=["texts", "containers", "packed numbers", "unknown fields"],
)
def test_a_body_of_very_many_fields_is_refused(raw: bytes):
    with pytest.raises(MalformedBody, match="more than 100000 fields"):
        decoded("Pod", raw)


def test_the_most_fields_that_are_read_are_read():
    around = 2
    most = MOST_FIELDS - around
    assert decoded("Pod", stretch(1, stretch(14, "f") * most))["metadata"] == {"finalizers": ["f"] * most}
    with pytest.raises(MalformedBody, match="fields"):
        decoded("Pod", stretch(1, stretch(14, "f") * (most + 1)))


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


@of_drawn_objects
@given(drawn_documents(), st.data())
def test_a_body_that_ends_early_is_an_error_or_an_object(document, data):
    body = encode_like_go(document)
    outcome(body[: data.draw(st.integers(0, len(body)))])


@of_drawn_objects
@given(drawn_documents(), st.data())
def test_an_object_that_ends_early_is_an_error_or_an_object(document, data):
    raw = message_bytes(KINDS[document["apiVersion"], document["kind"]], document)
    cut = raw[: data.draw(st.integers(0, len(raw)))]
    outcome(envelope(document["apiVersion"], document["kind"], cut))


@of_drawn_objects
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
    def depth(name: str) -> int:
        held = {field.kind for field in table_fields(name) if field.kind in MESSAGES}
        return 1 + max(map(depth, held), default=0)

    assert max(map(depth, KINDS.values())) < 20
