"""How fast pods run on one machine with `orlop up`, and what it costs when nothing happens. Needs root.

A real `orlop up` in a mount namespace of its own, used over TLS as kubectl does: from the moment a pod with an inline
volume is created to the moment a watch shows that it runs, one after the other; then 200 at once, and all of them
deleted at once, until nothing of them is left. The floor beside it is `true` as a process, started and waited for. Then
all of Orlop's processes together, idle: the share of a core, and their memory, counted so that what they share counts
once (PSS).

Then an `orlop up --driver` beside the mock driver: a pod with a late-binding claim, created together, one after the
other. In between, the scheduler selects the node, the provisioner creates the volume and its PersistentVolume, the
binder binds it, the attacher attaches it and the kubelet mounts it.
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
from typing import Any

from measuring.api_access import client_of
from measuring.processes import ORLOP, as_installed, family, mock_driver, used
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS
from orlop.kube.objects import ObjectName

IN_NAMESPACE = "ORLOP_BENCHMARK_NAMESPACE"
NAMESPACE = "default"
SCRATCH = {"csi": {"driver": "csi.orlop.dev"}}
DRIVER = "pods.example.com"
SCRIPT = f"""
driver: {{name: {DRIVER}}}
capabilities:
  plugin: [CONTROLLER_SERVICE, VOLUME_ACCESSIBILITY_CONSTRAINTS]
  controller: [CREATE_DELETE_VOLUME, PUBLISH_UNPUBLISH_VOLUME]
  node: [STAGE_UNSTAGE_VOLUME]
"""
LATE = {
    "metadata": {"name": "late"},
    "provisioner": DRIVER,
    "volumeBindingMode": "WaitForFirstConsumer",
    "reclaimPolicy": "Delete",
}


def pod(name: str, volume: dict[str, Any]) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [
                {
                    "name": "main",
                    "image": "busybox",
                    "command": ["sleep", "100000"],
                    "volumeMounts": [{"name": "data", "mountPath": "/data"}],
                }
            ],
            "volumes": [{"name": "data", **volume}],
        },
    }


def late_claim(name: str) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "1Gi"}},
            "storageClassName": "late",
        },
    }


class Pods:
    """Creates and deletes pods, and learns from a watch when they run and when they are gone."""

    def __init__(self, client: KubeClient) -> None:
        self.client = client
        self._runs: dict[str, asyncio.Future[float]] = {}
        self._gone: dict[str, asyncio.Future[float]] = {}

    async def listen(self, version: str) -> None:
        async for event in self.client.watch(POD, after=version):
            name, now = event.object["metadata"]["name"], time.perf_counter()
            if event.type == "DELETED":
                _resolve(self._gone, name, now)
            elif event.object["status"].get("phase") == "Running":
                _resolve(self._runs, name, now)

    async def create(self, name: str, volume: dict[str, Any] = SCRATCH) -> float:
        """Create a pod; return the seconds until it runs."""
        runs = self._runs[name] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self.client.create(POD, pod(name, volume))
        return await runs - began

    async def delete(self, name: str) -> float:
        """Delete a pod; return the seconds until it is gone."""
        gone = self._gone[name] = asyncio.get_running_loop().create_future()
        began = time.perf_counter()
        await self.client.delete(POD, ObjectName(NAMESPACE, name), DeleteOptions())
        return await gone - began


def _resolve(waiting: dict[str, asyncio.Future[float]], name: str, now: float) -> None:
    if name in waiting and not waiting[name].done():
        waiting[name].set_result(now)


@asynccontextmanager
async def pods_of(state: Path) -> AsyncIterator[Pods]:
    async with client_of(state / "kubeconfig") as client:
        pods, version = Pods(client), (await client.list(POD)).version
        listening = asyncio.create_task(pods.listen(version))
        try:
            yield pods
        finally:
            listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await listening


# ---- orlop up --------------------------------------------------------------------------------------------------------


@contextmanager
def up(state: Path, driver: str, *flags: str) -> Iterator[subprocess.Popen[str]]:
    """Run `orlop up` until the driver of this name is registered."""
    began = time.perf_counter()
    words = [*ORLOP, "up", f"--state={state}", *flags]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=as_installed(state.parent)) as process:
        lines = iter(process.stdout or ())
        next(line for line in lines if f"driver {driver} registered" in line)
        print(f"orlop up {'--driver' if flags else ''}: ready after {time.perf_counter() - began:.2f} s (asked: 2)")
        try:
            yield process
        finally:
            process.terminate()
            process.communicate()
            subprocess.run([*ORLOP, "down", f"--state={state}", "--erase", "--yes"], check=True, capture_output=True)


def pss(process: int) -> float:
    """Return the proportional share of a process in megabytes."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) / 1024


def idle(process: int, seconds: float) -> None:
    processes = family(process)
    before = used(processes)
    time.sleep(seconds)
    share, sizes = (used(processes) - before) / seconds, [pss(each) for each in processes]
    parts = " + ".join(f"{size:.0f}" for size in sizes)
    used_text = f"{share:.2%} of a core (asked: 1 %), {sum(sizes):.0f} MB ({parts}; asked: 150)"
    print(f"idle, {len(processes)} processes: {used_text}", flush=True)


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


async def late_binding(state: Path, count: int) -> None:
    took = []
    async with pods_of(state) as pods:
        await pods.client.create(STORAGE_CLASS, LATE)
        for number in range(count + 1):
            name = f"late-{number}"
            began = time.perf_counter()
            await pods.client.create(PERSISTENT_VOLUME_CLAIM, late_claim(name))
            await pods.create(name, {"persistentVolumeClaim": {"claimName": name}})
            took.append(time.perf_counter() - began)
            await pods.delete(name)
            await pods.client.delete(PERSISTENT_VOLUME_CLAIM, ObjectName(NAMESPACE, name), DeleteOptions())
    # The first one pays for imports and connections.
    print(f"a pod and its late-binding claim, created to running (asked: p50 of 250): {figures(took[1:])}")


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
        with up(state, "csi.orlop.dev") as process:
            idle(process.pid, options.idle_seconds)
            asyncio.run(measure(state, options))
            idle(process.pid, options.idle_seconds)
        with mock_driver(SCRIPT, Path(name), "--create-targets") as socket, up(state, DRIVER, f"--driver={socket}"):
            asyncio.run(late_binding(state, options.pods))


if __name__ == "__main__":
    if IN_NAMESPACE not in os.environ:
        command = ["unshare", "--mount", "--propagation", "private", sys.executable, *sys.argv]
        os.execvpe(command[0], command, {**os.environ, IN_NAMESPACE: "1"})  # noqa: S606 - the same program again
    main()
