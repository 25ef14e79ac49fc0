"""From what should be mounted and what is to the next operations: unmounts first, then mounts, then devices. Pure.

- At most one operation on a volume at a time, whatever its pods: drivers refuse two calls for one volume.
- Nothing is unmounted before all pods are known and each was looked at once (`may_unmount`); and nothing of a pod whose
  volumes cannot all be told yet, because one that is mounted may be among those.
- What is uncertain is treated as not mounted where somebody wants it, and as mounted where nobody does.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from orlop.embedded.kubelet.volumes.expansion_rules import is_worth_a_try
from orlop.embedded.kubelet.volumes.operation_backoff_rules import Attempt, Failures, held_until
from orlop.embedded.kubelet.volumes.volume_values import (
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
class World:
    """`unresolved` are pods that want volumes of which not all can be told yet."""

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


def plan(world: World, now: float) -> Plan:
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


def candidates(world: World) -> Iterator[Operation]:
    """All that should be done, in the order of their urgency, as if each could be done now."""
    if world.may_unmount:
        yield from _unmounts(world)
    yield from _mounts(world)
    if world.may_unmount:
        yield from _devices(world)


def _unmounts(world: World) -> Iterator[Operation]:
    for name, volume in world.actual.items():
        for pod_uid in volume.mounts:
            if pod_uid not in world.desired.get(name, {}) and pod_uid not in world.unresolved:
                yield Unmount(name, pod_uid)


def _mounts(world: World) -> Iterator[Operation]:
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


def _devices(world: World) -> Iterator[Operation]:
    for name, volume in world.actual.items():
        if not volume.mounts and not world.desired.get(name):
            yield _last_operation(name, volume)


def _last_operation(name: UniqueName, volume: ActualVolume) -> Operation:
    return Forget(name) if volume.device is Device.NOT_MOUNTED else UnmountDevice(name)
