"""The Node object and its Lease, as kubelet writes them. Pure.

What others add to the status is kept: conditions of other types, labels, annotations, attached volumes. A status is
written when something in it has changed; the Lease shows that the node is alive, and every five minutes this status
does too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, Protocol

from orlop.foundation.quantity import Format, Quantity
from orlop.kube import objects, patches
from orlop.kube.objects import Object, micro_time_text, time_text
from orlop.kube.patches import JsonPatch

ATTACH_ANNOTATION: Final = "volumes.kubernetes.io/controller-managed-attach-detach"
OPERATING_SYSTEM: Final = "linux"
MOST_PODS: Final = 110
KEPT_MEMORY: Final = 100 * 2**20
"""The hard threshold of eviction, which is not given to pods."""
KEPT_DISK_SHARE: Final = 10
LEASE_SECONDS: Final = 40
LEASE_NAMESPACE: Final = "kube-node-lease"
NOT_READY_TAINT: Final = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}

ApiObject = Mapping[str, Any]


class Machine(Protocol):
    """What the status contains of the machine; `host.machine_facts` reads it."""

    @property
    def hostname(self) -> str: ...
    @property
    def address(self) -> str: ...
    @property
    def cpus(self) -> int: ...
    @property
    def memory_bytes(self) -> int: ...
    @property
    def disk_bytes(self) -> int: ...
    @property
    def machine_id(self) -> str: ...
    @property
    def system_uuid(self) -> str: ...
    @property
    def boot_id(self) -> str: ...
    @property
    def kernel(self) -> str: ...
    @property
    def os_image(self) -> str: ...
    @property
    def architecture(self) -> str: ...


@dataclass(frozen=True, slots=True)
class NodeSettings:
    """`labels` come beside kubelet's own, and go before them."""

    name: str
    kubelet_version: str
    runtime_version: str
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Condition:
    type: str
    is_true: bool
    reason: str
    message: str


@dataclass(frozen=True, slots=True)
class Contribution:
    """What a part of the kubelet has to say in the Node's status; None leaves the volumes in use as they are."""

    not_ready: tuple[str, ...] = ()
    conditions: tuple[Condition, ...] = ()
    volumes_in_use: tuple[str, ...] | None = None


NO_PRESSURE: Final = (
    Condition("MemoryPressure", False, "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    Condition("DiskPressure", False, "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    Condition("PIDPressure", False, "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


# ---- the Node --------------------------------------------------------------------------------------------------------


def new_node(settings: NodeSettings, machine: Machine, parts: Sequence[Contribution], now: datetime) -> Object:
    metadata = {
        "name": settings.name,
        "labels": labels_of(settings, machine),
        "annotations": {ATTACH_ANNOTATION: "true"},
    }
    return {"metadata": metadata, "status": status_of({}, settings, machine, parts, now)}


def labels_of(settings: NodeSettings, machine: Machine) -> dict[str, str]:
    own = {
        "beta.kubernetes.io/arch": machine.architecture,
        "beta.kubernetes.io/os": OPERATING_SYSTEM,
        "kubernetes.io/arch": machine.architecture,
        "kubernetes.io/hostname": settings.name,
        "kubernetes.io/os": OPERATING_SYSTEM,
    }
    return {**own, **settings.labels}


def adoption(node: ApiObject, settings: NodeSettings, machine: Machine) -> Object | None:
    """What makes a Node that is there already ours, as a strategic merge patch; None where nothing is missing."""
    present, wanted = objects.labels(node), labels_of(settings, machine)
    labels = {key: value for key, value in wanted.items() if present.get(key) != value}
    annotations = {} if objects.annotations(node).get(ATTACH_ANNOTATION) == "true" else {ATTACH_ANNOTATION: "true"}
    changes = {**({"labels": labels} if labels else {}), **({"annotations": annotations} if annotations else {})}
    return {"metadata": changes} if changes else None


def status_of(
    node: ApiObject, settings: NodeSettings, machine: Machine, parts: Sequence[Contribution], now: datetime
) -> Object:
    """The fields of the status that are ours, as they shall be; conditions of others are among them as they were."""
    in_use = [part.volumes_in_use for part in parts if part.volumes_in_use is not None]
    return {
        "addresses": [
            {"type": "InternalIP", "address": machine.address},
            {"type": "Hostname", "address": settings.name},
        ],
        "allocatable": allocatable(machine),
        "capacity": _resources(machine.cpus, machine.memory_bytes, machine.disk_bytes),
        "conditions": _conditions(node, parts, now),
        "nodeInfo": _node_info(settings, machine),
        **({"volumesInUse": sorted({name for names in in_use for name in names})} if in_use else {}),
    }


def allocatable(machine: Machine) -> Object:
    """What pods may have of it, as quantities."""
    disk = machine.disk_bytes - machine.disk_bytes // KEPT_DISK_SHARE
    return _resources(machine.cpus, max(0, machine.memory_bytes - KEPT_MEMORY), disk)


def _resources(cpus: int, memory: int, disk: int) -> Object:
    return {
        "cpu": str(cpus),
        "ephemeral-storage": str(Quantity.of(disk, Format.BINARY_SI)),
        "memory": str(Quantity.of(memory, Format.BINARY_SI)),
        "pods": str(MOST_PODS),
    }


def _node_info(settings: NodeSettings, machine: Machine) -> Object:
    return {
        "architecture": machine.architecture,
        "bootID": machine.boot_id,
        "containerRuntimeVersion": settings.runtime_version,
        "kernelVersion": machine.kernel,
        "kubeProxyVersion": "",
        "kubeletVersion": settings.kubelet_version,
        "machineID": machine.machine_id,
        "operatingSystem": OPERATING_SYSTEM,
        "osImage": machine.os_image,
        "systemUUID": machine.system_uuid,
    }


# ---- conditions ------------------------------------------------------------------------------------------------------


def ready_condition(parts: Iterable[Contribution]) -> Condition:
    problems = [problem for part in parts for problem in part.not_ready]
    if problems:
        return Condition("Ready", False, "KubeletNotReady", ",".join(problems))
    return Condition("Ready", True, "KubeletReady", "kubelet is posting ready status")


def is_ready(node: ApiObject) -> bool:
    return objects.is_condition_true(node, "Ready")


def _conditions(node: ApiObject, parts: Sequence[Contribution], now: datetime) -> list[Object]:
    """Ready comes last, as kubelet has it."""
    said = {condition.type: condition for condition in NO_PRESSURE}
    said |= {condition.type: condition for part in parts for condition in part.conditions}
    present: Sequence[ApiObject] = objects.conditions(node)
    for condition in (*said.values(), ready_condition(parts)):
        present = objects.with_condition(present, _body(condition, now), now)
    return sorted(map(dict, present), key=lambda one: one.get("type") == "Ready")


def _body(condition: Condition, now: datetime) -> Object:
    return {
        "type": condition.type,
        "status": "True" if condition.is_true else "False",
        "lastHeartbeatTime": time_text(now),
        "reason": condition.reason,
        "message": condition.message,
    }


def has_changed(node: ApiObject, status: ApiObject) -> bool:
    """Whether the status says anything new besides the time of day."""
    before = node.get("status") or {}
    fields = [name for name in status if name != "conditions"]
    if any((before.get(name) or None) != (status[name] or None) for name in fields):
        return True
    return _without_heartbeats(objects.conditions(node)) != _without_heartbeats(status["conditions"])


def _without_heartbeats(conditions: Iterable[ApiObject]) -> dict[str, Object]:
    return {
        str(one.get("type")): {name: value for name, value in one.items() if name != "lastHeartbeatTime"}
        for one in conditions
    }


def new_boot(before: ApiObject, after: ApiObject) -> str | None:
    """The id of the boot, where it is another one than before."""
    was, now = (((node.get("status") or {}).get("nodeInfo") or {}).get("bootID") for node in (before, after))
    return now if was and was != now else None


def taint_patch(node: ApiObject) -> JsonPatch | None:
    """Has the taint of a node that is not ready there or not, as it is ready or not; None where that is so."""
    present = (node.get("spec") or {}).get("taints") or []
    others = [dict(taint) for taint in present if not _is_not_ready(taint)]
    wanted = others if is_ready(node) else [*others, dict(NOT_READY_TAINT)]
    if len(wanted) == len(present):
        return None
    patch = patches.guarded_by_uid(node).test("spec", "taints", value=[dict(taint) for taint in present] or None)
    return patch.add("spec", "taints", value=wanted) if wanted else patch.remove("spec", "taints")


def _is_not_ready(taint: ApiObject) -> bool:
    return all(taint.get(name) == value for name, value in NOT_READY_TAINT.items())


# ---- the Lease -------------------------------------------------------------------------------------------------------


def lease_of(lease: ApiObject | None, node: ApiObject, now: datetime) -> Object:
    """The Lease as it is after this heartbeat; None: there is none yet."""
    name = objects.name(node)
    before = lease or {"metadata": {"name": name, "namespace": LEASE_NAMESPACE}}
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": objects.uid(node)}
    spec = {
        **(before.get("spec") or {}),
        "holderIdentity": name,
        "leaseDurationSeconds": LEASE_SECONDS,
        "renewTime": micro_time_text(now),
    }
    return {**before, "metadata": {**objects.metadata(before), "ownerReferences": [owner]}, "spec": spec}
