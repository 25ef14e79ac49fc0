"""Explain what a static volume waits for: its wipe, an admin's release, its node, or its disk. Pure.

Only a volume that has our finalizer, or whose node has a ProvisionerStatus, is explained here: those of
local-static-provisioner have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from orlop.admin.explanation import ApiObject, Finding, is_unreadable, unknown
from orlop.admin.shell_commands import policy_command
from orlop.admin.volume_seen import VolumeSeen
from orlop.binding import claim_state_rules as state
from orlop.kube import objects
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME
from orlop.records.provisioner_status import PROVISIONER_STATUS, DeleteStatus
from orlop.records.static_policy import STATIC_NAMESPACE
from orlop.static_pv.node_disks_rules import COMPLETE, ERROR, DiskReport, read_node_report
from orlop.static_pv.static_volume_rules import AS_IS, DELETE, RETAIN, StaticVolume, read_static_volume

NO_MASTER: Final = "If this lasts longer than a minute, the master of static volumes does not run."
NO_WORKER: Final = "If this lasts longer than a minute, the worker of static volumes on its node does not run."


@dataclass(frozen=True, slots=True)
class StaticDisk:
    """A static volume, and what is known of its disk and node."""

    facts: StaticVolume
    report: DiskReport | None
    is_report_known: bool
    """Whether `report` is None because there is none that can be read."""
    node_exists: bool
    """Also if that is not known."""

    @property
    def status(self) -> DeleteStatus | None:
        statuses = self.report.statuses if self.report is not None else ()
        return next((each for each in statuses if each.uid == self.facts.uid), None)

    @property
    def is_requested(self) -> bool:
        return self.report is not None and any(each.uid == self.facts.uid for each in self.report.operations)

    @property
    def problem(self) -> tuple[str, str]:
        """Return a word and a sentence for what is wrong with the disk; both empty if nothing is known to be."""
        facts, report = self.facts, self.report
        if not self.node_exists:
            return "NodeLost", f"Its node {facts.node} does not exist."
        if report is None or report.volumes is None:
            if not self.is_report_known or facts.is_being_deleted:
                return "", ""
            return "NodeSilent", f"The node {facts.node} has not listed its disks: no worker runs there."
        listed = next((each for each in report.volumes if each.name == facts.name), None)
        if listed is None and report.is_discovered and not facts.is_being_deleted:
            return "DiskNotListed", f"The node {facts.node} does not list its disk {facts.path} any more."
        if listed is not None and facts.identity and listed.identity and facts.identity != listed.identity:
            return "DiskReplaced", f"Another disk is at {facts.path}: {listed.identity}, and it was {facts.identity}."
        return "", ""

    @property
    def fields(self) -> Mapping[str, Any]:
        status = self.status
        return {
            "staticVolume": {
                "node": self.facts.node,
                "path": self.facts.path,
                "problem": self.problem[0] or None,
                "wipe": (status.state if status is not None else "Requested") if self.is_requested else None,
                "progress": status.progress if status is not None else None,
                "attempts": status.attempts if status is not None else None,
                "everBound": self.facts.was_ever_bound,
                "release": self.facts.release or None,
            }
        }


def static_disk(seen: VolumeSeen) -> StaticDisk | None:
    """Return the disk of a static volume of ours; None for other volumes."""
    facts = read_static_volume(seen.volume)
    if facts is None:
        return None
    report, is_readable = _report(seen.disk_reports, facts.node)
    if not facts.has_finalizer and report is None:
        return None
    is_known = is_readable and not is_unreadable(seen.unreadable, PROVISIONER_STATUS)
    node_exists = is_unreadable(seen.unreadable, NODE) or any(objects.name(each) == facts.node for each in seen.nodes)
    return StaticDisk(facts, report, is_known, node_exists)


def _report(reports: tuple[ApiObject, ...], node: str) -> tuple[DiskReport | None, bool]:
    # One of another namespace may be written by others than our workers.
    trusted_first = sorted(reports, key=lambda each: objects.namespace(each) != STATIC_NAMESPACE)
    own = next((each for each in trusted_first if objects.name(each) == node), None)
    try:
        return (read_node_report(own) if own is not None else None), True
    except ValueError:
        # Written by a newer version, or by hand.
        return None, False


def explain_static_volume(seen: VolumeSeen) -> Finding | None:
    """Return what a released or deleted static volume waits for; None for others, also for one that a claim keeps."""
    disk = static_disk(seen)
    if disk is None:
        return None
    facts = disk.facts
    if facts.is_being_deleted:
        # First the claim has to go, and then the protection controller removes its finalizer.
        is_kept = state.PV_PROTECTION in facts.finalizers or facts.is_bound or not facts.has_finalizer
        finding = None if is_kept else _terminating(seen, disk)
    else:
        finding = _released(disk) if facts.is_released else None
    if finding is None:
        return None
    since = objects.metadata(seen.volume).get("deletionTimestamp") if facts.is_being_deleted else None
    return replace(finding, since=since, fields={**finding.fields, "finalizers": list(facts.finalizers)})


def with_its_disk(finding: Finding, seen: VolumeSeen) -> Finding:
    """Add what is wrong with the disk of a static volume, and what can be done about it."""
    disk = static_disk(seen)
    if disk is None:
        return finding
    problem, sentence = disk.problem
    fields = {**finding.fields, **disk.fields}
    if not problem:
        return replace(finding, fields=fields)
    # The master withdraws a volume that no claim has had. It needs the worker to know that the disk is gone.
    is_withdrawn = disk.facts.is_untouched and problem != "NodeSilent"
    to_do = f"Nothing to do: it was never bound, and is deleted. {NO_MASTER}" if is_withdrawn else _TO_DO[problem]
    to_do = to_do.format(node=disk.facts.node)
    return replace(finding, sentence=f"{finding.sentence} {sentence}", next=to_do, fields=fields)


_TO_DO: Final = {
    "NodeLost": "If the node comes back under its name, its volumes are used again. If it is gone for good: "
    "`orlop static forget {node}`.",
    "NodeSilent": "Start the worker of static volumes on {node}.",
    "DiskNotListed": "Mount or link the disk on {node} where it was. If it is broken for good, delete its claim and "
    "the volume.",
    "DiskReplaced": "Put the former disk back, or delete the claim and the volume: the disk that is there is not wiped "
    "for it.",
}


# ---- released --------------------------------------------------------------------------------------------------------


def _released(disk: StaticDisk) -> Finding | None:
    facts = disk.facts
    if facts.policy == DELETE:
        keep = policy_command(PERSISTENT_VOLUME, facts.name, RETAIN)
        return Finding(
            "WaitsForWipe",
            f"its claim {facts.claim} is gone. The master of static volumes deletes it, its disk {facts.path} on "
            f"{facts.node} is wiped, and then offered again.",
            f"To keep the data, set the policy Retain at once: {keep}. Otherwise nothing. {NO_MASTER}",
        )
    if facts.policy == RETAIN:
        return Finding(
            "Released",
            f"its claim {facts.claim} is gone, and its policy Retain keeps it until an admin decides.",
            _release(facts),
            fields={"commands": _release_commands(facts)},
        )
    return None


def _release(facts: StaticVolume) -> str:
    commands = _release_commands(facts)
    return (
        f"To have its disk wiped and offered again: `{commands['wipe']}`. To offer it with its data, which the next "
        f"claim can read: `{commands['asIs']}`."
    )


def _release_commands(facts: StaticVolume) -> dict[str, str]:
    release = f"orlop static release {facts.name}"
    return {"wipe": f"{release} --wipe", "asIs": f"{release} --as-is"}


# ---- being deleted ---------------------------------------------------------------------------------------------------


def _terminating(seen: VolumeSeen, disk: StaticDisk) -> Finding:
    """Return what a volume waits for that our finalizer keeps. The order is that of `master_rules`."""
    facts, status = disk.facts, disk.status
    if disk.is_requested or facts.is_wipe_decided:
        return _wiping(disk, status) if disk.is_requested and status is not None else _to_be_wiped(seen, disk)
    if facts.was_ever_bound and not facts.release and facts.policy != DELETE:
        sentence = f"it was used, and its policy {facts.policy} keeps its disk until an admin decides."
        return Finding("Retained", sentence, _release(facts), fields={"commands": _release_commands(facts)})
    if facts.was_ever_bound and facts.release != AS_IS:
        return Finding("WaitsForWipe", f"{_disk(facts)} is wiped before it goes.", f"Nothing to do. {NO_MASTER}")
    why = "it is released as it is" if facts.was_ever_bound else "it was never bound"
    return Finding("BeingDeleted", f"{why}: its master removes its finalizer.", f"Nothing to do. {NO_MASTER}")


def _disk(facts: StaticVolume) -> str:
    return f"its disk {facts.path} on {facts.node}"


def _to_be_wiped(seen: VolumeSeen, disk: StaticDisk) -> Finding:
    sentence = f"{_disk(disk.facts)} is to be wiped"
    if disk.is_requested:
        return Finding("WipeRequested", f"{sentence} by its node.", f"Nothing to do. {NO_WORKER}")
    if disk.is_report_known:
        return Finding("WipeRequested", f"{sentence}.", f"Nothing to do. {NO_MASTER}")
    unreadable = is_unreadable(seen.unreadable, PROVISIONER_STATUS)
    missing = unknown(seen.unreadable, PROVISIONER_STATUS) if unreadable else "its ProvisionerStatus has invalid fields"
    return Finding(
        "WipeRequested",
        f"{sentence}. How far that is is unknown: {missing}.",
        "Ask somebody who may read the ProvisionerStatus of its node.",
    )


def _wiping(disk: StaticDisk, status: DeleteStatus) -> Finding:
    facts = disk.facts
    if status.state == COMPLETE:
        sentence = f"{_disk(facts)} is wiped, and offered again in a moment."
        return Finding("Wiped", sentence, f"Nothing to do. {NO_MASTER}")
    if status.state == ERROR:
        again = f" The next attempt is at {status.next_attempt_time}." if status.next_attempt_time else ""
        return Finding(
            "WipeFails",
            f"attempt {status.attempts} to wipe {_disk(facts)} failed: {status.message.rstrip('.')}.{again}",
            "Remove the cause: the worker tries again. To give the wipe up, and offer the disk with what is left on "
            f"it: `{_release_commands(facts)['asIs']}`.",
        )
    return Finding(
        "Wiping",
        f"{_disk(facts)} is being wiped: {status.progress} % are done.",
        "Nothing to do: `orlop static list` shows the progress.",
    )
