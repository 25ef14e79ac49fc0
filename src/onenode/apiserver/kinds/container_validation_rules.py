"""What a container of a pod must say: its name and image, ports, environment, mounts, probes and resources.

Types that stand alone (ports, variables, probes' actions …) have rules of their own in CONTAINER_RULES; what needs the
pod's volumes is asked by pod_rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_found,
    not_supported,
    required,
)
from onenode.apiserver.schema.field_rules import (
    given,
    named,
    named_well,
    no_backsteps,
    not_negative,
    not_negative_quantity,
    one_of,
    quantity,
)

Object = Mapping[str, Any]
TypeRule = Callable[[Object, str], Iterator[Cause]]

HANDLERS: Final = ("exec", "httpGet", "tcpSocket", "grpc", "sleep")
PULL_POLICIES: Final = ("Always", "IfNotPresent", "Never")
MESSAGE_POLICIES: Final = ("File", "FallbackToLogsOnError")
PROTOCOLS: Final = ("SCTP", "TCP", "UDP")
PROPAGATIONS: Final = ("Bidirectional", "HostToContainer", "None")
READ_ONLY_MODES: Final = ("Disabled", "Enabled", "IfPossible")
VALUE_SOURCES: Final = ("fieldRef", "resourceFieldRef", "configMapKeyRef", "secretKeyRef", "fileKeyRef")
POD_FIELDS: Final = (
    *("metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName"),
    *("status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs"),
)
STANDARD_RESOURCES: Final = frozenset({"cpu", "memory", "ephemeral-storage"})


def container(each: Object, path: str) -> Iterator[Cause]:
    yield from named(name_rules.dns_label, each.get("name"), f"{path}.name")
    yield from given(each, path, "image")
    yield from one_of(each.get("terminationMessagePolicy"), MESSAGE_POLICIES, f"{path}.terminationMessagePolicy")
    yield from one_of(each.get("imagePullPolicy"), PULL_POLICIES, f"{path}.imagePullPolicy")
    yield from _port_names(each.get("ports", []), f"{path}.ports")
    for probe in ("livenessProbe", "startupProbe"):
        if each.get(probe, {}).get("successThreshold", 1) != 1:
            yield invalid(f"{path}.{probe}.successThreshold", each[probe]["successThreshold"], "must be 1")
    grace = each.get("readinessProbe", {}).get("terminationGracePeriodSeconds")
    if grace is not None:
        field = f"{path}.readinessProbe.terminationGracePeriodSeconds"
        yield invalid(field, grace, "must not be set for readinessProbes")


def _port_names(ports: Sequence[Object], path: str) -> Iterator[Cause]:
    names: set[str] = set()
    for place, port in enumerate(ports):
        name = port.get("name")
        if name and name in names:
            yield duplicate(f"{path}[{place}].name", name)
        names.add(name or "")


def port(each: Object, path: str) -> Iterator[Cause]:
    if each.get("name"):
        yield from named_well(name_rules.port_name, each["name"], f"{path}.name")
    if not each.get("containerPort"):
        yield required(f"{path}.containerPort")
    for field in ("containerPort", "hostPort"):
        if each.get(field):
            yield from (invalid(f"{path}.{field}", each[field], why) for why in name_rules.port_number(each[field]))
    yield from one_of(each.get("protocol"), PROTOCOLS, f"{path}.protocol")


def variable(each: Object, path: str) -> Iterator[Cause]:
    yield from named(name_rules.environment_name, each.get("name"), f"{path}.name")
    source = each.get("valueFrom")
    if source is None:
        return
    count = sum(kind in source for kind in VALUE_SOURCES)
    if not count:
        options = "`fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        yield invalid(f"{path}.valueFrom", "", f"must specify one of: {options}")
    elif each.get("value"):
        yield invalid(f"{path}.valueFrom", "", "may not be specified when `value` is not empty")
    elif count > 1:
        yield invalid(f"{path}.valueFrom", "", "may not have more than one field specified at a time")
    if "fieldRef" in source:
        yield from _field_reference(source["fieldRef"], f"{path}.valueFrom.fieldRef")


def _field_reference(reference: Object, path: str) -> Iterator[Cause]:
    field = reference.get("fieldPath", "")
    subscripted = field.startswith(("metadata.labels['", "metadata.annotations['"))
    if not field:
        yield required(f"{path}.fieldPath")
    elif not subscripted and field not in POD_FIELDS:
        yield not_supported(f"{path}.fieldPath", field, POD_FIELDS)


def key_reference(each: Object, path: str) -> Iterator[Cause]:
    yield from named_well(name_rules.dns_subdomain, each.get("name", ""), f"{path}.name")
    yield from named(name_rules.config_key, each.get("key"), f"{path}.key")


def probe(each: Object, path: str) -> Iterator[Cause]:
    yield from handler(each, path)
    numbers = ("initialDelaySeconds", "timeoutSeconds", "periodSeconds", "successThreshold", "failureThreshold")
    yield from not_negative(each, path, *numbers)
    if each.get("terminationGracePeriodSeconds", 1) <= 0:
        field = f"{path}.terminationGracePeriodSeconds"
        yield invalid(field, each["terminationGracePeriodSeconds"], "must be greater than 0")


def handler(each: Object, path: str) -> Iterator[Cause]:
    found = [kind for kind in HANDLERS if kind in each]
    if not found:
        yield required(path, "must specify a handler type")
    yield from (forbidden(f"{path}.{kind}", "may not specify more than 1 handler type") for kind in found[1:])


def exec_action(each: Object, path: str) -> Iterator[Cause]:
    yield from given(each, path, "command")


def http_action(each: Object, path: str) -> Iterator[Cause]:
    yield from given(each, path, "path")
    yield from port_action(each, path)
    yield from one_of(each.get("scheme"), ("HTTP", "HTTPS"), f"{path}.scheme")
    for header in each.get("httpHeaders", []):
        yield from named_well(name_rules.header_name, header.get("name", ""), f"{path}.httpHeaders")


def port_action(each: Object, path: str) -> Iterator[Cause]:
    wanted = each.get("port", 0)
    check = name_rules.port_number if isinstance(wanted, int) else name_rules.port_name
    yield from (invalid(f"{path}.port", wanted, why) for why in check(wanted))


def resources(each: Object, path: str) -> Iterator[Cause]:
    limits, requests = each.get("limits", {}), each.get("requests", {})
    for kind, amounts in (("limits", limits), ("requests", requests)):
        for name, amount in amounts.items():
            yield from _resource_name(name, f"{path}.{kind}[{name}]")
            yield from not_negative_quantity(amount, f"{path}.{kind}[{name}]")
    for name, amount in requests.items():
        if name in limits and quantity(amount) > quantity(limits[name]):
            why = f"must be less than or equal to {name} limit of {limits[name]}"
            yield invalid(f"{path}.requests", amount, why)


def _resource_name(name: str, path: str) -> Iterator[Cause]:
    wrong = list(named_well(name_rules.label_key, name, path))
    if not wrong and "/" not in name and name not in STANDARD_RESOURCES and not name.startswith("hugepages-"):
        wrong = [
            invalid(path, name, "must be a standard resource type or fully qualified"),
            invalid(path, name, "must be a standard resource for containers"),
        ]
    yield from wrong


@dataclass(frozen=True, slots=True)
class _Taken:
    """What the devices of a container have, so that its mounts may not."""

    names: frozenset[str]
    paths: frozenset[str]


def mounts(each: Object, volumes: Mapping[str, Object], path: str) -> Iterator[Cause]:
    """The mounts and devices of a container, which must be volumes of its pod, each in a place of its own."""
    devices = {device.get("name", ""): device.get("devicePath", "") for device in each.get("volumeDevices", [])}
    taken = _Taken(frozenset(devices.keys()), frozenset(devices.values()))
    places: set[str] = set()
    for place, mount in enumerate(each.get("volumeMounts", [])):
        inner, target = f"{path}.volumeMounts[{place}]", mount.get("mountPath", "")
        yield from _mount(mount, volumes, taken, inner)
        if target in places:
            yield invalid(f"{inner}.mountPath", target, "must be unique")
        places.add(target)
        yield from _mount_options(mount, each, f"{path}.volumeMounts")
    yield from _devices(each, volumes, path)


def _mount(mount: Object, volumes: Mapping[str, Object], taken: _Taken, path: str) -> Iterator[Cause]:
    name, target = mount.get("name", ""), mount.get("mountPath", "")
    yield from given(mount, path, "name")
    if name not in volumes:
        yield not_found(f"{path}.name", name)
    yield from given(mount, path, "mountPath")
    if name in taken.names:
        yield invalid(f"{path}.name", name, "must not already exist in volumeDevices")
    if target in taken.paths:
        yield invalid(f"{path}.mountPath", target, "must not already exist as a path in volumeDevices")
    if mount.get("subPath") and mount.get("subPathExpr"):
        why = "subPathExpr and subPath are mutually exclusive"
        yield invalid(f"{path}.subPathExpr", mount["subPathExpr"], why)


def _mount_options(mount: Object, each: Object, path: str) -> Iterator[Cause]:
    """Kubernetes names these fields without the number of the mount."""
    for field in ("subPath", "subPathExpr"):
        target = mount.get(field, "")
        if target.startswith("/"):
            yield invalid(f"{path}.{field}", target, "must be a relative path")
        yield from no_backsteps(target, f"{path}.{field}")
    propagation = mount.get("mountPropagation")
    yield from one_of(propagation, PROPAGATIONS, f"{path}.mountPropagation")
    if propagation == "Bidirectional" and not each.get("securityContext", {}).get("privileged"):
        why = "Bidirectional mount propagation is available only to privileged containers"
        yield forbidden(f"{path}.mountPropagation", why)
    mode = mount.get("recursiveReadOnly")
    yield from one_of(mode, READ_ONLY_MODES, f"{path}.recursiveReadOnly")
    if mode in {"Enabled", "IfPossible"} and not mount.get("readOnly"):
        yield forbidden(f"{path}.recursiveReadOnly", "may only be specified when readOnly is true")


def _devices(each: Object, volumes: Mapping[str, Object], path: str) -> Iterator[Cause]:
    names: set[str] = set()
    places: set[str] = set()
    for number, device in enumerate(each.get("volumeDevices", [])):
        inner, name, place = f"{path}.volumeDevices[{number}]", device.get("name", ""), device.get("devicePath", "")
        yield from given(device, inner, "name")
        yield from _device_volume(volumes.get(name), name, f"{inner}.name")
        yield from given(device, inner, "devicePath")
        if name in names:
            yield invalid(f"{inner}.name", name, "must be unique")
        if place in places:
            yield invalid(f"{inner}.devicePath", place, "must be unique")
        if ".." in place.split("/"):
            yield invalid(f"{inner}.devicePath", place, "can not contain backsteps ('..')")
        names.add(name)
        places.add(place)


def _device_volume(volume: Object | None, name: str, path: str) -> Iterator[Cause]:
    if volume is None:
        yield not_found(path, name)
    elif not {"persistentVolumeClaim", "ephemeral"} & volume.keys():
        why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode"
        yield invalid(path, name, why)


CONTAINER_RULES: Final[Mapping[str, TypeRule]] = {
    "core.v1.ConfigMapKeySelector": key_reference,
    "core.v1.ContainerPort": port,
    "core.v1.EnvVar": variable,
    "core.v1.ExecAction": exec_action,
    "core.v1.GRPCAction": port_action,
    "core.v1.HTTPGetAction": http_action,
    "core.v1.LifecycleHandler": handler,
    "core.v1.Probe": probe,
    "core.v1.SecretKeySelector": key_reference,
    "core.v1.TCPSocketAction": port_action,
}
