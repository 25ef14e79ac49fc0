"""Run a benchmark on a kernel that has project quotas: this one, or user-mode-linux, a kernel that is a process.

    folder = folder_with_quota(drive_id)      # None in the process that started the other kernel

user-mode-linux sees this machine's files read-only. A system call costs it some microseconds more than here, and to
start a program costs it three times as much, so only ratios of one run say something.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LAUNCHER = REPOSITORY / "tests/support/host/kernel_launcher.py"
KERNEL = "linux.uml"
DISK_BYTES = 8 << 30
MEMORY = "2G"
WORDS = (
    # Inside, a page fault clears the AVX registers (see the launcher).
    "GLIBC_TUNABLES=glibc.cpu.hwcaps=-AVX,-AVX2,-AVX512F,-AVX512VL,-AVX512BW,-AVX_Fast_Unaligned_Load",
    "OPENSSL_ia32cap=0:0",
)
FOLDER = "ORLOP_BENCHMARK_QUOTA_FOLDER"
INIT = """#!/bin/sh
export PATH=/usr/sbin:/usr/bin:/sbin:/bin
mount -t proc proc /proc; mount -t sysfs sys /sys
mount -t tmpfs tmpfs /mnt; mkdir -p /mnt/tmp /mnt/drives/{drive}
mount -t xfs -o prjquota,noatime /dev/ubda /mnt/drives/{drive}
cd {root}
export {folder}=/mnt TMPDIR=/mnt/tmp HOME=/mnt/tmp PYTHONDONTWRITEBYTECODE=1
{python} {words} 2>&1
sync
echo o >/proc/sysrq-trigger
sleep 5
"""


def folder_with_quota(drive_id: str) -> Path | None:
    """Return a folder where `drives/<drive_id>` is an XFS with quotas; None if this program ran to its end there."""
    if FOLDER in os.environ:
        return Path(os.environ[FOLDER])
    missing = [name for name in (KERNEL, "mkfs.xfs", "xfs_quota") if shutil.which(name) is None]
    if missing:
        raise SystemExit(f"needs {', '.join(missing)}: make test installs what the tests need")
    folder = Path(tempfile.mkdtemp(prefix="orlop-quota-"))
    try:
        _run(folder, drive_id)
    finally:
        shutil.rmtree(folder)
    return None


def _run(folder: Path, drive_id: str) -> None:
    disk = folder / "disk.img"
    with disk.open("wb") as image:
        image.truncate(DISK_BYTES)
    subprocess.run(["mkfs.xfs", "-q", "-L", "orlop", "-m", f"uuid={drive_id}", disk], check=True)
    init = folder / "init.sh"
    words = " ".join(str(word) for word in (Path(sys.argv[0]).resolve(), *sys.argv[1:]))
    init.write_text(INIT.format(drive=drive_id, root=REPOSITORY, folder=FOLDER, python=sys.executable, words=words))
    init.chmod(0o755)
    command = [
        *(sys.executable, "-S", LAUNCHER, KERNEL, *WORDS, f"mem={MEMORY}"),
        *("root=/dev/root", "rootfstype=hostfs", "rootflags=/", "ro", f"init={init}"),
        *(f"ubd0={disk}", "con=null", "con0=null,fd:1", "quiet"),
    ]
    # The kernel's memory is a file: on a disk, it would be written to that disk all the time.
    memory = "/dev/shm"  # noqa: S108 - as on every Linux
    environment = {**os.environ, "HOME": str(folder), "TMPDIR": memory if Path(memory).is_dir() else str(folder)}
    subprocess.run(command, stdin=subprocess.DEVNULL, env=environment, check=False)


@contextmanager
def shared_mount(folder: Path) -> Iterator[Path]:
    """Make a folder a shared mount, as kubelet's is."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "--bind", folder, folder], check=True)
    subprocess.run(["mount", "--make-shared", folder], check=True)
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)
