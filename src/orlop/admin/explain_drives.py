"""Explain which drive could take the volume of a claim, and the state of the drive that has a volume. Pure.

The choice is made by the controller's own rule, on the drives as they are now. The state of a drive and of a volume is
what its node wrote last: it is old if the node is away.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from orlop.admin.drives.drive_list_rules import DriveRow, read_drive_row
from orlop.admin.drives.volume_list_rules import VolumeRow, volume_rows
from orlop.admin.explanation import ApiObject, Explanation, Finding, ago, lasting
from orlop.admin.volume_seen import DriveSeen
from orlop.binding import claim_state_rules as state
from orlop.binding import class_rules
from orlop.binding.topology_rules import NoTopology, flattened, why_too_many_terms
from orlop.csi.error_codes import CsiError
from orlop.driver.persistent.drive_choice_rules import (
    Chosen,
    DriveFacts,
    DriveTest,
    HeldByDrive,
    NoDrive,
    NoSuchSize,
    choose_drive,
    failed_tests,
)
from orlop.driver.persistent.reservation_rules import read_drive
from orlop.driver.persistent.volume_request_rules import WantedTopology, WantedVolume, wanted_volume
from orlop.foundation.quantity import Quantity
from orlop.kube import objects
from orlop.records.cluster_objects import DRIVER_NAME
from orlop.records.volume_context import TOPOLOGY_NODE
from orlop.sidecars.provisioner.clone_rules import NoSource
from orlop.sidecars.provisioner.create_request_rules import MULTI_WRITER, create_request
from orlop.sidecars.provisioner.volume_order_rules import (
    CAPABILITIES_ASSUMED,
    OrderFacts,
    PlaceOrder,
    RefuseClaim,
    decide_without_driver,
)

MOST_ROWS: Final = 10
NO_DRIVE_FITS: Final = "NoDriveFits"
WAITING: Final = frozenset(
    {"WaitsForFirstConsumer", "WaitsForPodScheduled", "Marking", "WaitsForProvisioner", "ProvisioningFails"}
)
"""The states of a claim in which it matters whether a drive fits."""
TO_DO: Final = {
    "Lost": "Put its disk or folder back: the drive is used again at once. If the disk is in another machine now, "
    "`orlop drives adopt` takes it over there. If it is broken for good: `orlop drives forget {drive}` gives its "
    "volumes up, and shows what to delete.",
    "Error": "Remove the cause, which `orlop drives info {drive}` shows: the drive is used again at once, after an I/O "
    "error as soon as no pod uses its volumes (delete those pods).",
    "Repairing": "Wait until its file system is repaired.",
    "Removing": "Delete the claims of its volumes: it is being taken out of use.",
    "Unknown": "Check that `orlop node` runs on the node {node}.",
}


# ---- a claim that waits ----------------------------------------------------------------------------------------------


def with_drives(
    finding: Finding, claim: ApiObject, storage_class: ApiObject | None, drives: Sequence[ApiObject]
) -> Finding:
    """Add to the finding about a waiting claim which drive would be chosen now, or why none."""
    if finding.state not in WAITING or storage_class is None or class_rules.provisioner(storage_class) != DRIVER_NAME:
        return finding
    wanted = _wanted(claim, storage_class)
    if isinstance(wanted, str):
        sentence = f"{finding.sentence} No drive could ever take it: {wanted}."
        to_do = "Delete the claim or its StorageClass, and create it again with correct values."
        return _no_drive(finding, sentence, to_do, wanted, ())
    facts = [drive for obj in drives if (drive := _facts(obj)) is not None]
    match choose_drive(wanted, facts):
        case Chosen(drive=drive) | HeldByDrive(drive=drive):
            place = f"the drive {drive.name} of the node {drive.node_name}"
            fields = {"drive": drive.name, "node": drive.node_name, "drives": len(facts)}
            sentence = f"{finding.sentence} It fits on {place}."
            return replace(finding, sentence=sentence, fields={**finding.fields, "choice": fields})
        case NoSuchSize(why):
            to_do = "Create the claim again with a smaller size, or make a larger drive."
            return _no_drive(finding, f"{finding.sentence} No drive is large enough: {why}.", to_do, why, ())
        case NoDrive(why):
            return _refused_by_all(finding, wanted, facts, why)


def _refused_by_all(finding: Finding, wanted: WantedVolume, facts: Sequence[DriveFacts], why: str) -> Finding:
    elsewhere = choose_drive(replace(wanted, topology=WantedTopology()), facts)
    if isinstance(elsewhere, Chosen):
        there = f"The drive {elsewhere.drive.name} of the node {elsewhere.drive.node_name} could take it"
        to_do = f"{there}: let the pod run on that node, or make room on the nodes where it may run."
    else:
        to_do = "Make room: delete volumes, uncordon a drive, or make another one (`orlop drives discover`)."
    rows = _nearest(wanted, facts)
    return _no_drive(finding, f"{finding.sentence} On the drives as they are now, {why}.", to_do, why, rows)


def _no_drive(finding: Finding, sentence: str, to_do: str, why: str, rows: tuple[Mapping[str, str], ...]) -> Finding:
    fields = {**finding.fields, "choice": {"drive": None, "why": why}, "waiting": finding.state}
    return Finding(NO_DRIVE_FITS, sentence, to_do, finding.since, {**fields, "nearest": list(rows)}, rows)


def _wanted(claim: ApiObject, storage_class: ApiObject) -> WantedVolume | str:
    """Return the volume that the provisioner would ask for, or why the driver refuses it."""
    # Ask as for a class with immediate binding: the node is added below, from the claim or the class.
    immediate_class = {name: value for name, value in storage_class.items() if name != "volumeBindingMode"}
    facts = OrderFacts(immediate_class, None, NoSource(), NoTopology("asked without one"), CAPABILITIES_ASSUMED)
    decision = decide_without_driver(claim, facts, DRIVER_NAME)
    if not isinstance(decision, PlaceOrder):
        return decision.reason if isinstance(decision, RefuseClaim) else "it is left to others"
    try:
        wanted = wanted_volume(create_request(decision.order, frozenset({MULTI_WRITER}), {}))
    except CsiError as error:
        return str(error)
    topologies = class_rules.allowed_topologies(storage_class)
    if (refusal := why_too_many_terms(topologies)) is not None:
        return refusal
    node = state.selected_node(claim)
    requisite = ({TOPOLOGY_NODE: node},) if node else tuple(dict(term) for term in flattened(topologies))
    return replace(wanted, topology=WantedTopology(requisite=requisite))


def _facts(obj: ApiObject) -> DriveFacts | None:
    try:
        return read_drive(obj)
    except ValueError:
        return None


def _nearest(wanted: WantedVolume, facts: Sequence[DriveFacts]) -> tuple[Mapping[str, str], ...]:
    """Return the drives that fail the latest test, the emptiest first."""
    order = list(DriveTest)
    tested = [(drive, test) for drive, test in zip(facts, failed_tests(wanted, facts), strict=True) if test is not None]
    tested.sort(key=lambda each: (-order.index(each[1]), -each[0].free, each[0].name))
    return tuple(
        {
            "drive": drive.name,
            "node": drive.node_name,
            "free": str(Quantity.of(max(0, drive.free))),
            "tier": drive.tier,
            "why": _WHY[test],
        }
        for drive, test in tested[:MOST_ROWS]
    )


_WHY: Final = {
    DriveTest.READY: "not Ready",
    DriveTest.CORDONED: "cordoned",
    DriveTest.REMOVING: "being removed",
    DriveTest.LIST: "too many volumes",
    DriveTest.FORM: "cannot hold the backing or file system",
    DriveTest.CAPACITY: "too little free space",
    DriveTest.TIER: "another tier",
    DriveTest.SELECTOR: "does not match the drive selector",
    DriveTest.CLAIM_ID: "has a volume of the same volume-claim-id",
    DriveTest.TOPOLOGY: "on a node that is not allowed",
}


# ---- a volume on a drive ---------------------------------------------------------------------------------------------


def with_its_drive(finding: Finding, seen: DriveSeen, name: str, now: datetime) -> Finding:
    """Add the drive of a volume, with its state. `name` is that of the PersistentVolume."""
    if not seen.is_known:
        return finding
    row = _row(seen)
    if row is None:
        sentence = f"{finding.sentence} No Volume object describes it."
        to_do = f"`orlop adopt` makes the object again, if the data of {name} are on a drive."
        return replace(finding, sentence=sentence, next=to_do, fields={**finding.fields, "driveVolume": None})
    sentence, to_do = _about(row, seen, now)
    fields = {**finding.fields, "driveVolume": _fields(row), "nodeIsReady": _is_ready(seen.node)}
    if to_do and finding.state != "Bound":
        to_do = f"{finding.next} {to_do}"
    return replace(finding, sentence=f"{finding.sentence} {sentence}", next=to_do or finding.next, fields=fields)


def explain_left_volume(seen: DriveSeen, name: str, now: datetime) -> Explanation | None:
    """Explain a PersistentVolume that is gone, by the Volume object that is left of it; None if there is none."""
    row = _row(seen)
    if row is None:
        return None
    since = objects.metadata(row.obj).get("deletionTimestamp")
    about, trouble = _about(row, seen, now)
    if row.is_deleted:
        code, shown = "Erasing", f"Deleted{lasting(since, now)}: its data is erased by the node {row.spec.node_name}"
        to_do = trouble or "Nothing to do: its space returns when the data is erased."
        if row.status.message:
            about = f"{about} {row.status.message}"
        if row.is_in_use:
            to_do = "Delete the pods that use it: nothing that is mounted is erased."
    else:
        code, shown = "Left", "Left: no PersistentVolume names its data"
        to_do = f"`orlop adopt` makes its PersistentVolume again; `orlop volumes clean {name}` deletes it for good."
    what = f"The PersistentVolume {name} does not exist any more. Its volume{_created(row, now)} is left."
    fields = {"name": name, "state": code, "driveVolume": _fields(row), "nodeIsReady": _is_ready(seen.node)}
    return Explanation(what, f"{shown}. {about}", (), to_do, fields)


def _created(row: VolumeRow, now: datetime) -> str:
    created = ago(objects.metadata(row.obj).get("creationTimestamp"), now)
    return f", created{created}," if created else ""


def _row(seen: DriveSeen) -> VolumeRow | None:
    drives: list[DriveRow] = []
    if seen.drive is not None:
        try:
            drives = [read_drive_row(seen.drive)]
        except ValueError:
            drives = []
    rows = volume_rows([seen.volume] if seen.volume is not None else [], drives)
    return rows[0] if rows else None


def _about(row: VolumeRow, seen: DriveSeen, now: datetime) -> tuple[str, str]:
    """Return sentences about the volume, its drive and its node, and what to do; "" if nothing."""
    name, drive = row.spec.node_name, row.drive
    if drive is None:
        sentence = f"Its drive {row.spec.drive} has no object any more."
        return sentence, f"`orlop drives adopt --node {name}` makes it again, if the disk is there."
    place = f" ({drive.place})" if drive.place else ""
    message = f": {drive.status.message.rstrip('.')}" if drive.status.message else ""
    sentences = [f"It is on the drive {drive.name}{place} of the node {name}, which is {drive.state}{message}."]
    to_do = TO_DO.get(drive.base_state, "").format(drive=drive.name, node=name)
    if row.is_abnormal and row.status.condition is not None:
        sentences.append(f"The volume is abnormal: {row.status.condition.message.rstrip('.')}.")
        to_do = to_do or "Read the log of `orlop node` on that node, and check the disk."
    if (away := _away(seen, name, now)) is not None:
        sentences.append(away)
        to_do = f"Bring the node {name} back: what is on its drives can be used and erased only there."
    return " ".join(sentences), to_do


def _away(seen: DriveSeen, name: str, now: datetime) -> str | None:
    node = seen.node
    if node is None and not seen.is_node_known:
        return None
    if node is None:
        return f"The node {name} does not exist in the cluster: this is what it wrote last."
    condition = objects.condition(node, "Ready") or {}
    if condition.get("status") in {None, "True"}:
        return None
    since = lasting(condition.get("lastTransitionTime"), now)
    return f"The node {name} is not Ready{since}: this is what it wrote last."


def _is_ready(node: ApiObject | None) -> bool | None:
    if node is None:
        return None
    return (objects.condition(node, "Ready") or {}).get("status") in {None, "True"}


def _fields(row: VolumeRow) -> Mapping[str, Any]:
    return {
        "name": row.name,
        "state": row.state.split(","),
        "drive": row.spec.drive,
        "node": row.spec.node_name,
        "driveState": row.drive.base_state if row.drive is not None else None,
        "driveMessage": (row.drive.status.message or None) if row.drive is not None else None,
    }
