"""What the plugin watcher decides: which socket next, which version, who is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.node.plugin_watcher_rules import (
    UNANNOUNCED,
    Accepted,
    Claim,
    Held,
    PathBackoff,
    PluginVersion,
    RegistrationRefused,
    WatcherState,
    accept,
    after_failure,
    fixed_path,
    highest_version,
    next_steps,
    read_version,
)
from orlop.csi.driver_name import driver_name_problem

PATHS = st.sampled_from(["/r/a", "/r/b", "/r/c"])
SEEN = st.builds(
    WatcherState,
    sockets=st.dictionaries(PATHS, st.integers(1, 3)),
    held=st.dictionaries(PATHS, st.builds(Held, st.integers(1, 3), st.sampled_from(["x", "y"]))),
    busy=st.frozensets(PATHS),
    waits=st.dictionaries(PATHS, st.builds(PathBackoff, st.floats(0, 100), st.floats(0.5, 122))),
)


@given(SEEN, st.floats(0, 100))
def test_no_path_is_touched_that_somebody_is_at_work_on_and_none_twice(seen: WatcherState, elapsed: float):
    steps = next_steps(seen, elapsed)
    touched = [*steps.let_go, *steps.attempt]

    assert len(set(touched)) == len(touched)
    assert not set(touched) & set(seen.busy)


@given(SEEN, st.floats(0, 100))
def test_what_is_held_and_there_as_it_was_is_left_alone(seen: WatcherState, elapsed: float):
    steps = next_steps(seen, elapsed)
    settled = {path for path, held in seen.held.items() if seen.sockets.get(path) == held.identity}

    assert not settled & {*steps.let_go, *steps.attempt}


@given(SEEN, st.floats(0, 100))
def test_a_socket_that_nobody_holds_is_tried_now_or_at_the_instant_that_is_told(seen: WatcherState, elapsed: float):
    steps = next_steps(seen, elapsed)
    free = {path for path in seen.sockets if path not in seen.held and path not in seen.busy}
    left = free - set(steps.attempt)

    assert set(steps.attempt) <= free
    assert all(seen.waits[path].until > elapsed for path in left)
    assert steps.look_again == min((seen.waits[path].until for path in left), default=None)


@given(st.integers(1, 50), st.floats(0, 1e6))
def test_waits_double_from_half_a_second_to_two_minutes_and_two_seconds(failures: int, elapsed: float):
    wait = None
    for _ in range(failures):
        wait = after_failure(wait, elapsed)

    assert wait is not None
    assert wait.seconds == min(122.0, 0.5 * 2 ** (failures - 1))
    assert wait.until == elapsed + wait.seconds


def judgement(claim: Claim, registered: dict[str, PluginVersion]) -> Accepted | str:
    try:
        return accept(claim, "/r/a", registered)
    except RegistrationRefused as refused:
        return str(refused)


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("1.0.0", (1, 0, 0)),
        ("v1.2", (1, 2)),
        (" 1.10.3-rc.1", (1, 10, 3)),
        ("0.3", (0, 3)),
        ("1", None),
        ("", None),
        ("x1.0", None),
        ("01.0", None),
        ("1.", None),
        ("1." + "9" * 5000, None),
    ],
)
def test_versions_are_read_as_go_reads_them(text: str, numbers: tuple[int, ...] | None):
    read = read_version(text)

    assert (read.numbers if read else None) == numbers


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4).map(tuple), min_size=2, max_size=2))
def test_versions_compare_as_numbers_with_zeros_at_the_end_for_nothing(pair: list[tuple[int, ...]]):
    padded = [(*numbers, 0, 0, 0, 0)[:4] for numbers in pair]

    assert (PluginVersion(pair[0]) < PluginVersion(pair[1])) == (padded[0] < padded[1])
    assert (PluginVersion(pair[0]) == PluginVersion(pair[1])) == (padded[0] == padded[1])


def test_the_highest_version_of_the_interface_s_first_major_counts():
    assert str(highest_version(["1.0.0", "nonsense", "1.12.0", "1.2", "2.0.0", "0.9"])) == "1.12.0"


@given(st.lists(st.text(max_size=8), max_size=4), st.text(max_size=8), st.text(max_size=8), st.text(max_size=8))
def test_any_claim_is_accepted_or_refused_with_a_sentence(versions: list[str], kind: str, name: str, endpoint: str):
    judged = judgement(Claim(kind, name, endpoint, tuple(versions)), {})

    if isinstance(judged, str):
        assert judged.startswith("RegisterPlugin error -- ")
    else:
        assert driver_name_problem(judged.name) is None
        assert judged.endpoint.path.startswith("/")


@given(st.lists(st.integers(0, 3), min_size=2, max_size=3), st.lists(st.integers(0, 3), min_size=2, max_size=3))
def test_a_taken_name_is_given_to_a_higher_version_alone(mine: list[int], theirs: list[int]):
    claim = Claim("CSIPlugin", "a.b", "/s", (".".join(map(str, [1, *theirs])),))
    present = PluginVersion((1, *mine))
    judged = judgement(claim, {"a.b": present})

    assert isinstance(judged, str) == (not present < PluginVersion((1, *theirs)))
    assert not isinstance(judged, str) or "already registered" in judged


def test_whoever_announces_himself_has_a_higher_version_than_one_that_was_found():
    assert accept(Claim("CSIPlugin", "a.b", "/s", ("1.0.0",)), "/r/a", {"a.b": UNANNOUNCED}).name == "a.b"


@given(st.text(max_size=80) | st.from_regex(r"[a-zA-Z0-9./~-]{1,70}", fullmatch=True))
def test_a_fixed_path_never_leaves_its_folder(name: str):
    if driver_name_problem(name):
        with pytest.raises(ValueError, match="is no driver's"):
            fixed_path("/kubelet/plugins", name)
    else:
        assert fixed_path("/kubelet/plugins", name).split("/") == ["", "kubelet", "plugins", name, "csi.sock"]
        assert name not in {".", "..", ""}
