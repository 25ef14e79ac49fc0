"""Decide whether a claim is to be provisioned, and build the order for its volume. Pure.

The checks are in upstream's order, so that the same event is recorded for a claim with several faults. All of them come
before the driver is called: a volume that could not become a PersistentVolume must not be created.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.topology_rules import NoTopology, NotPlaceable, RequestedTopology, TopologyDecision
from orlop.kube import objects
from orlop.records.volume_order import ClaimIdentity, ClassTerms, TopologyRequest, VolumeOrder
from orlop.sidecars.provisioner import parameter_rules
from orlop.sidecars.provisioner.clone_rules import Clone, Populated, SourceDecision, SourceRefused
from orlop.sidecars.provisioner.create_request_rules import ACCESS_MODES, LARGEST_SIZE
from orlop.sidecars.provisioner.provisioner_settings import CLONES, CREATES, MODIFIES, ApiObject, ProvisionerSettings

READ_ONLY_MANY: Final = "ReadOnlyMany"
CAPABILITIES_ASSUMED: Final = frozenset({CREATES, CLONES, MODIFIES})
"""For a decision without the driver: a claim that is refused with these is refused whatever the driver can do."""


@dataclass(frozen=True, slots=True)
class OrderFacts:
    """What an order is built from, besides the claim. None for objects that do not exist."""

    storage_class: ApiObject | None
    attributes_class: ApiObject | None
    """The VolumeAttributesClass that the claim names."""
    source: SourceDecision
    topology: TopologyDecision
    capabilities: frozenset[str]
    volume_name: str = ""
    """The name that an open order has already; "" for a new one. Flags may have changed since it was recorded."""


@dataclass(frozen=True, slots=True)
class PlaceOrder:
    order: VolumeOrder


@dataclass(frozen=True, slots=True)
class RefuseClaim:
    """The claim cannot be provisioned now: report it on the claim, and retry."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReturnToScheduler:
    """The selected node cannot be used: remove it from the claim, so that the scheduler selects another."""

    reason: str


@dataclass(frozen=True, slots=True)
class LeaveClaim:
    """Do nothing: another controller provisions the claim, or the scheduler has to act first."""

    reason: str
    announcement: str = ""
    """For an event of the claim, so that its user knows which controller it waits for."""


OrderDecision = PlaceOrder | RefuseClaim | ReturnToScheduler | LeaveClaim


def why_not_wanted(claim: ApiObject, driver: str) -> str | None:
    """Return why this provisioner has nothing to do for the claim; None if it has. Does not consider the class."""
    if state.volume_name(claim):
        return "the claim names a volume"
    if objects.is_being_deleted(claim):
        return "the claim is being deleted"
    if state.provisioner_of(claim) != driver:
        return "the claim is not marked for this driver"
    return None


def volume_name(claim_uid: str, prefix: str, length: int) -> str:
    """Return the name of the claim's PersistentVolume. `length` -1 keeps the uid as it is."""
    if length < 0:
        return f"{prefix}-{claim_uid}"
    return f"{prefix}-{claim_uid.replace('-', '')[:length]}"


def decide_order(  # noqa: PLR0911 - one return for each check
    claim: ApiObject, facts: OrderFacts, settings: ProvisionerSettings
) -> OrderDecision:
    """Decide on a claim for which `why_not_wanted` returns None."""
    if (refusal := _refusal_by_class(claim, facts.storage_class, settings.driver)) is not None:
        return refusal
    if facts.storage_class is None:
        return RefuseClaim(f'storageclass.storage.k8s.io "{state.class_name(claim)}" not found')
    if CREATES not in facts.capabilities:
        return RefuseClaim(f"the driver {settings.driver} cannot create volumes: it lacks the capability {CREATES}")
    if (claim.get("spec") or {}).get("selector") is not None:
        return RefuseClaim("claim Selector is not supported: a provisioned volume has no labels to select by")
    if isinstance(facts.source, Populated):
        reason = f"the data source is a {facts.source.kind}, for which a volume populator provides the volume"
        return LeaveClaim(reason, "Assuming an external populator will provision the volume")
    if isinstance(facts.source, SourceRefused):
        return RefuseClaim(facts.source.reason)
    if isinstance(facts.topology, NotPlaceable):
        reason = facts.topology.reason
        return ReturnToScheduler(reason) if facts.topology.reschedule else RefuseClaim(reason)
    try:
        return PlaceOrder(_order(claim, facts.storage_class, facts, settings))
    except parameter_rules.InvalidParameters as error:
        return RefuseClaim(str(error))


def decide_without_driver(claim: ApiObject, facts: OrderFacts, driver: str) -> OrderDecision:
    """Decide by objects alone, for `orlop explain`. No flag of a provisioner changes whether it refuses a claim."""
    return decide_order(claim, facts, ProvisionerSettings(driver=driver, identity=""))


def _refusal_by_class(
    claim: ApiObject, storage_class: ApiObject | None, driver: str
) -> LeaveClaim | RefuseClaim | None:
    if storage_class is None:
        return None
    provisioner, name = class_rules.provisioner(storage_class), objects.name(storage_class)
    if not provisioner:
        return RefuseClaim(f"the StorageClass {name} names no provisioner: create it again with one")
    if provisioner != driver:
        # The class was replaced since the binder marked the claim for this driver.
        return LeaveClaim(f"the StorageClass {name} is now provisioned by {provisioner}")
    if class_rules.is_late_binding(storage_class) and not state.is_marked_for_late_provisioning(claim):
        return LeaveClaim("the scheduler has not selected a node yet")
    return None


def _order(claim: ApiObject, storage_class: ApiObject, facts: OrderFacts, settings: ProvisionerSettings) -> VolumeOrder:
    uid = objects.uid(claim)
    name = facts.volume_name or volume_name(uid, settings.volume_name_prefix, settings.volume_name_uuid_length)
    parameters = class_rules.parameters(storage_class)
    modes = _access_modes(claim)
    secrets = parameter_rules.secret_references(parameters, name, claim)
    terms = ClassTerms(
        name=state.class_name(claim),
        uid=objects.uid(storage_class),
        parameters=tuple(sorted(parameter_rules.driver_parameters(parameters).items())),
        mutable_parameters=_mutable_parameters(claim, facts, settings.driver),
        mount_options=class_rules.mount_options(storage_class),
        reclaim_policy=class_rules.reclaim_policy(storage_class),
        fs_type=parameter_rules.fs_type(parameters, settings.default_fs_type),
    )
    return VolumeOrder(
        claim=ClaimIdentity(objects.namespace(claim) or "", objects.name(claim), uid),
        volume_name=name,
        size_bytes=_size(claim),
        access_modes=modes,
        storage=terms,
        placement=_placement(facts.topology),
        volume_mode=state.volume_mode(claim),
        attributes_class=state.attributes_class_name(claim),
        selected_node=state.selected_node(claim),
        source_volume_id=facts.source.volume_id if isinstance(facts.source, Clone) else "",
        secrets=tuple(sorted((use.value, reference) for use, reference in secrets.items())),
        claim_metadata=settings.claim_metadata,
        read_only=settings.publish_read_only and modes == (READ_ONLY_MANY,),
    )


def _size(claim: ApiObject) -> int:
    quantity = state.requested_size(claim)
    if quantity is None:
        raise parameter_rules.InvalidParameters("the claim's resources.requests.storage is missing or not a quantity")
    size = quantity.value()
    if not 0 < size <= LARGEST_SIZE:
        raise parameter_rules.InvalidParameters(
            f"the claim requests {size} bytes; a volume has at least 1 and at most {LARGEST_SIZE}"
        )
    return size


def _access_modes(claim: ApiObject) -> tuple[str, ...]:
    listed = (claim.get("spec") or {}).get("accessModes")
    modes = tuple(str(mode) for mode in listed) if isinstance(listed, list | tuple) else ()
    unknown = [mode for mode in modes if mode not in ACCESS_MODES]
    if unknown or not modes:
        raise parameter_rules.InvalidParameters(
            f"the claim has the access modes {', '.join(modes) or 'none'}; known are {', '.join(ACCESS_MODES)}"
        )
    return modes


def _mutable_parameters(claim: ApiObject, facts: OrderFacts, driver: str) -> tuple[tuple[str, str], ...]:
    name = state.attributes_class_name(claim)
    if not name:
        return ()
    if facts.attributes_class is None:
        raise parameter_rules.InvalidParameters(f"the VolumeAttributesClass {name} does not exist or cannot be read")
    if (other := facts.attributes_class.get("driverName")) != driver:
        raise parameter_rules.InvalidParameters(
            f"the VolumeAttributesClass {name} is for the driver {other}, not for {driver}"
        )
    if MODIFIES not in facts.capabilities:
        raise parameter_rules.InvalidParameters(
            f"the claim names the VolumeAttributesClass {name}, and the driver lacks the capability {MODIFIES}"
        )
    return tuple(sorted(class_rules.parameters(facts.attributes_class).items()))


def _placement(topology: TopologyDecision) -> TopologyRequest:
    match topology:
        case RequestedTopology(requisite, preferred):
            return TopologyRequest(requisite, preferred)
        case NoTopology() | NotPlaceable():
            return TopologyRequest()
