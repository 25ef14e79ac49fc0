"""A folder as a shared mount of its own: on this kernel, whatever it lies on."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from onenode.host.self_bind_mount import bind_on_itself, is_bound_on_itself, mounted_below, unbind, unmount_below
from orlop.host.host_errors import HostError
from support.host import kernel_rooms
from support.host.kernel_rooms import descriptor, mount_points_of, room

__all__ = ["room"]


def own(folder: Path) -> list[str]:
    return [point for point in mount_points_of("self") if point.startswith(str(folder))]


def propagation(folder: Path) -> str:
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    (line,) = (line for line in lines if line.split()[4] == str(folder))
    return "shared" if " shared:" in line.partition(" - ")[0] else "private"


@pytest.fixture(params=["shared", "private"])
def folder(request: pytest.FixtureRequest, room: Path) -> Path:
    kernel_rooms.run("mount", f"--make-{request.param}", room)
    made = room / "state"
    made.mkdir()
    return made


def test_it_is_bound_once_and_shared(folder: Path):
    assert (bind_on_itself(str(folder)), bind_on_itself(str(folder))) == (True, False)
    assert propagation(folder) == "shared"
    assert is_bound_on_itself(str(folder))


def test_what_is_mounted_below_goes_from_the_inside_out_and_then_the_folder_itself(folder: Path):
    bind_on_itself(str(folder))
    for path in ("a", "a/b", "a/b", "c"):
        (folder / path).mkdir(exist_ok=True)
        kernel_rooms.run("mount", "-t", "tmpfs", "tmpfs", folder / path)

    assert sorted(unmount_below(str(folder))) == ["a", "a/b", "c"]
    assert not mounted_below(str(folder))
    assert (unbind(str(folder)), unbind(str(folder))) == (True, False)
    assert own(folder) == []


def test_a_folder_with_something_mounted_below_it_stays_bound(folder: Path):
    bind_on_itself(str(folder))
    (folder / "a").mkdir()
    kernel_rooms.run("mount", "-t", "tmpfs", "tmpfs", folder / "a")
    with pytest.raises(HostError, match="cannot be unmounted"):
        unbind(str(folder))

    assert own(folder) == [str(folder), str(folder / "a")]


def test_what_is_in_use_is_told_and_nothing_is_detached(folder: Path):
    bind_on_itself(str(folder))
    (folder / "a").mkdir()
    kernel_rooms.run("mount", "-t", "tmpfs", "tmpfs", folder / "a")
    with descriptor(folder / "a"), pytest.raises(HostError, match="a process stands in it"):
        unmount_below(str(folder))

    assert str(folder / "a") in own(folder)
    unmount_below(str(folder))


def test_a_folder_in_which_somebody_listens_on_a_socket_stays_bound_and_says_what_to_do(folder: Path):
    bind_on_itself(str(folder))
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(folder / "csi.sock"))
        with pytest.raises(HostError, match=r"listens on a socket there\. End that, and try again\."):
            unbind(str(folder))
        assert own(folder) == [str(folder)]

    assert unbind(str(folder))


def test_the_admins_own_mount_at_the_folder_is_never_taken_away(folder: Path):
    kernel_rooms.run("mount", "-t", "tmpfs", "tmpfs", folder)
    before = is_bound_on_itself(str(folder)), unbind(str(folder))
    bind_on_itself(str(folder))

    assert before == (False, False)
    assert (unbind(str(folder)), unbind(str(folder))) == (True, False)
    assert own(folder) == [str(folder)]


def test_what_the_admin_has_mounted_below_it_is_seen_in_it(folder: Path):
    (folder / "disk").mkdir()
    kernel_rooms.run("mount", "-t", "tmpfs", "tmpfs", folder / "disk")
    (folder / "disk" / "file").write_text("here")
    bind_on_itself(str(folder))

    assert (folder / "disk" / "file").read_text() == "here"


def test_a_folder_that_is_missing_is_named(tmp_path: Path):
    with pytest.raises(HostError, match=f"The folder {tmp_path}/none cannot be opened"):
        bind_on_itself(f"{tmp_path}/none")
