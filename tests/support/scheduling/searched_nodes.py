"""A search for a node over plain objects, without an API server: what the scheduler would answer at once."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import count
from random import Random
from typing import Any

from onenode.controllers.scheduling.node_search import Found, NodeSearch, SchedulerCaches
from onenode.controllers.scheduling.reservations import Reservation, Reservations
from onenode.controllers.scheduling.wakeups import Wakeups
from onenode.controllers.scheduling_rules import Unschedulable
from orlop.foundation.clock import SystemClock
from orlop.foundation.structured_log import silent_log
from orlop.kube import kinds
from orlop.kube.cache.informer import Informer, Watched
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName, name_of

Object = dict[str, Any]
KIND_OF = {
    "pods": kinds.POD,
    "nodes": kinds.NODE,
    "claims": kinds.PERSISTENT_VOLUME_CLAIM,
    "volumes": kinds.PERSISTENT_VOLUME,
    "classes": kinds.STORAGE_CLASS,
    "csi_nodes": kinds.CSI_NODE,
    "csi_drivers": kinds.CSI_DRIVER,
    "capacities": kinds.CSI_STORAGE_CAPACITY,
    "attachments": kinds.VOLUME_ATTACHMENT,
}


class _NoClient:
    is_remote = False


class SearchedNodes:
    """The caches hold what a test puts in, in that order; `woken` are the pods that changes would wake."""

    def __init__(self, **objects: Iterable[Object]) -> None:
        self._versions = count(1)
        self.caches = SchedulerCaches(**{name: _informer(kind) for name, kind in KIND_OF.items()})
        self.search = NodeSearch(self.caches)
        self.reservations = Reservations(self.search)
        self.woken: list[ObjectName] = []
        self.wakeups = Wakeups(self.caches, self.search, self.woken.append)
        self.wakeups.listen()
        for kind, found in objects.items():
            for one in found:
                self.put(kind, one)

    def put(self, kind: str, obj: Object) -> Object:
        """Put an object into the cache of a kind, as a new version; return it."""
        stored = {**obj, "metadata": {"uid": obj["metadata"]["name"], **obj["metadata"]}}
        stored["metadata"]["resourceVersion"] = str(next(self._versions))
        informer: Informer = getattr(self.caches, kind)
        informer.cache.put(name_of(stored), stored)
        informer._listeners.notify([name_of(stored)])
        return stored

    def remove(self, kind: str, name: str, namespace: str | None = None) -> None:
        informer: Informer = getattr(self.caches, kind)
        gone = ObjectName(namespace, name)
        informer.cache.remove(gone)
        informer._listeners.notify([gone])

    def find(self, pod: Object) -> Found | Unschedulable:
        return self.search.find(pod)

    def message(self, pod: Object) -> str:
        found = self.find(pod)
        return found.message if isinstance(found, Unschedulable) else f"fits {found.node}"

    def reserve(self, pod: Object) -> Reservation | None:
        found = self.find(pod)
        return self.reservations.make(pod, found) if isinstance(found, Found) else None


def _informer(kind: Kind) -> Informer:
    client: Any = _NoClient()
    return Informer(client, Watched(kind), clock=SystemClock(), random=Random(1), log=silent_log())


# ---- objects ---------------------------------------------------------------------------------------------------------


def node(name: str = "n1", *, ready: bool = True, labels: Object | None = None, **rest: Any) -> Object:
    """`allocatable` is the status's; everything else is the spec's."""
    status: Object = {"conditions": [{"type": "Ready", "status": "True" if ready else "False"}]}
    if "allocatable" in rest:
        status["allocatable"] = rest.pop("allocatable")
    return {"metadata": {"name": name, "labels": {"host": name, **(labels or {})}}, "spec": rest, "status": status}


def pod(name: str = "p", *claims: str, requests: Object | None = None, **spec: Any) -> Object:
    volumes = [{"name": f"v-{claim}", "persistentVolumeClaim": {"claimName": claim}} for claim in claims]
    containers = [{"name": "main", "resources": {"requests": requests or {}}}]
    body = {"containers": containers, "volumes": volumes, **spec}
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-of-{name}"}, "spec": body}


def claim(name: str = "c", size: str = "1Gi", class_name: str = "late", **rest: Any) -> Object:
    """`annotations`, `deleted`, `phase`, `owner` and `uid` are looked at; everything else is the spec's."""
    metadata: Object = {"name": name, "namespace": "default", "annotations": rest.pop("annotations", {})}
    if rest.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    if owner := rest.pop("owner", ""):
        metadata["ownerReferences"] = [{"uid": owner, "controller": True}]
    metadata["uid"] = rest.pop("uid", name)
    status = {"phase": rest.pop("phase", "Pending")}
    ask = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": size}}}
    return {"metadata": metadata, "spec": {**ask, "storageClassName": class_name, **rest}, "status": status}


def bound_claim(name: str = "c", volume_name: str = "v", **rest: Any) -> Object:
    annotations = {"pv.kubernetes.io/bind-completed": "yes", **rest.pop("annotations", {})}
    return claim(name, volumeName=volume_name, annotations=annotations, phase="Bound", **rest)


def volume(name: str = "v", size: str = "1Gi", class_name: str = "late", **rest: Any) -> Object:
    """`on` is the host it is pinned to, `phase`, `labels` and `annotations` are looked at; the rest is the spec's."""
    metadata: Object = {"name": name, "labels": rest.pop("labels", {}), "annotations": rest.pop("annotations", {})}
    if rest.pop("deleted", False):
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    status = {"phase": rest.pop("phase", "Available")}
    hosts = rest.pop("on", None)
    affinity = {} if hosts is None else {"nodeAffinity": affinity_to(*([hosts] if isinstance(hosts, str) else hosts))}
    source = {"csi": {"driver": "d.example", "volumeHandle": f"h-{name}"}}
    spec = {"capacity": {"storage": size}, "accessModes": ["ReadWriteOnce"], "storageClassName": class_name}
    return {"metadata": metadata, "spec": {**spec, **source, **affinity, **rest}, "status": status}


def affinity_to(*hosts: str, key: str = "host") -> Object:
    expression = {"key": key, "operator": "In", "values": list(hosts)}
    return {"required": {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}}


def claim_ref(name: str = "c", uid: str | None = None) -> Object:
    return {"namespace": "default", "name": name, **({"uid": uid} if uid is not None else {})}


def late_class(name: str = "late", provisioner: str = "d.example", **rest: Any) -> Object:
    mode = rest.pop("mode", "WaitForFirstConsumer")
    return {"metadata": {"name": name}, "provisioner": provisioner, "volumeBindingMode": mode, **rest}


def csi_node(name: str = "n1", count: int | None = None, driver: str = "d.example") -> Object:
    limit = {} if count is None else {"allocatable": {"count": count}}
    return {"metadata": {"name": name}, "spec": {"drivers": [{"name": driver, "nodeID": name, **limit}]}}


def csi_driver(name: str = "d.example", **spec: Any) -> Object:
    return {"metadata": {"name": name}, "spec": spec}


def capacity(name: str = "k", class_name: str = "late", topology: Object | None = None, **rest: Any) -> Object:
    body: Object = {"metadata": {"name": name, "namespace": "kube-system"}, "storageClassName": class_name, **rest}
    return body if topology is None else {**body, "nodeTopology": topology}


def attachment(name: str, volume_name: str, node_name: str = "n1") -> Object:
    spec = {"attacher": "d.example", "nodeName": node_name, "source": {"persistentVolumeName": volume_name}}
    return {"metadata": {"name": name}, "spec": spec}


def placed(body: Object, node_name: str) -> Object:
    """The pod, on a node."""
    return {**body, "spec": {**body["spec"], "nodeName": node_name}}
