"""Proves with real sockets, processes and kills that a path has one server, and that nothing else is ever removed."""

from __future__ import annotations

import os
import signal
import socket
import stat
import subprocess
import sys
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import orlop
from orlop.foundation.unix_socket import (
    SocketInUse,
    SocketUnusable,
    bind_root_only,
    claim_socket,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

# Claims the path when told by a line on stdin, says how it went, and stays until stdin ends.
CLAIMER = """
import sys
from pathlib import Path
from orlop.foundation.unix_socket import SocketInUse, bind_root_only, claim_socket
print("ready", flush=True)
sys.stdin.readline()
try:
    claim = claim_socket(Path(sys.argv[1]))
    listener = bind_root_only(claim)
    print("won", flush=True)
except SocketInUse as error:
    print("lost:", error, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[subprocess.Popen[str]]:
    environment = {**os.environ, "PYTHONPATH": str(Path(orlop.__file__).parents[1])}
    command = [sys.executable, "-c", CLAIMER, str(path)]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert next_line(process) == "ready"
            yield process
        finally:
            process.kill()


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout
    return process.stdout.readline().strip()


def let_claim(process: subprocess.Popen[str]) -> None:
    assert process.stdin
    process.stdin.write("now\n")
    process.stdin.flush()


def connects(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as client:
        return client.connect_ex(str(path)) == 0


def leave_stale_socket(path: Path, kind: int = socket.SOCK_STREAM) -> None:
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(path))


def test_a_claimed_path_can_be_bound_and_is_gone_after_release(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path) as claim, closing(bind_root_only(claim)):
        assert connects(path)
    assert not path.exists()


def test_the_lock_file_stays_and_only_its_owner_may_touch_it(short_folder: Path):
    path = short_folder / "csi.sock"
    claim_socket(path).release()
    assert [entry.name for entry in short_folder.iterdir()] == ["csi.sock.lock"]
    assert stat.S_IMODE((short_folder / "csi.sock.lock").stat().st_mode) == 0o600


def test_a_path_can_be_claimed_again_after_release(short_folder: Path):
    for _ in range(3):
        with claim_socket(short_folder / "csi.sock") as claim:
            bind_root_only(claim).close()


def test_releasing_twice_does_not_take_the_next_owners_socket(short_folder: Path):
    path = short_folder / "csi.sock"
    first = claim_socket(path)
    first.release()
    with claim_socket(path) as second, closing(bind_root_only(second)):
        first.release()
        assert connects(path)


@pytest.mark.parametrize("length", [107, 108])
def test_a_path_may_have_107_bytes_and_no_more(short_folder: Path, length: int):
    path = short_folder / ("s" * (length - len(str(short_folder)) - 1))
    if length == 107:
        with claim_socket(path) as claim:
            bind_root_only(claim).close()
        return
    with pytest.raises(SocketUnusable, match=r"has 108 bytes: the kernel allows 107\. Choose a shorter path"):
        claim_socket(path)


def test_the_length_of_a_path_is_counted_in_bytes(short_folder: Path):
    with pytest.raises(SocketUnusable, match="the kernel allows 107"):
        claim_socket(short_folder / ("ö" * 50))


def test_a_zero_byte_in_the_path_is_refused(short_folder: Path):
    with pytest.raises(SocketUnusable, match="holds a zero byte"):
        claim_socket(short_folder / "a\0b")


def test_a_missing_folder_is_an_error_and_is_not_created(short_folder: Path):
    with pytest.raises(SocketUnusable, match=r"The folder .*/missing of the socket csi.sock does not exist"):
        claim_socket(short_folder / "missing" / "csi.sock")
    assert list(short_folder.iterdir()) == []


def plant_file(path: Path) -> None:
    path.write_text("precious")


def plant_link_to_socket(path: Path) -> None:
    leave_stale_socket(path.with_name("real.sock"))
    path.symlink_to("real.sock")


@pytest.mark.parametrize("plant", [plant_file, Path.mkdir, os.mkfifo, plant_link_to_socket])
def test_what_is_no_socket_is_refused_and_left_as_it_was(short_folder: Path, plant: object):
    path = short_folder / "csi.sock"
    plant(path)  # type: ignore[operator]
    before = path.lstat()
    with pytest.raises(SocketUnusable, match=r"csi\.sock exists and is no socket\. Remove it, or choose another path"):
        claim_socket(path)
    assert os.path.samestat(before, path.lstat())
    assert not (short_folder / "csi.sock.lock").exists()


def test_a_stale_socket_is_replaced(short_folder: Path):
    path = short_folder / "csi.sock"
    leave_stale_socket(path)
    with claim_socket(path) as claim, closing(bind_root_only(claim)):
        assert connects(path)


def test_a_stale_datagram_socket_is_replaced(short_folder: Path):
    path = short_folder / "csi.sock"
    leave_stale_socket(path, socket.SOCK_DGRAM)
    with claim_socket(path) as claim, closing(bind_root_only(claim)):
        assert connects(path)


@pytest.mark.parametrize("kind", [socket.SOCK_STREAM, socket.SOCK_DGRAM])
def test_a_server_that_takes_no_lock_is_not_robbed_of_its_socket(short_folder: Path, kind: int):
    path = short_folder / "csi.sock"
    with socket.socket(socket.AF_UNIX, kind) as listener:
        listener.bind(str(path))
        if kind == socket.SOCK_STREAM:
            listener.listen()
        with pytest.raises(SocketInUse, match=r"Another server listens on the socket .*/csi\.sock\. Stop it"):
            claim_socket(path)
        assert path.is_socket()


def test_a_server_too_busy_to_accept_is_alive(short_folder: Path):
    path = short_folder / "csi.sock"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(str(path))
        listener.listen(0)
        first.connect(str(path))
        with pytest.raises(SocketInUse):
            claim_socket(path)


def test_after_a_failed_claim_the_lock_is_free(short_folder: Path):
    path = short_folder / "csi.sock"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        with pytest.raises(SocketInUse):
            claim_socket(path)
    claim_socket(path).release()


def test_a_second_claim_in_the_same_process_is_refused_too(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path), pytest.raises(SocketInUse, match=f"claimed by process {os.getpid()}, which holds"):
        claim_socket(path)


def test_a_claim_keeps_other_processes_away_and_they_are_told_whose_it_is(short_folder: Path):
    path = short_folder / "csi.sock"
    with another_process(path) as owner:
        let_claim(owner)
        assert next_line(owner) == "won"
        with pytest.raises(SocketInUse, match=rf"csi\.sock is claimed by process {owner.pid}, which holds .*\.lock"):
            claim_socket(path)


def test_the_socket_of_a_killed_process_is_taken_over(short_folder: Path):
    path = short_folder / "csi.sock"
    with another_process(path) as owner:
        let_claim(owner)
        assert next_line(owner) == "won"
        owner.send_signal(signal.SIGKILL)
        owner.wait()
        assert path.is_socket()
        with claim_socket(path) as claim, closing(bind_root_only(claim)):
            assert connects(path)


@pytest.mark.parametrize("stale", [False, True], ids=["free path", "stale socket"])
def test_of_many_processes_that_claim_at_once_exactly_one_wins(short_folder: Path, stale: bool):  # noqa: FBT001 - a case
    path = short_folder / "csi.sock"
    if stale:
        leave_stale_socket(path)
    with another_process(path) as a, another_process(path) as b, another_process(path) as c, another_process(path) as d:
        processes = [a, b, c, d]
        for process in processes:
            let_claim(process)
        outcomes = [next_line(process) for process in processes]
        assert sorted(outcome.split()[0] for outcome in outcomes) == ["lost:", "lost:", "lost:", "won"]
        assert connects(path)


def test_a_socket_that_replaced_ours_is_not_removed(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path) as claim:
        bind_root_only(claim).close()
        path.unlink()
        leave_stale_socket(path)
    assert path.is_socket()


def test_a_socket_nobody_noted_as_bound_is_not_removed(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path):
        leave_stale_socket(path)
    assert path.is_socket()


def test_a_socket_bound_by_a_server_itself_is_removed_once_noted(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path) as claim, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        claim.bound()
        claim.bound()
    assert not path.exists()


def test_a_socket_already_removed_by_its_server_is_no_error(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path) as claim, closing(bind_root_only(claim)):
        path.unlink()
    assert not path.exists()


def test_a_folder_that_became_a_file_is_no_error_at_release_and_the_lock_is_free(short_folder: Path):
    folder = short_folder / "folder"
    folder.mkdir()
    claim = claim_socket(folder / "csi.sock")
    bind_root_only(claim).close()
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    folder.write_text("")
    before = len(list(Path("/proc/self/fd").iterdir()))

    claim.release()

    assert len(list(Path("/proc/self/fd").iterdir())) == before - 2


def test_noting_a_socket_that_was_not_bound_is_an_error(short_folder: Path):
    with (
        claim_socket(short_folder / "csi.sock") as claim,
        pytest.raises(SocketUnusable, match="No socket was bound at"),
    ):
        claim.bound()


def test_a_path_taken_between_claim_and_bind_is_an_error(short_folder: Path):
    path = short_folder / "csi.sock"
    with claim_socket(path) as claim:
        leave_stale_socket(path)
        with pytest.raises(SocketUnusable, match=r"csi\.sock cannot be bound: Address already in use"):
            bind_root_only(claim)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_root_only_socket_is_so_whatever_the_umask_allows(short_folder: Path):
    path = short_folder / "http.sock"
    before = os.umask(0)
    try:
        with claim_socket(path) as claim, closing(bind_root_only(claim)):
            assert mode_of(path) == 0o600
    finally:
        os.umask(before)


def test_a_lock_that_is_a_symbolic_link_is_not_followed(short_folder: Path):
    (short_folder / "csi.sock.lock").symlink_to("victim")
    with pytest.raises(SocketUnusable, match=r"The lock file .*csi\.sock\.lock cannot be opened: Too many levels"):
        claim_socket(short_folder / "csi.sock")
    assert not (short_folder / "victim").exists()


def test_a_lock_that_is_a_hard_link_to_another_file_leaves_that_file_as_it_was(short_folder: Path):
    victim = short_folder / "victim"
    victim.write_text("precious")
    (short_folder / "csi.sock.lock").hardlink_to(victim)
    with pytest.raises(SocketUnusable, match="is not a plain file of ours"):
        claim_socket(short_folder / "csi.sock")
    assert victim.read_text() == "precious"


def test_no_file_descriptor_is_left_open_by_claims_that_succeed_or_fail(short_folder: Path):
    path = short_folder / "csi.sock"
    before = len(list(Path("/proc/self/fd").iterdir()))
    with claim_socket(path) as claim, closing(bind_root_only(claim)), pytest.raises(SocketInUse):
        claim_socket(path)
    (short_folder / "dir.sock.lock").mkdir()
    with pytest.raises(SocketUnusable):
        claim_socket(short_folder / "dir.sock")
    assert len(list(Path("/proc/self/fd").iterdir())) == before
