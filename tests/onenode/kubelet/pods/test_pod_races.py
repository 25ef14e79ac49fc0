"""Pods whose parts are slow, hang or fail at the wrong moment, and whose cache is behind; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from onenode.kubelet.pods.container_runtime import WantedContainer
from onenode.kubelet.pods.pod_manager import PodManager
from onenode.testing.fake_containers import FakeContainer
from orlop.kube.objects import ObjectName, condition, uid
from support.api.held_way import HeldWay
from support.kubelet.running_pods import PodWorld

pytestmark = pytest.mark.virtual_time
STATUS = "/status"


@asynccontextmanager
async def node() -> AsyncIterator[tuple[PodWorld, HeldWay, PodManager]]:
    async with PodWorld() as w:
        way = HeldWay(w.on.transport())
        async with w.node(way=way) as manager:
            yield w, way, manager


class Gate:
    """Hold every call of a method until `open` is set."""

    def __init__(self, owner: Any, name: str) -> None:
        self.has_come, self.open = asyncio.Event(), asyncio.Event()
        self._inner: Callable[..., Awaitable[Any]] = getattr(owner, name)
        setattr(owner, name, self._call)

    async def _call(self, *given: Any) -> Any:
        self.has_come.set()
        await self.open.wait()
        return await self._inner(*given)


# ---- the order of an end ---------------------------------------------------------------------------------------------


async def test_a_pod_has_its_volumes_until_its_last_container_has_ended():
    async with node() as (w, _, _):
        made = await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=20)
        await w.settle()
        await w.delete_pod()
        await w.settle(19)

        assert w.containers.running()
        assert uid(made) in w.volumes.held


async def test_a_container_that_takes_time_to_die_after_it_was_killed_has_its_volumes_and_its_object_meanwhile(
    monkeypatch: pytest.MonkeyPatch,
):
    """A process in an uninterruptible sleep is killed when the kernel wakes it, and has files open until then."""

    def kill_later(container: FakeContainer) -> None:
        asyncio.get_running_loop().call_later(50, container.end, 137)

    async with node() as (w, _, _):
        made = await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=5)
        await w.settle()
        with monkeypatch.context() as patched:
            patched.setattr(FakeContainer, "kill", kill_later)
            await w.delete_pod()
            await w.settle(30)
            assert w.containers.running()
            assert uid(made) in w.volumes.held
            assert await w.pod() is not None
            await w.settle(60)
            assert await w.pod() is None
        assert w.volumes.held == set()


async def test_the_status_says_that_the_containers_of_a_deleted_pod_have_ended_while_its_volumes_do_not_go():
    async with node() as (w, _, _):
        unmounting = Gate(w.volumes, "let_go")
        await w.make("trap 'exit 5' TERM; sleep 100000")
        await w.settle()
        await w.delete_pod()
        await unmounting.has_come.wait()

        assert (await w.main_status())["state"]["terminated"]["exitCode"] == 5
        assert await w.phase() == "Failed", "what is being deleted is not restarted, whatever its policy says"
        unmounting.open.set()


async def test_the_object_of_a_deleted_pod_stays_until_its_volumes_and_its_logs_are_gone():
    async with node() as (w, _, _):
        unmounting, forgetting = Gate(w.volumes, "let_go"), Gate(w.containers, "forget_pod")
        await w.make()
        await w.settle()
        await w.delete_pod()
        await unmounting.has_come.wait()
        await w.settle()
        assert await w.pod() is not None
        assert not forgetting.has_come.is_set()

        unmounting.open.set()
        await forgetting.has_come.wait()
        await w.settle()
        assert await w.pod() is not None

        forgetting.open.set()
        await w.settle()
        assert await w.pod() is None


async def test_what_fails_while_a_pod_ends_is_tried_again():
    async with node() as (w, _, _):
        failures = [OSError("busy"), OSError("busy")]

        async def fail_first(_pod: Any) -> None:
            if failures:
                raise failures.pop()

        await w.make()
        await w.settle()
        w.volumes.let_go = fail_first  # type: ignore[method-assign]
        await w.delete_pod()
        await w.settle(10)

        assert failures == []
        assert await w.pod() is None


# ---- starts that are given up ----------------------------------------------------------------------------------------


async def test_a_start_that_is_given_up_is_over_before_the_volumes_are_let_go():
    cleaning = asyncio.Event()

    async with node() as (w, _, _):

        async def start(_wanted: WantedContainer) -> FakeContainer:
            try:
                await w.clock.sleep(1_000_000)
            finally:
                cleaning.set()
                await w.clock.sleep(20)
            raise AssertionError

        w.containers.start = start  # type: ignore[method-assign]
        made = await w.make()
        await w.settle()
        await w.delete_pod()
        await cleaning.wait()
        await w.settle(15)
        assert uid(made) in w.volumes.held
        assert await w.pod() is not None

        await w.settle(15)
        assert await w.pod() is None
        assert w.volumes.held == set()


async def test_a_pod_that_is_deleted_goes_though_its_volumes_never_come():
    async with node() as (w, _, _):
        mounting = Gate(w.volumes, "ready")
        await w.make()
        await mounting.has_come.wait()
        await w.delete_pod()
        await w.settle(5)

        assert await w.pod() is None


async def test_a_container_that_has_started_when_its_start_is_given_up_is_ended():
    async with node() as (w, _, _):
        inner = w.containers.start

        async def start(wanted: WantedContainer) -> FakeContainer:
            try:
                await w.clock.sleep(1_000_000)
            except asyncio.CancelledError:
                return await inner(wanted)  # the process was there before it could be given up
            raise AssertionError

        w.containers.start = start  # type: ignore[method-assign]
        await w.make()
        await w.settle()
        await w.delete_pod()
        await w.settle(5)

        assert len(w.containers.began) == 1
        assert w.containers.running() == []
        assert await w.pod() is None


# ---- the API server --------------------------------------------------------------------------------------------------


async def test_a_status_that_was_not_written_is_written_again():
    async with node() as (w, way, _):
        await w.make("sleep 5; exit 0", restartPolicy="Never")
        await w.settle(3)
        writes = [way.hold("PATCH", STATUS) for _ in range(4)]
        for write in writes:
            await write.has_come.wait()
            write.break_off()
        await w.settle(10)

        assert await w.phase() == "Succeeded"


async def test_a_deletion_is_noticed_that_comes_while_a_back_off_is_reported():
    """Not only when the back-off is over, which may be five minutes later."""
    async with node() as (w, way, _):
        await w.make("sleep 15; exit 1")
        await w.settle(29)  # the first restart had no pause, the second has ten seconds
        ended, backing_off = way.hold("PATCH", STATUS), way.hold("PATCH", STATUS)
        await ended.has_come.wait()
        ended.let_go()
        await backing_off.has_come.wait()
        await w.delete_pod()
        await w.settle()
        way.hold_watch("pods")  # nothing wakes the worker that came later than the deletion
        backing_off.let_go()
        await w.settle(2)

        assert await w.pod() is None


async def test_conditions_keep_the_times_of_their_transitions_while_the_cache_is_behind():
    async with node() as (w, way, _):
        w.volumes.seconds = 5
        held = way.hold("PATCH", STATUS)
        await w.make()
        await held.has_come.wait()
        pods = way.hold_watch("pods")
        held.let_go()
        await w.settle(10)
        before = await w.pod()
        pods.set()  # now come the versions that the worker wrote itself, the oldest first
        await w.settle(10)
        after = await w.pod()

    assert before is not None
    assert after == before
    placed, ready = condition(after, "PodScheduled"), condition(after, "Ready")
    assert placed is not None
    assert ready is not None
    assert (placed["lastTransitionTime"], ready["status"]) == (after["metadata"]["creationTimestamp"], "True")


async def test_a_status_is_not_written_on_another_pod_that_has_the_name_by_now():
    async with node() as (w, way, _):
        await w.make("sleep 5; exit 3", restartPolicy="Never")
        await w.settle()
        pods = way.hold_watch("pods")
        await w.delete_pod(grace=0)
        second = await w.make()
        await w.settle(10)
        found = await w.pod()
        assert found is not None
        assert found["status"] == second["status"], "the node does not know of it yet"
        assert w.volumes.held == set(), "the node knows that its own pod is gone"

        pods.set()
        await w.settle()
        assert await w.phase() == "Running"


# ---- the pods of a node ----------------------------------------------------------------------------------------------


async def test_a_pod_ends_whose_name_another_has_in_the_next_thing_that_the_cache_hears():
    async with node() as (w, way, manager):
        first = await w.make("trap '' TERM; sleep 100000", terminationGracePeriodSeconds=30)
        await w.settle()
        way.hold_watch("pods")
        await w.delete_pod(grace=0)
        second = await w.make(terminationGracePeriodSeconds=1)
        way.break_watches("pods")  # so that the next list has the second, and no event tells of the end of the first
        await w.settle(20)
        both = {one.wanted.pod_uid for one in w.containers.running()}
        newest = manager.named(ObjectName("default", "p"))
        await w.settle(60)
        assert uid(first) in both
        assert newest is not None
        assert uid(newest.pod) == uid(second)
        assert w.containers.running(uid(first)) == []
        assert w.containers.running(uid(second)) != []


async def test_nothing_of_a_pod_is_removed_before_the_pods_of_this_node_are_known():
    async with PodWorld() as w:
        async with w.node():
            made = await w.make()
            await w.settle()
        held, logs = set(w.volumes.held), dict(w.containers.logs)
        way = HeldWay(w.on.transport())
        listing = way.hold("GET", "/pods")
        async with w.node(way=way):
            await listing.has_come.wait()
            await w.settle(60)
            assert held == {uid(made)}
            assert (w.volumes.held, w.containers.logs) == (held, logs)
            listing.let_go()
            await w.settle()
            assert await w.phase() == "Running"


async def test_the_logs_of_a_pod_go_whose_object_was_removed_while_the_node_was_away():
    async with PodWorld() as w:
        async with w.node():
            await w.make()
            await w.settle()
        await w.delete_pod(grace=0)
        assert w.containers.logs != {}
        async with w.node():
            await w.settle()
            assert w.containers.logs == {}
