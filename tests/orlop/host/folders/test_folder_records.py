from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from conftest import SOAK
from orlop.host.folders import folder_records
from orlop.host.folders.folder_records import HALF_MADE, RECORD, RecordedFolder, Stranger, create, list_shelf, move
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from support.host.kernel_rooms import descriptor, disk_image, run

ROUNDS = 50 if SOAK else 3
MANY = 10_000 if SOAK else 500


@pytest.fixture
def workdir(room: Path) -> Path:
    """Needs root outside of user namespaces, as the room does: for trusted attributes."""
    (room / "work").mkdir()
    return room / "work"


@pytest.fixture
def live(workdir: Path) -> Iterator[int]:
    yield from opened_shelf(workdir, "live")


@pytest.fixture
def retained(workdir: Path) -> Iterator[int]:
    yield from opened_shelf(workdir, "retained")


def opened_shelf(workdir: Path, name: str) -> Iterator[int]:
    with descriptor(workdir) as opened:
        shelf = folder_records.open_shelf(opened, name)
    try:
        yield shelf
    finally:
        os.close(shelf)


def refused(call, *arguments: object) -> int | None:
    with pytest.raises(HostError) as caught:
        call(*arguments)
    assert str(caught.value).endswith(".")
    return caught.value.errno


def test_a_shelf_is_for_root_alone_also_when_it_was_not_before(workdir: Path):
    (workdir / "live").mkdir(mode=0o777)

    for name in ("live", "trash"):
        for _ in opened_shelf(workdir, name):
            assert stat.S_IMODE((workdir / name).stat().st_mode) == 0o700


def test_a_shelf_that_is_a_link_or_a_mount_is_refused(workdir: Path):
    (workdir / "real").mkdir()
    (workdir / "live").symlink_to("real")
    (workdir / "trash").mkdir()
    run("mount", "-t", "tmpfs", "tmpfs", workdir / "trash")

    with descriptor(workdir) as opened:
        assert refused(folder_records.open_shelf, opened, "live") == errno.ENOTDIR
        assert refused(folder_records.open_shelf, opened, "trash") == errno.EXDEV


def test_a_new_folder_has_its_mode_and_its_record(live: int, workdir: Path):
    create(live, "a", b"who and when", 0o1777)

    assert stat.S_IMODE((workdir / "live" / "a").stat().st_mode) == 0o1777
    assert folder_records.read_record(live, "a") == b"who and when"
    assert list_shelf(live).folders == (RecordedFolder("a", b"who and when"),)


def test_a_name_that_is_taken_is_refused_and_left_alone(live: int, workdir: Path):
    create(live, "a", b"first", 0o700)
    (workdir / "live" / "a" / "file").write_text("x")

    assert refused(create, live, "a", b"second", 0o777) == errno.EEXIST

    assert folder_records.read_record(live, "a") == b"first"
    assert os.listdir(live) == ["a"]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a"])
def test_nothing_is_made_outside_of_the_shelf(live: int, workdir: Path, name: str):
    if name not in {"", ".", ".."}:
        assert refused(create, live, name, b"", 0o700) == errno.EINVAL
    assert refused(folder_records.read_record, live, name) == errno.EINVAL
    assert [path.name for path in workdir.iterdir()] == ["live"]


def test_what_died_half_made_is_known_and_does_not_stand_in_the_way(live: int):
    os.mkdir(HALF_MADE + "a", dir_fd=live)

    assert list_shelf(live).half_made == ("a",)
    create(live, "a", b"record", 0o700)
    assert list_shelf(live).half_made == ()
    assert list_shelf(live).folders == (RecordedFolder("a", b"record"),)


def test_what_died_half_made_can_be_removed(live: int):
    os.mkdir(HALF_MADE + "a", dir_fd=live)

    assert folder_records.remove_half_made(live, "a")
    assert not folder_records.remove_half_made(live, "a")
    assert os.listdir(live) == []


def test_a_folder_never_has_its_name_without_what_prepares_it(live: int):
    seen = []

    def prepare(folder: int) -> None:
        seen.append((os.listdir(live), os.fstat(folder).st_ino))
        if len(seen) == 1:
            raise HostError(errno.EDQUOT, "No.")

    assert refused(create, live, "a", b"", 0o700, prepare) == errno.EDQUOT
    assert os.listdir(live) == []
    create(live, "a", b"", 0o700, prepare)

    assert [names for names, _ in seen] == [[HALF_MADE + "a"]] * 2
    assert os.stat("a", dir_fd=live).st_ino == seen[1][1]


def test_a_record_is_replaced_whole(live: int):
    create(live, "a", b"long" * 100, 0o700)

    folder_records.write_record(live, "a", b"short")

    assert folder_records.read_record(live, "a") == b"short"


def test_a_record_that_does_not_fit_is_refused_and_the_old_one_stays(live: int):
    create(live, "a", b"old", 0o700)

    with pytest.raises(HostError, match="The record of a cannot be written"):
        folder_records.write_record(live, "a", b"x" * 70_000)

    assert folder_records.read_record(live, "a") == b"old"


def test_a_folder_without_record_and_a_missing_one_are_told_apart(live: int):
    os.mkdir("bare", dir_fd=live)

    assert refused(folder_records.read_record, live, "bare") == errno.ENODATA
    assert refused(folder_records.read_record, live, "missing") == errno.ENOENT
    assert refused(folder_records.write_record, live, "missing", b"") == errno.ENOENT


def test_a_folder_moves_with_its_record_and_its_content(live: int, retained: int, workdir: Path):
    create(live, "a", b"record", 0o700)
    (workdir / "live" / "a" / "file").write_text("x")

    move(live, "a", retained, "12h,a")

    assert list_shelf(live).folders == ()
    assert list_shelf(retained).folders == (RecordedFolder("12h,a", b"record"),)
    assert (workdir / "retained" / "12h,a" / "file").read_text() == "x"


def test_a_move_replaces_nothing_not_even_an_empty_folder(live: int, retained: int):
    create(live, "a", b"1", 0o700)
    create(retained, "a", b"2", 0o700)

    assert refused(move, live, "a", retained, "a") == errno.EEXIST
    assert refused(move, live, "missing", retained, "b") == errno.ENOENT
    assert folder_records.read_record(live, "a") == b"1"
    assert folder_records.read_record(retained, "a") == b"2"


def test_a_folder_that_something_is_mounted_on_is_not_moved(live: int, retained: int, workdir: Path):
    create(live, "a", b"1", 0o700)
    run("mount", "-t", "tmpfs", "tmpfs", workdir / "live" / "a")

    assert refused(move, live, "a", retained, "a") == errno.EBUSY
    assert refused(folder_records.read_record, live, "a") == errno.EXDEV


def test_strangers_are_named_with_the_reason_and_left_alone(live: int, workdir: Path):
    create(live, "ours", b"1", 0o700)
    create(live, "covered", b"1", 0o700)
    run("mount", "-t", "tmpfs", "tmpfs", workdir / "live" / "covered")
    os.mkdir("bare", dir_fd=live)
    (workdir / "live" / "file").write_text("")
    (workdir / "live" / "link").symlink_to("ours")
    os.mkfifo("fifo", dir_fd=live)
    os.mkdir(b"\xff", dir_fd=live)

    listing = list_shelf(live)

    assert listing.folders == (RecordedFolder("ours", b"1"),)
    assert set(listing.strangers) == {
        Stranger("covered", "something is mounted on it"),
        Stranger("bare", "it has no record"),
        Stranger("\udcff", "it has no record"),
        Stranger("file", "it is no folder"),
        Stranger("fifo", "it is no folder"),
        Stranger("link", "it is no folder"),
    }


def test_a_tenant_cannot_reach_the_record(live: int, workdir: Path):
    create(live, "a", b"1", 0o777)

    assert RECORD.startswith("trusted.")
    assert os.listxattr(workdir / "live" / "a") == [RECORD]  # as root; others do not even see its name


def test_many_folders_are_listed_whole(live: int):
    for number in range(MANY):
        os.mkdir(f"f{number}", dir_fd=live)
        os.setxattr(f"/proc/self/fd/{live}/f{number}", RECORD, str(number).encode())

    assert set(list_shelf(live).folders) == {RecordedFolder(f"f{n}", str(n).encode()) for n in range(MANY)}


class Book:
    """The shelves of one disk, and what they must hold."""

    def __init__(self, disk: Path, random: Random) -> None:
        self.disk = disk
        self.random = random
        self.expected: dict[str, dict[str, bytes]] = {"live": {}, "retained": {}, "trash": {}}

    def change(self, number: int) -> None:
        shelf = self.random.choice(sorted(self.expected))
        record = self.random.randbytes(self.random.choice([1, 160, 900]))
        with descriptor(self.disk) as workdir:
            shelves = {name: folder_records.open_shelf(workdir, name) for name in self.expected}
        names = sorted(self.expected[shelf])
        if not names or self.random.random() < 0.4:
            create(shelves["live"], f"f{number}", record, 0o777)
            folder_records.make_durable(shelves["live"], "live")
            self.expected["live"][f"f{number}"] = record
        elif self.random.random() < 0.5:
            name = self.random.choice(names)
            folder_records.write_record(shelves[shelf], name, record)
            self.expected[shelf][name] = record
        else:
            name, other = self.random.choice(names), self.random.choice(sorted(self.expected))
            move(shelves[shelf], name, shelves[other], f"m{number}")
            folder_records.make_durable(shelves[other], other)
            self.expected[other][f"m{number}"] = self.expected[shelf].pop(name)
        for opened in shelves.values():
            os.close(opened)

    def found(self) -> dict[str, dict[str, bytes]]:
        result = {}
        with descriptor(self.disk) as workdir:
            for name in self.expected:
                shelf = folder_records.open_shelf(workdir, name)
                listing = list_shelf(shelf)
                os.close(shelf)
                assert listing.strangers == ()
                assert listing.half_made == ()
                result[name] = {folder.name: folder.record for folder in listing.folders}
        return result


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_all_that_was_acknowledged_survives_power_loss(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        book = Book(disk.folder, Random(file_system))
        number = 0
        for _ in range(ROUNDS):
            for _ in range(book.random.randint(1, 12)):
                number += 1
                book.change(number)
            disk.cut_power()
            assert book.found() == book.expected


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
def test_what_a_killed_process_could_not_synchronise_is_durable_once_another_has_started(
    tmp_path: Path, file_system: str, monkeypatch: pytest.MonkeyPatch
):
    with disk_image(tmp_path / "room", file_system) as disk:
        book = Book(disk.folder, Random(file_system))
        book.change(0)
        shelf = next(shelves := opened_shelf(disk.folder, "live"))
        with monkeypatch.context() as killed_before_it:
            killed_before_it.setattr(os, "fsync", lambda _descriptor: None)
            create(shelf, "new", b"record", 0o777)
            folder_records.write_record(shelf, "f0", b"changed")
        shelves.close()
        book.expected["live"] = {"new": b"record", "f0": b"changed"}

        assert book.found() == book.expected  # opens the shelves anew
        disk.cut_power()

        assert book.found() == book.expected


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
@pytest.mark.parametrize("change", ["create", "write_record", "move"])
def test_a_change_that_a_failing_disk_has_lost_is_not_acknowledged(
    tmp_path: Path, file_system: str, change: str, monkeypatch: pytest.MonkeyPatch
):
    with disk_image(tmp_path / "room", file_system) as disk:
        shelf = next(shelves := opened_shelf(disk.folder, "live"))
        create(shelf, "old", b"record", 0o777)
        folder_records.make_durable(shelf, "live")
        changes = {
            "create": lambda: create(shelf, "new", b"record", 0o777),
            "write_record": lambda: folder_records.write_record(shelf, "old", b"changed"),
            "move": lambda: move(shelf, "old", shelf, "new"),
        }
        synchronise = os.fsync

        def after_the_disk_has_failed(opened: int) -> None:
            disk.lose_power()
            synchronise(opened)

        with monkeypatch.context() as failing:
            failing.setattr(os, "fsync", after_the_disk_has_failed)
            with pytest.raises(HostError, match="power loss"):
                changes[change]()
                folder_records.make_durable(shelf, "live")
        shelves.close()
        disk.switch_off()
        disk.switch_on()

        for again in opened_shelf(disk.folder, "live"):
            assert list_shelf(again).folders == (RecordedFolder("old", b"record"),)


class PowerFails(Exception):
    """At a chosen step."""


STEPS = {"mkdir": os, "fchmod": os, "setxattr": os, "renameat2": system_calls}


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
@pytest.mark.parametrize("step", STEPS)
def test_power_that_fails_after_any_step_of_making_a_folder_leaves_no_folder_without_record(
    tmp_path: Path, file_system: str, step: str, monkeypatch: pytest.MonkeyPatch
):
    with disk_image(tmp_path / "room", file_system) as disk:
        shelf = next(shelves := opened_shelf(disk.folder, "live"))
        real = getattr(STEPS[step], step)

        def reach_the_disk_and_fail(*arguments: object, **options: object) -> None:
            real(*arguments, **options)
            run("sync", "--file-system", disk.folder)
            raise PowerFails

        with monkeypatch.context() as failing:
            failing.setattr(STEPS[step], step, reach_the_disk_and_fail)
            with pytest.raises(PowerFails):
                create(shelf, "new", b"record", 0o777)
        shelves.close()
        disk.cut_power()

        for again in opened_shelf(disk.folder, "live"):
            listing = list_shelf(again)
            assert listing.strangers == ()
            assert (listing.half_made, listing.folders) in {
                (("new",), ()),
                ((), (RecordedFolder("new", b"record"),)),
            }
            if listing.half_made:
                create(again, "new", b"record", 0o777)
                assert list_shelf(again).folders == (RecordedFolder("new", b"record"),)


@pytest.mark.parametrize("flag", ["i", "a"])
def test_a_folder_that_its_tenant_made_immutable_or_append_only_is_moved_and_recorded(
    workdir: Path, live: int, retained: int, flag: str
):
    create(live, "v", b"one", 0o777)
    run("chattr", f"+{flag}", str(workdir / "live/v"))
    move(live, "v", retained, "buried")
    run("chattr", f"+{flag}", str(workdir / "retained/buried"))
    folder_records.write_record(retained, "buried", b"two")
    assert list_shelf(live).folders == ()
    assert list_shelf(retained).folders == (RecordedFolder("buried", b"two"),)


def test_a_shelf_that_an_admin_made_immutable_stays_so(workdir: Path, live: int, retained: int):
    create(live, "v", b"one", 0o777)
    run("chattr", "+i", str(workdir / "retained"))
    try:
        assert refused(move, live, "v", retained, "buried") == errno.EPERM
    finally:
        run("chattr", "-i", str(workdir / "retained"))
