"""The scale of an object: how many replicas it shall have and has, as an object of its own. Pure.

Workloads have their replicas in places that Kubernetes fixes; the definition of a custom resource names its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.answers.status_answers import Refusal, bad_request, conflict, internal_error
from onenode.apiserver.answers.status_answers import invalid as invalid_object
from onenode.apiserver.schema.field_errors import Cause, invalid
from orlop.kube.kinds import Kind
from orlop.kube.selectors import LabelSelector

Object = Mapping[str, Any]
FieldPath = tuple[str, ...]

SCALE_KIND: Final = Kind("autoscaling", "v1", "Scale", "scales", namespaced=True)
SHOWN_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
MOST_REPLICAS: Final = 2**31 - 1
GO_TYPES: Final = {
    bool: "bool",
    float: "float64",
    str: "string",
    list: "[]interface {}",
    dict: "map[string]interface {}",
}


@dataclass(frozen=True, slots=True)
class ScalePaths:
    """Where objects of a kind have their replicas; at `selector` is a text, a label selector, or a map of labels."""

    wanted: FieldPath = ("spec", "replicas")
    observed: FieldPath = ("status", "replicas")
    selector: FieldPath = ("spec", "selector")
    is_custom: bool = False

    @classmethod
    def of_definition(cls, scale: Object) -> ScalePaths:
        """Return the paths that the definition of a custom resource names."""

        def path(field: str) -> FieldPath:
            return tuple(filter(None, scale.get(field, "").split(".")))

        selector = path("labelSelectorPath")
        return cls(path("specReplicasPath"), path("statusReplicasPath"), selector, is_custom=True)


WORKLOAD: Final = ScalePaths()


def scale_of(obj: Object, paths: ScalePaths = WORKLOAD) -> dict[str, Any]:
    """Return the scale of an object; raise a `Refusal` for a custom resource without replicas."""
    if paths.is_custom and _value(obj, paths.wanted) is None:
        raise internal_error(f'the spec replicas field "{_text(paths.wanted)}" does not exist')
    return _scale(obj, paths)


def scale_to_patch(obj: Object, paths: ScalePaths = WORKLOAD) -> dict[str, Any]:
    """Return the scale that a patch begins with: it may set replicas that were never set."""
    return _scale(obj, paths)


def _scale(obj: Object, paths: ScalePaths) -> dict[str, Any]:
    """Numbers that are zero are left out, as Kubernetes does."""
    metadata, wanted, selector = obj.get("metadata", {}), _value(obj, paths.wanted), _value(obj, paths.selector)
    text = selector if isinstance(selector, str) else str(_label_selector(selector)) if selector else ""
    return {
        "kind": SCALE_KIND.kind,
        "apiVersion": SCALE_KIND.api_version,
        "metadata": {name: metadata[name] for name in SHOWN_METADATA if name in metadata},
        "spec": {"replicas": wanted} if wanted else {},
        "status": {"replicas": _value(obj, paths.observed) or 0, **({"selector": text} if text else {})},
    }


def _label_selector(selector: Object) -> LabelSelector:
    """A ReplicationController's selector is a map of labels, which is one part of the others'."""
    is_plain = all(isinstance(value, str) for value in selector.values())
    return LabelSelector.of_object({"matchLabels": selector} if is_plain else selector)


# ---- writing ---------------------------------------------------------------------------------------------------------


def scaled(kind: Kind, obj: dict[str, Any], scale: Any, paths: ScalePaths = WORKLOAD) -> dict[str, Any]:
    """Return the object with the replicas, and of the version, that a client's scale names."""
    spec, metadata = _part(scale, "spec"), _part(scale, "metadata")
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas is no number')
    # The scale of a custom resource is not checked by itself: the object that it makes is.
    if not paths.is_custom:
        if replicas < 0:
            raise _negative(obj, replicas)
        _check_uid(kind, obj, str(metadata.get("uid") or ""))
    version = {"resourceVersion": metadata["resourceVersion"]} if metadata.get("resourceVersion") else {}
    return {**_with_value(obj, paths.wanted, replicas), "metadata": {**obj["metadata"], **version}}


def refuse_unset(obj: Object, scale: Any, paths: ScalePaths) -> None:
    """Refuse a patch of a custom resource that has no replicas, and that sets none."""
    if paths.is_custom and _value(obj, paths.wanted) is None and "replicas" not in _part(scale, "spec"):
        raise bad_request(f'the spec replicas field "{_text(paths.wanted)}" cannot be empty')


def scale_name(scale: Any) -> str:
    return str(_part(scale, "metadata").get("name", ""))


def _check_uid(kind: Kind, obj: Object, wanted: str) -> None:
    uid = obj["metadata"].get("uid", "")
    if wanted and wanted != uid:
        why = f"Precondition failed: UID in precondition: {wanted}, UID in object meta: {uid}"
        raise conflict(kind, obj["metadata"]["name"], why)


def _negative(obj: Object, replicas: int) -> Refusal:
    cause = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
    return invalid_object(SCALE_KIND, obj["metadata"]["name"], [cause])


def _part(scale: Any, name: str) -> Object:
    part = scale.get(name) if isinstance(scale, Mapping) else None
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise bad_request(f'Scale in version "v1" cannot be handled as a Scale: {name} is no object')
    return part


# ---- custom resources ------------------------------------------------------------------------------------------------


def scale_causes(obj: Object, paths: ScalePaths, *, of_status: bool) -> Iterator[Cause]:
    """Yield why the values at the paths of a definition are no replicas and no selector."""
    for path in (paths.observed,) if of_status else (paths.wanted, paths.observed):
        value = _value(obj, path)
        if value is not None and (not isinstance(value, int) or isinstance(value, bool)):
            yield invalid(_text(path), 0, _of_type(value, path, "int64"))
        elif (value or 0) < 0:
            yield invalid(_text(path), value, "should be a non-negative integer")
        elif (value or 0) > MOST_REPLICAS:
            yield invalid(_text(path), value, f"should be less than or equal to {MOST_REPLICAS}")
    selector = _value(obj, paths.selector)
    if not isinstance(selector, str | None):
        yield invalid(_text(paths.selector), "", _of_type(selector, paths.selector, "string"))


def _of_type(value: Any, path: FieldPath, expected: str) -> str:
    found = GO_TYPES.get(type(value), "int64")
    return f"{_text(path)} accessor error: {value} is of the type {found}, expected {expected}"


# ---- paths -----------------------------------------------------------------------------------------------------------


def _text(path: FieldPath) -> str:
    return "".join(f".{name}" for name in path)


def _value(obj: Object, path: FieldPath) -> Any:
    """Return the value at a path; None where there is none, and for an empty path."""
    value: Any = obj if path else None
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _with_value(obj: Object, path: FieldPath, value: Any) -> dict[str, Any]:
    first, *rest = path
    inner = obj.get(first)
    below = _with_value(inner if isinstance(inner, Mapping) else {}, tuple(rest), value) if rest else value
    return {**obj, first: below}
