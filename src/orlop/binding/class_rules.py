"""Decide which StorageClass a claim gets, and how that class binds and provisions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.kube import objects

IS_DEFAULT: Final = "storageclass.kubernetes.io/is-default-class"
BETA_IS_DEFAULT: Final = "storageclass.beta.kubernetes.io/is-default-class"
LATE_BINDING: Final = "WaitForFirstConsumer"
NO_PROVISIONER: Final = "kubernetes.io/no-provisioner"
DELETE: Final = "Delete"
RETAIN: Final = "Retain"
IN_TREE_PREFIX: Final = "kubernetes.io/"
_BEFORE_ALL: Final = datetime.min.replace(tzinfo=UTC)

Object = Mapping[str, Any]


def is_default(storage_class: Object) -> bool:
    annotations = objects.annotations(storage_class)
    return "true" in {annotations.get(IS_DEFAULT), annotations.get(BETA_IS_DEFAULT)}


def default_class(classes: Iterable[Object]) -> Object | None:
    """Return the default StorageClass: of several, the newest; of equally new ones, the first by name."""
    marked = sorted(filter(is_default, classes), key=objects.name)
    return max(marked, key=lambda each: objects.creation_time(each) or _BEFORE_ALL, default=None)


def class_to_assign(claim: Object, classes: Iterable[Object]) -> str | None:
    """Return the default class to write to a claim without a class; None to leave the claim unchanged.

    A claim that names a volume stays without a class: its class must match that of the volume.
    """
    if state.has_class(claim) or state.volume_name(claim):
        return None
    chosen = default_class(classes)
    return None if chosen is None else objects.name(chosen)


def is_late_binding(storage_class: Object | None) -> bool:
    """Return whether a claim of this class waits for a pod. A class that does not exist binds at once."""
    return storage_class is not None and storage_class.get("volumeBindingMode") == LATE_BINDING


def provisioner(storage_class: Object) -> str:
    value = storage_class.get("provisioner")
    return value if isinstance(value, str) else ""


def can_provision(storage_class: Object) -> bool:
    """Return whether the class names a provisioner outside Kubernetes' source tree; in-tree ones no longer exist."""
    name = provisioner(storage_class)
    return bool(name) and not name.startswith(IN_TREE_PREFIX)


def reclaim_policy(storage_class: Object) -> str:
    return storage_class.get("reclaimPolicy") or DELETE


def parameters(storage_class: Object) -> dict[str, str]:
    values = storage_class.get("parameters")
    return {str(key): str(value) for key, value in values.items()} if isinstance(values, Mapping) else {}


def mount_options(storage_class: Object) -> tuple[str, ...]:
    options = storage_class.get("mountOptions")
    return tuple(str(option) for option in options) if isinstance(options, list | tuple) else ()


def allowed_topologies(storage_class: Object) -> tuple[Object, ...]:
    terms = storage_class.get("allowedTopologies")
    return tuple(term for term in terms if isinstance(term, Mapping)) if isinstance(terms, list | tuple) else ()
