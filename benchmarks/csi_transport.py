"""What our server and our client cost beside bare grpcio, measured in one run and printed as ratios.

Each cell: the same request (ControllerPublishVolume, as an attacher sends it) over a unix socket, with 1, 10 and 100
calls in flight. Rounds of ours and of the bare one take turns, and each figure is the median of its rounds, so that a
busy machine hurts both alike. `server` rows have a bare client, `client` rows a bare server. Logging is on, at the
level `info`, as in a daemon, into /dev/null. Then the `orlop driver` process itself: memory when idle, time from start
to listening.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

import grpc
import grpc.aio
import uvloop

from orlop.csi.client import CsiClient
from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.server import serving
from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import HeldLines, Log, lines_for

IN_FLIGHT = (1, 10, 100)
KINDS = ("bare", "ours")
MOST_CPU = {"server": 0.75, "client": 0.9}
"""Neither is grpcio's."""


def request(number: int) -> csi_pb2.ControllerPublishVolumeRequest:
    return csi_pb2.ControllerPublishVolumeRequest(
        volume_id=f"pvc-6355041d-f9c6-4bd6-9335-{number:012d}",
        node_id="worker-17.example.com",
        volume_capability=csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(fs_type="xfs"),
            access_mode=csi_pb2.VolumeCapability.AccessMode(
                mode=csi_pb2.VolumeCapability.AccessMode.Mode.SINGLE_NODE_WRITER
            ),
        ),
        secrets={"username": "someone", "password": "planted"},
        volume_context={"storage.kubernetes.io/csiProvisionerIdentity": "1700000000000-1234-csi.example.com"},
    )


async def publish(_request: csi_pb2.ControllerPublishVolumeRequest) -> csi_pb2.ControllerPublishVolumeResponse:
    return csi_pb2.ControllerPublishVolumeResponse(publish_context={"device": "/dev/sdx"})


class Controller(services.Controller):
    async def ControllerPublishVolume(  # noqa: N802 - the interface's name
        self, request: csi_pb2.ControllerPublishVolumeRequest
    ) -> csi_pb2.ControllerPublishVolumeResponse:
        return await publish(request)


# ---- the two servers, each a process of its own ----------------------------------------------------------------------


def quiet_log() -> Log:
    """As a daemon makes its log."""
    lines = lines_for(open(os.devnull, "w"), now=SystemClock().now)  # noqa: PTH123, SIM115 - open till the end
    return Log(HeldLines(lines, later=asyncio.get_running_loop().call_later))


async def serve_ours(path: str, stop: asyncio.Event) -> None:
    numbers = itertools.count()
    interceptor = CallInterceptor(
        methods_of(Controller()),
        driver_name="bench.example.com",
        log=quiet_log(),
        metrics=Metrics("bench"),
        clock=SystemClock(),
        new_id=lambda: f"r-{next(numbers)}",
    )
    async with serving(UnixEndpoint(path), interceptor, grace=1.0, log=quiet_log()):
        await stop.wait()


async def serve_bare(path: str, stop: asyncio.Event) -> None:
    async def handler(message: csi_pb2.ControllerPublishVolumeRequest, _context: object) -> object:
        return await publish(message)

    server = grpc.aio.server()
    method = grpc.unary_unary_rpc_method_handler(
        handler,
        request_deserializer=csi_pb2.ControllerPublishVolumeRequest.FromString,
        response_serializer=csi_pb2.ControllerPublishVolumeResponse.SerializeToString,
    )
    generic = grpc.method_handlers_generic_handler("csi.v1.Controller", {"ControllerPublishVolume": method})
    server.add_generic_rpc_handlers((generic,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await stop.wait()
    await server.stop(1.0)


async def serve(kind: str, path: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await {"ours": serve_ours, "bare": serve_bare}[kind](path, stop)


# ---- the two clients, each a process of its own ----------------------------------------------------------------------


@dataclass(frozen=True)
class Figures:
    """One round."""

    calls_per_second: float
    p50: float
    p99: float
    cpu: float

    @classmethod
    def of(cls, latencies: list[float], seconds: float, cpu: float) -> Figures:
        ordered = sorted(latencies)
        count = len(ordered)
        return cls(count / seconds, ordered[count // 2] * 1e6, ordered[int(count * 0.99)] * 1e6, cpu / count * 1e6)


Call = Callable[[int], Awaitable[object]]


def our_call(path: str) -> tuple[Call, Callable[[], Awaitable[object]]]:
    random = Random(1)  # noqa: S311 - spreads retries, guards nothing
    client = CsiClient(
        GrpcConnection(UnixEndpoint(path)),
        log=quiet_log(),
        metrics=Metrics("bench"),
        clock=SystemClock(),
        random=random,
    )
    return lambda number: client.call(rpc.CONTROLLER_PUBLISH_VOLUME, request(number)), client.close


def bare_call(path: str) -> tuple[Call, Callable[[], Awaitable[object]]]:
    channel = grpc.aio.insecure_channel(f"unix:{path}", options=(("grpc.default_authority", "localhost"),))
    method = channel.unary_unary(
        rpc.CONTROLLER_PUBLISH_VOLUME.path,
        request_serializer=csi_pb2.ControllerPublishVolumeRequest.SerializeToString,
        response_deserializer=csi_pb2.ControllerPublishVolumeResponse.FromString,
    )
    return lambda number: method(request(number), timeout=15.0), channel.close


async def load(kind: str, path: str, in_flight: int, seconds: float) -> None:
    """Calls without a pause and prints one line of figures."""
    call, close = {"ours": our_call, "bare": bare_call}[kind](path)
    numbers = itertools.count()
    latencies: list[float] = []
    await asyncio.gather(*(call(next(numbers)) for _ in range(in_flight)))  # connects, fills caches
    started, cpu = time.perf_counter(), time.process_time()

    async def caller() -> None:
        while (before := time.perf_counter()) - started < seconds:
            await call(next(numbers))
            latencies.append(time.perf_counter() - before)

    await asyncio.gather(*(caller() for _ in range(in_flight)))
    figures = Figures.of(latencies, time.perf_counter() - started, time.process_time() - cpu)
    await close()
    print(figures.calls_per_second, figures.p50, figures.p99, figures.cpu, len(latencies))


# ---- the rounds ------------------------------------------------------------------------------------------------------


def myself(*arguments: object) -> list[str]:
    return [sys.executable, __file__, *map(str, arguments)]


def wait_for_socket(path: str) -> None:
    while True:
        with socket.socket(socket.AF_UNIX) as probe:
            if probe.connect_ex(path) == 0:
                return
        time.sleep(0.001)


@contextmanager
def server(kind: str, folder: str) -> Iterator[tuple[str, int]]:
    path = f"{folder}/{kind}.sock"
    process = subprocess.Popen(myself("serve", kind, path))
    try:
        wait_for_socket(path)
        yield path, process.pid
    finally:
        process.terminate()
        process.wait()


def cpu_of(pid: int) -> float:
    """Of all its threads, to the nanosecond: the usual figure counts hundredths of a second."""
    threads = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((thread / "schedstat").read_text().split()[0]) for thread in threads) / 1e9


def one_round(client: str, served: tuple[str, int], in_flight: int, seconds: float, side: str) -> Figures:
    path, pid = served
    before = cpu_of(pid)
    printed = subprocess.run(
        myself("load", client, path, in_flight, seconds), check=True, capture_output=True, text=True
    )
    *figures, count = map(float, printed.stdout.split())
    spent = (cpu_of(pid) - before) / (count + in_flight) * 1e6
    return Figures(*figures[:3], spent if side == "server" else figures[3])


def median(rounds: list[Figures]) -> Figures:
    columns = zip(*((r.calls_per_second, r.p50, r.p99, r.cpu) for r in rounds), strict=True)
    return Figures(*map(statistics.median, columns))


def compare(side: str, sockets: dict[str, tuple[str, int]], in_flight: int, options: argparse.Namespace) -> None:
    rounds: dict[str, list[Figures]] = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            served, calling = (kind, "bare") if side == "server" else ("bare", kind)
            rounds[kind].append(one_round(calling, sockets[served], in_flight, options.seconds, side))
    bare, ours = median(rounds["bare"]), median(rounds["ours"])
    # Of two rounds that followed each other: what else the machine did meanwhile hurt both.
    cpu = statistics.median(o.cpu / b.cpu for b, o in zip(rounds["bare"], rounds["ours"], strict=True))
    for kind, f in (("bare", bare), ("ours", ours)):
        print(f"{side:7} {in_flight:4} {kind:5} {f.calls_per_second:9.0f} {f.p50:9.0f} {f.p99:9.0f} {f.cpu:9.0f}")
    print(
        f"{side:7} {in_flight:4} ratio {ours.calls_per_second / bare.calls_per_second:9.2f} {ours.p50 / bare.p50:9.2f} "
        f"{ours.p99 / bare.p99:9.2f} {cpu:9.2f}   (CPU per call: at most {MOST_CPU[side]})"
    )


def measure_driver(folder: str, rounds: int) -> None:
    """The real process: `orlop driver` with its default flags."""
    orlop = str(Path(sys.executable).with_name("orlop"))
    times, memory = [], []
    for number in range(rounds):
        path = f"{folder}/driver{number}.sock"
        started = time.perf_counter()
        process = subprocess.Popen(
            [orlop, "driver", "--endpoint", f"unix://{path}", "--nodeid", "n", "--workdir="], stderr=subprocess.DEVNULL
        )
        wait_for_socket(path)
        times.append(time.perf_counter() - started)
        subprocess.run([orlop, "csi", "Probe", "--endpoint", path], check=True, stdout=subprocess.DEVNULL)
        status = Path(f"/proc/{process.pid}/status").read_text()
        memory.append(int(status.partition("VmRSS:")[2].split()[0]) / 1024)
        process.terminate()
        process.wait()
    print(f"driver  start to listening {statistics.median(times):.3f} s (under 0.5)")
    print(f"driver  idle memory {max(memory):.1f} MB (at most 40)")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.8, help="length of one round")
    parser.add_argument("--rounds", type=int, default=11, help="rounds per figure")
    options = parser.parse_args()
    print(f"csi_transport: Python {sys.version.split()[0]}, grpcio {grpc.__version__}, {os.cpu_count()} cores")
    print(f"{'side':7} {'n':>4} {'':5} {'calls/s':>9} {'p50 us':>9} {'p99 us':>9} {'CPU us':>9}")
    with tempfile.TemporaryDirectory(prefix="o-") as folder:
        with server("bare", folder) as bare, server("ours", folder) as ours:
            for side in ("server", "client"):
                for in_flight in IN_FLIGHT:
                    compare(side, {"bare": bare, "ours": ours}, in_flight, options)
        measure_driver(folder, options.rounds)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["serve", kind, path]:
            uvloop.run(serve(kind, path))
        case ["load", kind, path, in_flight, seconds]:
            uvloop.run(load(kind, path, int(in_flight), float(seconds)))
        case _:
            main()
