"""How kubectl's tables look: for each kind its columns, and the cells of an object. Pure.

The columns, their order and their wording are Kubernetes' own, so that people see what they know. A kind without
columns of its own has its name and age. What pods show is in `pod_table_rules`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from onenode.apiserver.answers.pod_table_rules import POD_COLUMNS, pod_cells
from onenode.apiserver.answers.table_columns import Column, age_text, bool_column, column, date_column, integer, wide
from orlop.kube.kinds import Kind
from orlop.kube.objects import labels, metadata

Object = Mapping[str, Any]
Cells = Callable[[Object, datetime], Sequence[Any]]

NAME: Final = Column("Name", format="name")
AGE: Final = column("Age")
NONE: Final = "<none>"
UNSET: Final = "<unset>"
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


def _name(obj: Object) -> str:
    return str(metadata(obj).get("name", ""))


def _age(obj: Object, now: datetime) -> str:
    return age_text(metadata(obj).get("creationTimestamp"), now)


def _get(obj: Object, *path: str) -> Any:
    found: Any = obj
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found


def _text(obj: Object, *path: str, empty: str = "") -> str:
    found = _get(obj, *path)
    return empty if found in (None, "") else str(found)


def _plain(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _age(obj, now)]


def _definition(obj: Object, _now: datetime) -> Sequence[Any]:
    spec, names = _get(obj, "spec") or {}, _get(obj, "spec", "names") or {}
    served = [each for each in spec.get("versions", []) if each.get("served")]
    versions = sorted(f"{each['name']}(storage)" if each.get("storage") else each["name"] for each in served)
    conditions = _get(obj, "status", "conditions") or []
    established = any((each.get("type"), each.get("status")) == ("Established", "True") for each in conditions)
    return [
        *(_name(obj), spec.get("scope", ""), ",".join(versions), metadata(obj).get("creationTimestamp")),
        *(spec.get("group", ""), names.get("kind", ""), ",".join(names.get("shortNames", [])), established),
    ]


def _modes(modes: Sequence[str] | None) -> str:
    return ",".join(ACCESS_MODES.get(mode, mode) for mode in modes or [])


def _terminating(obj: Object, phase: str) -> str:
    return "Terminating" if metadata(obj).get("deletionTimestamp") else phase


# ---- core ------------------------------------------------------------------------------------------------------------


def _namespace(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _text(obj, "status", "phase"), _age(obj, now)]


def _node(obj: Object, now: datetime) -> Sequence[Any]:
    addresses = {one.get("type"): one.get("address") for one in _get(obj, "status", "addresses") or []}
    info = _get(obj, "status", "nodeInfo") or {}
    return [
        _name(obj),
        _node_status(obj),
        ",".join(sorted(key.removeprefix(ROLE_LABEL) for key in labels(obj) if key.startswith(ROLE_LABEL))) or NONE,
        _age(obj, now),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP") or NONE,
        addresses.get("ExternalIP") or NONE,
        info.get("osImage") or UNKNOWN,
        info.get("kernelVersion") or UNKNOWN,
        info.get("containerRuntimeVersion") or UNKNOWN,
    ]


def _node_status(obj: Object) -> str:
    ready = [one.get("status") for one in _get(obj, "status", "conditions") or [] if one.get("type") == "Ready"]
    status = "Unknown" if not ready else "Ready" if ready[0] == "True" else "NotReady"
    return f"{status},SchedulingDisabled" if _get(obj, "spec", "unschedulable") else status


def _volume(obj: Object, now: datetime) -> Sequence[Any]:
    claim = _get(obj, "spec", "claimRef")
    return [
        _name(obj),
        _text(obj, "spec", "capacity", "storage"),
        _modes(_get(obj, "spec", "accessModes")),
        _text(obj, "spec", "persistentVolumeReclaimPolicy"),
        _terminating(obj, _text(obj, "status", "phase")),
        f"{claim.get('namespace', '')}/{claim.get('name', '')}" if claim else "",
        _text(obj, "spec", "storageClassName"),
        _text(obj, "spec", "volumeAttributesClassName", empty=UNSET),
        _text(obj, "status", "reason"),
        _age(obj, now),
        _text(obj, "spec", "volumeMode", empty=UNSET),
    ]


def _claim(obj: Object, now: datetime) -> Sequence[Any]:
    bound = bool(_get(obj, "spec", "volumeName"))
    return [
        _name(obj),
        _terminating(obj, _text(obj, "status", "phase")),
        _text(obj, "spec", "volumeName"),
        _text(obj, "status", "capacity", "storage") if bound else "",
        _modes(_get(obj, "status", "accessModes")) if bound else "",
        _text(obj, "spec", "storageClassName"),
        _text(obj, "spec", "volumeAttributesClassName", empty=UNSET),
        _age(obj, now),
        _text(obj, "spec", "volumeMode", empty=UNSET),
    ]


def _secret(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _text(obj, "type"), len(_get(obj, "data") or {}), _age(obj, now)]


def _config_map(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), len(_get(obj, "data") or {}) + len(_get(obj, "binaryData") or {}), _age(obj, now)]


def _event(obj: Object, now: datetime) -> Sequence[Any]:
    about = _get(obj, "involvedObject") or {}
    series = _get(obj, "series") or {}
    first = _get(obj, "firstTimestamp") or _get(obj, "eventTime")
    last = series.get("lastObservedTime") or _get(obj, "lastTimestamp") or first
    source = _get(obj, "source") or {}
    component = source.get("component") or _text(obj, "reportingComponent")
    from_where = [component, source.get("host") or _text(obj, "reportingInstance")]
    return [
        age_text(last, now),
        _text(obj, "type"),
        _text(obj, "reason"),
        f"{str(about.get('kind', '')).lower()}/{about.get('name', '')}",
        about.get("fieldPath", ""),
        ", ".join(one for one in from_where if one),
        _text(obj, "message").strip(),
        age_text(first, now),
        series.get("count") or _get(obj, "count") or 1,
        _name(obj),
    ]


# ---- storage, leases -------------------------------------------------------------------------------------------------


def _storage_class(obj: Object, now: datetime) -> Sequence[Any]:
    is_default = any(_get(obj, "metadata", "annotations", key) == "true" for key in DEFAULT_CLASS)
    return [
        f"{_name(obj)} (default)" if is_default else _name(obj),
        _text(obj, "provisioner"),
        _text(obj, "reclaimPolicy", empty="Delete"),
        _text(obj, "volumeBindingMode", empty="Immediate"),
        bool(_get(obj, "allowVolumeExpansion")),
        _age(obj, now),
    ]


def _attributes_class(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _text(obj, "driverName"), _age(obj, now)]


def _csi_driver(obj: Object, now: datetime) -> Sequence[Any]:
    spec = _get(obj, "spec") or {}
    audiences = [one.get("audience", "") for one in spec.get("tokenRequests") or []]
    return [
        _name(obj),
        bool(spec.get("attachRequired", True)),
        bool(spec.get("podInfoOnMount")),
        bool(spec.get("storageCapacity")),
        ",".join(audiences) if audiences else UNSET,
        bool(spec.get("requiresRepublish")),
        ",".join(spec.get("volumeLifecycleModes") or []) or NONE,
        _age(obj, now),
    ]


def _csi_node(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), len(_get(obj, "spec", "drivers") or []), _age(obj, now)]


def _attachment(obj: Object, now: datetime) -> Sequence[Any]:
    return [
        _name(obj),
        _text(obj, "spec", "attacher"),
        _text(obj, "spec", "source", "persistentVolumeName"),
        _text(obj, "spec", "nodeName"),
        bool(_get(obj, "status", "attached")),
        _age(obj, now),
    ]


def _created(obj: Object, _now: datetime) -> Sequence[Any]:
    return [_name(obj), _text(obj, "metadata", "creationTimestamp")]


def _lease(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _text(obj, "spec", "holderIdentity"), _age(obj, now)]


# ---- workloads, access -----------------------------------------------------------------------------------------------


def _containers(obj: Object) -> list[str]:
    containers = _get(obj, "spec", "template", "spec", "containers") or []
    names = ",".join(one.get("name", "") for one in containers)
    return [names, ",".join(one.get("image", "") for one in containers)]


def _selector(obj: Object) -> str:
    chosen = _get(obj, "spec", "selector", "matchLabels") or {}
    return ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or NONE


def _count(obj: Object, *path: str) -> int:
    return int(_get(obj, *path) or 0)


def _daemon_set(obj: Object, now: datetime) -> Sequence[Any]:
    fields = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    counts = [_count(obj, "status", field) for field in (*fields, "numberAvailable")]
    chosen = _get(obj, "spec", "template", "spec", "nodeSelector") or {}
    nodes = ",".join(f"{key}={value}" for key, value in sorted(chosen.items())) or NONE
    return [_name(obj), *counts, nodes, _age(obj, now), *_containers(obj), _selector(obj)]


def _ready_of(obj: Object) -> str:
    return f"{_count(obj, 'status', 'readyReplicas')}/{_count(obj, 'spec', 'replicas')}"


def _deployment(obj: Object, now: datetime) -> Sequence[Any]:
    counts = [_count(obj, "status", "updatedReplicas"), _count(obj, "status", "availableReplicas")]
    return [_name(obj), _ready_of(obj), *counts, _age(obj, now), *_containers(obj), _selector(obj)]


def _stateful_set(obj: Object, now: datetime) -> Sequence[Any]:
    return [_name(obj), _ready_of(obj), _age(obj, now), *_containers(obj)]


def _replica_set(obj: Object, now: datetime) -> Sequence[Any]:
    counts = [
        _count(obj, "spec", "replicas"),
        _count(obj, "status", "replicas"),
        _count(obj, "status", "readyReplicas"),
    ]
    return [_name(obj), *counts, _age(obj, now), *_containers(obj), _selector(obj)]


def _binding(obj: Object, now: datetime) -> Sequence[Any]:
    subjects = _get(obj, "subjects") or []

    def of(kind: str) -> str:
        return ", ".join(_subject_text(one) for one in subjects if one.get("kind") == kind)

    role = f"{_text(obj, 'roleRef', 'kind')}/{_text(obj, 'roleRef', 'name')}"
    return [_name(obj), role, _age(obj, now), of("User"), of("Group"), of("ServiceAccount")]


def _subject_text(subject: Object) -> str:
    namespace = subject.get("namespace")
    return f"{namespace}/{subject.get('name', '')}" if namespace else str(subject.get("name", ""))


PLAIN: Final = TableShape((NAME, AGE), _plain)
_CREATED: Final = TableShape((NAME, date_column("Created At")), _created)
_WORK: Final = (wide("Containers"), wide("Images"))
_SUBJECTS: Final = (wide("Users"), wide("Groups"), wide("ServiceAccounts"))
_BINDINGS: Final = TableShape((NAME, column("Role"), AGE, *_SUBJECTS), _binding)
_EVENTS: Final = TableShape(
    (
        *map(column, ("Last Seen", "Type", "Reason", "Object")),
        *(wide("Subobject"), wide("Source"), column("Message"), wide("First Seen")),
        *(wide("Count"), Column("Name", format="name", priority=1)),
    ),
    _event,
)
SHAPES: Final[Mapping[str, TableShape]] = {
    "customresourcedefinitions.apiextensions.k8s.io": TableShape(
        (
            *(NAME, column("Scope"), column("Versions"), date_column("Created At")),
            *map(wide, ("Group", "Kind", "ShortNames")),
            Column("Established", "boolean", priority=1),
        ),
        _definition,
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
    "rolebindings.rbac.authorization.k8s.io": _BINDINGS,
    "clusterrolebindings.rbac.authorization.k8s.io": _BINDINGS,
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
