"""Volumes of Kubernetes' own kinds on a machine: one suite, on a fake machine and on this kernel."""

from __future__ import annotations

import errno
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from onenode.host.linux_plain_volume_host import LinuxPlainVolumeHost
from onenode.host.payload_files import FileKind, FolderPermissions, HostPath, Names, PayloadFile
from onenode.host.volume_host import PlainVolumeHost
from onenode.testing.fake_kubelet_machine import FakeKubeletMachine
from onenode.testing.fake_plain_volume_host import FakePlainVolumeHost
from orlop.host.host_errors import HostError
from support.host.kernel_rooms import mount_room, run

OPEN = FolderPermissions(0o777)
VOLUME = ("pods", "u1", "volumes", "kubernetes.io~empty-dir", "v")
STAMP = "2026_01_31_10_00_00"
GO_ON = threading.Event()


def file(text: str, mode: int = 0o644, owner: int | None = None) -> PayloadFile:
    return PayloadFile(text.encode(), mode, owner)


class Place(Protocol):
    host: PlainVolumeHost
    outside: str

    def is_there(self, names: Names) -> bool: ...

    def is_mounted(self, names: Names) -> bool: ...

    def tenant_writes(self, names: Names) -> None: ...


class FakePlace:
    outside = "/srv"

    def __init__(self) -> None:
        self._machine = FakeKubeletMachine()
        self._machine.host_files["/srv"] = FileKind.FOLDER
        self.host: PlainVolumeHost = FakePlainVolumeHost(self._machine)

    def is_there(self, names: Names) -> bool:
        return names in self._machine.kubelet_folders | self._machine.kubelet_files

    def is_mounted(self, names: Names) -> bool:
        return bool(self._machine.mounts.get(names))

    def tenant_writes(self, names: Names) -> None:
        self._machine.kubelet_files.add(names)


class LinuxPlace:
    def __init__(self, room: Path, host: LinuxPlainVolumeHost, outside: Path) -> None:
        self._room = room
        self.host: PlainVolumeHost = host
        self.outside = str(outside)

    def is_there(self, names: Names) -> bool:
        return os.path.lexists(self._room.joinpath(*names))

    def is_mounted(self, names: Names) -> bool:
        return self._room.joinpath(*names).is_mount()

    def tenant_writes(self, names: Names) -> None:
        self._room.joinpath(*names).write_bytes(b"x")


@pytest.fixture(params=["fake", "linux"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    if request.param == "fake":
        yield FakePlace()
        return
    (tmp_path / "outside").mkdir()
    with mount_room(tmp_path / "room") as room, LinuxPlainVolumeHost(str(room)) as host:
        yield LinuxPlace(room, host, tmp_path / "outside")


def test_a_folder_on_disk_keeps_what_is_in_it_when_it_is_made_again(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.tenant_writes((*VOLUME, "x"))
    place.host.make_on_disk(VOLUME, OPEN)

    assert place.is_there((*VOLUME, "x"))
    assert not place.is_mounted(VOLUME)


def test_a_folder_in_memory_keeps_what_is_in_it_and_loses_it_with_its_mount(place: Place):
    place.host.make_in_memory(VOLUME, OPEN, 1 << 20)
    place.tenant_writes((*VOLUME, "x"))
    place.host.make_in_memory(VOLUME, OPEN, 1 << 20)
    kept = place.is_there((*VOLUME, "x")), place.is_mounted(VOLUME)
    place.host.remove(VOLUME, GO_ON)

    assert kept == (True, True)
    assert not place.is_mounted(VOLUME)
    assert not place.is_there(VOLUME)


def test_what_is_removed_is_gone_with_all_it_holds_and_may_be_removed_again(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.tenant_writes((*VOLUME, "x"))
    place.host.remove(VOLUME, GO_ON)
    place.host.remove(VOLUME, GO_ON)
    place.host.remove(("pods", "u2", "v"), GO_ON)

    assert not place.is_there(VOLUME)
    assert place.is_there(VOLUME[:-1])


def test_a_file_in_the_way_of_a_volume_is_an_error(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.tenant_writes((*VOLUME, "x"))
    for make in (
        lambda names: place.host.make_on_disk(names, OPEN),
        lambda names: place.host.make_in_memory(names, OPEN, 1 << 20),
    ):
        with pytest.raises(HostError):
            make((*VOLUME, "x", "deeper"))


def test_a_payload_is_written_once_and_replaced_as_a_whole(place: Place):
    place.host.make_in_memory(VOLUME, OPEN, 1 << 20)
    first = {("a",): file("1"), ("sub", "b"): file("2")}
    second = {("b",): file("2"), ("sub", "c"): file("3"), ("sub", "deep", "d"): file("")}

    assert place.host.write_payload(VOLUME, first, STAMP, None)
    assert place.host.payload_of(VOLUME) == {("a",): b"1", ("sub", "b"): b"2"}
    assert not place.host.write_payload(VOLUME, first, STAMP, None)
    assert place.host.write_payload(VOLUME, second, STAMP, None)
    assert place.host.payload_of(VOLUME) == {names: each.content for names, each in second.items()}


def test_an_empty_payload_is_one(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)
    place.host.write_payload(VOLUME, {}, STAMP, None)

    assert place.host.payload_of(VOLUME) == {}


def test_a_payload_needs_its_volume(place: Place):
    for act in (
        lambda: place.host.write_payload(VOLUME, {}, STAMP, None),
        lambda: place.host.payload_of(VOLUME),
        lambda: place.host.make_nested_folders(VOLUME, [("a",)]),
    ):
        with pytest.raises(HostError) as refused:
            act()
        assert refused.value.errno == errno.ENOENT


@pytest.mark.parametrize(
    "names",
    [(), ("..", "x"), ("a", "..", "..", "x"), ("/etc/x",), ("a", ""), (".",), ("a\0b",), ("..data",), ("..2026", "x")],
    ids=str,
)
def test_a_path_that_is_none_of_a_payload_is_refused_and_nothing_is_written(place: Place, names: Names):
    place.host.make_on_disk(VOLUME, OPEN)
    place.host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)

    with pytest.raises(HostError) as refused:
        place.host.write_payload(VOLUME, {("b",): file("2"), names: file("evil")}, STAMP, None)
    assert refused.value.errno == errno.EINVAL
    assert place.host.payload_of(VOLUME) == {("a",): b"1"}


def test_nested_folders_are_made_beside_a_payload_and_stay(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.host.make_nested_folders(VOLUME, [("deep", "er"), ("other",)])
    place.host.make_nested_folders(VOLUME, [("deep", "er")])
    place.host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)

    assert place.is_there((*VOLUME, "deep", "er"))
    assert place.is_there((*VOLUME, "other"))
    with pytest.raises(HostError):
        place.host.make_nested_folders(VOLUME, [("..", "up")])


def test_an_erasure_that_is_stopped_says_so_and_goes_on_later(place: Place):
    place.host.make_on_disk(VOLUME, OPEN)
    place.tenant_writes((*VOLUME, "x"))
    stop = threading.Event()
    stop.set()
    with pytest.raises(HostError) as stopped:
        place.host.remove(VOLUME, stop)
    place.host.remove(VOLUME, GO_ON)

    assert stopped.value.errno == errno.ECANCELED
    assert not place.is_there(VOLUME)


def test_paths_of_the_machine_are_looked_at_and_made(place: Place):
    folder, inner = HostPath(f"{place.outside}/new"), HostPath(f"{place.outside}/new/file")
    before = place.host.kind_at(folder)
    with pytest.raises(HostError):
        place.host.make_host_file(inner)
    place.host.make_host_folder(folder)
    place.host.make_host_folder(folder)
    place.host.make_host_file(inner)
    place.host.make_host_file(inner)

    assert before is None
    assert place.host.kind_at(folder) is FileKind.FOLDER
    assert place.host.kind_at(inner) is FileKind.FILE


# ---- on this kernel alone --------------------------------------------------------------------------------------------


@pytest.fixture
def kubelet(tmp_path: Path) -> Iterator[Path]:
    with mount_room(tmp_path / "room") as room:
        yield room


def shown(path: Path) -> tuple[str, int, int]:
    found = path.lstat()
    return oct(found.st_mode & 0o7777), found.st_uid, found.st_gid


def test_a_payload_has_kubernetes_layout_and_its_modes(kubelet: Path):
    payload = {("run.sh",): file("x", 0o755), ("sub", "key"): file("y", 0o400, owner=1000)}
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_on_disk(VOLUME, OPEN)
        host.write_payload(VOLUME, payload, STAMP, None)
        top = kubelet.joinpath(*VOLUME)

        assert sorted(os.listdir(top)) == [f"..{STAMP}.0", "..data", "run.sh", "sub"]  # noqa: PTH208 - names alone
        assert [str((top / name).readlink()) for name in ("..data", "run.sh", "sub")] == [
            f"..{STAMP}.0",
            "..data/run.sh",
            "..data/sub",
        ]
        assert (top / "sub/key").read_text() == "y"
        assert shown(top) == ("0o777", 0, 0)
        assert shown(top / f"..{STAMP}.0") == ("0o755", 0, 0)
        assert shown(top / f"..{STAMP}.0/run.sh") == ("0o755", 0, 0)
        assert shown(top / f"..{STAMP}.0/sub") == ("0o755", 0, 0)
        assert shown(top / f"..{STAMP}.0/sub/key") == ("0o400", 1000, 0)


def test_a_group_may_read_a_payload_and_nothing_else_changes(kubelet: Path):
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_in_memory(VOLUME, FolderPermissions(0o3777, 2000), 1 << 20)
        host.write_payload(VOLUME, {("sub", "key"): file("y", 0o600)}, STAMP, 2000)
        top = kubelet.joinpath(*VOLUME)

        assert shown(top) == ("0o3777", 0, 2000)
        assert shown(top / f"..{STAMP}.0") == ("0o2755", 0, 2000)
        assert shown(top / f"..{STAMP}.0/sub/key") == ("0o640", 0, 2000)
        assert shown(top / "sub")[2] == 2000


def test_what_is_in_memory_is_limited_and_never_swapped(kubelet: Path):
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_in_memory(VOLUME, OPEN, 1 << 20)
        top = kubelet.joinpath(*VOLUME)
        kind, options = (
            subprocess.run(
                ["findmnt", "-n", "-o", what, top], capture_output=True, text=True, check=True
            ).stdout.strip()
            for what in ("FSTYPE", "OPTIONS")
        )
        with pytest.raises(OSError, match="No space left"):
            (top / "large").write_bytes(b"x" * (2 << 20))

        assert kind == "tmpfs"
        assert {"size=1024k", "noswap", "nodev"} <= set(options.split(","))
        host.remove(VOLUME, GO_ON)


def test_readers_see_all_of_one_version(kubelet: Path):
    """One of many names is read through `..data` again and again while versions come and go."""
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_in_memory(VOLUME, OPEN, 1 << 20)
        top, names = kubelet.joinpath(*VOLUME), [f"k{number}" for number in range(8)]
        host.write_payload(VOLUME, {(name,): file("0") for name in names}, STAMP, None)
        over, torn = threading.Event(), []

        def read() -> None:
            while not over.is_set():
                # A version may be removed between any two of these calls, also while `..data` is being followed to it.
                try:
                    with _opened(top / "..data") as version:
                        found = {_text(name, version) for name in names}
                except FileNotFoundError:
                    continue
                torn.extend([found] if len(found) > 1 else [])

        reader = threading.Thread(target=read)
        reader.start()
        for number in range(30):
            host.write_payload(VOLUME, {(name,): file(str(number)) for name in names}, STAMP, None)
        over.set()
        reader.join()

        assert torn == []
        assert len(os.listdir(top)) == len(names) + 2  # noqa: PTH208 - names alone


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield opened
    finally:
        os.close(opened)


def _text(name: str, folder: int) -> bytes:
    opened = os.open(name, os.O_RDONLY, dir_fd=folder)
    try:
        return os.read(opened, 100)
    finally:
        os.close(opened)


def test_what_a_killed_write_left_is_gone_after_the_next(kubelet: Path):
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_on_disk(VOLUME, OPEN)
        top = kubelet.joinpath(*VOLUME)
        host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)
        (top / "..half").mkdir()
        (top / "..half/a").write_text("2")
        (top / "..data_tmp").symlink_to("..half")
        (top / "old").symlink_to("..data/old")
        host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)

        assert sorted(os.listdir(top)) == [f"..{STAMP}.0", "..data", "a"]  # noqa: PTH208 - names alone


@pytest.mark.parametrize("target", ["/etc", "../../..", "..data", "..", "missing", "a/b"])
def test_a_data_link_that_leads_elsewhere_is_replaced_and_never_followed(kubelet: Path, target: str):
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_on_disk(VOLUME, OPEN)
        top = kubelet.joinpath(*VOLUME)
        (top / "..data").symlink_to(target)
        host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None)

        assert (top / "a").read_text() == "1"
        assert str((top / "..data").readlink()) == f"..{STAMP}.0"


def test_an_erasure_follows_no_link_and_crosses_no_mount(kubelet: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "keep").write_text("x")
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        host.make_on_disk(VOLUME, OPEN)
        top = kubelet.joinpath(*VOLUME)
        (top / "link").symlink_to(precious)
        (top / "mounted").mkdir()
        run("mount", "--bind", precious, top / "mounted")
        host.remove(VOLUME, GO_ON)

    assert not top.exists()
    assert (precious / "keep").read_text() == "x"


def test_a_volume_that_is_a_link_is_not_used_and_its_removal_leaves_what_it_leads_to(kubelet: Path, tmp_path: Path):
    precious = tmp_path / "precious"
    precious.mkdir()
    kubelet.joinpath(*VOLUME[:-1]).mkdir(parents=True)
    kubelet.joinpath(*VOLUME).symlink_to(precious)
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        for act in (
            lambda: host.make_on_disk(VOLUME, OPEN),
            lambda: host.make_in_memory(VOLUME, OPEN, 1 << 20),
            lambda: host.write_payload(VOLUME, {("a",): file("1")}, STAMP, None),
        ):
            with pytest.raises(HostError):
                act()
        host.remove(VOLUME, GO_ON)

    assert list(precious.iterdir()) == []
    assert not kubelet.joinpath(*VOLUME).is_symlink()


def test_what_died_half_made_is_removed_with_its_volume(kubelet: Path):
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        folder = kubelet.joinpath(*VOLUME[:-1])
        (folder / ".new-v").mkdir(parents=True)
        (folder / ".rest-v").mkdir()
        (folder / ".rest-v/0").write_text("x")
        host.remove(VOLUME, GO_ON)

        assert list(folder.iterdir()) == []


def test_kinds_of_paths_are_told_apart_and_links_are_followed(tmp_path: Path, kubelet: Path):
    (tmp_path / "link").symlink_to("/dev/null")
    os.mkfifo(tmp_path / "fifo")
    with LinuxPlainVolumeHost(str(kubelet)) as host:
        assert host.kind_at(HostPath(str(tmp_path / "link"))) is FileKind.CHARACTER_DEVICE
        assert host.kind_at(HostPath(str(tmp_path / "fifo"))) is FileKind.OTHER
        assert host.kind_at(HostPath("/dev/null/x")) is None


NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=60).filter(
    lambda name: not name.startswith("..") and name not in {".", ".."} and len(name.encode()) <= 255
)


@settings(max_examples=25)
@given(
    st.lists(
        st.dictionaries(st.tuples(NAMES) | st.tuples(st.just("dir"), NAMES), st.binary(max_size=20), max_size=5),
        min_size=1,
        max_size=3,
    )
)
def test_any_payload_is_read_back_and_leaves_nothing_of_the_one_before(tmp_path_factory, payloads):
    folder = tmp_path_factory.mktemp("kubelet")
    with LinuxPlainVolumeHost(str(folder)) as host:
        host.make_on_disk(("v",), OPEN)
        for contents in payloads:
            if ("dir",) in contents:
                continue  # a file and a folder of one name
            host.write_payload(
                ("v",), {names: PayloadFile(each, 0o644) for names, each in contents.items()}, STAMP, None
            )
            entries = {name for name in os.listdir(folder / "v") if not name.startswith("..")}  # noqa: PTH208

            assert host.payload_of(("v",)) == contents
            assert entries == {names[0] for names in contents}
