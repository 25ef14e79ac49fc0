"""The real kubectl against a server, with a home and a cache of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

KUBECTL = Path(sys.executable).with_name("kubectl")


@dataclass(frozen=True)
class Kubectl:
    kubeconfig: Path
    home: Path

    def run(self, *arguments: str, stdin: str | None = None, **env: str) -> subprocess.CompletedProcess[str]:
        command = [str(KUBECTL), "--kubeconfig", str(self.kubeconfig), f"--cache-dir={self.home / 'cache'}", *arguments]
        # It ends before collecting garbage pays: a quarter of its time.
        environment = {"HOME": str(self.home), "PATH": os.environ["PATH"], "GOGC": "off", **env}
        return subprocess.run(
            command, check=False, capture_output=True, text=True, timeout=200, env=environment, input=stdin
        )

    def ok(self, *arguments: str, stdin: str | None = None, **env: str) -> str:
        """What it printed; a failure is the test's."""
        ran = self.run(*arguments, stdin=stdin, **env)
        assert ran.returncode == 0, f"kubectl {' '.join(arguments)}: {ran.stderr}"
        return ran.stdout
