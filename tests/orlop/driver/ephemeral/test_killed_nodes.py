"""A whole node killed before and after every effect, start-up included: the same end as without the kill."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from orlop.csi.error_codes import CsiError
from orlop.host.node_host import FolderPlace, FolderState
from orlop.records.ephemeral_folder import Burial
from orlop.testing.fake_host import FakeMachine
from orlop.testing.kill_points import KillPoints, explore_kills
from support.afterlife.ephemeral_node import ID, UID, folder_ids, machine_with_pods, names_of, order
from support.afterlife.ephemeral_process import GRACE, Ground, NodeProcess, running_process

Act = Callable[[NodeProcess, Ground], Awaitable[None]]
PATIENCE = 60.0
LIFESPAN = 120.0
"""Short: the reaper takes its turns through all of it, in each of a hundred runs."""


def shape(machine: FakeMachine) -> object:
    """All that must not differ: times of burial may."""
    return (
        {state: folder_ids(machine, state) for state in FolderState},
        {place.name.rpartition("_")[2]: folder.files for place, folder in machine.folders.items()},
        {target: len(stack) for target, stack in machine.mounts.items() if stack},
        frozenset(machine.kubelet_folders),
        machine.half_made,
    )


async def explore(before: Act, act: Act, *, deaths: int = 2) -> tuple[object, tuple[str, ...]]:
    """The shape that every kill ends in, and the effects of the run without one."""
    shapes: list[object] = []

    async def build() -> Ground:
        ground = Ground(machine_with_pods())
        async with running_process(ground) as process:
            await before(process, ground)
        return ground

    async def run(ground: Ground, points: KillPoints) -> None:
        async with running_process(ground, points) as process:
            await act(process, ground)

    def check(ground: Ground) -> None:
        shapes.append(shape(ground.machine))
        assert shapes[-1] == shapes[0]

    explored = await explore_kills(build, run, check, deaths=deaths)
    return shapes[0], explored.effects


async def retried(ask: Callable[[], Awaitable[None]]) -> None:
    """As kubelet does it: again and again."""
    for _ in range(3):
        try:
            return await ask()
        except CsiError:
            continue
    raise AssertionError("it never succeeds")


async def nothing(process: NodeProcess, ground: Ground) -> None:
    pass


async def publish(process: NodeProcess, ground: Ground) -> None:
    await retried(lambda: process.folders.publish(order(lifespan_seconds=LIFESPAN)))


async def unpublish(process: NodeProcess, ground: Ground) -> None:
    await retried(lambda: process.folders.unpublish(ID, order().target))


async def use(process: NodeProcess, ground: Ground) -> None:
    await publish(process, ground)
    ground.machine.folders[FolderPlace(FolderState.LIVE, ID)].files["result.csv"] = b"1,2,3"


async def use_and_leave(process: NodeProcess, ground: Ground) -> None:
    await use(process, ground)
    await unpublish(process, ground)


@pytest.mark.virtual_time
async def test_a_publish_ends_the_same_wherever_the_node_is_killed():
    (folders, _, mounts, _, half_made), effects = await explore(nothing, publish)
    assert folders[FolderState.LIVE] == [ID]
    assert mounts == {names_of(UID): 1}
    assert half_made == {}
    assert len(effects) == 4


@pytest.mark.virtual_time
async def test_a_second_target_ends_the_same_wherever_the_node_is_killed():
    async def publish_there(process: NodeProcess, ground: Ground) -> None:
        await retried(lambda: process.folders.publish(order(volume="other")))

    (_, files, mounts, _, _), effects = await explore(use, publish_there)
    assert files == {ID: {"result.csv": b"1,2,3"}}
    assert mounts == {names_of(UID): 1, names_of(UID, "other"): 1}
    assert len(effects) == 3


@pytest.mark.virtual_time
async def test_an_unpublish_ends_the_same_wherever_the_node_is_killed():
    (folders, files, mounts, kubelet, _), effects = await explore(use, unpublish)
    assert folders[FolderState.RETAINED] == [ID]
    assert files == {ID: {"result.csv": b"1,2,3"}}
    assert mounts == {}
    assert names_of(UID) not in kubelet
    assert len(effects) == 3


@pytest.mark.virtual_time
async def test_the_first_of_two_unpublishes_ends_the_same_wherever_the_node_is_killed():
    async def use_twice(process: NodeProcess, ground: Ground) -> None:
        await use(process, ground)
        await process.folders.publish(order(volume="other"))

    (folders, _, mounts, _, _), effects = await explore(use_twice, unpublish)
    assert folders[FolderState.LIVE] == [ID]
    assert mounts == {names_of(UID, "other"): 1}
    assert len(effects) == 3


@pytest.mark.virtual_time
async def test_a_resurrection_ends_the_same_wherever_the_node_is_killed():
    (folders, files, mounts, _, _), effects = await explore(use_and_leave, publish)
    assert folders[FolderState.LIVE] == [ID]
    assert files == {ID: {"result.csv": b"1,2,3"}}
    assert mounts == {names_of(UID): 1}
    assert len(effects) == 3


@pytest.mark.virtual_time
async def test_a_resurrection_at_another_target_ends_the_same_and_is_buried_with_that_one():
    async def come_back_elsewhere(process: NodeProcess, ground: Ground) -> None:
        await retried(lambda: process.folders.publish(order(volume="other")))

    async def come_back_and_go(process: NodeProcess, ground: Ground) -> None:
        await come_back_elsewhere(process, ground)
        await process.folders.unpublish(ID, order(volume="other").target)

    (folders, _, mounts, _, _), effects = await explore(use_and_leave, come_back_elsewhere)
    assert folders[FolderState.LIVE] == [ID]
    assert mounts == {names_of(UID, "other"): 1}
    assert len(effects) == 4
    (folders, _, mounts, _, _), _ = await explore(use_and_leave, come_back_and_go, deaths=1)
    assert folders[FolderState.RETAINED] == [ID]
    assert mounts == {}


@pytest.mark.virtual_time
async def test_the_burial_of_an_orphan_ends_the_same_wherever_the_node_is_killed():
    async def lose_the_pod(process: NodeProcess, ground: Ground) -> None:
        await use(process, ground)
        ground.machine.kubelet_removes(("pods", UID))

    async def wait(process: NodeProcess, ground: Ground) -> None:
        await ground.clock.sleep(2 * GRACE)

    (folders, files, _, _, _), effects = await explore(lose_the_pod, wait)
    assert folders[FolderState.RETAINED] == [ID]
    assert files == {ID: {"result.csv": b"1,2,3"}}
    assert len(effects) == 1


@pytest.mark.virtual_time
@pytest.mark.parametrize("why", ["age", "pressure", "no afterlife"])
async def test_an_erase_ends_the_same_wherever_the_node_is_killed(why: str):
    async def leave(process: NodeProcess, ground: Ground) -> None:
        await use_and_leave(process, ground)
        if why == "pressure":
            ground.machine.used_by_others = ground.machine.total_bytes

    async def publish_without_afterlife(process: NodeProcess, ground: Ground) -> None:
        await process.folders.publish(order(lifespan_seconds=0.0))

    async def wait(process: NodeProcess, ground: Ground) -> None:
        if why == "no afterlife":
            await unpublish(process, ground)
        await ground.clock.sleep(LIFESPAN + PATIENCE if why == "age" else PATIENCE)

    before = publish_without_afterlife if why == "no afterlife" else leave
    (folders, files, _, _, _), effects = await explore(before, wait)
    assert not any(folders.values())
    assert files == {}
    assert len(effects) >= 2


@pytest.mark.virtual_time
async def test_an_erase_in_many_ends_the_same_wherever_the_node_is_killed():
    """Three folders whose time is over in one look at the mounts, one of them mounted meanwhile."""

    async def leave_three(process: NodeProcess, ground: Ground) -> None:
        for name in ("csi-1", "csi-2", "csi-3"):
            asked = order(name, name, lifespan_seconds=LIFESPAN)
            ground.machine.kubelet_makes(names_of(name)[:-1])
            await process.folders.publish(asked)
            await process.folders.unpublish(name, asked.target)
        place = next(place for place in ground.machine.folders if place.name.endswith("csi-2"))
        ground.machine.mount_elsewhere(place)

    async def wait(process: NodeProcess, ground: Ground) -> None:
        await ground.clock.sleep(LIFESPAN + 100.0)

    (folders, _, _, _, _), effects = await explore(leave_three, wait, deaths=1)
    assert folders[FolderState.RETAINED] == ["csi-2"]
    assert folders[FolderState.TRASH] == []
    assert len(effects) == 4


@pytest.mark.virtual_time
async def test_a_start_up_ends_the_same_wherever_it_is_killed():
    """A dead process left one of everything: half made, live, retained, beyond its time, in the trash."""

    async def leave_a_mess(process: NodeProcess, ground: Ground) -> None:
        machine = ground.machine
        for name, lifespan in (("csi-live", LIFESPAN), ("csi-kept", LIFESPAN), ("csi-over", 1.0)):
            asked = order(name, name, lifespan_seconds=lifespan)
            machine.kubelet_makes(names_of(name)[:-1])
            await process.folders.publish(asked)
            if name != "csi-live":
                await process.folders.unpublish(name, asked.target)
        await process.stop()
        machine.half_made[FolderPlace(FolderState.LIVE, "csi-half")] = machine.new_folder(0o700, b"")
        machine.half_made[FolderPlace(FolderState.LIVE, "csi-half-2")] = machine.new_folder(0o700, b"")
        trash = FolderPlace(FolderState.TRASH, Burial("csi-trash", 1.0, 0.0).folder_name)
        machine.folders[trash] = machine.new_folder(0o700, b"")

    async def wait(process: NodeProcess, ground: Ground) -> None:
        await ground.clock.sleep(30.0)

    (folders, _, _, _, half_made), effects = await explore(leave_a_mess, wait)
    assert (folders[FolderState.LIVE], folders[FolderState.RETAINED], folders[FolderState.TRASH]) == (
        ["csi-live"],
        ["csi-kept"],
        [],
    )
    assert half_made == {}
    assert effects[:2] == ("remove half-made live/csi-half", "remove half-made live/csi-half-2")
    assert len(effects) == 5
