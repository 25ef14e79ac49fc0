"""Static volumes: how fast disks are found, listed after a mount, and wiped beside blkdiscard, shred and dd.

Needs root. Everything happens in a mount namespace of its own, on loop devices over sparse files. A discovery pass
reads 1,000 entries: mounted file systems, and links to devices. A wipe is that of the worker's own code, with all its
checks; each program of util-linux and coreutils takes turns with it on the same device, and each figure is the best of
its rounds. The last figure is that of the real program, with an API server of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import SystemRandom

from measuring.api_access import api_server, client_of
from measuring.processes import served
from orlop.foundation.clock import SystemClock
from orlop.host.static_disks.linux_static_host import LinuxStaticHost
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NAMESPACE, kind_of_object
from orlop.records.definitions import definitions
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.static_pv.configuration import StaticClass, StaticConfiguration
from orlop.static_pv.discovery_rules import ClassListing, discovered
from orlop.static_pv.wipe_method_rules import OverwriteDevice, wipe_method
from orlop.static_pv.wipe_rules import WipeProgress
from orlop.static_pv.wiping import DEFAULT_LIMITS, overwrite_steps

IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"
MIB = 1 << 20
NODE, SPACE = "bench", "orlop-static"


def host() -> LinuxStaticHost:
    return LinuxStaticHost(SystemClock(), SystemRandom(), os.environ)


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextlib.contextmanager
def loop(image: Path, size: int) -> Iterator[Path]:
    with image.open("wb") as file:
        file.truncate(size)
    words = ["losetup", "--find", "--show", image]
    device = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    try:
        yield Path(device)
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)
        image.unlink()


# ---- discovery -------------------------------------------------------------------------------------------------------


def measure_discovery(folder: Path, options: argparse.Namespace) -> None:
    disks = folder / "disks"
    disks.mkdir()
    for number in range(options.mounts):
        (disks / f"mount{number}").mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disks / f"mount{number}"], check=True)
    with contextlib.ExitStack() as stack:
        devices = [stack.enter_context(loop(folder / f"{number}.img", MIB)) for number in range(options.devices)]
        for number in range(options.entries - options.mounts):
            (disks / f"link{number}").symlink_to(devices[number % len(devices)])
        static_class = StaticClass("fast", str(disks), str(disks))
        machine = host()

        def one_pass() -> None:
            entries = machine.survey(str(disks), lambda _name: True)
            discovered(StaticConfiguration((static_class,)), [ClassListing("fast", entries)], NODE)

        best = min(seconds(one_pass) for _ in range(options.rounds))
    print(f"a pass over {options.entries:,} entries, {options.mounts} of them mounts: {best * 1000:.0f} ms")
    for number in range(options.mounts):
        subprocess.run(["umount", disks / f"mount{number}"], check=True)


# ---- wiping ----------------------------------------------------------------------------------------------------------


def ours(disks: Path, command: tuple[str, ...]) -> Callable[[], None]:
    method = wipe_method(command)
    if not isinstance(method, OverwriteDevice):
        sys.exit(f"{command} is not done by our own code")

    def wipe() -> None:
        held = host().held_device(str(disks), "a", "")
        for _ in overwrite_steps(held, method, WipeProgress(), DEFAULT_LIMITS, SystemClock()):
            pass

    return wipe


def program(*words: object) -> Callable[[], None]:
    return lambda: void(subprocess.run([str(word) for word in words], check=True, capture_output=True))


def void(_result: object) -> None:
    """Drop a result."""


def measure_wipes(folder: Path, options: argparse.Namespace) -> None:
    disks = folder / "wiped"
    disks.mkdir()
    size = options.mebibytes * MIB
    with loop(folder / "wiped.img", size) as device:
        (disks / "a").symlink_to(device)
        can_discard = Path(f"/sys/class/block/{device.name}/queue/discard_max_bytes").read_text().strip() != "0"
        dd = program("dd", "if=/dev/zero", f"of={device}", "bs=1M", f"count={options.mebibytes}", "conv=fsync")
        pairs: list[tuple[str, Callable[[], None], str, Callable[[], None]]] = [
            ("zero", ours(disks, ()), "dd", dd),
            (
                "shred 1",
                ours(disks, ("shred.sh", "1")),
                "shred -n1 -z",
                program("shred", "-f", "-n", "1", "-z", device),
            ),
        ]
        if can_discard:
            discard = ours(disks, ("blkdiscard.sh",))
            pairs.append(("discard", discard, "blkdiscard", program("blkdiscard", "-f", device)))
        else:
            print("discard: not measured, the file system below the loop device supports no discard")
        for name, own, other_name, other in pairs:
            fill = program("dd", "if=/dev/urandom", f"of={device}", "bs=1M", f"count={options.mebibytes}", "conv=fsync")
            figures: dict[Callable[[], None], list[float]] = {own: [], other: []}
            for _ in range(options.rounds):
                for wipe, taken in figures.items():
                    fill()
                    taken.append(seconds(wipe))
            best, best_other = min(figures[own]), min(figures[other])
            rate = options.mebibytes / best
            print(
                f"{name:8} {best:7.2f} s {rate:7.0f} MiB/s; {other_name} {best_other:7.2f} s: {best_other / best:.2f}x"
            )


# ---- from a mount to the list ----------------------------------------------------------------------------------------


class ListedVolumes:
    """The list of one worker, as another client of the API server sees it."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client

    async def prepare(self) -> None:
        for obj in definitions():
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            if kind is not None:
                await self._client.create(kind, obj)
        await self._client.create(NAMESPACE, {"metadata": {"name": SPACE}})

    async def until(self, count: int) -> None:
        while await self._count() != count:  # noqa: ASYNC110 - another process writes it
            await asyncio.sleep(0.01)

    async def _count(self) -> int:
        found = (await self._client.list(PROVISIONER_STATUS)).items
        return len(found[0].get("status", {}).get("localVolumes", [])) if found else -1


async def measure_listing(folder: Path, options: argparse.Namespace) -> None:
    disks, config, taken = folder / "listed", folder / "config", []
    for each in (disks, config):
        each.mkdir()
    (config / "storageClassMap").write_text(f"fast:\n  hostDir: {disks}\n")
    with api_server("", folder) as kubeconfig:
        async with client_of(kubeconfig) as client:
            listed = ListedVolumes(client)
            await listed.prepare()
            flags = [f"--node-name={NODE}", f"--static-config={config}", f"--kubeconfig={kubeconfig}"]
            with served(["static-worker", *flags], config):
                await listed.until(0)
                for number in range(options.rounds * 3):
                    point = disks / f"m{number}"
                    point.mkdir()
                    await asyncio.sleep(1)
                    taken.append(await mounted_and_listed(point, listed, number + 1))
    for number in range(options.rounds * 3):
        program("umount", disks / f"m{number}")()
    median = sorted(taken)[len(taken) // 2]
    print(f"from mount to listed: median {median * 1000:.0f} ms, longest {max(taken) * 1000:.0f} ms")


async def mounted_and_listed(point: Path, listed: ListedVolumes, count: int) -> float:
    began = time.perf_counter()
    await asyncio.to_thread(program("mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", point))
    await listed.until(count)
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, default=1_000)
    parser.add_argument("--mounts", type=int, default=500, help="entries that are mounts; the others are links")
    parser.add_argument("--devices", type=int, default=20, help="devices behind the links")
    parser.add_argument("--mebibytes", type=int, default=1024, help="of the device that is wiped")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orlop-static-") as name:
        measure_discovery(Path(name), options)
        measure_wipes(Path(name), options)
        asyncio.run(measure_listing(Path(name), options))


if __name__ == "__main__":
    if IN_NAMESPACE not in os.environ:
        if os.geteuid() != 0:
            sys.exit("needs root: it mounts file systems and wipes loop devices")
        words = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(words[0], words, os.environ | {IN_NAMESPACE: "1"})  # noqa: S606 - the same program again
    main()
