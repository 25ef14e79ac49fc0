"""Build the status of a ProvisionerStatus from what the worker observes and does. Pure.

A list that is not known yet is left as it was: an absent list means unknown, an empty one that there are no disks.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from orlop.kube import objects
from orlop.records.api_record import LONGEST_TEXT, part_of
from orlop.records.provisioner_status import (
    CONFIGURATION_VALID,
    DISCOVERED,
    DeleteStatus,
    ProvisionerStatusStatus,
)
from orlop.static_pv.discovery_rules import Discovery
from orlop.static_pv.wipe_rules import ERROR, IN_PROGRESS


@dataclass(frozen=True, slots=True)
class WorkerObservation:
    """What a worker knows of its node."""

    has_configuration: bool
    configuration_fault: str
    discovery: Discovery | None
    """None: no pass was made yet."""


def worker_status(
    obj: Mapping[str, Any],
    observed: WorkerObservation,
    deletions: Mapping[str, DeleteStatus],
    operations: Collection[str],
    now: datetime,
) -> dict[str, Any]:
    """Return the whole status. `deletions` are the entries by uid, `operations` the uids in the spec."""
    before = part_of(obj, "status", ProvisionerStatusStatus)
    discovery = observed.discovery
    volumes = before.local_volumes if discovery is None else discovery.volumes
    status = msgspec.structs.replace(
        before,
        local_volumes=volumes,
        problems=before.problems if discovery is None else discovery.problems,
        delete_statuses=tuple(deletions[uid] for uid in sorted(deletions)),
        observed_generation=objects.generation(obj),
    )
    counts = {
        "disks": len(volumes or ()),
        "requested": sum(uid not in deletions for uid in operations),
        "wiping": sum(each.state == IN_PROGRESS for each in deletions.values()),
        "errors": sum(each.state == ERROR for each in deletions.values()),
    }
    # Write zeros and the empty list too: without them a column would be empty, and the disks unknown.
    known = {"localVolumes": msgspec.to_builtins(volumes)} if volumes is not None else {}
    return {**msgspec.to_builtins(status), **known, **counts, "conditions": _conditions(obj, observed, now)}


def _conditions(obj: Mapping[str, Any], observed: WorkerObservation, now: datetime) -> list[dict[str, Any]]:
    conditions = objects.with_condition(objects.conditions(obj), _configuration_valid(observed), now)
    discovery = observed.discovery
    if discovery is None:
        return conditions
    unread = discovery.unread_classes
    why = " ".join(each.message for each in discovery.problems if not each.entry)
    condition = {
        "type": DISCOVERED,
        "status": "False" if unread else "True",
        "reason": "FolderUnreadable" if unread else "AllFoldersRead",
        "message": why[:LONGEST_TEXT],
    }
    return objects.with_condition(conditions, condition, now)


def _configuration_valid(observed: WorkerObservation) -> dict[str, Any]:
    fault = observed.configuration_fault
    if not fault and not observed.has_configuration:
        return {"type": CONFIGURATION_VALID, "status": "Unknown", "reason": "NotRead", "message": ""}
    kept = " The configuration before is in use." if fault and observed.has_configuration else ""
    return {
        "type": CONFIGURATION_VALID,
        "status": "False" if fault else "True",
        "reason": "Invalid" if fault else "Valid",
        "message": f"{fault}{kept}"[:LONGEST_TEXT],
    }
