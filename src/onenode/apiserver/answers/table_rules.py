"""How kubectl's tables look: for each kind its columns, and the cells of an object. Pure.

The columns, their order and their wording are Kubernetes' own, so that people see what they know. A kind without
columns of its own has its name and age. Pods and what configures the server are in the modules beside this one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from onenode.apiserver.answers.configuration_table_rules import (
    DEFINITION_COLUMNS,
    POLICY_BINDING_COLUMNS,
    POLICY_COLUMNS,
    ROLE_BINDING_COLUMNS,
    definition_cells,
    policy_binding_cells,
    policy_cells,
    role_binding_cells,
)
from onenode.apiserver.answers.pod_table_rules import POD_COLUMNS, pod_cells
from onenode.apiserver.answers.table_columns import (
    AGE,
    NAME,
    UNSET,
    Column,
    age_cell,
    age_text,
    bool_column,
    column,
    date_column,
    integer,
    name_cell,
    text_at,
    value_at,
    wide,
)
from orlop.kube.kinds import Kind
from orlop.kube.objects import labels, metadata

Object = Mapping[str, Any]
Cells = Callable[[Object, datetime], Sequence[Any]]

NONE: Final = "<none>"
UNKNOWN: Final = "<unknown>"
DEFAULT_CLASS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
ROLE_LABEL: Final = "node-role.kubernetes.io/"
ACCESS_MODES: Final = {
    "ReadWriteOnce": "RWO",
    "ReadOnlyMany": "ROX",
    "ReadWriteMany": "RWX",
    "ReadWriteOncePod": "RWOP",
}


@dataclass(frozen=True, slots=True)
class TableShape:
    columns: tuple[Column, ...]
    cells: Cells


def table_shape(kind: Kind) -> TableShape:
    return SHAPES.get(kind.resource, PLAIN)


def column_definitions(shape: TableShape) -> list[dict[str, Any]]:
    return [one.definition() for one in shape.columns]


def _plain(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), age_cell(obj, now)]


def _modes(modes: Sequence[str] | None) -> str:
    return ",".join(ACCESS_MODES.get(mode, mode) for mode in modes or [])


def _terminating(obj: Object, phase: str) -> str:
    return "Terminating" if metadata(obj).get("deletionTimestamp") else phase


# ---- core ------------------------------------------------------------------------------------------------------------


def _namespace(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), text_at(obj, "status", "phase"), age_cell(obj, now)]


def _node(obj: Object, now: datetime) -> Sequence[Any]:
    addresses = {one.get("type"): one.get("address") for one in value_at(obj, "status", "addresses") or []}
    info = value_at(obj, "status", "nodeInfo") or {}
    return [
        name_cell(obj),
        _node_status(obj),
        ",".join(sorted(key.removeprefix(ROLE_LABEL) for key in labels(obj) if key.startswith(ROLE_LABEL))) or NONE,
        age_cell(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Object) -> str:
    ready = [one.get("status") for one in value_at(obj, "status", "conditions") or [] if one.get("type") == "Ready"]
    status = "Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if value_at(obj, "spec", "unschedulable") else status


def _volume(obj: Object, now: datetime) -> Sequence[Any]:
    claim = value_at(obj, "spec", "claimRef")
    return [
        name_cell(obj),
        text_at(obj, "spec", "capacity", "storage"),
        _modes(value_at(obj, "spec", "accessModes")),
        text_at(obj, "spec", "persistentVolumeReclaimPolicy"),
        _terminating(obj, text_at(obj, "status", "phase")),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        text_at(obj, "spec", "storageClassName"),
        text_at(obj, "spec", "volumeAttributesClassName", empty=UNSET),
        text_at(obj, "status", "reason"),
        age_cell(obj, now),
        text_at(obj, "spec", "volumeMode", empty=UNSET),
    ]


def _claim(obj: Object, now: datetime) -> Sequence[Any]:
    bound = bool(value_at(obj, "spec", "volumeName"))
    return [
        name_cell(obj),
        _terminating(obj, text_at(obj, "status", "phase")),
        text_at(obj, "spec", "volumeName"),
        text_at(obj, "status", "capacity", "storage") if bound else "",
        _modes(value_at(obj, "status", "accessModes")) if bound else "",
        text_at(obj, "spec", "storageClassName"),
        text_at(obj, "spec", "volumeAttributesClassName", empty=UNSET),
        age_cell(obj, now),
        text_at(obj, "spec", "volumeMode", empty=UNSET),
    ]


def _secret(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), text_at(obj, "type"), len(value_at(obj, "data") or {}), age_cell(obj, now)]


def _config_map(obj: Object, now: datetime) -> Sequence[Any]:
    return [
        name_cell(obj),
        len(value_at(obj, "data") or {}) + len(value_at(obj, "binaryData") or {}),
        age_cell(obj, now),
    ]


def _event(obj: Object, now: datetime) -> Sequence[Any]:
    about = value_at(obj, "involvedObject") or {}
    series = value_at(obj, "series") or {}
    first = value_at(obj, "firstTimestamp") or value_at(obj, "eventTime")
    last = series.get("lastObservedTime") or value_at(obj, "lastTimestamp") or first
    source = value_at(obj, "source") or {}
    component = source.get("component") or text_at(obj, "reportingComponent")
    from_where = [component, source.get("host") or text_at(obj, "reportingInstance")]
    return [
        age_text(last, now),
        text_at(obj, "type"),
        text_at(obj, "reason"),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        ", ".join(one for one in from_where if one),
        text_at(obj, "message").strip(),
        age_text(first, now),
        series.get("count") or value_at(obj, "count") or 1,
        name_cell(obj),
    ]


# ---- storage, leases -------------------------------------------------------------------------------------------------


def _storage_class(obj: Object, now: datetime) -> Sequence[Any]:
    is_default = any(value_at(obj, "metadata", "annotations", key) == "true" for key in DEFAULT_CLASS)
    return [
        f"{name_cell(obj)} (default)" if is_default else name_cell(obj),
        text_at(obj, "provisioner"),
        text_at(obj, "reclaimPolicy", empty="Delete"),
        text_at(obj, "volumeBindingMode", empty="Immediate"),
        bool(value_at(obj, "allowVolumeExpansion")),
        age_cell(obj, now),
    ]


def _attributes_class(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), text_at(obj, "driverName"), age_cell(obj, now)]


def _csi_driver(obj: Object, now: datetime) -> Sequence[Any]:
    spec = value_at(obj, "spec") or {}
    audiences = [one.get("audience", "") for one in spec.get("tokenRequests") or []]
    return [
        name_cell(obj),
        bool(spec.get("attachRequired", True)),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(audiences) if audiences else UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or []) or NONE,
        age_cell(obj, now),
    ]


def _csi_node(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), len(value_at(obj, "spec", "drivers") or []), age_cell(obj, now)]


def _attachment(obj: Object, now: datetime) -> Sequence[Any]:
    return [
        name_cell(obj),
        text_at(obj, "spec", "attacher"),
        text_at(obj, "spec", "source", "persistentVolumeName"),
        text_at(obj, "spec", "nodeName"),
        bool(value_at(obj, "status", "attached")),
        age_cell(obj, now),
    ]


def _created(obj: Object, _now: datetime) -> Sequence[Any]:
    return [name_cell(obj), text_at(obj, "metadata", "creationTimestamp")]


def _lease(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), text_at(obj, "spec", "holderIdentity"), age_cell(obj, now)]


# ---- workloads, access -----------------------------------------------------------------------------------------------


def _containers(obj: Object) -> list[str]:
    containers = value_at(obj, "spec", "template", "spec", "containers") or []
    names = ",".join(one.get("name", "") for one in containers)
    return [names, ",".join(one.get("image", "") for one in containers)]


def _selector(obj: Object) -> str:
    chosen = value_at(obj, "spec", "selector", "matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or NONE


def _count(obj: Object, *path: str) -> int:
    return int(value_at(obj, *path) or 0)


def _daemon_set(obj: Object, now: datetime) -> Sequence[Any]:
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    counts = [_count(obj, "status", field) for field in (*fields, "numberAvailable")]
    chosen = value_at(obj, "spec", "template", "spec", "nodeSelector") or {}
    nodes = ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or NONE
    return [name_cell(obj), *counts, nodes, age_cell(obj, now), *_containers(obj), _selector(obj)]


def _ready_of(obj: Object) -> str:
    return f"{_count(obj, 'status', 'readyReplicas')}/{_count(obj, 'spec', 'replicas')}"


def _deployment(obj: Object, now: datetime) -> Sequence[Any]:
    counts = [_count(obj, "status", "updatedReplicas"), _count(obj, "status", "availableReplicas")]
    return [name_cell(obj), _ready_of(obj), *counts, age_cell(obj, now), *_containers(obj), _selector(obj)]


def _stateful_set(obj: Object, now: datetime) -> Sequence[Any]:
    return [name_cell(obj), _ready_of(obj), age_cell(obj, now), *_containers(obj)]


def _replica_set(obj: Object, now: datetime) -> Sequence[Any]:
    counts = [
        _count(obj, "spec", "replicas"),
        _count(obj, "status", "replicas"),
        _count(obj, "status", "readyReplicas"),
    ]
    return [name_cell(obj), *counts, age_cell(obj, now), *_containers(obj), _selector(obj)]


PLAIN: Final = TableShape((NAME, AGE), _plain)
_CREATED: Final = TableShape((NAME, date_column("Created At")), _created)
_WORK: Final = (wide("Containers"), wide("Images"))
_EVENTS: Final = TableShape(
    (
        *map(column, ("Last Seen", "Type", "Reason", "Object")),
        *(wide("Subobject"), wide("Source"), column("Message"), wide("First Seen")),
        *(wide("Count"), Column("Name", format="name", priority=1)),
    ),
    _event,
)
SHAPES: Final[Mapping[str, TableShape]] = {
    "customresourcedefinitions.apiextensions.k8s.io": TableShape(DEFINITION_COLUMNS, definition_cells),
    "validatingadmissionpolicies.admissionregistration.k8s.io": TableShape(POLICY_COLUMNS, policy_cells),
    "validatingadmissionpolicybindings.admissionregistration.k8s.io": TableShape(
        POLICY_BINDING_COLUMNS, policy_binding_cells
    ),
    "namespaces": TableShape((NAME, column("Status"), AGE), _namespace),
    "nodes": TableShape(
        (
            *(NAME, column("Status"), column("Roles"), AGE, column("Version")),
            *map(wide, ("Internal-IP", "External-IP", "OS-Image", "Kernel-Version", "Container-Runtime")),
        ),
        _node,
    ),
    "pods": TableShape((NAME, *POD_COLUMNS), pod_cells),
    "persistentvolumes": TableShape(
        (
            *(NAME, *map(column, ("Capacity", "Access Modes", "Reclaim Policy", "Status", "Claim", "StorageClass"))),
            *(column("VolumeAttributesClass"), column("Reason"), AGE, wide("VolumeMode")),
        ),
        _volume,
    ),
    "persistentvolumeclaims": TableShape(
        (
            *(NAME, *map(column, ("Status", "Volume", "Capacity", "Access Modes", "StorageClass"))),
            *(column("VolumeAttributesClass"), AGE, wide("VolumeMode")),
        ),
        _claim,
    ),
    "secrets": TableShape((NAME, column("Type"), column("Data"), AGE), _secret),
    "configmaps": TableShape((NAME, column("Data"), AGE), _config_map),
    "events": _EVENTS,
    "events.events.k8s.io": _EVENTS,
    "storageclasses.storage.k8s.io": TableShape(
        (
            NAME,
            *map(column, ("Provisioner", "ReclaimPolicy", "VolumeBindingMode", "AllowVolumeExpansion")),
            AGE,
        ),
        _storage_class,
    ),
    "csidrivers.storage.k8s.io": TableShape(
        (
            *(NAME, *map(bool_column, ("AttachRequired", "PodInfoOnMount", "StorageCapacity"))),
            *(column("TokenRequests"), bool_column("RequiresRepublish"), column("Modes"), AGE),
        ),
        _csi_driver,
    ),
    "csinodes.storage.k8s.io": TableShape((NAME, integer("Drivers"), AGE), _csi_node),
    "volumeattachments.storage.k8s.io": TableShape(
        (NAME, Column("Attacher", format="name"), column("PV"), column("Node"), bool_column("Attached"), AGE),
        _attachment,
    ),
    "volumeattributesclasses.storage.k8s.io": TableShape((NAME, column("DriverName"), AGE), _attributes_class),
    "csistoragecapacities.storage.k8s.io": _CREATED,
    "roles.rbac.authorization.k8s.io": _CREATED,
    "clusterroles.rbac.authorization.k8s.io": _CREATED,
    "rolebindings.rbac.authorization.k8s.io": TableShape(ROLE_BINDING_COLUMNS, role_binding_cells),
    "clusterrolebindings.rbac.authorization.k8s.io": TableShape(ROLE_BINDING_COLUMNS, role_binding_cells),
    "leases.coordination.k8s.io": TableShape((NAME, column("Holder"), AGE), _lease),
    "daemonsets.apps": TableShape(
        (
            *(NAME, *map(integer, ("Desired", "Current", "Ready", "Up-to-date", "Available"))),
            *(column("Node Selector"), AGE, *_WORK, wide("Selector")),
        ),
        _daemon_set,
    ),
    "deployments.apps": TableShape(
        (NAME, column("Ready"), column("Up-to-date"), column("Available"), AGE, *_WORK, wide("Selector")), _deployment
    ),
    "statefulsets.apps": TableShape((NAME, column("Ready"), AGE, *_WORK), _stateful_set),
    "replicasets.apps": TableShape(
        (NAME, *map(integer, ("Desired", "Current", "Ready")), AGE, *_WORK, wide("Selector")), _replica_set
    ),
}
