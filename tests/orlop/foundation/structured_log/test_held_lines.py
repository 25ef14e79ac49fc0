"""Lines that are held: none is lost, none is late, and their order is that of the events."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.foundation.structured_log import HeldLines, Level, Log, lines_for
from orlop.foundation.structured_log.log import HOLD_SECONDS, MOST_HELD


class Desk:
    """A log whose lines and timers can be looked at."""

    def __init__(self) -> None:
        self.written: list[str] = []
        self.timers: list[tuple[float, Callable[[], None]]] = []
        self.time = datetime(2026, 3, 1, 12, 0, 59, 998_000, UTC)
        lines = lines_for(self.written.append, now=self.now)
        self.lines = HeldLines(lines, later=lambda seconds, call: self.timers.append((seconds, call)))
        self.log = Log(self.lines, Level.DEBUG)

    def now(self) -> datetime:
        self.time += timedelta(milliseconds=1)
        return self.time

    def time_is_up(self) -> None:
        timers, self.timers = self.timers, []
        for _, call in timers:
            call()

    @property
    def messages(self) -> list[str]:
        return [line.split('"')[1] for line in "".join(self.written).splitlines()]


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_usual_lines_are_written_together_when_their_moment_is_over(desk: Desk):
    desk.log.info("first")
    desk.log.debug("second")
    assert desk.written == []
    assert [seconds for seconds, _ in desk.timers] == [HOLD_SECONDS]
    desk.time_is_up()
    assert desk.messages == ["first", "second"]
    assert len(desk.written) == 1


def test_a_line_tells_the_time_of_its_event_and_not_of_its_writing(desk: Desk):
    desk.log.info("before the minute ended")
    desk.log.info("in the next minute")
    desk.now()
    desk.time_is_up()
    times = [line.split()[0] for line in desk.written[0].splitlines()]
    assert times == ["2026-03-01T12:00:59.999000Z", "2026-03-01T12:01:00.000000Z"]


@pytest.mark.parametrize("level", ["warning", "error"])
def test_a_warning_is_written_at_once_after_what_came_before_it(desk: Desk, level: str):
    desk.log.info("before")
    getattr(desk.log, level)("something is wrong")
    assert desk.messages == ["before", "something is wrong"]
    desk.time_is_up()
    assert desk.messages == ["before", "something is wrong"]


def test_no_more_than_so_many_lines_are_held(desk: Desk):
    for number in range(MOST_HELD):
        desk.log.info(str(number))
    assert len(desk.messages) == MOST_HELD


def test_a_value_that_changes_after_it_was_logged_is_shown_as_it_was(desk: Desk):
    volumes = ["pvc-1"]
    desk.log.info("listed", volumes=volumes)
    volumes.append("pvc-2")
    desk.time_is_up()
    assert 'volumes=["pvc-1"]' in desk.written[0]


def test_a_line_from_another_thread_waits_for_no_timer(desk: Desk):
    thread = threading.Thread(target=desk.log.info, args=("from a thread",))
    thread.start()
    thread.join()
    assert desk.messages == ["from a thread"]


def test_a_stream_that_breaks_does_not_reach_who_logs():
    def broken(_lines: str) -> None:
        raise BrokenPipeError

    held = HeldLines(lines_for(broken, now=lambda: datetime.now(UTC)), later=lambda _seconds, _call: None)
    Log(held).warning("nobody reads this")


@given(st.lists(st.sampled_from(["debug", "info", "warning", "error", "time is up", "write"]), max_size=60))
def test_every_event_is_written_once_and_in_order(steps: list[str]):
    desk = Desk()
    expected = []
    for number, step in enumerate(steps):
        match step:
            case "time is up":
                desk.time_is_up()
            case "write":
                desk.lines.write()
            case level:
                getattr(desk.log, level)(f"event {number}")
                expected.append(f"event {number}")
    desk.lines.write()
    assert desk.messages == expected
