"""What every daemon logs when it stops."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING

from support.processes.orlop_process import running

if TYPE_CHECKING:
    from pathlib import Path

NO_FOLDERS = "--workdir="


async def test_on_sigterm_each_socket_that_closes_is_logged_once_with_its_own_grace_period(short_folder: Path):
    (short_folder / "plugins_registry").mkdir()
    flags = ["--nodeid=n1", f"--kubelet-dir={short_folder}", NO_FOLDERS, "--grace-period=3s", "--log-format=json"]
    with running(short_folder, "node", *flags) as node:
        await node.says("csi.orlop.dev-reg.sock")
        node.signal(signal.SIGTERM)
        assert await node.exit_code() == 0

    entries = [json.loads(line) for line in node.logged().splitlines()]
    stopping = entries[[entry["msg"] for entry in entries].index("stop requested") :]
    closed = [(entry["endpoint"], entry["grace_seconds"]) for entry in stopping if "grace_seconds" in entry]
    assert closed == [
        (f"unix://{short_folder}/plugins_registry/csi.orlop.dev-reg.sock", 2.0),
        (f"unix://{short_folder}/plugins/csi.orlop.dev/csi.sock", 3.0),
    ]
    messages = [entry["msg"] for entry in stopping]
    assert (messages.count("stop requested"), messages[-1]) == (1, "stopped")
