"""From desired and actual to the next operations: examples beside properties over all small worlds."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.volumes import reconcile_rules as backoff
from onenode.kubelet.volumes.reconcile_rules import (
    Forget,
    Mount,
    Operation,
    StateOfWorld,
    Unmount,
    UnmountDevice,
    VerifyAttached,
    attempt_of,
    plan,
)
from onenode.kubelet.volumes.volume_values import (
    ActualMount,
    ActualVolume,
    DesiredMount,
    Device,
    Lifecycle,
    MountState,
    PodFacts,
    VolumeSpec,
)
from orlop.kube.objects import ObjectName

SPEC = VolumeSpec("v", "d", "h", Lifecycle.PERSISTENT)
PODS = ("a", "b")
VOLUMES = ("v", "w")


def wanted(volume: str, pod: str) -> DesiredMount:
    return DesiredMount(volume, SPEC, PodFacts(pod, ObjectName("n", pod)), ("x",))


def desired(**pods: str) -> dict[str, dict[str, DesiredMount]]:
    return {volume: {pod: wanted(volume, pod) for pod in names} for volume, names in pods.items()}


def actual(device: Device = Device.MOUNTED, **mounts: ActualMount) -> ActualVolume:
    return ActualVolume("v", SPEC, device, mounts)


def mounted(pod: str, state: MountState = MountState.MOUNTED, **options: Any) -> ActualMount:
    return ActualMount(pod, SPEC, state, **options)


def planned(world: StateOfWorld, now: float = 0.0) -> list[Operation]:
    return list(plan(world, now).operations)


def test_a_volume_that_is_wanted_is_verified_first_and_mounted_then():
    assert planned(StateOfWorld(desired(v="a"), {})) == [VerifyAttached("v")]
    assert planned(StateOfWorld(desired(v="a"), {"v": actual(Device.NOT_MOUNTED)})) == [Mount("v", "a")]
    assert planned(StateOfWorld(desired(v="a"), {"v": actual(a=mounted("a"))})) == []


def test_what_is_uncertain_is_mounted_anew_and_what_is_to_be_republished_too():
    uncertain = {"v": actual(a=mounted("a", MountState.UNCERTAIN))}
    again = {"v": actual(a=mounted("a", remount_required=True))}

    assert planned(StateOfWorld(desired(v="a"), uncertain)) == [Mount("v", "a")]
    assert planned(StateOfWorld(desired(v="a"), again)) == [Mount("v", "a")]


def test_nothing_is_unmounted_before_it_may_be():
    world = {"v": actual(a=mounted("a")), "w": ActualVolume("w", SPEC, Device.UNCERTAIN)}

    assert planned(StateOfWorld({}, world)) == []
    assert planned(StateOfWorld({}, world, may_unmount=True)) == [Unmount("v", "a"), UnmountDevice("w")]


def test_a_pod_of_which_not_all_is_known_keeps_what_it_has():
    world = StateOfWorld({}, {"v": actual(a=mounted("a"))}, unresolved={"a"}, may_unmount=True)

    assert planned(world) == []


def test_a_volume_without_pods_is_unstaged_then_forgotten():
    assert planned(StateOfWorld({}, {"v": actual()}, may_unmount=True)) == [UnmountDevice("v")]
    assert planned(StateOfWorld({}, {"v": actual(Device.UNCERTAIN)}, may_unmount=True)) == [UnmountDevice("v")]
    assert planned(StateOfWorld({}, {"v": actual(Device.NOT_MOUNTED)}, may_unmount=True)) == [Forget("v")]


def test_an_unmount_that_is_held_back_lets_another_pods_mount_go_first():
    failures = {"v": backoff.after_failure((), attempt_of(Unmount("v", "a")), 0.0)}
    world = StateOfWorld(desired(v="b"), {"v": actual(a=mounted("a"))}, may_unmount=True, failures=failures)

    found = plan(world, 0.1)

    assert list(found.operations) == [Mount("v", "b")]
    assert found.look_again_at == 0.5


states = st.none() | st.builds(mounted, st.just("a"), st.sampled_from(MountState), remount_required=st.booleans())


@st.composite
def worlds(draw: st.DrawFn) -> StateOfWorld:
    wants = {
        volume: {pod: wanted(volume, pod) for pod in draw(st.sets(st.sampled_from(PODS)))}
        for volume in draw(st.sets(st.sampled_from(VOLUMES)))
    }
    volumes = {}
    for volume in draw(st.sets(st.sampled_from(VOLUMES))):
        found = {pod: draw(states) for pod in PODS}
        mounts = {pod: ActualMount(pod, SPEC, it.state, it.remount_required) for pod, it in found.items() if it}
        volumes[volume] = ActualVolume(volume, SPEC, draw(st.sampled_from(Device)), mounts)
    return StateOfWorld(
        wants,
        volumes,
        draw(st.sets(st.sampled_from(VOLUMES))),
        draw(st.sets(st.sampled_from(PODS))),
        draw(st.booleans()),
    )


@given(worlds())
def test_there_is_at_most_one_operation_for_each_volume_and_none_for_a_busy_one(world: StateOfWorld):
    counted = Counter(operation.volume for operation in planned(world))

    assert all(count == 1 for count in counted.values())
    assert not set(counted) & set(world.busy)


@given(worlds())
def test_what_somebody_wants_is_never_taken_away(world: StateOfWorld):
    for operation in planned(world):
        pods = world.desired.get(operation.volume, {})
        if isinstance(operation, Unmount):
            assert operation.pod_uid not in pods
            assert operation.pod_uid not in world.unresolved
        if isinstance(operation, UnmountDevice | Forget):
            assert not pods
            assert not world.actual[operation.volume].mounts


@given(worlds())
def test_taking_away_waits_for_all_that_is_wanted_to_be_known(world: StateOfWorld):
    if not world.may_unmount:
        assert not [one for one in planned(world) if isinstance(one, Unmount | UnmountDevice | Forget)]


def carried_out(world: StateOfWorld, operation: Operation) -> StateOfWorld:
    """As if it had succeeded."""
    volumes = dict(world.actual)
    match operation:
        case VerifyAttached(name):
            volumes[name] = ActualVolume(name, SPEC)
        case Mount(name, pod):
            before = volumes[name]
            volumes[name] = ActualVolume(name, SPEC, Device.MOUNTED, {**before.mounts, pod: mounted(pod)})
        case Unmount(name, pod):
            before = volumes[name]
            rest = {uid: mount for uid, mount in before.mounts.items() if uid != pod}
            volumes[name] = ActualVolume(name, SPEC, before.device, rest)
        case UnmountDevice(name):
            volumes[name] = ActualVolume(name, SPEC)
        case Forget(name):
            del volumes[name]
    return StateOfWorld(world.desired, volumes, may_unmount=True)


@given(worlds())
def test_doing_what_is_planned_ends_with_exactly_what_is_wanted(world: StateOfWorld):
    now = StateOfWorld(world.desired, world.actual, may_unmount=True)
    for _ in range(40):
        operations = planned(now)
        if not operations:
            break
        now = carried_out(now, operations[0])

    assert planned(now) == []
    found = {(name, pod) for name, volume in now.actual.items() for pod in volume.mounts}
    assert found == {(name, pod) for name, pods in world.desired.items() for pod in pods}
