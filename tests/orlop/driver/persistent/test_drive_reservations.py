"""Reservations on an API server that enforces the definitions: no overcommit (I2) under parallel calls."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from orlop.csi.error_codes import Aborted, AlreadyExists, CsiError, OutOfRange, ResourceExhausted
from orlop.driver.persistent.drive_reservations import LONGEST_SECONDS, Reserved
from orlop.driver.persistent.reservation_rules import volume_object
from orlop.kube.api_errors import Conflict, StatusError
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.objects import ObjectName
from orlop.records.api_record import part_of
from orlop.records.drive import ALLOCATIONS_FINALIZER, DRIVE
from orlop.records.volume import DriveVolumeSpec
from support.drives.drive_facts import GIB, MIB, wanted
from support.drives.drive_worlds import Allocator, DriveWorld, allocated, check_no_overcommit, drive_id

pytestmark = pytest.mark.virtual_time


async def reserve(allocator: Allocator, name: str = "pvc-1", size: int = GIB, **options: Any) -> Reserved:
    return await allocator.reservations.reserve(wanted(name, size, **options))


async def test_a_reservation_is_listed_with_the_drive_s_finalizer():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()

        reserved = await reserve(allocator, volume_claim_id="6355041d-f9c6-4bd6-9335-f2bccbe73929")

        drive = await world.drive(1)
    assert reserved.is_new
    assert drive["metadata"]["finalizers"] == [ALLOCATIONS_FINALIZER]
    assert drive["spec"]["allocations"] == [
        {"volume": "pvc-1", "bytes": GIB, "volumeClaimID": "6355041d-f9c6-4bd6-9335-f2bccbe73929"}
    ]


async def test_a_repeated_reservation_is_the_first_one():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.add_drive(2)
        await world.settle()

        first = await reserve(allocator)
        again = await reserve(allocator)

        total = {**await world.allocations(1), **await world.allocations(2)}
    assert (again.drive.name, again.placement, again.is_new) == (first.drive.name, first.placement, False)
    assert total == {"pvc-1": GIB}


async def test_a_repeated_reservation_of_another_size_already_exists():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve(allocator)

        with pytest.raises(AlreadyExists, match="of another request"):
            await reserve(allocator, size=2 * GIB)


async def test_a_reservation_that_only_the_cache_still_has_is_made_anew():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve(allocator)
        # Another process returns the space; no watch event has come yet.
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": []}})

        again = await reserve(allocator)

        assert again.is_new
        assert await world.allocations(1) == {"pvc-1": GIB}


async def test_two_hundred_parallel_reservations_fill_eight_drives_exactly():
    async with DriveWorld() as world, world.allocator() as allocator:
        for number in range(8):
            await world.add_drive(number, f"n{number}", capacity=25 * GIB)
        await world.settle()

        await asyncio.gather(*(reserve(allocator, f"pvc-{number}") for number in range(200)))

        check_no_overcommit(world.on)
        sizes = [sum((await world.allocations(number)).values()) for number in range(8)]
        with pytest.raises(ResourceExhausted, match="of 8 drives, 8 have too little free space"):
            await reserve(allocator, "pvc-200")
    assert sizes == [25 * GIB] * 8


async def test_two_controllers_at_once_fill_the_drives_exactly():
    async with DriveWorld() as world, world.allocator("one") as one, world.allocator("two") as two:
        for number in range(4):
            await world.add_drive(number, f"n{number}", capacity=10 * GIB)
        await world.settle()

        answers = await asyncio.gather(
            *(reserve(allocator, f"pvc-{number}") for number in range(20) for allocator in (one, two)),
            return_exceptions=True,
        )
        # Both reserve every name: a name may be listed by two drives until its Volume object decides.
        check_no_overcommit(world.on)
        assert all(isinstance(each, Reserved | ResourceExhausted) for each in answers), answers
        listed = [name for number in range(4) for name in await world.allocations(number)]
    assert len(listed) <= 40
    assert len(set(listed)) >= 20


async def test_two_controllers_with_other_names_share_what_is_there():
    async with DriveWorld() as world, world.allocator("one") as one, world.allocator("two") as two:
        for number in range(4):
            await world.add_drive(number, f"n{number}", capacity=10 * GIB)
        await world.settle()

        answers = await asyncio.gather(
            *(reserve(each, f"pvc-{number}-{name}") for number in range(30) for each, name in ((one, "a"), (two, "b"))),
            return_exceptions=True,
        )
        check_no_overcommit(world.on)
        total = sum([sum((await world.allocations(number)).values()) for number in range(4)])
    assert total == 40 * GIB
    assert sum(isinstance(each, Reserved) for each in answers) == 40
    assert sum(isinstance(each, ResourceExhausted) for each in answers) == 20


async def test_a_drive_that_is_cordoned_meanwhile_takes_no_volume():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await world.merge(DRIVE, drive_id(1), {"spec": {"unschedulable": True}})

        with pytest.raises(ResourceExhausted, match="1 is cordoned"):
            await reserve(allocator)


async def test_a_reservation_and_a_removal_never_both_succeed():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()

        async def remove() -> bool:
            try:
                await world.merge(DRIVE, drive_id(1), {"spec": {"removing": True}})
            except StatusError:
                return False
            return True

        async def try_reserve() -> bool:
            try:
                await reserve(allocator)
            except CsiError:
                return False
            return True

        both = await asyncio.gather(remove(), try_reserve())
        spec = (await world.drive(1))["spec"]
    assert sorted(both) == [False, True]
    assert bool(spec.get("removing")) != bool(spec["allocations"])


async def test_writes_of_status_do_not_disturb_reservations():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await world.set_drive_status(1, volumes=7)

        await reserve(allocator)

    assert allocator.parts.runtime.metrics.render("")[0].count(b"orlop_drive_conflicts_total 0") == 1


async def test_calls_of_one_process_at_once_wait_for_each_other_and_none_is_refused():
    """Each would patch the drive as it was before the others, and all but one would have to begin anew."""
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1, capacity=100 * GIB)
        await world.settle()
        reserved = [await reserve(allocator, f"old-{number}") for number in range(6)]
        lost = volume_object(wanted("lost"), reserved[0].drive, reserved[0].placement)

        async def volumes_on_it() -> dict[str, DriveVolumeSpec]:
            return {"lost": part_of(lost, "spec", DriveVolumeSpec)}

        drive, calls = drive_id(1), allocator.reservations
        for together in (
            [reserve(allocator, f"new-{number}") for number in range(6)],
            [*(calls.grow(drive, f"old-{number}", 2 * GIB) for number in range(3)), calls.release(drive, "old-3")],
            [calls.restore(drive, volumes_on_it), calls.grow(drive, "old-4", 2 * GIB), calls.release(drive, "old-5")],
        ):
            await asyncio.gather(*together)

        sizes = await world.allocations(1)
    assert sizes == {
        **{f"old-{number}": 2 * GIB for number in (0, 1, 2, 4)},
        **{f"new-{number}": GIB for number in range(6)},
        "lost": GIB,
    }
    assert b"orlop_drive_conflicts_total 0" in allocator.parts.runtime.metrics.render("")[0]


REFUSED = b'{"kind":"Status","status":"Failure","reason":"Invalid","code":422}'


class AlwaysChanged:
    """A connection whose patches are refused as if another process had changed the object before each."""

    is_remote = False

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        if request.method == "PATCH":
            patched = await self._inner.exchange(HttpRequest("GET", request.path, (), request.headers), within)
            return HttpResponse(
                422, patched.headers, b'{"kind":"Status","status":"Failure","reason":"Invalid","code":422}'
            )
        return await self._inner.exchange(request, within)


async def test_conflicts_without_end_are_aborted_at_the_deadline():
    async with DriveWorld() as world, world.allocator(transport=AlwaysChanged(world.transport())) as allocator:
        await world.add_drive(1)
        await world.settle()
        begun = world.clock.elapsed()

        with pytest.raises(Aborted, match="try again"):
            await reserve(allocator)
    assert world.clock.elapsed() - begun >= LONGEST_SECONDS


# ---- growth and release ----------------------------------------------------------------------------------------------


async def test_a_reservation_grows_within_the_drive_and_never_shrinks():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1, capacity=4 * GIB)
        await world.settle()
        await reserve(allocator)
        await reserve(allocator, "pvc-2")

        await allocator.reservations.grow(drive_id(1), "pvc-1", 3 * GIB)
        await allocator.reservations.grow(drive_id(1), "pvc-1", 2 * GIB)
        with pytest.raises(ResourceExhausted, match="has 0 free, and 1Mi more are asked for"):
            await allocator.reservations.grow(drive_id(1), "pvc-1", 3 * GIB + MIB)
        with pytest.raises(OutOfRange, match="is more than the drive"):
            await allocator.reservations.grow(drive_id(1), "pvc-1", 5 * GIB)
        with pytest.raises(Aborted, match="does not list the volume pvc-9"):
            await allocator.reservations.grow(drive_id(1), "pvc-9", GIB)

        assert await world.allocations(1) == {"pvc-1": 3 * GIB, "pvc-2": GIB}


async def test_the_last_release_removes_the_finalizer_and_every_repetition_does_nothing():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve(allocator)
        await reserve(allocator, "pvc-2")
        await allocator.reservations.release(drive_id(1), "pvc-1")
        held = await world.drive(1)

        for _ in range(2):
            await allocator.reservations.release(drive_id(1), "pvc-2")
        await allocator.reservations.release(drive_id(7), "pvc-2")

        free = await world.drive(1)
    assert (allocated(held), held["metadata"]["finalizers"]) == ({"pvc-2": GIB}, [ALLOCATIONS_FINALIZER])
    assert allocated(free) == {}
    assert "finalizers" not in free["metadata"] or free["metadata"]["finalizers"] == []


async def test_a_drive_with_volumes_is_not_deleted_and_takes_none_while_it_is_being_deleted():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        await reserve(allocator)
        await world.delete(DRIVE, drive_id(1))
        await world.settle()

        with pytest.raises(ResourceExhausted, match="1 is being removed"):
            await reserve(allocator, "pvc-2")
        await allocator.reservations.release(drive_id(1), "pvc-1")

        assert await world.find(DRIVE, drive_id(1)) is None


async def test_other_finalizers_of_the_drive_stay():
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.client.patch(
            DRIVE, ObjectName(None, drive_id(1)), MergePatch({"metadata": {"finalizers": ["example.com/theirs"]}})
        )
        await world.settle()
        await reserve(allocator)
        await allocator.reservations.release(drive_id(1), "pvc-1")

        assert (await world.drive(1))["metadata"]["finalizers"] == ["example.com/theirs"]


async def test_a_drive_that_has_changed_since_it_was_decided_on_is_not_deleted():
    """It may list a volume now."""
    async with DriveWorld() as world, world.allocator() as allocator:
        await world.add_drive(1)
        await world.settle()
        facts = allocator.catalog.get(drive_id(1))
        assert facts is not None
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})

        with pytest.raises(Conflict):
            await allocator.reservations.delete_drive(facts)

        assert await world.allocations(1) == {"pvc-1": GIB}


async def test_space_that_returns_while_its_drive_is_restored_is_not_reserved_again():
    """The volumes are read after the drive: what was returned in between has moved the drive's generation."""
    async with DriveWorld() as world, world.allocator() as allocator, world.allocator("other") as other:
        await world.add_drive(1)
        await world.settle()
        reserved = await reserve(allocator)
        await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": []}})  # lost
        spec = part_of(volume_object(wanted("pvc-1"), reserved.drive, reserved.placement), "spec", DriveVolumeSpec)

        async def volumes_before_the_erased_one_went() -> dict[str, DriveVolumeSpec]:
            await world.merge(DRIVE, drive_id(1), {"spec": {"allocations": [{"volume": "pvc-1", "bytes": GIB}]}})
            await other.reservations.release(drive_id(1), "pvc-1")
            return {"pvc-1": spec}

        with pytest.raises(Aborted):
            await allocator.reservations.restore(drive_id(1), volumes_before_the_erased_one_went)

        assert await world.allocations(1) == {}
