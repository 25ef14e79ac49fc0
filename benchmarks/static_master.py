"""How fast `orlop static-master` makes PersistentVolumes, what an event costs it, and how much memory it has with them.

    python benchmarks/static_master.py [--nodes 500] [--disks 20]

The API server is `orlop apiserver`, a process of its own. Every node lists its disks in its ProvisionerStatus. `made`
is from the start of the master to the last PersistentVolume. An event is one write by others that the master need not
act on: the progress of a wipe, or the label of a volume; a release goes as far as the request of its wipe. Memory is
the most that was resident at any moment: while the volumes are made, and of a master that starts with them. The goal
of the second is 60 MB with 10,000 volumes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from measuring.api_access import api_server, client_of
from measuring.processes import ORLOP, Running, running
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, NODE, PERSISTENT_VOLUME, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object
from orlop.records.definitions import definitions
from orlop.records.provisioner_status import PROVISIONER_STATUS, LocalVolume, ProvisionerSpec
from orlop.records.static_policy import STATIC_NAMESPACE
from orlop.static_pv.naming_rules import volume_name

CLASS = "fast"
MANY = 50
GIB = 1 << 30
START_SECONDS = 10.0
"""On a busy machine: the process may wait for the server before it uses any CPU."""


async def at_once(works: Iterable[Callable[[], Awaitable[object]]]) -> None:
    waiting = list(works)

    async def work() -> None:
        while waiting:
            await waiting.pop()()

    await asyncio.gather(*(work() for _ in range(MANY)))


def listed(node: str, count: int) -> list[LocalVolume]:
    return [
        LocalVolume(
            name=volume_name(f"disk{number}", node, CLASS),
            storage_class=CLASS,
            entry=f"disk{number}",
            capacity_bytes=100 * GIB,
            capacity="100Gi",
            volume_mode="Filesystem",
            device=True,
            identity=f"wwn:0x5000c500{number:08x}",
        )
        for number in range(count)
    ]


async def prepare(client: KubeClient, nodes: list[str], disks: int) -> None:
    for definition in definitions():
        await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
    await client.create(NAMESPACE, {"metadata": {"name": STATIC_NAMESPACE}})
    about = {"provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}
    await client.create(STORAGE_CLASS, {"metadata": {"name": CLASS}, **about})

    async def node(name: str) -> None:
        labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "topology.kubernetes.io/zone": "a"}
        await client.create(NODE, {"metadata": {"name": name, "labels": labels}})
        spec = ProvisionerSpec(node_name=name)
        await client.create(PROVISIONER_STATUS, new_object("ProvisionerStatus", name, spec, namespace=STATIC_NAMESPACE))
        status = {"localVolumes": msgspec.to_builtins(listed(name, disks)), "disks": disks}
        patch = MergePatch({"status": status})
        await client.patch(PROVISIONER_STATUS, ObjectName(STATIC_NAMESPACE, name), patch, subresource="status")

    while True:  # a definition is served a moment after it was created
        try:
            await client.list(PROVISIONER_STATUS)
            break
        except ApiError:
            await asyncio.sleep(0.1)
    await at_once([partial(node, name) for name in nodes])


async def until_made(client: KubeClient, count: int) -> None:
    while len((await client.list(PERSISTENT_VOLUME)).items) < count:  # noqa: ASYNC110 - another process makes them
        await asyncio.sleep(0.2)


def master(kubeconfig: Path, config: Path) -> str:
    words = [*ORLOP, "static-master", f"--kubeconfig={kubeconfig}", f"--static-config={config}", "--log-level=error"]
    return " ".join(words)


async def cost_of(process: Running, works: list[Callable[[], Awaitable[object]]]) -> float:
    """Return the milliseconds of a core that each of these writes costs the master."""
    before = await process.cpu_when_quiet()
    await at_once(works)
    return (await process.cpu_when_quiet() - before) / len(works) * 1000


async def measure(folder: Path, kubeconfig: Path, options: argparse.Namespace) -> None:
    config = folder / "config"
    config.mkdir()
    (config / "storageClassMap").write_text(f"{CLASS}:\n  hostDir: /mnt/disks\n")
    nodes, count = [f"node-{number}" for number in range(options.nodes)], options.nodes * options.disks
    command, log = master(kubeconfig, config), folder / "log"
    async with client_of(kubeconfig) as client:
        await prepare(client, nodes, options.disks)
        with running(command, log) as process:
            began = time.perf_counter()
            await until_made(client, count)
            seconds = time.perf_counter() - began
            cpu = await process.cpu_when_quiet()
            print(
                f"made: {count:,} in {seconds:.1f} s ({count / seconds:.0f}/s), {cpu / count * 1000:.2f} ms of CPU each"
            )
            print(f"memory while they are made: {process.peak():.0f} MB")
        with running(command, log) as process:
            await asyncio.sleep(START_SECONDS)
            cpu = await process.cpu_when_quiet()
            print(f"a master that starts with them: {cpu:.1f} s of CPU, {process.peak():.0f} MB")
            await measure_events(client, process, nodes, options.events)
            print(f"after that: {process.peak():.0f} MB")


async def measure_events(client: KubeClient, process: Running, nodes: list[str], count: int) -> None:
    def progress(number: int) -> Callable[[], Awaitable[object]]:
        name = ObjectName(STATIC_NAMESPACE, nodes[number % len(nodes)])
        status = MergePatch({"status": {"observedGeneration": number}})
        return lambda: client.patch(PROVISIONER_STATUS, name, status, subresource="status")

    def label(number: int) -> Callable[[], Awaitable[object]]:
        name = volume_name("disk0", nodes[number % len(nodes)], CLASS)
        patch = MergePatch({"metadata": {"labels": {"number": str(number)}}})
        return lambda: client.patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)

    def release(number: int) -> Callable[[], Awaitable[object]]:
        name = ObjectName(None, volume_name("disk1", nodes[number], CLASS))

        async def released() -> None:
            reference = {"namespace": "default", "name": "c", "uid": f"c{number}"}
            await client.patch(PERSISTENT_VOLUME, name, MergePatch({"spec": {"claimRef": reference}}))
            phase = MergePatch({"status": {"phase": "Released"}})
            await client.patch(PERSISTENT_VOLUME, name, phase, subresource="status")

        return released

    print(f"an event of progress: {await cost_of(process, [progress(each) for each in range(count)]):.2f} ms of CPU")
    print(f"an event of a volume: {await cost_of(process, [label(each) for each in range(count)]):.2f} ms of CPU")
    releases = [release(each) for each in range(min(len(nodes), count))]
    print(f"a release, with its five writes: {await cost_of(process, releases):.2f} ms of CPU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, default=500)
    parser.add_argument("--disks", type=int, default=20)
    parser.add_argument("--events", type=int, default=2_000)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="orlop-static-master-") as name, api_server("", Path(name)) as kubeconfig:
        asyncio.run(measure(Path(name), kubeconfig, options))


if __name__ == "__main__":
    main()
