"""Format static volumes as text, and as values for JSON and YAML."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from orlop.admin.static.static_changes import StaticVolumes
from orlop.admin.static.static_list_rules import StaticRow
from orlop.admin.static.static_release_rules import ForgetPlan, HandBackPlan, ReleasePlan
from orlop.cli.tables import escaped_table, properties, size_text, states_table
from orlop.records.provisioner_status import DeleteStatus

HEAD: Final = ("VOLUME", "NODE", "CLASS", "DISK", "SIZE", "STATE", "CLAIM", "WIPE")
WIDE_HEAD: Final = (*HEAD, "MODE", "IDENTITY", "WHY")
BAR_CELLS: Final = 20
HUNDRED: Final = 100


def static_table(rows: Sequence[StaticRow], *, wide: bool) -> str:
    head = WIDE_HEAD if wide else HEAD
    return states_table(head, [(*_cells(row), *(_more_cells(row) if wide else ())) for row in rows], "STATE")


def _cells(row: StaticRow) -> tuple[str, ...]:
    where = (row.name, row.node, row.storage_class, row.entry)
    return (*where, size_text(row.capacity), row.state, row.claim, wipe_text(row.status))


def _more_cells(row: StaticRow) -> tuple[str, ...]:
    identity = row.listed.identity if row.listed is not None else row.volume.identity if row.volume is not None else ""
    return row.volume_mode, identity, row.why


def wipe_text(status: DeleteStatus | None) -> str:
    """Return a bar with the percentage of a wipe; the message of one that failed is shown elsewhere."""
    return "" if status is None else f"{progress_bar(status.progress)} {status.progress}%"


def progress_bar(percentage: int) -> str:
    done = BAR_CELLS * max(0, min(HUNDRED, percentage)) // HUNDRED
    return f"[{'#' * done}{'.' * (BAR_CELLS - done)}]"


def static_details(row: StaticRow) -> str:
    """Return everything that is known of a disk and its volume."""
    volume, status = row.volume, row.status
    lines = {
        "Volume": row.name if volume is not None else "",
        "State": row.state,
        **({"Why": row.why} if row.why else {}),
        "Node": row.node,
        "Class": row.storage_class,
        "Disk": row.entry,
        "Path": volume.path if volume is not None else "",
        "Size": f"{size_text(row.capacity)} ({row.capacity} bytes)",
        "Mode": row.volume_mode,
        "Listed": "yes" if row.listed is not None else "no",
        "File system": row.listed.file_system if row.listed is not None else "",
        "Identity": row.listed.identity if row.listed is not None else "",
        "Claim": row.claim,
        "Reclaim policy": volume.policy if volume is not None else "",
    }
    if volume is not None and volume.identity and row.listed is not None and volume.identity != row.listed.identity:
        lines["Was offered on"] = volume.identity
    parts = [properties(lines)]
    if status is not None:
        parts.append(properties(_wipe_lines(status)))
    return "\n\n".join(parts)


def _wipe_lines(status: DeleteStatus) -> dict[str, str]:
    total = f" of {size_text(status.bytes_total)}" if status.bytes_total else ""
    return {
        "Wipe": f"{status.state} {wipe_text(status)}",
        "How": status.method,
        "Written": f"{size_text(status.bytes_done)}{total}" if status.bytes_done else "",
        "Attempts": str(status.attempts),
        "Began": status.start_time,
        "Ended": status.end_time,
        "Next attempt": status.next_attempt_time,
        "Message": status.message,
    }


def problems_table(seen: StaticVolumes, nodes: Sequence[str]) -> str:
    """Return what is in the folders and cannot be offered; empty if nothing is."""
    rows = [
        (each.report.node, problem.storage_class, problem.entry, problem.reason, problem.message)
        for each in seen.nodes
        if not nodes or each.report.node in nodes
        for problem in each.problems
    ]
    return escaped_table(("NODE", "CLASS", "ENTRY", "PROBLEM", "WHY"), rows) if rows else ""


def static_value(row: StaticRow) -> Mapping[str, Any]:
    """Return a row for programs."""
    volume = row.volume
    return {
        "name": row.name,
        "node": row.node,
        "storageClass": row.storage_class,
        "entry": row.entry,
        "path": volume.path if volume is not None else None,
        "bytes": row.capacity,
        "volumeMode": row.volume_mode,
        "state": row.state,
        "why": row.why or None,
        "phase": volume.phase if volume is not None else None,
        "claim": row.claim or None,
        "reclaimPolicy": volume.policy if volume is not None else None,
        "listed": msgspec.to_builtins(row.listed) if row.listed is not None else None,
        "wipe": msgspec.to_builtins(row.status) if row.status is not None else None,
    }


def release_value(plan: ReleasePlan) -> Mapping[str, Any]:
    return {**static_value(plan.row), "release": plan.how, "whyNot": plan.why_not or None}


def plan_value(plan: ForgetPlan | HandBackPlan) -> Mapping[str, Any]:
    claims = {"claims": list(plan.claims)} if isinstance(plan, ForgetPlan) else {}
    return {"node": plan.node, "whyNot": plan.why_not or None, "volumes": [row.name for row in plan.volumes], **claims}
