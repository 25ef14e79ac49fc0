"""Format drives and devices as text, and as values for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from orlop.admin.afterlife_list_rules import short_ids
from orlop.admin.drives.device_list_rules import DeviceRow
from orlop.admin.drives.drive_list_rules import DriveRow, NodeTotals
from orlop.admin.drives.drive_requests import NodeReport
from orlop.cli.tables import NOTHING, counted, escaped_table, properties, size_text, span_text, states_table
from orlop.kube import objects
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import RequestResult

SHORTEST_NAME: Final = 8
DRIVE_HEAD: Final = ("DRIVE", "NODE", "DEVICE", "CAPACITY", "FREE", "VOLUMES", "TIER", "STATE")
WIDE_DRIVE_HEAD: Final = (*DRIVE_HEAD, "FS", "BACKINGS", "MODEL", "SERIAL", "LABELS", "AGE")
DEVICE_HEAD: Final = ("DEVICE", "SIZE", "MODEL", "SERIAL", "HOLDS", "USABLE")
WIDE_DEVICE_HEAD: Final = (*DEVICE_HEAD, "PATH", "ROTATIONAL", "FINGERPRINT")


def short_names(names: Iterable[str]) -> Mapping[str, str]:
    return short_ids(names, SHORTEST_NAME)


def drive_table(rows: Sequence[DriveRow], names: Iterable[str], now: datetime, *, wide: bool) -> str:
    """Return a table of drives, their names shortened so that they are unique among `names`."""
    if wide:
        cells = [(*_cells(row, row.name), *_more_cells(row, now)) for row in rows]
        return states_table(WIDE_DRIVE_HEAD, cells, "STATE")
    shortened = short_names(names)
    return states_table(DRIVE_HEAD, [_cells(row, shortened.get(row.name, row.name)) for row in rows], "STATE")


def _cells(row: DriveRow, name: str) -> tuple[str, ...]:
    sizes = (size_text(row.capacity), size_text(max(0, row.free))) if row.capacity else (NOTHING, NOTHING)
    return (name, row.node, row.place, *sizes, str(len(row.spec.allocations)), row.spec.tier, row.state)


def _more_cells(row: DriveRow, now: datetime) -> tuple[str, ...]:
    device = row.status.device
    return (
        row.status.file_system or "",
        ",".join(row.status.backings),
        device.model if device is not None else "",
        device.serial if device is not None else "",
        labels_text(row.labels),
        age_text(row.obj, now),
    )


def labels_text(labels: Mapping[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def age_text(obj: Mapping[str, Any], now: datetime) -> str:
    try:
        created = objects.creation_time(obj)
    except objects.InvalidTime:
        return NOTHING
    return NOTHING if created is None else span_text(max(0.0, (now - created).total_seconds()))


def drive_details(row: DriveRow, now: datetime) -> str:
    """Return everything that is known of a drive."""
    device, status = row.status.device, row.status
    lines = {
        "Drive": row.name,
        "Node": row.node,
        "Type": row.spec.type.value,
        ("Device" if row.spec.type is DriveType.DISK else "Folder"): row.place,
        **({"Model": device.model, "Serial": device.serial, "Size": device.size} if device is not None else {}),
        "State": row.state,
        **({"Why": status.message} if status.message else {}),
        "Tier": row.spec.tier,
        "Capacity": f"{size_text(row.capacity)} ({row.capacity} bytes)",
        "Allocated": f"{size_text(row.allocated)} to {counted(len(row.spec.allocations), 'volume')}",
        "Free": size_text(max(0, row.free)),
        "File system": status.file_system or "",
        "Backings": ", ".join(status.backings),
        "Labels": labels_text(row.labels),
        "Age": age_text(row.obj, now),
    }
    return "\n\n".join([properties(lines), *_detail_tables(row)])


def _detail_tables(row: DriveRow) -> list[str]:
    """Return the tables of a drive that are not empty: its conditions, its allocations, its unrecorded volumes."""
    status, parts = row.status, list[str]()
    if status.conditions:
        conditions = [(each.type, str(each.status), each.reason, each.message) for each in status.conditions]
        parts.append(escaped_table(("CONDITION", "STATUS", "REASON", "MESSAGE"), conditions))
    if row.spec.allocations:
        volumes = [(each.volume, size_text(each.bytes), each.volume_claim_id) for each in row.spec.allocations]
        parts.append(escaped_table(("VOLUME", "RESERVED", "VOLUME CLAIM ID"), volumes))
    if status.unrecorded_volumes:
        unrecorded = [(each.volume, size_text(each.bytes)) for each in status.unrecorded_volumes]
        parts.append(escaped_table(("UNRECORDED VOLUME", "SIZE"), unrecorded))
    return parts


def drive_value(row: DriveRow) -> Mapping[str, Any]:
    """Return a drive for programs."""
    status = row.status
    return {
        "name": row.name,
        "node": row.node,
        "type": row.spec.type.value,
        "place": row.place,
        "device": None if status.device is None else msgspec.to_builtins(status.device),
        "path": status.path or None,
        "state": row.base_state,
        "message": status.message or None,
        "cordoned": row.spec.unschedulable,
        "removing": row.is_removing,
        "tier": row.spec.tier,
        "labels": dict(row.labels),
        "capacityBytes": row.capacity,
        "allocatedBytes": row.allocated,
        "freeBytes": row.free,
        "fileSystem": status.file_system,
        "backings": list(status.backings),
        "allocations": [msgspec.to_builtins(each) for each in row.spec.allocations],
        "unrecordedVolumes": [msgspec.to_builtins(each) for each in status.unrecorded_volumes],
        "allocationsRestored": status.allocations_restored,
        "created": objects.metadata(row.obj).get("creationTimestamp"),
    }


def totals_table(totals: Sequence[NodeTotals]) -> str:
    head = ("NODE", "DRIVES", "READY", "CAPACITY", "ALLOCATED", "FREE", "VOLUMES")
    return escaped_table(head, [_totals_cells(each) for each in totals])


def _totals_cells(totals: NodeTotals) -> tuple[str, ...]:
    counts = (totals.node or "(all)", str(totals.drives), str(totals.ready))
    sizes = (size_text(totals.capacity), size_text(totals.allocated), size_text(max(0, totals.free)))
    return (*counts, *sizes, str(totals.volumes))


def totals_value(totals: NodeTotals) -> Mapping[str, Any]:
    return {
        "node": totals.node or None,
        "drives": totals.drives,
        "ready": totals.ready,
        "capacityBytes": totals.capacity,
        "allocatedBytes": totals.allocated,
        "freeBytes": totals.free,
        "volumes": totals.volumes,
    }


# ---- devices ---------------------------------------------------------------------------------------------------------


def device_table(rows: Sequence[DeviceRow], *, wide: bool) -> str:
    if wide:
        return states_table(
            WIDE_DEVICE_HEAD, [(*_device_cells(row), *_more_device_cells(row)) for row in rows], "USABLE"
        )
    return states_table(DEVICE_HEAD, [_device_cells(row) for row in rows], "USABLE")


def _device_cells(row: DeviceRow) -> tuple[str, ...]:
    device = row.device
    usable = "yes" if row.is_usable else f"no: {row.why_not}"
    if row.is_usable and device.file_system:
        usable = "with --force"
    return (row.word, size_text(device.bytes), device.model, device.serial, device.file_system, usable)


def _more_device_cells(row: DeviceRow) -> tuple[str, ...]:
    return (row.device.path, "yes" if row.device.rotational else "no", row.device.fingerprint)


def device_value(row: DeviceRow) -> Mapping[str, Any]:
    whole = zip(row.device.__struct_encode_fields__, msgspec.structs.astuple(row.device), strict=True)
    return {"node": row.node, **dict(whole), "isUsable": row.is_usable, "whyNot": row.why_not or None}


# ---- requests --------------------------------------------------------------------------------------------------------


def report_value(reports: Sequence[NodeReport]) -> list[Mapping[str, Any]]:
    return [
        {
            "node": report.node,
            "failed": report.failed,
            "message": report.why or None,
            "results": [_result_value(result) for result in report.results],
        }
        for report in reports
    ]


def _result_value(result: RequestResult) -> Mapping[str, Any]:
    return {
        "target": result.target,
        "drive": result.drive or None,
        "message": result.message or None,
        "error": result.error or None,
    }
