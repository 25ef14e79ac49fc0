"""`make up`, as the README has it: where its state goes, and what it leaves alone."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
from pathlib import Path

import pytest

from support.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]


def start(state: str, output: Path) -> subprocess.Popen[str]:
    with output.open("w") as stream:
        return subprocess.Popen(
            [str(ROOT / "tools" / "up.sh")], stdout=stream, stderr=stream, text=True, env={**os.environ, "STATE": state}
        )


async def test_it_makes_its_folder_for_its_owner_alone_and_says_how_to_call_it(short_folder: Path):
    state, output = short_folder / "new" / "state", short_folder / "output"
    up = start(str(state), output)
    try:
        await eventually(lambda: "csi Identity.GetPluginInfo --endpoint" in output.read_text())
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
    finally:
        up.send_signal(signal.SIGTERM)
        assert up.wait(20) == 0

    assert not (state / "csi.sock").exists()
    assert "stopped" in output.read_text()


async def test_a_folder_that_is_there_keeps_its_mode(short_folder: Path):
    state, output = short_folder / "shared", short_folder / "output"
    state.mkdir()
    state.chmod(0o1777)
    up = start(str(state), output)
    try:
        await eventually(lambda: "listening" in output.read_text())
    finally:
        up.send_signal(signal.SIGTERM)
        up.wait(20)

    assert stat.S_IMODE(state.stat().st_mode) == 0o1777


@pytest.mark.parametrize("state", ["", "/proc/nothing/here"], ids=["empty", "cannot be made"])
def test_a_folder_that_cannot_be_is_refused_with_a_sentence(state: str, short_folder: Path):
    up = start(state, short_folder / "output")

    assert up.wait(20) == 2
    assert (short_folder / "output").read_text().startswith("make up: ")
