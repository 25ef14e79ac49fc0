"""How fast an attacher works through what waits for it, what one attachment takes, and what that costs: in one run.

The API server is `orlop apiserver`, a process of its own, or the one of `--kubeconfig`; the driver is the mock driver,
also a process of its own, whose work is counted to nobody. Ours is `orlop attacher`; each `--beside 'COMMAND'` is
another attacher, started by turns with ours, with `{kubeconfig}` and `{socket}` in its command replaced:

    python benchmarks/attach.py --beside 'csi-attacher --kubeconfig={kubeconfig} --csi-address={socket}'

A turn has two starts. At the first, one VolumeAttachment waits: what passes until it is attached is what a start takes.
Then come single ones, each when nothing else is to be done: from the request that makes it to the watch that tells that
it is attached. At the second start 1,000 wait: from the start to the last one attached; then all are deleted at once:
from that request to the last one gone. Figures are medians of the turns.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import uvloop

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient, MergePatch, Patience, Selection, WatchEvent
from orlop.kube.config.kubeconfig import Kubeconfig
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT, Kind
from orlop.kube.objects import ObjectName

ORLOP = [sys.executable, "-m", "orlop"]
OURS = "ours"
DRIVER = "attach.example.com"
LABEL = "example.com/benchmark"
SELECTED = Selection(labels=f"{LABEL}=attach")
NODES = 20
AT_ONCE = 20
PATIENCE_SECONDS = 300.0
"""Seconds; what takes longer is not measured but told."""
SCRIPT = f"""
driver: {{name: {DRIVER}}}
capabilities: {{plugin: [CONTROLLER_SERVICE], controller: [PUBLISH_UNPUBLISH_VOLUME]}}
"""


# ---- the objects -----------------------------------------------------------------------------------------------------


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {LABEL: "attach"}}}


def csi_node(number: int) -> dict[str, Any]:
    drivers = [{"name": DRIVER, "nodeID": f"id-of-{number}", "topologyKeys": None}]
    return {**named(f"attach-benchmark-{number}"), "spec": {"drivers": drivers}}


def volume(name: str) -> dict[str, Any]:
    """As a provisioner makes it."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "10Gi"},
        "csi": {"driver": DRIVER, "volumeHandle": name, "fsType": "ext4", "volumeAttributes": {"tier": "fast"}},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "attach-benchmark",
    }
    return {**named(name), "spec": spec}


def attachment(name: str, number: int) -> dict[str, Any]:
    source = {"persistentVolumeName": name}
    node = f"attach-benchmark-{number % NODES}"
    return {**named(name), "spec": {"attacher": DRIVER, "nodeName": node, "source": source}}


class Objects:
    """Makes them, and hears by one watch what becomes of the VolumeAttachments."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._attached: set[str] = set()
        self._there: set[str] = set()
        self._changed = asyncio.Event()
        self._names = (f"attach-benchmark-{os.getpid()}-{number:06d}" for number in itertools.count())

    @asynccontextmanager
    async def prepared(self) -> AsyncIterator[None]:
        """With the nodes; everything of ours goes in the end."""
        await self._clean_up()
        for number in range(NODES):
            await self._client.create(CSI_NODE, csi_node(number))
        listening = asyncio.create_task(self._listen())
        try:
            yield
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening
            await self._clean_up()

    async def _listen(self) -> None:
        version = (await self._client.list(VOLUME_ATTACHMENT, SELECTED)).version
        while True:
            async for event in self._client.watch(VOLUME_ATTACHMENT, SELECTED, after=version):
                version = event.object["metadata"]["resourceVersion"]
                if event.type != "BOOKMARK":
                    self._hear(event)

    def _hear(self, event: WatchEvent) -> None:
        name = event.object["metadata"]["name"]
        self._there.add(name)
        if (event.object.get("status") or {}).get("attached"):
            self._attached.add(name)
        if event.type == "DELETED":
            self._there.discard(name)
        self._changed.set()

    async def make_volumes(self, count: int) -> list[str]:
        names = list(itertools.islice(self._names, count))
        await at_once(lambda name: self._client.create(PERSISTENT_VOLUME, volume(name)), names)
        return names

    async def want_attached(self, names: Sequence[str]) -> None:
        numbers = {name: number for number, name in enumerate(names)}
        await at_once(lambda name: self._client.create(VOLUME_ATTACHMENT, attachment(name, numbers[name])), names)

    async def attached(self, names: Sequence[str]) -> None:
        await self._heard(lambda: self._attached.issuperset(names))

    async def want_detached(self, names: Sequence[str]) -> None:
        if len(names) == 1:
            await self._client.delete(VOLUME_ATTACHMENT, ObjectName(None, names[0]))
        else:
            await self._client.delete_all(VOLUME_ATTACHMENT, SELECTED)

    async def gone(self, names: Sequence[str]) -> None:
        await self._heard(lambda: self._there.isdisjoint(names))

    async def _heard(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while not is_so():
                self._changed.clear()
                await self._changed.wait()

    async def _clean_up(self) -> None:
        """Also where an attacher has left a finalizer: the mock driver remembers nothing."""
        for kind in (VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE):
            left = await self._client.list(kind, SELECTED)
            await at_once(partial(self._free, kind), [each["metadata"]["name"] for each in left.items])

    async def _free(self, kind: Kind, name: str) -> None:
        with contextlib.suppress(NotFound):
            await self._client.delete(kind, ObjectName(None, name))
            await self._client.patch(kind, ObjectName(None, name), MergePatch({"metadata": {"finalizers": None}}))


async def at_once(do: Callable[[str], Awaitable[object]], names: Sequence[str]) -> None:
    waiting = iter(names)

    async def one_after_the_other() -> None:
        for name in waiting:
            await do(name)

    await asyncio.gather(*(one_after_the_other() for _ in range(AT_ONCE)))


# ---- the attachers ---------------------------------------------------------------------------------------------------


class Running:
    """An attacher's process, with all below it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.began = time.perf_counter()
        self._process = process

    def cpu(self) -> float:
        """Seconds of a core."""
        ticks = 0
        for each in family(self._process.pid):
            figures = Path(f"/proc/{each}/stat").read_text().rpartition(")")[2].split()
            ticks += int(figures[11]) + int(figures[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def peak(self) -> float:
        """Megabytes that were resident at most."""
        statuses = [Path(f"/proc/{each}/status").read_text() for each in family(self._process.pid)]
        return sum(int(status.partition("VmHWM:")[2].split()[0]) for status in statuses) / 1024


def family(process: int) -> list[int]:
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in family(int(child)))]


@contextmanager
def running(command: str, log: Path) -> Iterator[Running]:
    with log.open("ab") as told:
        process = subprocess.Popen(shlex.split(command), stdout=told, stderr=told, env=as_installed(log.parent))
    try:
        yield Running(process)
        if process.poll() is not None:
            sys.exit(f"this attacher has ended by itself: {command}\n{log.read_text()[-2000:]}")
    finally:
        process.terminate()
        process.wait()


def as_installed(folder: Path) -> dict[str, str]:
    """Compiled, as whatever pip has installed is."""
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**inherited, "PYTHONPYCACHEPREFIX": str(folder / "compiled")}


# ---- what is measured ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Turn:
    """Of one attacher. Times in seconds, memory in megabytes."""

    start: float
    start_cpu: float
    single: float
    attach: float
    attach_cpu: float
    detach: float
    detach_cpu: float
    peak: float


async def turn(objects: Objects, command: str, log: Path, options: argparse.Namespace) -> Turn:
    start, start_cpu, single = await singles(objects, command, log, options.singles)
    names = await objects.make_volumes(options.volumes)
    await objects.want_attached(names)
    with running(command, log) as attacher:
        await objects.attached(names)
        attach, attach_cpu = time.perf_counter() - attacher.began, attacher.cpu()
        began = time.perf_counter()
        await objects.want_detached(names)
        await objects.gone(names)
        detach, detach_cpu = time.perf_counter() - began, attacher.cpu() - attach_cpu
        return Turn(start, start_cpu, single, attach, attach_cpu, detach, detach_cpu, attacher.peak())


async def singles(objects: Objects, command: str, log: Path, count: int) -> tuple[float, float, float]:
    names = await objects.make_volumes(count + 1)
    await objects.want_attached(names[:1])
    took = []
    with running(command, log) as attacher:
        await objects.attached(names[:1])
        start, cpu = time.perf_counter() - attacher.began, attacher.cpu()
        for name in names[1:]:
            await asyncio.sleep(0.05)  # for all that follows the one before to end
            began = time.perf_counter()
            await objects.want_attached([name])
            await objects.attached([name])
            took.append(time.perf_counter() - began)
        await objects.want_detached(names)
        await objects.gone(names)
    return start, cpu, statistics.median(took)


async def compare(kubeconfig: Path, socket: Path, options: argparse.Namespace) -> None:
    ours = shlex.join([*ORLOP, "attacher"]) + (
        " --kubeconfig={kubeconfig} --csi-address={socket} --worker-threads=100 --log-level=warning"
    )
    commands = {OURS: ours, **{f"beside {number}": each for number, each in enumerate(options.beside, 1)}}
    commands = {name: each.format(kubeconfig=kubeconfig, socket=socket) for name, each in commands.items()}
    turns: dict[str, list[Turn]] = {name: [] for name in commands}
    async with client_of(kubeconfig) as client:
        objects = Objects(client)
        async with objects.prepared():
            for command in commands.values():
                await singles(objects, command, socket.with_name("log"), 1)  # which compiles, and fills caches
            for _, (name, command) in itertools.product(range(options.rounds), commands.items()):
                turns[name].append(await turn(objects, command, socket.with_name("log"), options))
            tell({name: median(each) for name, each in turns.items()}, options.volumes)


def median(turns: Sequence[Turn]) -> Turn:
    return Turn(*(statistics.median(getattr(each, field.name) for each in turns) for field in fields(Turn)))


ROWS: dict[str, Callable[[Turn, int], float]] = {
    "attached in a second, from the start": lambda turn, count: count / turn.attach,
    "attached in a second, without it": lambda turn, count: count / max(turn.attach - turn.start, 1e-9),
    "detached in a second": lambda turn, count: count / turn.detach,
    "start until the last is attached, s": lambda turn, _: turn.attach,
    "deletion until the last is gone, s": lambda turn, _: turn.detach,
    "start until a single one is attached, s": lambda turn, _: turn.start,
    "one when idle, ms": lambda turn, _: turn.single * 1000,
    "CPU of one attach, ms": lambda turn, count: (turn.attach_cpu - turn.start_cpu) / count * 1000,
    "CPU of one attach with the start, ms": lambda turn, count: turn.attach_cpu / count * 1000,
    "CPU of one detach, ms": lambda turn, count: turn.detach_cpu / count * 1000,
    "CPU of the start, s": lambda turn, _: turn.start_cpu,
    "peak of resident memory, MB": lambda turn, _: turn.peak,
}


def tell(turns: dict[str, Turn], count: int) -> None:
    others = [name for name in turns if name != OURS]
    print(f"{'':40} {OURS:>10}" + "".join(f"{name:>12} {'ours to it':>11}" for name in others))
    for what, figure in ROWS.items():
        ours = figure(turns[OURS], count)
        beside = [(figure(turns[name], count)) for name in others]
        print(f"{what:40} {ours:10.2f}" + "".join(f"{other:12.2f} {ours / other:11.2f}" for other in beside))


# ---- the server and the driver ---------------------------------------------------------------------------------------


@asynccontextmanager
async def client_of(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    access = Kubeconfig({}, clock=SystemClock(), run=_no_programs).find(str(kubeconfig))
    transport = HttpTransport(access)
    client = KubeClient(
        transport,
        clock=SystemClock(),
        random=Random(1),  # noqa: S311 - no secret
        log=silent_log(),
        name="bench",
        patience=Patience(PATIENCE_SECONDS),  # some servers take long to delete 1,000
    )
    try:
        yield client
    finally:
        await client.close()


async def _no_programs(*_: object) -> tuple[int, bytes, bytes]:
    raise OSError("no programs are run here")


@contextmanager
def served(words: Sequence[str], until: Path) -> Iterator[None]:
    process = subprocess.Popen([*ORLOP, *words, "--log-level=error"], stdout=subprocess.DEVNULL)
    try:
        while not until.exists():
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


@contextmanager
def api_server(given: str, folder: Path) -> Iterator[Path]:
    if given:
        yield Path(given)
        return
    state = folder / "api"
    with served(["apiserver", f"--state={state}"], state / "kubeconfig"):
        yield state / "kubeconfig"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--volumes", type=int, default=1000, help="that wait at once")
    parser.add_argument("--singles", type=int, default=50, help="when nothing else is to be done")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kubeconfig", default="", help="of another API server than the embedded one")
    parser.add_argument("--beside", action="append", default=[], metavar="COMMAND", help="another attacher")
    options = parser.parse_args()
    where = "the API server of --kubeconfig" if options.kubeconfig else "the embedded API server"
    print(f"attach: {options.volumes:,} at once on {where}, {os.cpu_count()} cores")
    with tempfile.TemporaryDirectory(prefix="o-") as name, ExitStack() as stack:
        folder = Path(name)
        script, socket = folder / "script.yaml", folder / "csi.sock"
        script.write_text(SCRIPT)
        kubeconfig = stack.enter_context(api_server(options.kubeconfig, folder))
        stack.enter_context(
            served(["testing", "mock-driver", f"--endpoint=unix://{socket}", f"--script={script}"], socket)
        )
        uvloop.run(compare(kubeconfig, socket, options))


if __name__ == "__main__":
    main()
