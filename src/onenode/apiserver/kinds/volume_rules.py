"""PersistentVolumes: what one must say, also inside a VolumeAttachment, and what of it may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from posixpath import normpath
from typing import Any, Final

from onenode.apiserver.kinds.volume_claim_rules import STORAGE, VOLUME_MODES, access_modes
from onenode.apiserver.kinds.volume_source_validation_rules import PERSISTENT_SOURCES, exactly_one_source
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import (
    IMMUTABLE,
    difference,
    named_well,
    one_of,
    positive_quantity,
    quantity,
    unchanged,
)

Object = Mapping[str, Any]

RECLAIM_POLICIES: Final = ("Delete", "Recycle", "Retain")
NOT_INLINE: Final = "may not be specified in the context of inline volumes"
FIXED_SOURCE: Final = "spec.persistentvolumesource is immutable after creation"
MOUNT_OPTIONS_ANNOTATION: Final = "volume.beta.kubernetes.io/mount-options"
WITH_MOUNT_OPTIONS: Final = frozenset(PERSISTENT_SOURCES) - {
    *("hostPath", "flocker", "fc", "portworxVolume", "scaleIO", "local", "storageos", "csi"),
}


def persistent_volume(volume: Object) -> Iterator[Cause]:
    spec = volume.get("spec", {})
    yield from _needed_modes(spec, "spec")
    yield from _capacity(spec)
    yield from one_of(spec.get("persistentVolumeReclaimPolicy"), RECLAIM_POLICIES, "spec.persistentVolumeReclaimPolicy")
    yield from _affinity(spec)
    yield from exactly_one_source(spec, PERSISTENT_SOURCES, "spec")
    if _is_root(spec) and spec.get("persistentVolumeReclaimPolicy") == "Recycle":
        yield forbidden("spec.persistentVolumeReclaimPolicy", "may not be 'recycle' for a hostPath mount of '/'")
    if spec.get("storageClassName"):
        yield from named_well(name_rules.dns_subdomain, spec["storageClassName"], "spec.storageClassName")
    yield from one_of(spec.get("volumeMode"), VOLUME_MODES, "spec.volumeMode")
    yield from _attributes_class(spec)
    yield from _mount_options(volume)


def _needed_modes(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("accessModes"):
        yield required(f"{path}.accessModes")
    yield from access_modes(spec, path)


def _capacity(spec: Object) -> Iterator[Cause]:
    capacity = spec.get("capacity", {})
    if not capacity:
        yield required("spec.capacity")
    if set(capacity) != {STORAGE}:
        yield not_supported("spec.capacity", dict(capacity) or None, (STORAGE,))
    for name, size in capacity.items():
        if quantity(size).value() < 0:
            yield invalid(f"spec.capacity[{name}]", quantity(size).value(), "must be a valid resource quantity")
        yield from positive_quantity(size, f"spec.capacity[{name}]")


def _affinity(spec: Object) -> Iterator[Cause]:
    affinity = spec.get("nodeAffinity")
    if affinity is not None and "required" not in affinity:
        yield required("spec.nodeAffinity.required", "must specify required node constraints")
    if affinity is None and "local" in spec:
        yield required("spec.nodeAffinity", "Local volume requires node affinity")


def _is_root(spec: Object) -> bool:
    path = spec.get("hostPath", {}).get("path")
    return bool(path) and normpath(path) == "/"


def _attributes_class(spec: Object) -> Iterator[Cause]:
    name = spec.get("volumeAttributesClassName")
    if name is None:
        return
    if name:
        yield from named_well(name_rules.dns_subdomain, name, "spec.volumeAttributesClassName")
    else:
        yield required("spec.volumeAttributesClassName", "an empty string is disallowed")
    if "csi" not in spec:
        yield required("spec.csi", "has to be specified when using volumeAttributesClassName")


def _mount_options(volume: Object) -> Iterator[Cause]:
    annotated = MOUNT_OPTIONS_ANNOTATION in volume.get("metadata", {}).get("annotations", {})
    if annotated and not WITH_MOUNT_OPTIONS & volume.get("spec", {}).keys():
        path = f"metadata.annotations.{MOUNT_OPTIONS_ANNOTATION}"
        yield forbidden(path, "may not specify mount options for this volume type")


def inline_volume(spec: Object, path: str) -> Iterator[Cause]:
    """The spec of a volume that exists only in a VolumeAttachment."""
    yield from _needed_modes(spec, path)
    yield from exactly_one_source(spec, PERSISTENT_SOURCES, path)
    for field in ("claimRef", "capacity", "nodeAffinity", "storageClassName"):
        if spec.get(field):
            yield forbidden(f"{path}.{field}", NOT_INLINE)
    if "csi" not in spec:
        yield required(f"{path}.csi", "has to be specified in the context of inline volumes")
    if spec.get("persistentVolumeReclaimPolicy", "Retain") != "Retain":
        yield forbidden(f"{path}.persistentVolumeReclaimPolicy", "may only be Retain in the context of inline volumes")
    if spec.get("volumeMode", "Filesystem") != "Filesystem":
        why = "may not specify volumeMode other than Filesystem in the context of inline volumes"
        yield forbidden(f"{path}.volumeMode", why)


def volume_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    old_source, new_source = _source(before), _source(_without_new_expand_secret(before, after))
    if old_source != new_source:
        yield forbidden("spec.persistentvolumesource", f"{FIXED_SOURCE}\n{difference(old_source, new_source)}")
    # Kubernetes names these fields without their spec.
    yield from unchanged(before.get("volumeMode"), after.get("volumeMode"), "volumeMode")
    if "nodeAffinity" in before and before["nodeAffinity"] != after.get("nodeAffinity"):
        why = f"{IMMUTABLE}, except for updating from beta label to GA"
        yield invalid("nodeAffinity", after.get("nodeAffinity"), why)
    if before.get("volumeAttributesClassName") is not None and after.get("volumeAttributesClassName") is None:
        yield forbidden("spec.volumeAttributesClassName", "update from non-nil value to nil is forbidden")


def _source(spec: Object) -> dict[str, Any]:
    return {source: spec[source] for source in PERSISTENT_SOURCES if source in spec}


def _without_new_expand_secret(before: Object, after: Object) -> Object:
    """The secret for expanding may be named later."""
    if "csi" not in before or "csi" not in after or "controllerExpandSecretRef" in before["csi"]:
        return after
    csi = {key: value for key, value in after["csi"].items() if key != "controllerExpandSecretRef"}
    return {**after, "csi": csi}
