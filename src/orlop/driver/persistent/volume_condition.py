"""Check whether a volume on a drive works, for NodeGetVolumeHealth.

`VolumeConditions` gathers facts, which blocks and changes nothing; `faults` turns them into entries, the worst first.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from orlop.csi.error_codes import CsiError
from orlop.csi.proto import csi_pb2
from orlop.driver.persistent.drive_table import DriveTable, OpenDrive
from orlop.driver.persistent.volume_index import VolumeIndex, names_of
from orlop.host.host_errors import HostError
from orlop.host.node_host import KubeletDir
from orlop.host.threads import Threads
from orlop.records.volume_record import VolumeRecord

FaultType = csi_pb2.VolumeHealthErrorType
FaultEntry = csi_pb2.VolumeHealth.VolumeHealthEntry


@dataclass(frozen=True, slots=True)
class ConditionFacts:
    """The facts about one volume. Each trouble is a sentence, or empty."""

    drive_trouble: str = ""
    """Why its drive cannot be used."""
    is_missing: bool = False
    """Its folder or its image is not on the drive."""
    failed_paths: tuple[str, ...] = ()
    """Where its file system is mounted and fails."""
    other_paths: tuple[str, ...] = ()
    """Where nothing is mounted, or another file system."""
    read_only_paths: tuple[str, ...] = ()
    """Where its file system refuses changes, and a pod may write."""
    no_quota: str = ""
    """Why its size is not enforced."""
    trouble: str = ""
    """The error of the last call, as a sentence."""


def faults(facts: ConditionFacts) -> list[FaultEntry]:
    """Return what is wrong, the worst first; empty if nothing is."""
    log = "the kernel's log (dmesg) has the reason"
    checks = (
        (facts.is_missing, FaultType.DATA_LOSS, "VolumeMissing", "The volume's data is not on its drive."),
        (facts.drive_trouble, FaultType.INACCESSIBLE, "DriveNotReady", facts.drive_trouble),
        (facts.failed_paths, FaultType.INACCESSIBLE, "FileSystemFailed", f"Its file system has I/O errors; {log}."),
        (
            facts.other_paths,
            FaultType.INACCESSIBLE,
            "NotMounted",
            f"It is not mounted at {' and '.join(facts.other_paths)}. Delete the pod: a new one mounts it.",
        ),
        (facts.read_only_paths, FaultType.DEGRADED, "ReadOnly", f"Its file system refuses changes; {log}."),
        (facts.no_quota, FaultType.DEGRADED, "SizeNotEnforced", f"Its size is not enforced. {facts.no_quota}"),
        (facts.trouble, FaultType.DEGRADED, "LastCallFailed", facts.trouble),
    )
    return [FaultEntry(status=status, reason=reason, message=text) for is_so, status, reason, text in checks if is_so]


class VolumeConditions:
    def __init__(
        self, table: DriveTable, index: VolumeIndex, kubelet_dir: KubeletDir, *, timed_threads: Threads
    ) -> None:
        self._table = table
        self._index = index
        self._kubelet_dir = kubelet_dir
        self._timed_threads = timed_threads

    async def of(self, record: VolumeRecord, paths: Iterable[str] | None = None) -> list[FaultEntry]:
        """Return what is wrong with a volume, at these paths or at all where it is staged and published."""
        everywhere = (record.staged, *(target.path for target in record.published))
        checked = tuple(path for path in (everywhere if paths is None else paths) if path)
        try:
            with self._table.using(record.drive) as drive:
                facts = await self._timed_threads(lambda: self._facts(drive, record, checked))
        except (CsiError, HostError) as error:
            return faults(ConditionFacts(drive_trouble=f"Its drive cannot be used: {error}"))
        return faults(facts)

    def _facts(self, drive: OpenDrive, record: VolumeRecord, paths: tuple[str, ...]) -> ConditionFacts:
        volumes = drive.volumes
        if record.is_image and record.unfinished != "image" and volumes.image_bytes(record.volume_id) is None:
            return ConditionFacts(is_missing=True)
        failed, other, read_only = [], [], []
        for path in paths:
            if record.is_block and path == record.staged:
                continue  # nothing is mounted where a raw volume is staged
            mounted = self._kubelet_dir.mounted_at(names_of(path))
            if mounted is not None and mounted.is_failed:
                failed.append(path)
            elif mounted is None or not volumes.is_volume(record.volume_id, mounted.root):
                other.append(path)
            elif mounted.options.read_only and not record.is_block and not _may_be_read_only(record, path):
                read_only.append(path)
        why_no_quota = None if record.is_image else volumes.why_no_quota()
        return ConditionFacts(
            failed_paths=tuple(failed),
            other_paths=tuple(other),
            read_only_paths=tuple(read_only),
            no_quota=why_no_quota or "",
            trouble=self._index.trouble_of(record.volume_id),
        )


def _may_be_read_only(record: VolumeRecord, path: str) -> bool:
    # The record does not have the options of the staging mount, which may be read-only by the class.
    return path == record.staged or any(each.read_only for each in record.published if each.path == path)
