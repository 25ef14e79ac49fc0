"""After how many looks at a driver's list an object that it contradicts is acted upon."""

from __future__ import annotations

from orlop.sidecars.attacher.suspicion_rules import Suspect, suspected


def due_at(*seen: tuple[str, bool] | None) -> list[int]:
    """The looks at which it is acted upon; None: nothing differed at that one."""
    due = []
    before: Suspect | None = None
    for number, now in enumerate(seen, start=1):
        before = None if now is None else suspected(before, now[0], said=now[1])
        if before is not None and before.is_due:
            due.append(number)
    return due


GONE = ("uid-1", False)


def test_one_look_is_not_enough_and_two_are():
    assert due_at(GONE) == []
    assert due_at(GONE, GONE) == [2]


def test_what_the_driver_still_lacks_is_acted_upon_less_and_less_often_but_never_no_more():
    assert due_at(*[GONE] * 31) == [2, 6, 14, 22, 30]


def test_what_the_driver_still_has_is_acted_upon_at_every_look():
    assert due_at(*[("uid-1", True)] * 5) == [2, 3, 4, 5]


def test_once_it_agreed_all_begins_anew():
    assert due_at(*[GONE] * 3, None, *[GONE] * 2) == [2, 6]


def test_another_object_or_another_word_is_another_suspicion():
    assert due_at(GONE, ("uid-2", False), ("uid-2", True), ("uid-2", True)) == [4]
