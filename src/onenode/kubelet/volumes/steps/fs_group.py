"""Gives a volume's files to the pod's group after it was published: whether, and the walk, in a thread.

The walk ends when its waiting is cancelled. What fails leaves the mount uncertain: it is published again, and walked
again. One that takes long is an event for the pod.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable
from functools import partial
from typing import Final

from onenode.host.volume_ownership import OwnershipReport
from onenode.kubelet.volumes import volume_paths
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.csi_request_rules import MOUNT_GROUP, StepFacts
from onenode.kubelet.volumes.steps.event_texts import PLUGIN
from onenode.kubelet.volumes.steps.outcome_rules import FailureKind, StepFailed
from onenode.kubelet.volumes.volume_seams import KubeletDisk, reference_to
from onenode.kubelet.volumes.volume_values import DesiredMount
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError
from orlop.kube.events.event_recorder import EventRecorder

ONCE: Final = frozenset({"ReadWriteOnce", "ReadWriteOncePod"})
CHECK: Final = f"{PLUGIN}mounter.SetupAt failed to check fsGroup policy: "
ON_ROOT_MISMATCH: Final = "OnRootMismatch"


class NoPolicy(Exception):
    """A CSIDriver that names no policy; the text is kubelet's."""


def group_to_apply(mount: DesiredMount, facts: StepFacts) -> int | None:
    """None: the files are left as the driver made them."""
    group = mount.pod.fs_group
    if group is None or mount.read_only or MOUNT_GROUP in facts.capabilities:
        return None
    return group if _policy_wants_it(mount, facts) else None


def check_policy(facts: StepFacts) -> None:
    """Asked before anything is done, as kubelet does."""
    if facts.driver.exists and facts.driver.fs_group_policy is None:
        raise NoPolicy(f"{CHECK}{PLUGIN}expected valid fsGroupPolicy, received nil value or empty string")


def _policy_wants_it(mount: DesiredMount, facts: StepFacts) -> bool:
    match facts.driver.fs_group_policy:
        case "None":
            return False
        case "File":
            return True
        case _:
            is_once = mount.spec.is_inline or not ONCE.isdisjoint(mount.spec.access_modes)
            return bool(mount.spec.fs_type) and is_once


FIRST_WORD_SECONDS: Final = 30.0
NEXT_WORD_SECONDS: Final = 60.0


class FsGroup:
    def __init__(self, disk: KubeletDisk, events: EventRecorder, runtime: Runtime) -> None:
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._events = events
        self._runtime = runtime

    async def apply(self, mount: DesiredMount, group: int) -> None:
        report, stop = OwnershipReport(), threading.Event()
        work = partial(
            self._host.give_to_group,
            volume_paths.mount_target(mount.pod.uid, mount.spec.name),
            group,
            unless_root_is=mount.pod.fs_group_change_policy == ON_ROOT_MISMATCH,
            report=report,
            should_stop=stop.is_set,
        )
        try:
            await self._telling(mount, report, self._in_thread(work))
        except HostError as error:
            why = f"applyFSGroup failed for vol {mount.spec.handle}: {error}"
            raise StepFailed(texts.SET_UP, why, FailureKind.NOT_FINAL) from None
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
        await self._runtime.clock.sleep(FIRST_WORD_SECONDS)
        first = f"{about} is taking longer than expected, consider using OnRootMismatch - "
        self._events.warning(reference, texts.SLOW_OWNERSHIP, f"{first}{texts.OWNERSHIP_LINK}")
        while True:
            await self._runtime.clock.sleep(NEXT_WORD_SECONDS)
            note = f"{about} is taking longer than expected, processed {report.files} files."
            self._events.warning(reference, texts.SLOW_OWNERSHIP, note)

    def _log_remarks(self, mount: DesiredMount, report: OwnershipReport) -> None:
        if report.remarks.count:
            first = str(report.remarks.first[0])
            self._runtime.log.warning(
                "group of some volume files not changed",
                volume=mount.volume,
                count=report.remarks.count,
                first=first,
            )
