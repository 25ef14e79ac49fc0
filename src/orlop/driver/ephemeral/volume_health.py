"""Looks at one published volume and says what is wrong with it: its folder, its mounts, its disk, its quota.

Changes nothing; everything blocks.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping

from orlop.driver.ephemeral.folder_work import live_place
from orlop.driver.ephemeral.machine_errors import LEADS_ASTRAY
from orlop.driver.ephemeral.volume_health_rules import Entry, LeftQuota, Target, VolumeFacts, troubles
from orlop.host.errors import HostError
from orlop.host.mounts import FileIdentity
from orlop.host.node_host import NodeHost
from orlop.host.project_strays import StrayCount
from orlop.records.ephemeral_folder import FolderRecord


class VolumeHealth:
    def __init__(self, host: NodeHost, escapes: Mapping[str, StrayCount]) -> None:
        """`escapes` are what `QuotaWatch` has found, by volume."""
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._escapes = escapes

    def troubles(self, record: FolderRecord, targets: tuple[str, ...]) -> list[Entry]:
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
