"""Questions and answers come out as they went in, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.records.afterlife_report import (
    DownloadFolder,
    EraseFolder,
    Erasing,
    FileRow,
    Files,
    FolderRow,
    KeepFolder,
    ListFiles,
    ListFolders,
    MalformedMessage,
    PathProblem,
    Progress,
    ReadFile,
    RefusalResponse,
    Restored,
    RestoreFolder,
    Rows,
    ShowFolder,
    ShowUsage,
    StreamEnd,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.floats(0, 1e12)
QUESTIONS = st.one_of(
    st.just(ListFolders()),
    st.just(ShowUsage()),
    st.builds(ShowFolder, TEXTS),
    st.builds(ListFiles, TEXTS, st.binary()),
    st.builds(ReadFile, TEXTS, st.binary()),
    st.builds(DownloadFolder, TEXTS, st.binary()),
    st.builds(KeepFolder, TEXTS, NUMBERS, st.booleans()),
    st.builds(RestoreFolder, TEXTS, st.booleans()),
    st.builds(EraseFolder, TEXTS, st.booleans()),
)
FOLDERS = st.builds(
    FolderRow, TEXTS, TEXTS, TEXTS, NUMBERS, NUMBERS, NUMBERS, NUMBERS, bytes_used=st.none() | st.integers(0, 2**63)
)
FILES = st.builds(
    FileRow,
    *(st.binary(max_size=20), TEXTS, st.integers(0, 0o7777), st.integers(0, 2**32), st.integers(0, 2**32)),
    *(st.integers(0, 2**63 - 1), st.integers(-(2**63), 2**63 - 1), st.none() | st.binary(max_size=20)),
)
PROBLEMS = st.lists(st.builds(PathProblem, st.binary(max_size=20), TEXTS), max_size=3).map(tuple)
ANSWERS = st.one_of(
    st.builds(Rows, st.lists(FOLDERS, max_size=3).map(tuple)),
    st.builds(Files, st.lists(FILES, max_size=3).map(tuple)),
    st.builds(Progress, st.integers(0), st.integers(0, 2**63), st.none() | st.integers(0, 2**63)),
    st.builds(StreamEnd, PROBLEMS, st.integers(0, 1000)),
    st.builds(Restored, TEXTS, problems=PROBLEMS),
    st.builds(Erasing, FOLDERS),
    st.builds(RefusalResponse, st.sampled_from(["not-found", "wrong-use", "refused"]), TEXTS),
)


@given(QUESTIONS)
def test_a_question_comes_out_as_it_went_in(question):
    assert decode_request(encode_request(question)) == question


@given(ANSWERS)
def test_an_answer_comes_out_as_it_went_in(answer):
    assert decode_response(encode_response(answer)) == answer


@given(st.binary() | QUESTIONS.map(encode_request).map(lambda data: data[:-1]))
def test_nonsense_is_no_question_and_no_answer(data: bytes):
    with pytest.raises(MalformedMessage):
        decode_request(data)
    with pytest.raises(MalformedMessage):
        decode_response(data)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_question_of_another_version_is_told_so_whatever_it_asks(version: int):
    data = msgspec.json.encode({"version": version, "question": {"ask": "something new"}})
    with pytest.raises(MalformedMessage, match=f"of version {version}, and this node answers version 1"):
        decode_request(data)
