"""`make up`, as the README has it: where its state goes, and what it says when that cannot be."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

from support.places import REPOSITORY
from support.processes.up_process import up_folder
from support.waiting import eventually


def start(state: str, output: Path) -> subprocess.Popen[str]:
    with output.open("w") as stream:
        return subprocess.Popen(
            [str(REPOSITORY / "tools" / "up.sh")],
            stdout=stream,
            stderr=stream,
            text=True,
            env={**os.environ, "STATE": state},
        )


async def test_it_runs_everything_with_its_state_where_it_was_told_to_have_it():
    with up_folder() as up:
        made = up.process = start(str(up.state), up.output)
        await eventually(lambda: "Orlop is up" in up.said() or made.poll() is not None)
        node = up.kubectl.ok("get", "nodes", "-o", "name")
        up.process.send_signal(signal.SIGTERM)

        assert up.process.wait(20) == 0
        assert node.startswith("node/")
        assert f"{REPOSITORY}/.venv/bin/orlop kubectl --state {up.state} apply -f -" in up.said()
        assert (up.processes(), up.mounts()) == ({}, [])


def test_a_folder_that_cannot_be_is_refused_with_a_sentence(short_folder: Path):
    up = start("/proc/nothing/here", short_folder / "output")

    assert up.wait(20) == 1
    (line,) = (short_folder / "output").read_text().splitlines()
    assert line.startswith("orlop up: the state folder /proc/nothing/here cannot be used")
