"""Who holds the folder of an `orlop up`, and what is its own in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orlop.admin.up_state import InUse, UpState, held, holder_of, is_up_state

SINCE = "2026-01-01T00:00:00Z"


def test_a_second_one_is_told_who_holds_it_and_since_when(tmp_path: Path):
    state = UpState(tmp_path)
    with held(state, SINCE):
        with pytest.raises(InUse, match=f"process {os.getpid()} since {SINCE}"), held(state, SINCE):
            pass
        holder = holder_of(state)

    assert holder is not None
    assert holder.process is not None
    assert holder.process.number == os.getpid()
    assert holder_of(state) is None


def test_looking_does_not_take_it_from_whoever_comes_next(tmp_path: Path):
    state = UpState(tmp_path)
    with held(state, SINCE):
        holder_of(state)
    holder_of(state)

    with held(state, SINCE):
        assert holder_of(state) is not None


def test_a_holder_that_has_said_nothing_yet_is_still_one(tmp_path: Path):
    state = UpState(tmp_path)
    with held(state, SINCE):
        state.lock.write_text("")

        assert str(holder_of(state)) == "a process"


def test_only_a_folder_that_was_used_is_one(tmp_path: Path):
    state = UpState(tmp_path)
    before = is_up_state(state), holder_of(state), is_up_state(UpState(tmp_path / "none"))
    with held(state, SINCE):
        pass

    assert before == (False, None, False)
    assert is_up_state(state)


def test_what_is_none_of_ours_is_named(tmp_path: Path):
    state = UpState(tmp_path)
    for path in (state.api, state.kubelet, state.scratch, tmp_path / "thesis"):
        path.mkdir()
    for path in (state.lock, state.node_socket):
        path.touch()

    assert state.strangers() == ["thesis"]
