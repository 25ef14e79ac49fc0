"""Looks again and again for live folders that nobody will ask for any more, and has them buried.

Order: what is in doubt is made sure of → which folders are mounted → which pods kubelet still knows → `orphan_rules`
judges → `folders` buries, which looks again under the volume's key whether something has it mounted. One that cannot be
buried now holds up no other. Must not erase anything.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.folder_work import live_place
from orlop.driver.ephemeral.folders import Folders, Threads
from orlop.driver.ephemeral.orphan_rules import LiveFolder, folders_to_look_for, judge
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.host.errors import HostError
from orlop.host.node_host import Names, NodeHost

LOOK_SECONDS: Final = 30.0


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
        """For ever; at once when it begins."""
        while True:
            try:
                await self.look()
            except (HostError, CsiError) as error:
                self._log.warning("orphans could not be looked for", error=error)
            await self._clock.sleep(min(LOOK_SECONDS, max(1.0, self._grace)))

    async def look(self) -> None:
        await self._folders.end_doubts()
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
            self._log.warning("an orphan could not be buried", volume=volume_id, error=error)
            return False

    def _live_folders(self) -> list[LiveFolder]:
        """The book first: what is published meanwhile is then found mounted, or not judged at all."""
        records = dict(self._folders.book.live)
        mounted = self._host.workdir.mounted_folders()
        known: dict[Names, bool] = {}
        return [
            LiveFolder(
                volume_id=volume_id,
                unpublished=not record.targets,
                mounted=live_place(volume_id) in mounted,
                pod_is_known=any(self._is_there(names, known) for names in folders_to_look_for(record)),
            )
            for volume_id, record in records.items()
        ]

    def _is_there(self, names: Names, known: dict[Names, bool]) -> bool:
        if names not in known:
            known[names] = self._is_there_or_unclear(names)
        return known[names]

    def _is_there_or_unclear(self, names: Names) -> bool:
        """What cannot be looked at may be a pod's: its folder stays, and holds up no other."""
        try:
            return self._host.kubelet_dir.names_in(names) is not None
        except HostError as error:
            self._log.warning("whether a pod is gone cannot be found out", folder="/".join(names), error=error)
            return True
