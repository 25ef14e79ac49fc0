"""Namespaces, Nodes, Secrets, ConfigMaps, Bindings and Leases: what each must say, and what of it may change."""

from __future__ import annotations

import base64
import ipaddress
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.kinds.pod_rules import TAINT_EFFECTS
from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import (
    Cause,
    duplicate,
    forbidden,
    invalid,
    not_supported,
    required,
    too_long,
)
from onenode.apiserver.schema.field_rules import named_well, not_negative_quantity, one_of, repeated_places, unchanged
from onenode.apiserver.schema.metadata_rules import qualified_finalizer
from onenode.go_text import as_json

Object = Mapping[str, Any]

MOST_DATA_BYTES: Final = 1024 * 1024
FROZEN: Final = "field is immutable when `immutable` is set"
ACCOUNT_ANNOTATION: Final = "kubernetes.io/service-account.name"
REQUIRED_KEYS: Final = {
    "kubernetes.io/dockercfg": (".dockercfg",),
    "kubernetes.io/dockerconfigjson": (".dockerconfigjson",),
    "kubernetes.io/ssh-auth": ("ssh-privatekey",),
    "kubernetes.io/tls": ("tls.crt", "tls.key"),
}
JSON_SECRETS: Final = ("kubernetes.io/dockercfg", "kubernetes.io/dockerconfigjson")
NO_NETWORK: Final = "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"
FIXED_CIDR: Final = 'node updates may not change podCIDR except from "" to valid'


def namespace(given: Object) -> Iterator[Cause]:
    for finalizer in given.get("spec", {}).get("finalizers", []):
        yield from named_well(name_rules.label_key, finalizer, "spec.finalizers")
        yield from qualified_finalizer(finalizer, "spec.finalizers")


def namespace_status(_old: Object, new: Object) -> Iterator[Cause]:
    phase = new.get("status", {}).get("phase", "")
    dying = bool(new.get("metadata", {}).get("deletionTimestamp"))
    if dying and phase != "Terminating":
        yield invalid("status.Phase", phase, "may only be 'Terminating' if `deletionTimestamp` is not empty")
    if not dying and phase != "Active":
        yield invalid("status.Phase", phase, "may only be 'Active' if `deletionTimestamp` is empty")


def node(given: Object) -> Iterator[Cause]:
    # Kubernetes looks for the taints under metadata when it names them.
    yield from _taints(given.get("spec", {}).get("taints", []), "metadata.taints")
    for place, cidr in enumerate(given.get("spec", {}).get("podCIDRs", [])):
        if not _is_network(cidr):
            yield invalid(f"spec.podCIDRs[{place}]", cidr, NO_NETWORK)
    yield from node_status(given, given)


def _is_network(text: str) -> bool:
    try:
        ipaddress.ip_network(text, strict=False)
    except ValueError:
        return False
    return "/" in text


def _taints(taints: Sequence[Object], path: str) -> Iterator[Cause]:
    seen: set[tuple[str, str]] = set()
    for place, taint in enumerate(taints):
        inner, key, effect = f"{path}[{place}]", taint.get("key", ""), taint.get("effect", "")
        yield from named_well(name_rules.label_key, key, f"{inner}.key")
        wrong = name_rules.label_value(taint.get("value", ""))
        if wrong:
            yield invalid(f"{inner}.value", taint["value"], ";".join(wrong))
        if not effect:
            yield required(f"{inner}.effect")
        yield from one_of(effect or None, TAINT_EFFECTS, f"{inner}.effect")
        if (key, effect) in seen:
            yield duplicate(inner, dict(taint), "taints must be unique by key and effect pair")
        seen.add((key, effect))


def node_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    if before.get("podCIDRs") and before["podCIDRs"] != after.get("podCIDRs"):
        yield forbidden("spec.podCIDRs", FIXED_CIDR)
    if before.get("providerID") and before["providerID"] != after.get("providerID"):
        done = "modified" if after.get("providerID") else "cleared"
        yield invalid("spec.providerID", None, f"field cannot be {done} once set")


def node_status(_old: Object, new: Object) -> Iterator[Cause]:
    status = new.get("status", {})
    for field in ("capacity", "allocatable"):
        for name, amount in status.get(field, {}).items():
            yield from not_negative_quantity(amount, f"status.{field}.{name}")
    addresses = status.get("addresses", [])
    for place in repeated_places([as_json(address) for address in addresses]):
        yield duplicate(f"status.addresses[{place}]", dict(addresses[place]))


def secret(given: Object) -> Iterator[Cause]:
    data = given.get("data", {})
    for key in data:
        yield from (invalid(f"data[{key}]", key, why) for why in name_rules.config_key(key))
    if sum(_decoded_length(value) for value in data.values()) > MOST_DATA_BYTES:
        yield too_long("data", MOST_DATA_BYTES)
    yield from _secret_of_type(given, given.get("type", ""), data)


def _decoded_length(value: str) -> int:
    return len(value) // 4 * 3 - value.count("=")


def _secret_of_type(given: Object, kind: str, data: Mapping[str, str]) -> Iterator[Cause]:
    missing = [key for key in REQUIRED_KEYS.get(kind, ()) if not data.get(key)]
    yield from (required(f"data[{key}]") for key in missing)
    if kind == "kubernetes.io/basic-auth" and not {"username", "password"} & data.keys():
        yield from (required(f"data[{key}]") for key in ("username", "password"))
    annotated = given.get("metadata", {}).get("annotations", {}).get(ACCOUNT_ANNOTATION)
    if kind == "kubernetes.io/service-account-token" and not annotated:
        yield required(f"metadata.annotations[{ACCOUNT_ANNOTATION}]")
    if kind in JSON_SECRETS and not missing:
        yield from _json_secret(data, REQUIRED_KEYS[kind][0])


def _json_secret(data: Mapping[str, str], key: str) -> Iterator[Cause]:
    try:
        if isinstance(json.loads(base64.b64decode(data[key])), dict):
            return
        why = "json: cannot unmarshal into Go value of type map[string]interface {}"
    except ValueError:
        why = "invalid character looking for beginning of value"
    yield invalid(f"data[{key}]", "<secret contents redacted>", why)


def secret_update(old: Object, new: Object) -> Iterator[Cause]:
    yield from unchanged(old.get("type"), new.get("type"), "type")
    yield from _frozen(old, new, "data")


def config_map(given: Object) -> Iterator[Cause]:
    data, binary = given.get("data", {}), given.get("binaryData", {})
    for key in data:
        yield from (invalid(f"data[{key}]", key, why) for why in name_rules.config_key(key))
        if key in binary:
            yield invalid(f"data[{key}]", key, "duplicate of key present in binaryData")
    for key in binary:
        yield from (invalid(f"binaryData[{key}]", key, why) for why in name_rules.config_key(key))
    size = sum(len(value.encode()) for value in data.values()) + sum(_decoded_length(each) for each in binary.values())
    if size > MOST_DATA_BYTES:
        yield too_long("[]", MOST_DATA_BYTES)  # so Kubernetes names the whole


def config_map_update(old: Object, new: Object) -> Iterator[Cause]:
    yield from _frozen(old, new, "data", "binaryData")


def _frozen(old: Object, new: Object, *fields: str) -> Iterator[Cause]:
    if not old.get("immutable"):
        return
    if not new.get("immutable"):
        yield forbidden("immutable", FROZEN)
    yield from (forbidden(field, FROZEN) for field in fields if old.get(field) != new.get(field))


def binding(given: Object) -> Iterator[Cause]:
    target = given.get("target", {})
    if target.get("kind", "Node") not in {"", "Node"}:
        yield not_supported("target.kind", target["kind"], ("Node", "<empty>"))
    if not target.get("name"):
        yield required("target.name")
    else:
        yield from named_well(name_rules.dns_subdomain, target["name"], "target.name")


def lease(given: Object) -> Iterator[Cause]:
    spec = given.get("spec", {})
    if spec.get("leaseDurationSeconds", 1) <= 0:
        yield invalid("spec.leaseDurationSeconds", spec["leaseDurationSeconds"], "must be greater than 0")
    if spec.get("leaseTransitions", 0) < 0:
        yield invalid("spec.leaseTransitions", spec["leaseTransitions"], "must be greater than or equal to 0")
    if spec.get("preferredHolder") and not spec.get("strategy"):
        yield forbidden("spec.preferredHolder", "may only be specified if `strategy` is defined")


# ---- events ----------------------------------------------------------------------------------------------------------

# Events in their two forms: core/v1, and events.k8s.io/v1, which is stricter and keeps all but its series.


LONGEST: Final = 128
LONGEST_NOTE: Final = 1024
FEWEST_IN_SERIES: Final = 2
WRONG_NAMESPACE: Final = "does not match event.namespace"
# What an event of the new form must not carry, and how the core form names it.
OLD_FIELDS: Final = (
    ("deprecatedFirstTimestamp", "firstTimestamp"),
    ("deprecatedLastTimestamp", "lastTimestamp"),
    ("deprecatedCount", "count"),
    ("deprecatedSource", "source"),
)
# The fields of the new form that never change, and how Kubernetes names them.
FIXED: Final = (
    ("regarding", "involvedObject"),
    ("reason", "reason"),
    ("note", "message"),
    *OLD_FIELDS,
    ("type", "type"),
    ("eventTime", "eventTime"),
    ("action", "action"),
    ("related", "related"),
    ("reportingController", "reportingController"),
    ("reportingInstance", "reportingInstance"),
)


def core_event(event: Object) -> Iterator[Cause]:
    about = event.get("involvedObject", {}).get("namespace", "")
    controller = event.get("reportingComponent", "")
    yield from _event(event, about, event.get("message", ""), controller, "reportingComponent")


def event(given: Object) -> Iterator[Cause]:
    about = given.get("regarding", {}).get("namespace", "")
    controller = given.get("reportingController", "")
    yield from _event(given, about, given.get("note", ""), controller, "reportingController")
    yield from _series(given)
    if not given.get("eventTime"):
        yield required("eventTime")
    if given.get("type") not in {"Normal", "Warning"}:
        yield invalid("type", "", f"has invalid value: {given.get('type', '')}")
    for field, called in OLD_FIELDS:
        if given.get(field):
            yield invalid(called, "", "needs to be unset")


def _event(event: Object, about: str, note: str, controller: str, controller_field: str) -> Iterator[Cause]:
    namespace = event.get("metadata", {}).get("namespace", "")
    if not event.get("eventTime"):
        if (about and about != namespace) or (not about and namespace not in {"", "default"}):
            yield invalid("involvedObject.namespace", about, WRONG_NAMESPACE)
        return
    if not about and namespace not in {"default", "kube-system"}:
        yield invalid("involvedObject.namespace", about, WRONG_NAMESPACE)
    if not controller:
        yield required(controller_field)
    yield from named_well(name_rules.label_key, controller, controller_field)
    for field in ("reportingInstance", "action", "reason"):
        if not event.get(field):
            yield required(field)
        yield from _at_most(event.get(field, ""), LONGEST, field)
    yield from _at_most(note, LONGEST_NOTE, "message")


def _at_most(text: str, length: int, path: str) -> Iterator[Cause]:
    if len(text.encode()) > length:
        yield invalid(path, "", f"can have at most {length} characters")


def _series(event: Object) -> Iterator[Cause]:
    series = event.get("series")
    if series is None:
        return
    if series.get("count", 0) < FEWEST_IN_SERIES:
        yield invalid("series.count", "", "should be at least 2")
    if not series.get("lastObservedTime"):
        yield required("series.lastObservedTime")


def event_update(old: Object, new: Object) -> Iterator[Cause]:
    for field, called in FIXED:
        yield from unchanged(old.get(field), new.get(field), called)
