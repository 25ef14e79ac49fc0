"""`orlop provisioner` killed again and again while claims come and go: nothing is leaked, doubled or stuck (I4).

Real processes, with a scripted driver as the judge. The binder's part is played here: a claim is marked for the driver
when it is created, and a volume whose claim is gone is released.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

import pytest

from orlop.binding import claim_state_rules as state
from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube import objects
from orlop.kube.api_errors import ApiError
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import LEASE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.kube.objects import ObjectName
from orlop.records.provision_journal import ANNOTATION, decode_page
from orlop.testing.driver_model.volume_model import NAME_KEY
from support.api.api_variants import found
from support.processes.orlop_process import running
from support.waiting import eventually_answered

SOAK = bool(os.environ.get("ORLOP_SOAK"))
SEEDS = (7,) if SOAK else (7, 8)
KILLS = 500 if SOAK else 15
CLAIMS = 200 if SOAK else 100
"""Of one seed. `make test` has two of fifteen kills each: one of thirty takes minutes on a very busy machine."""
DELAY: Final = {"delay": "20ms"}
LOST: Final = {**DELAY, "effect": True, "error": {"code": "UNAVAILABLE", "message": "the reply is lost"}}
REFUSED: Final = {**DELAY, "error": {"code": "INTERNAL", "message": "the backend is busy"}}
SCRIPT: Final = {
    "CreateVolume": [*([{**DELAY, "times": 4}, LOST, {**DELAY, "times": 3}, REFUSED] * 20), {**DELAY, "times": 0}],
    "DeleteVolume": [*([{"times": 2}, LOST, {"times": 1}, REFUSED] * 3), {"times": 0}],
}
"""What the driver does with the first calls; a process that is killed meanwhile does not learn of it."""
STARTING_CALLS, MOST_CALLS = 4, 16
"""A provisioner that starts calls the driver four times before its first CreateVolume."""
NAMESPACE = "default"
Object = dict[str, Any]


@dataclass
class Crowd:
    """Claims that come and go, and what the binder does for them."""

    folder: Path
    kubeconfig: Path
    client: KubeClient
    csi: CsiClient
    random: Random
    tag: str = field(default_factory=lambda: os.urandom(4).hex())
    wanted: dict[str, str] = field(default_factory=dict)
    """The claims that exist: their names and uids."""

    @property
    def driver(self) -> str:
        return f"kills-{self.tag}.example.com"

    async def begin(self) -> None:
        await self.client.create(STORAGE_CLASS, {"metadata": {"name": self.tag}, "provisioner": self.driver})

    async def add(self, number: int) -> None:
        name = f"c{number}-{self.tag}"
        spec = {
            "storageClassName": self.tag,
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Mi"}},
        }
        marks = {state.STORAGE_PROVISIONER: self.driver}
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": marks}
        created = await self.client.create(PERSISTENT_VOLUME_CLAIM, {"metadata": metadata, "spec": spec})
        self.wanted[name] = objects.uid(created)

    async def remove_some(self) -> None:
        for name in sorted(self.wanted):
            if self.random.random() < 0.1:
                del self.wanted[name]
                key = ObjectName(NAMESPACE, name)
                patch = MergePatch({"metadata": {"finalizers": None}})
                await self.client.patch(PERSISTENT_VOLUME_CLAIM, key, patch)
                await self.client.delete(PERSISTENT_VOLUME_CLAIM, key)

    async def bind(self) -> None:
        """Release the volumes whose claims are gone."""
        for volume in await self.volumes():
            if volume["spec"]["claimRef"]["name"] in self.wanted:
                continue
            # The provisioner writes to the same objects: what fails is done in the next round.
            with suppress(ApiError):
                await self._release(volume)

    async def _release(self, volume: Object) -> None:
        name = objects.name_of(volume)
        if state.phase(volume) != "Released":
            patch = MergePatch({"status": {"phase": "Released"}})
            await self.client.patch(PERSISTENT_VOLUME, name, patch, subresource="status")
        if objects.has_finalizer(volume, state.PV_PROTECTION) and objects.is_being_deleted(volume):
            kept = [each for each in objects.finalizers(volume) if each != state.PV_PROTECTION]
            body = {**volume, "metadata": {**volume["metadata"], "finalizers": kept}}
            await self.client.replace(PERSISTENT_VOLUME, body)

    async def volumes(self) -> list[Object]:
        volumes = (await self.client.list(PERSISTENT_VOLUME)).items
        return [volume for volume in volumes if volume["spec"].get("storageClassName") == self.tag]

    async def journalled(self) -> list[str]:
        leases = [lease for lease in (await self.client.list(LEASE)).items if self.tag in objects.name(lease)]
        pages = [objects.annotations(lease).get(ANNOTATION, "") for lease in leases]
        return [entry.order.volume_name for page in pages if page for entry in decode_page(page)]

    async def existing(self) -> dict[str, str]:
        """Return the volumes that the driver has: their ids and names."""
        answer = await self.csi.call(rpc.LIST_VOLUMES, csi_pb2.ListVolumesRequest())
        return {entry.volume.volume_id: entry.volume.volume_context[NAME_KEY] for entry in answer.entries}

    async def is_settled(self) -> bool:
        await self.bind()
        volumes = await self.volumes()
        served = {volume["spec"]["claimRef"]["name"] for volume in volumes}
        return served == self.wanted.keys() and len(volumes) == len(self.wanted) and not await self.journalled()


@asynccontextmanager
async def crowd(folder: Path, kubeconfig: Path, seed: int) -> AsyncIterator[Crowd]:
    clock, log = SystemClock(), silent_log()
    client = KubeClient(HttpTransport(found(kubeconfig)), clock=clock, random=Random(1), log=log)
    connection = GrpcConnection(UnixEndpoint(str(folder / "csi.sock")))
    csi = CsiClient(connection, log=log, metrics=Metrics("t", of_process=False), clock=clock, random=Random(2))
    try:
        yield Crowd(folder, kubeconfig, client, csi, Random(seed))
    finally:
        await csi.close()
        await client.close()


@pytest.mark.timeout(7200 if SOAK else 1800)
@pytest.mark.parametrize("seed", SEEDS)
async def test_of_a_provisioner_that_is_killed_again_and_again_nothing_is_leaked_doubled_or_stuck(
    short_folder: Path, api_kubeconfig: Path, seed: int
):
    async with crowd(short_folder, api_kubeconfig, seed) as the:
        await the.begin()
        script = short_folder / "script.yaml"
        script.write_text(json.dumps({"driver": {"name": the.driver}, "script": SCRIPT}))
        socket = f"unix://{short_folder}/csi.sock"
        record = short_folder / "calls"
        # The driver has topology, and no node has it registered.
        addresses = (f"--csi-address={socket}", f"--kubeconfig={api_kubeconfig}")
        flags = (*addresses, "--timeout=2s", "--retry-interval-start=100ms", "--immediate-topology=false")
        driver = ("--endpoint", socket, "--script", str(script), "--record", str(record))
        with running(short_folder, "testing", "mock-driver", *driver):
            added = 0
            for kill in range(KILLS):
                with running(short_folder, "provisioner", *flags) as provisioner:
                    calls = _lines(record)
                    target = (kill + 1) * CLAIMS // KILLS
                    while added < target:
                        await the.add(added)
                        added += 1
                    await the.remove_some()
                    await the.bind()
                    await _until_it_has_called(record, calls + the.random.randrange(STARTING_CALLS, MOST_CALLS), the)
                    provisioner.signal(signal.SIGKILL)
            with running(short_folder, "provisioner", *flags):
                await eventually_answered(the.is_settled, every=0.2)
            existing = await the.existing()

        assert len(the.wanted) > 0
        assert {volume["spec"]["csi"]["volumeHandle"] for volume in await the.volumes()} == existing.keys()
        # By name, which the driver uses once: a second volume of a claim would have another.
        assert sorted(existing.values()) == sorted(f"pvc-{uid}" for uid in the.wanted.values())
        assert {"INTERNAL", "UNAVAILABLE"} <= _codes(record), "the driver never failed"


def _lines(record: Path) -> int:
    return record.read_text().count("\n") if record.exists() else 0


def _codes(record: Path) -> set[str]:
    return {json.loads(line)["code"] for line in record.read_text().splitlines()}


async def _until_it_has_called(record: Path, calls: int, the: Crowd) -> None:
    """Wait until the driver has ended so many calls, or nothing is left to call it for."""

    async def is_at_work() -> bool:
        return _lines(record) >= calls or await the.is_settled()

    await eventually_answered(is_at_work, every=0.005)
