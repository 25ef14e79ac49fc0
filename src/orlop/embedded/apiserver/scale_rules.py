"""The scale of a workload: how many replicas it shall have and has, as an object of its own. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.embedded.apiserver.causes import invalid
from orlop.embedded.apiserver.status_answers import Refusal, bad_request
from orlop.embedded.apiserver.status_answers import invalid as invalid_object
from orlop.kube.kinds import Kind
from orlop.kube.selectors import LabelSelector

Object = dict[str, Any]

SCALE_KIND: Final = Kind("autoscaling", "v1", "Scale", "scales", namespaced=True)
SHOWN_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")


def scale_of(workload: Mapping[str, Any]) -> Object:
    """Numbers that are zero are left out, as Kubernetes does."""
    metadata, spec, status = (workload.get(part, {}) for part in ("metadata", "spec", "status"))
    wanted = {"replicas": spec["replicas"]} if spec.get("replicas") else {}
    selector = str(LabelSelector.of_object(spec.get("selector")))
    return {
        "kind": SCALE_KIND.kind,
        "apiVersion": SCALE_KIND.api_version,
        "metadata": {name: metadata[name] for name in SHOWN_METADATA if name in metadata},
        "spec": wanted,
        "status": {"replicas": status.get("replicas", 0), "selector": selector},
    }


def scaled(workload: Object, scale: Any) -> Object:
    """The workload with the replicas, and of the version, that a client's scale names."""
    spec, metadata = _part(scale, "spec"), _part(scale, "metadata")
    replicas = spec.get("replicas", 0)
    if not isinstance(replicas, int) or isinstance(replicas, bool):
        raise bad_request('Scale in version "v1" cannot be handled as a Scale: spec.replicas is no number')
    if replicas < 0:
        raise _negative(workload, replicas)
    version = {"resourceVersion": metadata["resourceVersion"]} if metadata.get("resourceVersion") else {}
    others = {key: value for key, value in workload["metadata"].items() if key != "resourceVersion"}
    return {**workload, "metadata": {**others, **version}, "spec": {**workload.get("spec", {}), "replicas": replicas}}


def scale_name(scale: Any) -> str:
    return str(_part(scale, "metadata").get("name", ""))


def _negative(workload: Object, replicas: int) -> Refusal:
    cause = invalid("spec.replicas", replicas, "must be greater than or equal to 0")
    return invalid_object(SCALE_KIND, workload["metadata"]["name"], [cause])


def _part(scale: Any, name: str) -> Mapping[str, Any]:
    part = scale.get(name) if isinstance(scale, Mapping) else None
    if part is None:
        return {}
    if not isinstance(part, Mapping):
        raise bad_request(f'Scale in version "v1" cannot be handled as a Scale: {name} is no object')
    return part
