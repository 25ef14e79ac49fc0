"""The plugin watcher on real sockets: seen at once, and with the registrar and the node of this very program."""

from __future__ import annotations

import ipaddress
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest

from onenode.host.machine_facts import read_machine
from onenode.kubelet.node import plugin_watcher
from onenode.kubelet.node.csi_node_objects import CsiNodeObjects
from onenode.kubelet.node.kubelet_folders import watched_folder
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.node.plugin_registration import PluginRegistration
from onenode.kubelet.node.plugin_watcher import PluginWatcher
from onenode.kubelet.node.registered_drivers import RegisteredDrivers
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.server import serving
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import CSI_NODE, NODE
from orlop.kube.objects import ObjectName
from support.api.api_servers import TestServer, api_server
from support.host import kernel_rooms
from support.kubelet.plugin_worlds import NODE_NAME, Plugin
from support.processes.orlop_process import Running, running
from support.waiting import HANGS_AFTER, eventually, eventually_answered
from support.worlds import running as tasks_running

MOCK = "mock.example.com"


class Machine:
    def __init__(self, folder: Path, on: TestServer) -> None:
        self.folder = folder
        self.on = on
        self.registry = folder / "plugins_registry"
        self.plugins = folder / "plugins"
        self.registry.mkdir(exist_ok=True)
        self.plugins.mkdir(exist_ok=True)
        self.driver_socket = folder / "csi.sock"

    def api(self) -> tuple[NodeApi, Runtime]:
        clock, log, metrics = SystemClock(), silent_log(), Metrics("test", of_process=False)
        kube = self.on.client()
        events = EventRecorder(
            kube, Reporter("kubelet", NODE_NAME), clock=clock, random=Random(1), log=log, metrics=metrics
        )
        runtime = Runtime(clock=clock, random=Random(2), log=log, metrics=metrics)
        return NodeApi(NODE_NAME, kube, events), runtime

    @asynccontextmanager
    async def watcher(self) -> AsyncIterator[PluginWatcher]:
        (api, runtime), drivers = self.api(), RegisteredDrivers()
        objects = CsiNodeObjects(api, runtime)
        with watched_folder(self.registry) as folder:
            registration = PluginRegistration(GrpcConnection, objects, drivers, runtime)
            watcher = PluginWatcher(folder, str(self.plugins), registration, drivers, api, runtime)
            async with tasks_running(objects.begin(), watcher.run(), api.events.run()):
                yield watcher

    async def csi_drivers(self) -> list[str]:
        found = await self.on.client().get(CSI_NODE, ObjectName(None, NODE_NAME))
        return [entry["name"] for entry in found["spec"].get("drivers") or []]


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    async with api_server() as on:
        await on.client().create(NODE, {"metadata": {"name": NODE_NAME}})
        yield Machine(folder, on)


def served(path: Path, plugin: Plugin) -> AbstractAsyncContextManager[Any]:
    return serving(UnixEndpoint(str(path)), plugin, grace=1.0, log=silent_log())


async def test_a_socket_is_seen_by_the_event_of_its_folder_and_its_driver_registered(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    """No periodic pass is needed: the next one would come after the test has failed."""
    monkeypatch.setattr(plugin_watcher, "LOOK_AT_UNANNOUNCED_SECONDS", 3600.0)
    async with machine(short_folder) as the, the.watcher() as watcher:
        for number in range(5):
            plugin = Plugin(f"d{number}.example.com")
            async with served(the.registry / f"{number}.sock", plugin):
                await eventually(lambda plugin=plugin: plugin.told)
            await eventually(lambda name=plugin.name: name not in watcher.drivers)


async def test_of_two_plugins_that_claim_one_name_the_second_has_it_when_the_first_goes(short_folder: Path):
    async with machine(short_folder) as the, the.watcher() as watcher:
        second = Plugin(node_id="2")
        async with AsyncExitStack() as later:
            async with served(the.registry / "first.sock", Plugin(node_id="1")):
                await eventually(lambda: len(watcher.drivers) == 1)
                await later.enter_async_context(served(the.registry / "second.sock", second))
                await eventually(lambda: second.told)
                assert watcher.drivers["a.example.com"].node_id == "1"
            await eventually(lambda: watcher.drivers and watcher.drivers["a.example.com"].node_id == "2")

        assert "already registered" in second.told[0][1]


async def test_a_stale_socket_keeps_nobody_waiting(short_folder: Path):
    async with machine(short_folder) as the:
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(the.registry / "0-stale.sock"))
        with socket.socket(socket.AF_UNIX) as silent:
            silent.bind(str(the.registry / "1-silent.sock"))
            silent.listen(1)
            async with the.watcher() as watcher, served(the.registry / "2-good.sock", Plugin()):
                await eventually(lambda: list(watcher.drivers) == ["a.example.com"], within=60)


async def test_a_driver_that_nobody_announces_is_found_at_its_fixed_path(
    short_folder: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(plugin_watcher, "UNANNOUNCED_AFTER_SECONDS", 0.1)
    async with machine(short_folder) as the, the.watcher() as watcher:
        (the.plugins / "a.example.com").mkdir()
        async with served(the.plugins / "a.example.com" / "csi.sock", Plugin()):
            assert (await watcher.wait_for("a.example.com")).node_id == "id-1"


# ---- with this very program ------------------------------------------------------------------------------------------


def mock_driver(the: Machine, **script: object) -> AbstractContextManager[Running]:
    path = the.folder / "script.yaml"
    path.write_text(json.dumps(script))
    flags = ("--endpoint", f"unix://{the.driver_socket}", "--script", str(path))
    return running(the.folder, "testing", "mock-driver", *flags)


def registrar(the: Machine) -> AbstractContextManager[Running]:
    return running(
        the.folder,
        "registrar",
        f"--csi-address={the.driver_socket}",
        f"--kubelet-registration-path={the.driver_socket}",
        f"--plugin-registration-path={the.registry}",
    )


async def test_orlop_registrar_has_any_driver_registered_and_taken_away_when_it_ends(short_folder: Path):
    async with machine(short_folder) as the, the.watcher() as watcher:
        node = {"id": "n-9", "topology": {"zone": "z"}}
        with mock_driver(the, node=node) as driver, registrar(the) as process:
            await driver.says("listening")
            await process.says("kubelet has registered the driver")
            assert watcher.drivers[MOCK].node_id == "n-9"
            assert "STAGE_UNSTAGE_VOLUME" in await watcher.drivers[MOCK].capabilities(within=HANGS_AFTER)
            assert await the.csi_drivers() == [MOCK]

            process.signal(signal.SIGTERM)
            await process.exit_code()
            await eventually(lambda: not watcher.drivers)
            assert await eventually_answered(partial(_gone, the))


async def _gone(the: Machine) -> bool:
    return await the.csi_drivers() == []


async def test_a_driver_that_is_restarted_as_another_is_registered_anew(short_folder: Path):
    def known(the: PluginWatcher) -> str | None:
        return the.drivers[MOCK].node_id if MOCK in the.drivers else None

    async with machine(short_folder) as the, the.watcher() as watcher:
        with registrar(the) as process:
            with mock_driver(the, node={"id": "before", "topology": {"zone": "z"}}):
                await process.says("kubelet has registered the driver")
                assert known(watcher) == "before"
            with mock_driver(the, node={"id": "after", "topology": {"zone": "z"}}):
                await eventually(lambda: known(watcher) == "after")


async def test_orlop_node_is_registered_and_forgotten_with_its_driver(short_folder: Path):
    with kernel_rooms.mount_room(short_folder / "r") as room:
        async with machine(room) as the, the.watcher() as watcher:
            (room / "work").mkdir()
            flags = (
                "--nodeid=n1",
                f"--kubelet-dir={room}",
                f"--workdir={room / 'work'}",
                f"--adminsocket={room / 'a'}",
            )
            with running(room, "node", *flags) as node:
                await node.says("kubelet has registered")
                driver = watcher.drivers["csi.orlop.dev"]
                assert driver.node_id == "n1"
                assert driver.endpoint.path == str(the.plugins / "csi.orlop.dev" / "csi.sock")
                assert "GET_VOLUME_STATS" in await driver.capabilities(within=HANGS_AFTER)
                node.signal(signal.SIGTERM)
                await node.exit_code()
            await eventually(lambda: not watcher.drivers)


# ---- the machine itself ----------------------------------------------------------------------------------------------


def test_the_machine_is_told_as_it_is(tmp_path: Path):
    folder = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        facts = read_machine(folder)
    finally:
        os.close(folder)

    assert facts.cpus == os.cpu_count()
    assert facts.kernel == os.uname().release
    assert facts.boot_id == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert facts.memory_bytes > 2**20
    assert facts.disk_bytes > 0
    assert facts.architecture in {"amd64", "arm64", "riscv64", "ppc64le", "s390x"}
    assert ipaddress.ip_address(facts.address).version == 4
