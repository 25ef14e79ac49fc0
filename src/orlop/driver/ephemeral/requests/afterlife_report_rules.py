"""Decide the responses to requests about retained folders: which one is meant, its row, how long to keep it. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from orlop.driver.ephemeral.afterlife.retention_rules import Erase, Reason, RetainedFolder, next_step
from orlop.records.afterlife_report import FolderRow, NamespaceUsage, Why
from orlop.records.ephemeral_folder import Burial, FolderRecord

CANDIDATES_NAMED: Final = 5


# ---- which folder is meant -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Meant:
    volume_id: str


@dataclass(frozen=True, slots=True)
class NotMeant:
    why: Why
    sentence: str


def folder_meant(
    typed_id: str, retained: Collection[str], live: Collection[str], unpublished: Collection[str] = ()
) -> Meant | NotMeant:
    """Return the retained volume with this id, or with an id that begins so if it is the only one.

    `unpublished` are the live volumes without any target.
    """
    if typed_id in retained:
        return Meant(typed_id)
    matches = sorted(each for each in retained if typed_id and each.startswith(typed_id))
    if len(matches) == 1:
        return Meant(matches[0])
    if matches:
        return NotMeant("wrong-use", _several(typed_id, matches))
    alive = sorted(each for each in live if typed_id and each.startswith(typed_id))
    if alive and alive[0] in unpublished:
        return NotMeant(
            "refused",
            f"The volume {alive[0]} was unpublished, but something still has it mounted: its folder is retained as "
            "soon as the last mount is gone. Try again then.",
        )
    if alive:
        return NotMeant(
            "refused",
            f"The volume {alive[0]} belongs to a living pod: 'orlop afterlife' works on folders of deleted pods only. "
            "Use 'kubectl exec' in the pod.",
        )
    return NotMeant(
        "not-found",
        f"No folder of a volume {typed_id!r} is retained: it was never on this node, or it has been erased. "
        "'orlop afterlife list' shows the retained folders.",
    )


def _several(typed_id: str, matches: list[str]) -> str:
    named, more = matches[:CANDIDATES_NAMED], len(matches) - CANDIDATES_NAMED
    and_more = f" and {more} more" if more > 0 else ""
    return f"{typed_id!r} is the beginning of {len(matches)} volume ids: {', '.join(named)}{and_more}. Type more of it."


# ---- its row ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderFacts:
    record: FolderRecord
    burial: Burial
    age: float
    now: float
    """Seconds of the wall clock since the epoch."""
    bytes_used: int | None = None
    readers: int = 0
    trouble: str = ""
    path: str = ""


def row_of(facts: FolderFacts, factor: Fraction) -> FolderRow:
    owner, options, lifespan = facts.record.owner, facts.record.options, facts.burial.lifespan_seconds
    time_left = max(0.0, lifespan * float(factor) - facts.age)
    return FolderRow(
        volume_id=facts.burial.volume_id,
        pod=owner.pod_name,
        namespace=owner.namespace,
        deleted_at=facts.burial.buried_at,
        age_seconds=facts.age,
        lifespan_seconds=lifespan,
        erased_in_seconds=time_left,
        erased_at=facts.now + time_left,
        bytes_used=facts.bytes_used,
        pod_uid=owner.pod_uid,
        service_account=owner.service_account,
        verified=owner.verified,
        created_at=facts.record.created_at,
        size_limit=options.size_bytes,
        inode_limit=options.inodes,
        mode=options.mode,
        mount_options=options.mount_options,
        readers=facts.readers,
        trouble=facts.trouble,
        volume_name=facts.record.volume_name,
        path=facts.path,
    )


def usage_by_namespace(folders: Iterable[RetainedFolder]) -> tuple[NamespaceUsage, ...]:
    """Return the usage of each namespace, the largest first."""
    by_name: dict[str, NamespaceUsage] = {}
    for folder in folders:
        so_far = by_name.get(folder.namespace, NamespaceUsage(folder.namespace, 0, 0, 0))
        by_name[folder.namespace] = NamespaceUsage(
            folder.namespace,
            so_far.folders + 1,
            so_far.bytes + (folder.bytes_used or 0),
            so_far.unmeasured + (folder.bytes_used is None),
        )
    return tuple(sorted(by_name.values(), key=lambda usage: (-usage.bytes, -usage.folders, usage.namespace)))


def next_to_go(folders: Collection[RetainedFolder], factor: Fraction) -> tuple[str, Reason] | None:
    """Return the folder that the reaper erases next, now or later, if the disk stays as it is; None without folders."""
    if not folders:
        return None
    match next_step(folders, factor):
        case Erase(name, reason):
            return name, reason
        case _:
            first = min(folders, key=lambda folder: (folder.lifespan * float(factor) - folder.age, folder.name))
            return first.name, Reason.AGE if factor == 1 else Reason.PRESSURE


# ---- keeping it longer -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class KeepFor:
    """A lifespan, in seconds from the burial."""

    lifespan: float


@dataclass(frozen=True, slots=True)
class KeptAlready:
    """The folder is retained for the requested time already, or longer."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """The request exceeds the admin's limit. `most` are the seconds from now that are allowed; 0 or less: none."""

    most: float


def keep_decision(age: float, lifespan: float, requested: float, longest: float) -> KeepFor | KeptAlready | TooLong:
    """Decide the new lifespan of a folder; it never becomes shorter. All values are in seconds.

    `requested` counts from now. `longest`, the admin's limit, counts from the burial: repeated requests cannot keep a
    folder for ever.
    """
    if age + requested <= lifespan:
        return KeptAlready()
    if age + requested > longest:
        return TooLong(longest - age)
    return KeepFor(age + requested)
