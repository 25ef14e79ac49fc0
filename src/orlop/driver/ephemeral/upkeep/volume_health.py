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
from orlop.driver.kubelet_calls import UNSAFE_PATH_ERRORS
from orlop.host.folders.project_strays import StrayCount
from orlop.host.host_errors import HostError
from orlop.host.node_host import NodeHost
from orlop.records.ephemeral_folder import FolderRecord

HealthErrorType = csi_pb2.VolumeHealthErrorType
HealthEntry = csi_pb2.VolumeHealth.VolumeHealthEntry


class Target(Enum):
    """What is mounted at a target of the volume."""

    THE_VOLUME = "the volume"
    NOTHING = "nothing"
    SOMETHING_ELSE = "something else"


@dataclass(frozen=True, slots=True)
class LeftQuota:
    """Files that do not count under the volume's project number."""

    files: int
    bytes: int
    such_as: str


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """The facts about one published volume. Each trouble is a sentence, or None."""

    disk_trouble: str | None = None
    """Why the disk cannot be read."""
    is_missing: bool = False
    """The volume's folder is not in the working directory."""
    targets: tuple[tuple[str, Target], ...] = ()
    no_changes: str | None = None
    """Why the disk refuses changes."""
    no_quota: str | None = None
    """Why the volume's limits are not enforced."""
    left_quota: LeftQuota | None = None


def troubles(facts: VolumeFacts) -> list[HealthEntry]:
    """Return health entries, the worst first; empty if nothing is wrong."""
    if facts.is_missing:
        return [HealthEntry(status=HealthErrorType.DATA_LOSS, reason="FolderMissing", message=MISSING)]
    if facts.disk_trouble is not None:
        return [HealthEntry(status=HealthErrorType.INACCESSIBLE, reason="DiskFailing", message=facts.disk_trouble)]
    return [*_at_targets(facts), *_degraded(facts)]


MISSING = "The volume's folder was removed from the working directory. Delete the pod; a new pod gets a new folder."


def _at_targets(facts: VolumeFacts) -> list[HealthEntry]:
    sentences = {
        "NotMounted": (Target.NOTHING, "The volume is not mounted at {}. kubelet mounts it when it restarts the pod."),
        "OtherMount": (Target.SOMETHING_ELSE, "Something else is mounted at {}. Unmount it, or delete the pod."),
    }
    entries = []
    for reason, (kind, sentence) in sentences.items():
        paths = [path for path, target in facts.targets if target is kind]
        if paths:
            message = sentence.format(" and ".join(paths))
            entries.append(HealthEntry(status=HealthErrorType.INACCESSIBLE, reason=reason, message=message))
    return entries


def _degraded(facts: VolumeFacts) -> list[HealthEntry]:
    messages = [
        ("DiskTakesNoChanges", facts.no_changes),
        ("QuotaNotEnforced", facts.no_quota),
        ("QuotaLeft", _left_message(facts.left_quota) if facts.left_quota is not None else None),
    ]
    return [
        HealthEntry(status=HealthErrorType.DEGRADED, reason=reason, message=text)
        for reason, text in messages
        if text is not None
    ]


def _left_message(quota: LeftQuota) -> str:
    files = "1 file has" if quota.files == 1 else f"{quota.files} files have"
    return (
        f"{files} another project than the volume, such as {quota.such_as[:200]!r}: {quota.bytes} bytes are not "
        "counted by the volume's quota. Only a process of the pod can have done this; with hostUsers: false it cannot."
    )


class VolumeHealth:
    def __init__(self, host: NodeHost, escapes: Mapping[str, StrayCount]) -> None:
        """Create it. `escapes` are the strays that `QuotaWatch` reports, by volume."""
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._escapes = escapes

    def troubles(self, record: FolderRecord, targets: tuple[str, ...]) -> list[HealthEntry]:
        try:
            return troubles(self._facts(record, targets))
        except HostError as error:
            return troubles(VolumeFacts(disk_trouble=str(error)))

    def _facts(self, record: FolderRecord, targets: tuple[str, ...]) -> VolumeFacts:
        if not self._exists(record.volume_id):
            return VolumeFacts(is_missing=True)
        return VolumeFacts(
            targets=tuple((target, self._at(target, record.volume_id)) for target in targets),
            no_changes=self._workdir.why_not_writable(),
            no_quota=self._workdir.why_no_quota() if record.project else None,
            left_quota=self._left_quota(record.volume_id),
        )

    def _left_quota(self, volume_id: str) -> LeftQuota | None:
        strays = self._escapes.get(volume_id)
        return LeftQuota(strays.count, strays.bytes, strays.first) if strays is not None else None

    def _exists(self, volume_id: str) -> bool:
        try:
            self._workdir.identity(live_place(volume_id))
        except HostError as error:
            if error.errno == errno.ENOENT or error.errno in UNSAFE_PATH_ERRORS:
                return False
            raise
        return True

    def _at(self, target: str, volume_id: str) -> Target:
        try:
            mounted = self._kubelet_dir.mounted_at(tuple(target.split("/")))
        except HostError as error:
            if error.errno in UNSAFE_PATH_ERRORS:
                return Target.NOTHING
            raise
        if mounted is None:
            return Target.NOTHING
        if mounted.is_failed:
            raise HostError(errno.EIO, f"The file system at {target} has failed; the kernel's log (dmesg) shows why.")
        is_ours = self._workdir.is_shown_by(live_place(volume_id), mounted.root)
        return Target.THE_VOLUME if is_ours else Target.SOMETHING_ELSE


# ---- usage -----------------------------------------------------------------------------------------------------------

UsageEntry = csi_pb2.VolumeUsage


@dataclass(frozen=True, slots=True)
class Filling:
    """Usage in bytes, or in inodes. `used` and `limit` are the volume's; None if unknown or unlimited."""

    used: int | None
    limit: int | None
    disk_total: int
    disk_free: int


def volume_usage(of_bytes: Filling, of_inodes: Filling) -> list[csi_pb2.VolumeUsage]:
    """Return the usage for kubelet.

    The size of a volume with limits is its limit; available is the smaller of what its limit and the disk have left. A
    volume without limits can use all free space of the disk. If its own usage is unknown, the disk's is reported.
    """
    return [
        UsageEntry(unit=UsageEntry.Unit.BYTES, **_numbers(of_bytes)),
        UsageEntry(unit=UsageEntry.Unit.INODES, **_numbers(of_inodes)),
    ]


def _numbers(filling: Filling) -> dict[str, int]:
    used = filling.used if filling.used is not None else filling.disk_total - filling.disk_free
    if filling.limit is None:
        return {"used": used, "available": filling.disk_free, "total": used + filling.disk_free}
    available = max(0, min(filling.limit - used, filling.disk_free))
    return {"used": used, "available": available, "total": filling.limit}
