"""Explain what a claim waits for that names no volume yet: a volume, a class, a pod, or a provisioner. Pure.

In the order of Kubernetes' PersistentVolume controller: a volume that fits, the default class, a pod for a late-binding
class, then a provisioner.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from orlop.admin.claim_seen import ClaimSeen, pods_naming
from orlop.admin.explain_drives import with_drives
from orlop.admin.explanation import (
    IF_NOT_BOUND,
    ApiObject,
    Finding,
    ago,
    is_unreadable,
    joined,
    unknown,
)
from orlop.admin.provisioner_outlook import ProvisionerOutlook
from orlop.admin.shell_commands import explain_command
from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.match_rules import mismatches, volume_for_binder
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.binding.storage_protection_rules import node_of
from orlop.binding.topology_rules import (
    NoTopology,
    SelectedNode,
    TopologyDecision,
    TopologyMode,
    late_topology,
    topology_keys,
)
from orlop.kube import objects
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, POD, STORAGE_CLASS, VOLUME_ATTRIBUTES_CLASS
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.clone_rules import (
    NoSource,
    SourceDecision,
    SourceRefused,
    data_source,
    decide_source,
    source_claim_name,
)
from orlop.sidecars.provisioner.volume_order_rules import (
    CAPABILITIES_ASSUMED,
    LeaveClaim,
    OrderFacts,
    PlaceOrder,
    RefuseClaim,
    ReturnToScheduler,
    decide_without_driver,
)

MOST_ROWS: Final = 10
ENDED: Final = frozenset({"Succeeded", "Failed"})
PROVISIONING_FAILED: Final = "ProvisioningFailed"
"""The reason of a provisioner's events about its failures."""


def explain_search(seen: ClaimSeen, now: datetime) -> Finding:
    finding = _search(seen, now)
    return finding if seen.drives is None else with_drives(finding, seen.claim, seen.storage_class, seen.drives)


def _search(seen: ClaimSeen, now: datetime) -> Finding:
    claim, storage_class = seen.claim, seen.storage_class
    is_class_unknown = is_unreadable(seen.unreadable, STORAGE_CLASS) and storage_class is None
    is_late = class_rules.is_late_binding(storage_class)
    chosen = volume_for_binder(claim, seen.volumes, is_late_binding=is_late)
    if chosen is not None and not (is_class_unknown and state.class_name(claim)):
        sentence = f"the PersistentVolume {objects.name(chosen)} fits, and is bound to it in a moment."
        return Finding("Binding", sentence, f"Nothing to do. {IF_NOT_BOUND}", fields={"chosen": objects.name(chosen)})
    if (name := class_rules.class_to_assign(claim, seen.classes)) is not None:
        sentence = f"it names no StorageClass, and gets the default one, {name}, in a moment."
        return Finding("GetsDefaultClass", sentence, f"Nothing to do. {IF_NOT_BOUND}", fields={"defaultClass": name})
    depends_on_class = bool(state.class_name(claim)) or not state.has_class(claim)
    if is_class_unknown and depends_on_class and not state.provisioner_of(claim):
        return _class_unknown(seen)
    # The binder checks only that the key is present; the provisioner reads its value.
    if is_late and state.SELECTED_NODE not in objects.annotations(claim):
        return _late(seen, now)
    if state.class_name(claim):
        return _of_class(seen, now)
    return _without_class(seen)


def _class_unknown(seen: ClaimSeen) -> Finding:
    name = state.class_name(seen.claim)
    what = f"the StorageClass {name}" if name else "the default StorageClass"
    return Finding(
        "Unknown",
        f"what it waits for depends on {what}: {unknown(seen.unreadable, STORAGE_CLASS)}.",
        "Read the last event of the claim, or ask somebody who may read StorageClasses.",
    )


# ---- no class, or one that provisions nothing ------------------------------------------------------------------------


def _without_class(seen: ClaimSeen) -> Finding:
    if state.has_class(seen.claim):
        sentence = "it asks for a volume without a StorageClass (storageClassName is empty), and no such volume fits."
        to_do = "Create a PersistentVolume without storageClassName that fits, or create the claim again with a class."
        return _nothing_fits("NoVolumeFits", sentence, to_do, seen)
    sentence = "it names no StorageClass, there is no default one, and no PersistentVolume without a class fits."
    to_do = (
        'Mark a class as the default (the annotation storageclass.kubernetes.io/is-default-class: "true"), which the '
        "claim then gets, or create the claim again with storageClassName."
    )
    return _nothing_fits("NoClass", sentence, to_do, seen)


def _nothing_fits(code: str, sentence: str, to_do: str, seen: ClaimSeen) -> Finding:
    if is_unreadable(seen.unreadable, PERSISTENT_VOLUME):
        missing = unknown(seen.unreadable, PERSISTENT_VOLUME)
        return Finding(code, f"{sentence} Which volumes there are is unknown: {missing}.", to_do)
    table = nearest_volumes(seen)
    fields = {"nearest": [dict(row) for row in table], "persistentVolumes": len(seen.volumes)}
    counted = f" The nearest PersistentVolumes, of {len(seen.volumes)} in all, are below." if table else ""
    return Finding(code, f"{sentence}{counted or ' There is no PersistentVolume at all.'}", to_do, None, fields, table)


def nearest_volumes(seen: ClaimSeen) -> tuple[Mapping[str, str], ...]:
    """Return the volumes that miss the claim by the fewest reasons, each with the first of them."""
    reasons = {objects.name(volume): mismatches(seen.claim, volume) for volume in seen.volumes}
    nearest = sorted(seen.volumes, key=lambda volume: (len(reasons[objects.name(volume)]), objects.name(volume)))
    return tuple(_row(volume, reasons[objects.name(volume)], seen) for volume in nearest[:MOST_ROWS])


def _row(volume: ApiObject, reasons: list[str], seen: ClaimSeen) -> Mapping[str, str]:
    size = state.capacity(volume)
    return {
        "persistentVolume": objects.name(volume),
        "capacity": "" if size is None else str(size),
        "storageClass": state.class_name(volume),
        "accessModes": ", ".join(sorted(state.access_modes(volume))),
        "why": reasons[0] if reasons else f"fits{_on_nodes(volume, seen)}",
    }


def _on_nodes(volume: ApiObject, seen: ClaimSeen) -> str:
    if is_unreadable(seen.unreadable, NODE) or not seen.nodes:
        return ""
    allowed = [objects.name(node) for node in seen.nodes if volume_allows_node(volume, objects.labels(node))]
    return f", on {joined(allowed)}" if allowed else ", but its node affinity allows no node that exists"


# ---- late binding ----------------------------------------------------------------------------------------------------


def _late(seen: ClaimSeen, now: datetime) -> Finding:
    name = state.class_name(seen.claim)
    late = f"its StorageClass {name} binds only for a pod ({class_rules.LATE_BINDING})"
    if is_unreadable(seen.unreadable, POD):
        sentence = f"{late}, and {unknown(seen.unreadable, POD)}."
        return Finding("Unknown", sentence, "Read the last event of the claim, which names the pods it waits for.")
    pods = [pod for pod in pods_naming(seen) if state.phase(pod) not in ENDED]
    waiting = [pod for pod in pods if not node_of(pod)]
    if waiting:
        return _with_candidates(_with_failure(_unscheduled(late, waiting, now), seen, now), seen)
    if pods:
        return _preset_node(late, pods)
    sentence = f"{late}, and no pod uses it."
    return _with_candidates(Finding("WaitsForFirstConsumer", sentence, "Create a pod that uses the claim."), seen)


def _unscheduled(late: str, waiting: list[ApiObject], now: datetime) -> Finding:
    """Explain by the first pod why it has no node. The scheduler writes that into its condition PodScheduled."""
    condition = objects.condition(waiting[0], "PodScheduled") or {}
    since, name = condition.get("lastTransitionTime"), objects.name(waiting[0])
    message = condition.get("message") or condition.get("reason")
    more = f" {len(waiting) - 1} more pods that use it wait too." if len(waiting) > 1 else ""
    if condition.get("status") == "False" and message:
        sentence = (
            f"{late}, and its pod {name} could not be scheduled{ago(since, now)}: {message}{_stop(message)}{more}"
        )
        to_do = f"Remove what keeps the pod {name} from its node; the claim is bound with it."
    else:
        sentence = f"{late}, and its pod {name} is not scheduled yet.{more}"
        to_do = f"If this lasts, no scheduler runs, or none of the name that the pod {name} has in spec.schedulerName."
    names = [objects.name(pod) for pod in waiting]
    fields = {"waitingPods": names, "podScheduled": message or None, "unschedulableSince": since}
    return Finding("WaitsForPodScheduled", sentence, to_do, fields=fields)


def _with_failure(finding: Finding, seen: ClaimSeen, now: datetime) -> Finding:
    """Name a recent failure of provisioning as the next thing to fix: after a final one, the pod loses its node."""
    driver = class_rules.provisioner(seen.storage_class or {})
    if not class_rules.can_provision(seen.storage_class or {}) or driver != seen.provisioner.driver:
        return finding
    outlook = ProvisionerOutlook.on(seen.claim, seen.events, PROVISIONING_FAILED, seen.provisioner, now)
    return finding if outlook.current_failure is None else replace(finding, next=outlook.to_do())


def _stop(message: str) -> str:
    return "" if message.endswith(".") else "."


def _preset_node(late: str, pods: list[ApiObject]) -> Finding:
    listed = joined(f"{objects.name(pod)} (on {node_of(pod)})" for pod in pods)
    return Finding(
        "PodHasPresetNode",
        f"{late}, but its pods were created with a node, past the scheduler, which alone chooses a node for the claim: "
        f"{listed}.",
        "Create the pods again without spec.nodeName; to choose a node, use the nodeSelector kubernetes.io/hostname.",
        fields={"podsWithNode": [objects.name(pod) for pod in pods]},
    )


def _with_candidates(finding: Finding, seen: ClaimSeen) -> Finding:
    """Add the nearest volumes where only an existing one will do."""
    if class_rules.can_provision(seen.storage_class or {}) or is_unreadable(seen.unreadable, PERSISTENT_VOLUME):
        return finding
    table = nearest_volumes(seen)
    return replace(finding, fields={**finding.fields, "nearest": [dict(row) for row in table]}, table=table)


# ---- provisioning ----------------------------------------------------------------------------------------------------


def _of_class(seen: ClaimSeen, now: datetime) -> Finding:
    name, storage_class = state.class_name(seen.claim), seen.storage_class
    if storage_class is None and not is_unreadable(seen.unreadable, STORAGE_CLASS):
        sentence = f"its StorageClass {name} does not exist."
        to_do = f"Create the StorageClass {name}, or create the claim again with another class."
        return Finding("ClassMissing", sentence, to_do)
    # A class of an in-tree provisioner that was migrated to a CSI driver: the binder marks the claim for that driver.
    is_marked = bool(state.provisioner_of(seen.claim))
    if storage_class is not None and not class_rules.can_provision(storage_class) and not is_marked:
        provisioner = class_rules.provisioner(storage_class) or "none"
        sentence = f"its StorageClass {name} provisions nothing (provisioner: {provisioner}), and no volume fits."
        to_do = f"Create a PersistentVolume of the class {name} that fits the claim."
        return _nothing_fits("NoVolumeFits", sentence, to_do, seen)
    outlook = ProvisionerOutlook.on(seen.claim, seen.events, PROVISIONING_FAILED, seen.provisioner, now)
    return _provisioned(seen, outlook)


def _provisioned(seen: ClaimSeen, outlook: ProvisionerOutlook) -> Finding:
    claim, driver = seen.claim, outlook.seen.driver
    fields: dict[str, Any] = {"provisioning": outlook.fields()}
    if state.provisioner_of(claim) != driver:
        sentence = f"it is marked for the provisioner of {driver} in a moment."
        return Finding("Marking", sentence, f"Nothing to do. {IF_NOT_BOUND}", fields=fields)
    request = outlook.request_of(objects.uid(claim))
    fields["openRequests"] = [] if request is None else [request.fields()]
    if request is None and (finding := _refused(seen, driver)) is not None:
        return replace(finding, fields={**fields, **finding.fields})
    if outlook.current_failure is not None:
        open_call = "" if request is None else f"{request.sentence(outlook.now)} "
        sentence = f"the provisioner of {driver} tries to create its volume, and fails. {open_call}"
        return Finding("ProvisioningFails", f"{sentence}{outlook.sentences()}".rstrip(), outlook.to_do(), fields=fields)
    if request is not None:
        sentence = f"the provisioner of {driver} has called CreateVolume, and has no final result yet."
        about = f"{sentence} {request.sentence(outlook.now)} {outlook.sentences()}".rstrip()
        return Finding("BeingCreated", about, outlook.to_do(), fields=fields)
    sentence = f"it waits for a volume from the provisioner of {driver}. {outlook.sentences()}".rstrip()
    return Finding("WaitsForProvisioner", sentence, outlook.to_do(), fields=fields)


def _refused(seen: ClaimSeen, driver: str) -> Finding | None:
    """Return why a provisioner creates no volume, by the objects alone; None if nothing in them keeps it from that."""
    if seen.storage_class is None or not class_rules.can_provision(seen.storage_class):
        return None
    node = state.selected_node(seen.claim)
    if node and seen.selected_node is None and not is_unreadable(seen.unreadable, NODE):
        return _node_gone(node)
    source = _source(seen, driver)
    attributes = {} if is_unreadable(seen.unreadable, VOLUME_ATTRIBUTES_CLASS) else seen.attributes_class
    facts = OrderFacts(seen.storage_class, attributes, source, _topology(seen, driver), CAPABILITIES_ASSUMED)
    match decide_without_driver(seen.claim, facts, driver):
        case PlaceOrder():
            return None
        case RefuseClaim(reason):
            return _by_reason(seen, reason, source)
        case ReturnToScheduler(reason):
            sentence = f"its selected node cannot be used: {reason}. The provisioner returns it to the scheduler."
            to_do = "Nothing, if another node may be selected; otherwise change the pod or the class."
            return Finding("ReturnsToScheduler", sentence, to_do, fields={"refusal": reason})
        case LeaveClaim(reason):
            sentence = f"the provisioner of {driver} leaves it alone: {reason}."
            return Finding("LeftToOthers", sentence, "Check that the controller which provides it runs.")


def _by_reason(seen: ClaimSeen, reason: str, source: SourceDecision) -> Finding:
    fields = {"refusal": reason}
    reference = data_source(seen.claim) or {}
    if isinstance(source, SourceRefused) and (not source_claim_name(seen.claim) or reference.get("namespace")):
        sentence = f"`orlop provisioner` refuses it: {reason}. csi-provisioner may support it."
        to_do = "Read the last event of the claim to see which of them runs, and what it reports."
        return Finding("ProvisionerRefuses", sentence, to_do, fields=fields)
    sentence = f"its provisioner refuses it: {reason}."
    if isinstance(source, SourceRefused):
        # Most sources are refused for a moment only: the provisioner retries, and the source may be bound by then.
        command = explain_command("pvc", ObjectName(objects.namespace(seen.claim), source_claim_name(seen.claim)))
        to_do = f"Correct the claim that it is cloned from, which {command} explains, or create this one again."
        return Finding("ProvisionerRefuses", sentence, to_do, fields=fields)
    name = objects.name(seen.storage_class or {})
    to_do = f"Delete the claim or the StorageClass {name}, and create it again with correct values."
    return Finding("ProvisionerRefuses", sentence, to_do, fields=fields)


def _node_gone(node: str) -> Finding:
    sentence = f"the scheduler selected the node {node} for it, and this node does not exist any more."
    to_do = (
        "A provisioner with topology returns it to the scheduler. If it stays so, remove the annotation "
        f"{state.SELECTED_NODE} from the claim: the scheduler then selects another node."
    )
    return Finding("SelectedNodeGone", sentence, to_do, fields={"selectedNodeExists": False})


def _source(seen: ClaimSeen, driver: str) -> SourceDecision:
    # A source whose volume may not be read could be anything: only what is known can be refused.
    if seen.source_volume is None and is_unreadable(seen.unreadable, PERSISTENT_VOLUME):
        return NoSource()
    return decide_source(seen.claim, seen.source_claim, seen.source_volume, driver, CAPABILITIES_ASSUMED)


def _topology(seen: ClaimSeen, driver: str) -> TopologyDecision:
    node, csi_node = seen.selected_node, seen.csi_node
    # Whether the driver has topology at all is known from its capabilities alone, and they cannot be read here.
    if node is None or csi_node is None or not topology_keys(csi_node, driver):
        return NoTopology("not known")
    allowed = class_rules.allowed_topologies(seen.storage_class or {})
    selected = SelectedNode(objects.name(node), node, csi_node)
    return late_topology(driver, selected, allowed, (node,), TopologyMode())
