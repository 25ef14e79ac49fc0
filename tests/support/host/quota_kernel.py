"""A kernel that has project quotas, for machines whose own has none: user-mode-linux, a kernel that is a process.

It sees this machine's files, read-only, has an XFS and an ext4 image with quotas for disks, runs a file of tests and
ends. Its console is all that comes out: the outcome of each test is read off pytest's summary there. It is started once
for all workers of a test run, which share what it said.
"""

from __future__ import annotations

import ast
import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from support.host.file_systems import MAKERS, WHY_NOT, make_image
from support.places import REPOSITORY

KERNEL = "linux.uml"
FILE_SYSTEMS = "ORLOP_QUOTA_FILE_SYSTEMS"
SECONDS = 280.0
IMAGE_BYTES = 400 * 2**20
MEMORY_BYTES = 512 * 2**20
QUOTA_EXT4 = ("mkfs.ext4", "-q", "-F", "-O", "quota,project", "-E", "quotatype=prjquota,lazy_itable_init=1")
CASES = (
    "tests/orlop/host/folders/quota_cases.py",
    "tests/contracts/host/quota_cases.py",
    "tests/orlop/driver/ephemeral/quota_cases.py",
    "tests/orlop/driver/persistent/quota_cases.py",
)
ENDED = "ORLOP TESTS ENDED"
LAUNCHER = Path(__file__).with_name("kernel_launcher.py")
SSE_ONLY = (
    # The kernel hands these words of its command line to init. Inside, a page fault clears the AVX registers.
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load",
    "OPENSSL_ia32cap=0:0",
)
LOAD_MODULES = (  # Debian's kmod may not be there
    "import ctypes, os, sys; [ctypes.CDLL(None).syscall(313, os.open(path, 0), b'', 0) for path in sys.argv[1:]]"
)
INIT = f"""#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tmpfs tmpfs /mnt; mkdir /mnt/xfs /mnt/ext4 /mnt/tmp
modules="/usr/lib/uml/modules/$(uname -r)/kernel/fs/quota"
{{python}} -S -c "{LOAD_MODULES}" "$modules/quota_tree.ko" "$modules/quota_v2.ko"
mount -t xfs -o prjquota /dev/ubda /mnt/xfs
mount -t ext4 -o prjquota /dev/ubdb /mnt/ext4
cd {{root}}
export {FILE_SYSTEMS}=/mnt TMPDIR=/mnt/tmp HOME=/mnt/tmp PYTHONDONTWRITEBYTECODE=1 PYTHONPATH=src
{{python}} -m pytest {{cases}} -p no:randomly -p no:xdist -q -rA --color=no --tb=short --timeout 250 2>&1
echo "{ENDED}"
sync
echo o >/proc/sysrq-trigger
sleep 5
"""


@dataclass(frozen=True)
class Console:
    text: str

    def outcome_of(self, case: str) -> str:
        """Also what went wrong after a test that passed."""
        said = re.findall(rf"^(PASSED|FAILED|ERROR|SKIPPED) \S*::{re.escape(case)}(?: |$)", self.text, re.MULTILINE)
        return " and ".join(said) or "MISSING"

    def outcomes_of(self, case: str) -> set[str]:
        """Of a case of a contract, whatever else it is made for beside the file system."""
        name, kind = case.rstrip("]").split("[")
        pattern = rf"^(PASSED|FAILED|ERROR|SKIPPED) \S*::{re.escape(name)}\[(?:\S*-)?{kind}(?:-\S*)?\](?: |$)"
        return set(re.findall(pattern, self.text, re.MULTILINE)) or {"MISSING"}


def cases_in(file: Path, kinds: tuple[str, ...]) -> list[str]:
    """The names pytest will give them: each test is made once for each kind of file system."""
    functions = ast.FunctionDef | ast.AsyncFunctionDef
    names = [node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, functions)]
    names = [name for name in names if name.startswith("test_")]
    return [f"{name}[{kind}]" for name in names for kind in kinds]


def why_it_cannot_run() -> str | None:
    if os.uname().machine != "x86_64":
        return "needs amd64: user-mode-linux exists for it alone"
    if WHY_NOT is not None:
        return WHY_NOT
    missing = [name for name in (KERNEL, MAKERS["xfs"][0], QUOTA_EXT4[0]) if shutil.which(name) is None]
    return f"needs {', '.join(missing)}, which this machine does not have: run make test" if missing else None


def console_of(cases: tuple[str, ...], folder: Path) -> Console:
    """What the kernel said when it ran these tests; asked once by all who share the folder."""
    with (folder / "quota-kernel.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        said = folder / "quota-kernel.json"
        if not said.exists():
            said.write_text(json.dumps(_run(cases, folder)))
        return Console(json.loads(said.read_text()))


def _run(cases: tuple[str, ...], folder: Path) -> str:
    disks = folder / "quota-kernel"
    disks.mkdir()
    make_image("xfs", disks / "xfs.img", IMAGE_BYTES)
    with (disks / "ext4.img").open("wb") as image:
        image.truncate(IMAGE_BYTES)
    subprocess.run([*QUOTA_EXT4, disks / "ext4.img"], check=True)
    init = disks / "init.sh"
    init.write_text(INIT.format(root=REPOSITORY, python=sys.executable, cases=" ".join(cases)))
    init.chmod(0o755)
    return _console(disks, init)


def _console(disks: Path, init: Path) -> str:
    command = [
        *(sys.executable, "-S", str(LAUNCHER), KERNEL, *SSE_ONLY, f"mem={MEMORY_BYTES}"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"),
        *(f"ubd0={disks / 'xfs.img'}", f"ubd1={disks / 'ext4.img'}", "con=null", "con0=null,fd:1", "quiet"),
    ]
    environment = {**os.environ, "HOME": str(disks), "TMPDIR": str(_memory_folder(disks))}
    try:
        ended = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, env=environment, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired as expired:
        return f"{(expired.stdout or b'').decode(errors='replace')}\nthe kernel did not end in {SECONDS} seconds"
    text = ended.stdout.decode(errors="replace").replace("\r\n", "\n")
    shutil.rmtree(disks)
    return text


def _memory_folder(disks: Path) -> Path:
    """The kernel's memory is a file: on a disk, it would be written to that disk all the time."""
    shared = Path("/dev/shm")
    has_room = shared.is_dir() and shutil.disk_usage(shared).free > 2 * MEMORY_BYTES
    return shared if has_room else disks


@pytest.fixture(scope="session")
def quota_kernel(tmp_path_factory: pytest.TempPathFactory) -> Console:
    """Of all cases that need one."""
    reason = why_it_cannot_run()
    if reason is not None:
        pytest.skip(reason)
    folder = tmp_path_factory.getbasetemp()
    # With several workers each has a folder of its own in the one they share.
    shared = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    return console_of(CASES, shared)
