"""Has each pod's volumes mounted, and nothing else: one loop that compares, begins what is due, and waits for news.

The runner of pods calls `want(pod)` at the first sight of a pod and at each of its syncs, `let_go(uid)` when its
containers have ended, `all_pods_known()` when `want` was called for every pod of this node after a start. Then it waits
with `wait_mounted` and `wait_unmounted`.

Order after a start: the folders of an earlier life are read (nothing of them is certain) → volumes of pods are mounted,
staged and published anew → once all pods are known and looked at, and the Node was read: what nobody wants is
unmounted, and folders that nobody knows are removed. Before that nothing is.

Kubelet looks ten times a second; this one is woken when there is something to do, and by the end of a delay.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from functools import partial
from typing import Final

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import mount_progress
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.desired_state import DesiredState
from onenode.kubelet.volumes.desired_volumes_rules import pod_facts
from onenode.kubelet.volumes.leftovers import Leftovers
from onenode.kubelet.volumes.mount_progress import MountProgress, VolumeInPod
from onenode.kubelet.volumes.operations import FailureReports, Operations, VolumeSteps
from onenode.kubelet.volumes.reconcile_rules import Mount, Operation, StateOfWorld, Unmount, plan
from onenode.kubelet.volumes.reconstruction import AttachmentRecovery, reconstruct
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.subpaths import SubPathMount, SubPathRefused, SubPaths
from onenode.kubelet.volumes.volume_paths import Names
from onenode.kubelet.volumes.volume_seams import KnownDrivers, KubeletDisk, OwnNode, StepDrivers, reference_to
from onenode.kubelet.volumes.volume_values import ApiObject, PodFacts, PodUid
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.kube import objects

MOUNT_SECONDS: Final = 123.0
TERMINATION_LOOK_SECONDS: Final = 0.1
LONGEST_TERMINATION_LOOK_SECONDS: Final = 2.0


class VolumesNotMounted(Exception):
    """The text is kubelet's. `timed_out`: nobody said why, and it may become well by itself."""

    def __init__(self, text: str, *, timed_out: bool) -> None:
        super().__init__(text)
        self.timed_out = timed_out


class VolumeManager:
    """`run` does the work; everything else only notes, reads or waits."""

    def __init__(self, api: NodeApi, node: OwnNode, drivers: KnownDrivers, disk: KubeletDisk, runtime: Runtime) -> None:
        self._events = api.events
        self._node = node
        self._host = disk.host
        self._in_thread = disk.in_thread
        self._runtime = runtime
        self._news = asyncio.Event()
        self._waiting: set[asyncio.Event] = set()
        self._desired = DesiredState(api.kube, drivers, runtime)
        self._actual = ActualState(self._changed)
        self._leftovers = Leftovers(disk, runtime, self._changed)
        self._subpaths = SubPaths(disk)
        self._reports = FailureReports(api.events, runtime.log)
        steps = VolumeSteps(api, node, StepDrivers(drivers, disk), disk, self._actual, runtime)
        self._operations = Operations(steps, self._reports, self._desired, self._actual, runtime, self._ended)
        self._attachments = AttachmentRecovery(api, self._actual, runtime)
        self._all_known = False
        self._is_reconstructed = asyncio.Event()

    # ---- for the runner of pods ----------------------------------------------------------------------------------

    def want(self, pod: ApiObject) -> None:
        """The pod is to have its volumes; its claims are read anew, and published anew where the driver asks for it."""
        self.know(pod)
        self._desired.want(pod, self._runtime.clock.elapsed())
        self._changed()

    def know(self, pod: ApiObject) -> None:
        """Remember a pod that is being deleted and needs no volumes, so that failures of its volumes get events."""
        self._reports.know(PodFacts(objects.uid(pod), objects.name_of(pod)))

    def let_go(self, pod_uid: PodUid) -> None:
        """Its containers have ended: nothing uses its volumes any more."""
        if (wanted := self._desired.pods.get(pod_uid)) is not None:
            self._desired.let_go(pod_uid)
            if any(mount.attach_required for mount in wanted.desire.mounts):
                self._node.report_soon()  # what never was mounted is no longer in use right now
            self._operations.forget_unknown()
            self._leftovers.look_soon()
            self._changed()

    def all_pods_known(self) -> None:
        """`want` was called for every pod of this node; from now on, unwanted volumes are removed."""
        self._all_known = True
        self._changed()

    async def wait_reconstructed(self) -> None:
        """Returns when all that an earlier life has left is in our books: nobody may let a pod go before."""
        await self._is_reconstructed.wait()

    def driver_came(self, name: str) -> None:
        """A driver was registered: what failed without it is tried at once."""
        self._operations.forgive(name)
        self._changed()

    def volumes_of(self, pod: ApiObject) -> MountProgress:
        """How far the pod's volumes are."""
        wanted = self._desired.pods.get(objects.uid(pod))
        if wanted is None:
            return MountProgress()
        path_of = self._host.path_of
        return mount_progress.volumes_of(wanted.desire, self._actual.volumes, path_of, is_read=wanted.is_answered)

    def mounted_volumes(self) -> tuple[VolumeInPod, ...]:
        """Return all volumes that are mounted for pods, for calls of their drivers."""
        return mount_progress.volumes_in_pods(self._desired.mounts(), self._actual.volumes, self._host.path_of)

    def volumes_in_use(self) -> tuple[str, ...] | None:
        """For the Node's status: all that need attaching; None: leave it, since it is not known yet."""
        if not self._attachments.is_done:
            return None
        wanted = (mount for pods in self._desired.mounts().values() for mount in pods.values())
        names = {mount.volume for mount in wanted if mount.attach_required}
        return tuple(sorted(names | {name for name, volume in self._actual.volumes.items() if volume.attachable}))

    async def wait_mounted(self, pod: ApiObject) -> MountProgress:
        """Returns when all are mounted. Raises VolumesNotMounted, at once for what cannot be had, else after 2m3s."""
        self.want(pod)
        try:
            async with self._runtime.clock.timeout(MOUNT_SECONDS):
                while not (found := self.volumes_of(pod)).is_settled:
                    await self._next_change()
        except TimeoutError:
            raise VolumesNotMounted(self.volumes_of(pod).text(texts.DEADLINE), timed_out=True) from None
        if not found.is_ready:
            text = found.text("; ".join(found.errors.values()))
            about = reference_to(pod_facts(pod))
            self._events.warning(about, texts.FAILED_MOUNT, texts.cannot_be_had(text))
            raise VolumesNotMounted(text, timed_out=False)
        return found

    async def mount_subpath(self, pod: ApiObject, mount: SubPathMount) -> Names:
        """For a container that is about to start; its volume, named as the pod calls it, must be mounted.

        Gives where it is mounted. Raises SubPathRefused.
        """
        wanted = self._desired.pods.get(objects.uid(pod))
        mounts = wanted.desire.mounts if wanted is not None else ()
        found = next((one for one in mounts if mount.volume in one.outer_names), None)
        if found is None or mount.volume not in self.volumes_of(pod).mounted:
            raise SubPathRefused(f"The volume {mount.volume!r} of the pod is not mounted: wait for it first.")
        return await self._subpaths.mount(objects.uid(pod), replace(mount, volume=found.spec.name))

    async def wait_unmounted(self, pod_uid: PodUid) -> None:
        """Lets the pod go, and returns when nothing of its volumes is left: in our books, and in the kernel."""
        self.let_go(pod_uid)
        while self._is_traced(pod_uid):
            await self._next_change()
        delay = TERMINATION_LOOK_SECONDS
        while await self._leftovers.is_something_mounted(pod_uid):
            await self._runtime.clock.sleep(delay)
            delay = min(LONGEST_TERMINATION_LOOK_SECONDS, delay * 2)
        await self._leftovers.sweep_pod(pod_uid)
        self._reports.forget(pod_uid)

    def _is_traced(self, pod_uid: PodUid) -> bool:
        return self._actual.has_trace_of(pod_uid) or pod_uid in self._operations.pods_being_mounted()

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Until it is cancelled; what is under way then is found again by the next life."""
        await self._reconstruct()
        async with TaskGroup() as tasks:
            tasks.start(self._attachments.recover(self._changed), name="volumes: the node's own object")
            while True:
                self._news.clear()
                await self._wait_for_news(self._begin_what_is_due(tasks))

    async def _reconstruct(self) -> None:
        await self._leftovers.note_start()
        for found in await self._in_thread(partial(reconstruct, self._host)):
            self._actual.add_reconstructed(found.volume, found.spec, found.pod_uid)
        self._is_reconstructed.set()

    def _begin_what_is_due(self, tasks: TaskGroup) -> float | None:
        """Gives the instant at which there is something to do without any news."""
        now = self._runtime.clock.elapsed()
        for pod_uid in self._desired.due(now):
            tasks.start(self._read(pod_uid), name=f"volumes: the claims of pod {pod_uid}")
        planned = plan(self._world(), now)
        for operation in planned.operations:
            if self._may_begin(operation):
                self._operations.begin(operation, tasks)
        instants = (planned.look_again_at, self._desired.next_due(), self._sweep_if_due(tasks, now))
        return min((instant for instant in instants if instant is not None), default=None)

    def _world(self) -> StateOfWorld:
        return StateOfWorld(
            self._desired.mounts(),
            self._actual.volumes,
            self._operations.under_way,
            self._desired.unresolved(),
            self._may_unmount(),
            self._operations.failures,
        )

    def _may_unmount(self) -> bool:
        return self._all_known and self._desired.all_looked_at() and self._attachments.is_done

    def _may_begin(self, operation: Operation) -> bool:
        """A sweep must not meet folders that are just being made; its end is news."""
        return not (isinstance(operation, Mount) and self._leftovers.is_sweeping)

    def _sweep_if_due(self, tasks: TaskGroup, now: float) -> float | None:
        if not self._may_unmount() or self._leftovers.due_at is None:
            return None
        if self._leftovers.due_at <= now:
            mounted = {pod_uid for volume in self._actual.volumes.values() for pod_uid in volume.mounts}
            pods = mounted | set(self._desired.pods) | self._operations.pods_being_mounted()
            specs = [volume.spec for volume in self._actual.volumes.values()]
            tasks.start(self._leftovers.begin(pods, specs), name="volumes: leftovers")
        return self._leftovers.due_at

    def _ended(self, operation: Operation) -> None:
        if isinstance(operation, Unmount) and self._actual.mount(operation.volume, operation.pod_uid) is None:
            self._leftovers.look_soon()  # the pod no longer has the volume, but its folders may be left
        self._changed()

    async def _wait_for_news(self, until: float | None) -> None:
        if until is None:
            await self._news.wait()
            return
        try:
            async with self._runtime.clock.timeout(max(0.0, until - self._runtime.clock.elapsed())):
                await self._news.wait()
        except TimeoutError:
            return

    async def _read(self, pod_uid: PodUid) -> None:
        wanted = await self._desired.read(pod_uid)
        if wanted is not None and not wanted.desire.errors:
            for mount in wanted.desire.mounts:
                if mount.claim is not None:
                    self._actual.note_first_size(mount.volume, mount.claim.size)
                if mount.requires_republish:
                    self._actual.require_remount(mount.volume, pod_uid)
        self._changed()

    # ---- waiting -------------------------------------------------------------------------------------------------

    def _changed(self) -> None:
        self._news.set()
        for waiting in self._waiting:
            waiting.set()

    async def _next_change(self) -> None:
        waiting = asyncio.Event()
        self._waiting.add(waiting)
        try:
            await waiting.wait()
        finally:
            self._waiting.discard(waiting)
