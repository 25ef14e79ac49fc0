"""Children that end with us, programs that are asked something, and those that take our place."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from orlop.host.host_errors import HostError
from orlop.host.kernel import process_records
from orlop.host.kernel.programs import Child, ask_program, become, find_program
from support.waiting import eventually, eventually_there

SLEEP = ["/bin/sleep", "1000"]


@pytest.fixture
def child() -> Iterator[Child]:
    with closing(Child(SLEEP)) as made:
        yield made


async def heard(child: Child) -> str:
    found = b""

    def listen() -> bool:
        nonlocal found
        said = child.read_output()
        found += said or b""
        return said is None

    await eventually(listen)
    return found.decode()


async def test_what_a_child_says_and_how_it_ends_is_known():
    with closing(Child(["/bin/sh", "-c", "echo out; echo err >&2; exit 3"])) as child:
        said = await heard(child)
        await eventually(lambda: child.exit_code() is not None)

        assert (sorted(said.split()), child.exit_code()) == (["err", "out"], 3)


async def test_a_child_ends_when_it_is_asked_to(child: Child):
    await eventually(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(b"/bin/sleep"))
    child.ask_to_end()
    await eventually(lambda: child.exit_code() is not None)

    assert child.exit_code() == -signal.SIGTERM


def test_a_child_is_in_a_session_of_its_own_so_that_a_terminals_signals_are_ours(child: Child):
    assert os.getsid(child.pid) == child.pid


def test_a_child_does_not_outlive_a_parent_that_is_killed():
    program = (
        "import sys, time; from orlop.host.kernel.programs import Child; child = Child(['/bin/sleep', '1000']); "
        "print(child.pid, flush=True); time.sleep(1000)"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        identity = process_records.identity_of_process(int(parent.stdout.readline()))
        assert identity is not None
        parent.kill()
        eventually_there(lambda: not process_records.is_running(identity) or _is_dead(identity.number))


def _is_dead(process: int) -> bool:
    """Nobody may have asked for its exit code yet."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_process_that_is_no_longer_the_one_that_was_meant_is_left_alone(child: Child):
    meant = process_records.identity_of_process(child.pid)
    assert meant is not None
    other = process_records.ProcessIdentity(meant.number, meant.start + 1, meant.boot)

    assert process_records.ask_to_end(other, 0.0)
    assert child.exit_code() is None
    assert process_records.read_identity(str(meant)) == meant


async def test_a_process_is_asked_to_end_and_waited_for(child: Child):
    await eventually(lambda: Path(f"/proc/{child.pid}/cmdline").read_bytes().startswith(b"/bin/sleep"))
    meant = process_records.identity_of_process(child.pid)
    assert meant is not None

    assert process_records.ask_to_end(meant, 10.0)


def test_a_program_is_found_beside_another_before_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    for folder in ("beside", "path"):
        program = tmp_path / folder / "thing"
        program.parent.mkdir()
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    before = find_program("thing"), find_program("thing", beside=tmp_path / "beside")
    monkeypatch.setenv("PATH", str(tmp_path / "path"))

    assert before == (None, str(tmp_path / "beside/thing"))
    assert find_program("thing", beside=tmp_path / "beside") == str(tmp_path / "beside/thing")
    assert find_program("thing", beside=tmp_path) == str(tmp_path / "path/thing")


def test_a_program_that_cannot_be_run_is_a_sentence(tmp_path: Path):
    with pytest.raises(HostError, match="cannot be run: No such file or directory"):
        become(str(tmp_path / "none"), [], {})


def test_a_program_that_is_asked_gets_what_is_written_to_it_and_answers():
    script = 'read line; echo "$line $WORD"; echo complaint >&2; exit 3'
    answer = ask_program(["/bin/sh", "-c", script], {"WORD": "world"}, b"hello\n", 10.0)
    assert answer == (3, b"hello world\n", b"complaint\n")


def test_a_program_that_does_not_answer_is_ended():
    with pytest.raises(HostError, match="took longer than"):
        ask_program(["/bin/sh", "-c", "exec sleep 60"], {}, b"", 0.1)


def test_a_program_that_is_not_there_is_the_kernels_own_error(tmp_path: Path):
    with pytest.raises(FileNotFoundError):
        ask_program([str(tmp_path / "none")], {}, b"", 10.0)
