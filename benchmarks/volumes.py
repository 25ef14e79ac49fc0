"""How long the parts of a persistent volume take.

    python benchmarks/volumes.py choice [--drives 10000]
    python benchmarks/volumes.py images [--volumes 30] [--memory 100]
    python benchmarks/volumes.py sizes [--volumes 30]
    python benchmarks/volumes.py directories [--volumes 30]
    python benchmarks/volumes.py node [--memory 100]

`choice` is the choice of a drive among many, by the kind of request and its answer. The goal is 10 ms for 10,000.

`images` makes, stages and publishes image volumes with XFS and with ext4, and takes them apart, with `orlop driver`
over its socket and with the programs that peers run, in turns on one new XFS, in a mount namespace of their own. The
programs are fallocate, mkfs, losetup, mount and mount --bind; then umount twice and losetup --detach: nothing calls
them over a socket, and they write no record and make nothing durable. Ours are four CSI calls, durable when they are
acknowledged. Both include the kernel's mount and unmount of the new file system: the rows "mount, umount alone" show
these two programs by themselves, a time that no driver can avoid. The goal is a quarter of the programs' time. Then it
compares direct I/O in a volume with that on the disk (the goal is 0.9 of it), and shows the memory of the process with
many published volumes.

`sizes` does the same for larger images, one after the other and ten at a time: mkfs takes longer for a larger image,
and a copied file system does not. Both sides allocate all of the image.

`directories` does the same with directory volumes (xfs_quota, mount, umount) in user-mode-linux, which has quotas. The
goals are a fiftieth of the programs' time, and 0.97 of the disk's I/O.

`node` is the memory of `orlop node` with many published image volumes, whose objects it keeps at an API server
(`orlop apiserver`, a process of its own); the goal is 50 MB for 100.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from measuring.api_access import api_server, client_of
from measuring.directory_volumes import directories
from measuring.time_table import show_times
from measuring.volume_driver import DRIVE, Driver, run
from measuring.volume_io import compare_io
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.driver.persistent.drive_choice_rules import DriveFacts, Offer, choose_drive
from orlop.driver.persistent.volume_request_rules import SizeRange, WantedStorage, WantedTopology, WantedVolume
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NODE
from orlop.kube.selectors import LabelSelector
from orlop.records.api_record import new_object
from orlop.records.definitions import definitions
from orlop.records.drive import Allocation, FileSystem
from orlop.records.volume import VOLUME, DriveVolumeSpec
from orlop.records.volume_context import TOPOLOGY_NODE, VolumeContext

GIB = 1 << 30
OFFER = Offer("xfs", ("directory", "image"))
DRIVES_OF_A_NODE = 10
VOLUMES_OF_A_DRIVE = 20
ROUNDS = 30
IO_BATCHES = 200


def fleet(count: int) -> list[DriveFacts]:
    """Drives of many sizes, each with volumes and a label of its own."""
    return [
        DriveFacts(
            name=f"drive-{number}",
            node_name=f"node-{number // DRIVES_OF_A_NODE}",
            labels=(("rack", f"r{number % 40}"),),
            capacity=(number % 97 + 1) * GIB,
            free=(number % 97 + 1) * GIB - VOLUMES_OF_A_DRIVE * (1 << 20),
            allocations={
                f"v-{number}-{each}": Allocation(volume=f"v-{number}-{each}", bytes=1 << 20)
                for each in range(VOLUMES_OF_A_DRIVE)
            },
            offer=OFFER,
        )
        for number in range(count)
    ]


def requests(nodes: int) -> dict[str, WantedVolume]:
    everywhere = tuple({TOPOLOGY_NODE: f"node-{number}"} for number in range(nodes))
    return {
        "any drive": wanted(),
        "one node (strict topology)": wanted(topology=WantedTopology(everywhere[5:6], everywhere[5:6])),
        "every node in an order": wanted(topology=WantedTopology(everywhere, everywhere)),
        "a drive selector": wanted(storage=WantedStorage(selector=LabelSelector.parse("rack in (r1, r2)"))),
        "a tier that no drive has": wanted(storage=WantedStorage(tier="hot")),
        "more than any drive has": wanted(size=SizeRange(98 * GIB)),
    }


def wanted(
    storage: WantedStorage | None = None,
    size: SizeRange = SizeRange(GIB),  # noqa: B008 - frozen
    topology: WantedTopology = WantedTopology(),  # noqa: B008 - frozen
) -> WantedVolume:
    return WantedVolume(
        name="pvc-1", volume_id="pvc-1", storage=storage or WantedStorage(), size=size, topology=topology
    )


def choice(count: int) -> None:
    drives = fleet(count)
    print(f"choice among {count} drives, milliseconds of CPU: median and worst of {ROUNDS}")
    for name, request in requests(count // DRIVES_OF_A_NODE).items():
        seconds = sorted(_seconds(request, drives) for _ in range(ROUNDS))
        answer = type(choose_drive(request, drives)).__name__
        print(f"  {name:<28} {seconds[ROUNDS // 2] * 1e3:6.1f} {seconds[-1] * 1e3:6.1f}   {answer}")


def _seconds(request: WantedVolume, drives: list[DriveFacts]) -> float:
    began = time.process_time()
    choose_drive(request, drives)
    return time.process_time() - began


# ---- images ----------------------------------------------------------------------------------------------------------

IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"
DISK_BYTES = 64 * GIB
CAPACITY = 56 * GIB
IMAGE_BYTES = 320 << 20
SIZES = (IMAGE_BYTES, 10 * GIB, 100 * GIB)
IN_FLIGHT = 10
MOUNT_ALONE = "mount, umount alone"
CONTEXT = VolumeContext(drive=DRIVE, bytes=IMAGE_BYTES, backing="image", file_system="xfs", volume_mode="Filesystem")
KINDS: tuple[FileSystem, ...] = ("xfs", "ext4")
Pair: TypeAlias = tuple[float, float]
"""Seconds to make a volume and publish it, and to take it apart."""


def by_programs(folder: Path, name: str, kind: FileSystem, size: int = IMAGE_BYTES) -> tuple[Pair, Pair]:
    """Return the seconds of all programs, and those of the mount and the unmount of the new file system among them."""
    image, staging, target = (folder / f"{name}.{part}" for part in ("img", "staging", "target"))
    staging.mkdir()
    target.mkdir()
    began = time.perf_counter()
    run("fallocate", "-l", str(size), image)
    run(f"mkfs.{kind}", "-q", image)
    device = run("losetup", "--find", "--show", "--direct-io=on", image)
    before_mount = time.perf_counter()
    run("mount", "-t", kind, "-o", "nouuid" if kind == "xfs" else "rw", device, staging)
    mounted = time.perf_counter()
    run("mount", "--bind", staging, target)
    used = time.perf_counter()
    run("umount", target)
    before_unmount = time.perf_counter()
    run("umount", staging)
    unmounted = time.perf_counter()
    run("losetup", "--detach", device)
    ended = time.perf_counter()
    image.unlink()
    return (used - began, ended - used), (mounted - before_mount, unmounted - before_unmount)


async def compare(
    driver: Driver, process: subprocess.Popen[bytes], programs: Path, count: int, kind: FileSystem
) -> dict[str, list[Pair]]:
    figures: dict[str, list[Pair]] = {"orlop": [], "programs": [], MOUNT_ALONE: []}
    driver.set_context(replace(CONTEXT, file_system=kind))
    connection = GrpcConnection(UnixEndpoint(f"{driver.folder}/csi.sock"))
    await connection.connected()
    for number in range(-1, count):  # the first one is not counted: mkfs runs once for each size
        name = f"{kind}-{number + 1}"
        driver.paths(name)
        began = time.perf_counter()
        await driver.use_first(connection, name)
        used = time.perf_counter()
        await driver.leave(connection, name)
        ours = (used - began, time.perf_counter() - used)
        theirs, kernels = by_programs(programs, name, kind)
        if number == -1:
            ours_before, theirs_before = cpu_of(process), cpu_of_children()
        else:
            figures["orlop"].append(ours)
            figures["programs"].append(theirs)
            figures[MOUNT_ALONE].append(kernels)
    await connection.close()
    spent = (cpu_of(process) - ours_before) / count, (cpu_of_children() - theirs_before) / count
    print(f"CPU for each volume with {kind}: orlop {spent[0] * 1e3:.1f} ms, programs {spent[1] * 1e3:.1f} ms")
    return figures


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


def images(count: int, published: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="orlop-volumes-"))
    try:
        with new_disk(folder) as disk:
            programs = disk / "programs"
            programs.mkdir()
            driver = Driver(disk, CONTEXT)
            driver.make_folder_drive(CAPACITY)
            with driver.running() as process:
                for kind in KINDS:
                    show_figures(asyncio.run(compare(driver, process, programs, count, kind)), kind)
                shutil.rmtree(programs)
                driver.set_context(CONTEXT)
                asyncio.run(image_io(driver, disk))
                asyncio.run(show_memory(driver, process, published))
    finally:
        shutil.rmtree(folder)


def sizes(count: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="orlop-volumes-"))
    try:
        # Room for all volumes, which are not deleted: nothing is written into most of their space. Beside the drive are
        # the images that the programs have at a time.
        capacity = (count + max(count, IN_FLIGHT) + 1) * len(KINDS) * sum(SIZES)
        with new_disk(folder, capacity + capacity // 50 + (IN_FLIGHT + 1) * SIZES[-1]) as disk:
            programs = disk / "programs"
            programs.mkdir()
            driver = Driver(disk, CONTEXT)
            driver.make_folder_drive(capacity)
            with driver.running():
                for kind in KINDS:
                    for size in SIZES:
                        asyncio.run(compare_size(driver, programs, count, kind, size))
    finally:
        shutil.rmtree(folder)


async def compare_size(driver: Driver, programs: Path, count: int, kind: FileSystem, size: int) -> None:
    ours, theirs, kernels, ours_together, theirs_together = [], [], [], [], []
    driver.set_context(replace(CONTEXT, file_system=kind, bytes=size))

    async def live(connection: GrpcConnection, name: str) -> float:
        driver.paths(name)
        began = time.perf_counter()
        await driver.use_first(connection, name)
        await driver.leave(connection, name)
        return time.perf_counter() - began

    def program(name: str) -> Pair:
        whole, kernel = by_programs(programs, name, kind, size)
        return sum(whole), sum(kernel)

    async with driver.connected() as connection:
        await live(connection, f"{kind}-{size}-first")  # mkfs runs once for each size
        for number in range(count):
            name = f"{kind}-{size}-{number}"
            ours.append(await live(connection, name))
            whole, kernel = program(name)
            theirs.append(whole)
            kernels.append(kernel)
        for number in range(max(1, count // IN_FLIGHT)):
            names = [f"{kind}-{size}-{number}-{each}" for each in range(IN_FLIGHT)]
            began = time.perf_counter()
            await asyncio.gather(*(live(connection, name) for name in names))
            ended = time.perf_counter()
            await asyncio.gather(*(asyncio.to_thread(program, name) for name in names))
            ours_together.append((ended - began) / IN_FLIGHT)
            theirs_together.append((time.perf_counter() - ended) / IN_FLIGHT)
    what = f"image volumes of {size / GIB:g} GiB ({kind}), made, staged, published and back"
    show_times(f"{what}, one after the other", {"orlop": ours, "programs": theirs, MOUNT_ALONE: kernels})
    show_times(f"{what}, {IN_FLIGHT} at a time", {"orlop": ours_together, "programs": theirs_together})


async def image_io(driver: Driver, disk: Path) -> None:
    async with driver.connected() as connection:
        await driver.use(connection, "io")
        _, target = driver.paths("io")
        compare_io({"the disk": disk, "an image": Path(target)}, IO_BATCHES)
        await driver.leave(connection, "io")


def show_figures(figures: dict[str, list[Pair]], kind: FileSystem) -> None:
    for place, what in enumerate(("create, stage, publish", "unpublish, unstage")):
        seconds = {name: [pair[place] for pair in pairs] for name, pairs in figures.items()}
        show_times(f"image volumes of {IMAGE_BYTES >> 20} MiB ({kind}), one after the other: {what}", seconds)


async def show_memory(driver: Driver, process: subprocess.Popen[bytes], count: int) -> None:
    connection = GrpcConnection(UnixEndpoint(f"{driver.folder}/csi.sock"))
    await connection.connected()
    names = [f"memory-{number}" for number in range(count)]
    for name in names:
        await driver.use(connection, name)
    print(f"memory with {count} published volumes: {memory_of(process)}")
    for name in names:
        await driver.leave(connection, name)
    await connection.close()


def memory_of(process: subprocess.Popen[bytes]) -> str:
    """Return what is resident, with a part of what is shared with other processes (PSS), and at most so far."""
    lines = [*Path(f"/proc/{process.pid}/smaps_rollup").read_text().splitlines()[1:]]
    lines += Path(f"/proc/{process.pid}/status").read_text().splitlines()
    sizes = {line.partition(":")[0]: line.split()[1] for line in lines if line.endswith("kB")}
    resident, share, most = (int(sizes[name]) / 1024 for name in ("Rss", "Pss", "VmHWM"))
    return f"{resident:.1f} MB, PSS {share:.1f}, at most {most:.1f}"


def node(published: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="orlop-volumes-"))
    try:
        with new_disk(folder) as disk, api_server("", folder) as kubeconfig:
            driver = Driver(disk, CONTEXT)
            driver.make_folder_drive(CAPACITY)
            asyncio.run(node_memory(driver, kubeconfig, published))
    finally:
        shutil.rmtree(folder)


async def node_memory(driver: Driver, kubeconfig: Path, count: int) -> None:
    registry = driver.folder / "registry"
    registry.mkdir()
    async with client_of(kubeconfig) as client:
        for definition in definitions():
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        await client.create(NODE, {"metadata": {"name": "n"}})
        for number in range(count):
            spec = DriveVolumeSpec(
                drive=DRIVE,
                node_name="n",
                bytes=IMAGE_BYTES,
                backing="image",
                file_system="xfs",
                volume_mode="Filesystem",
                persistent_volume=f"memory-{number}",
            )
            await client.create(VOLUME, new_object("Volume", f"memory-{number}", spec))
        flags = {"kubeconfig": kubeconfig, "plugin-registration-path": registry}
        for is_measured in (False, True):  # the first process compiles the modules, which takes memory that is kept
            with driver.running("node", **flags) as process:
                await driver.use_one()
                if is_measured:
                    print(f"memory before: {memory_of(process)}")
                    await show_memory(driver, process, count)


@contextmanager
def new_disk(folder: Path, size: int = DISK_BYTES) -> Iterator[Path]:
    """A new XFS, whose mounts are seen by others as kubelet's are."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(size)
    run("mkfs.xfs", "-q", image)
    # Direct I/O: otherwise the figures would be those of this machine's memory.
    device = run("losetup", "--find", "--show", "--direct-io=on", image)
    run("mount", device, place)
    run("mount", "--make-shared", place)
    try:
        yield place
    finally:
        run("umount", "--lazy", place)
        run("losetup", "--detach", device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "what", choices=("choice", "images", "sizes", "directories", "node"), nargs="?", default="choice"
    )
    parser.add_argument("--drives", type=int, default=10_000)
    parser.add_argument("--volumes", type=int, default=30)
    parser.add_argument("--memory", type=int, default=100)
    options = parser.parse_args()
    if options.what == "choice":
        choice(options.drives)
    elif options.what == "directories":
        directories(options.volumes)
    elif IN_NAMESPACE in os.environ and options.what == "sizes":
        sizes(options.volumes)
    elif IN_NAMESPACE in os.environ and options.what == "node":
        node(options.memory)
    elif IN_NAMESPACE in os.environ:
        images(options.volumes, options.memory)
    else:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again


if __name__ == "__main__":
    main()
