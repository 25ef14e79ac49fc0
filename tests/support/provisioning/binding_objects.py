"""Claims, volumes, classes and pods as the API server returns them, for rules of binding; tests name what matters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Object = dict[str, Any]
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
BOUND_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"
PROVISIONED_BY = "pv.kubernetes.io/provisioned-by"
MIGRATED_TO = "pv.kubernetes.io/migrated-to"
STORAGE_PROVISIONER = "volume.kubernetes.io/storage-provisioner"
BETA_STORAGE_PROVISIONER = "volume.beta.kubernetes.io/storage-provisioner"
SELECTED_NODE = "volume.kubernetes.io/selected-node"
BETA_CLASS = "volume.beta.kubernetes.io/storage-class"
IS_DEFAULT = "storageclass.kubernetes.io/is-default-class"
DRIVER = "d.example"
RWO, RWX, ROX = "ReadWriteOnce", "ReadWriteMany", "ReadOnlyMany"
NO_CLASS = ""


def claim(
    name: str = "c",
    *,
    size: str = "1Gi",
    of_class: str | None = NO_CLASS,
    names: str = "",
    keys: Sequence[str] = (),
    phase: str = "Pending",
    modes: Sequence[str] = (RWO,),
    uid: str | None = None,
    annotations: Mapping[str, str] | None = None,
    status: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """`of_class` None: no class is stated. `keys` are annotations whose value is `yes`. The uid is `uid-<name>`."""
    fields: Object = {"accessModes": list(modes), "resources": {"requests": {"storage": size}}, **spec}
    if of_class is not None:
        fields["storageClassName"] = of_class
    if names:
        fields["volumeName"] = names
    metadata = _metadata(name, uid or f"uid-{name}", keys, annotations)
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {**metadata, "namespace": "default"},
        "spec": fields,
        "status": {"phase": phase, **(status or {})},
    }


def bound_claim(name: str = "c", volume: str = "v", **rest: Any) -> Object:
    """As the binder leaves one that it has bound to a volume it chose."""
    status = {"accessModes": [RWO], "capacity": {"storage": "1Gi"}}
    return claim(
        name,
        **{"names": volume, "keys": (BIND_COMPLETED, BOUND_BY_CONTROLLER), "phase": "Bound", "status": status, **rest},
    )


def volume(
    name: str = "v",
    *,
    size: str = "1Gi",
    of_class: str = NO_CLASS,
    reserved: tuple[str, str] | None = None,
    keys: Sequence[str] = (),
    phase: str = "Available",
    modes: Sequence[str] = (RWO,),
    policy: str = "Retain",
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    dying: bool = False,
    message: str = "",
    source: Mapping[str, Any] | None = None,
    **spec: Any,
) -> Object:
    """`reserved` is the claim's name and uid in claimRef; an empty uid is left out."""
    fields: Object = {"accessModes": list(modes), "capacity": {"storage": size}, **spec}
    fields |= {"persistentVolumeReclaimPolicy": policy}
    fields |= source or {"csi": {"driver": DRIVER, "volumeHandle": name}}
    if of_class:
        fields["storageClassName"] = of_class
    if reserved is not None:
        fields["claimRef"] = reference(*reserved)
    metadata = _metadata(name, f"uid-{name}", keys, annotations)
    metadata |= {"labels": dict(labels)} if labels else {}
    metadata |= {"deletionTimestamp": "2026-08-01T12:00:00Z"} if dying else {}
    status = {"phase": phase, **({"message": message} if message else {})}
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": metadata, "spec": fields, "status": status}


def bound_volume(name: str = "v", of: str = "c", **rest: Any) -> Object:
    """As the binder leaves one that it has chosen for a claim."""
    defaults: Object = {"reserved": (of, f"uid-{of}"), "keys": (BOUND_BY_CONTROLLER,), "phase": "Bound"}
    return volume(name, **{**defaults, **rest})


def reference(name: str, uid: str = "") -> Object:
    kind = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    return {**kind, "namespace": "default", "name": name, **({"uid": uid} if uid else {})}


def storage_class(name: str, *, late: bool = False, provisioner: str = DRIVER, default: bool = False) -> Object:
    annotations = {IS_DEFAULT: "true"} if default else {}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {"name": name, "annotations": annotations, "creationTimestamp": "2026-08-01T12:00:00Z"},
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer" if late else "Immediate",
    }


def user(name: str = "p", of: str = "c", *, node: str = "", phase: str = "Pending") -> Object:
    """A pod that names the claim."""
    volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": of}}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"},
        "spec": {"volumes": volumes, **({"nodeName": node} if node else {})},
        "status": {"phase": phase},
    }


def _metadata(name: str, uid: str, keys: Sequence[str], annotations: Mapping[str, str] | None) -> Object:
    marked = {**dict.fromkeys(keys, "yes"), **(annotations or {})}
    return {"name": name, "uid": uid, "resourceVersion": "1", **({"annotations": marked} if marked else {})}
