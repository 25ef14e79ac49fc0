"""Format volumes as text, and as values for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from orlop.admin.afterlife_list_rules import short_ids
from orlop.admin.drives.volume_cleaning import CleaningPlan
from orlop.admin.drives.volume_cleaning_rules import DeletePersistentVolume
from orlop.admin.drives.volume_list_rules import VolumeRow
from orlop.cli.drives_format import age_text
from orlop.cli.tables import NOTHING, escaped_table, properties, size_text, states_table
from orlop.kube import objects

HEAD: Final = ("VOLUME", "NODE", "DEVICE", "SIZE", "USED", "STATE", "CLAIM", "POD")
WIDE_HEAD: Final = (*HEAD, "DRIVE", "BACKING", "FS", "MODE", "PERSISTENT VOLUME", "AGE")


def volume_table(rows: Sequence[VolumeRow], names: Iterable[str], now: datetime, *, wide: bool) -> str:
    """Return a table of volumes, their names shortened so that they are unique among `names`."""
    if wide:
        return states_table(WIDE_HEAD, [(*_cells(row, row.name), *_more_cells(row, now)) for row in rows], "STATE")
    shortened = short_ids(names)
    return states_table(HEAD, [_cells(row, shortened.get(row.name, row.name)) for row in rows], "STATE")


def _cells(row: VolumeRow, name: str) -> tuple[str, ...]:
    used = size_text(row.status.used_bytes) if row.status.used_bytes or row.status.used else NOTHING
    pods = row.pods[0] + (f" +{len(row.pods) - 1}" if len(row.pods) > 1 else "") if row.pods else ""
    where = (name, row.spec.node_name, row.place)
    return (*where, size_text(row.spec.bytes), used, row.state, row.claim, pods)


def _more_cells(row: VolumeRow, now: datetime) -> tuple[str, ...]:
    spec = row.spec
    form = (spec.backing, spec.file_system, spec.volume_mode)
    return (spec.drive, *form, spec.persistent_volume, age_text(row.obj, now))


def volume_details(row: VolumeRow, now: datetime) -> str:
    """Return everything that is known of a volume."""
    spec, status = row.spec, row.status
    lines = {
        "Volume": row.name,
        "State": row.state,
        **({"Why": row.why} if row.why else {}),
        "Claim": row.claim,
        "Persistent volume": spec.persistent_volume,
        "Node": spec.node_name,
        "Drive": f"{spec.drive} ({row.place or 'unknown'}, {row.drive.state if row.drive is not None else 'gone'})",
        "Size": f"{size_text(spec.bytes)} ({spec.bytes} bytes)",
        "On the drive": size_text(status.capacity_bytes) if status.capacity_bytes else "",
        "Used": size_text(status.used_bytes) if status.used_bytes or status.used else "",
        "Backing": spec.backing + (", thin" if spec.thin else ""),
        "File system": spec.file_system or ("none (raw block volume)" if spec.volume_mode == "Block" else ""),
        "Staged at": status.staged_path,
        "Age": age_text(row.obj, now),
    }
    parts = [properties(lines)]
    if status.published:
        cells = [
            (f"{each.pod_namespace}/{each.pod_name}", each.pod_uid, "yes" if each.read_only else "no", each.path)
            for each in status.published
        ]
        parts.append(escaped_table(("POD", "POD UID", "READ-ONLY", "PATH"), cells))
    return "\n\n".join(parts)


def volume_value(row: VolumeRow) -> Mapping[str, Any]:
    """Return a volume for programs."""
    spec, status = row.spec, row.status
    return {
        "name": row.name,
        "state": row.state.split(","),
        "message": row.why or None,
        "claim": row.claim or None,
        "pods": list(row.pods),
        "persistentVolume": spec.persistent_volume or None,
        "node": spec.node_name,
        "drive": spec.drive,
        "place": row.place or None,
        "bytes": spec.bytes,
        "usedBytes": status.used_bytes if status.used_bytes or status.used else None,
        "backing": spec.backing,
        "fileSystem": spec.file_system or None,
        "volumeMode": spec.volume_mode,
        "thin": spec.thin,
        "stagedPath": status.staged_path or None,
        "published": [msgspec.to_builtins(each) for each in status.published],
        "created": objects.metadata(row.obj).get("creationTimestamp"),
    }


# ---- cleaning --------------------------------------------------------------------------------------------------------


def cleaning_table(plans: Sequence[CleaningPlan]) -> str:
    head = ("VOLUME", "NODE", "SIZE", "CLAIM", "WHY")
    return escaped_table(head, [_plan_cells(plan) for plan in plans])


def _plan_cells(plan: CleaningPlan) -> tuple[str, ...]:
    row = plan.row
    return (row.name, row.spec.node_name, size_text(row.spec.bytes), row.claim, plan.decision.why)


def plan_value(plan: CleaningPlan) -> Mapping[str, Any]:
    decision = plan.decision
    volume = decision.name if isinstance(decision, DeletePersistentVolume) else None
    return {"name": plan.row.name, "clean": not plan.is_kept, "why": decision.why, "persistentVolume": volume}
