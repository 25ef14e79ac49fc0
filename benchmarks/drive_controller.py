"""How fast `orlop controller` makes the volumes of claims, and how much memory it has with them.

    python benchmarks/drive_controller.py [--claims 1000] [--drives 200]

The API server is `orlop apiserver`, a process of its own. All claims wait, marked for the driver and for a node, as the
scheduler leaves them: what passes from the start of the controller to the last PersistentVolume is `claims`, with the
start. `calls` are CreateVolume alone, through the controller's socket, 50 at a time. Memory is the most that was
resident at any moment: while the volumes are made, and of a controller that starts with them. The goal of the second
is 60 MB with 1,000 volumes.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import aclosing
from pathlib import Path
from random import Random
from typing import Any

from measuring.api_access import api_server, client_of
from measuring.processes import ORLOP, Running, running
from orlop.binding.claim_state_rules import SELECTED_NODE, STORAGE_PROVISIONER
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import CsiError
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import (
    CSI_NODE,
    CUSTOM_RESOURCE_DEFINITION,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    STORAGE_CLASS,
)
from orlop.kube.objects import ObjectName
from orlop.records.api_record import new_object
from orlop.records.cluster_objects import DRIVER_NAME, storage_class
from orlop.records.definitions import definitions
from orlop.records.drive import DRIVE, DriveSpec
from orlop.records.drive_record import DriveType
from orlop.records.volume_context import TOPOLOGY_NODE

DRIVES_OF_A_NODE = 10
MANY = 50
GIB = 1 << 30
CAPABILITY = csi_pb2.VolumeCapability(
    mount=csi_pb2.VolumeCapability.MountVolume(),
    access_mode=csi_pb2.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER"),
)


async def many(do: Callable[[int], Awaitable[object]], numbers: Iterable[int]) -> None:
    """Do it for all numbers, `MANY` at a time."""
    left = iter(numbers)

    async def work() -> None:
        for number in left:
            await do(number)

    await asyncio.gather(*(work() for _ in range(MANY)))


async def prepare(client: KubeClient, drives: int, claims: int) -> None:
    for definition in definitions():
        await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
    await client.create(STORAGE_CLASS, storage_class())
    nodes = -(-drives // DRIVES_OF_A_NODE)

    async def make_node(number: int) -> None:
        name = f"n{number}"
        await client.create(NODE, {"metadata": {"name": name, "labels": {TOPOLOGY_NODE: name}}})
        registered = {"name": DRIVER_NAME, "nodeID": name, "topologyKeys": [TOPOLOGY_NODE]}
        await client.create(CSI_NODE, {"metadata": {"name": name}, "spec": {"drivers": [registered]}})

    async def make_drive(number: int) -> None:
        name = ObjectName(None, f"{number:08x}-0000-4000-8000-000000000000")
        spec = DriveSpec(node_name=f"n{number // DRIVES_OF_A_NODE}", type=DriveType.DISK)
        await client.create(DRIVE, new_object("Drive", name.name, spec))
        status = {
            "state": "Ready",
            "capacityBytes": 1000 * GIB,
            "allocationsRestored": True,
            "fileSystem": "xfs",
            "backings": ["directory", "image"],
        }
        await client.patch(DRIVE, name, MergePatch({"status": status}), subresource="status")

    async def make_claim(number: int) -> None:
        marks = {STORAGE_PROVISIONER: DRIVER_NAME, SELECTED_NODE: f"n{number % nodes}"}
        spec: dict[str, Any] = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "orlop",
        }
        metadata = {"name": f"claim-{number}", "namespace": "default", "annotations": marks}
        await client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})

    await many(make_node, range(nodes))
    await many(make_drive, range(drives))
    await many(make_claim, range(claims))


async def provisioned(client: KubeClient, process: Running, claims: int) -> float:
    """Wait for all PersistentVolumes; return the seconds since the process began."""
    async with aclosing(client.watch(PERSISTENT_VOLUME, seconds=3600)) as events:
        names = set[str]()
        async for event in events:
            if event.type == "ADDED":
                names.add(event.object["metadata"]["name"])
            if len(names) == claims:
                break
    return time.perf_counter() - process.began


async def called(socket: Path, count: int) -> list[float]:
    """Return the seconds of each of so many calls of CreateVolume."""
    seconds: list[float] = []
    csi = CsiClient(
        GrpcConnection(UnixEndpoint(str(socket))),
        log=silent_log(),
        metrics=Metrics("bench", of_process=False),
        clock=SystemClock(),
        random=Random(1),  # noqa: S311 - no secret
        timeout=30.0,
    )

    async def create(number: int) -> None:
        request = csi_pb2.CreateVolumeRequest(
            name=f"called-{number}",
            capacity_range=csi_pb2.CapacityRange(required_bytes=GIB),
            volume_capabilities=[CAPABILITY],
        )
        began = time.perf_counter()
        await csi.call(rpc.CREATE_VOLUME, request)
        seconds.append(time.perf_counter() - began)

    try:
        await many(create, range(count))
    except CsiError as error:
        raise SystemExit(f"CreateVolume failed: {error}") from None
    finally:
        await csi.close()
    return sorted(seconds)


async def measure(kubeconfig: Path, folder: Path, drives: int, claims: int) -> None:
    socket = folder / "controller.sock"
    words = f"{' '.join(ORLOP)} controller --csi-address={socket} --kubeconfig={kubeconfig} --log-level=error"
    async with client_of(kubeconfig) as client:
        await prepare(client, drives, claims)
        with running(words, folder / "log") as process:
            taken = await provisioned(client, process, claims)
            print(f"claims   {claims / taken:7.0f} a second ({claims} in {taken:.1f} s, with the start)")
            print(f"memory   {process.peak():7.1f} MB at most, while {claims} volumes were made on {drives} drives")
            await process.cpu_when_quiet()
        with running(words, folder / "log") as process:
            cpu = await process.cpu_when_quiet()
            print(f"memory   {process.peak():7.1f} MB after a start with {claims} volumes")
            before = time.perf_counter()
            seconds = await called(socket, claims)
            taken, used = time.perf_counter() - before, process.cpu() - cpu
            p50, p99 = seconds[len(seconds) // 2], seconds[len(seconds) * 99 // 100]
            speed = f"{claims / taken:7.0f} a second: p50 {p50 * 1e3:.1f}, p99 {p99 * 1e3:.1f} ms"
            print(f"calls    {speed}")
            print(f"cpu      {used / claims * 1e3:7.2f} ms of the controller for each call")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--claims", type=int, default=1000)
    parser.add_argument("--drives", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, api_server("", Path(name)) as kubeconfig:
        asyncio.run(measure(kubeconfig, Path(name), options.drives, options.claims))


if __name__ == "__main__":
    main()
