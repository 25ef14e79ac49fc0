"""An API server in memory with the objects of a test, and `orlop explain` that reads from it.

No controller runs here: tests write what the controllers of a real cluster would have written.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any

from click.testing import CliRunner

from onenode.apiserver.access.rbac_rules import ADMIN, User
from onenode.testing.api_server import api_server
from orlop.cli import explain as explain_verb
from orlop.cli.in_cluster import ConnectedCluster, ServerChoice, Work
from orlop.foundation.clock import SystemClock
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CORE_EVENT,
    CSI_DRIVER,
    LEASE,
    NAMESPACE,
    NODE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    POD,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    VOLUME_ATTACHMENT,
    Kind,
)
from orlop.kube.objects import micro_time_text, name_of, time_text

DRIVER = "disks.example.com"
TEAM = "team"
LATER = timedelta(minutes=5)
"""How long after the objects were created they are explained."""
Object = dict[str, Any]
Build = Callable[["Cluster"], Awaitable[None]]


@dataclass
class Cluster:
    client: KubeClient
    clock: SystemClock

    async def create(self, kind: Kind, name: str, *, status: Object | None = None, **body: Any) -> Object:
        metadata = {"name": name, **body.pop("metadata", {})}
        if kind.namespaced:
            metadata.setdefault("namespace", TEAM)
        created = await self.client.create(kind, {"metadata": metadata, **body})
        return created if status is None else await self.status(kind, created, **status)

    async def status(self, kind: Kind, obj: Object, **status: Any) -> Object:
        return await self.client.patch(kind, name_of(obj), MergePatch({"status": status}), subresource="status")

    async def without_finalizer(self, kind: Kind, obj: Object, finalizer: str) -> None:
        stored = await self.client.get(kind, name_of(obj))
        kept = [each for each in stored["metadata"].get("finalizers", []) if each != finalizer]
        await self.client.patch(kind, name_of(obj), MergePatch({"metadata": {"finalizers": kept}}))

    async def delete(self, kind: Kind, obj: Object) -> None:
        await self.client.delete(kind, name_of(obj))

    async def claim(self, name: str = "data", *, phase: str = "Pending", **more: Any) -> Object:
        metadata = more.pop("metadata", {})
        spec = {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": more.pop("size", "10Gi")}},
            **more,
        }
        return await self.create(PERSISTENT_VOLUME_CLAIM, name, metadata=metadata, spec=spec, status={"phase": phase})

    async def bound_claim(self, volume: str = "pv1", **more: Any) -> Object:
        metadata = {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}, **more.pop("metadata", {})}
        return await self.claim(phase=more.pop("phase", "Bound"), volumeName=volume, metadata=metadata, **more)

    async def volume(self, name: str = "pv1", *, phase: str = "Available", **more: Any) -> Object:
        metadata, message = more.pop("metadata", {}), more.pop("message", None)
        source = more.pop("source", {"csi": {"driver": DRIVER, "volumeHandle": f"h-{name}"}})
        spec = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": more.pop("size", "10Gi")}, **source, **more}
        status = {"phase": phase, **({"message": message} if message else {})}
        return await self.create(PERSISTENT_VOLUME, name, metadata=metadata, spec=spec, status=status)

    async def volume_of(self, claim: Object, name: str = "pv1", *, uid: str | None = None, **more: Any) -> Object:
        reference = {"kind": "PersistentVolumeClaim", "namespace": TEAM, "name": claim["metadata"]["name"]}
        used = claim["metadata"]["uid"] if uid is None else uid
        phase = more.pop("phase", "Bound")
        return await self.volume(name, phase=phase, claimRef={**reference, **({"uid": used} if used else {})}, **more)

    async def storage_class(self, name: str = "fast", **more: Any) -> Object:
        return await self.create(STORAGE_CLASS, name, **{"provisioner": DRIVER, **more})

    async def pod(self, name: str = "web-0", *, claim: str = "data", node: str = "", **status: Any) -> Object:
        volume = {"name": "data", "persistentVolumeClaim": {"claimName": claim}}
        spec: Object = {"containers": [{"name": "c", "image": "i"}], "volumes": [volume]}
        if node:
            spec["nodeName"] = node
        return await self.create(POD, name, spec=spec, status=status or None)

    async def node(self, name: str = "n1", **labels: str) -> Object:
        return await self.create(NODE, name, metadata={"labels": labels})

    async def attachment(self, volume: str = "pv1", node: str = "n1") -> Object:
        spec = {"attacher": DRIVER, "nodeName": node, "source": {"persistentVolumeName": volume}}
        return await self.create(VOLUME_ATTACHMENT, "csi-1", spec=spec)

    async def csi_driver(self) -> None:
        await self.create(CSI_DRIVER, DRIVER, spec={})

    async def lease(self, *, renewed: timedelta, holder: str = "p-0", **more: Any) -> None:
        """Create the Lease of a provisioner; `renewed`: how long before the explanation."""
        moment = micro_time_text(self.clock.now() + LATER - renewed)
        spec = {"holderIdentity": holder, "leaseDurationSeconds": 15, "renewTime": moment}
        metadata = {"namespace": "default", **more.pop("metadata", {})}
        await self.create(LEASE, more.pop("name", "disks-example-com"), metadata=metadata, spec=spec)

    async def event(self, about: Object, kind: Kind, reason: str, message: str, **more: Any) -> None:
        namespace = about["metadata"].get("namespace", "default")
        reference = {"kind": kind.kind, "apiVersion": kind.api_version, **name_and_uid(about)}
        times = {"firstTimestamp": time_text(self.clock.now()), "lastTimestamp": time_text(self.clock.now())}
        body = {"type": "Warning", "reason": reason, "message": message, "count": 1, **times, **more}
        await self.create(
            CORE_EVENT, f"{reason.lower()}.1", metadata={"namespace": namespace}, involvedObject=reference, **body
        )


def name_and_uid(obj: Object) -> Object:
    return {field: obj["metadata"][field] for field in ("name", "namespace", "uid") if field in obj["metadata"]}


@dataclass(frozen=True)
class Explained:
    code: int
    text: str
    errors: str
    json: Object
    """What `-o json` prints; empty if it failed."""

    @property
    def state(self) -> str:
        return str(self.json["fields"]["state"])

    @property
    def next(self) -> str:
        return str(self.json["next"])


def explained(kind: str, name: str, build: Build, *, user: User = ADMIN) -> Explained:
    """Fill an API server, and run `orlop explain KIND NAME` against it, for people and for programs."""

    async def filled(work: Work[Any]) -> Any:
        clock = SystemClock()
        async with api_server(clock) as server:
            cluster = Cluster(server.client(), clock)
            await cluster.create(NAMESPACE, TEAM)
            await cluster.create(SERVICE_ACCOUNT, "default")
            await build(cluster)
            now = clock.now() + LATER
            return await work(ConnectedCluster(server.client(user), TEAM, now, clock, Random(1)))

    def run(_choice: ServerChoice, work: Work[Any]) -> Any:
        return asyncio.run(filled(work))

    ended = CliRunner().invoke(explain_verb.command, [kind, name], obj=run)
    for_programs = CliRunner().invoke(explain_verb.command, [kind, name, "-o", "json"], obj=run)
    if ended.exception is not None and not isinstance(ended.exception, SystemExit):
        raise ended.exception
    fields = json.loads(for_programs.stdout) if for_programs.exit_code == 0 else {}
    return Explained(ended.exit_code, ended.stdout, ended.stderr, fields)


TENANT = User("tenant", ("system:authenticated",))


async def let_tenant_read(cluster: Cluster, *resources: str) -> None:
    """Let the tenant read these resources, everywhere, and no others."""
    rules = [{"apiGroups": ["*"], "resources": list(resources), "verbs": ["get", "list"]}]
    await cluster.create(CLUSTER_ROLE, "reader", rules=rules)
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "reader"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}
    await cluster.create(CLUSTER_ROLE_BINDING, "reader", roleRef=role, subjects=[subject])
