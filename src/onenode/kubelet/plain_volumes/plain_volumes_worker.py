"""The plain volumes of one pod, from the first to the last: one thing at a time, so that none meets itself half done.

A volume that cannot be made is tried again with growing delays, with an event each time. At a sync those with files are
brought up to date; one that fails then stays as it was. At the end all that is found of the pod is removed, until it is
gone.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from onenode.host.payload_files import Origin
from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.plain_volumes.plain_volume_work import PlainVolumeWork
from onenode.kubelet.plain_volumes.plain_volumes_rules import PlainVolume, plain_volumes_of
from onenode.kubelet.volumes.desired_volumes_rules import pod_facts
from onenode.kubelet.volumes.reconcile_rules import FACTOR, FIRST_DELAY, LONGEST_DELAY
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.outcome_rules import StepFailed
from onenode.kubelet.volumes.volume_seams import reference_to
from onenode.kubelet.volumes.volume_values import ApiObject
from orlop.foundation.runtime import Runtime
from orlop.host.host_errors import HostError
from orlop.kube.api_errors import ApiError
from orlop.kube.kinds import POD
from orlop.kube.objects import name_of, uid

LONGEST_REMOVAL_DELAY: Final = 60.0


@dataclass(slots=True)
class _Progress:
    """`due_at` is the instant of the next try; None: there is nothing to do."""

    volume: PlainVolume
    origin: Origin | None = None
    due_at: float | None = 0.0
    delay: float = 0.0


class PlainVolumesWorker:
    """`pod` may be none, of which only the uid is known: then all there is to do is to remove what is left."""

    def __init__(
        self, pod_uid: str, pod: ApiObject | None, work: PlainVolumeWork, api: NodeApi, runtime: Runtime
    ) -> None:
        self._uid = pod_uid
        self._pod = pod
        self._about = reference_to(pod_facts(pod)) if pod is not None else None
        self._work = work
        self._client = api.kube
        self._events = api.events
        self._clock = runtime.clock
        self._progress = [_Progress(volume) for volume in plain_volumes_of(pod)] if pod is not None else []
        self._is_sync_due = False
        self._is_ending = pod is None
        self._news = asyncio.Event()
        self._ready = asyncio.Event()
        self._log = runtime.log.bind(uid=pod_uid)
        self.gone = asyncio.Event()
        if not self._progress:
            self._ready.set()

    # ---- for the runner of pods ----------------------------------------------------------------------------------

    @property
    def is_ending(self) -> bool:
        return self._is_ending

    @property
    def origins(self) -> Mapping[str, Origin]:
        """Of all that are there, by the names the pod has for them."""
        return {each.volume.name: each.origin for each in self._progress if each.origin is not None}

    def read_only(self) -> frozenset[str]:
        return frozenset(each.volume.name for each in self._progress if each.volume.has_files)

    def missing(self) -> tuple[str, ...]:
        return tuple(each.volume.name for each in self._progress if each.origin is None)

    async def wait_ready(self) -> None:
        await self._ready.wait()

    def sync(self) -> None:
        self._is_sync_due = True
        self._news.set()

    def end(self) -> None:
        """Nothing of the pod runs any more; `gone` is set when all is removed."""
        self._is_ending = True
        self._news.set()

    # ---- the work ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        while not self._is_ending:
            self._news.clear()
            if self._is_sync_due:
                await self._begin_sync()
            for each in self._progress:
                if not self.is_ending and each.due_at is not None and each.due_at <= self._now():
                    await self._try(each)
            await self._wait_for_news()
        await self._remove()
        self.gone.set()

    async def _begin_sync(self) -> None:
        self._is_sync_due = False
        with suppress(ApiError):  # with what was last seen of the pod, then
            if self._pod is not None:
                found = await self._client.get(POD, name_of(self._pod))
                self._pod = found if uid(found) == self._uid else self._pod
        for each in self._progress:
            if each.volume.has_files and each.due_at is None:
                each.due_at = self._now()

    async def _try(self, each: _Progress) -> None:
        assert self._pod is not None  # noqa: S101 - there would be no volumes
        try:
            each.origin = await self._work.set_up(self._pod, each.volume)
        except StepFailed as error:
            self._tell(each, error.why)
        except Exception as error:  # noqa: BLE001 - one volume's trouble is not the others', and is tried again
            self._log.exception("volume not set up", error)
            self._note_failure(each)
        else:
            each.due_at, each.delay = None, 0.0
        if not self.missing():
            self._ready.set()

    def _tell(self, each: _Progress, why: str) -> None:
        assert self._about is not None  # noqa: S101 - as above
        note = texts.failed(texts.SET_UP, each.volume.name, why)
        self._events.warning(self._about, texts.FAILED_MOUNT, note)
        self._note_failure(each)

    def _note_failure(self, each: _Progress) -> None:
        each.delay = min(LONGEST_DELAY, each.delay * FACTOR) or FIRST_DELAY
        each.due_at = self._now() + each.delay

    async def _wait_for_news(self) -> None:
        instants = [each.due_at for each in self._progress if each.due_at is not None]
        if not instants:
            await self._news.wait()
            return
        with suppress(TimeoutError):
            async with self._clock.timeout(max(0.0, min(instants) - self._now())):
                await self._news.wait()

    def _now(self) -> float:
        return self._clock.elapsed()

    # ---- the end -------------------------------------------------------------------------------------------------

    async def _remove(self) -> None:
        delay, stop = FIRST_DELAY, threading.Event()
        try:
            while left := await self._still_left(stop):
                self._log.warning("pod volumes not removed; retrying", count=len(left), first=left[0])
                await self._clock.sleep(delay)
                delay = min(LONGEST_REMOVAL_DELAY, delay * FACTOR)
        finally:
            stop.set()  # a thread that is left behind ends soon

    async def _still_left(self, stop: threading.Event) -> list[str]:
        try:
            return await self._work.remove_all(self._uid, stop)
        except HostError as error:
            return [str(error)]
