"""The registrar on real sockets: what stands in kubelet's folder, for whom, and what its health says."""

from __future__ import annotations

import asyncio
import socket
import stat
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

import pytest

from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.server import serving
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import silent_log
from orlop.foundation.unix_socket import SocketUnusable
from orlop.sidecars.registrar.driver_registration import Registrar
from orlop.sidecars.registrar.registration_socket import RegistrationFolder, SocketHealth, socket_health
from support.csi.csi_drivers import Bench, in_process_bench
from support.kubelet.kubelet_plugins import Kubelet, RealFolder
from support.kubelet.registrars import call_ids
from support.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

MOCK = "mock.example.com"


def registrar_in(folder: Path, bench: Bench) -> Registrar:
    serve = partial(serving, grace=1.0, log=silent_log())
    place = RegistrationFolder(folder=folder, driver_endpoint="/host/csi.sock", serve=serve, connect=GrpcConnection)
    runtime = Runtime(clock=SystemClock(), random=Random(1), log=silent_log(), metrics=Metrics("test"))
    return Registrar(bench.client, place, runtime, new_id=call_ids())


@asynccontextmanager
async def registering(folder: Path) -> AsyncIterator[tuple[Registrar, Path]]:
    async with in_process_bench() as bench:
        registrar = registrar_in(folder, bench)
        task = asyncio.get_running_loop().create_task(registrar.run())
        try:
            yield registrar, folder / f"{MOCK}-reg.sock"
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def asked(path: Path, name: str = MOCK) -> SocketHealth:
    return await socket_health(path, name, connect=GrpcConnection, seconds=1.0)


def stale(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        one.bind(str(path))


def is_bound(path: Path) -> bool:
    """Also a stale socket is one: only somebody who listens takes a connection."""
    with socket.socket(socket.AF_UNIX) as one:
        return one.connect_ex(str(path)) == 0


async def answers(registrar: Registrar, path: Path) -> SocketHealth:
    await eventually(lambda: is_bound(path))
    return await registrar.health(1.0)


async def test_the_socket_is_root_s_alone_and_answers(short_folder: Path):
    async with registering(short_folder) as (registrar, path):
        assert await answers(registrar, path) == SocketHealth(200, "ok")
        assert stat.S_ISSOCK(path.lstat().st_mode)
        assert stat.S_IMODE(path.lstat().st_mode) & 0o077 == 0

    assert not path.exists()


async def test_a_stale_socket_of_the_boot_before_is_replaced(short_folder: Path):
    path = short_folder / f"{MOCK}-reg.sock"
    stale(path)
    async with in_process_bench() as driver:
        kubelet = Kubelet(RealFolder(short_folder), lambda _: driver.connection, SystemClock())
        await kubelet.look()
        assert kubelet.drivers == {}
        async with registering(short_folder) as (registrar, _):
            await answers(registrar, path)
            kubelet.waits.clear()  # the two minutes for which kubelet leaves it alone
            await kubelet.look()

            assert list(kubelet.drivers) == [MOCK]
            assert await registrar.why_not_registered() is None


@pytest.mark.parametrize("what", ["file", "folder", "link"])
async def test_what_is_no_socket_is_not_replaced(short_folder: Path, what: str):
    path = short_folder / f"{MOCK}-reg.sock"
    match what:
        case "file":
            path.write_text("mine")
        case "folder":
            path.mkdir()
        case _:
            path.symlink_to("/elsewhere")
    async with in_process_bench() as bench:
        with pytest.raises(SocketUnusable, match="is no socket"):
            await registrar_in(short_folder, bench).run()

    assert path.is_symlink() or path.exists()


async def test_health_is_404_without_a_socket_and_500_for_everything_else(short_folder: Path):
    async with in_process_bench() as bench:
        assert (await registrar_in(short_folder, bench).health(1.0)).status == 404
    path = short_folder / "x-reg.sock"
    assert await asked(path) == SocketHealth(404, "registration socket does not exist")
    path.write_text("")
    assert (await asked(path)).status == 500
    path.unlink()
    stale(path)
    assert (await asked(path)).status == 500

    async with registering(short_folder) as (registrar, live):
        await answers(registrar, live)
        assert await asked(live, "other.example.com") == SocketHealth(500, f"invalid driver name {MOCK}")
        live.unlink()
        assert (await registrar.health(1.0)).status == 404


async def test_a_socket_that_takes_calls_and_answers_none_is_unhealthy_in_time(short_folder: Path):
    path = short_folder / "x-reg.sock"
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(path))
        silent.listen(1)
        found = await socket_health(path, MOCK, connect=GrpcConnection, seconds=0.2)

    assert found.status == 500
