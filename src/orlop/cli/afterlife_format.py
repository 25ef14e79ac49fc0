"""Format retained folders and their files as text, and as values for JSON and YAML. Pure.

Every text that a tenant could have chosen (file names, unverified pod names) is escaped, so that it can neither control
the terminal nor forge a line.
"""

from __future__ import annotations

import base64
import math
import stat
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from orlop.admin.afterlife_list_rules import short_ids
from orlop.cli.output import harmless
from orlop.cli.tables import NOTHING, escaped, size_text, span_text, table
from orlop.records.afterlife_report import FileRow, FolderRow, NextErase, UsageReport

_KINDS: Final = {
    "a folder": "d",
    "a symbolic link": "l",
    "a file": "-",
    "a fifo": "p",
    "a socket": "s",
    "a device": "c",
}


def escaped_bytes(name: bytes) -> str:
    return escaped(name.decode(errors="surrogateescape"))


def content_text(entries: int, size: int) -> str:
    """Return a text such as `3 entries, 1.2Gi`."""
    amount = size_text(size) if size >= 1024 else f"{size} {'byte' if size == 1 else 'bytes'}"  # noqa: PLR2004 - from there on it has a suffix
    return f"{entries} {'entry' if entries == 1 else 'entries'}, {amount}"


def time_text(seconds: float) -> str:
    try:
        return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (ValueError, OverflowError, OSError):  # beyond the year 9999: practically without an end
        return "9999-12-31T23:59:59Z"


def erased_text(row: FolderRow) -> str:
    return f"in {span_text(math.ceil(row.erased_in_seconds))}" if row.erased_in_seconds > 0 else "overdue"


def deleted_text(row: FolderRow) -> str:
    return f"{span_text(row.age_seconds)} ago"


def pod_text(row: FolderRow) -> str:
    """Return a pod such as `shop/cart-0`; its uid if the name is unknown."""
    if row.pod:
        return f"{escaped(row.namespace)}/{escaped(row.pod)}"
    return f"the pod {escaped(row.pod_uid)}" if row.pod_uid else "an unknown pod"


# ---- tables ----------------------------------------------------------------------------------------------------------


def folder_table(rows: Sequence[FolderRow], all_ids: Iterable[str], *, wide: bool = False) -> str:
    """Return a table of folders. Ids are shortened so that they are unique among `all_ids`."""
    if wide:
        return table(_WIDE_HEAD, [_wide_cells(row) for row in rows])
    short = short_ids(all_ids)
    return table(_HEAD, [_cells(row, short.get(row.volume_id, row.volume_id)) for row in rows])


_HEAD: Final = ("POD", "NAMESPACE", "VOLUME", "NAME", "SIZE", "DELETED", "ERASED")
_WIDE_HEAD: Final = (*_HEAD, "LIFESPAN", "POD UID", "SERVICE ACCOUNT", "READERS")


def _cells(row: FolderRow, volume: str) -> tuple[str, ...]:
    pod = (escaped(row.pod) or NOTHING, escaped(row.namespace) or NOTHING)
    names = (*pod, volume, escaped(row.volume_name) or NOTHING)
    return (*names, size_text(row.bytes_used), deleted_text(row), erased_text(row))


def _wide_cells(row: FolderRow) -> tuple[str, ...]:
    more = (span_text(row.lifespan_seconds), escaped(row.pod_uid) or NOTHING, escaped(row.service_account) or NOTHING)
    return (*_cells(row, row.volume_id), *more, str(row.readers))


def file_table(rows: Sequence[FileRow]) -> str:
    lines = [_file_cells(row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)][:-1]
    return "\n".join(_aligned(line, widths) for line in lines)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    mode, owner, size, modified, name = cells
    return f"{mode:<{widths[0]}}  {owner:<{widths[1]}}  {size:>{widths[2]}}  {modified:<{widths[3]}}  {name}"


def _file_cells(row: FileRow) -> tuple[str, ...]:
    mode = _KINDS.get(row.kind, "?") + stat.filemode(row.mode)[1:]
    link = f" -> {escaped_bytes(row.link)}" if row.link is not None else ""
    modified = time_text(row.modified_ns / 1e9) if 0 <= row.modified_ns < _TOO_LATE else NOTHING
    return mode, f"{row.uid}:{row.gid}", str(row.size), modified, escaped_bytes(row.name) + link


_TOO_LATE: Final = 253_402_300_800 * 10**9  # the year 10000: tenants can set any time


def details(row: FolderRow) -> str:
    """Return all fields of one folder, one per line."""
    limit = size_text(row.size_limit) if row.size_limit else "none"
    lines = {
        "Volume": row.volume_id,
        "Name": escaped(row.volume_name) or NOTHING,
        "Path": escaped(row.path) or NOTHING,
        "Pod": f"{escaped(row.pod) or NOTHING} (uid {escaped(row.pod_uid) or NOTHING})",
        "Namespace": escaped(row.namespace) or NOTHING,
        "Service account": escaped(row.service_account) or NOTHING,
        "Identity": "confirmed by kubelet" if row.verified else "from the request; not confirmed by kubelet",
        "Size": size_text(row.bytes_used),
        "Size limit": limit,
        "Inode limit": str(row.inode_limit or "none"),
        "Mode": f"{row.mode:04o}",
        "Mount options": escaped(",".join(row.mount_options)) or NOTHING,
        "Created": time_text(row.created_at),
        "Deleted": f"{time_text(row.deleted_at)} ({deleted_text(row)})",
        "Lifespan": span_text(row.lifespan_seconds),
        "Erased": f"{time_text(row.erased_at)} ({erased_text(row)})",
        "Being read by": str(row.readers or "nobody"),
        **({"Not erased yet": harmless(row.trouble)} if row.trouble else {}),
    }
    return "\n".join(f"{name + ':':<17}{value}" for name, value in lines.items())


def usage_text(usage: UsageReport) -> str:
    free = _share(usage.free_bytes, usage.total_bytes)
    disk = f"{size_text(usage.free_bytes)} of {size_text(usage.total_bytes)} free ({free})"
    inodes = f", {_share(usage.free_inodes, usage.total_inodes)} of inodes" if usage.total_inodes else ""
    lines = [
        f"Disk:      {disk}{inodes}",
        f"Headroom:  {usage.headroom:.0%}: {usage.headroom_why}",
        f"Factor:    {_factor_text(usage.factor)}",
        f"Limit:     at most {span_text(usage.max_afterlifespan_seconds)} after the pod was deleted",
        f"Next:      {_next_text(usage.next_erase)}",
    ]
    if not usage.namespaces:
        return "\n".join([*lines, "", "No folder is retained."])
    rows = [
        (escaped(each.namespace) or NOTHING, str(each.folders), _measured_text(each.bytes, each.unmeasured))
        for each in usage.namespaces
    ]
    return "\n".join([*lines, "", table(("NAMESPACE", "FOLDERS", "SIZE"), rows)])


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.0%}" if whole else NOTHING


def _factor_text(factor: float) -> str:
    return "1: lifespans are not shortened" if factor == 1 else f"{factor:.2f}: less is free than the headroom"


def _next_text(next_erase: NextErase | None) -> str:
    if next_erase is None:
        return "nothing"
    row = next_erase.row
    return f"{row.volume_id} of {pod_text(row)}, {erased_text(row)} ({next_erase.reason})"


def _measured_text(size: int, unmeasured: int) -> str:
    return f"{size_text(size)} and {unmeasured} not measured yet" if unmeasured else size_text(size)


# ---- for programs ----------------------------------------------------------------------------------------------------


def folder_value(row: FolderRow) -> Mapping[str, Any]:
    return {
        "volumeId": row.volume_id,
        "volumeName": row.volume_name,
        "path": row.path,
        "pod": row.pod,
        "namespace": row.namespace,
        "podUid": row.pod_uid,
        "serviceAccount": row.service_account,
        "verified": row.verified,
        "bytes": row.bytes_used,
        "createdAt": time_text(row.created_at),
        "deletedAt": time_text(row.deleted_at),
        "erasedAt": time_text(row.erased_at),
        "ageSeconds": round(row.age_seconds, 3),
        "lifespanSeconds": row.lifespan_seconds,
        "erasedInSeconds": round(row.erased_in_seconds, 3),
        "sizeLimit": row.size_limit,
        "inodeLimit": row.inode_limit,
        "mode": f"{row.mode:04o}",
        "mountOptions": list(row.mount_options),
        "readers": row.readers,
        "trouble": row.trouble,
    }


def file_value(row: FileRow) -> Mapping[str, Any]:
    """Return a file for JSON. A name that is not UTF-8 appears twice: readable, and exact as `nameBase64`."""
    value: dict[str, Any] = {
        **_name_value("name", row.name),
        "kind": row.kind.removeprefix("a "),
        "mode": f"{row.mode:04o}",
        "uid": row.uid,
        "gid": row.gid,
        "size": row.size,
        "modifiedNanoseconds": row.modified_ns,
    }
    return value if row.link is None else {**value, **_name_value("link", row.link)}


def _name_value(key: str, name: bytes) -> dict[str, str]:
    try:
        return {key: name.decode()}
    except UnicodeDecodeError:
        return {key: name.decode(errors="replace"), f"{key}Base64": base64.b64encode(name).decode()}


def usage_value(usage: UsageReport) -> Mapping[str, Any]:
    return {
        "namespaces": [
            {"namespace": e.namespace, "folders": e.folders, "bytes": e.bytes, "unmeasured": e.unmeasured}
            for e in usage.namespaces
        ],
        "totalBytes": usage.total_bytes,
        "freeBytes": usage.free_bytes,
        "totalInodes": usage.total_inodes,
        "freeInodes": usage.free_inodes,
        "headroom": usage.headroom,
        "headroomWhy": usage.headroom_why,
        "factor": usage.factor,
        "maxAfterlifespanSeconds": usage.max_afterlifespan_seconds,
        "next": _next_value(usage.next_erase),
    }


def _next_value(next_erase: NextErase | None) -> Mapping[str, Any] | None:
    return None if next_erase is None else {**folder_value(next_erase.row), "reason": next_erase.reason}
