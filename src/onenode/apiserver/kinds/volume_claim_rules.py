"""PersistentVolumeClaims: what a claim must say, what of it may change, and what its status may hold."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import (
    difference,
    named_well,
    one_of,
    positive_quantity,
    quantity,
    unchanged,
)

Object = Mapping[str, Any]

ACCESS_MODES: Final = ("ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod")
VOLUME_MODES: Final = ("Block", "Filesystem")
STORAGE: Final = "storage"
CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
RESIZE_STATES: Final = (
    *("ControllerResizeInProgress", "ControllerResizeInfeasible", "NodeResizeInProgress", "NodeResizeInfeasible"),
    "NodeResizePending",
)
FIXED_SPEC: Final = (
    "spec is immutable after creation except resources.requests and volumeAttributesClassName for bound claims"
)
NOT_BELOW_CAPACITY: Final = "field can not be less than status.capacity"
NOT_RESIZABLE: Final = (
    "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize"
)
NOT_BOUND: Final = "Only bound persistent volume claims can be expanded"


def access_modes(spec: Object, path: str) -> Iterator[Cause]:
    modes = spec.get("accessModes", [])
    for mode in modes:
        yield from one_of(mode, ACCESS_MODES, f"{path}.accessModes")
    if "ReadWriteOncePod" in modes and set(modes) & (set(ACCESS_MODES) - {"ReadWriteOncePod"}):
        yield forbidden(f"{path}.accessModes", "may not use ReadWriteOncePod with other access modes")


def claim_spec(spec: Object, path: str) -> Iterator[Cause]:
    """The spec of a claim, or of a template for claims."""
    if not spec.get("accessModes"):
        yield required(f"{path}.accessModes", "at least 1 access mode is required")
    yield from access_modes(spec, path)
    yield from _request(spec, path)
    for field in ("storageClassName", "volumeAttributesClassName"):
        if spec.get(field):
            yield from named_well(name_rules.dns_subdomain, spec[field], f"{path}.{field}")
    yield from one_of(spec.get("volumeMode"), VOLUME_MODES, f"{path}.volumeMode")
    yield from _sources(spec, path)


def _request(spec: Object, path: str) -> Iterator[Cause]:
    request = requested(spec)
    if request is None:
        yield required(f"{path}.resources[{STORAGE}]")
    else:
        yield from positive_quantity(request, f"{path}.resources[{STORAGE}]")


def requested(spec: Object) -> str | None:
    size: str | None = spec.get("resources", {}).get("requests", {}).get(STORAGE)
    return size


def _sources(spec: Object, path: str) -> Iterator[Cause]:
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None:
        yield from _source(source, f"{path}.dataSource")
    if reference is None:
        return
    yield from _source(reference, f"{path}.dataSourceRef")
    if reference.get("namespace"):
        yield from named_well(name_rules.dns_label, reference["namespace"], f"{path}.dataSourceRef.namespace")
        if source is not None:
            yield invalid(path, f"{path}.dataSource", "may not be specified when dataSourceRef.namespace is specified")
    elif source is not None and any(
        source.get(field) != reference.get(field) for field in ("apiGroup", "kind", "name")
    ):
        yield invalid(path, f"{path}.dataSource", "must match dataSourceRef")


def _source(source: Object, path: str) -> Iterator[Cause]:
    yield from (required(f"{path}.{field}") for field in ("name", "kind") if not source.get(field))
    group = source.get("apiGroup")
    if not group and source.get("kind", "") != "PersistentVolumeClaim":
        why = "must be 'PersistentVolumeClaim' when referencing the default apiGroup"
        yield invalid(path, source.get("kind", ""), why)
    if group:
        yield from named_well(name_rules.dns_subdomain, group, f"{path}.apiGroup")


def claim_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    yield from _class_annotation(old, new)
    allowed = _with_allowed_changes(old, new)
    if allowed != before:
        yield forbidden("spec", f"{FIXED_SPEC}\n{difference(before, allowed)}")
    if _size(after) < _size(before) and _size(after) <= quantity(
        old.get("status", {}).get("capacity", {}).get(STORAGE)
    ):
        yield forbidden("spec.resources.requests.storage", NOT_BELOW_CAPACITY)
    # Kubernetes names the field without its spec.
    yield from unchanged(before.get("volumeMode"), after.get("volumeMode"), "volumeMode")
    yield from _attributes_class(old, after)


def _size(spec: Object) -> Any:
    return quantity(requested(spec))


def _with_allowed_changes(old: Object, new: Object) -> Object:
    """The new spec, as if what may change had not; equal to the old one if nothing else did."""
    before, spec = old.get("spec", {}), dict(new.get("spec", {}))
    if not before.get("volumeName"):
        _as_before(spec, before, "volumeName")
    if spec.get("storageClassName") is not None and before.get("storageClassName") is None:
        annotated = old.get("metadata", {}).get("annotations", {}).get(CLASS_ANNOTATION)
        if annotated in {None, spec["storageClassName"]}:
            _as_before(spec, before, "storageClassName")
    bound = old.get("status", {}).get("phase") == "Bound"
    if bound:
        _as_before(spec, before, "volumeAttributesClassName")
    if requested(spec) is not None and (bound or _size(spec) == _size(before)):
        requests = {**spec["resources"]["requests"], STORAGE: requested(before)}
        spec["resources"] = {**spec["resources"], "requests": requests}
    return spec


def _as_before(spec: dict[str, Any], before: Object, field: str) -> None:
    spec.pop(field, None)
    if field in before:
        spec[field] = before[field]


def _class_annotation(old: Object, new: Object) -> Iterator[Cause]:
    before, after = (each.get("metadata", {}).get("annotations", {}).get(CLASS_ANNOTATION) for each in (old, new))
    moved = before is not None and new.get("spec", {}).get("storageClassName") == before and after is None
    if not moved:
        yield from unchanged(before or "", after or "", f"metadata.annotations.{CLASS_ANNOTATION}")


def _attributes_class(old: Object, after: Object) -> Iterator[Cause]:
    name = after.get("volumeAttributesClassName")
    current = old.get("status", {}).get("currentVolumeAttributesClassName")
    if name == old.get("spec", {}).get("volumeAttributesClassName") or current is None or name:
        return
    to = "nil" if name is None else "empty string"
    why = f"update to {to} is forbidden when status.currentVolumeAttributesClassName is not nil"
    yield forbidden("spec.volumeAttributesClassName", why)


def claim_status(_old: Object, new: Object) -> Iterator[Cause]:
    status = new.get("status", {})
    for name, size in status.get("capacity", {}).items():
        yield from _resource(size, f"status.capacity[{name}]")
    for name, state in status.get("allocatedResourceStatuses", {}).items():
        yield from _resource_key(name, "status.allocatedResourceStatuses")
        if state not in RESIZE_STATES:
            yield not_supported("status.allocatedResourceStatuses", name, sorted(RESIZE_STATES))
    for name, size in status.get("allocatedResources", {}).items():
        yield from _resource_key(name, "status.allocatedResources")
        yield from _resource(size, f"status.allocatedResources[{name}]")


def _resource(size: str, path: str) -> Iterator[Cause]:
    if quantity(size).value() < 0:
        yield invalid(path, quantity(size).value(), "must be a valid resource quantity")


def _resource_key(name: str, path: str) -> Iterator[Cause]:
    wrong = list(named_well(name_rules.label_key, name, path))
    native = "/" not in name or name.partition("/")[0].endswith("kubernetes.io")
    if not wrong and native and name != STORAGE:
        wrong = [not_supported(path, name, (STORAGE,))]
    yield from wrong


def resize_refusal(old: Object, new: Object, storage_class: Object | None) -> str | None:
    """Why a claim may not ask for more than before (an answer 403); the class is the one the claim names, if any."""
    if _size(new.get("spec", {})) <= _size(old.get("spec", {})):
        return None
    if old.get("status", {}).get("phase") != "Bound":
        return NOT_BOUND
    same = old.get("spec", {}).get("storageClassName") == new.get("spec", {}).get("storageClassName")
    resizable = storage_class is not None and storage_class.get("allowVolumeExpansion") is True
    return None if same and resizable else NOT_RESIZABLE
