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
    wanted: str, retained: Collection[str], live: Collection[str], given_back: Collection[str] = ()
) -> Meant | NotMeant:
    """By a volume id, or the beginning of one if there is no other. `given_back` are live ones without any target."""
    if wanted in retained:
        return Meant(wanted)
    found = sorted(each for each in retained if wanted and each.startswith(wanted))
    if len(found) == 1:
        return Meant(found[0])
    if found:
        return NotMeant("wrong-use", _several(wanted, found))
    alive = sorted(each for each in live if wanted and each.startswith(wanted))
    if alive and alive[0] in given_back:
        return NotMeant(
            "refused",
            f"The volume {alive[0]} was given back by its pod, and something still has it mounted: it is retained as "
            "soon as nothing does.",
        )
    if alive:
        return NotMeant(
            "refused",
            f"The volume {alive[0]} belongs to a pod that lives: nothing can be done with its folder here. "
            "Look into it by the pod itself.",
        )
    return NotMeant(
        "not-found",
        f"No folder of a volume {wanted!r} is retained: it never was here, or it has been erased. "
        "'orlop afterlife list' shows what is.",
    )


def _several(wanted: str, found: list[str]) -> str:
    named, more = found[:CANDIDATES_NAMED], len(found) - CANDIDATES_NAMED
    rest = f" and {more} more" if more > 0 else ""
    return f"{wanted!r} is the beginning of {len(found)} volume ids: {', '.join(named)}{rest}. Give more of it."


# ---- its row ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FolderFacts:
    record: FolderRecord
    burial: Burial
    age: float
    now: float
    """The wall's time."""
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
    """The largest first."""
    by_name: dict[str, NamespaceUsage] = {}
    for folder in folders:
        had = by_name.get(folder.namespace, NamespaceUsage(folder.namespace, 0, 0, 0))
        by_name[folder.namespace] = NamespaceUsage(
            folder.namespace,
            had.folders + 1,
            had.bytes + (folder.bytes_used or 0),
            had.unmeasured + (folder.bytes_used is None),
        )
    return tuple(sorted(by_name.values(), key=lambda usage: (-usage.bytes, -usage.folders, usage.namespace)))


def next_to_go(folders: Collection[RetainedFolder], factor: Fraction) -> tuple[str, Reason] | None:
    """The folder that goes first if the disk stays as it is: what the reaper would decide now, or then."""
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
    """As long as was asked for, or longer."""


@dataclass(frozen=True, slots=True)
class TooLong:
    """`most` are the seconds from now that the admin allows; 0 or less: none at all."""

    most: float


def keep_decision(age: float, lifespan: float, wanted: float, longest: float) -> KeepFor | KeptAlready | TooLong:
    """`wanted` counts from now; `longest`, the admin's limit, from the burial: nobody can keep a folder for ever.

    The lifespan never becomes shorter.
    """
    if age + wanted <= lifespan:
        return KeptAlready()
    if age + wanted > longest:
        return TooLong(longest - age)
    return KeepFor(age + wanted)
