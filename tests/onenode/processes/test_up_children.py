"""A child that is kept running: what it says is passed on, it is started again when it dies, and ends with us."""

from __future__ import annotations

from pathlib import Path
from random import Random

from onenode.processes.up_children import kept_running
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import LogEntry, collecting_log
from support.waiting import eventually


def surroundings(log: list[LogEntry]) -> Runtime:
    return Runtime(
        clock=SystemClock(), random=Random(1), log=collecting_log(log), metrics=Metrics("test", of_process=False)
    )


async def test_one_that_dies_is_started_again_and_what_it_said_is_passed_on():
    said: list[str] = []
    log: list[LogEntry] = []
    words = ["/bin/sh", "-c", "echo one; printf two; exit 3"]
    async with kept_running("the thing", words, said.append, surroundings(log)):
        await eventually(lambda: len(said) >= 4)

    assert said[:4] == ["one", "two", "one", "two"]
    ended = [entry for entry in log if entry.message == "child ended, restarting"]
    assert {(entry.fields["child"], entry.fields["how"]) for entry in ended} == {("the thing", "exit code 3")}


async def test_one_that_lives_is_asked_to_end_and_waited_for(tmp_path: Path):
    said: list[str] = []
    script = f"trap 'echo farewell; touch {tmp_path}/done; exit 0' TERM; echo ready; while :; do sleep 0.01; done"
    async with kept_running("the thing", ["/bin/sh", "-c", script], said.append, surroundings([])):
        await eventually(lambda: "ready" in said)

    assert said == ["ready", "farewell"]
    assert (tmp_path / "done").exists()


async def test_a_program_that_is_not_there_is_tried_again():
    log: list[LogEntry] = []
    async with kept_running("the thing", ["/no/such/program"], lambda _line: None, surroundings(log)):
        await eventually(lambda: sum(entry.message == "child ended, restarting" for entry in log) >= 2)
