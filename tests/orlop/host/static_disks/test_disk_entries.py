"""Recognizing the disk of an entry: by its identity or, without one, only until the machine restarts."""

from __future__ import annotations

import pytest

from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind, is_outdated, why_another

BEFORE, NOW, SWAPPED = "sequence:boot1:7:8:16", "sequence:boot2:3:8:16", "sequence:boot2:4:8:16"


def entry(identity: str = "", session: str = NOW) -> DiskEntry:
    return DiskEntry(name="disk1", kind=EntryKind.DEVICE, identity=identity, session=session)


@pytest.mark.parametrize("known", ["", NOW, "wwn:1"])
def test_a_disk_is_known_by_its_identity_or_by_what_the_kernel_numbers(known: str):
    assert why_another(entry("wwn:1"), known) == ""


@pytest.mark.parametrize(
    ("found", "known", "why"),
    [
        (entry("wwn:2"), "wwn:1", "is not the disk that was released: that was wwn:1, this is wwn:2"),
        (entry(session=SWAPPED), NOW, f"is not the disk that was released: that was {NOW}, this is {SWAPPED}"),
        (entry("wwn:1"), BEFORE, f"is not the disk that was released: that was {BEFORE}, this is wwn:1"),
        (entry(session=""), "wwn:1", "is not the disk that was released: that was wwn:1, this is an unknown one"),
    ],
)
def test_another_disk_is_refused_with_what_it_is(found: DiskEntry, known: str, why: str):
    assert why_another(found, known) == why


def test_a_disk_without_an_identity_is_refused_after_a_restart_since_nothing_can_be_compared():
    assert why_another(entry(), BEFORE) == (
        "may not be the disk that was released: nothing identifies it, and the machine has restarted since"
    )


@pytest.mark.parametrize(
    ("known", "now", "outdated"),
    [(BEFORE, NOW, True), (NOW, SWAPPED, False), ("wwn:1", NOW, False), (BEFORE, "wwn:1", False), ("", NOW, False)],
)
def test_only_what_lasts_until_a_restart_is_outdated_by_one(known: str, now: str, *, outdated: bool):
    assert is_outdated(known, now) is outdated
