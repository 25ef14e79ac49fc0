"""Folders with limits, on a model of the machine: held to them from their first moment, or refused."""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import FailedPrecondition, is_final
from orlop.driver.ephemeral.publish_request_rules import AdminLimits
from orlop.driver.ephemeral.upkeep.quota_watch import why_limits_cannot_be_held
from orlop.driver.project_numbers import FIRST_PROJECT, LAST_PROJECT, ProjectNumbers
from orlop.host.folders.project_quota import FolderQuota, ProjectLimits
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import decode_record
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillPoints, explore_kills
from support.afterlife.ephemeral_node import (
    ID,
    UID,
    folder_ids,
    folders_on,
    machine_with_pods,
    mounted,
    names_of,
    order,
)
from support.shown_lock import ShownLock

MIB = 1 << 20
KUBELETS_FIRST = 1_048_577


def machine_with_quota(*pods: str) -> FakeMachine:
    machine = machine_with_pods(*pods)
    machine.why_no_quota = None
    return machine


@pytest.fixture
def machine() -> FakeMachine:
    return machine_with_quota()


def live(volume_id: str = ID) -> FolderPlace:
    return FolderPlace(FolderState.LIVE, volume_id)


# ---- publish ---------------------------------------------------------------------------------------------------------


@pytest.mark.virtual_time
async def test_a_folder_is_held_to_the_size_and_the_inodes_it_was_asked_with(machine: FakeMachine):
    await folders_on(machine).publish(order(size_bytes=MIB, inodes=3))

    folder = machine.folders[live()]
    assert machine.limits == {folder.project: ProjectLimits(MIB, 3)}
    assert decode_record(folder.record or b"").project == folder.project
    assert FIRST_PROJECT <= folder.project <= LAST_PROJECT
    machine.tenant_writes(live(), "small", bytes(MIB // 2))
    with pytest.raises(OSError, match="No space left"):
        machine.tenant_writes(live(), "large", bytes(MIB))


class WatchedLimits(dict[int, ProjectLimits]):
    """The limits of a file system; `act` is called after each that is set."""

    def __init__(self, act: Callable[[], object]) -> None:
        super().__init__()
        self._act = act

    def __setitem__(self, project: int, limits: ProjectLimits) -> None:
        super().__setitem__(project, limits)
        self._act()


@pytest.mark.virtual_time
async def test_limits_are_not_lifted_before_the_folder_exists_that_they_are_for(machine: FakeMachine):
    """Nothing counts under the number yet: only its reservation shows that it is in use."""
    folders = folders_on(machine)
    machine.limits = WatchedLimits(folders.numbers.release_unused)
    await folders.publish(order(size_bytes=MIB))
    assert machine.limits == {machine.folders[live()].project: ProjectLimits(MIB, None)}


@pytest.mark.virtual_time
async def test_a_folder_without_limits_has_no_number_and_needs_no_quota(machine: FakeMachine):
    machine.why_no_quota = "None here."
    await folders_on(machine).publish(order())
    assert machine.folders[live()].project == 0
    assert machine.limits == {}


@pytest.mark.virtual_time
@pytest.mark.parametrize("limit", [{"size_bytes": MIB}, {"inodes": 5}], ids=str)
async def test_where_limits_are_not_enforced_the_pod_is_refused_and_nothing_is_left(machine: FakeMachine, limit):
    machine.why_no_quota = "The file system has no project quota. Mount it with prjquota."
    with pytest.raises(FailedPrecondition, match="Mount it with prjquota") as caught:
        await folders_on(machine).publish(order(**limit))
    assert is_final(caught.value)  # kubelet tells the pod, and removes the target
    assert machine.folders == {}
    assert machine.half_made == {}
    assert mounted(machine) == []
    assert names_of(UID) not in machine.kubelet_folders


@pytest.mark.virtual_time
async def test_a_quota_that_goes_while_the_folder_is_made_leaves_no_folder_without_limits(machine: FakeMachine):
    folders = folders_on(machine)
    machine.faults.fail("create", errno.EOPNOTSUPP)
    with pytest.raises(FailedPrecondition):
        await folders.publish(order(size_bytes=MIB))
    assert folder_ids(machine, FolderState.LIVE) == []


@pytest.mark.virtual_time
async def test_a_folder_brought_back_keeps_its_number_and_its_limits(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=MIB))
    number = machine.folders[live()].project
    await folders.unpublish(ID, order().target)
    await folders_on(machine).publish(order(size_bytes=MIB))
    assert machine.folders[live()].project == number
    assert machine.limits == {number: ProjectLimits(MIB, None)}


@pytest.mark.virtual_time
async def test_a_folder_whose_limits_are_not_held_any_more_is_not_brought_back_and_stays_where_it_runs(
    machine: FakeMachine,
):
    machine.kubelet_makes(names_of("u2")[:-1])
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=MIB))
    await folders.publish(order("csi-2", "u2", size_bytes=MIB))
    await folders.unpublish("csi-2", order("csi-2", "u2").target)
    machine.why_no_quota = "It was mounted without."
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=MIB))  # as kubelet asks again after its restart
    with pytest.raises(FailedPrecondition):
        await folders.publish(order(size_bytes=MIB, volume="other"))
    with pytest.raises(FailedPrecondition):
        await folders.publish(order("csi-2", "u2", size_bytes=MIB))
    assert mounted(machine) == [names_of(UID)]
    assert folder_ids(machine, FolderState.RETAINED) == ["csi-2"]


@pytest.mark.virtual_time
async def test_a_publish_with_limits_killed_anywhere_ends_with_a_folder_that_is_held_to_them():
    async def publish(machine: FakeMachine, points: KillPoints) -> None:
        host = FakeNodeHost(machine, points)
        for name in host.workdir.listing(FolderState.LIVE).half_made:
            host.workdir.remove_half_made(live(name))
        folders = folders_on(machine, points)
        await folders.publish(order(size_bytes=MIB))
        folders.numbers.release_unused()

    def check(machine: FakeMachine) -> None:
        folder = machine.folders[live()]
        assert decode_record(folder.record or b"").project == folder.project
        assert machine.limits == {folder.project: ProjectLimits(MIB, None)}
        assert mounted(machine) == [names_of(UID)]

    explored = await explore_kills(machine_with_quota, publish, check, deaths=2)
    assert any("limit the project" in effect for effect in explored.effects)


# ---- numbers ---------------------------------------------------------------------------------------------------------


def numbers_on(machine: FakeMachine, in_records: Callable[[], set[int]] = set) -> ProjectNumbers:
    return ProjectNumbers(FakeNodeHost(machine).workdir, in_records)


def make(machine: FakeMachine, name: str, number: int) -> None:
    FakeNodeHost(machine).workdir.create(live(name), b"", 0o777, FolderQuota(number, ProjectLimits(MIB, None)))


def test_numbers_are_far_from_those_of_kubelet_and_of_container_runtimes():
    assert FIRST_PROJECT > 1_000 * KUBELETS_FIRST
    assert LAST_PROJECT < 2**31  # some programs read them with a sign


@pytest.mark.virtual_time
async def test_the_number_of_an_erased_folder_is_used_again_only_when_nothing_counts_by_it(machine: FakeMachine):
    folders = folders_on(machine)
    await folders.publish(order(size_bytes=MIB, lifespan_seconds=0.0))
    number = machine.folders[live()].project
    await folders.unpublish(ID, order().target)
    assert folders.numbers.release_unused() == 0
    with folders.numbers.reserved() as other:
        assert other != number

    machine.folders.clear()  # the trash was purged
    assert folders.numbers.release_unused() == 2
    assert machine.limits == {}
    with folders.numbers.reserved() as again:
        assert again == number


def test_a_number_that_a_tenant_took_for_its_files_is_passed_over(machine: FakeMachine):
    make(machine, "a", FIRST_PROJECT)
    machine.folders[live("a")].files["left"] = b"x"
    machine.folders[live("a")].left["left"] = FIRST_PROJECT + 1
    numbers = numbers_on(machine)
    with numbers.reserved() as number:
        assert number == FIRST_PROJECT + 2


def test_limits_that_a_dead_process_left_behind_are_lifted(machine: FakeMachine):
    machine.limits[FIRST_PROJECT + 7] = ProjectLimits(MIB, None)
    machine.limits[KUBELETS_FIRST] = ProjectLimits(MIB, None)
    assert numbers_on(machine).release_unused() == 1
    assert machine.limits.keys() == {KUBELETS_FIRST}


def test_a_number_that_was_let_go_ahead_of_its_turn_is_given_to_one_alone(machine: FakeMachine):
    machine.limits[FIRST_PROJECT + 2] = ProjectLimits(MIB, None)
    numbers = numbers_on(machine)
    numbers.release_unused()
    with ExitStack() as held:
        given = [held.enter_context(numbers.reserved()) for _ in range(6)]
    assert given == [FIRST_PROJECT + count for count in range(6)]


def test_a_number_reserved_and_one_of_a_known_folder_are_not_let_go(machine: FakeMachine):
    machine.limits[FIRST_PROJECT] = ProjectLimits(MIB, None)
    numbers = numbers_on(machine, lambda: {FIRST_PROJECT})
    with numbers.reserved():
        assert numbers.release_unused() == 0
    assert machine.limits == {FIRST_PROJECT: ProjectLimits(MIB, None)}


def test_when_all_numbers_are_taken_that_is_a_sentence(machine: FakeMachine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("orlop.driver.project_numbers.LAST_PROJECT", FIRST_PROJECT + 1)
    numbers = numbers_on(machine)
    with (
        numbers.reserved(),
        numbers.reserved(),
        pytest.raises(HostError, match="All project numbers") as caught,
        numbers.reserved(),
    ):
        pass
    assert caught.value.errno == errno.ENOSPC


def test_threads_that_ask_at_once_get_different_numbers(machine: FakeMachine):
    numbers = numbers_on(machine)

    def one(count: int) -> None:
        with numbers.reserved() as number:
            make(machine, f"f{count}", number)

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(one, range(40)))
    assert len({folder.project for folder in machine.folders.values()}) == 40


class Halting:
    """Have the first call of one of the working directory's methods wait until another thread waits for the lock."""

    def __init__(self, numbers: ProjectNumbers, method: str) -> None:
        self.lock = ShownLock()
        self.has_come = threading.Event()
        self._inner = getattr(numbers._quotas, method)
        numbers._lock = self.lock  # type: ignore[assignment]
        setattr(numbers._quotas, method, self._call)

    def _call(self, number: int) -> object:
        if not self.has_come.is_set():
            self.has_come.set()
            self.lock.is_waited_for.wait()
        return self._inner(number)

    def beside(self, act: Callable[[], object]) -> None:
        """Without the lock it does not wait, and then the first call goes on after its end."""
        self.has_come.wait()
        try:
            act()
        finally:
            self.lock.is_waited_for.set()


def test_a_number_is_not_given_to_a_new_folder_while_another_thread_lifts_its_limits(machine: FakeMachine):
    """Else its limits would be lifted when it has a folder again, which could then grow without end."""
    machine.limits[FIRST_PROJECT] = ProjectLimits(MIB, None)
    numbers = numbers_on(machine)
    halting = Halting(numbers, "lift_limits")

    def sweep_and_make() -> None:
        numbers.release_unused()
        with numbers.reserved() as number:
            make(machine, "a", number)

    with ThreadPoolExecutor(2) as threads:
        for done in [threads.submit(numbers.release_unused), threads.submit(halting.beside, sweep_and_make)]:
            done.result()
    assert machine.limits == {machine.folders[live("a")].project: ProjectLimits(MIB, None)}


def test_a_number_is_not_let_go_while_another_thread_is_about_to_reserve_it(machine: FakeMachine):
    """Else the next folder would get it too."""
    machine.limits[FIRST_PROJECT] = ProjectLimits(MIB, None)  # a dead process left them
    numbers = numbers_on(machine)
    halting = Halting(numbers, "quota_usage")

    def reserve_two() -> list[int]:
        with numbers.reserved() as first:
            sweeping.result()
            with numbers.reserved() as second:
                return [first, second]

    with ThreadPoolExecutor(2) as threads:
        sweeping = threads.submit(halting.beside, numbers.release_unused)
        reserved = threads.submit(reserve_two).result()
    assert reserved == [FIRST_PROJECT, FIRST_PROJECT + 1]


@given(st.lists(st.sampled_from(["make", "drop", "sweep", "restart", "steal"]), max_size=40), st.randoms())
def test_no_two_folders_ever_share_a_number_and_all_are_limited(acts: list[str], random):
    machine = machine_with_quota()
    numbers = numbers_on(machine)
    for count, act in enumerate(acts):
        folders = sorted(machine.folders, key=str)
        if act == "make":
            with numbers.reserved() as number:
                make(machine, f"f{count}", number)
        elif act == "drop" and folders:
            del machine.folders[random.choice(folders)]
        elif act == "sweep":
            numbers.release_unused()
        elif act == "restart":
            numbers = numbers_on(machine, lambda: {folder.project for folder in machine.folders.values()})
        elif act == "steal" and folders:
            thief = machine.folders[random.choice(folders)]
            thief.files["left"] = b"x"
            thief.left["left"] = FIRST_PROJECT + random.randrange(20)
        owned = [folder.project for folder in machine.folders.values()]
        assert len(set(owned)) == len(owned)
        assert all(number in machine.limits for number in owned)
    machine.folders.clear()
    numbers.release_unused()
    assert machine.limits == {}


# ---- flags -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sizes", "told"),
    [((0, 0), None), ((MIB, 0), "--default-size cannot"), ((0, MIB), "--max-size cannot"), ((1, 2), "-size and --max")],
)
def test_flags_that_ask_for_what_the_disk_cannot_hold_are_told_at_the_start(sizes: tuple[int, int], told: str | None):
    limits = AdminLimits(1.0, 1.0, *sizes)
    machine = machine_with_pods()
    sentence = why_limits_cannot_be_held(FakeNodeHost(machine).workdir, limits)
    assert (sentence is None) if told is None else (told in str(sentence) and str(sentence).endswith("."))
    machine.why_no_quota = None
    assert why_limits_cannot_be_held(FakeNodeHost(machine).workdir, limits) is None
