"""Which live folders nobody will ask for any more. Pure.

kubelet does not always unpublish: after a reboot, or when a pod was deleted by force, it may forget a volume. A folder
is an orphan when nothing has it mounted and the pod's own folder has gone from kubelet's directory; after a grace it is
buried, not erased. One that was unpublished from its last target while something still had it mounted waits for
nothing but that.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.records.ephemeral_folder import FolderRecord

POD_DEPTH: Final = 2
"""`pods/<uid>`: what kubelet removes last of a pod."""
POD_TARGET_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class LiveFolder:
    """`pod_is_known`: whether kubelet still has a folder for the pod."""

    volume_id: str
    unpublished: bool
    mounted: bool
    pod_is_known: bool


@dataclass(frozen=True, slots=True)
class Verdict:
    """What to bury now, and since when (elapsed) the others have been orphans."""

    bury: tuple[str, ...]
    orphans_since: Mapping[str, float]


def judge(folders: Iterable[LiveFolder], before: Mapping[str, float], now: float, grace: float) -> Verdict:
    """`before` are the orphans of the last look; one that has been found again begins anew."""
    bury: list[str] = []
    since: dict[str, float] = {}
    for folder in folders:
        if folder.mounted:
            continue
        if folder.unpublished:
            bury.append(folder.volume_id)
        elif not folder.pod_is_known:
            began = before.get(folder.volume_id, now)
            if now - began >= grace:
                bury.append(folder.volume_id)
            else:
                since[folder.volume_id] = began
    return Verdict(tuple(sorted(bury)), since)


def folders_to_look_for(record: FolderRecord) -> frozenset[tuple[str, ...]]:
    """Any of these in kubelet's directory says that the pod is still known: its own folder, or a target's parent."""
    return frozenset(_folder_of(tuple(target.split("/"))) for target in record.targets)


def _folder_of(target: tuple[str, ...]) -> tuple[str, ...]:
    return target[:POD_DEPTH] if len(target) == POD_TARGET_DEPTH and target[0] == "pods" else target[:-1]
