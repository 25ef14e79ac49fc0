"""How fast pods run on one machine with `orlop up`, and what it costs when nothing happens. Needs root.

A real `orlop up` in a mount namespace of its own, used over TLS as kubectl does: from the moment a pod with an inline
volume is created to the moment a watch tells that it runs, one after the other; then 200 at once, and all of them
deleted at once, until nothing of them is left. The floor beside it is `true` as a process, started and waited for. Then
all of Orlop's processes together, idle: the share of a core, and their memory, counted so that what they share counts
once (PSS).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any

from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.config.kubeconfig import Kubeconfig
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName

IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"
ORLOP = [sys.executable, "-m", "orlop"]
NAMESPACE = "default"


def pod(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sleep", "100000"],
                    "volumeMounts": [{"name": "scratch", "mountPath": "/scratch"}],
                }
            ],
            "volumes": [{"name": "scratch", "csi": {"driver": "csi.orlop.dev"}}],
        },
    }


class Pods:
    """Creates and deletes pods, and hears from a watch when they run and when they are gone."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._runs: dict[str, asyncio.Future[float]] = {}
        self._gone: dict[str, asyncio.Future[float]] = {}

    async def listen(self, version: str) -> None:
        async for event in self._client.watch(POD, after=version):
            name, now = event.object["metadata"]["name"], time.perf_counter()
            if event.type == "DELETED":
                _tell(self._gone, name, now)
            elif event.object["status"].get("phase") == "Running":
                _tell(self._runs, name, now)

    async def create(self, name: str) -> float:
        """Seconds until it runs."""
        runs = self._runs[name] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self._client.create(POD, pod(name))
        return await runs - began

    async def delete(self, name: str) -> float:
        """Seconds until it is gone."""
        gone = self._gone[name] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self._client.delete(POD, ObjectName(NAMESPACE, name), DeleteOptions())
        return await gone - began


def _tell(waiting: dict[str, asyncio.Future[float]], name: str, now: float) -> None:
    if name in waiting and not waiting[name].done():
        waiting[name].set_result(now)


@asynccontextmanager
async def pods_of(state: Path) -> AsyncIterator[Pods]:
    access = Kubeconfig({}, clock=SystemClock(), run=_no_programs).find(str(state / "kubeconfig"))
    transport = HttpTransport(access)
    client = KubeClient(transport, clock=SystemClock(), random=Random(1), log=silent_log(), name="bench")  # noqa: S311 - no secret
    pods, version = Pods(client), (await client.list(POD)).version
    listening = asyncio.create_task(pods.listen(version))
    try:
        yield pods
    finally:
        listening.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await listening
        await client.close()


async def _no_programs(*_: object) -> tuple[int, bytes, bytes]:
    raise OSError("no programs are run here")


# ---- orlop up --------------------------------------------------------------------------------------------------------


@contextmanager
def up(state: Path) -> Iterator[subprocess.Popen[str]]:
    began = time.perf_counter()
    words = [*ORLOP, "up", f"--state={state}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        lines = iter(process.stdout or ())
        next(line for line in lines if "ready | driver csi.orlop.dev registered" in line)
        print(f"orlop up: ready after {time.perf_counter() - began:.2f} s (asked: 2)")
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()
            subprocess.run([*ORLOP, "down", f"--state={state}", "--erase", "--yes"], check=True, capture_output=True)


def family(process: int) -> list[int]:
    """A process and all below it."""
    children = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return [process, *(each for child in children for each in family(int(child)))]


def used(processes: Sequence[int]) -> float:
    """Seconds of a core."""
    total = 0.0
    for process in processes:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        total += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return total


def pss(process: int) -> float:
    """Megabytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def idle(process: int, seconds: float) -> None:
    processes = family(process)
    before = used(processes)
    time.sleep(seconds)
    share, sizes = (used(processes) - before) / seconds, [pss(each) for each in processes]
    parts = " + ".join(f"{size:.0f}" for size in sizes)
    told = f"{share:.2%} of a core (asked: 1 %), {sum(sizes):.0f} MB ({parts}; asked: 150)"
    print(f"idle, {len(processes)} processes: {told}", flush=True)


# ---- the tables ------------------------------------------------------------------------------------------------------


def figures(calls: Sequence[float]) -> str:
    ordered = sorted(calls)
    return f"p50 {statistics.median(ordered) * 1000:7.1f} ms   p99 {ordered[int(len(ordered) * 0.99)] * 1000:7.1f} ms"


def floor() -> float:
    began = time.perf_counter()
    subprocess.run(["true"], check=True)
    return time.perf_counter() - began


async def one_by_one(pods: Pods, count: int) -> None:
    await pods.create("warm")
    await pods.delete("warm")
    began, ended = [], []
    for number in range(count):
        began.append(await pods.create(f"one-{number}"))
        ended.append(await pods.delete(f"one-{number}"))
    print(f"a process, started and waited for (the floor): {figures([floor() for _ in range(count)])}")
    print(f"a pod, created to running (asked: p50 of 150): {figures(began)}")
    print(f"a pod, deleted to gone:                        {figures(ended)}")


async def at_once(pods: Pods, count: int) -> None:
    names = [f"many-{number}" for number in range(count)]
    for what, act in (("created", pods.create), ("deleted", pods.delete)):
        began = time.perf_counter()
        calls = await asyncio.gather(*(act(name) for name in names))
        whole = time.perf_counter() - began
        print(f"{count} pods {what} at once: {whole:.2f} s, {count / whole:.0f} /s, {figures(calls)}")


async def measure(state: Path, options: argparse.Namespace) -> None:
    async with pods_of(state) as pods:
        await one_by_one(pods, options.pods)
        await at_once(pods, options.at_once)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pods", type=int, default=100, help="one after the other")
    parser.add_argument("--at-once", type=int, default=200)
    parser.add_argument("--idle-seconds", type=float, default=30.0)
    options = parser.parse_args()
    if os.geteuid() != 0:
        sys.exit("pods are mounts and processes, and need root")
    with tempfile.TemporaryDirectory(prefix="orlop-") as name:
        state = Path(name) / "up"
        with up(state) as process:
            idle(process.pid, options.idle_seconds)
            asyncio.run(measure(state, options))
            idle(process.pid, options.idle_seconds)


if __name__ == "__main__":
    if IN_NAMESPACE not in os.environ:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again
    main()
