"""A real `orlop up` on this kernel, with kubectl beside it, and what must be left when it is gone: nothing."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.host.kernel_rooms import mount_points_of, why_nothing_can_be_mounted
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import ORLOP, run_here
from support.waiting import eventually_there

POD = """
apiVersion: v1
kind: Pod
metadata: {{name: {name}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
    - name: main
      image: busybox
      command: [sh, -c, {script!r}]
      volumeMounts: [{{name: scratch, mountPath: /scratch}}]
  volumes:
    - name: scratch
      csi: {{driver: {driver}}}
"""
WRITES = "echo began >> /scratch/result; sleep 100000"


class Up:
    """One state folder, and the `orlop up` in it, which comes and goes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "up"
        self.kubectl = Kubectl(self.state / "kubeconfig", folder / "home")
        self.process: subprocess.Popen[str] | None = None
        self.output = folder / "output"

    def start(self, *flags: str) -> None:
        self.begin(*flags)
        self.says("Orlop is up", "driver csi.orlop.dev registered")

    def begin(self, *flags: str) -> None:
        with self.output.open("w") as stream:
            # A drive by default takes a fifth of this machine's disk, and tests run side by side.
            drive = [] if any(flag.startswith("--drive-capacity") for flag in flags) else ["--drive-capacity=0"]
            words = [*ORLOP, "up", f"--state={self.state}", *drive, *flags]
            self.process = subprocess.Popen(words, stdout=stream, stderr=stream, text=True)

    def said(self) -> str:
        return self.output.read_text()

    def says(self, *texts: str) -> None:
        assert self.process is not None
        process = self.process
        eventually_there(lambda: all(text in self.said() for text in texts) or process.poll() is not None)
        assert all(text in self.said() for text in texts), self.said()

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(200)

    # ---- pods ----------------------------------------------------------------------------------------------------

    def make(self, name: str, script: str = WRITES, driver: str = "csi.orlop.dev") -> None:
        self.kubectl.ok("apply", "-f", "-", stdin=POD.format(name=name, script=script, driver=driver))

    def runs(self, name: str) -> None:
        self.kubectl.ok("wait", "--for=condition=Ready", f"pod/{name}", "--timeout=150s")

    def value(self, name: str, path: str) -> str:
        return self.kubectl.ok("get", "pod", name, "-o", f"jsonpath={path}")

    def volume_of(self, name: str) -> Path:
        """The folder of its volume, on this machine."""
        uid = self.value(name, "{.metadata.uid}")
        return self.state / f"kubelet/pods/{uid}/volumes/kubernetes.io~csi/scratch/mount"

    def delete(self, name: str) -> None:
        self.kubectl.ok("delete", "pod", name)

    # ---- what is there -------------------------------------------------------------------------------------------

    def mounts(self) -> list[str]:
        return [point for point in mount_points_of("self") if point.startswith(str(self.state))]

    def processes(self) -> dict[int, str]:
        """All that came from it or know its folder, but for us."""
        found = {}
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                if entry.name.isdecimal() and int(entry.name) != os.getpid() and self._is_of_it(entry):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def _is_of_it(self, process: Path) -> bool:
        words = (process / "cmdline").read_bytes().split(b"\0")
        if any(os.fsencode(self.state) in word for word in words) and b"orlop" in words:
            return True
        return any(str(each.readlink()).startswith(str(self.state)) for each in (process / "fd").iterdir())

    def children(self) -> list[str]:
        """The roles that run beside it, such as `attacher`, in the order of the alphabet."""
        found = [re.search(r" -m orlop (\w+) ", words) for words in self.processes().values()]
        return sorted(each[1] for each in found if each is not None and each[1] != "up")

    def node_process(self) -> int:
        (found,) = (number for number, words in self.processes().items() if " orlop node " in words)
        return found


@contextmanager
def up_folder() -> Iterator[Up]:
    """Taken apart at the end, whatever is left of it."""
    if reason := why_nothing_can_be_mounted():
        pytest.skip(reason)
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    up = Up(folder)
    try:
        yield up
    finally:
        if up.process is not None:
            up.process.kill()
            up.process.wait()
        run_here("down", f"--state={up.state}", "--erase", "--yes")
        shutil.rmtree(folder, ignore_errors=True)
