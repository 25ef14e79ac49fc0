"""Worlds of static volumes on virtual time: an API server that enforces the rights of workers and master."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

from onenode.apiserver.access.rbac_rules import User, service_account_user
from onenode.apiserver.edge.in_process_client import InProcessTransport
from orlop.foundation.metrics import Metrics
from orlop.kube.api_errors import NotFound
from orlop.kube.http.http_messages import Transport
from orlop.kube.kinds import EVENT, PERSISTENT_VOLUME, kind_of_object
from orlop.kube.objects import ObjectName
from orlop.records.node_policy import NODE_OF_TOKEN
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.records.static_policy import MASTER_ACCOUNT, WORKER_ACCOUNT, master_access, worker_access, worker_policy
from orlop.static_pv.configuration import StaticConfiguration
from orlop.static_pv.lost_claims import LostClaims
from orlop.static_pv.master import StaticMaster
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_view import MasterView, master_view
from orlop.static_pv.naming_rules import volume_name
from support.api.api_wires import Wire
from support.static_volumes.claim_models import KubernetesModel
from support.static_volumes.static_objects import CLASS, CONFIGURATION, SPACE, create_cluster
from support.static_volumes.worker_model import DiskModel, WorkerModel
from support.worlds import ClusterWorld, ControllerParts, Object


@dataclass
class ModelNode:
    name: str
    disks: dict[str, DiskModel]
    worker: WorkerModel


@dataclass(frozen=True)
class RunningMaster:
    master: StaticMaster
    view: MasterView
    parts: ControllerParts
    metrics: Metrics


class StaticWorld(ClusterWorld):
    """Nodes with disks, and what Kubernetes does with claims. A test starts the master."""

    def __init__(self, *nodes: str, disks: int = 1, **of_class: Any) -> None:
        super().__init__()
        self.node_names = nodes
        self.disk_count = disks
        self.of_class = of_class
        self.nodes: dict[str, ModelNode] = {}
        self.configuration: StaticConfiguration | None = CONFIGURATION
        self.wire = Wire()
        """The master's connection to the API server."""

    async def begin(self, ends: AsyncExitStack) -> None:
        await super().begin(ends)
        await create_cluster(self.client, *self.node_names, **self.of_class)
        for obj in (*worker_policy(SPACE), *worker_access(SPACE), *master_access(SPACE)):
            kind = kind_of_object(obj["apiVersion"], obj["kind"])
            assert kind is not None
            await self.client.create(kind, obj)
        disks: dict[str, DiskModel] = {}
        self.kubernetes = KubernetesModel(self.on, self.client, self.clock, disks)
        for node in self.node_names:
            self.add_node(node, disks)
        self.start(self.kubernetes.run(), "kubernetes")

    def add_node(self, name: str, disks: dict[str, DiskModel]) -> None:
        own = {f"disk{number}": DiskModel(f"disk{number}", f"wwn:{name}-{number}") for number in range(self.disk_count)}
        disks.update({volume_name(entry, name, CLASS): disk for entry, disk in own.items()})
        user = User(service_account_user(SPACE, WORKER_ACCOUNT), extra={NODE_OF_TOKEN: (name,)})
        worker = WorkerModel(name, self.on.client(user), self.clock, own)
        worker.is_there = lambda: name in self.nodes
        self.nodes[name] = ModelNode(name, own, worker)
        self.start(worker.run(), f"worker of {name}")

    @asynccontextmanager
    async def master(self, *, lost_claim_delay: float = 0.0) -> AsyncIterator[RunningMaster]:
        user = User(service_account_user(SPACE, MASTER_ACCOUNT))
        transport: Transport = self.wire.around(InProcessTransport(self.on.server, user))
        async with (
            self.controller_parts("static-master", transport) as parts,
            master_view(parts.informers, SPACE) as view,
        ):
            metrics = parts.runtime.metrics
            counted = MasterMetrics(metrics)
            master = StaticMaster(
                view,
                lambda: self.configuration,
                runtime=parts.runtime,
                kube=parts.kube,
                events=parts.events,
                metrics=counted,
                queue_metrics=parts.queue_metrics,
                may_act=lambda: None,
            )
            running = [self.start(master.run(), "static master")]
            if lost_claim_delay:
                lost = LostClaims(
                    view,
                    lost_claim_delay,
                    runtime=parts.runtime,
                    kube=self.client,
                    events=parts.events,
                    metrics=counted,
                    may_act=lambda: None,
                )
                running.append(self.start(lost.run(), "lost claims"))
            try:
                yield RunningMaster(master, view, parts, metrics)
            finally:
                for each in running:
                    each.cancel()

    # ---- what is there -------------------------------------------------------------------------------------------

    async def volumes(self) -> dict[str, Object]:
        return {each["metadata"]["name"]: each for each in (await self.client.list(PERSISTENT_VOLUME)).items}

    async def volume(self, name: str) -> Object | None:
        with suppress(NotFound):
            return await self.client.get(PERSISTENT_VOLUME, ObjectName(None, name))
        return None

    async def report(self, node: str) -> Object | None:
        with suppress(NotFound):
            return await self.client.get(PROVISIONER_STATUS, ObjectName(SPACE, node))
        return None

    async def events(self, reason: str) -> list[str]:
        return [each["note"] for each in (await self.client.list(EVENT)).items if each["reason"] == reason]

    async def phases(self) -> dict[str, str]:
        return {name: each["status"]["phase"] for name, each in (await self.volumes()).items()}
