"""Roles, their bindings, and the reviews and requests about identity: what each must say, and what of it is fixed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from onenode.apiserver.kinds.volume_source_validation_rules import token_life
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.default_rules import ONE_HOUR, RBAC_GROUP
from onenode.apiserver.schema.field_errors import Cause, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import named, named_well, unchanged, without

Object = Mapping[str, Any]

SUBJECTS: Final = ("ServiceAccount", "User", "Group")
ONE_KIND: Final = "exactly one of nonResourceAttributes or resourceAttributes must be specified"


def role(given: Object) -> Iterator[Cause]:
    yield from _rules(given, namespaced=True)


def cluster_role(given: Object) -> Iterator[Cause]:
    yield from _rules(given, namespaced=False)
    aggregation = given.get("aggregationRule")
    if aggregation is not None and not aggregation.get("clusterRoleSelectors"):
        why = "at least one clusterRoleSelector required if aggregationRule is non-nil"
        yield required("aggregationRule.clusterRoleSelectors", why)


def _rules(given: Object, *, namespaced: bool) -> Iterator[Cause]:
    for place, rule in enumerate(given.get("rules", [])):
        yield from _rule(rule, f"rules[{place}]", namespaced=namespaced)


def _rule(rule: Object, path: str, *, namespaced: bool) -> Iterator[Cause]:
    if not rule.get("verbs"):
        yield required(f"{path}.verbs", "verbs must contain at least one value")
    paths = rule.get("nonResourceURLs")
    if paths and namespaced:
        yield invalid(f"{path}.nonResourceURLs", paths, "namespaced rules cannot apply to non-resource URLs")
    if paths and any(rule.get(field) for field in ("apiGroups", "resources", "resourceNames")):
        why = "rules cannot apply to both regular resources and non-resource URLs"
        yield invalid(f"{path}.nonResourceURLs", paths, why)
    if paths:
        return
    if not rule.get("apiGroups"):
        yield required(f"{path}.apiGroups", "resource rules must supply at least one api group")
    if not rule.get("resources"):
        yield required(f"{path}.resources", "resource rules must supply at least one resource")


def role_binding(given: Object) -> Iterator[Cause]:
    yield from _binding(given, ("Role", "ClusterRole"), namespaced=True)


def cluster_role_binding(given: Object) -> Iterator[Cause]:
    yield from _binding(given, ("ClusterRole",), namespaced=False)


def _binding(given: Object, kinds: tuple[str, ...], *, namespaced: bool) -> Iterator[Cause]:
    reference = given.get("roleRef", {})
    if reference.get("apiGroup") != RBAC_GROUP:
        yield not_supported("roleRef.apiGroup", reference.get("apiGroup", ""), (RBAC_GROUP,))
    if reference.get("kind") not in kinds:
        yield not_supported("roleRef.kind", reference.get("kind", ""), kinds)
    yield from named(name_rules.path_segment, reference.get("name"), "roleRef.name")
    for place, subject in enumerate(given.get("subjects", [])):
        yield from _subject(subject, f"subjects[{place}]", namespaced=namespaced)


def _subject(subject: Object, path: str, *, namespaced: bool) -> Iterator[Cause]:
    name, group = subject.get("name", ""), subject.get("apiGroup", "")
    if not name:
        yield required(f"{path}.name")
    match subject.get("kind", ""):
        case "ServiceAccount":
            yield from named_well(name_rules.dns_subdomain, name, f"{path}.name") if name else ()
            if group:
                yield not_supported(f"{path}.apiGroup", group, ("",))
            if not namespaced and not subject.get("namespace"):
                yield required(f"{path}.namespace")
        case "User" | "Group":
            if group != RBAC_GROUP:
                yield not_supported(f"{path}.apiGroup", group, (RBAC_GROUP,))
        case kind:
            yield not_supported(f"{path}.kind", kind, SUBJECTS)


def role_reference_update(old: Object, new: Object) -> Iterator[Cause]:
    yield from unchanged(old.get("roleRef"), new.get("roleRef"), "roleRef")


def token_request(given: Object) -> Iterator[Cause]:
    yield from token_life(given.get("spec", {}).get("expirationSeconds", ONE_HOUR), "spec.expirationSeconds")


def access_review(given: Object) -> Iterator[Cause]:
    spec = given.get("spec", {})
    yield from self_access_review(given)
    if not spec.get("user") and not spec.get("groups"):
        yield invalid("spec.user", spec.get("user", ""), "at least one of user or group must be specified")


def local_access_review(given: Object) -> Iterator[Cause]:
    """In a namespace: the metadata may name it, and nothing else."""
    metadata = without(given.get("metadata", {}), ["namespace"])
    yield from access_review({**given, "metadata": metadata})
    attributes = given.get("spec", {}).get("resourceAttributes")
    if attributes is None:
        yield invalid("spec.nonResourceAttributes", None, "disallowed on this kind of request")
    elif attributes.get("namespace") != given.get("metadata", {}).get("namespace"):
        why = "must match metadata.namespace"
        yield invalid("spec.resourceAttributes.namespace", attributes.get("namespace", ""), why)


def self_access_review(given: Object) -> Iterator[Cause]:
    spec = given.get("spec", {})
    if ("resourceAttributes" in spec) == ("nonResourceAttributes" in spec):
        yield invalid("spec", spec.get("nonResourceAttributes"), ONE_KIND)
    metadata = {key: value for key, value in given.get("metadata", {}).items() if key != "managedFields"}
    if metadata:
        yield invalid("metadata", metadata, "must be empty")
