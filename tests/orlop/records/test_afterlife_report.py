"""Questions and answers come out as they went in, and nothing else is taken for one."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.records.afterlife_report import (
    AskUsage,
    Done,
    Download,
    Erase,
    Erasing,
    FileRow,
    Files,
    FolderRow,
    Keep,
    ListFiles,
    ListFolders,
    PathProblem,
    Progress,
    ReadFile,
    Refused,
    Restore,
    Restored,
    Rows,
    ShowFolder,
    Unreadable,
    decode_answer,
    decode_question,
    encode_answer,
    encode_question,
)

TEXTS = st.text(st.characters(codec="utf-8"), max_size=20)
NUMBERS = st.floats(0, 1e12)
QUESTIONS = st.one_of(
    st.just(ListFolders()),
    st.just(AskUsage()),
    st.builds(ShowFolder, TEXTS),
    st.builds(ListFiles, TEXTS, st.binary()),
    st.builds(ReadFile, TEXTS, st.binary()),
    st.builds(Download, TEXTS, st.binary()),
    st.builds(Keep, TEXTS, NUMBERS, st.booleans()),
    st.builds(Restore, TEXTS, st.booleans()),
    st.builds(Erase, TEXTS, st.booleans()),
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
    st.builds(Done, PROBLEMS, st.integers(0, 1000)),
    st.builds(Restored, TEXTS, problems=PROBLEMS),
    st.builds(Erasing, FOLDERS),
    st.builds(Refused, st.sampled_from(["not-found", "wrong-use", "refused"]), TEXTS),
)


@given(QUESTIONS)
def test_a_question_comes_out_as_it_went_in(question):
    assert decode_question(encode_question(question)) == question


@given(ANSWERS)
def test_an_answer_comes_out_as_it_went_in(answer):
    assert decode_answer(encode_answer(answer)) == answer


@given(st.binary() | QUESTIONS.map(encode_question).map(lambda data: data[:-1]))
def test_nonsense_is_no_question_and_no_answer(data: bytes):
    with pytest.raises(Unreadable):
        decode_question(data)
    with pytest.raises(Unreadable):
        decode_answer(data)


@pytest.mark.parametrize("version", [0, 2, 99])
def test_a_question_of_another_version_is_told_so_whatever_it_asks(version: int):
    data = msgspec.json.encode({"version": version, "question": {"ask": "something new"}})
    with pytest.raises(Unreadable, match=f"of version {version}, and this node answers version 1"):
        decode_question(data)
