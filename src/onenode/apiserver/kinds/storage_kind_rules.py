"""The kinds of storage.k8s.io: what each must say, and what of it may change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.kinds.volume_rules import inline_volume
from onenode.apiserver.kinds.volume_source_validation_rules import token_life
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
from onenode.apiserver.schema.field_rules import (
    driver_name,
    named,
    named_well,
    not_negative_quantity,
    one_of,
    repeated_places,
    unchanged,
    without,
)

Object = Mapping[str, Any]

MOST_PARAMETERS: Final = 512
MOST_PARAMETER_BYTES: Final = 256 * 1024
MOST_ERROR_BYTES: Final = 1024
LONGEST_NODE_ID: Final = 256
SHORTEST_UPDATE_PERIOD: Final = 10
MOST_INT32: Final = 2**31 - 1
BINDING_MODES: Final = ("Immediate", "WaitForFirstConsumer")
GROUP_POLICIES: Final = ("File", "None", "ReadWriteOnceWithFSType")
ONE_SOURCE: Final = "must specify exactly one of inlineVolumeSpec and persistentVolumeName"


def storage_class(given: Object) -> Iterator[Cause]:
    yield from named(lambda name: name_rules.label_key(name.lower()), given.get("provisioner"), "provisioner")
    yield from _parameters(given.get("parameters", {}), "parameters")
    yield from one_of(given.get("reclaimPolicy"), ("Delete", "Retain"), "reclaimPolicy")
    yield from one_of(given.get("volumeBindingMode"), BINDING_MODES, "volumeBindingMode")
    yield from _topologies(given.get("allowedTopologies", []))


def _parameters(parameters: Mapping[str, str], path: str) -> Iterator[Cause]:
    if len(parameters) > MOST_PARAMETERS:
        yield too_long(path, MOST_PARAMETERS)
        return
    if "" in parameters:
        yield invalid(path, "", "field can not be empty.")
    if sum(len(key.encode()) + len(value.encode()) for key, value in parameters.items()) > MOST_PARAMETER_BYTES:
        yield too_long(path, MOST_PARAMETER_BYTES)


def _topologies(terms: Sequence[Object]) -> Iterator[Cause]:
    seen: set[frozenset[tuple[str, frozenset[str]]]] = set()
    for place, term in enumerate(terms):
        path = f"allowedTopologies[{place}].matchLabelExpressions"
        expressions = term.get("matchLabelExpressions", [])
        yield from _expressions(expressions, path)
        values_of = {each.get("key", ""): frozenset(each.get("values", [])) for each in expressions}
        meaning = frozenset(values_of.items())
        if meaning in seen:
            yield duplicate(path, "")
        seen.add(meaning)


def _expressions(expressions: Sequence[Object], path: str) -> Iterator[Cause]:
    keys: set[str] = set()
    for place, expression in enumerate(expressions):
        inner, key, values = f"{path}[{place}]", expression.get("key", ""), expression.get("values", [])
        if not values:
            yield required(f"{inner}.values")
        yield from _repeated(values, f"{inner}.values")
        yield from named_well(name_rules.label_key, key, f"{inner}.key")
        if key in keys:
            yield duplicate(f"{inner}.key", key)
        keys.add(key)


def _repeated(values: Sequence[str], path: str) -> Iterator[Cause]:
    return (duplicate(f"{path}[{place}]", values[place]) for place in repeated_places(values))


def attributes_class(given: Object) -> Iterator[Cause]:
    yield from named(lambda name: name_rules.label_key(name.lower()), given.get("driverName"), "driverName")
    if not given.get("parameters"):
        yield required("parameters", "must contain at least one key/value pair")
    yield from _parameters(given.get("parameters", {}), "parameters")


def attributes_class_update(old: Object, new: Object) -> Iterator[Cause]:
    for field in ("driverName", "parameters"):
        yield from unchanged(old.get(field), new.get(field), field)


def storage_class_update(old: Object, new: Object) -> Iterator[Cause]:
    for field in ("provisioner", "parameters", "reclaimPolicy", "volumeBindingMode"):
        if old.get(field) != new.get(field):
            yield invalid(field, None, "field is immutable")


def csi_driver(given: Object) -> Iterator[Cause]:
    spec = given.get("spec", {})
    yield from one_of(spec.get("fsGroupPolicy"), GROUP_POLICIES, "spec.fsGroupPolicy")
    yield from _tokens(spec.get("tokenRequests", []))
    for mode in spec.get("volumeLifecycleModes", []):
        yield from one_of(mode, ("Persistent", "Ephemeral"), "spec.volumeLifecycleModes")
    period = spec.get("nodeAllocatableUpdatePeriodSeconds", SHORTEST_UPDATE_PERIOD)
    if period < SHORTEST_UPDATE_PERIOD:
        why = "must be greater than or equal to 10 seconds"
        yield invalid("spec.nodeAllocatableUpdatePeriodSeconds", period, why)
    in_secrets = spec.get("serviceAccountTokenInSecrets")
    if in_secrets is not None and not spec.get("tokenRequests"):
        why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified"
        yield invalid("spec.serviceAccountTokenInSecrets", in_secrets, why)


def _tokens(requests: Sequence[Object]) -> Iterator[Cause]:
    audiences: set[str] = set()
    for place, request in enumerate(requests):
        path, audience = f"spec.tokenRequests[{place}]", request.get("audience", "")
        if audience in audiences:
            yield duplicate(f"{path}.audience", audience)
            continue
        audiences.add(audience)
        if "expirationSeconds" in request:
            yield from token_life(request["expirationSeconds"], f"{path}.expirationSeconds")


def csi_driver_update(old: Object, new: Object) -> Iterator[Cause]:
    before, after = old.get("spec", {}), new.get("spec", {})
    # Kubernetes names the first field so.
    yield from unchanged(before.get("attachRequired"), after.get("attachRequired"), "spec.attachedRequired")
    modes = "volumeLifecycleModes"
    yield from unchanged(before.get(modes), after.get(modes), f"spec.{modes}")


def csi_node(given: Object) -> Iterator[Cause]:
    names: set[str] = set()
    for place, driver in enumerate(given.get("spec", {}).get("drivers", [])):
        path, name = f"spec.drivers[{place}]", driver.get("name", "")
        yield from _node_driver(driver, path)
        if name in names:
            yield duplicate(f"{path}.name", name)
        names.add(name)


def _node_driver(driver: Object, path: str) -> Iterator[Cause]:
    yield from driver_name(driver.get("name"), f"{path}.name")
    node_id = driver.get("nodeID", "")
    if not node_id:
        yield required(f"{path}.nodeID")
    if len(node_id.encode()) > LONGEST_NODE_ID:
        yield invalid(f"{path}.nodeID", node_id, f"must be {LONGEST_NODE_ID} characters or less")
    count = driver.get("allocatable", {}).get("count", 0)
    if count < 0:
        yield invalid(f"{path}.allocatable.count", count, "must be greater than or equal to 0")
    keys = driver.get("topologyKeys", [])
    repeated = frozenset(repeated_places(keys))
    for place, key in enumerate(keys):
        if not key:
            yield required(path)
        if place in repeated:
            yield duplicate(path, key)
        yield from named_well(name_rules.label_key, key, path)


def csi_node_update(old: Object, new: Object) -> Iterator[Cause]:
    """A driver's entry may come and go; while it is there, only its limit may change."""
    before = {driver.get("name"): driver for driver in old.get("spec", {}).get("drivers", [])}
    for driver in new.get("spec", {}).get("drivers", []):
        if driver.get("name") in before:
            was, is_ = (without(each, ["allocatable"]) for each in (before[driver.get("name")], driver))
            yield from unchanged(was, is_, "spec.drivers")


def volume_attachment(given: Object) -> Iterator[Cause]:
    spec = given.get("spec", {})
    yield from driver_name(spec.get("attacher"), "spec.attacher")
    yield from _attached_source(spec.get("source", {}), "spec.source")
    yield from named_well(name_rules.dns_subdomain, spec.get("nodeName", ""), "spec.nodeName")
    yield from attachment_status(given, given)


def _attached_source(source: Object, path: str) -> Iterator[Cause]:
    name, inline = source.get("persistentVolumeName"), source.get("inlineVolumeSpec")
    if name is None and inline is None:
        yield required(path, ONE_SOURCE)
    elif name is not None and inline is not None:
        yield forbidden(path, ONE_SOURCE)
    elif inline is not None:
        yield from inline_volume(inline, f"{path}.inlineVolumeSpec")
    if name == "":
        yield required(f"{path}.persistentVolumeName", "must specify non empty persistentVolumeName")
    if name is not None:
        yield from named_well(name_rules.dns_subdomain, name, f"{path}.persistentVolumeName")


def attachment_status(_old: Object, new: Object) -> Iterator[Cause]:
    status = new.get("status", {})
    metadata = status.get("attachmentMetadata", {})
    if sum(len(key.encode()) + len(value.encode()) for key, value in metadata.items()) > MOST_PARAMETER_BYTES:
        yield too_long("status.attachmentMetadata", MOST_PARAMETER_BYTES)
    for field in ("attachError", "detachError"):
        error, path = status.get(field, {}), f"status.{field}"
        if len(error.get("message", "").encode()) > MOST_ERROR_BYTES:
            yield too_long(f"{path}.message", MOST_ERROR_BYTES)
        if error.get("errorCode", 0) < 0:
            yield invalid(f"{path}.errorCode", error["errorCode"], f"must be between 0 and {MOST_INT32}, inclusive")


def volume_attachment_update(old: Object, new: Object) -> Iterator[Cause]:
    if old.get("spec") != new.get("spec"):
        yield invalid("spec", None, "field is immutable")


def storage_capacity(given: Object) -> Iterator[Cause]:
    yield from named_well(name_rules.dns_subdomain, given.get("storageClassName", ""), "storageClassName")
    if "capacity" in given:
        yield from not_negative_quantity(given["capacity"], "capacity")


def storage_capacity_update(old: Object, new: Object) -> Iterator[Cause]:
    for field in ("nodeTopology", "storageClassName"):
        yield from unchanged(old.get(field), new.get(field), field)


def csi_node_status(_old: Object, new: Object) -> Iterator[Cause]:
    names: set[str] = set()
    for place, health in enumerate(new.get("status", {}).get("storageHealth", [])):
        path, name = f"status.storageHealth[{place}]", health.get("name", "")
        if name in names:
            yield duplicate(path, name)
        names.add(name)
        yield from driver_name(name, f"{path}.name")
        for at, condition in enumerate(health.get("healthConditions", [])):
            yield from _health(condition, f"{path}.healthConditions[{at}]")


def _health(condition: Object, path: str) -> Iterator[Cause]:
    supported = ("StorageDegraded", "StorageUnreachable")
    if condition.get("status") not in supported:
        yield not_supported(f"{path}.status", condition.get("status", ""), supported)
    yield from named(name_rules.condition_reason, condition.get("reason"), f"{path}.reason")
