"""Which entries are offered: each disk once, under one name, and never another than before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some

from orlop.host.static_disks.disk_entries import DiskEntry, EntryKind, overlaps
from orlop.records.provisioner_status import MOST_DISKS, LocalVolume
from orlop.static_pv import discovery_rules as rules
from orlop.static_pv.configuration import SizedDirectories, StaticClass, StaticConfiguration
from orlop.static_pv.discovery_rules import ClassListing, Discovery, discovered, wants_entry
from orlop.static_pv.naming_rules import volume_name

GIB = 1 << 30
NODE = "n1"
FAST = StaticClass("fast", "/mnt/fast", "/mnt/fast", directories=(SizedDirectories("d*", 5 * GIB),))
BLOCK = StaticClass("raw", "/mnt/raw", "/mnt/raw", volume_mode="Block")
BOTH = StaticConfiguration((FAST, BLOCK))
COLLIDING = ("disk122789", "disk339192")
"""Found by trying: FNV-1a has 32 bits."""


def device(name: str, place: str = "8:16", size: int = 100 * GIB, **facts: str) -> DiskEntry:
    return DiskEntry(name=name, kind=EntryKind.DEVICE, bytes=size, place=place, **facts)


def mount(name: str, place: str = "8:32/", size: int = 50 * GIB) -> DiskEntry:
    return DiskEntry(name=name, kind=EntryKind.MOUNT, bytes=size, place=place, file_system="xfs")


def listed(*entries: DiskEntry, before: tuple[LocalVolume, ...] = (), storage_class: str = "fast") -> Discovery:
    return discovered(BOTH, [ClassListing(storage_class, entries)], NODE, before)


def reasons(found: Discovery) -> dict[str, str]:
    return {each.entry: each.reason for each in found.problems}


def names(found: Discovery) -> list[str]:
    return [each.entry for each in found.volumes]


def test_a_disk_is_listed_as_the_other_product_names_and_rounds_it():
    (volume,) = listed(mount("disk1", size=50 * GIB + 12345)).volumes

    assert volume.name == volume_name("disk1", NODE, "fast")
    assert (volume.capacity_bytes, volume.capacity, volume.volume_mode) == (50 * GIB, "50Gi", "Filesystem")
    assert (volume.device, volume.file_system) == (False, "xfs")


def test_a_class_of_file_systems_takes_devices_which_kubelet_formats():
    (volume,) = listed(device("disk1")).volumes

    assert (volume.device, volume.volume_mode) == (True, "Filesystem")


def test_a_class_of_block_devices_takes_nothing_else():
    found = listed(device("a"), mount("b"), storage_class="raw")

    assert names(found) == ["a"]
    assert reasons(found) == {"b": rules.WRONG_MODE}


def test_a_folder_is_a_volume_only_with_a_stated_size():
    stated, other = (
        DiskEntry(name=name, kind=EntryKind.FOLDER, bytes=GIB, place=f"8:1/{name}") for name in ("d1", "e")
    )
    found = listed(stated, other)

    assert [(each.entry, each.capacity_bytes) for each in found.volumes] == [("d1", 5 * GIB)]
    assert reasons(found) == {"e": rules.NOT_MOUNTED}
    assert "directories" in found.problems[0].message


def test_a_folder_that_cannot_be_read_keeps_its_volumes_and_no_others():
    before = listed(mount("a")).volumes
    elsewhere = LocalVolume(
        name="local-pv-1",
        storage_class="raw",
        entry="b",
        capacity_bytes=1,
        capacity="1",
        volume_mode="Block",
    )
    found = discovered(BOTH, [ClassListing("fast", why="it is gone"), ClassListing("raw")], NODE, (*before, elsewhere))

    assert found.volumes == before
    assert found.unread_classes == ("fast",)


def test_two_entries_of_one_name_are_a_collision_and_the_listed_one_stays():
    first, second = COLLIDING
    assert volume_name(first, NODE, "fast") == volume_name(second, NODE, "fast")
    one, other = mount(first), mount(second, "8:48/")

    assert names(listed(one, other)) == [min(first, second)]
    assert reasons(listed(one, other)) == {max(first, second): rules.NAME_COLLISION}
    for already in (one, other):
        before = listed(already).volumes
        assert names(listed(one, other, before=before)) == [already.name]


def test_two_entries_of_one_disk_are_one_volume_and_the_listed_one_stays():
    one, other = device("a"), device("b")
    found = listed(one, other)

    assert (names(found), reasons(found)) == (["a"], {"b": rules.SAME_DISK})
    assert names(listed(one, other, before=listed(other).volumes)) == ["b"]


def test_the_same_disk_in_two_classes_is_offered_once():
    found = discovered(BOTH, [ClassListing("fast", (device("a"),)), ClassListing("raw", (device("z"),))], NODE)

    assert names(found) == ["a"]
    assert reasons(found) == {"z": rules.SAME_DISK}


def test_a_disk_in_use_is_not_offered_unless_it_is_a_volume_already():
    used = DiskEntry(name="a", kind=EntryKind.DEVICE, bytes=GIB, place="8:16", used_by=("it is swap space in use",))
    before = listed(device("a", size=GIB)).volumes

    assert reasons(listed(used)) == {"a": rules.IN_USE}
    assert names(listed(used, before=before)) == ["a"]


def test_names_that_no_object_can_hold_are_problems_whatever_the_pattern():
    only_disks = StaticClass("fast", "/mnt/fast", "/mnt/fast", name_pattern="disk*")
    hostile = ["", ".", "..", "a/b", "new\nline", "\udcff", "x" * 256, "\x1b[31mred"]

    assert all(wants_entry(only_disks, name) for name in hostile)
    assert not wants_entry(only_disks, "other")
    found = listed(*(device(name, f"8:{number}") for number, name in enumerate(hostile)))
    assert found.volumes == ()
    assert {each.reason for each in found.problems} == {rules.INVALID_NAME}
    assert all(each.entry.isprintable() and each.entry.isascii() for each in found.problems)


def test_a_node_has_no_more_volumes_than_its_object_holds():
    found = listed(*(device(f"disk{number}", f"8:{number}") for number in range(MOST_DISKS + 3)))
    collisions = sum(each.reason == rules.NAME_COLLISION for each in found.problems)

    assert len(found.volumes) == MOST_DISKS
    assert len(found.problems) - collisions in {3 - collisions, 3}


PLACES = some.sampled_from(["8:16", "8:32", "8:16/", "8:16/a", "8:16/a/b", "8:16/ab", "8:17", "8:17/"])
ENTRIES = some.lists(
    some.tuples(some.sampled_from("abcdefgh"), PLACES, some.sampled_from(["", "8:16"])), unique_by=lambda each: each[0]
)


def entry(name: str, place: str, whole: str) -> DiskEntry:
    kind = EntryKind.MOUNT if "/" in place else EntryKind.DEVICE
    # Only a partition has a whole disk.
    whole_disk = whole if place.startswith("8:17") else ""
    return DiskEntry(name=name, kind=kind, bytes=GIB, place=place, whole_disk=whole_disk)


@given(ENTRIES, ENTRIES)
def test_what_is_listed_never_overlaps_and_stays_listed(
    first: list[tuple[str, str, str]], more: list[tuple[str, str, str]]
):
    before = listed(*(entry(*each) for each in first))
    new = [each for each in more if each[0] not in {name for name, _, _ in first}]
    after = listed(*(entry(*each) for each in [*new, *first]), before=before.volumes)

    for found in (before, after):
        for one in found.disks:
            assert not any(overlaps(one.entry, other.entry) for other in found.disks if other is not one)
    assert set(names(before)) <= set(names(after))
    assert len(after.volumes) + len(after.problems) == len(new) + len(first)


@given(ENTRIES, some.randoms(use_true_random=False))
def test_the_order_in_which_a_folder_is_read_changes_nothing(entries: list[tuple[str, str, str]], random: object):
    shuffled = list(entries)
    random.shuffle(shuffled)  # type: ignore[attr-defined]

    assert listed(*(entry(*each) for each in entries)) == listed(*(entry(*each) for each in shuffled))
