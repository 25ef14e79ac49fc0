"""Bodies that are no objects, not of the kind, not of the size: each has its answer, and the server lives on."""

from __future__ import annotations

import json

import pytest

from orlop.kube import kinds
from orlop.kube.kinds import Kind
from support.api.api_objects import SMALLEST, STORED, config_map
from support.api.api_under_test import Api

CONFIG_MAP = kinds.CONFIG_MAP
LARGEST = 3 * 1024 * 1024


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        b"nonsense",
        b"[]",
        b'"x"',
        b"1",
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},}',
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"}} trailing',
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":"c"}',
        b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":1}}',
        b'{"kind":1,"apiVersion":"v1","metadata":{"name":"c"}}',
    ],
    ids=repr,
)
async def test_a_body_that_cannot_be_read_is_a_bad_request(api: Api, body: bytes):
    answer = await api.ask("POST", api.path(CONFIG_MAP), body)

    answer.says(400, "BadRequest", "")
    assert await api.names(CONFIG_MAP, fieldSelector="metadata.name=c") == []


async def test_null_is_an_object_without_anything(api: Api):
    (await api.ask("POST", api.path(CONFIG_MAP), b"null")).is_invalid(("FieldValueRequired", "metadata.name"))


async def test_a_creation_without_a_body_is_a_bad_request(api: Api):
    answer = await api.ask("POST", api.path(CONFIG_MAP), b"")

    answer.says(400, "BadRequest", "")


async def test_bytes_that_are_no_text_are_replaced_or_refused(api: Api):
    body = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"a":"\xff"}}'
    answer = await api.ask("POST", api.path(CONFIG_MAP), body)

    assert answer.status in {201, 400}, answer.text


@pytest.mark.parametrize("kind", STORED, ids=str)
async def test_a_body_of_another_kind_is_a_bad_request(api: Api, kind: Kind):
    other = kinds.SECRET if kind is CONFIG_MAP else CONFIG_MAP
    body = {"kind": other.kind, "apiVersion": other.api_version, "metadata": {"name": "x"}}
    answer = await api.ask("POST", api.path(kind), body)

    answer.is_refused(
        400,
        "BadRequest",
        f'{other.kind} in version "v1" cannot be handled as a {kind.kind}: converting (v1.{other.kind}) to '
        f"({internal_group(kind)}.{kind.kind}): unknown conversion",
    )


def internal_group(kind: Kind) -> str:
    """The name of the Go package that holds the kind: what the sentence says."""
    return {"": "core", "events.k8s.io": "core"}.get(kind.group, kind.group.split(".")[0])


@pytest.mark.parametrize(
    "which",
    [{"kind": "Fancy", "apiVersion": "v1"}, {"kind": "ConfigMap", "apiVersion": "v9"}, {"kind": "ConfigMap"}],
    ids=str,
)
async def test_a_body_of_a_kind_that_nobody_knows(api: Api, which: dict):
    answer = await api.ask("POST", api.path(CONFIG_MAP), {**which, "metadata": {"name": "c"}})

    if "apiVersion" in which:
        answer.says(400, "BadRequest", "")
    else:
        assert answer.status == 201, answer.text


async def test_a_body_need_not_say_its_kind(api: Api):
    answer = await api.ask("POST", api.path(CONFIG_MAP), config_map())

    assert (answer.made["kind"], answer.made["apiVersion"]) == ("ConfigMap", "v1")


async def test_a_body_of_three_mebibytes_is_too_large(api: Api):
    answer = await api.create(CONFIG_MAP, config_map(a="x" * LARGEST))

    answer.is_refused(413, "RequestEntityTooLarge", "Request entity too large: limit is 3145728")


async def test_a_body_just_below_is_looked_at(api: Api):
    answer = await api.create(CONFIG_MAP, config_map(a="x" * (LARGEST - 1000)))

    answer.is_invalid(("FieldValueTooLong", "[]"))


async def test_a_large_object_is_kept_whole(api: Api):
    text = "x" * 1_000_000
    await api.make(CONFIG_MAP, config_map(a=text))

    assert (await api.read(CONFIG_MAP, "c"))["data"]["a"] == text


@pytest.mark.parametrize("depth", [9_000, 100_000])
async def test_deep_nesting_is_refused_and_harms_nobody(api: Api, depth: int):
    body = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"deep":' + b"[" * depth + b"]" * depth + b"}"
    answer = await api.ask("POST", api.path(CONFIG_MAP), body)

    assert answer.status in {201, 400}, answer.text
    assert depth < 10_000 or answer.status == 400
    assert (await api.ask("GET", "/livez")).status == 200


async def test_deep_nesting_in_a_patch_is_refused_and_harms_nobody(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1"))
    depth = 50_000
    body = b'{"data":' + b'{"a":' * depth + b"1" + b"}" * depth + b"}"
    for form in ("merge", "strategic"):
        answer = await api.patch(CONFIG_MAP, "c", body, form)
        assert answer.status in {400, 413, 422}, (form, answer.text[:500])
    assert (await api.read(CONFIG_MAP, "c"))["data"] == {"a": "1"}


async def test_a_json_patch_of_too_many_operations_is_refused(api: Api):
    await api.make(CONFIG_MAP, config_map(a="1"))
    operations = [{"op": "test", "path": "/data/a", "value": "1"}] * 10_001
    answer = await api.patch(CONFIG_MAP, "c", operations, "json")

    answer.is_refused(
        413,
        "RequestEntityTooLarge",
        "Request entity too large: The allowed maximum operations in a JSON patch is 10000, got 10001",
    )


@pytest.mark.parametrize("form", ["text/plain", "application/xml", "nonsense", "application/cbor"])
async def test_an_unknown_content_type_is_unsupported(api: Api, form: str):
    answer = await api.ask("POST", api.path(CONFIG_MAP), config_map(), content_type=form)

    answer.says(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: ",
    )
    assert "application/json" in answer.json["message"]


async def test_a_body_without_a_content_type_is_taken_for_json(api: Api):
    answer = await api.ask("POST", api.path(CONFIG_MAP), config_map(), content_type="")

    assert answer.status in {201, 415}, answer.text


@pytest.mark.parametrize(
    "form", ["application/json; charset=utf-8", "application/json;charset=UTF-8", "APPLICATION/JSON"]
)
async def test_a_content_type_may_have_parameters_and_capitals(api: Api, form: str):
    answer = await api.ask("POST", api.path(CONFIG_MAP), config_map(), content_type=form)

    assert answer.status == 201, answer.text


async def test_options_of_a_deletion_that_cannot_be_read_are_refused(api: Api):
    await api.make(CONFIG_MAP, config_map())
    for body in (b"{", b"[]", b'{"gracePeriodSeconds":"x"}', b'{"kind":"ConfigMap","apiVersion":"v1"}'):
        answer = await api.ask("DELETE", api.path(CONFIG_MAP, "c"), body)
        assert answer.status == 400, (body, answer.text)
    assert (await api.get(CONFIG_MAP, "c")).status == 200


@pytest.mark.parametrize(
    "options", [{}, {"kind": "DeleteOptions", "apiVersion": "v1"}, {"gracePeriodSeconds": 0}], ids=str
)
async def test_options_of_a_deletion_may_say_their_kind_or_not(api: Api, options: dict):
    await api.make(CONFIG_MAP, config_map())

    assert (await api.delete(CONFIG_MAP, "c", options)).status == 200


async def test_options_of_a_deletion_may_be_of_the_objects_group(api: Api):
    await api.make(kinds.LEASE, SMALLEST[kinds.LEASE]("l", api.namespace))
    options = {"kind": "DeleteOptions", "apiVersion": "coordination.k8s.io/v1"}

    assert (await api.delete(kinds.LEASE, "l", options)).status == 200


async def test_names_given_twice_are_warned_of_and_the_last_counts(api: Api):
    body = b'{"kind":"ConfigMap","apiVersion":"v1","metadata":{"name":"c"},"data":{"a":"1"},"data":{"a":"2"}}'
    answer = await api.ask("POST", api.path(CONFIG_MAP), body)

    assert answer.made["data"] == {"a": "2"}
    assert answer.headers["warning"] == '299 - "duplicate field \\"data\\""'


async def test_an_object_may_hold_any_text(api: Api):
    text = 'grüße\u0000\u2028\U0001f600\\"\n\t\u007f'
    made = await api.make(CONFIG_MAP, config_map(a=text))

    assert made["data"]["a"] == text
    assert (await api.read(CONFIG_MAP, "c"))["data"]["a"] == text


async def test_numbers_keep_their_value(api: Api):
    body = SMALLEST[kinds.LEASE]("l", api.namespace)
    body["spec"] |= {"leaseDurationSeconds": 2147483647, "leaseTransitions": 0}
    made = await api.make(kinds.LEASE, body)
    assert (made["spec"]["leaseDurationSeconds"], made["spec"]["leaseTransitions"]) == (2147483647, 0)

    for wrong in (2147483648, 1.5):
        body["spec"]["leaseDurationSeconds"] = wrong
        (await api.create(kinds.LEASE, body)).says(400, "BadRequest", "cannot unmarshal number")


async def test_a_replacement_that_cannot_be_read_changes_nothing(api: Api):
    made = await api.make(CONFIG_MAP, config_map(a="1"))
    for body in (b"{", b"[]", b"", json.dumps({**made, "data": {"a": 1}}).encode()):
        answer = await api.ask("PUT", api.path(CONFIG_MAP, "c"), body)
        assert (answer.status, answer.json["reason"]) == (400, "BadRequest"), body
    assert await api.read(CONFIG_MAP, "c") == made
