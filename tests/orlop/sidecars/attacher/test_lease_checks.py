"""An attacher that has lost its lease does nothing more: each effect is checked, whichever comes first."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from orlop.kube import objects
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import PERSISTENT_VOLUME, VOLUME_ATTACHMENT
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.objects import ObjectName
from orlop.sidecars.attacher.attach_rules import NODE_ID_ANNOTATION, is_attached
from support.api.api_wires import refusal
from support.attaching.attacher_worlds import OURS, PUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
VA, PV = ObjectName(None, "va1"), ObjectName(None, "pv1")
PROTECTED = MergePatch({"metadata": {"finalizers": [OURS]}})
PREPARED = MergePatch({"metadata": {"finalizers": [OURS], "annotations": {NODE_ID_ANNOTATION: "id-1"}}})


async def fresh(world: AttacherWorld) -> None:
    await world.node()
    await world.volume()
    await world.wanted()


async def with_a_protected_volume(world: AttacherWorld) -> None:
    await fresh(world)
    await world.client.patch(PERSISTENT_VOLUME, PV, PROTECTED)


async def ready_to_publish(world: AttacherWorld) -> None:
    await with_a_protected_volume(world)
    await world.client.patch(VOLUME_ATTACHMENT, VA, PREPARED)


async def ready_to_unpublish(world: AttacherWorld) -> None:
    await ready_to_publish(world)
    await world.delete(VOLUME_ATTACHMENT, "va1")


async def volume_to_be_released(world: AttacherWorld) -> None:
    await world.volume()
    await world.client.patch(PERSISTENT_VOLUME, PV, PROTECTED)
    await world.delete(PERSISTENT_VOLUME, "pv1")


Prepare = Callable[[AttacherWorld], Awaitable[None]]


class Lease:
    """One that is lost when it was checked so many times."""

    def __init__(self, checks: int) -> None:
        self.left = checks

    def check(self) -> None:
        if not self.left:
            raise LeadershipLost("the lease is lost")
        self.left -= 1


async def run_without_lease(world: AttacherWorld, lease: Lease, *, trivial: bool) -> int:
    """How many requests were made before."""
    async with world.parts(drift_check=0.0) as parts:
        before = len(world.wire.requests)
        running = asyncio.ensure_future(parts.controller(trivial=trivial, may_act=lease.check).run())
        await world.clock.sleep(30)
        running.cancel()
        await asyncio.wait([running])
        return before


CASES: list[tuple[Prepare, bool]] = [
    (fresh, False),
    (with_a_protected_volume, False),
    (ready_to_publish, False),
    (ready_to_unpublish, False),
    (volume_to_be_released, False),
    (fresh, True),
    (ready_to_publish, True),
    (ready_to_unpublish, True),
    (volume_to_be_released, True),
]


@pytest.mark.parametrize(
    ("prepare", "trivial"), CASES, ids=[f"{'trivial ' if row[1] else ''}{row[0].__name__}" for row in CASES]
)
async def test_without_the_lease_nothing_is_written_and_the_driver_is_not_called(prepare: Prepare, *, trivial: bool):
    async with AttacherWorld() as world:
        await prepare(world)
        before = await run_without_lease(world, Lease(0), trivial=trivial)
        assert world.wire.written(before) == []
        assert world.calls() == []


async def test_a_lease_that_is_lost_during_the_call_leaves_the_result_to_the_next_leader():
    async with AttacherWorld() as world:
        await ready_to_publish(world)
        await run_without_lease(world, Lease(1), trivial=False)
        assert world.calls() == [PUBLISH]
        found = await world.attachment()
        assert not is_attached(found)
        assert objects.has_finalizer(found, OURS)
        async with world.attacher():
            await world.until_attached()


@pytest.mark.parametrize("trivial", [False, True])
async def test_a_write_that_the_server_refused_for_now_is_not_repeated_after_the_lease_is_lost(*, trivial: bool):
    async with AttacherWorld() as world:
        await fresh(world)
        lease = Lease(1_000)

        async def lose_lease(request: HttpRequest) -> HttpResponse | None:
            if request.method == "GET":
                return None
            lease.left = 0
            return refusal(429, "TooManyRequests")

        world.wire.before = lose_lease
        before = await run_without_lease(world, lease, trivial=trivial)
        assert len(world.wire.written(before)) == 1
