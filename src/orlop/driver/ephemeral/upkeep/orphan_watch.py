"""Find live folders that kubelet has forgotten, and bury them.

kubelet does not always unpublish: after a reboot, or when a pod was deleted by force, it may forget a volume. A folder
is an orphan when nothing has it mounted and its pod's own folder has gone from kubelet's directory; after a grace
period it is buried, not erased. A folder unpublished from its last target while something still had it mounted is
buried as soon as nothing has.

Order: resolve doubts → read the index → read the mounts → check which pods kubelet still has → `judge` → bury, which
checks again, under the volume's key, that nothing has the folder mounted. A folder that cannot be buried now does not
delay the others. This module must not erase anything.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.folder_index import live_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.host.host_errors import HostError
from orlop.host.node_host import Names, NodeHost
from orlop.host.threads import Threads
from orlop.records.ephemeral_folder import FolderRecord

POD_DEPTH: Final = 2
"""`pods/<uid>`: what kubelet removes last of a pod."""
POD_TARGET_DEPTH: Final = 6


@dataclass(frozen=True, slots=True)
class LiveFolder:
    """The facts about one live folder. `pod_is_known`: kubelet still has a folder for the pod."""

    volume_id: str
    unpublished: bool
    mounted: bool
    pod_is_known: bool


@dataclass(frozen=True, slots=True)
class OrphanVerdict:
    """Which folders to bury now, and since when (elapsed time) the others have been orphans."""

    bury: tuple[str, ...]
    orphans_since: Mapping[str, float]


def judge(folders: Iterable[LiveFolder], before: Mapping[str, float], now: float, grace: float) -> OrphanVerdict:
    """Decide which folders to bury. `before` are the orphans of the last check; the grace of a new one begins now."""
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
    return OrphanVerdict(tuple(sorted(bury)), since)


def folders_that_show_the_pod(record: FolderRecord) -> frozenset[tuple[str, ...]]:
    """Return folders in kubelet's directory; any of them shows that the pod exists: its own, or a target's parent."""
    return frozenset(_folder_of(tuple(target.split("/"))) for target in record.targets)


def _folder_of(target: tuple[str, ...]) -> tuple[str, ...]:
    return target[:POD_DEPTH] if len(target) == POD_TARGET_DEPTH and target[0] == "pods" else target[:-1]


CHECK_SECONDS: Final = 30.0


class OrphanWatch:
    def __init__(
        self, folders: Folders, host: NodeHost, *, grace: float, threads: Threads, clock: Clock, log: Log
    ) -> None:
        self._folders = folders
        self._host = host
        self._grace = grace
        self._threads = threads
        self._clock = clock
        self._log = log
        self._since: Mapping[str, float] = {}

    async def run(self) -> None:
        """Check now, and then periodically until cancelled."""
        while True:
            try:
                await self.check()
            except (HostError, CsiError) as error:
                self._log.warning("orphans not checked", error=error)
            await self._clock.sleep(min(CHECK_SECONDS, max(1.0, self._grace)))

    async def check(self) -> None:
        await self._folders.resolve_doubts()
        live = await self._threads(self._live_folders)
        before = self._since
        verdict = judge(live, before, self._clock.elapsed(), self._grace)
        self._since = verdict.orphans_since
        for volume_id in verdict.bury:
            if not await self._buried(volume_id) and volume_id in before:
                self._since = {**self._since, volume_id: before[volume_id]}

    async def _buried(self, volume_id: str) -> bool:
        try:
            return await self._folders.bury_if_unused(volume_id, why="its pod is gone")
        except CsiError as error:
            self._log.warning("orphan not buried", volume=volume_id, error=error)
            return False

    def _live_folders(self) -> list[LiveFolder]:
        # Read the index before the mounts: a folder published in between is then mounted in the snapshot, or is not in
        # the list. The other order could show it live and not mounted, like an orphan.
        records = dict(self._folders.book.live)
        mounted = self._host.workdir.mounted_folders()
        existence: dict[Names, bool] = {}
        return [
            LiveFolder(
                volume_id=volume_id,
                unpublished=not record.targets,
                mounted=live_place(volume_id) in mounted,
                pod_is_known=any(self._exists(names, existence) for names in folders_that_show_the_pod(record)),
            )
            for volume_id, record in records.items()
        ]

    def _exists(self, names: Names, existence: dict[Names, bool]) -> bool:
        """Return whether a folder of kubelet exists; look it up once in a check, because volumes share folders."""
        if names not in existence:
            existence[names] = self._exists_or_unclear(names)
        return existence[names]

    def _exists_or_unclear(self, names: Names) -> bool:
        """Return True also on an error: the pod may exist, so its folder stays."""
        try:
            return self._host.kubelet_dir.names_in(names) is not None
        except HostError as error:
            self._log.warning("pod folder unreadable; counted as existing", folder="/".join(names), error=error)
            return True
