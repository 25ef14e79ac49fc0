"""Gives a volume to the pod's group after it was published, in a thread; people are told when it takes long.

The walk ends when its waiting is cancelled. What fails leaves the mount uncertain: it is published again, and walked
again.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from functools import partial
from typing import Final

from orlop.embedded.kubelet.volumes import event_texts as texts
from orlop.embedded.kubelet.volumes import volume_paths
from orlop.embedded.kubelet.volumes.fs_group_rules import ON_ROOT_MISMATCH
from orlop.embedded.kubelet.volumes.outcome_rules import Failure
from orlop.embedded.kubelet.volumes.step_failures import StepFailed
from orlop.embedded.kubelet.volumes.volume_tools import VolumeTools, reference_to
from orlop.embedded.kubelet.volumes.volume_values import DesiredMount
from orlop.host.errors import HostError
from orlop.host.volume_ownership import OwnershipReport

FIRST_WORD_SECONDS: Final = 30.0
NEXT_WORD_SECONDS: Final = 60.0


class FsGroup:
    def __init__(self, tools: VolumeTools) -> None:
        self._tools = tools

    async def apply(self, mount: DesiredMount, group: int) -> None:
        report, stop = OwnershipReport(), threading.Event()
        work = partial(
            self._tools.host.give_to_group,
            volume_paths.mount_target(mount.pod.uid, mount.spec.name),
            group,
            unless_root_is=mount.pod.fs_group_change_policy == ON_ROOT_MISMATCH,
            report=report,
            should_stop=stop.is_set,
        )
        try:
            await self._telling(mount, report, self._tools.in_thread(work))
        except HostError as error:
            why = f"applyFSGroup failed for vol {mount.spec.handle}: {error}"
            raise StepFailed(texts.SET_UP, why, Failure.NOT_FINAL) from None
        finally:
            stop.set()
        self._log_remarks(mount, report)

    async def _telling(self, mount: DesiredMount, report: OwnershipReport, work: Awaitable[None]) -> None:
        walking = asyncio.ensure_future(work)
        watching = asyncio.ensure_future(self._tell_while_slow(mount, report))
        try:
            await walking
        finally:
            walking.cancel()
            watching.cancel()
            await asyncio.wait([watching])

    async def _tell_while_slow(self, mount: DesiredMount, report: OwnershipReport) -> None:
        about = f"Setting volume ownership for {mount.pod.uid}/volumes/kubernetes.io~csi/{mount.spec.name}/mount"
        reference = reference_to(mount.pod)
        await self._tools.clock.sleep(FIRST_WORD_SECONDS)
        first = f"{about} is taking longer than expected, consider using OnRootMismatch - "
        self._tools.events.warning(reference, texts.SLOW_OWNERSHIP, f"{first}{texts.OWNERSHIP_LINK}")
        while True:
            await self._tools.clock.sleep(NEXT_WORD_SECONDS)
            note = f"{about} is taking longer than expected, processed {report.files} files."
            self._tools.events.warning(reference, texts.SLOW_OWNERSHIP, note)

    def _log_remarks(self, mount: DesiredMount, report: OwnershipReport) -> None:
        if report.remarks.count:
            first = str(report.remarks.first[0])
            self._tools.log.warning(
                "some files of a volume could not be given to its group",
                volume=mount.volume,
                count=report.remarks.count,
                first=first,
            )
