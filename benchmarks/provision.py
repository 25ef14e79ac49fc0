"""How fast a provisioner works through the claims and the released volumes that wait for it, and what that costs.

The API server is `orlop apiserver`, a process of its own, or the one of `--kubeconfig`; the driver is the mock driver,
also a process of its own, whose work is counted to nobody. Ours is `orlop provisioner` with its journal; each
`--beside 'COMMAND'` is another provisioner, started by turns with ours, with `{kubeconfig}` and `{socket}` in its
command replaced:

    python benchmarks/provision.py --kubeconfig=FILE --beside 'csi-provisioner --kubeconfig={kubeconfig}
        --csi-address={socket} --worker-threads=100 --kube-api-qps=100000 --kube-api-burst=100000'

No binder and no protection controller may run on that server: the benchmark plays their parts. It creates claims that
are marked for the driver, and releases volumes: it deletes the claims, removes the finalizers of the protection and
writes the phase.

A turn has three starts. At the first, one claim waits: what passes until its PersistentVolume exists is what a start
takes. Then come single claims, each when nothing else is to be done: from the request that creates one to the watch
event of its volume. At the second start 1,000 claims wait: from the start to the last volume. At the third, their 1,000
volumes are released: from the start to the last one gone, less the time and the CPU that a start takes. CPU is read
when the process rests, so that it includes the events. Figures are medians of the turns.

Behind a figure is what is asked of it: a ratio to the upstream provisioner with its limits lifted, in the same run on a
real API server over TLS. In brackets is what was once measured of that one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from measuring.processes import running
from measuring.sidecar_turns import Objects, Turn, Work, at_once, run_by_turns, singles
from orlop.binding.claim_state_rules import BETA_STORAGE_PROVISIONER, PV_PROTECTION, STORAGE_PROVISIONER
from orlop.kube import objects
from orlop.kube.client import KubeClient, MergePatch, Selection, WatchEvent
from orlop.kube.kinds import LEASE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS
from orlop.records.provision_journal import DRIVER_LABEL

DRIVER = "provision.example.com"
CLASS = "provision-benchmark"
NAMESPACE = "default"
LABEL = "example.com/benchmark"
SELECTED = Selection(labels=f"{LABEL}=provision")
CLAIMS = Selection(NAMESPACE, labels=f"{LABEL}=provision")
JOURNAL = Selection(labels=f"{DRIVER_LABEL}={DRIVER}")
SCRIPT = f"""
driver: {{name: {DRIVER}}}
capacity: 1Pi
capabilities: {{plugin: [CONTROLLER_SERVICE], controller: [CREATE_DELETE_VOLUME]}}
"""


def storage_class() -> dict[str, Any]:
    return {
        "metadata": {"name": CLASS, "labels": {LABEL: "provision"}},
        "provisioner": DRIVER,
        "parameters": {"tier": "fast", "csi.storage.k8s.io/fstype": "ext4"},
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "Immediate",
    }


def claim(name: str) -> dict[str, Any]:
    """As the binder leaves it for the provisioner."""
    annotations = {STORAGE_PROVISIONER: DRIVER, BETA_STORAGE_PROVISIONER: DRIVER}
    return {
        "metadata": {
            "name": name,
            "namespace": NAMESPACE,
            "labels": {LABEL: "provision"},
            "annotations": annotations,
        },
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": "10Gi"}},
            "storageClassName": CLASS,
        },
    }


def claim_of(volume: dict[str, Any]) -> str:
    """Return the name of the claim that a volume was provisioned for, if it is one of ours."""
    spec = volume["spec"]
    return str(spec["claimRef"]["name"]) if spec.get("storageClassName") == CLASS and "claimRef" in spec else ""


class Claims(Objects):
    def __init__(self, client: KubeClient) -> None:
        super().__init__(client, "provision-benchmark", PERSISTENT_VOLUME, Selection())
        self._volumes: dict[str, dict[str, Any]] = {}
        """As last seen, by the names of their claims."""

    async def prepare(self) -> None:
        await self.client.create(STORAGE_CLASS, storage_class())

    async def clean_up(self) -> None:
        await self.free(PERSISTENT_VOLUME_CLAIM, (await self.client.list(PERSISTENT_VOLUME_CLAIM, CLAIMS)).items)
        volumes = (await self.client.list(PERSISTENT_VOLUME)).items
        await self.free(PERSISTENT_VOLUME, [volume for volume in volumes if claim_of(volume)])
        await self.free(STORAGE_CLASS, (await self.client.list(STORAGE_CLASS, SELECTED)).items)
        await self.free(LEASE, (await self.client.list(LEASE, JOURNAL)).items)

    def hear(self, event: WatchEvent) -> None:
        name = claim_of(event.object)
        if event.type == "DELETED":
            self._volumes.pop(name, None)
        elif name:
            self._volumes[name] = event.object

    async def make_ready(self, names: Sequence[str]) -> None:
        """Claims need nothing."""

    async def want(self, names: Sequence[str]) -> None:
        await at_once(lambda name: self.client.create(PERSISTENT_VOLUME_CLAIM, claim(name)), names)

    def are_done(self, names: Sequence[str]) -> bool:
        return self._volumes.keys() >= set(names)

    async def want_no_more(self, names: Sequence[str]) -> None:
        # First the claims: a provisioner provisions a claim again whose volume is gone.
        await self.free(PERSISTENT_VOLUME_CLAIM, [claim(name) for name in names])
        await at_once(self._release, [self._volumes[name] for name in names])

    async def _release(self, volume: dict[str, Any]) -> None:
        name = objects.name_of(volume)
        kept = [each for each in objects.finalizers(volume) if each != PV_PROTECTION]
        if PV_PROTECTION in objects.finalizers(volume):
            await self.client.patch(PERSISTENT_VOLUME, name, MergePatch({"metadata": {"finalizers": kept}}))
        released = MergePatch({"status": {"phase": "Released"}})
        await self.client.patch(PERSISTENT_VOLUME, name, released, subresource="status")

    def are_gone(self, names: Sequence[str]) -> bool:
        return self._volumes.keys().isdisjoint(names)

    async def check_journal(self) -> None:
        """End the benchmark if no journal was kept: without it, ours does less than it is measured for."""
        if not (await self.client.list(LEASE, JOURNAL)).items:
            sys.exit("orlop provisioner kept no journal: its user may not write Leases")


async def turn(claims: Claims, command: str, log: Path, options: argparse.Namespace) -> Turn:
    start, start_cpu, single = await singles(claims, command, log, options.singles)
    names = await claims.new_names(options.volumes)
    await claims.want(names)
    with running(command, log) as provisioner:
        await claims.done(names)
        provision, provision_cpu = time.perf_counter() - provisioner.began, await provisioner.cpu_when_quiet()
        peak = provisioner.peak()
    await claims.want_no_more(names)
    with running(command, log) as provisioner:
        await claims.gone(names)
        delete, delete_cpu = time.perf_counter() - provisioner.began, await provisioner.cpu_when_quiet()
        peak = max(peak, provisioner.peak())
    # Ours runs in the first turn of all.
    await claims.check_journal()
    return Turn(start, start_cpu, single, provision, provision_cpu, delete - start, delete_cpu - start_cpu, peak)


PROVISION = Work(
    sidecar="provisioner",
    one="provisioning",
    done="provisioned",
    undo_one="deletion",
    undone="deleted",
    script=SCRIPT,
    objects=Claims,
    turn=turn,
    bars={
        "provisioned in a second, without it": "at least 0.90 of it [620]",
        "deleted in a second": "at least 1.50 of it [261 to 275]",
        "CPU of one provisioning, ms": "at most 1.25 of it [0.56]",
        "peak of resident memory, MB": "at most 1.00 of it [80]",
    },
)

if __name__ == "__main__":
    run_by_turns(PROVISION, __doc__ or "")
