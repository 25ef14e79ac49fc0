"""Driver processes beside a real `orlop up`: started, killed, and asked what they were called for."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from support.places import TESTS
from support.processes.up_process import Up
from support.waiting import eventually_there

PROGRAM = TESTS / "journeys" / "mounting_driver.py"
NAME = "d.example"
CHANGING = ("NodeStageVolume", "NodePublishVolume", "NodeUnpublishVolume", "NodeUnstageVolume")
SCRIPT = f"""
driver: {{name: {NAME}}}
node: {{id: n}}
capabilities: {{controller: [], node: [STAGE_UNSTAGE_VOLUME]}}
"""


class MountingDriver:
    """What it keeps outlasts its process."""

    def __init__(self, up: Up, socket: str = "d") -> None:
        self._up = up
        self._socket = socket
        self.folder = up.folder / socket
        self.folder.mkdir()
        self.output = self.folder / "output"
        self.process: subprocess.Popen[bytes] | None = None
        self._plays = ""

    def play(self, script: str = "") -> None:
        """Another life, unless it lives and plays this already."""
        if self.process is None or self.process.poll() is not None or self._plays != script:
            self.kill()
            self.start(script)

    def start(self, script: str = "") -> None:
        self._plays = script
        (self.folder / "script.yaml").write_text(SCRIPT + (f"script: {script}\n" if script else ""))
        words = [sys.executable, "-W", "error", str(PROGRAM), f"--socket={self._socket}", f"--folder={self.folder}"]
        with self.output.open("w") as stream:
            kubelet = f"--kubelet-dir={self._up.state / 'kubelet'}"
            self.process = subprocess.Popen([*words, kubelet, "--v=5"], stdout=stream, stderr=stream)
        self.says("kubelet says")

    def says(self, text: str) -> None:
        eventually_there(lambda: text in self.output.read_text())

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()

    def calls(self, *methods: str) -> list[dict[str, Any]]:
        """Those that change something, unless others are named."""
        record = self.folder / "calls.jsonl"
        lines = record.read_text().splitlines() if record.exists() else []
        return [call for call in map(json.loads, lines) if call["method"] in (methods or CHANGING)]

    def forget_calls(self) -> None:
        (self.folder / "calls.jsonl").unlink(missing_ok=True)

    def names(self) -> list[str]:
        return [str(call["method"]).removeprefix("Node").removesuffix("Volume") for call in self.calls()]

    def is_called(self, method: str, times: int = 1) -> None:
        eventually_there(lambda: len(self.calls(method)) >= times)
