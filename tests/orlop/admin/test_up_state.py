"""Who holds the folder of an `orlop up`, and what is its own in it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orlop.admin.up_state import (
    DEFAULT_STATE,
    InUse,
    SeveralRun,
    UpState,
    held,
    holder_of,
    is_up_state,
    recorded,
    running_ups,
    start_command,
    unnamed_state,
    why_unused,
)
from orlop.host.kernel.process_records import identity_of_process

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
    with held(state, SINCE):
        pass
    for path in (state.api, state.kubelet, state.scratch, tmp_path / "thesis"):
        path.mkdir()
    state.node_socket.touch()

    assert state.strangers() == ["thesis"]


def test_in_a_folder_that_was_never_used_nothing_is_ours_whatever_it_is_called(tmp_path: Path):
    state = UpState(tmp_path)
    for path in (state.api, state.scratch):
        path.mkdir()

    assert state.strangers() == ["api", "scratch"]


def test_a_lock_that_somebody_else_wrote_is_not_ours_and_one_that_was_not_written_yet_is(tmp_path: Path):
    state = UpState(tmp_path)
    state.lock.touch()
    assert state.strangers() == []
    state.lock.write_text("of another program")
    assert state.strangers() == ["lock"]


# ---- those that run --------------------------------------------------------------------------------------------------


def made(folder: Path) -> UpState:
    folder.mkdir()
    return UpState(folder)


def test_the_only_one_that_runs_is_meant_where_no_folder_is_named(tmp_path: Path):
    state, registry = made(tmp_path / "state"), tmp_path / "registry"
    before = unnamed_state(registry)
    with held(state, SINCE), recorded(state, registry):
        during = unnamed_state(registry)
        modes = [oct(path.stat().st_mode & 0o077) for path in (registry, *registry.iterdir())]
    after = unnamed_state(registry)

    assert (before.folder, during, after.folder) == (DEFAULT_STATE, state, DEFAULT_STATE)
    assert modes[0] == "0o0", "root's alone"
    assert list(registry.iterdir()) == []


def test_of_several_that_run_none_is_guessed_and_all_are_named(tmp_path: Path):
    states, registry = [made(tmp_path / name) for name in "ab"], tmp_path / "registry"
    with held(states[0], SINCE), recorded(states[0], registry), held(states[1], SINCE):
        mine = next(registry.iterdir())
        # Another process would have a number of its own; here its entry stands beside ours under our name in its lock.
        states[1].lock.write_text(f"orlop up\n{mine.name}1\n{SINCE}\n\n")
        (registry / f"{mine.name}1").write_bytes(bytes(states[1].folder))

        assert running_ups(registry) == states
        with pytest.raises(SeveralRun, match=r"--state DIR") as several:
            unnamed_state(registry)
    assert all(str(state.folder) in str(several.value) for state in states)


def test_what_a_killed_one_left_is_not_believed_and_goes_when_the_next_one_begins(tmp_path: Path):
    state, registry = made(tmp_path / "state"), tmp_path / "registry"
    registry.mkdir()
    (registry / "999999999.1.boot").write_bytes(bytes(state.folder))
    (registry / f"{os.getpid()}.1.boot").write_bytes(bytes(state.folder))
    (registry / "nonsense").touch()
    with held(state, SINCE):
        of_the_killed = running_ups(registry)
        with recorded(state, registry):
            assert {path.name for path in registry.iterdir()} == {str(identity_of_process(os.getpid())), "nonsense"}

    assert of_the_killed == [], "the folder is held by a process of another number or another start"


def test_one_whose_folder_is_gone_does_not_run(tmp_path: Path):
    state, registry = made(tmp_path / "state"), tmp_path / "registry"
    with recorded(state, registry):
        assert running_ups(registry) == [], "its folder is not held"
        state.folder.rmdir()
        assert running_ups(registry) == []


def test_the_command_that_starts_it_again_names_the_driver_it_had(tmp_path: Path):
    state = made(tmp_path / "state")
    with held(state, SINCE, "unix:///run/theirs.sock"):
        pass
    assert start_command(state) == f"orlop up --state {state.folder} --driver unix:///run/theirs.sock"
    with held(state, SINCE):
        pass
    assert start_command(state) == f"orlop up --state {state.folder}"


def test_a_folder_that_none_has_used_is_told_with_those_that_run(tmp_path: Path):
    state, registry = made(tmp_path / "state"), tmp_path / "registry"
    unused = UpState(tmp_path / "nope")
    assert why_unused(unused, registry) == (
        f"No `orlop up` has used {unused.folder}: start one there with `orlop up --state {unused.folder}`, or name the "
        "folder of another with --state DIR."
    )
    with held(state, SINCE), recorded(state, registry):
        assert (why_unused(unused, registry) or "").endswith(f" Running now: {state.folder}.")
        assert why_unused(state, registry) is None
    assert why_unused(state, registry) is None, "it is stopped, and that is another sentence"
