"""Check one published volume: its folder, its mounts, its disk and its quota; and report its usage.

`VolumeHealth` gathers facts, which blocks and changes nothing; `troubles` turns them into CSI health entries, and
`volume_usage` measurements into CSI usage. Both are pure. A fact that could not be gathered is itself a trouble.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from orlop.csi.proto import csi_pb2
from orlop.driver.ephemeral.folder_index import live_place
from orlop.driver.ephemeral.publish_sequence import LEADS_ASTRAY
from orlop.host.folders.project_strays import StrayCount
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import FileIdentity
from orlop.host.node_host import NodeHost
from orlop.records.ephemeral_folder import FolderRecord

HealthErrorType = csi_pb2.VolumeHealthErrorType
HealthEntry = csi_pb2.VolumeHealth.VolumeHealthEntry


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


def troubles(facts: VolumeFacts) -> list[HealthEntry]:
    """Return health entries, the worst first; empty: nothing is known to be wrong."""
    if facts.is_missing:
        return [HealthEntry(status=HealthErrorType.DATA_LOSS, reason="FolderMissing", message=MISSING)]
    if facts.disk_trouble is not None:
        return [HealthEntry(status=HealthErrorType.INACCESSIBLE, reason="DiskFailing", message=facts.disk_trouble)]
    return [*_at_targets(facts), *_degraded(facts)]


MISSING = "The volume's folder is gone from the working directory. Delete the pod; another one gets a new folder."


def _at_targets(facts: VolumeFacts) -> list[HealthEntry]:
    sentences = {
        "NotMounted": (Target.NOTHING, "The volume is not mounted at {}. kubelet mounts it when it restarts the pod."),
        "OtherMount": (Target.SOMETHING_ELSE, "Something else is mounted at {}. Unmount it, or delete the pod."),
    }
    found = []
    for reason, (seen, sentence) in sentences.items():
        paths = [path for path, target in facts.targets if target is seen]
        if paths:
            message = sentence.format(" and ".join(paths))
            found.append(HealthEntry(status=HealthErrorType.INACCESSIBLE, reason=reason, message=message))
    return found


def _degraded(facts: VolumeFacts) -> list[HealthEntry]:
    seen = [
        ("DiskTakesNoChanges", facts.no_changes),
        ("QuotaNotEnforced", facts.no_quota),
        ("QuotaLeft", _left(facts.left_quota) if facts.left_quota is not None else None),
    ]
    return [
        HealthEntry(status=HealthErrorType.DEGRADED, reason=reason, message=text)
        for reason, text in seen
        if text is not None
    ]


def _left(left: LeftQuota) -> str:
    files = "1 file was" if left.files == 1 else f"{left.files} files were"
    return (
        f"{files} given another project, such as {left.such_as[:200]!r}: {left.bytes} bytes are not counted by the "
        "volume's quota. Pods with hostUsers: false cannot do that."
    )


class VolumeHealth:
    def __init__(self, host: NodeHost, escapes: Mapping[str, StrayCount]) -> None:
        """`escapes` are what `QuotaWatch` has found, by volume."""
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._escapes = escapes

    def troubles(self, record: FolderRecord, targets: tuple[str, ...]) -> list[HealthEntry]:
        try:
            return troubles(self._facts(record, targets))
        except HostError as error:
            return troubles(VolumeFacts(disk_trouble=str(error)))

    def _facts(self, record: FolderRecord, targets: tuple[str, ...]) -> VolumeFacts:
        folder = self._folder(record.volume_id)
        if folder is None:
            return VolumeFacts(is_missing=True)
        return VolumeFacts(
            targets=tuple((target, self._at(target, folder)) for target in targets),
            no_changes=self._workdir.why_not_writable(),
            no_quota=self._workdir.why_no_quota() if record.project else None,
            left_quota=self._left_quota(record.volume_id),
        )

    def _left_quota(self, volume_id: str) -> LeftQuota | None:
        found = self._escapes.get(volume_id)
        return LeftQuota(found.count, found.bytes, found.first) if found is not None else None

    def _folder(self, volume_id: str) -> FileIdentity | None:
        try:
            return self._workdir.identity(live_place(volume_id))
        except HostError as error:
            if error.errno == errno.ENOENT or error.errno in LEADS_ASTRAY:
                return None
            raise

    def _at(self, target: str, folder: FileIdentity) -> Target:
        try:
            mounted = self._kubelet_dir.mounted_at(tuple(target.split("/")))
        except HostError as error:
            if error.errno in LEADS_ASTRAY:
                return Target.NOTHING
            raise
        if mounted is None:
            return Target.NOTHING
        return Target.THE_VOLUME if mounted.root == folder else Target.SOMETHING_ELSE


# ---- usage -----------------------------------------------------------------------------------------------------------

UsageEntry = csi_pb2.VolumeUsage


@dataclass(frozen=True, slots=True)
class Filling:
    """In bytes, or in inodes. `used` and `limit` are the volume's, None where unknown or unlimited."""

    used: int | None
    limit: int | None
    disk_total: int
    disk_free: int


def volume_usage(of_bytes: Filling, of_inodes: Filling) -> list[csi_pb2.VolumeUsage]:
    """Return the usage for kubelet.

    The size of a volume with limits is its limit, and what is available to it is what both its limit and the disk have
    left. Without limits it may have all that the disk has. Where its own use is unknown, the disk's is reported.
    """
    return [
        UsageEntry(unit=UsageEntry.Unit.BYTES, **_numbers(of_bytes)),
        UsageEntry(unit=UsageEntry.Unit.INODES, **_numbers(of_inodes)),
    ]


def _numbers(filling: Filling) -> dict[str, int]:
    used = filling.used if filling.used is not None else filling.disk_total - filling.disk_free
    if filling.limit is None:
        return {"used": used, "available": filling.disk_free, "total": used + filling.disk_free}
    left = max(0, min(filling.limit - used, filling.disk_free))
    return {"used": used, "available": left, "total": filling.limit}
