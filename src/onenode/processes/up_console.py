"""What `orlop up` shows: what to try, the log, and below it all one line that says how things are right now.

On a terminal the line is written over itself; elsewhere each new one is a line of its own. The log goes through here
too, so that the two never mix.
"""

from __future__ import annotations

import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, TextIO

from orlop.admin.up_state import DEFAULT_STATE

CLEAR_LINE: Final = "\r\x1b[K"
SYSTEM_FOLDERS: Final = frozenset(map(Path, ("/bin", "/sbin", "/usr/bin", "/usr/sbin", "/usr/local/bin")))
CUT: Final = "…"
EXAMPLE: Final = """\
apiVersion: v1
kind: Pod
metadata:
  name: demo
spec:
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "date > /scratch/result; sleep infinity"]
      volumeMounts: [{name: scratch, mountPath: /scratch}]
  volumes:
    - name: scratch
      csi: {driver: csi.orlop.dev}
"""
CLAIM_EXAMPLE: Final = """\
apiVersion: v1
kind: PersistentVolumeClaim
metadata:
  name: data
spec:
  accessModes: [ReadWriteOnce]
  storageClassName: orlop
  resources:
    requests:
      storage: 1Gi
---
apiVersion: v1
kind: Pod
metadata:
  name: writer
spec:
  containers:
    - name: main
      image: busybox
      command: [sh, -c, "echo hello > /data/greeting; sleep infinity"]
      volumeMounts:
        - name: data
          mountPath: /data
  volumes:
    - name: data
      persistentVolumeClaim:
        claimName: data
"""


class Console:
    """Also a stream, for the log: whatever is written there stands above the line."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._is_terminal = stream.isatty()
        self._line = ""

    def isatty(self) -> bool:
        return self._is_terminal

    def write(self, text: str) -> int:
        """Whole lines."""
        self._stream.write(f"{CLEAR_LINE}{text}{self._fitting()}" if self._is_terminal and self._line else text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def say(self, line: str) -> None:
        self.write(f"{line}\n")
        self.flush()

    def show_state(self, line: str) -> None:
        if line == self._line:
            return
        self._line = line
        self._stream.write(f"{CLEAR_LINE}{self._fitting()}" if self._is_terminal else f"{line}\n")
        self.flush()

    def end(self) -> None:
        """Nothing more is shown; what was stays."""
        if self._is_terminal and self._line:
            self._stream.write("\n")
        self._line = ""
        self.flush()

    def _fitting(self) -> str:
        room = max(1, shutil.get_terminal_size().columns - 1)
        return self._line if len(self._line) <= room else self._line[: room - len(CUT)] + CUT


def state_line(
    node: str, *, is_ready: bool, drivers: Mapping[str, bool], pods: Mapping[str, int], awaited: str = ""
) -> str:
    """`awaited` is where a driver of somebody else is to answer."""
    parts = [f"node {node} {'ready' if is_ready else 'not ready'}"]
    if awaited and not drivers:
        parts.append(f"no driver answers at {awaited} yet")
    parts += [f"driver {name} {'registered' if there else 'not there'}" for name, there in sorted(drivers.items())]
    counts = ", ".join(f"{count} {phase}" for phase, count in sorted(pods.items()) if count)
    return " | ".join([*parts, f"pods: {counts or 'none'}"])


def greeting(state: Path, node: str, drivers: Sequence[str], *, is_ours: bool, has_drive: bool = True) -> str:
    """Everything in it can be typed as it is. `has_drive`: a drive was made for claims."""
    return f"""\
Orlop is up: one node, {node}; its state is in {state}. Ctrl-C stops it and keeps everything.

    export KUBECONFIG={shlex.quote(str(state / "kubeconfig"))}    # for any kubectl

{_what_to_try(state, has_drive=has_drive) if is_ours else _what_to_bring(state, drivers)}"""


def static_greeting(state: Path, folder: Path) -> str:
    """Return where to put disks, and the command that shows their volumes."""
    return f"""\
Static volumes: mount or link a disk, or make a folder, in {folder}. The volumes, and how far a wipe is:

{_program()} static list{_where(state)}
"""


def _what_to_bring(state: Path, drivers: Sequence[str]) -> str:
    """For a driver that is not ours."""
    orlop, where = _program(), _where(state)
    who = f"The driver {drivers[0]} is" if drivers else "As soon as your driver answers, it will be"
    name = drivers[0] if drivers else "YOUR.DRIVER"
    return f"""\
{who} registered. It mounts below {state}/kubelet, and has to see the mounts of this machine.
In another terminal, as root: a StorageClass of your driver and a claim,

{orlop} kubectl{where} apply -f - <<'END'
{_claim_of(name)}END

and what the claim waits for, until it is bound:

{orlop} explain pvc{where} demo

If your driver attaches nothing, or serves inline volumes, apply its CSIDriver object too. To have volumes deleted at
the driver, delete their claims first: `{orlop} down{where} --erase` removes everything here,
and leaves volumes at the driver.
"""


def _claim_of(driver: str) -> str:
    return f"""\
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {{name: demo}}
provisioner: {driver}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {{name: demo}}
spec: {{storageClassName: demo, accessModes: [ReadWriteOnce], resources: {{requests: {{storage: 1Gi}}}}}}
"""


def _what_to_try(state: Path, *, has_drive: bool) -> str:
    orlop, where = _program(), _where(state)
    return f"""\
Try it in another terminal, as root: a pod with a scratch folder,

{orlop} kubectl{where} apply -f - <<'END'
{EXAMPLE}END
{orlop} kubectl{where} wait --for=condition=Ready pod/demo

and what it leaves when it is gone:

{orlop} kubectl{where} delete pod demo
{orlop} afterlife list{where}
{orlop} afterlife cat{where} $({orlop} afterlife list{where} --pod demo -o name | head -1) result

{_what_to_claim(state) if has_drive else _where_to_find_drives(state)}
`{orlop} down{where} --erase` removes every trace.
"""


def _what_to_claim(state: Path) -> str:
    orlop, where = _program(), _where(state)
    return f"""\
Or a claim, whose volume is on a drive and keeps its data when the pod is gone,

{orlop} kubectl{where} apply -f - <<'END'
{CLAIM_EXAMPLE}END
{orlop} kubectl{where} wait --for=condition=Ready pod/writer --timeout=2m
{orlop} kubectl{where} exec writer -- df -h /data
{orlop} volumes list{where}

and back:

{orlop} kubectl{where} delete pod/writer pvc/data
"""


def _where_to_find_drives(state: Path) -> str:
    return f"""\
For persistent volumes, make a drive of a disk that `{_program()} drives discover{_where(state)}` shows, or of a folder.
"""


def _program() -> str:
    """Return the command with which the user can start this program again."""
    path = Path(sys.argv[0])
    if path.name != "orlop":
        return f"{shlex.quote(sys.executable)} -m orlop" if path.name == "__main__.py" else "orlop"
    # Where every terminal looks; a folder that only this one's PATH has would have to be named in the others.
    is_everywhere = path.parent in SYSTEM_FOLDERS and shutil.which("orlop") == str(path)
    return "orlop" if is_everywhere else shlex.quote(str(path.absolute()))


def _where(state: Path) -> str:
    return "" if state == DEFAULT_STATE else f" --state {shlex.quote(str(state))}"
