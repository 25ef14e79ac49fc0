"""Claims, classes and PersistentVolumes as dicts, for the provisioner's rules: the smallest ones, to be changed."""

from __future__ import annotations

from typing import Any

from orlop.binding import claim_state_rules as state
from orlop.sidecars.provisioner.provisioner_settings import ProvisionerSettings
from orlop.sidecars.provisioner.volume_object_rules import FINALIZER
from support.provisioning.provisioner_worlds import DRIVER

Object = dict[str, Any]
UID = "11111111-2222-3333-4444-555555555555"
SETTINGS = ProvisionerSettings(driver=DRIVER, identity="p-1")


def claim(name: str = "data", **changes: Any) -> Object:
    """Return a claim that is marked for the driver. `annotations`, `metadata` and fields of spec can be changed."""
    marks = {state.STORAGE_PROVISIONER: DRIVER, **changes.pop("annotations", {})}
    metadata = {"name": name, "namespace": "team", "uid": UID, "annotations": marks, **changes.pop("metadata", {})}
    status = changes.pop("status", {"phase": "Pending"})
    spec = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "fast",
        **changes,
    }
    return {"metadata": metadata, "spec": spec, "status": status}


def sized(size: object) -> Object:
    return claim(resources={"requests": {"storage": size}})


def storage_class(name: str = "fast", **fields: Any) -> Object:
    return {"metadata": {"name": name, "uid": "class-1"}, "provisioner": DRIVER, **fields}


def persistent_volume(name: str = "pv", **changes: Any) -> Object:
    """Return a PersistentVolume of the driver, bound, with our finalizer. Fields of spec can be changed."""
    annotations = changes.pop("annotations", {state.PROVISIONED_BY: DRIVER})
    metadata = {
        "name": name,
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "annotations": annotations,
        "finalizers": [FINALIZER],
        **changes.pop("metadata", {}),
    }
    status = {"phase": changes.pop("phase", "Bound")}
    spec = {
        "persistentVolumeReclaimPolicy": "Delete",
        "storageClassName": "fast",
        "csi": {"driver": DRIVER, "volumeHandle": "vol-1"},
        "claimRef": {"namespace": "team", "name": "data", "uid": UID},
        **changes,
    }
    return {"metadata": metadata, "spec": spec, "status": status}
