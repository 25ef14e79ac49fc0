"""Operations under way: each in a task of its own; counts what failed, reports it, and knows when it may be retried.

At most one on a volume. What goes wrong in one is reported to the pod and the log, and touches no other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
from onenode.kubelet.volumes.steps.mount_preconditions import Attachments
from onenode.kubelet.volumes.steps.mount_work import MountWork
from onenode.kubelet.volumes.steps.outcome_rules import NotPrepared, StepFailed
from onenode.kubelet.volumes.steps.unmount_work import UnmountWork
from onenode.kubelet.volumes.volume_seams import VolumeSeams, reference_to
from onenode.kubelet.volumes.volume_values import DesiredMount, PodFacts, PodUid, UniqueName
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup


class FailureReports:
    """Pods are known from their first sight to the end of their volumes: also those that want none any more."""

    def __init__(self, seams: VolumeSeams, runtime: Runtime) -> None:
        self._seams = seams
        self._runtime = runtime
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
            self._runtime.log.warning(
                "volume operation failed", pod=_pod_name(operation, pod), volume=volume, error=str(error)
            )
        if pod is None:
            return
        if isinstance(operation, Mount | Expand):
            note = texts.failed(error.prefix, volume, error.why)
            self._seams.events.warning(reference_to(pod), texts.reason_of(error.prefix), note)
        elif isinstance(operation, Unmount) and is_new:
            note = texts.not_unmounted(error.prefix, volume, error.why)
            self._seams.events.warning(reference_to(pod), texts.NOT_UNMOUNTED, note)

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


class Operations:
    """`changed` is called when one has ended, `unmounted` when a pod has a volume no longer."""

    def __init__(
        self,
        seams: VolumeSeams,
        runtime: Runtime,
        desired: DesiredState,
        actual: ActualState,
        *,
        changed: Callable[[], None],
        unmounted: Callable[[], None],
    ) -> None:
        self._seams = seams
        self._runtime = runtime
        self._log = runtime.log
        self._desired = desired
        self._actual = actual
        self.reports = FailureReports(seams, runtime)
        self._changed = changed
        self._unmounted = unmounted
        self._attachments = Attachments(seams)
        self._expansion_work = ExpansionWork(seams, runtime, actual)
        self._mount_work = MountWork(seams, runtime, actual, self._attachments, self._expansion_work)
        self._unmount_work = UnmountWork(seams, runtime, actual)
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
            self._forget(volume)
            return
        self._note(volume, backoff.after_start(self._failures_of(volume), attempt, self._runtime.clock.elapsed()))
        self._under_way[volume] = operation
        tasks.start(self._operate(operation, attempt), name=f"volumes: {attempt.name} {volume}")

    def _forget(self, volume: UniqueName) -> None:
        """Forget a volume. Its detaching waits until the Node's status no longer lists it as in use: report that."""
        known = self._actual.volumes.get(volume)
        self._actual.forget(volume)
        self._forgive(volume)
        if known is not None and known.attachable:
            self._seams.report_node()

    def forgive(self, driver: str) -> None:
        """What failed for this driver is tried at once."""
        for volume in [*self._failures]:
            if self._driver_of(volume) == driver:
                self._forgive(volume)

    def forget_unknown(self) -> None:
        """Failures of volumes that nobody wants and that are not here."""
        for volume in [*self._failures]:
            known = volume in self._actual.volumes or volume in self._under_way or self._any_mount(volume) is not None
            if not known:
                self._forgive(volume)

    def _forgive(self, volume: UniqueName) -> None:
        self._failures.pop(volume, None)
        self.reports.forget_volume(volume)

    async def _operate(self, operation: Operation, attempt: Attempt) -> None:
        try:
            await self._carry_out(operation)
        except NotPrepared as error:
            self._failed(operation, attempt, backoff.after_unprepared)
            self._tell_unprepared(operation, error)
        except StepFailed as error:
            self._failed(operation, attempt, backoff.after_failure)
            self.reports.failed(operation, self._name_of(operation), error)
        except Exception as error:  # noqa: BLE001 - one volume's trouble must not end the others'
            self._failed(operation, attempt, backoff.after_failure)
            self._log.exception("volume operation raised an unexpected error", error, volume=operation.volume)
        else:
            self._note(operation.volume, backoff.after_success(self._failures_of(operation.volume), attempt))
            self.reports.succeeded(operation)
        finally:
            del self._under_way[operation.volume]
            self._changed()

    async def _carry_out(self, operation: Operation) -> None:
        match operation:
            case VerifyAttached(volume):
                await self._verify(volume)
            case Mount(volume, pod_uid):
                if (mount := self._desired_mount(volume, pod_uid)) is not None:
                    await self._mount_work.mount(mount)
            case Expand(volume, pod_uid):
                if (mount := self._desired_mount(volume, pod_uid)) is not None:
                    await self._expand(mount)
            case Unmount(volume, pod_uid):
                if (actual := self._actual.mount(volume, pod_uid)) is not None:
                    await self._unmount_work.unmount(volume, actual)
                    self._unmounted()
            case UnmountDevice(volume):
                await self._unmount_work.unmount_device(volume)
            case Forget():
                pass

    async def _verify(self, volume: UniqueName) -> None:
        if (mount := self._any_mount(volume)) is not None:
            await self._attachments.verify(mount)
            self._actual.add(volume, mount.spec, attachable=mount.attach_required)
            if mount.claim is not None:
                self._actual.note_first_size(volume, mount.claim.size)

    async def _expand(self, mount: DesiredMount) -> None:
        """The claim is read anew afterwards: it was written, or it says something else than we knew."""
        try:
            await self._expansion_work.in_use(mount)
        finally:
            self._desired.look_again(mount.pod.uid)

    # ---- what goes wrong -----------------------------------------------------------------------------------------

    def _failed(
        self, operation: Operation, attempt: Attempt, after: Callable[[Failures, Attempt, float], Failures]
    ) -> None:
        volume = operation.volume
        self._note(volume, after(self._failures_of(volume), attempt, self._runtime.clock.elapsed()))
        if isinstance(operation, Mount) and (mount := self._desired_mount(volume, operation.pod_uid)) is not None:
            self._desired.postpone(mount)

    def _tell_unprepared(self, operation: Operation, error: NotPrepared) -> None:
        """A mount may only have to wait; what a pod's end waits for, somebody has to look at."""
        if isinstance(operation, Unmount):
            self.reports.failed(operation, self._name_of(operation), error)
        else:
            self._log.debug("volume not ready; checking again", volume=operation.volume, error=str(error))

    def _name_of(self, operation: Operation) -> str:
        """What people call the volume: the PV's name or, of an inline one, the pod's for it."""
        if (actual := self._actual.volumes.get(operation.volume)) is not None:
            return actual.spec.name
        mount = self._any_mount(operation.volume)
        return mount.spec.name if mount is not None else operation.volume

    def _desired_mount(self, volume: UniqueName, pod_uid: PodUid) -> DesiredMount | None:
        return self._desired.mounts().get(volume, {}).get(pod_uid)

    def _any_mount(self, volume: UniqueName) -> DesiredMount | None:
        return next(iter(self._desired.mounts().get(volume, {}).values()), None)

    def _driver_of(self, volume: UniqueName) -> str | None:
        if (actual := self._actual.volumes.get(volume)) is not None:
            return actual.spec.driver
        mount = self._any_mount(volume)
        return mount.spec.driver if mount is not None else None

    def _failures_of(self, volume: UniqueName) -> Failures:
        return self._failures.get(volume, ())

    def _note(self, volume: UniqueName, failures: Failures) -> None:
        if failures:
            self._failures[volume] = failures
        else:
            self._failures.pop(volume, None)
