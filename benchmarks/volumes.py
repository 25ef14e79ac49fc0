"""How long the parts of a persistent volume take.

    python benchmarks/volumes.py choice [--drives 10000]
    python benchmarks/volumes.py images [--volumes 30] [--memory 100]

`choice` is the choice of a drive among many, by the kind of request and its answer. The goal is 10 ms for 10,000.

`images` makes, stages and publishes image volumes, and takes them apart, with `orlop driver` over its socket and with
the programs that peers run (fallocate, mkfs, losetup, mount, umount), in turns on one new XFS, in a mount namespace of
their own. Ours are durable when they are acknowledged. The goal is a quarter of the programs' time. Then it shows the
memory of the process with many published volumes; the goal is 50 MB for 100.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.driver.persistent.drive_choice_rules import DriveFacts, Offer, choose_drive
from orlop.driver.persistent.volume_request_rules import SizeRange, WantedStorage, WantedTopology, WantedVolume
from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.kube.selectors import LabelSelector
from orlop.records.drive import Allocation
from orlop.records.drive_record import DriveRecord, DriveType, encode_drive
from orlop.records.volume_context import TOPOLOGY_NODE, VolumeContext, encode_context

GIB = 1 << 30
OFFER = Offer("xfs", ("directory", "image"))
DRIVES_OF_A_NODE = 10
VOLUMES_OF_A_DRIVE = 20
ROUNDS = 30


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
DRIVE = "6d7f3c1e-0a0b-4c1d-8e2f-000000000001"
CONTEXT = encode_context(
    VolumeContext(drive=DRIVE, bytes=IMAGE_BYTES, backing="image", file_system="xfs", volume_mode="Filesystem")
)
CAPABILITY = csi_pb2.VolumeCapability(
    mount=csi_pb2.VolumeCapability.MountVolume(fs_type="xfs"),
    access_mode=csi_pb2.VolumeCapability.AccessMode(
        mode=csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_MULTI_WRITER
    ),
)


class Driver:
    """`orlop driver` with one folder drive that takes the whole disk."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.kubelet, self.folders = folder, folder / "kubelet", folder / "folders"
        for path in (self.kubelet, self.folders):
            path.mkdir()
        record = DriveRecord(
            drive_id=DRIVE,
            type=DriveType.FOLDER,
            file_system="xfs",
            capacity_bytes=CAPACITY,
            node_name="n",
            created_at=0.0,
        )
        LinuxFolderDrives(str(self.folders)).make_folder_drive(
            str(self.folders / "a"), encode_drive(record), record.capacity_bytes
        )

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        flags = {
            "nodeid": "n",
            "endpoint": f"unix://{self.folder}/csi.sock",
            "workdir": "",
            "kubelet-dir": self.kubelet,
            "drives-dir": self.folder / "drives",
            "folder-root": self.folders,
            "log-level": "warning",
        }
        words = [sys.executable, "-m", "orlop", "driver", *(f"--{name}={value}" for name, value in flags.items())]
        with subprocess.Popen(words) as process:
            try:
                yield process
            finally:
                process.terminate()

    def paths(self, name: str) -> tuple[str, str]:
        staging = self.kubelet / f"plugins/kubernetes.io/csi/csi.orlop.dev/{name}/globalmount"
        target = self.kubelet / f"pods/{name}/volumes/kubernetes.io~csi/{name}/mount"
        staging.mkdir(parents=True, exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(staging), str(target)

    async def use(self, connection: GrpcConnection, name: str) -> None:
        staging, target = self.paths(name)
        stage = csi_pb2.NodeStageVolumeRequest(
            volume_id=name, staging_target_path=staging, volume_capability=CAPABILITY, volume_context=CONTEXT
        )
        publish = csi_pb2.NodePublishVolumeRequest(
            volume_id=name, staging_target_path=staging, target_path=target, volume_capability=CAPABILITY
        )
        await connection.call(rpc.NODE_STAGE_VOLUME.path, stage.SerializeToString(), 60.0)
        await connection.call(rpc.NODE_PUBLISH_VOLUME.path, publish.SerializeToString(), 60.0)

    async def leave(self, connection: GrpcConnection, name: str) -> None:
        staging, target = self.paths(name)
        unpublish = csi_pb2.NodeUnpublishVolumeRequest(volume_id=name, target_path=target)
        unstage = csi_pb2.NodeUnstageVolumeRequest(volume_id=name, staging_target_path=staging)
        await connection.call(rpc.NODE_UNPUBLISH_VOLUME.path, unpublish.SerializeToString(), 60.0)
        await connection.call(rpc.NODE_UNSTAGE_VOLUME.path, unstage.SerializeToString(), 60.0)


def run(*words: str | Path) -> str:
    return subprocess.run([str(word) for word in words], check=True, capture_output=True, text=True).stdout.strip()


def by_programs(folder: Path, name: str) -> tuple[float, float]:
    """Return the seconds that a volume takes to be made and published, and to be taken apart."""
    image, staging, target = (folder / f"{name}.{part}" for part in ("img", "staging", "target"))
    staging.mkdir()
    target.mkdir()
    began = time.perf_counter()
    run("fallocate", "-l", str(IMAGE_BYTES), image)
    run("mkfs.xfs", "-q", image)
    device = run("losetup", "--find", "--show", "--direct-io=on", image)
    run("mount", "-t", "xfs", "-o", "nouuid", device, staging)
    run("mount", "--bind", staging, target)
    used = time.perf_counter()
    run("umount", target)
    run("umount", staging)
    run("losetup", "--detach", device)
    ended = time.perf_counter()
    image.unlink()
    return used - began, ended - used


async def compare(
    driver: Driver, process: subprocess.Popen[bytes], programs: Path, count: int
) -> dict[str, list[tuple[float, float]]]:
    figures: dict[str, list[tuple[float, float]]] = {"orlop": [], "programs": []}
    connection = GrpcConnection(UnixEndpoint(f"{driver.folder}/csi.sock"))
    await connection.connected()
    for number in range(-1, count):  # the first one is not counted: mkfs runs once for each size
        name = f"pvc-{number + 1}"
        driver.paths(name)
        began = time.perf_counter()
        await until_known(driver, connection, name)
        used = time.perf_counter()
        await driver.leave(connection, name)
        ours = (used - began, time.perf_counter() - used)
        theirs = by_programs(programs, name)
        if number == -1:
            ours_before, theirs_before = cpu_of(process), cpu_of_children()
        else:
            figures["orlop"].append(ours)
            figures["programs"].append(theirs)
    await connection.close()
    spent = (cpu_of(process) - ours_before) / count, (cpu_of_children() - theirs_before) / count
    print(f"CPU for each volume: orlop {spent[0] * 1e3:.1f} ms, programs {spent[1] * 1e3:.1f} ms")
    return figures


def cpu_of(process: subprocess.Popen[bytes]) -> float:
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def cpu_of_children() -> float:
    times = os.times()
    return times.children_user + times.children_system


async def until_known(driver: Driver, connection: GrpcConnection, name: str) -> None:
    """Use a volume; wait before the first one until the drive is open."""
    for _ in range(100):
        try:
            return await driver.use(connection, name)
        except Exception as error:  # noqa: BLE001 - of the last try it is shown
            last = error
            await asyncio.sleep(0.1)
    raise last


def images(count: int, published: int) -> None:
    folder = Path(tempfile.mkdtemp(prefix="orlop-volumes-"))
    try:
        with new_disk(folder) as disk:
            programs = disk / "programs"
            programs.mkdir()
            driver = Driver(disk)
            with driver.running() as process:
                show_times(asyncio.run(compare(driver, process, programs, count)))
                shutil.rmtree(programs)
                asyncio.run(show_memory(driver, process, published))
    finally:
        shutil.rmtree(folder)


def show_times(figures: dict[str, list[tuple[float, float]]]) -> None:
    print(f"image volumes of {IMAGE_BYTES >> 20} MiB (XFS), one after the other: p50 and p99 in milliseconds")
    for place, what in enumerate(("create, stage, publish", "unpublish, unstage")):
        medians = {}
        for name, pairs in figures.items():
            seconds = sorted(pair[place] for pair in pairs)
            medians[name] = statistics.median(seconds)
            worst = seconds[min(len(seconds) - 1, int(len(seconds) * 0.99))]
            print(f"  {what:<24} {name:<10} {medians[name] * 1e3:8.1f} {worst * 1e3:8.1f}")
        print(f"  {what:<24} {medians['programs'] / medians['orlop']:.1f} times cheaper than the programs")


async def show_memory(driver: Driver, process: subprocess.Popen[bytes], count: int) -> None:
    connection = GrpcConnection(UnixEndpoint(f"{driver.folder}/csi.sock"))
    await connection.connected()
    names = [f"memory-{number}" for number in range(count)]
    for name in names:
        await driver.use(connection, name)
    print(f"memory with {count} published volumes: {resident(process) / 1024:.1f} MB")
    for name in names:
        await driver.leave(connection, name)
    await connection.close()


def resident(process: subprocess.Popen[bytes]) -> int:
    status = Path(f"/proc/{process.pid}/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))


@contextmanager
def new_disk(folder: Path) -> Iterator[Path]:
    """A new XFS, whose mounts are seen by others as kubelet's are."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(DISK_BYTES)
    run("mkfs.xfs", "-q", image)
    run("mount", "-o", "loop", image, place)
    run("mount", "--make-shared", place)
    try:
        yield place
    finally:
        run("umount", "--lazy", place)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("choice", "images"), nargs="?", default="choice")
    parser.add_argument("--drives", type=int, default=10_000)
    parser.add_argument("--volumes", type=int, default=30)
    parser.add_argument("--memory", type=int, default=100)
    options = parser.parse_args()
    if options.what == "choice":
        choice(options.drives)
    elif IN_NAMESPACE in os.environ:
        images(options.volumes, options.memory)
    else:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again


if __name__ == "__main__":
    main()
