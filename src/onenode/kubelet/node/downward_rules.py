"""What a pod may learn of itself, in files and variables: fields of its object, resources of its containers. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

from onenode.go_text import quoted
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube import objects

_SUBSCRIPT: Final = re.compile(r"(.*)\['(.*)'\]", re.DOTALL)
_MILLI: Final = 10**6
"""Nanos in a thousandth, by which processors are counted."""
_UNIT: Final = 10**9
_DEFAULTED: Final = frozenset({"cpu", "memory", "ephemeral-storage"})
"""If a container has no limit, the node's is used."""


class NoValue(ValueError):
    """In kubelet's words."""


def field_value(pod: ApiObject, path: str) -> str:
    maps = {"metadata.labels": objects.labels(pod), "metadata.annotations": objects.annotations(pod)}
    if match := _SUBSCRIPT.fullmatch(path):
        if match[1] not in maps:
            raise NoValue(f"fieldPath {quoted(path)} does not support subscript")
        return maps[match[1]].get(match[2], "")
    if path in maps:
        return "\n".join(f"{key}={quoted(value)}" for key, value in sorted(maps[path].items()))
    known = {
        "metadata.name": objects.name(pod),
        "metadata.namespace": objects.namespace(pod) or "",
        "metadata.uid": objects.uid(pod),
    }
    if path not in known:
        raise NoValue(f"unsupported fieldPath: {path}")
    return known[path]


def resource_value(pod: ApiObject, reference: Mapping[str, Any], allocatable: Mapping[str, str]) -> str:
    """`allocatable` is the node's, by resource."""
    what, _, resource = str(reference.get("resource") or "").partition(".")
    if what not in {"limits", "requests"} or not _is_known(resource):
        raise NoValue(f"unsupported container resource : {reference.get('resource') or ''}")
    resources = _container(pod, str(reference.get("containerName") or "")).get("resources") or {}
    given = (resources.get(what) or {}).get(resource)
    if what == "limits" and resource in _DEFAULTED and not _quantity(given):
        given = allocatable.get(resource)
    unit = _MILLI if resource == "cpu" else _UNIT
    return str(_rounded_up(_in_units(given, unit), _in_units(reference.get("divisor"), unit) or _UNIT // unit))


def _is_known(resource: str) -> bool:
    return resource in _DEFAULTED or resource.startswith("hugepages-")


def _container(pod: ApiObject, name: str) -> Mapping[str, Any]:
    spec = pod.get("spec") or {}
    for each in (*(spec.get("containers") or ()), *(spec.get("initContainers") or ())):
        if each.get("name") == name:
            found: Mapping[str, Any] = each
            return found
    raise NoValue(f"container {name} not found")


def _quantity(text: Any) -> int:
    """In billionths; what is none counts as nothing."""
    try:
        return Quantity.parse(str(text)).nanos if text is not None else 0
    except InvalidQuantity:
        return 0


def _in_units(text: Any, unit: int) -> int:
    return _rounded_up(_quantity(text), unit)


def _rounded_up(number: int, divisor: int) -> int:
    return -(-number // divisor)
