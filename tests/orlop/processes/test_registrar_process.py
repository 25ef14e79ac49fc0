"""`orlop registrar` as people run it: beside a driver, below a kubelet, with flags, signals and health."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest
from aiohttp import web

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.clock import SystemClock
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import NODE
from support.api.kube_model import ModelServer
from support.kubelet.kubelet_plugins import Kubelet, RealFolder
from support.processes.http_servers import serving as serving_http
from support.processes.orlop_process import Running, run, run_here, running, tree
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from contextlib import AbstractContextManager

MOCK = "mock.example.com"


class Machine:
    """A node's folders, with a kubelet that looks often."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registry = folder / "registry"
        self.registry.mkdir()
        self.socket = self.registry / f"{MOCK}-reg.sock"
        self.driver_socket = folder / "csi.sock"
        self.kubelet = Kubelet(
            RealFolder(self.registry),
            lambda endpoint: GrpcConnection(UnixEndpoint(endpoint)),
            SystemClock(),
            every=0.05,
        )

    def driver(self, **script: Any) -> AbstractContextManager[Running]:
        path = self.folder / "script.yaml"
        path.write_text(json.dumps(script))
        endpoint = f"unix://{self.driver_socket}"
        return running(self.folder, "testing", "mock-driver", "--endpoint", endpoint, "--script", str(path))

    def flags(self, *more: str) -> tuple[str, ...]:
        return (
            "registrar",
            f"--csi-address={self.driver_socket}",
            f"--kubelet-registration-path={self.driver_socket}",
            f"--plugin-registration-path={self.registry}",
            *more,
        )

    def registrar(self, *more: str) -> AbstractContextManager[Running]:
        return running(self.folder, *self.flags(*more))

    async def registers(self, node_id: str = "node-1") -> None:
        await eventually(lambda: MOCK in self.kubelet.drivers and self.kubelet.drivers[MOCK].node_id == node_id, 20)


@asynccontextmanager
async def machine(folder: Path) -> AsyncIterator[Machine]:
    made = Machine(folder)
    watching = asyncio.get_running_loop().create_task(made.kubelet.run())
    try:
        yield made
    finally:
        watching.cancel()
        with suppress(asyncio.CancelledError):
            await watching


def address_of(process: Running) -> str:
    return process.logged().partition("serving HTTP")[2].partition("address=")[2].split()[0].strip('"')


def answer_of(address: str, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://{address}{path}") as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


async def test_a_driver_that_comes_late_is_registered_and_taken_away_with_the_registrar(short_folder: Path):
    async with machine(short_folder) as the:
        with the.registrar() as registrar:
            await registrar.says("waiting for the driver")
            with the.driver():
                await the.registers()
                registrar.signal(signal.SIGTERM)
                assert await registrar.exit_code() == 0
        await eventually(lambda: not the.kubelet.drivers)

        assert not the.socket.exists()
        assert "Traceback" not in registrar.logged()


async def test_a_driver_restarted_with_another_node_is_registered_anew(short_folder: Path):
    async with machine(short_folder) as the:
        with the.registrar(), ExitStack() as drivers:
            first = drivers.enter_context(the.driver(node={"id": "n1", "topology": {"zone": "a"}}))
            await the.registers("n1")
            first.signal(signal.SIGKILL)
            await first.exit_code()
            drivers.enter_context(the.driver(node={"id": "n2", "topology": {"zone": "a", "rack": "1"}}))
            await the.registers("n2")

            assert the.kubelet.drivers[MOCK].topology == {"zone": "a", "rack": "1"}
            assert the.kubelet.labels == {"zone": "a", "rack": "1"}


async def test_a_killed_registrar_is_followed_by_the_next(short_folder: Path):
    async with machine(short_folder) as the:
        with the.driver():
            for _ in range(2):
                with the.registrar() as registrar:
                    await registrar.says("kubelet has registered the driver")
                    registrar.signal(signal.SIGKILL)
                    await registrar.exit_code()
                assert the.socket.is_socket()

    assert the.kubelet.registrations == [MOCK, MOCK]


async def test_kubelet_s_refusal_ends_it_with_exit_code_1(short_folder: Path):
    async with machine(short_folder) as the:
        the.kubelet.refuse[MOCK] = "nobody likes it"
        with the.driver(), the.registrar() as registrar:
            assert await registrar.exit_code() == 1

    assert "orlop registrar: kubelet did not register the driver: RegisterPlugin error" in registrar.logged()
    assert "nobody likes it" in registrar.logged()
    assert "Traceback" not in registrar.logged()
    assert not the.socket.exists()


async def test_a_second_registrar_of_the_same_driver_ends_and_harms_nothing(short_folder: Path):
    async with machine(short_folder) as the:
        with the.driver(), the.registrar():
            await the.registers()
            second = await asyncio.to_thread(run, *the.flags())
            await the.kubelet.look()

            assert second.returncode == 1
            assert str(the.socket) in second.stderr
            assert MOCK in the.kubelet.drivers


async def test_health_readiness_and_metrics_tell_how_far_it_is(short_folder: Path):
    the = Machine(short_folder)  # its kubelet looks when it is told to
    with the.registrar("--http-endpoint=127.0.0.1:0", "--enable-pprof") as registrar:
        await registrar.says("serving HTTP")
        address = address_of(registrar)
        assert answer_of(address, "/healthz") == (404, "registration socket does not exist")
        with the.driver():
            await eventually(lambda: answer_of(address, "/healthz") == (200, "ok"), 20)
            assert answer_of(address, "/readyz")[0] == 500
            await the.kubelet.look()
            assert answer_of(address, "/readyz") == (200, "ok")
            metrics = answer_of(address, "/metrics")[1]
        the.socket.unlink()
        assert answer_of(address, "/healthz")[0] == 404

    assert 'orlop_registrar_registered{driver_name="mock.example.com"} 1.0' in metrics
    assert "csi_sidecar_operations_seconds_count" in metrics
    assert "--enable-pprof has no effect" in registrar.logged()


async def test_what_the_driver_says_is_written_on_the_node_where_that_is_asked_for(short_folder: Path):
    server = ModelServer()
    server.put(NODE, "n-1", metadata={"annotations": {"csi.volume.kubernetes.io/nodeid": '{"other":"o"}'}})

    async def answer(request: web.Request) -> web.Response:
        headers = {name.lower(): value for name, value in request.headers.items()}
        query = tuple(request.query.items())
        asked = HttpRequest(request.method, request.path, query, headers, await request.read())
        told = await server.exchange(asked, 5.0)
        return web.Response(status=told.status, body=told.body, content_type="application/json")

    async with machine(short_folder) as the, serving_http(answer) as http:
        config = short_folder / "kubeconfig"
        config.write_text(kubeconfig(http.address))
        marks = ("--annotate-node", "--label-topology", "--node-name=n-1", f"--kubeconfig={config}")
        with the.driver(node={"id": "id-7", "topology": {"zone": "a"}}), the.registrar(*marks) as registrar:
            await registrar.says("wrote node id and topology to the Node")

    (node,) = server.of(NODE)
    assert node["metadata"]["annotations"] == {
        "csi.volume.kubernetes.io/nodeid": '{"mock.example.com":"id-7","other":"o"}'
    }
    assert node["metadata"]["labels"] == {"zone": "a"}


def kubeconfig(address: str) -> str:
    return json.dumps(
        {
            "clusters": [{"name": "c", "cluster": {"server": address}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
    )


def test_a_kubeconfig_that_is_not_there_ends_it_with_its_name(short_folder: Path):
    the = Machine(short_folder)
    ended = run(*the.flags("--annotate-node", "--node-name=n", f"--kubeconfig={short_folder}/none"))

    assert ended.returncode == 1
    assert f"{short_folder}/none" in ended.stderr
    assert "Traceback" not in ended.stderr


async def test_a_registrar_that_writes_on_no_node_loads_nothing_of_kubernetes():
    imported = "import sys, orlop.processes.registrar; print(*sys.modules)"
    ended = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", imported], check=True, capture_output=True, text=True
    )

    loaded = set(ended.stdout.split())
    assert {"aiohttp", "orlop.kube.client", "msgspec"} & loaded == set()


# ---- flags -----------------------------------------------------------------------------------------------------------

WRONG = [
    ([], ["--kubelet-registration-path is required"]),
    (["--kubelet-registration-path=/x", "--plugin-registration-path=/no/such"], ["'/no/such'", "plugins_registry"]),
    (["--kubelet-registration-path=/x", "--health-port=1", "--http-endpoint=:2"], ["Only one of --health-port and"]),
    (["--health-port=65536"], ["--health-port", "65535"]),
    (["--kubelet-registration-path=/x", "--annotate-node"], ["--node-name"]),
    (["--kubelet-registration-path=/x", "--label-topology"], ["--node-name"]),
    (["--mode=other"], ["--mode", "kubelet-registration-probe"]),
    (["--timeout=0s"], ["--timeout", "more than 0s"]),
    (["--csi-address=ftp://x"], ["--csi-address", "ftp"]),
]


@pytest.mark.parametrize(("flags", "named"), WRONG, ids=[" ".join(flags)[-50:] for flags, _ in WRONG])
def test_a_wrong_flag_is_named_before_anything_starts(flags: list[str], named: list[str], short_folder: Path):
    ended = run_here("registrar", f"--plugin-registration-path={short_folder}", *flags)

    assert ended.returncode == 2
    assert [text for text in named if text not in ended.stderr] == []
    assert "Traceback" not in ended.stderr
    assert tree(short_folder) == []


def test_the_version_is_printed_without_any_other_flag():
    ended = run_here("registrar", "--version")

    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "orlop registrar 0.1.0\n", "")


def test_the_old_probe_succeeds_and_says_that_it_is_deprecated():
    ended = run_here("registrar", "--kubelet-registration-path=/x/csi.sock", "--mode=kubelet-registration-probe")

    assert (ended.returncode, ended.stdout) == (0, "")
    assert "--mode is deprecated" in ended.stderr


async def test_upstream_s_deprecated_flags_are_taken(short_folder: Path):
    the = Machine(short_folder)
    flags = ("--connection-timeout=15s", "--mode=registration", "--http-endpoint=", "--v=5", "--timeout", "10s")
    with the.registrar(*flags) as registrar:
        await registrar.says("waiting for the driver")
        registrar.signal(signal.SIGTERM)
        assert await registrar.exit_code() == 0

    assert "--connection-timeout is deprecated" in registrar.logged()
    assert "serving HTTP" not in registrar.logged()
