"""Check what is mounted at the paths that kubelet names, before a volume is mounted there, and unmount volumes.

A mount of anything else is never hidden, never taken for the volume's, and never unmounted. All functions block; they
raise HostError, or the error of the call.
"""

from __future__ import annotations

from functools import lru_cache

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition
from orlop.driver.persistent.drive_table import OpenDrive
from orlop.driver.persistent.node_request_rules import is_path_of_kubelet
from orlop.driver.persistent.volume_index import names_of
from orlop.host.mounts.mounts import MountedAt, MountOptions, parse_mount_options
from orlop.host.node_host import KubeletDir
from orlop.records.volume_record import VolumeRecord


class VolumeMounts:
    def __init__(self, kubelet_dir: KubeletDir) -> None:
        self.kubelet_dir = kubelet_dir

    def is_usable(
        self, drive: OpenDrive, record: VolumeRecord, path: str, options: MountOptions | None, *, is_recorded: bool
    ) -> bool:
        """Return whether the volume is mounted at a path as it is asked for; False if nothing is mounted there.

        `options` are None if they cannot be compared. If the record names the path and another
        mount is there, it was left by a drive that was lost and came back: it is unmounted.
        """
        mounted = self.mounted(path)
        if mounted is None:
            return False
        if drive.volumes.is_volume(record.volume_id, mounted.root):
            if options is not None and not mounted.options.fulfil(options):
                words = ",".join(mounted.options.words())
                raise AlreadyExists(f"the volume is mounted at {path} with other options: {words}")
            return True
        if not is_recorded:
            raise FailedPrecondition(f"something else is mounted at {path}: unmount it first")
        self.kubelet_dir.unmount(names_of(path))
        return False

    def refuse_hiding_files(self, path: str) -> None:
        """Raise FAILED_PRECONDITION if a mount would hide files at a path."""
        names = self.kubelet_dir.names_in(names_of(path))
        if names:
            raise FailedPrecondition(
                f"{path} is not empty: it holds {min(names)[:100]!r}, which the mount would hide; find out whose it "
                "is, and move it away"
            )

    def mounted(self, path: str) -> MountedAt | None:
        """Return what is mounted at a path; None if nothing is, or the path is empty."""
        return self.kubelet_dir.mounted_at(names_of(path)) if path else None

    def unmount(self, drive: OpenDrive | None, record: VolumeRecord | None, path: str, *, is_recorded: bool) -> None:
        """Unmount a path, if the volume is mounted there or recorded there, or a lost drive left the mount."""
        names = names_of(path)
        mounted = self.kubelet_dir.mounted_at(names)
        if mounted is None:
            return
        if not (is_recorded or mounted.is_removed or self._is_ours(drive, record, path, mounted)):
            raise FailedPrecondition(f"what is mounted at {path} is not the volume: unmount it by hand")
        self.kubelet_dir.unmount(names)

    def _is_ours(self, drive: OpenDrive | None, record: VolumeRecord | None, path: str, mounted: MountedAt) -> bool:
        if drive is None or record is None or mounted.is_failed:
            # The drive was lost, perhaps before this process started. Kubelet calls a driver only for its own paths.
            return is_path_of_kubelet(path)
        return drive.volumes.is_volume(record.volume_id, mounted.root)


@lru_cache
def options_of(words: tuple[str, ...]) -> MountOptions:
    """Return the options of a mount: only those of the StorageClass, without nosuid and nodev as defaults."""
    return parse_mount_options(words, MountOptions(no_suid=False, no_devices=False))
