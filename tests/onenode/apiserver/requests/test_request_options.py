"""Options of requests, continue tokens and media types: read, and refused with Kubernetes' words."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.apiserver.answers.status_answers import Refusal
from onenode.apiserver.requests.media_types import PLAIN, AnswerForm, ObjectForm, answer_form, body_type, patch_type
from onenode.apiserver.requests.request_options import (
    NEWEST,
    ContinueToken,
    DeletionOptions,
    ListTime,
    WriteOptions,
    list_time,
    read_deletion_options,
    read_list_options,
    read_token,
    read_version,
    read_write_options,
    write_token,
)

KUBECTL = ",".join(
    [*(f"application/json;as=Table;v={version};g=meta.k8s.io" for version in ("v1", "v1beta1")), "application/json"]
)
NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60)


def query(text: str) -> list[tuple[str, str]]:
    return [tuple(pair.partition("=")[::2]) for pair in text.split("&") if pair]


@pytest.mark.parametrize(
    ("text", "code", "words"),
    [
        ("limit=x", 400, 'strconv.ParseInt: parsing "x": invalid syntax'),
        ("timeoutSeconds=x", 400, "invalid syntax"),
        ("labelSelector=a in b", 400, "unable to parse requirement"),
        ("fieldSelector=a", 400, "can't understand 'a'"),
        ("resourceVersionMatch=Exact", 422, "forbidden unless resourceVersion is provided"),
        ("resourceVersionMatch=Soon&resourceVersion=1", 422, 'Unsupported value: "Soon"'),
        ("resourceVersionMatch=Exact&resourceVersion=0", 422, '"exact" is forbidden for resourceVersion "0"'),
        ("resourceVersionMatch=Exact&resourceVersion=5&continue=x", 422, "forbidden when continue is provided"),
        ("sendInitialEvents=true", 422, "sendInitialEvents is forbidden for list"),
        ("watch=true&sendInitialEvents=true", 422, "requires setting resourceVersionMatch to NotOlderThan"),
        ("watch=true&resourceVersionMatch=NotOlderThan", 422, "forbidden for watch unless sendInitialEvents"),
    ],
)
def test_list_options_that_are_refused(text: str, code: int, words: str):
    with pytest.raises(Refusal) as refused:
        read_list_options(query(text))
    assert refused.value.code == code
    assert words in refused.value.message
    if code == 422:
        assert refused.value.message.startswith('ListOptions.meta.k8s.io "" is invalid: ')


@pytest.mark.parametrize("text", ["watch=true", "watch=1", "watch=", "watch=yes"])
def test_a_flag_is_set_by_anything_but_false_and_0(text: str):
    assert read_list_options(query(text)).watch
    assert not read_list_options(query("watch=false")).watch
    assert not read_list_options(query("watch=0")).watch


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("", ListTime(0, exact=False)),
        ("resourceVersion=0&limit=5", ListTime(0, exact=False)),
        ("resourceVersion=7", ListTime(7, exact=False)),
        ("resourceVersion=7&limit=5", ListTime(7, exact=True)),
        ("resourceVersion=7&limit=5&resourceVersionMatch=NotOlderThan", ListTime(7, exact=False)),
        ("resourceVersion=7&resourceVersionMatch=Exact", ListTime(7, exact=True)),
    ],
)
def test_as_of_when_a_list_is_asked_for(text: str, time: ListTime):
    assert list_time(read_list_options(query(text))) == time


def test_a_version_beside_a_continue_token_is_refused():
    with pytest.raises(Refusal, match="not allowed when using continue"):
        list_time(read_list_options(query("resourceVersion=7&continue=x")))


@pytest.mark.parametrize("text", ["x", "-1", "1.0", "\uff11", "9" * 19, "9" * 30, " 1"])
def test_a_version_that_is_no_number_is_a_bad_request(text: str):
    with pytest.raises(Refusal, match="invalid resource version") as refused:
        read_version(text)
    assert refused.value.code == 400


@pytest.mark.parametrize(
    ("text", "options"),
    [
        ("", WriteOptions(dry_run=False, strict=False, warn=True)),
        ("dryRun=All&fieldValidation=Strict", WriteOptions(dry_run=True, strict=True, warn=False)),
        ("fieldValidation=Ignore", WriteOptions(dry_run=False, strict=False, warn=False)),
    ],
)
def test_options_of_writes(text: str, options: WriteOptions):
    assert read_write_options(query(text), "CreateOptions") == options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("dryRun=None", 'dryRun: Unsupported value: ["None"]: supported values: "All"'),
        ("fieldValidation=Loud", 'fieldValidation: Unsupported value: "Loud"'),
        ("fieldManager=" + "x" * 129, "fieldManager: Too long: may not be more than 128 bytes"),
    ],
)
def test_options_of_writes_that_are_refused(text: str, words: str):
    with pytest.raises(Refusal) as refused:
        read_write_options(query(text), "PatchOptions")
    assert refused.value.code == 422
    assert refused.value.message.startswith(f'PatchOptions.meta.k8s.io "" is invalid: {words}')
    assert refused.value.details == {
        "group": "meta.k8s.io",
        "kind": "PatchOptions",
        "causes": refused.value.details["causes"],
    }


def test_options_of_deletions_come_from_the_body_or_else_from_the_query():
    body = {"gracePeriodSeconds": 5, "preconditions": {"uid": "u"}, "propagationPolicy": "Orphan"}
    assert read_deletion_options(query("gracePeriodSeconds=9"), body) == DeletionOptions(
        uid="u", propagation="Orphan", grace_seconds=5
    )
    assert read_deletion_options(query("gracePeriodSeconds=9&dryRun=All"), None) == DeletionOptions(
        dry_run=True, grace_seconds=9
    )
    assert read_deletion_options((), {"orphanDependents": True}).propagation == "Orphan"


@pytest.mark.parametrize("body", [{"propagationPolicy": "Sideways"}, {"dryRun": ["Some"]}])
def test_wrong_options_of_deletions_are_refused(body: dict):
    with pytest.raises(Refusal, match=r"DeleteOptions\.meta\.k8s\.io") as refused:
        read_deletion_options((), body)
    assert refused.value.code == 422


@given(st.integers(1, 2**62), NAMES | st.just(""), NAMES)
def test_a_continue_token_is_read_as_it_was_written(revision: int, namespace: str, name: str):
    token = ContinueToken(revision, namespace, name)
    assert read_token(write_token(token)) == token
    assert read_token(write_token(ContinueToken(NEWEST, namespace, name))).revision == NEWEST


@given(st.text(max_size=200))
def test_any_other_text_is_no_continue_token(text: str):
    with pytest.raises(Refusal, match="invalid continue token"):
        read_token(text)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        ("", PLAIN),
        ("application/json", PLAIN),
        ("application/json, */*", PLAIN),
        ("application/vnd.kubernetes.protobuf,application/json", PLAIN),
        ("application/vnd.kubernetes.protobuf, */*", PLAIN),
        ("application/vnd.kubernetes.protobuf", PLAIN),
        ("application/yaml", PLAIN),
        ("application/json;stream=watch", PLAIN),
        (KUBECTL, AnswerForm(ObjectForm.TABLE, "v1")),
        ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", PLAIN),
        ("application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1", AnswerForm(ObjectForm.METADATA, "v1")),
        (
            "application/json;q=0.1, application/json;as=Table;v=v1;g=meta.k8s.io;q=0.9",
            AnswerForm(ObjectForm.TABLE, "v1"),
        ),
    ],
)
def test_the_form_that_is_accepted(accept: str, form: AnswerForm):
    assert answer_form(accept) == form


@pytest.mark.parametrize(
    "accept",
    ["text/html", "application/json;as=Cake;v=v1;g=meta.k8s.io", "text/*;q=x"],
)
def test_a_form_we_do_not_have_is_not_acceptable(accept: str):
    with pytest.raises(Refusal) as refused:
        answer_form(accept)
    assert (refused.value.code, refused.value.reason) == (406, "NotAcceptable")


@given(st.text(max_size=80))
def test_any_accept_header_gives_a_form_or_is_not_acceptable(accept: str):
    try:
        outcome: object = answer_form(accept)
    except Refusal as refusal:
        outcome = refusal.code
    assert outcome == 406 or isinstance(outcome, AnswerForm)


def test_bodies_are_json_or_protobuf_and_patches_of_three_types():
    assert body_type("") == body_type("application/json; charset=utf-8") == "application/json"
    assert body_type("application/vnd.kubernetes.protobuf") == "application/vnd.kubernetes.protobuf"
    assert patch_type("application/merge-patch+json") == "application/merge-patch+json"
    with pytest.raises(Refusal, match="415: Unsupported Media Type"):
        patch_type("")
    for read, header in ((body_type, "application/x-www-form-urlencoded"), (body_type, "a;b=;;=")):
        with pytest.raises(Refusal, match="accepted media types include: application/json") as refused:
            read(header)
        assert refused.value.code == 415
