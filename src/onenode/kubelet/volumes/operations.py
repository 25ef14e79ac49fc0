"""Operations under way: each in a task of its own; counts what failed, reports it, and knows when it may be retried.

At most one on a volume. What goes wrong in one is reported to the pod and the log, and touches no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from onenode.kubelet.node.node_api import NodeApi
from onenode.kubelet.volumes import reconcile_rules as backoff
from onenode.kubelet.volumes.actual_state import ActualState
from onenode.kubelet.volumes.desired_state import DesiredState
from onenode.kubelet.volumes.reconcile_rules import (
    Attempt,
    Expand,
    Failures,
    Forget,
    Mount,
    Operation,
    Unmount,
    UnmountDevice,
    VerifyAttached,
    attempt_of,
)
from onenode.kubelet.volumes.steps import event_texts as texts
from onenode.kubelet.volumes.steps.expansion_work import ExpansionWork
from onenode.kubelet.volumes.steps.mount_preconditions import MountPreconditions
from onenode.kubelet.volumes.steps.mount_work import MountWork
from onenode.kubelet.volumes.steps.outcome_rules import NotPrepared, StepFailed
from onenode.kubelet.volumes.steps.unmount_work import UnmountWork
from onenode.kubelet.volumes.volume_seams import KubeletDisk, OwnNode, StepDrivers, reference_to
from onenode.kubelet.volumes.volume_values import ActualMount, DesiredMount, PodFacts, PodUid, UniqueName
from orlop.foundation.runtime import Runtime
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.kube.events.event_recorder import EventRecorder


class FailureReports:
    """Report failures. A pod is known until its last volume is gone, also when it needs none any more."""

    def __init__(self, events: EventRecorder, log: Log) -> None:
        self._events = events
        self._log = log
        self._pods: dict[PodUid, PodFacts] = {}
        self._told: dict[tuple[UniqueName, PodUid], str] = {}

    def know(self, pod: PodFacts) -> None:
        self._pods[pod.uid] = pod

    def forget(self, pod_uid: PodUid) -> None:
        self._pods.pop(pod_uid, None)
        self._told = {key: reason for key, reason in self._told.items() if key[1] != pod_uid}

    def forget_volume(self, volume: UniqueName) -> None:
        self._told = {key: reason for key, reason in self._told.items() if key[0] != volume}

    def failed(self, operation: Operation, volume: str, error: StepFailed) -> None:
        """`volume` is what it is called: in the pod, or its PersistentVolume."""
        pod, is_new = self._pods.get(_pod_uid(operation)), self._is_new(operation, error)
        if is_new:
            self._log.warning("volume operation failed", pod=_pod_name(operation, pod), volume=volume, error=str(error))
        if pod is None:
            return
        if isinstance(operation, Mount | Expand):
            note = texts.failed(error.prefix, volume, error.why)
            self._events.warning(reference_to(pod), texts.reason_of(error.prefix), note)
        elif isinstance(operation, Unmount) and is_new:
            note = texts.not_unmounted(error.prefix, volume, error.why)
            self._events.warning(reference_to(pod), texts.NOT_UNMOUNTED, note)

    def succeeded(self, operation: Operation) -> None:
        self._told.pop((operation.volume, _pod_uid(operation)), None)

    def _is_new(self, operation: Operation, error: StepFailed) -> bool:
        key, reason = (operation.volume, _pod_uid(operation)), str(error)
        is_new = self._told.get(key) != reason
        self._told[key] = reason
        return is_new


def _pod_uid(operation: Operation) -> PodUid:
    """Empty: it is about the node, whatever pods have the volume."""
    return operation.pod_uid if isinstance(operation, Mount | Expand | Unmount) else ""


def _pod_name(operation: Operation, pod: PodFacts | None) -> str | None:
    return str(pod.name) if pod is not None else _pod_uid(operation) or None


class VolumeSteps:
    """The steps of operations. They raise StepFailed with the name of the step, NotPrepared if they have to wait."""

    def __init__(
        self,
        api: NodeApi,
        node: OwnNode,
        drivers: StepDrivers,
        disk: KubeletDisk,
        actual: ActualState,
        runtime: Runtime,
    ) -> None:
        self._node = node
        self._actual = actual
        self._preconditions = MountPreconditions(api, node, actual)
        self._expansion_work = ExpansionWork(api, drivers, disk, actual, runtime)
        self._mount_work = MountWork(api, drivers, disk, actual, self._expansion_work, runtime)
        self._unmount_work = UnmountWork(drivers, disk, actual, runtime)

    async def verify_attached(self, mount: DesiredMount) -> None:
        await self._preconditions.verify_attached(mount)
        self._actual.add(mount.volume, mount.spec, attachable=mount.attach_required)
        if mount.claim is not None:
            self._actual.note_first_size(mount.volume, mount.claim.size)

    async def mount(self, mount: DesiredMount) -> None:
        context = await self._preconditions.check(mount)
        await self._mount_work.mount(mount, context)

    async def expand(self, mount: DesiredMount) -> None:
        await self._expansion_work.in_use(mount)

    async def unmount(self, volume: UniqueName, mount: ActualMount) -> None:
        await self._unmount_work.unmount(volume, mount)

    async def unmount_device(self, volume: UniqueName) -> None:
        await self._unmount_work.unmount_device(volume)

    def forget(self, volume: UniqueName) -> None:
        """Forget a volume. It is detached when the Node's status no longer lists it as in use: report that soon."""
        actual = self._actual.volumes.get(volume)
        self._actual.forget(volume)
        if actual is not None and actual.attachable:
            self._node.report_soon()


class Operations:
    """Start operations and retry failed ones. `ended` is called with each operation that has ended or failed."""

    def __init__(
        self,
        steps: VolumeSteps,
        reports: FailureReports,
        desired: DesiredState,
        actual: ActualState,
        runtime: Runtime,
        ended: Callable[[Operation], None],
    ) -> None:
        self._steps = steps
        self._reports = reports
        self._desired = desired
        self._actual = actual
        self._clock = runtime.clock
        self._log = runtime.log
        self._ended = ended
        self._under_way: dict[UniqueName, Operation] = {}
        self._failures: dict[UniqueName, Failures] = {}

    # ---- reading -------------------------------------------------------------------------------------------------

    @property
    def under_way(self) -> Mapping[UniqueName, Operation]:
        return self._under_way

    @property
    def failures(self) -> Mapping[UniqueName, Failures]:
        return self._failures

    def pods_being_mounted(self) -> frozenset[PodUid]:
        """Also such as were let go since it began."""
        return frozenset(one.pod_uid for one in self._under_way.values() if isinstance(one, Mount))

    # ---- beginning -----------------------------------------------------------------------------------------------

    def begin(self, operation: Operation, tasks: TaskGroup) -> None:
        volume, attempt = operation.volume, attempt_of(operation)
        if isinstance(operation, Forget):
            self._steps.forget(volume)
            self._forgive(volume)
            return
        self._note(volume, backoff.after_start(self._failures_of(volume), attempt, self._clock.elapsed()))
        self._under_way[volume] = operation
        tasks.start(self._operate(operation, attempt), name=f"volumes: {attempt.name} {volume}")

    def forgive(self, driver: str) -> None:
        """Retry at once what failed for this driver."""
        for volume in [*self._failures]:
            if self._driver_of(volume) == driver:
                self._forgive(volume)

    def forget_unknown(self) -> None:
        """Forget the failures of volumes that no pod needs and that are not on this node."""
        for volume in [*self._failures]:
            is_known = (
                volume in self._actual.volumes
                or volume in self._under_way
                or self._desired.any_mount(volume) is not None
            )
            if not is_known:
                self._forgive(volume)

    def _forgive(self, volume: UniqueName) -> None:
        self._failures.pop(volume, None)
        self._reports.forget_volume(volume)

    async def _operate(self, operation: Operation, attempt: Attempt) -> None:
        try:
            await self._carry_out(operation)
        except NotPrepared as error:
            self._failed(operation, attempt, backoff.after_unprepared)
            self._report_unprepared(operation, error)
        except StepFailed as error:
            self._failed(operation, attempt, backoff.after_failure)
            self._reports.failed(operation, self._name_of(operation), error)
        except Exception as error:  # noqa: BLE001 - one volume's trouble must not end the others'
            self._failed(operation, attempt, backoff.after_failure)
            self._log.exception("volume operation raised an unexpected error", error, volume=operation.volume)
        else:
            self._note(operation.volume, backoff.after_success(self._failures_of(operation.volume), attempt))
            self._reports.succeeded(operation)
        finally:
            del self._under_way[operation.volume]
            self._ended(operation)

    async def _carry_out(self, operation: Operation) -> None:
        match operation:
            case VerifyAttached(volume):
                await self._verify(volume)
            case Mount(volume, pod_uid):
                if (mount := self._desired.mount(volume, pod_uid)) is not None:
                    await self._steps.mount(mount)
            case Expand(volume, pod_uid):
                if (mount := self._desired.mount(volume, pod_uid)) is not None:
                    await self._expand(mount)
            case Unmount(volume, pod_uid):
                if (actual := self._actual.mount(volume, pod_uid)) is not None:
                    await self._steps.unmount(volume, actual)
            case UnmountDevice(volume):
                await self._steps.unmount_device(volume)
            case Forget():
                pass

    async def _verify(self, volume: UniqueName) -> None:
        if (mount := self._desired.any_mount(volume)) is not None:
            await self._steps.verify_attached(mount)

    async def _expand(self, mount: DesiredMount) -> None:
        """Expand the volume, then read its claim again: the step has written it, or found it changed."""
        try:
            await self._steps.expand(mount)
        finally:
            self._desired.look_again(mount.pod.uid)

    # ---- what goes wrong -----------------------------------------------------------------------------------------

    def _failed(
        self, operation: Operation, attempt: Attempt, after: Callable[[Failures, Attempt, float], Failures]
    ) -> None:
        volume = operation.volume
        self._note(volume, after(self._failures_of(volume), attempt, self._clock.elapsed()))
        if isinstance(operation, Mount) and (mount := self._desired.mount(volume, operation.pod_uid)) is not None:
            self._desired.postpone(mount)

    def _report_unprepared(self, operation: Operation, error: NotPrepared) -> None:
        """Record an event for an unmount, for which the end of a pod waits; a mount that has to wait is only logged."""
        if isinstance(operation, Unmount):
            self._reports.failed(operation, self._name_of(operation), error)
        else:
            self._log.debug("volume not ready; checking again", volume=operation.volume, error=str(error))

    def _name_of(self, operation: Operation) -> str:
        """Return the volume's name for events: that of its PersistentVolume or, for an inline one, that in the pod."""
        if (actual := self._actual.volumes.get(operation.volume)) is not None:
            return actual.spec.name
        mount = self._desired.any_mount(operation.volume)
        return mount.spec.name if mount is not None else operation.volume

    def _driver_of(self, volume: UniqueName) -> str | None:
        if (actual := self._actual.volumes.get(volume)) is not None:
            return actual.spec.driver
        mount = self._desired.any_mount(volume)
        return mount.spec.driver if mount is not None else None

    def _failures_of(self, volume: UniqueName) -> Failures:
        return self._failures.get(volume, ())

    def _note(self, volume: UniqueName, failures: Failures) -> None:
        if failures:
            self._failures[volume] = failures
        else:
            self._failures.pop(volume, None)
