"""Which writes a policy or a binding is about: its resource rules and selectors, as Kubernetes matches them. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.admission.write_attributes import DELETE, WriteAttributes
from orlop.kube.kinds import Kind
from orlop.kube.selectors import EVERYTHING, LabelSelector

Object = Mapping[str, Any]
LabelMap = Mapping[str, str]
LabelReader = Callable[[], LabelMap]

ANY: Final = "*"
EXACT: Final = "Exact"
CLUSTER: Final = "Cluster"
NAMESPACED: Final = "Namespaced"


@dataclass(frozen=True, slots=True)
class ResourceRule:
    """`resources` are pairs of a resource and a subresource, which is empty for the object itself."""

    groups: tuple[str, ...]
    versions: tuple[str, ...]
    resources: tuple[tuple[str, str], ...]
    operations: tuple[str, ...]
    scope: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MatchResources:
    rules: tuple[ResourceRule, ...]
    excluded: tuple[ResourceRule, ...]
    namespaces: LabelSelector = EVERYTHING
    objects: LabelSelector = EVERYTHING
    exact: bool = False
    """Whether a rule is about the version that is asked for alone, and not about all versions of its objects."""


def match_resources(spec: Object) -> MatchResources:
    return MatchResources(
        tuple(_rule(each) for each in spec.get("resourceRules") or ()),
        tuple(_rule(each) for each in spec.get("excludeResourceRules") or ()),
        LabelSelector.of_object(spec.get("namespaceSelector") or {}),
        LabelSelector.of_object(spec.get("objectSelector") or {}),
        spec.get("matchPolicy") == EXACT,
    )


def _rule(spec: Object) -> ResourceRule:
    resources = (each.partition("/") for each in spec.get("resources") or ())
    return ResourceRule(
        tuple(spec.get("apiGroups") or ()),
        tuple(spec.get("apiVersions") or ()),
        tuple((resource, part) for resource, _, part in resources),
        tuple(spec.get("operations") or ()),
        spec.get("scope") or ANY,
        tuple(spec.get("resourceNames") or ()),
    )


def matched_kind(
    match: MatchResources, write: WriteAttributes, equivalents: Sequence[Kind], namespace_labels: LabelReader
) -> Kind | None:
    """Return the kind as which a write matches; None if it does not.

    `equivalents` are the other kinds of the same objects, such as their other versions.
    """
    others = () if match.exact else equivalents
    if _kind_of_rules(match.excluded, write, others) is not None:
        return None
    kind = _kind_of_rules(match.rules, write, others) if match.rules else write.kind
    if kind is None or not _objects_match(match.objects, write):
        return None
    return kind if _namespace_matches(match.namespaces, write, namespace_labels) else None


def _kind_of_rules(rules: Iterable[ResourceRule], write: WriteAttributes, others: Sequence[Kind]) -> Kind | None:
    rules = tuple(rules)
    for kind in (write.kind, *others):
        if any(_matches(rule, write, kind) for rule in rules):
            return kind
    return None


def _matches(rule: ResourceRule, write: WriteAttributes, kind: Kind) -> bool:
    return (
        _holds(rule.operations, write.operation)
        and _holds(rule.groups, kind.group)
        and _holds(rule.versions, kind.version)
        and any(_holds((name,), kind.plural) and part in (ANY, write.subresource) for name, part in rule.resources)
        and _scope_matches(rule.scope, write)
        and (not rule.names or write.name in rule.names)
    )


def _holds(items: Sequence[str], value: str) -> bool:
    return value in items or ANY in items


def _scope_matches(scope: str, write: WriteAttributes) -> bool:
    is_in_namespace = bool(write.namespace) and not write.is_of_namespace
    return scope == ANY or (scope == NAMESPACED) == is_in_namespace


def _objects_match(selector: LabelSelector, write: WriteAttributes) -> bool:
    """One of the two versions is enough: what takes a label off is a write of a labelled object."""
    if not selector:
        return True
    present = (each for each in (write.object, write.old) if each is not None)
    return any(selector.matches(_labels(each)) for each in present)


def _namespace_matches(selector: LabelSelector, write: WriteAttributes, namespace_labels: LabelReader) -> bool:
    if not selector or (not write.namespace and not write.is_of_namespace):
        return True
    # A Namespace that is created or changed counts with the labels that it gets.
    is_new = write.is_of_namespace and not write.subresource and write.operation != DELETE
    return selector.matches(_labels(write.object or {}) if is_new else namespace_labels())


def _labels(obj: Object) -> LabelMap:
    labels: LabelMap = (obj.get("metadata") or {}).get("labels") or {}
    return labels
