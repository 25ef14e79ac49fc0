"""`orlop afterlife`: what a person on a node sees, with the real program and real folders."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import signal
import stat
import subprocess
import tarfile
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import yaml

from orlop.driver.ephemeral.requests.admin_socket import AdminClient, admin_socket
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.records.afterlife_report import Progress, RefusalResponse, Restored
from support.afterlife.afterlife_node import HOUR, ID, OTHER, AfterlifeNode
from support.host.file_systems import MOUNTS
from support.processes.orlop_process import ORLOP, run, run_here
from support.waiting import eventually

pytestmark = MOUNTS


@pytest.fixture
def node(short_folder: Path) -> AfterlifeNode:
    return AfterlifeNode(short_folder)


async def said(node: AfterlifeNode, *words: str) -> subprocess.CompletedProcess[str]:
    # Restoring hands SIGINT on, and only the main thread of a process can set a handler.
    start = run if words[0] == "restore" else run_here
    return await asyncio.to_thread(start, "afterlife", *words, env={"ORLOP_NODE_SOCKET": str(node.socket)})


async def test_what_is_retained_is_listed_filtered_and_sorted(node: AfterlifeNode):
    node.bury(ID, pod="trainer-0", namespace="lab", age=3 * HOUR)
    node.bury(OTHER, pod="cart-1", namespace="shop", age=10 * HOUR)
    async with node.running() as running:
        running.book.was_measured(ID, 3 << 20)
        table = (await said(node, "list")).stdout
        wide = (await said(node, "list", "-o", "wide", "--sort", "size", "--reverse")).stdout
        names = (await said(node, "list", "-o", "name", "--sort", "size", "--reverse")).stdout
        one = json.loads((await said(node, "list", "-o", "json", "-n", "lab")).stdout)
        old = yaml.safe_load((await said(node, "list", "-o", "yaml", "--older-than", "5h")).stdout)
        none = await said(node, "list", "--pod", "none-*", "--socket", str(node.socket))

    head, first, second = table.splitlines()
    assert head.split() == ["POD", "NAMESPACE", "VOLUME", "NAME", "SIZE", "DELETED", "ERASED"]
    assert first.split()[:5] == ["trainer-0", "lab", "csi-7d9b3da1c", "-", "3.0Mi"]
    assert second.split()[:5] == ["cart-1", "shop", "csi-7d9b3da10", "-", "…"]
    assert [line.split()[2] for line in wide.splitlines()[1:]] == [OTHER, ID]
    assert names == f"{OTHER}\n{ID}\n"
    assert [each["volumeId"] for each in one] == [ID]
    assert [each["pod"] for each in old] == ["cart-1"]
    assert (none.stdout, none.stderr, none.returncode) == ("", "No retained folder matches.\n", 0)


async def test_a_folder_is_looked_into(node: AfterlifeNode):
    folder = node.bury()
    (folder / "bad\x1b[31m\nname").touch()
    (folder / "logs").mkdir()
    (folder / "logs" / "run.log").write_bytes(b"epoch 1\n\xff")
    async with node.running():
        shown = (await said(node, "show", "csi-7")).stdout
        files = (await said(node, "ls", "csi-7")).stdout
        as_json = json.loads((await said(node, "ls", "csi-7", "logs", "-o", "json")).stdout)
        content = await asyncio.to_thread(
            subprocess.run,
            [*ORLOP, "afterlife", "cat", "csi-7", "logs/run.log", "--socket", str(node.socket)],
            capture_output=True,
            check=True,
        )

    assert f"Volume:          {ID}\n" in shown
    assert [line.split()[-1] for line in files.splitlines()] == [r"bad\x1b[31m\nname", "logs"]
    assert [(each["name"], each["size"]) for each in as_json] == [("run.log", 9)]
    assert content.stdout == b"epoch 1\n\xff"


async def test_an_archive_is_written_for_its_owner_alone_and_only_when_it_is_complete(node: AfterlifeNode):
    folder = node.bury()
    (folder / "file").write_text("x")
    os.mkfifo(folder / "pipe")
    out = node.folder / "out"
    out.mkdir()
    async with node.running():
        done = await said(node, "download", "csi-7", "-o", str(out / "a.tar"))
        missing = await said(node, "download", "csi-7", "none", "-o", str(out / "b.tar"))
        nowhere = await said(node, "download", "csi-7", "-o", str(out / "no" / "c.tar"))
        device = await said(node, "download", "csi-7", "-o", "/dev/null")
        piped = await asyncio.to_thread(
            subprocess.run,
            [*ORLOP, "afterlife", "download", "csi-7", "--socket", str(node.socket)],
            capture_output=True,
            check=True,
        )

    assert (done.returncode, done.stderr) == (0, "pipe: It is a fifo, which is left out.\n")
    assert [path.name for path in out.iterdir()] == ["a.tar"]
    assert stat.S_IMODE((out / "a.tar").stat().st_mode) == 0o600
    with tarfile.open(out / "a.tar") as tar:
        assert tar.getnames() == [ID, f"{ID}/file"]
    assert (missing.returncode, missing.stderr) == (3, "'none' cannot be read: there is no 'none'.\n")
    assert (nowhere.returncode, nowhere.stderr) == (
        1,
        f"{out}/no/c.tar cannot be written: No such file or directory.\n",
    )
    assert device.returncode == 0
    assert piped.stdout == (out / "a.tar").read_bytes()


async def test_a_folder_is_kept_restored_and_erased(node: AfterlifeNode):
    (node.bury(age=HOUR, lifespan=2 * HOUR) / "file").write_text("x")
    (node.folder / "to").mkdir()
    async with node.running(reaping=True):
        dry = await said(node, "keep", "csi-7", "--for", "5h", "--dry-run")
        kept = await said(node, "keep", "csi-7", "--for", "5h")
        already = await said(node, "keep", "csi-7", "--for", "1h")
        restored = await said(node, "restore", "csi-7", "--to", str(node.folder / "to"))
        again = await said(node, "restore", "csi-7", "--to", str(node.folder / "to"))
        unsure = await said(node, "erase", "csi-7")
        would = await said(node, "erase", "csi-7", "--dry-run")
        erased = await said(node, "erase", "csi-7", "--yes")
        await eventually(lambda: node.names("retained") == node.names("trash") == [])
        usage = await said(node, "usage")

    assert dry.stdout.startswith(f"{ID} would be kept until ")
    assert kept.stdout.endswith("(in 5h).\n")
    assert already.stdout.endswith("already.\n")
    assert restored.stdout == f"Restored to {node.folder}/to/{ID}: 1 entry, 1 byte.\n"
    assert (again.returncode, again.stderr.split(".")[0]) == (1, f"There is a {ID} in that folder already")
    assert unsure.returncode == 2
    assert "--yes" in unsure.stderr
    assert "would be erased" in would.stdout
    assert erased.stdout == f"{ID} is being erased.\n"
    assert usage.stdout.endswith("No folder is retained.\n")


WRONG = [
    (["list", "--older-than", "soon"], 2, "soon"),
    (["keep", "csi-7"], 2, "--for"),
    (["keep", "csi-7", "--for", "0s"], 2, "0s"),
    (["keep", "csi-7", "--for", "900h"], 1, "--max-afterlifespan"),
    (["restore", "csi-7"], 2, "--to"),
    (["restore", "csi-7", "--to", "/no/such/folder"], 2, "/no/such/folder"),
    (["show", "none"], 3, "No folder"),
    (["show", "csi-"], 2, "2 volume ids"),
    (["erase", "alive", "--yes"], 1, "living pod"),
    (["cat", "csi-7d9b3da1c", "none"], 3, "there is no 'none'"),
    (["cat", "csi-7d9b3da1c", "../x"], 1, "does not stay in the folder"),
    (["nothing"], 2, "nothing"),
]


async def test_a_wrong_question_is_a_sentence_with_its_exit_code(node: AfterlifeNode):
    node.bury(ID)
    node.bury(OTHER)
    node.live("alive")
    async with node.running():
        for words, code, told in WRONG:
            fuller = [word if word != "csi-7" else ID for word in words]
            ended = await said(node, *fuller)
            assert (ended.returncode, "Traceback" in ended.stderr) == (code, False), (words, ended.stderr)
            assert told in ended.stderr


def test_a_node_that_is_not_there_is_told_with_what_to_do(short_folder: Path):
    ended = run("afterlife", "list", "--socket", str(short_folder / "none.sock"))

    assert ended.returncode == 1
    assert "Check that the node's process runs" in ended.stderr


@pytest.mark.parametrize("verb", ["list", "show", "ls", "cat", "download", "keep", "restore", "erase", "usage"])
def test_every_verb_tells_its_exit_codes(verb: str):
    shown = run_here("afterlife", verb, "--help")

    assert shown.returncode == 0
    assert "3 there is no" in " ".join(shown.stdout.split())


# ---- on a terminal ---------------------------------------------------------------------------------------------------


class Terminal:
    """A program with a terminal of its own for everything, or for what is named."""

    def __init__(self, node_socket: Path, *words: str, stdout: int | None = None) -> None:
        ours, theirs = pty.openpty()
        self._ours = ours
        self.heard = b""
        environment = {**os.environ, "ORLOP_NODE_SOCKET": str(node_socket), "TERM": "xterm", "COLUMNS": "200"}
        self.process = subprocess.Popen(
            [*ORLOP, "afterlife", *words],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=environment,
        )
        os.close(theirs)
        self._listening = threading.Thread(target=self._listen)
        self._listening.start()

    def _listen(self) -> None:
        while piece := self._read():
            self.heard += piece

    def _read(self) -> bytes:
        try:
            return os.read(self._ours, 4096)
        except OSError:  # the other end is closed
            return b""

    def types(self, text: str) -> None:
        os.write(self._ours, text.encode())

    async def says(self, text: str) -> None:
        await eventually(lambda: text.encode() in self.heard or self.process.poll() is not None)
        assert text.encode() in self.heard, self.heard

    async def exit_code(self) -> int:
        code = await asyncio.to_thread(self.process.wait, 20)
        await asyncio.to_thread(self._listening.join)
        os.close(self._ours)
        return code


async def test_the_end_of_the_input_at_the_question_erases_nothing(node: AfterlifeNode):
    node.bury()
    async with node.running():
        erase = Terminal(node.socket, "erase", "csi-7")
        await erase.says("[y/N]")
        erase.types("\x04")
        assert await erase.exit_code() == 130
    assert len(node.names("retained")) == 1
    assert b"Nothing was erased." in erase.heard


async def test_on_a_terminal_an_erase_asks_first(node: AfterlifeNode):
    node.bury(pod="evil\x1b[2J")
    async with node.running():
        no = Terminal(node.socket, "erase", "csi-7")
        await no.says("[y/N]")
        no.types("n\n")
        assert await no.exit_code() == 1
        assert len(node.names("retained")) == 1
        assert b"\x1b[2J" not in no.heard
        yes = Terminal(node.socket, "erase", "csi-7")
        await yes.says("[y/N]")
        yes.types("y\n")
        assert await yes.exit_code() == 0
    assert node.names("retained") == []


async def test_an_archive_is_not_written_to_a_terminal(node: AfterlifeNode):
    node.bury()
    async with node.running():
        ended = Terminal(node.socket, "download", "csi-7")
        await ended.says("not written to a terminal")
        assert await ended.exit_code() == 2


async def with_handler(path: Path, handler: Callable[[AdminClient], Awaitable[None]], words: list[str]) -> Terminal:
    """The program on a terminal against a node that only plays one."""
    async with admin_socket(str(path), handler, clock=SystemClock(), log=silent_log()):
        terminal = Terminal(path, *words)
        await terminal.says("7 entries")
        terminal.process.send_signal(signal.SIGINT)
        await terminal.exit_code()
        return terminal


async def test_a_restore_shows_its_progress_and_an_interrupt_stops_it_and_tells_what_is_left(short_folder: Path):
    async def restoring(client: AdminClient) -> None:
        stopped = asyncio.Event()
        client.when_client_goes = stopped.set
        await client.answer(Progress(7, 5 << 20, 10 << 20))
        await stopped.wait()
        await client.answer(Restored(".orlop-unfinished-csi-1", entries=7, finished=False))

    terminal = await with_handler(short_folder / "s", restoring, ["restore", "csi-1", "--to", str(short_folder)])

    assert terminal.process.returncode == 130
    assert f"{short_folder}/.orlop-unfinished-csi-1 has the files copied so far (7 entries, ".encode() in terminal.heard
    assert b"5.0Mi" in terminal.heard


async def test_a_refusal_in_the_middle_of_a_download_leaves_no_file(short_folder: Path):
    async def breaking(client: AdminClient) -> None:
        await client.send_bytes(b"half an archive")
        await client.answer(RefusalResponse("refused", "The disk \x1b[31mdoes not answer."))

    async with admin_socket(str(short_folder / "s"), breaking, clock=SystemClock(), log=silent_log()):
        words = [
            "afterlife",
            "download",
            "csi-1",
            "-o",
            str(short_folder / "a.tar"),
            "--socket",
            str(short_folder / "s"),
        ]
        ended = await asyncio.to_thread(run, *words)

    assert (ended.returncode, ended.stderr) == (1, "The disk \\x1b[31mdoes not answer.\n")
    assert not [path for path in short_folder.iterdir() if "a.tar" in path.name]


@pytest.mark.parametrize("verb", ["", "list", "show", "ls", "cat", "download", "keep", "restore", "erase", "usage"])
def test_help_is_given_for_the_short_word_as_for_the_long_one(verb: str):
    short, long = (run_here("afterlife", *filter(None, [verb]), word) for word in ("-h", "--help"))
    assert short.returncode == 0
    assert short.stdout == long.stdout
    assert f"Usage: orlop afterlife {verb}".rstrip() in short.stdout
