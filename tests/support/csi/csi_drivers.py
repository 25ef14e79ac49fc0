"""Clients of a scripted driver, with and without a socket between: the same tests can have both."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from google.protobuf import json_format

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.server import serving
from orlop.foundation.clock import Clock, SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import Log, silent_log
from orlop.testing.driver_model import ALL_CAPABILITIES
from orlop.testing.driver_script import RPCS, read_script
from orlop.testing.scripted_driver import ScriptedDriver, ScriptedInterceptor

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping
    from pathlib import Path

    from orlop.csi.transport import ClientTransport
    from orlop.testing.call_record import RecordedCall
    from orlop.testing.driver_model import ModelVolume, Storage


@dataclass
class Bench:
    """A driver and a client that calls it with JSON."""

    driver: ScriptedDriver
    connection: ClientTransport
    client: CsiClient

    @property
    def storage(self) -> Storage:
        return self.driver.storage

    @property
    def calls(self) -> list[RecordedCall]:
        return self.driver.calls

    def volume(self, volume_id: str) -> ModelVolume:
        found = self.storage.volumes.get(volume_id)
        assert found is not None, f"there is no volume {volume_id}"
        return found

    async def call(self, method: str, within: float | None = None, **fields: Any) -> dict[str, Any]:
        """Fields and answer as JSON."""
        rpc = RPCS[method]
        answer = await self.client.call(rpc, json_format.ParseDict(fields, rpc.request()), within=within)
        return json_format.MessageToDict(answer)

    async def stream(self, method: str, **fields: Any) -> list[dict[str, Any]]:
        rpc = RPCS[method]
        request = json_format.ParseDict(fields, rpc.request())
        return [json_format.MessageToDict(answer) async for answer in self.client.stream(rpc, request)]


def client_of(connection: ClientTransport, clock: Clock, log: Log | None = None) -> CsiClient:
    random = Random(1)
    return CsiClient(
        connection, log=log or silent_log(), metrics=Metrics("test"), clock=clock, random=random, timeout=600.0
    )


@asynccontextmanager
async def in_process_bench(
    script: Mapping[str, Any] | None = None, clock: Clock | None = None, **options: Any
) -> AsyncIterator[Bench]:
    used = clock or SystemClock()
    driver = ScriptedDriver(read_script(script), used, **options)
    interceptor = ScriptedInterceptor(driver, log=silent_log(), metrics=Metrics("test"), clock=used)
    connection = InProcessConnection(interceptor)
    yield Bench(driver, connection, client_of(connection, used))
    driver.stop_hanging()
    await connection.close()
    await interceptor.drain(60.0)


@asynccontextmanager
async def socket_bench(folder: Path, script: Mapping[str, Any] | None = None, **options: Any) -> AsyncIterator[Bench]:
    clock = SystemClock()
    driver = ScriptedDriver(read_script(script), clock, **options)
    interceptor = ScriptedInterceptor(driver, log=silent_log(), metrics=Metrics("test"), clock=clock)
    endpoint = UnixEndpoint(str(folder / "csi.sock"))
    async with serving(endpoint, interceptor, grace=5.0, log=silent_log()):
        connection = GrpcConnection(endpoint)
        yield Bench(driver, connection, client_of(connection, clock))
        driver.stop_hanging()
        await connection.close()


class Way:
    """Opens benches of one kind."""

    def __init__(self, kind: str, folder: Path) -> None:
        self._kind = kind
        self._folder = folder

    def __call__(self, **script: Any) -> AbstractAsyncContextManager[Bench]:
        return in_process_bench(script) if self._kind == "in process" else socket_bench(self._folder, script)


# ---- requests, as JSON -----------------------------------------------------------------------------------------------

MOUNT: dict[str, Any] = {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}}
BLOCK: dict[str, Any] = {"block": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}}
EVERYWHERE: dict[str, Any] = {"mount": {}, "accessMode": {"mode": "MULTI_NODE_MULTI_WRITER"}}
ONE_POD: dict[str, Any] = {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_SINGLE_WRITER"}}
MANY_PODS: dict[str, Any] = {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_MULTI_WRITER"}}
CREATE: dict[str, Any] = {"name": "a", "volumeCapabilities": [MOUNT]}
ON_NODE_1: dict[str, Any] = {"nodeId": "node-1", "volumeCapability": MOUNT}
STAGE: dict[str, Any] = {"stagingTargetPath": "/staging", "volumeCapability": MOUNT}
PUBLISH: dict[str, Any] = {**STAGE, "targetPath": "/target"}


async def create(bench: Bench, name: str = "a", **fields: Any) -> str:
    answer = await bench.call("CreateVolume", **{**CREATE, "name": name, **fields})
    return str(answer["volume"]["volumeId"])


async def publish(bench: Bench, volume: str, capability: dict[str, Any] = MOUNT) -> None:
    """Attaches, stages and publishes."""
    await bench.call("ControllerPublishVolume", volumeId=volume, nodeId="node-1", volumeCapability=capability)
    await bench.call("NodeStageVolume", volumeId=volume, **STAGE | {"volumeCapability": capability})
    await bench.call("NodePublishVolume", volumeId=volume, **PUBLISH | {"volumeCapability": capability})


def without(group: str, ability: str) -> dict[str, Any]:
    """Capabilities of a script: all but one."""
    field = "group_controller" if group == "groupController" else group
    return {"capabilities": {group: sorted(getattr(ALL_CAPABILITIES, field) - {ability})}}
