"""How fast pods get their scratch folders and give them back, beside the floor, all measured in one run.

The floor is what one publish (or unpublish) cannot do without, as bare system calls in a tight loop of one thread:
mkdir, the record, fsync, the target, the bind; and umount, rmdir, rename, fsync. Ours is `orlop driver`, a process of
its own, called over its socket with 1, 10 and 50 calls in flight; every call is durable when it is answered. Both work
on one new file system, in a mount namespace of their own; before each of our turns the floor has one, and that is what
it is compared with: how long a mkdir takes depends on how many there were just before.

Two drivers take turns: one retains few folders, the other 10,000; before that, what the second one costs when idle.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.host.kernel import system_calls

IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"
IMAGE_BYTES = 4 * 2**30
RECORD = b"x" * 300
IN_FLIGHT = (1, 10, 50)
WITHIN = 60.0
WRITER = csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_WRITER


@dataclass
class Figures:
    """What calls of one kind took, and how long all of them took together."""

    calls: list[float]
    whole: float

    @property
    def rate(self) -> float:
        return len(self.calls) / self.whole

    def quantile(self, share: float) -> float:
        return sorted(self.calls)[min(len(self.calls) - 1, int(len(self.calls) * share))] * 1000

    def __add__(self, other: Figures) -> Figures:
        return Figures(self.calls + other.calls, self.whole + other.whole)


NOTHING = Figures([], 0.0)


# ---- the floor -------------------------------------------------------------------------------------------------------


class Floor:
    def __init__(self, folder: Path) -> None:
        self.paths = {name: folder / "floor" / name for name in ("live", "retained", "targets")}
        for path in self.paths.values():
            path.mkdir(parents=True, exist_ok=True)
        self.live, self.retained, self.targets = (os.open(path, os.O_RDONLY) for path in self.paths.values())

    def publish(self, name: str) -> None:
        os.mkdir(name, 0o777, dir_fd=self.live)
        source = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=self.live)
        os.setxattr(source, "trusted.orlop.benchmark", RECORD)
        os.fsync(self.live)
        os.mkdir(name, dir_fd=self.targets)
        target = os.open(name, os.O_PATH, dir_fd=self.targets)
        tree = system_calls.clone_tree(source)
        system_calls.attach_tree(tree, target)
        for descriptor in (tree, target, source):
            os.close(descriptor)

    def unpublish(self, name: str) -> None:
        system_calls.umount2(str(self.paths["targets"] / name), 0)
        os.rmdir(name, dir_fd=self.targets)
        os.rename(name, name, src_dir_fd=self.live, dst_dir_fd=self.retained)
        os.fsync(self.retained)


def floor_round(floor: Floor, names: Sequence[str]) -> tuple[Figures, Figures]:
    return timed(floor.publish, names), timed(floor.unpublish, names)


def timed(act: Callable[[str], None], names: Sequence[str]) -> Figures:
    calls, began = [], time.perf_counter()
    for name in names:
        start = time.perf_counter()
        act(name)
        calls.append(time.perf_counter() - start)
    return Figures(calls, time.perf_counter() - began)


# ---- ours ------------------------------------------------------------------------------------------------------------


class Ours:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kubelet, self.workdir, self.socket = folder / "kubelet", folder / "work", folder / "csi.sock"
        for path in (self.kubelet, self.workdir):
            path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def running(self) -> Iterator[subprocess.Popen[bytes]]:
        flags = [f"--endpoint=unix://{self.socket}", f"--workdir={self.workdir}", f"--kubelet-dir={self.kubelet}"]
        more = ["--nodeid=n", f"--adminsocket={self.folder}/admin.sock", "--headroom=0", "--log-level=warning"]
        process = subprocess.Popen([sys.executable, "-m", "orlop", "driver", *flags, *more], env=self.as_installed())
        try:
            while not self.socket.exists():
                time.sleep(0.01)
            yield process
        finally:
            process.terminate()
            process.wait()

    def as_installed(self) -> dict[str, str]:
        """Compiled, as whatever pip has installed is; from the second start on."""
        inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        return {**inherited, "PYTHONPYCACHEPREFIX": str(self.folder / "compiled")}

    def target(self, name: str) -> Path:
        return self.kubelet / f"pods/{name}/volumes/kubernetes.io~csi/scratch/mount"

    def publish_request(self, name: str) -> bytes:
        return csi_pb2.NodePublishVolumeRequest(
            volume_id=name,
            target_path=str(self.target(name)),
            volume_capability=csi_pb2.VolumeCapability(
                mount=csi_pb2.VolumeCapability.MountVolume(),
                access_mode=csi_pb2.VolumeCapability.AccessMode(mode=WRITER),
            ),
            volume_context={"csi.storage.k8s.io/ephemeral": "true", "csi.storage.k8s.io/pod.uid": name},
        ).SerializeToString()

    def unpublish_request(self, name: str) -> bytes:
        return csi_pb2.NodeUnpublishVolumeRequest(
            volume_id=name, target_path=str(self.target(name))
        ).SerializeToString()


async def our_round(ours: Ours, names: Sequence[str], in_flight: int) -> tuple[Figures, Figures]:
    for name in names:
        ours.target(name).parent.mkdir(parents=True)
    connection = GrpcConnection(UnixEndpoint(str(ours.socket)))
    await connection.connected()
    publish = [ours.publish_request(name) for name in names]
    unpublish = [ours.unpublish_request(name) for name in names]
    try:
        return (
            await flown(lambda one: connection.call(rpc.NODE_PUBLISH_VOLUME.path, one, WITHIN), publish, in_flight),
            await flown(lambda one: connection.call(rpc.NODE_UNPUBLISH_VOLUME.path, one, WITHIN), unpublish, in_flight),
        )
    finally:
        await connection.close()


async def flown(call: Callable[[bytes], Awaitable[bytes]], requests: Sequence[bytes], in_flight: int) -> Figures:
    calls: list[float] = []
    waiting = iter(requests)

    async def one_after_the_other() -> None:
        for request in waiting:
            start = time.perf_counter()
            await call(request)
            calls.append(time.perf_counter() - start)

    began = time.perf_counter()
    await asyncio.gather(*(one_after_the_other() for _ in range(in_flight)))
    return Figures(calls, time.perf_counter() - began)


# ---- the tables ------------------------------------------------------------------------------------------------------


def line(what: str, figures: Figures, floor: Figures) -> str:
    return (
        f"{what:26} {figures.rate:8.0f} /s {figures.quantile(0.5):8.2f} ms {figures.quantile(0.99):8.2f} ms "
        f"{figures.rate / floor.rate:8.2f}  {figures.quantile(0.5) - floor.quantile(0.5):+8.2f} ms"
    )


Pair = list[Figures]
"""Of publish and of unpublish."""


Turns = dict[int, Pair]
"""By how many were in flight."""


async def compare(sides: dict[str, Ours], floor: Floor, options: argparse.Namespace) -> dict[str, Turns]:
    """The sides take turns, as what a machine can do changes from minute to minute."""
    floors: dict[str, Turns] = {label: {count: [NOTHING, NOTHING] for count in IN_FLIGHT} for label in sides}
    figures: dict[str, Turns] = {label: {count: [NOTHING, NOTHING] for count in IN_FLIGHT} for label in sides}
    for number in range(options.rounds):
        for count, (label, ours) in itertools.product(IN_FLIGHT, sides.items()):
            names = [volume_id(f"{label} {number} {count} {each}") for each in range(options.volumes)]
            floors[label][count] = added(floors[label][count], floor_round(floor, names))
            figures[label][count] = added(figures[label][count], await our_round(ours, names, count))
    for label, (place, what) in itertools.product(sides, enumerate(("publish", "unpublish"))):
        print(f"{what + ', ' + label:26} {'rate':>11} {'p50':>11} {'p99':>11} {'of floor':>9} {'p50 above':>11}")
        for count in IN_FLIGHT:
            print(line("  the floor", floors[label][count][place], floors[label][count][place]))
            print(line(f"  ours, {count} in flight", figures[label][count][place], floors[label][count][place]))
    return figures


def volume_id(seed: str) -> str:
    """As kubelet gives them to inline volumes."""
    return f"csi-{hashlib.sha256(seed.encode()).hexdigest()}"


def added(sums: Pair, more: tuple[Figures, Figures]) -> Pair:
    return [old + new for old, new in zip(sums, more, strict=True)]


def fill(ours: Ours, count: int) -> None:
    """Retained folders as a driver leaves them: made by the driver itself, from a first one, by copying its record."""
    retained = ours.workdir / "retained"
    record = os.getxattr(next(retained.iterdir()), "trusted.orlop.record").decode()
    known = next(retained.iterdir()).name.split("_", 2)
    for number in range(count):
        volume = f"filled-{number}"
        folder = retained / f"{int(time.time() * 1000)}_{12 * 3600 * 1000}_{volume}"
        folder.mkdir()
        os.setxattr(folder, "trusted.orlop.record", record.replace(known[2], volume).encode())
    os.sync()


def empty(ours: Ours) -> None:
    for folder in (ours.workdir / "retained").iterdir():
        folder.rmdir()


def used(process: subprocess.Popen[bytes]) -> float:
    """Seconds of a core."""
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def settle(process: subprocess.Popen[bytes]) -> None:
    """Until the folders it found at its start have been measured: that is work, and done once."""
    began, before = time.perf_counter(), used(process)
    while True:
        time.sleep(3)
        now = used(process)
        if now - before < 3 * 0.02:
            break
        before = now
    print(f"sizes of all that was found are known after {time.perf_counter() - began:.0f} s")


def idle(process: subprocess.Popen[bytes], seconds: float) -> tuple[float, float]:
    """The share of a core, and megabytes."""
    before = used(process)
    time.sleep(seconds)
    share = (used(process) - before) / seconds
    status = Path(f"/proc/{process.pid}/status").read_text()
    resident = next(int(row.split()[1]) for row in status.splitlines() if row.startswith("VmRSS"))
    return share, resident / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--volumes", type=int, default=200, help="in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--retained", type=int, default=10_000)
    parser.add_argument("--file-system", choices=["xfs", "ext4"], default="xfs")
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("publishing is mounting, and needs root")
    with tempfile.TemporaryDirectory(prefix="orlop-publish-") as name, disk(Path(name), options.file_system) as folder:
        measure(folder, options)


@contextmanager
def disk(folder: Path, file_system: str) -> Iterator[Path]:
    """A new one, whose mounts are seen by others as kubelet's are."""
    image, place = folder / "image", folder / "disk"
    place.mkdir()
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    subprocess.run([f"mkfs.{file_system}", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, place], check=True)
    subprocess.run(["mount", "--make-shared", place], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


def measure(folder: Path, options: argparse.Namespace) -> None:
    few, many = Ours(folder / "few"), Ours(folder / "many")
    with many.running():
        asyncio.run(our_round(many, [volume_id("the first")], 1))
    fill(many, options.retained)
    began = time.perf_counter()
    with many.running() as process:
        print(f"started with {options.retained:,} retained in {time.perf_counter() - began:.2f} s")
        settle(process)
        share, megabytes = idle(process, options.idle_seconds)
        print(f"idle with {options.retained:,} retained: {share:.2%} of a core, {megabytes:.0f} MB")
        with few.running():
            sides = {"few retained": few, f"{options.retained:,} retained": many}
            tell_difference(asyncio.run(compare(sides, Floor(folder), options)))
    empty(many)


def tell_difference(figures: dict[str, Turns]) -> None:
    few, many = figures.values()
    for place, what in enumerate(("publish", "unpublish")):
        ratios = [statistics.median(many[n][place].calls) / statistics.median(few[n][place].calls) for n in IN_FLIGHT]
        told = ", ".join(f"{ratio:.2f} ({count} in flight)" for count, ratio in zip(IN_FLIGHT, ratios, strict=True))
        print(f"p50 of {what} with many retained, as a multiple of that with few: {told}")


if __name__ == "__main__":
    if IN_NAMESPACE not in os.environ:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again
    main()
