"""What is wrong with a volume, from what was seen of it, in the interface's terms. Pure.

Nothing is said that was not seen: what could not be asked is itself a trouble.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from orlop.csi.proto import csi_pb2

Kind = csi_pb2.VolumeHealthErrorType
Entry = csi_pb2.VolumeHealth.VolumeHealthEntry


class Target(Enum):
    """What is mounted where the volume was published."""

    THE_VOLUME = "the volume"
    NOTHING = "nothing"
    SOMETHING_ELSE = "something else"


@dataclass(frozen=True, slots=True)
class LeftQuota:
    """Files that do not count by the volume's number."""

    files: int
    bytes: int
    such_as: str


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """Each trouble is a sentence, or None."""

    disk_trouble: str | None = None
    """The disk does not answer."""
    is_missing: bool = False
    """Its folder is not in the working directory."""
    targets: tuple[tuple[str, Target], ...] = ()
    no_changes: str | None = None
    """The disk takes none."""
    no_quota: str | None = None
    """It has limits, and they are not enforced."""
    left_quota: LeftQuota | None = None


def troubles(facts: VolumeFacts) -> list[Entry]:
    """The worst first; empty: nothing is known to be wrong."""
    if facts.is_missing:
        return [Entry(status=Kind.DATA_LOSS, reason="FolderMissing", message=MISSING)]
    if facts.disk_trouble is not None:
        return [Entry(status=Kind.INACCESSIBLE, reason="DiskFailing", message=facts.disk_trouble)]
    return [*_at_targets(facts), *_degraded(facts)]


MISSING = "The volume's folder is gone from the working directory. Delete the pod; another one gets a new folder."


def _at_targets(facts: VolumeFacts) -> list[Entry]:
    sentences = {
        "NotMounted": (Target.NOTHING, "The volume is not mounted at {}. kubelet mounts it when it restarts the pod."),
        "OtherMount": (Target.SOMETHING_ELSE, "Something else is mounted at {}. Unmount it, or delete the pod."),
    }
    found = []
    for reason, (seen, sentence) in sentences.items():
        paths = [path for path, target in facts.targets if target is seen]
        if paths:
            message = sentence.format(" and ".join(paths))
            found.append(Entry(status=Kind.INACCESSIBLE, reason=reason, message=message))
    return found


def _degraded(facts: VolumeFacts) -> list[Entry]:
    seen = [
        ("DiskTakesNoChanges", facts.no_changes),
        ("QuotaNotEnforced", facts.no_quota),
        ("QuotaLeft", _left(facts.left_quota) if facts.left_quota is not None else None),
    ]
    return [Entry(status=Kind.DEGRADED, reason=reason, message=told) for reason, told in seen if told is not None]


def _left(left: LeftQuota) -> str:
    files = "1 file was" if left.files == 1 else f"{left.files} files were"
    return (
        f"{files} given another project, such as {left.such_as[:200]!r}: {left.bytes} bytes are not counted by the "
        "volume's quota. Pods with hostUsers: false cannot do that."
    )
