"""A network namespace in which packets of chosen TCP connections are dropped. Needs root and Debian's iproute2.

Only policy routing is used, which every kernel has: a rule that sends packets from one port to another into a black
hole drops them without a word, in both directions, while new connections, from other ports, work.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support.waiting import eventually_there

ESTABLISHED = "01"
# The rule for local addresses is the first of all; ours must stand before it.
PREPARE = """
ip link set lo up
ip rule add pref 100 lookup local
ip rule del pref 0
echo ready
exec sleep infinity
"""


def why_no_namespaces() -> str:
    """Return why no test can use one here, or nothing."""
    if os.geteuid():
        return "a network namespace needs root"
    return "" if shutil.which("ip") else "there is no `ip`: install iproute2"


@dataclass(frozen=True, slots=True)
class Namespace:
    pid: int

    def program(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs `command` inside."""
        return ["nsenter", f"--net=/proc/{self.pid}/ns/net", "--", *command]

    def connections_to(self, port: int) -> list[int]:
        """Return the client's port of each connection to a port on 127.0.0.1."""
        lines = [line.split() for line in Path(f"/proc/{self.pid}/net/tcp").read_text().splitlines()[1:]]
        ends = [(int(mine[-4:], 16), int(other[-4:], 16), state) for _, mine, other, state, *_ in lines]
        return [mine for mine, other, state in ends if other == port and state == ESTABLISHED]

    def drop(self, port: int, clients: Sequence[int]) -> None:
        """Drop all packets between a port and clients' ports, from now on."""
        for client in clients:
            for source, target in ((port, client), (client, port)):
                rule = f"ip rule add pref 10 sport {source} dport {target} blackhole"
                subprocess.run(self.program(rule.split()), check=True)


@contextmanager
def network_namespace() -> Iterator[Namespace]:
    command = ["unshare", "--net", "sh", "-ec", PREPARE]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            eventually_there(lambda: Path(f"/proc/{process.pid}/ns/net").exists())
            yield Namespace(process.pid)
        finally:
            process.kill()
