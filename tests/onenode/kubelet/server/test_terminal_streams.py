"""Commands with a terminal, over the socket and real containers: one output, signals, sizes, no orphans."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.containers.container_request import WindowSize
from onenode.kubelet.server.channel_rules import V5, ChannelReader, window_size
from orlop.foundation.websocket_frames import Piece
from support.kubelet.kubelet_servers import V4, KubeletUnderTest, kubelet_under_test
from support.kubelet.machine_pods import nothing_left
from support.kubelet.websocket_clients import BINARY, WebSocketClient, frame
from support.waiting import eventually_answered

STDIN, STDOUT, RESIZE = 0, 1, 4
CTRL_C, CTRL_D, CTRL_Z = b"\x03", b"\x04", b"\x1a"


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with nothing_left(tmp_path):
        yield tmp_path


async def on_terminal(kubelet: KubeletUnderTest, script: str, **more: str) -> WebSocketClient:
    return await kubelet.sh(script, tty="1", **more)


async def until(client: WebSocketClient, text: bytes) -> bytes:
    """Read what the command prints until it has printed this."""
    printed = b""
    while text not in printed:
        got = await client.frame()
        assert got is not None, printed
        assert (got[0], got[1][0]) == (BINARY, STDOUT), got
        printed += got[1][1:]
    return printed


async def resize(client: WebSocketClient, width: int, height: int) -> None:
    await client.say(RESIZE, json.dumps({"Width": width, "Height": height}).encode())


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_all_streams_of_a_command_are_one_terminal_of_the_container(folder: Path, protocol: str):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await on_terminal(kubelet, "tty; ls $(tty); echo $TERM; echo loud >&2; exit 3", protocol=protocol)
        heard = await client.to_the_end()

        assert heard.channels[STDOUT] == b"/dev/pts/0\r\n/dev/pts/0\r\nxterm\r\nloud\r\n"
        assert (heard.code, set(heard.channels)) == (3, {1, 3})


async def test_what_is_typed_is_echoed_and_read_by_lines_and_bytes_that_are_no_text_pass(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await on_terminal(kubelet, "read line; echo got $line; stty raw -echo; echo raw; dd bs=1 count=256")
        await client.say(STDIN, b"hello\r")
        before = await until(client, b"raw")
        await client.say(STDIN, bytes(range(256)))
        heard = await client.to_the_end()

        assert before.startswith(b"hello\r\ngot hello\r\n")
        assert bytes(range(256)) in heard.channels[STDOUT]


async def test_ctrl_c_interrupts_the_command_in_the_foreground(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await on_terminal(kubelet, "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.02; done")
        await until(client, b"ready")
        await client.say(STDIN, CTRL_C)
        heard = await client.to_the_end()

        assert (heard.code, b"caught" in heard.channels[STDOUT]) == (7, True)


async def test_an_interactive_shell_has_jobs_and_ends_with_ctrl_d(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.exec("bash", "--norc", "-i", tty="1")
        await client.say(STDIN, b"sleep 999\r")
        await until(client, b"sleep 999\r\n")
        await eventually_answered(lambda: runs(kubelet, "sleep 999"))
        await client.say(STDIN, CTRL_Z)
        await until(client, b"Stopped")
        # Without `wait`, a shell that has not noticed the death yet refuses to exit: "There are stopped jobs."
        await client.say(STDIN, b"kill -9 %1; wait %1; jobs; echo d''one\r")
        await until(client, b"done")
        await client.say(STDIN, b"exit 5\r")

        assert (await client.to_the_end()).code == 5


async def test_a_command_sees_the_size_of_the_window_and_each_change_of_it(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        script = "trap 'stty size' WINCH; echo ready; while :; do sleep 0.02; done"
        client = await on_terminal(kubelet, script)
        await until(client, b"ready")
        await resize(client, 80, 24)
        await until(client, b"24 80\r\n")
        for nonsense in (b"", b"{", b"[]", b'{"Width": -1, "Height": 70000}', b'{"Width": 1}'):
            await client.say(RESIZE, nonsense)
        await client.send(frame(b'\x04{"Width": 132, ', fin=False))
        await client.send(frame(b'"Height": 50}', 0))
        await until(client, b"50 132\r\n")
        await client.say(STDIN, CTRL_C)
        await client.to_the_end()


async def test_all_that_a_command_prints_arrives_however_short_it_lives(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        for _ in range(10):
            heard = await (await on_terminal(kubelet, "echo hello")).to_the_end()
            assert heard.channels[STDOUT] == b"hello\r\n"
        many = await (await on_terminal(kubelet, "seq 20000")).to_the_end()

        assert many.channels[STDOUT].split() == [str(number).encode() for number in range(1, 20001)]


async def test_a_terminal_belongs_to_the_user_of_the_container(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        heard = await (await on_terminal(kubelet, "stat -c '%u %a' $(tty); : > /dev/tty && echo open")).to_the_end()

        assert heard.channels[STDOUT] == b"0 620\r\nopen\r\n"


async def test_a_terminal_ends_with_its_container(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        seen = await kubelet.run("sleep 1000")
        client = await on_terminal(kubelet, "echo ready; sleep 999")
        await until(client, b"ready")
        seen.running["main"].kill()

        assert (await client.to_the_end()).code == 137


@pytest.mark.parametrize("shell", ["bash --norc -i", "sh -i"])
async def test_a_client_that_vanishes_leaves_no_orphan(folder: Path, shell: str):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.exec(*shell.split(), tty="1")
        await client.say(STDIN, b"sleep 999\r")
        await eventually_answered(lambda: runs(kubelet, "sleep 999"))
        client.close()

        async def is_gone() -> bool:
            return not await runs(kubelet, "sleep 999") and not await runs(kubelet, shell)

        await eventually_answered(is_gone)


async def test_a_command_that_ignores_the_hang_up_is_killed(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await on_terminal(kubelet, "trap '' HUP; echo ready; while :; do sleep 0.02; done")
        await until(client, b"ready")
        client.close()

        async def is_gone() -> bool:
            return not await runs(kubelet, "trap")

        await eventually_answered(is_gone)


async def test_what_lies_in_the_place_of_the_containers_terminals_is_not_taken_for_one(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("mv /dev/ptmx /dev/away; ln -s /etc/passwd /dev/ptmx; sleep 1000")
        heard = await (await on_terminal(kubelet, "tty")).to_the_end()

        assert heard.channels[STDOUT] == b"/dev/pts/0\r\n"


async def runs(kubelet: KubeletUnderTest, words: str) -> bool:
    """Whether a command of the container has these words in it."""
    client = await kubelet.sh("cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '; true", error="0")
    printed = (await client.to_the_end()).channels.get(STDOUT, b"").replace(b"cat /proc", b"")
    return words.encode() in printed


# ---- sizes -----------------------------------------------------------------------------------------------------------


@given(st.binary())
def test_no_message_about_a_size_is_too_odd(message: bytes):
    found = window_size(message)

    assert found is None or isinstance(found, WindowSize)


@given(st.integers(1, 65535), st.integers(1, 65535), st.integers(0, 40))
def test_a_size_is_read_in_whatever_pieces_it_comes(width: int, height: int, place: int):
    message = bytes([RESIZE]) + json.dumps({"Width": width, "Height": height}).encode()
    reader = ChannelReader(V5)
    first, second = Piece(message[:place], begins=True, ends=False), Piece(message[place:], begins=False, ends=True)

    assert reader.take(first) is None
    assert reader.take(second) == WindowSize(width, height)
