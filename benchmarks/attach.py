"""How fast an attacher works through what waits for it, what one attachment takes, and what that costs: in one run.

The API server is `orlop apiserver`, a process of its own, or the one of `--kubeconfig`; the driver is the mock driver,
also a process of its own, whose work is counted to nobody. Ours is `orlop attacher`; each `--beside 'COMMAND'` is
another attacher, started by turns with ours, with `{kubeconfig}` and `{socket}` in its command replaced:

    python benchmarks/attach.py --beside 'csi-attacher --kubeconfig={kubeconfig} --csi-address={socket}'

A turn has two starts. At the first, one VolumeAttachment waits: what passes until it is attached is what a start takes.
Then come single ones, each when nothing else is to be done: from the request that makes it to the watch that tells that
it is attached. At the second start 1,000 wait: from the start to the last one attached; then all are deleted at once:
from that request to the last one gone. Figures are medians of the turns.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring.processes import running
from measuring.sidecar_turns import Objects, Turn, Work, at_once, run_by_turns, singles
from orlop.kube.client import KubeClient, Selection, WatchEvent
from orlop.kube.kinds import CSI_NODE, PERSISTENT_VOLUME, VOLUME_ATTACHMENT

DRIVER = "attach.example.com"
LABEL = "example.com/benchmark"
SELECTED = Selection(labels=f"{LABEL}=attach")
NODES = 20
SCRIPT = f"""
driver: {{name: {DRIVER}}}
capabilities: {{plugin: [CONTROLLER_SERVICE], controller: [PUBLISH_UNPUBLISH_VOLUME]}}
"""


def named(name: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {LABEL: "attach"}}}


def csi_node(number: int) -> dict[str, Any]:
    drivers = [{"name": DRIVER, "nodeID": f"id-of-{number}", "topologyKeys": None}]
    return {**named(f"attach-benchmark-{number}"), "spec": {"drivers": drivers}}


def volume(name: str) -> dict[str, Any]:
    """As a provisioner makes it."""
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "capacity": {"storage": "10Gi"},
        "csi": {"driver": DRIVER, "volumeHandle": name, "fsType": "ext4", "volumeAttributes": {"tier": "fast"}},
        "persistentVolumeReclaimPolicy": "Retain",
        "storageClassName": "attach-benchmark",
    }
    return {**named(name), "spec": spec}


def attachment(name: str) -> dict[str, Any]:
    number = int(name.rpartition("-")[2])
    node = f"attach-benchmark-{number % NODES}"
    return {**named(name), "spec": {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": name}}}


class Attachments(Objects):
    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, "attach-benchmark", VOLUME_ATTACHMENT, SELECTED)
        self._attached: set[str] = set()
        self._existing: set[str] = set()

    async def prepare(self) -> None:
        for number in range(NODES):
            await self.client.create(CSI_NODE, csi_node(number))

    async def clean_up(self) -> None:
        for kind in (VOLUME_ATTACHMENT, PERSISTENT_VOLUME, CSI_NODE):
            await self.free(kind, (await self.client.list(kind, SELECTED)).items)

    def hear(self, event: WatchEvent) -> None:
        name = event.object["metadata"]["name"]
        self._existing.add(name)
        if (event.object.get("status") or {}).get("attached"):
            self._attached.add(name)
        if event.type == "DELETED":
            self._existing.discard(name)

    async def make_ready(self, names: Sequence[str]) -> None:
        await at_once(lambda name: self.client.create(PERSISTENT_VOLUME, volume(name)), names)

    async def want(self, names: Sequence[str]) -> None:
        await at_once(lambda name: self.client.create(VOLUME_ATTACHMENT, attachment(name)), names)

    def are_done(self, names: Sequence[str]) -> bool:
        return self._attached.issuperset(names)

    async def want_no_more(self, _: Sequence[str]) -> None:
        await self.client.delete_all(VOLUME_ATTACHMENT, SELECTED)

    def are_gone(self, names: Sequence[str]) -> bool:
        return self._existing.isdisjoint(names)


async def turn(attachments: Attachments, command: str, log: Path, options: argparse.Namespace) -> Turn:
    start, start_cpu, single = await singles(attachments, command, log, options.singles)
    names = await attachments.new_names(options.volumes)
    await attachments.want(names)
    with running(command, log) as attacher:
        await attachments.done(names)
        attach, attach_cpu = time.perf_counter() - attacher.began, await attacher.cpu_when_quiet()
        began = time.perf_counter()
        await attachments.want_no_more(names)
        await attachments.gone(names)
        detach, detach_cpu = time.perf_counter() - began, await attacher.cpu_when_quiet() - attach_cpu
        return Turn(start, start_cpu, single, attach, attach_cpu, detach, detach_cpu, attacher.peak())


ATTACH = Work(
    sidecar="attacher",
    one="attach",
    done="attached",
    undo_one="detach",
    undone="detached",
    script=SCRIPT,
    objects=Attachments,
    turn=turn,
)

if __name__ == "__main__":
    run_by_turns(ATTACH, __doc__ or "")
