"""Which node is asked, and what is told where none answers."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from orlop.admin.afterlife import Afterlife
from orlop.admin.node_socket import NodeError, NodeUnreachable, SeveralNodes, find_socket
from orlop.admin.up_state import UpState, held, recorded
from orlop.foundation.message_socket import encoded


def socket_of(sockets: Path, driver: str) -> Path:
    (sockets / driver).mkdir(parents=True)
    (sockets / driver / "admin.sock").touch()
    return sockets / driver / "admin.sock"


def test_the_given_socket_comes_before_the_default_and_that_before_the_only_other(tmp_path: Path):
    other = socket_of(tmp_path, "scratch.example.com")
    assert find_socket(None, tmp_path) == other
    default = socket_of(tmp_path, "csi.orlop.dev")
    assert find_socket(None, tmp_path) == default
    assert find_socket("/somewhere.sock", tmp_path) == Path("/somewhere.sock")


def test_a_socket_that_nobody_listens_on_is_passed_over(short_folder: Path):
    dead = socket_of(short_folder, "csi.orlop.dev")
    living = short_folder / "b" / "admin.sock"
    living.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(living))
        listener.listen()
        assert find_socket(None, short_folder) == living
    assert find_socket(None, short_folder) == dead


def test_the_socket_of_a_driver_that_runs_apart_is_found_wherever_it_is(short_folder: Path):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_folder / "csi.admin.sock"))
        assert short_folder / "csi.admin.sock" not in sockets_found(short_folder), "nobody listens there"
        listener.listen()
        assert short_folder / "csi.admin.sock" in sockets_found(short_folder)
        other = socket_of(short_folder, "csi.orlop.dev")
        assert other not in sockets_found(short_folder), "nobody listens there, and somebody does elsewhere"


def sockets_found(sockets: Path) -> list[Path]:
    """Other tests on this machine may have such sockets too: then all of them are named."""
    try:
        return [find_socket(None, sockets)]
    except NodeError as error:
        return [Path(word.rstrip(",.")) for word in str(error).split() if word.startswith("/")]


def test_of_an_orlop_up_that_is_stopped_it_is_told_how_to_start_it(short_folder: Path):
    state = UpState(short_folder)
    with held(state, ""):
        pass
    with pytest.raises(NodeUnreachable, match=f"Nothing runs in {short_folder}: .*orlop up --state {short_folder}"):
        Afterlife(state.node_socket).usage()


def test_of_several_none_is_guessed(tmp_path: Path):
    one, two = socket_of(tmp_path, "a.example.com"), socket_of(tmp_path, "b.example.com")
    with pytest.raises(SeveralNodes, match="--socket") as told:
        find_socket(None, tmp_path)

    assert str(one) in str(told.value)
    assert str(two) in str(told.value)


def test_the_only_orlop_up_that_runs_is_asked_where_no_node_is(tmp_path: Path):
    state = UpState(tmp_path / "state")
    state.folder.mkdir()
    with held(state, ""), recorded(state, tmp_path / "run" / "running_ups"):
        assert find_socket(None, tmp_path / "run") == state.node_socket


@pytest.mark.parametrize("folder", ["empty", "missing"])
def test_a_missing_socket_is_told_with_what_to_do(tmp_path: Path, folder: str):
    (tmp_path / "empty").mkdir()
    with pytest.raises(NodeUnreachable, match=r"as root.*--adminsocket.*ORLOP_NODE_SOCKET.*--state DIR"):
        find_socket(None, tmp_path / folder)


def test_a_socket_that_nobody_listens_on_is_told_as_such(short_folder: Path):
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(short_folder / "stale"))
    (short_folder / "file").touch()
    for name in ("stale", "file"):
        with pytest.raises(NodeUnreachable, match=r"No process listens on.*--state DIR"):
            Afterlife(short_folder / name).usage()
    with pytest.raises(NodeUnreachable, match="too long"):
        Afterlife(short_folder / ("x" * 200)).usage()


@pytest.mark.parametrize("is_stale", [False, True])
def test_of_an_orlop_up_with_another_driver_it_is_told_what_to_do(short_folder: Path, *, is_stale: bool):
    state = UpState(short_folder)
    if is_stale:
        with socket.socket(socket.AF_UNIX) as stale:
            stale.bind(str(state.node_socket))
    with (
        held(state, "", "unix:///run/theirs.sock"),
        pytest.raises(
            NodeUnreachable, match=r"another driver, at unix:///run/theirs.sock: .* --socket. .* without --driver"
        ),
    ):
        Afterlife(state.node_socket).usage()

    with held(state, ""), pytest.raises(NodeUnreachable, match=r"no socket at|No process listens on"):
        Afterlife(state.node_socket).usage()


@pytest.mark.parametrize(
    ("said", "told"),
    [(b"", "before its last response"), (b"J\0\0\0\x02{}", "version"), (encoded(1, b'{"answer":"done"}'), "version")],
)
def test_an_answer_that_is_none_is_a_sentence(short_folder: Path, said: bytes, told: str):
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(short_folder / "s"))
        listener.listen()
        asking = Afterlife(short_folder / "s")
        accepted: list[socket.socket] = []
        listener.settimeout(5)

        def answer() -> None:
            connection, _ = listener.accept()
            connection.recv(1000)
            connection.sendall(said)
            connection.shutdown(socket.SHUT_WR)
            accepted.append(connection)

        node = threading.Thread(target=answer)
        node.start()
        with pytest.raises(NodeUnreachable, match=told):
            asking.usage()
        node.join()
        accepted[0].close()


def test_who_may_not_even_look_is_told_to_be_root(short_folder: Path, monkeypatch: pytest.MonkeyPatch):
    def refuse(*_: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    path = find_socket(None, short_folder)

    assert path == short_folder / "csi.orlop.dev" / "admin.sock"
    with pytest.raises(NodeUnreachable, match="as root"):
        Afterlife(path).usage()
