"""Commands inside of real containers, with their streams and exit codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from onenode.containers.container_request import Account, Command
from onenode.kubelet.pods.container_runtime import ContainerRefused, RunningContainer
from onenode.kubelet.pods.exec_session import ExecCommand, run_in_container
from orlop.foundation.clock import SystemClock
from support.kubelet.machine_pods import kubelet_in, nothing_left, shell


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with nothing_left(tmp_path):
        yield tmp_path


async def run(
    container: RunningContainer, script: str, typed: list[bytes] | None = None, account: Account | None = None
) -> tuple[int, bytes, bytes]:
    printed = {"stdout": b"", "stderr": b""}

    async def output(name: str, piece: bytes) -> None:
        printed[name] += piece

    async def typing() -> AsyncIterator[bytes]:
        for piece in typed or ():
            yield piece

    command = Command(("sh", "-c", script), account=account or Account())
    request = ExecCommand(command, None if typed is None else typing(), output)
    return await run_in_container(container, request, SystemClock()), printed["stdout"], printed["stderr"]


async def test_a_command_has_its_streams_and_its_code(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))

        assert await run(container, "cat; echo err >&2; exit 3", [b"a", b"b\n"]) == (3, b"ab\n", b"err\n")
        assert await run(container, "cat; id -u", account=Account(7, 7)) == (0, b"7\n", b"")
        assert await run(container, "kill -9 $$") == (137, b"", b"")


async def test_much_goes_through_both_ways(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        code, out, err = await run(container, "tee /dev/stderr", [b"x" * 100_000] * 50)

        assert (code, len(out), len(err)) == (0, 5_000_000, 5_000_000)


async def test_input_that_nobody_reads_holds_nothing_up(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))

        assert await run(container, "exit 4", [b"x" * 1_000_000] * 3) == (4, b"", b"")


async def test_a_daemon_that_holds_the_output_is_not_waited_for(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))

        assert await run(container, "sleep 1000 & echo done") == (0, b"done\n", b"")


async def test_output_is_told_to_its_end_however_slowly_it_is_taken(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("onenode.kubelet.pods.exec_session.LAST_WORDS_SECONDS", 0.01)
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        may_go_on, printed = asyncio.Event(), []

        async def output(_name: str, piece: bytes) -> None:
            await may_go_on.wait()
            printed.append(len(piece))

        request = ExecCommand(Command(("sh", "-c", "head -c 60000 /dev/zero; touch /done")), None, output)
        session = asyncio.create_task(run_in_container(container, request, SystemClock()))
        await run(container, "while [ ! -e /done ]; do sleep 0.01; done; sleep 0.1")
        may_go_on.set()

        assert await session == 0
        assert sum(printed) == 60_000  # so much fits into a pipe


async def test_a_session_that_is_given_up_ends_its_command(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        begun = asyncio.Event()

        async def output(_name: str, _piece: bytes) -> None:
            begun.set()

        request = ExecCommand(
            Command(("sh", "-c", "echo on; exec tail -f /dev/null"), account=Account(7, 7)), None, output
        )
        session = asyncio.create_task(run_in_container(container, request, SystemClock()))
        await begun.wait()
        session.cancel()
        await asyncio.wait([session])
        _, out, _ = await run(container, "while grep -q tail /proc/[0-9]*/comm; do sleep 0.01; done; echo gone")

        assert out == b"gone\n"


async def test_a_listener_who_has_left_is_no_failure_of_the_command(folder: Path):
    async def nobody_there(_name: str, _piece: bytes) -> None:
        raise ConnectionResetError("gone")

    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        request = ExecCommand(Command(("sh", "-c", "echo hi; exit 5")), None, nobody_there)

        assert await run_in_container(container, request, SystemClock()) == 5


async def test_a_program_that_is_not_there_is_refused(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        request = ExecCommand(Command(("nonsense",)), None, lambda *_: asyncio.sleep(0))
        with pytest.raises(ContainerRefused, match="executable file not found"):
            await run_in_container(container, request, SystemClock())
