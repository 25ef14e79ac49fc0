"""From what should be mounted and what is to the next operations, and when one that failed may be retried. Pure.

Unmounts come first, then mounts, then devices.
- At most one operation on a volume at a time, whatever its pods: drivers refuse two calls for one volume.
- Nothing is unmounted before all pods are known and each was looked at once (`may_unmount`); and nothing of a pod whose
  volumes are not all known yet, because one that is mounted may be among those.
- What is uncertain is treated as not mounted where somebody wants it, and as mounted where nobody does.

Back-off is counted by key and name, as kubelet counts it. A key names a volume, and perhaps one pod; one without a pod
matches every pod. A failed operation holds back those of the same name that match its key; any other one clears the
delay and runs, so that a pod that goes is unmounted at once though its mount kept failing. What fails before anything
was begun is retried soon, and its delay never doubles.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from onenode.kubelet.volumes.steps.expansion_rules import is_worth_a_try
from onenode.kubelet.volumes.volume_values import (
    Actual,
    ActualMount,
    ActualVolume,
    Desired,
    DesiredMount,
    Device,
    MountState,
    PodUid,
    UniqueName,
)

FIRST_DELAY: Final = 0.5
FACTOR: Final = 2.0
LONGEST_DELAY: Final = 122.0
LOOK_AGAIN: Final = 0.1


@dataclass(frozen=True, slots=True)
class Attempt:
    """`pod_uid` is empty for an operation on the volume as a whole."""

    name: str
    pod_uid: str = ""

    def matches(self, other: Attempt) -> bool:
        return not self.pod_uid or not other.pod_uid or self.pod_uid == other.pod_uid


@dataclass(frozen=True, slots=True)
class FailedAttempt:
    attempt: Attempt
    delay: float
    until: float


Failures = tuple[FailedAttempt, ...]
"""Of one volume."""


def held_until(failures: Failures, attempt: Attempt) -> float:
    """The instant from which it may run; 0 if nothing holds it back."""
    held = _matching(failures, attempt)
    return held.until if held is not None and held.attempt.name == attempt.name else 0.0


def after_start(failures: Failures, attempt: Attempt, now: float) -> Failures:
    """Another operation during the delay clears it; once it has passed, the record stays as it is."""
    held = _matching(failures, attempt)
    if held is None or held.attempt.name == attempt.name or now >= held.until:
        return failures
    return _without(failures, held)


def after_failure(failures: Failures, attempt: Attempt, now: float) -> Failures:
    held = _matching(failures, attempt)
    delay = FIRST_DELAY if held is None or not held.delay else min(LONGEST_DELAY, held.delay * FACTOR)
    return (*_without(failures, held), FailedAttempt(attempt, delay, now + delay))


def after_unprepared(failures: Failures, attempt: Attempt, now: float) -> Failures:
    held = _matching(failures, attempt)
    return (*_without(failures, held), FailedAttempt(attempt, 0.0, now + LOOK_AGAIN))


def after_success(failures: Failures, attempt: Attempt) -> Failures:
    return _without(failures, _matching(failures, attempt))


def _matching(failures: Failures, attempt: Attempt) -> FailedAttempt | None:
    return next((failed for failed in failures if failed.attempt.matches(attempt)), None)


def _without(failures: Failures, gone: FailedAttempt | None) -> Failures:
    return tuple(failed for failed in failures if failed is not gone)


@dataclass(frozen=True, slots=True)
class Unmount:
    volume: UniqueName
    pod_uid: PodUid


@dataclass(frozen=True, slots=True)
class VerifyAttached:
    """Whether it may be used here at all; what needs no attaching may at once."""

    volume: UniqueName


@dataclass(frozen=True, slots=True)
class Mount:
    volume: UniqueName
    pod_uid: PodUid


@dataclass(frozen=True, slots=True)
class Expand:
    """It is in use, and its PV grew."""

    volume: UniqueName
    pod_uid: PodUid


@dataclass(frozen=True, slots=True)
class UnmountDevice:
    volume: UniqueName


@dataclass(frozen=True, slots=True)
class Forget:
    """Nothing is left of it on this node."""

    volume: UniqueName


Operation: TypeAlias = Unmount | VerifyAttached | Mount | Expand | UnmountDevice | Forget

NAMES: Final[Mapping[type, str]] = {
    Unmount: "volume_unmount",
    VerifyAttached: "verify_controller_attached_volume",
    Mount: "volume_mount",
    Expand: "volume_fs_resize",
    UnmountDevice: "unmount_device",
    Forget: "forget",
}


@dataclass(frozen=True, slots=True)
class StateOfWorld:
    """`unresolved` are pods whose volumes are not all known yet."""

    desired: Desired
    actual: Actual
    busy: Collection[UniqueName] = frozenset()
    unresolved: Collection[PodUid] = frozenset()
    may_unmount: bool = False
    failures: Mapping[UniqueName, Failures] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to begin now, and the instant at which something that is held back may be begun; None: nothing is."""

    operations: tuple[Operation, ...]
    look_again_at: float | None = None


def plan(world: StateOfWorld, now: float) -> Plan:
    chosen: dict[UniqueName, Operation] = {}
    instants: list[float] = []
    for operation in candidates(world):
        if operation.volume in world.busy or operation.volume in chosen:
            continue
        until = held_until(world.failures.get(operation.volume, ()), attempt_of(operation))
        if until > now:
            instants.append(until)
        else:
            chosen[operation.volume] = operation
    return Plan(tuple(chosen.values()), min(instants, default=None))


def attempt_of(operation: Operation) -> Attempt:
    """A mount is one of the volume as a whole: an inline volume has one pod only."""
    pod_uid = operation.pod_uid if isinstance(operation, Unmount) else ""
    return Attempt(NAMES[type(operation)], pod_uid)


def candidates(world: StateOfWorld) -> Iterator[Operation]:
    """All that should be done, in the order of their urgency, as if each could be done now."""
    if world.may_unmount:
        yield from _unmounts(world)
    yield from _mounts(world)
    if world.may_unmount:
        yield from _devices(world)


def _unmounts(world: StateOfWorld) -> Iterator[Operation]:
    for name, volume in world.actual.items():
        for pod_uid in volume.mounts:
            if pod_uid not in world.desired.get(name, {}) and pod_uid not in world.unresolved:
                yield Unmount(name, pod_uid)


def _mounts(world: StateOfWorld) -> Iterator[Operation]:
    for name, pods in world.desired.items():
        volume = world.actual.get(name)
        if volume is None:
            if pods:
                yield VerifyAttached(name)
            continue
        for pod_uid in pods:
            if _needs_mount(volume.mounts.get(pod_uid)):
                yield Mount(name, pod_uid)
            elif _has_grown(volume, pods[pod_uid]):
                yield Expand(name, pod_uid)


def _needs_mount(mount: ActualMount | None) -> bool:
    return mount is None or mount.state is MountState.UNCERTAIN or mount.remount_required


def _has_grown(volume: ActualVolume, mount: DesiredMount) -> bool:
    """What is used read-only is not expanded; a pod that writes may be there too."""
    is_grown = is_worth_a_try(mount.claim, mount.spec.size, volume.size)
    return is_grown and volume.may_expand and not mount.read_only


def _devices(world: StateOfWorld) -> Iterator[Operation]:
    for name, volume in world.actual.items():
        if not volume.mounts and not world.desired.get(name):
            yield _last_operation(name, volume)


def _last_operation(name: UniqueName, volume: ActualVolume) -> Operation:
    return Forget(name) if volume.device is Device.NOT_MOUNTED else UnmountDevice(name)
