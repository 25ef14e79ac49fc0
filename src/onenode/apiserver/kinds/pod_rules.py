"""What the spec of a pod, or of a template for pods, must say: volumes, containers, names, scheduling."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from ipaddress import ip_address
from typing import Any, Final

from onenode.apiserver.kinds.container_validation_rules import container, mounts, resources
from onenode.apiserver.kinds.volume_source_validation_rules import POD_SOURCES, exactly_one_source
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, duplicate, forbidden, invalid, not_supported, required
from onenode.apiserver.schema.field_rules import labels, named, named_well, not_negative, one_of
from onenode.apiserver.schema.metadata_rules import annotation_causes

Object = Mapping[str, Any]
TypeRule = Callable[[Object, str], Iterator[Cause]]

RESTART_POLICIES: Final = ("Always", "OnFailure", "Never")
DNS_POLICIES: Final = ("ClusterFirstWithHostNet", "ClusterFirst", "Default", "None")
PREEMPTION_POLICIES: Final = ("PreemptLowerPriority", "Never")
TAINT_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
GROUP_CHANGE_POLICIES: Final = ("Always", "OnRootMismatch")
MOST_ID: Final = 2**31 - 1
MOST_WEIGHT: Final = 100
NAMED_BY_SUBDOMAIN: Final = ("serviceAccountName", "nodeName", "priorityClassName", "runtimeClassName")
ENUMERATED: Final = (
    ("restartPolicy", RESTART_POLICIES),
    ("dnsPolicy", DNS_POLICIES),
    ("preemptionPolicy", PREEMPTION_POLICIES),
)


def pod_spec(spec: Object, path: str) -> Iterator[Cause]:
    yield from _volumes(spec.get("volumes", []), f"{path}.volumes")
    volumes = {volume["name"]: volume for volume in spec.get("volumes", []) if volume.get("name")}
    if not spec.get("containers"):
        yield required(f"{path}.containers")
    yield from _containers(spec, volumes, path)
    for field, supported in ENUMERATED:
        yield from one_of(spec.get(field), supported, f"{path}.{field}")
    yield from labels(spec.get("nodeSelector"), f"{path}.nodeSelector")
    yield from _names(spec, path)
    yield from _host_network(spec, path)
    yield from _dns(spec, path)


def _volumes(volumes: Sequence[Object], path: str) -> Iterator[Cause]:
    names: set[str] = set()
    for place, volume in enumerate(volumes):
        inner, name = f"{path}[{place}]", volume.get("name", "")
        yield from exactly_one_source(volume, POD_SOURCES, inner)
        yield from named(name_rules.dns_label, name, f"{inner}.name")
        if name in names:
            yield duplicate(f"{inner}.name", name)
        names.add(name)


def _containers(spec: Object, volumes: Mapping[str, Object], path: str) -> Iterator[Cause]:
    """Names are different within a list; a container that runs first has no name of one that runs later."""
    taken: set[str] = set()
    host_ports: set[str] = set()
    for kind in ("containers", "initContainers", "ephemeralContainers"):
        for place, each in enumerate(spec.get(kind, [])):
            inner, name = f"{path}.{kind}[{place}]", each.get("name", "")
            yield from container(each, inner)
            yield from mounts(each, volumes, inner)
            yield from resources(each.get("resources", {}), f"{inner}.resources")
            if name in taken:
                yield duplicate(f"{inner}.name", name)
            taken.add(name)
            if kind == "containers":
                yield from _host_ports(each, host_ports, f"{inner}.ports")


def _host_ports(each: Object, taken: set[str], path: str) -> Iterator[Cause]:
    for place, port in enumerate(each.get("ports", [])):
        if not port.get("hostPort"):
            continue
        text = f"{port.get('protocol', '')}/{port.get('hostIP', '')}/{port['hostPort']}"
        if text in taken:
            yield duplicate(f"{path}[{place}].hostPort", text)
        taken.add(text)


def _names(spec: Object, path: str) -> Iterator[Cause]:
    for field in NAMED_BY_SUBDOMAIN:
        if spec.get(field):
            yield from named_well(name_rules.dns_subdomain, spec[field], f"{path}.{field}")
    for field in ("hostname", "subdomain"):
        if spec.get(field):
            yield from named_well(name_rules.dns_label, spec[field], f"{path}.{field}")
    deadline = spec.get("activeDeadlineSeconds", 1)
    yield from (
        invalid(f"{path}.activeDeadlineSeconds", deadline, why) for why in name_rules.in_range(deadline, 1, MOST_ID)
    )
    for place, gate in enumerate(spec.get("schedulingGates", [])):
        yield from named_well(name_rules.label_key, gate.get("name", ""), f"{path}.schedulingGates[{place}].name")
    for place, gate in enumerate(spec.get("readinessGates", [])):
        field = f"{path}.readinessGates[{place}].conditionType"
        yield from named_well(name_rules.label_key, gate.get("conditionType", ""), field)


def _host_network(spec: Object, path: str) -> Iterator[Cause]:
    if not spec.get("hostNetwork"):
        return
    for number, each in enumerate(spec.get("containers", [])):
        for place, port in enumerate(each.get("ports", [])):
            if port.get("hostPort") and port["hostPort"] != port.get("containerPort"):
                field = f"{path}.containers[{number}].ports[{place}].hostPort"
                yield invalid(field, port["hostPort"], "must match `containerPort` when `hostNetwork` is true")


def _dns(spec: Object, path: str) -> Iterator[Cause]:
    config: Object = spec.get("dnsConfig", {})
    if spec.get("dnsPolicy") == "None" and "dnsConfig" not in spec:
        yield required(f"{path}.dnsConfig", "must provide `dnsConfig` when `dnsPolicy` is None")
    elif spec.get("dnsPolicy") == "None" and not config.get("nameservers"):
        why = "must provide at least one DNS nameserver when `dnsPolicy` is None"
        yield required(f"{path}.dnsConfig.nameservers", why)
    for place, server in enumerate(config.get("nameservers", [])):
        yield from address(server, f"{path}.dnsConfig.nameservers[{place}]")


def address(text: str, path: str) -> Iterator[Cause]:
    try:
        ip_address(text)
    except ValueError:
        yield invalid(path, text, "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)")


def toleration(each: Object, path: str) -> Iterator[Cause]:
    key, operator, value = each.get("key", ""), each.get("operator", ""), each.get("value", "")
    if key:
        yield from named_well(name_rules.label_key, key, f"{path}.key")
    elif operator != "Exists":
        why = 'operator must be Exists when `key` is empty, which means "match all values and all keys"'
        yield invalid(f"{path}.operator", operator, why)
    if "tolerationSeconds" in each and each.get("effect") != "NoExecute":
        why = "effect must be 'NoExecute' when `tolerationSeconds` is set"
        yield invalid(f"{path}.effect", each.get("effect", ""), why)
    yield from _toleration_value(operator, value, path)
    yield from one_of(each.get("effect") or None, TAINT_EFFECTS, f"{path}.effect")


def _toleration_value(operator: str, value: str, path: str) -> Iterator[Cause]:
    wrong = name_rules.label_value(value)
    if operator in {"", "Equal"} and wrong:
        yield invalid(f"{path}.operator", value, ";".join(wrong))
    elif operator == "Exists" and value:
        yield invalid(f"{path}.operator", value, "value must be empty when `operator` is 'Exists'")
    elif operator not in {"", "Equal", "Exists"}:
        yield not_supported(f"{path}.operator", operator, ("Equal", "Exists"))


def preferred_term(each: Object, path: str) -> Iterator[Cause]:
    if not 1 <= each.get("weight", 0) <= MOST_WEIGHT:
        yield invalid(f"{path}.weight", each.get("weight", 0), "must be in the range 1-100")


def affinity_term(each: Object, path: str) -> Iterator[Cause]:
    key = each.get("topologyKey", "")
    if not key:
        yield required(f"{path}.topologyKey", "can not be empty")
    yield from named_well(name_rules.label_key, key, f"{path}.topologyKey")
    for namespace in each.get("namespaces", []):
        yield from named_well(name_rules.dns_label, namespace, f"{path}.namespace")


def spread(each: Object, path: str) -> Iterator[Cause]:
    if each.get("maxSkew", 0) <= 0:
        yield invalid(f"{path}.maxSkew", each.get("maxSkew", 0), "must be greater than zero")
    if not each.get("topologyKey"):
        yield required(f"{path}.topologyKey", "can not be empty")
    supported = ("DoNotSchedule", "ScheduleAnyway")
    yield from one_of(each.get("whenUnsatisfiable", ""), supported, f"{path}.whenUnsatisfiable")


def host_alias(each: Object, path: str) -> Iterator[Cause]:
    yield from address(each.get("ip", ""), f"{path}.ip")
    for place, name in enumerate(each.get("hostnames", [])):
        yield from named_well(name_rules.dns_subdomain, name, f"{path}.hostnames[{place}]")


def pod_security(each: Object, path: str) -> Iterator[Cause]:
    yield from one_of(each.get("fsGroupChangePolicy"), GROUP_CHANGE_POLICIES, f"{path}.fsGroupChangePolicy")
    yield from _ids(each, path, "fsGroup", "runAsUser", "runAsGroup")
    for place, group in enumerate(each.get("supplementalGroups", [])):
        field = f"{path}.supplementalGroups[{place}]"
        yield from (invalid(field, group, why) for why in name_rules.in_range(group, 0, MOST_ID))


def container_security(each: Object, path: str) -> Iterator[Cause]:
    yield from _ids(each, path, "runAsUser", "runAsGroup")
    if each.get("privileged") and each.get("allowPrivilegeEscalation") is False:
        why = "cannot set `allowPrivilegeEscalation` to false and `privileged` to true"
        yield invalid(path, dict(each), why)


def _ids(each: Object, path: str, *fields: str) -> Iterator[Cause]:
    for field in fields:
        wrong = name_rules.in_range(each.get(field, 0), 0, MOST_ID)
        yield from (invalid(f"{path}.{field}", each[field], why) for why in wrong)


def template(each: Object, path: str) -> Iterator[Cause]:
    """A template for pods; Kubernetes names the labels of its metadata without the metadata."""
    metadata = each.get("metadata", {})
    yield from labels(metadata.get("labels"), f"{path}.labels")
    yield from annotation_causes(metadata.get("annotations", {}), f"{path}.annotations")
    if each.get("spec", {}).get("ephemeralContainers"):
        yield forbidden(f"{path}.spec.ephemeralContainers", "ephemeral containers not allowed in pod template")


def new_pod(pod: Object) -> Iterator[Cause]:
    """What holds for pods alone, and only when they are made."""
    spec = pod.get("spec", {})
    if spec.get("ephemeralContainers"):
        yield forbidden("spec.ephemeralContainers", "cannot be set on create")
    if spec.get("nodeName") and spec.get("schedulingGates"):
        yield forbidden("spec.nodeName", "cannot be set until all schedulingGates have been cleared")
    yield from not_negative(spec, "spec", "terminationGracePeriodSeconds")


POD_RULES: Final[Mapping[str, TypeRule]] = {
    "core.v1.HostAlias": host_alias,
    "core.v1.PodAffinityTerm": affinity_term,
    "core.v1.PodSecurityContext": pod_security,
    "core.v1.PodSpec": pod_spec,
    "core.v1.PodTemplateSpec": template,
    "core.v1.PreferredSchedulingTerm": preferred_term,
    "core.v1.SecurityContext": container_security,
    "core.v1.Toleration": toleration,
    "core.v1.TopologySpreadConstraint": spread,
    "core.v1.WeightedPodAffinityTerm": preferred_term,
}
