"""The kinds of apps/v1: what a Deployment, ReplicaSet, StatefulSet and DaemonSet must say, and what of it is fixed."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import NOT_NEGATIVE, named_well, not_negative, one_of, unchanged, without

Object = Mapping[str, Any]

ALL: Final = 100
RETENTION: Final = ("Retain", "Delete")
NOT_MORE_THAN_ALL: Final = "must not be greater than 100%"
STATUS_COUNTS: Final = (
    *("replicas", "readyReplicas", "availableReplicas", "updatedReplicas", "currentReplicas", "unavailableReplicas"),
    *("fullyLabeledReplicas", "observedGeneration", "collisionCount", "currentNumberScheduled", "numberAvailable"),
    *("numberMisscheduled", "desiredNumberScheduled", "numberReady", "updatedNumberScheduled", "numberUnavailable"),
)
NOT_MORE_THAN_REPLICAS: Final = (
    *("fullyLabeledReplicas", "updatedReplicas", "readyReplicas", "currentReplicas", "availableReplicas"),
)


def deployment(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    yield from not_negative(
        spec, "spec", "replicas", "minReadySeconds", "revisionHistoryLimit", "progressDeadlineSeconds"
    )
    yield from _pods(spec, "deployment", "ReplicaSet")
    yield from _deployment_strategy(spec.get("strategy", {}))
    deadline = spec.get("progressDeadlineSeconds")
    if deadline is not None and deadline <= spec.get("minReadySeconds", 0):
        yield invalid("spec.progressDeadlineSeconds", deadline, "must be greater than minReadySeconds")


def replica_set(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    yield from not_negative(spec, "spec", "replicas", "minReadySeconds")
    # Kubernetes says deployment here.
    yield from _pods(spec, "deployment", "ReplicaSet")


def daemon_set(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    yield from not_negative(spec, "spec", "minReadySeconds", "revisionHistoryLimit")
    yield from _pods(spec, "daemonset", "DaemonSet")
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") == "RollingUpdate":
        yield from _daemon_update(strategy.get("rollingUpdate", {}), "spec.updateStrategy.rollingUpdate")
    elif strategy.get("type") != "OnDelete":
        yield not_supported("spec.updateStrategy", dict(strategy), ("RollingUpdate", "OnDelete"))


def stateful_set(obj: Object) -> Iterator[Cause]:
    spec = obj.get("spec", {})
    if spec.get("podManagementPolicy") not in {"OrderedReady", "Parallel"}:
        why = "must be 'OrderedReady' or 'Parallel'"
        yield invalid("spec.podManagementPolicy", spec.get("podManagementPolicy", ""), why)
    strategy = spec.get("updateStrategy", {})
    if strategy.get("type") not in {"RollingUpdate", "OnDelete"}:
        yield invalid("spec.updateStrategy", dict(strategy), "must be 'RollingUpdate' or 'OnDelete'")
    elif strategy["type"] == "OnDelete" and "rollingUpdate" in strategy:
        why = "only allowed for updateStrategy 'RollingUpdate'"
        yield invalid("spec.updateStrategy.rollingUpdate", strategy["rollingUpdate"], why)
    yield from not_negative(strategy.get("rollingUpdate", {}), "spec.updateStrategy.rollingUpdate", "partition")
    for field, policy in spec.get("persistentVolumeClaimRetentionPolicy", {}).items():
        yield from one_of(policy, RETENTION, f"spec.persistentVolumeClaimRetentionPolicy.{field}")
    yield from not_negative(spec, "spec", "replicas", "minReadySeconds")
    if spec.get("serviceName"):
        yield from named_well(name_rules.dns_label, spec["serviceName"], "spec.serviceName")
    yield from _pods(spec, "statefulset", "StatefulSet")


def with_claim_volumes(obj: Mapping[str, Any]) -> dict[str, Any]:
    """A StatefulSet as its pods will be: each claim template is a volume, and the controller names their hosts."""
    spec = obj.get("spec", {})
    inner = without(spec.get("template", {}).get("spec", {}), ["hostname", "subdomain"])
    claims = [each.get("metadata", {}).get("name", "") for each in spec.get("volumeClaimTemplates", [])]
    claimed = frozenset(claims)
    volumes = [each for each in inner.get("volumes", []) if each.get("name") not in claimed]
    from_claims = [{"name": name, "persistentVolumeClaim": {"claimName": name}} for name in claims]
    template = {**spec.get("template", {}), "spec": {**inner, "volumes": [*volumes, *from_claims]}}
    return {**obj, "spec": {**spec, "template": template}}


def _pods(spec: Object, word: str, kind: str) -> Iterator[Cause]:
    """The selector must select something, and the pods of the template."""
    selector = spec.get("selector")
    if selector is None:
        yield required("spec.selector")
    elif not selector.get("matchLabels") and not selector.get("matchExpressions"):
        yield invalid("spec.selector", dict(selector), f"empty selector is invalid for {word}")
    template = spec.get("template", {})
    labels = template.get("metadata", {}).get("labels", {})
    if selector is not None and not _selects(selector, labels):
        yield invalid("spec.template.metadata.labels", labels or None, "`selector` does not match template `labels`")
    inner = template.get("spec", {})
    policy = inner.get("restartPolicy", "Always")
    if policy != "Always":
        yield not_supported("spec.template.spec.restartPolicy", policy, ("Always",))
    if "activeDeadlineSeconds" in inner:
        path = "spec.template.spec.activeDeadlineSeconds"
        yield forbidden(path, f"activeDeadlineSeconds in {kind} is not Supported")


def _selects(selector: Object, labels: Mapping[str, str]) -> bool:
    required_labels = selector.get("matchLabels", {}).items()
    return required_labels <= labels.items() and all(
        _fulfils(labels, each) for each in selector.get("matchExpressions", [])
    )


def _fulfils(labels: Mapping[str, str], requirement: Object) -> bool:
    key, values = requirement.get("key", ""), requirement.get("values", [])
    match requirement.get("operator"):
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
        case _:
            return True  # what is wrong with the operator is said elsewhere


def _deployment_strategy(strategy: Object) -> Iterator[Cause]:
    path, rolling = "spec.strategy.rollingUpdate", strategy.get("rollingUpdate")
    match strategy.get("type"):
        case "Recreate":
            if rolling is not None:
                yield forbidden(path, "may not be specified when strategy `type` is 'Recreate'")
        case "RollingUpdate":
            yield from _shares(rolling or {}, path)
            if not any(_share((rolling or {}).get(field)) for field in ("maxUnavailable", "maxSurge")):
                value = (rolling or {}).get("maxUnavailable")
                yield invalid(f"{path}.maxUnavailable", value, "may not be 0 when `maxSurge` is 0")
            yield from _at_most_all(rolling or {}, path, "maxUnavailable")
        case _:
            yield not_supported("spec.strategy", dict(strategy), ("Recreate", "RollingUpdate"))


def _daemon_update(rolling: Object, path: str) -> Iterator[Cause]:
    yield from _shares(rolling, path)
    yield from _at_most_all(rolling, path, "maxUnavailable", "maxSurge")
    unavailable, surge = _share(rolling.get("maxUnavailable")), _share(rolling.get("maxSurge"))
    if unavailable and surge:
        yield invalid(f"{path}.maxSurge", rolling["maxSurge"], "may not be set when maxUnavailable is non-zero")
    elif not unavailable and not surge:
        yield required(f"{path}.maxUnavailable", "cannot be 0 when maxSurge is 0")


def _shares(rolling: Object, path: str) -> Iterator[Cause]:
    for field in ("maxUnavailable", "maxSurge"):
        value = rolling.get(field, 0)
        if isinstance(value, str):
            yield from named_well(name_rules.percent, value, f"{path}.{field}")
        elif value < 0:
            yield invalid(f"{path}.{field}", value, NOT_NEGATIVE)


def _share(value: int | str | None) -> int:
    if isinstance(value, str):
        return int(value[:-1]) if re.fullmatch("[0-9]+%", value) else 0
    return value or 0


def _at_most_all(rolling: Object, path: str, *fields: str) -> Iterator[Cause]:
    for field in fields:
        value = rolling.get(field)
        if isinstance(value, str) and _share(value) > ALL:
            yield invalid(f"{path}.{field}", value, NOT_MORE_THAN_ALL)


def selector_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = (each.get("spec", {}).get("selector") for each in (old, new))
    yield from unchanged(before, after, "spec.selector")


def stateful_set_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    for field in ("selector", "volumeClaimTemplates", "serviceName", "podManagementPolicy"):
        yield from unchanged(before.get(field), after.get(field), f"spec.{field}")


def workload_status(_old: Object, new: Object) -> Iterator[Cause]:
    status = new.get("status", {})
    yield from not_negative(status, "status", *STATUS_COUNTS)
    replicas = status.get("replicas", 0)
    for field in NOT_MORE_THAN_REPLICAS:
        if "replicas" in status and status.get(field, 0) > replicas:
            yield invalid(f"status.{field}", status[field], "cannot be greater than status.replicas")
