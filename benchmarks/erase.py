"""How fast a folder is erased beside `rm -rf`, measured in one run and printed as a ratio.

100 folders of 1,000 small files each, on tmpfs and, for root, on new ext4 and XFS images on loop devices. Both ways
take turns on trees made alike; what is not yet on disk is written out before each turn, and each figure is the best of
its rounds. While a turn is measured it goes before other work of the machine, where we may ask for that: two threads
are no faster than one on a machine whose cores are all taken. Everything happens in a mount namespace of its own.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from orlop.host.erase.erase_folder import erase_folder

IMAGE_BYTES = 2 * 2**30
MAKERS = {"ext4": ("mkfs.ext4", "-q", "-F"), "xfs": ("mkfs.xfs", "-q")}
SESSION_PRIORITY = Path("/proc/self/autogroup")
IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"


def plant(place: Path, folders: int, files: int) -> None:
    place.mkdir()
    for folder in range(folders):
        (place / str(folder)).mkdir()
        descriptor = os.open(place / str(folder), os.O_RDONLY)
        for file in range(files):
            small = os.open(f"file-{file}", os.O_CREAT | os.O_WRONLY, dir_fd=descriptor)
            os.write(small, b"small")
            os.close(small)
        os.close(descriptor)
    os.sync()


def ours(place: Path) -> None:
    trash = os.open(place.parent, os.O_RDONLY)
    erasure = erase_folder(trash, place.name, threading.Event())
    os.close(trash)
    if not erasure.is_complete:
        sys.exit(f"not erased: {erasure}")


def rm(place: Path) -> None:
    subprocess.run(["rm", "-rf", place], check=True)


def seconds(erase: Callable[[Path], None], place: Path) -> float:
    with first_on_the_machine():
        began = time.perf_counter()
        erase(place)
        return time.perf_counter() - began


@contextlib.contextmanager
def first_on_the_machine() -> Iterator[None]:
    """Where the kernel shares its time among sessions (autogroups), a single process's priority is of no account."""
    with contextlib.suppress(OSError):
        SESSION_PRIORITY.write_text("-20")
    yield
    with contextlib.suppress(OSError):
        SESSION_PRIORITY.write_text("0")


def measure(kind: str, place: Path, options: argparse.Namespace) -> None:
    figures: dict[Callable[[Path], None], list[float]] = {ours: [], rm: []}
    for _ in range(options.rounds):
        for erase, taken in figures.items():
            plant(place / "tree", options.folders, options.files)
            taken.append(seconds(erase, place / "tree"))
    best_ours, best_rm = min(figures[ours]), min(figures[rm])
    total = options.folders * options.files
    print(f"{kind:6} {best_rm:8.2f} s {best_ours:8.2f} s {total / best_ours:10,.0f} /s {best_rm / best_ours:8.2f}")


def mount(kind: str, folder: Path) -> Path:
    place = folder / kind
    place.mkdir()
    if kind == "tmpfs":
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], check=True)
        return place
    image = folder / f"{kind}.img"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([*MAKERS[kind], image], check=True)
    subprocess.run(["mount", "-t", kind, "-o", "loop", image, place], check=True)
    return place


def kinds() -> list[str]:
    is_root = Path("/proc/self/uid_map").read_text().split()[1:2] == ["0"]
    return ["tmpfs", *(kind for kind, (program, *_) in MAKERS.items() if is_root and shutil.which(program))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folders", type=int, default=100)
    parser.add_argument("--files", type=int, default=1_000, help="in each folder")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    print(f"erasing {options.folders} folders of {options.files:,} files; the last column is the figure that counts")
    print(f"{'':6} {'rm -rf':>10} {'ours':>10} {'':>13} {'times as fast':>8}")
    with tempfile.TemporaryDirectory(prefix="orlop-erase-") as folder:
        for kind in kinds():
            place = mount(kind, Path(folder))
            measure(kind, place, options)
            subprocess.run(["umount", place], check=True)
            (Path(folder) / f"{kind}.img").unlink(missing_ok=True)


if __name__ == "__main__":
    if IN_NAMESPACE not in os.environ:
        user = [] if os.geteuid() == 0 else ["--map-root-user"]
        command = [
            "setsid",
            "--wait",
            "unshare",
            "--mount",
            "--propagation",
            "private",
            *user,
            sys.executable,
            *sys.argv,
        ]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again
    main()
