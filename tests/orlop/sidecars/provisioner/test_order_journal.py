"""The journal of orders: what it promised is there for the next process, and two never write it at once."""

from __future__ import annotations

import asyncio

import pytest

from orlop.kube.api_errors import ApiError, BadRequest, ConnectionBroken
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import LEASE
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.journal_leases import JournalLost
from support.api.api_wires import NO_RIGHT_TO_LEASES, failing, refusal
from support.provisioning.journal_worlds import (
    NAMESPACE,
    JournalWorld,
    entry,
    large_entry,
)

pytestmark = pytest.mark.virtual_time
FIRST = "orlop-provisioner-journal-mock-example-com-"


async def first_page(world: JournalWorld) -> ObjectName:
    names = [lease["metadata"]["name"] for lease in await world.leases()]
    return ObjectName(NAMESPACE, min(names, key=len))


# ---- what was recorded is there --------------------------------------------------------------------------------------


async def test_what_was_recorded_is_there_for_the_next_process():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            assert ours.entries == []
            await ours.record(entry(1), entry(2))
            await ours.record(entry(1, is_being_deleted=True))
        async with world.opened() as next_one:
            assert next_one.entries == [entry(1, is_being_deleted=True), entry(2)]
            assert next_one.journal.entry("pvc-2") == entry(2)
            assert next_one.journal.entry("pvc-3") is None


async def test_a_record_is_durable_when_it_returns_and_not_before():
    async with JournalWorld() as world, world.opened() as ours:
        recording = asyncio.ensure_future(ours.journal.record(entry(1)))
        await asyncio.sleep(0)
        assert not recording.done()
        await recording
        assert await world.names() == ["pvc-1"]


async def test_what_was_forgotten_is_gone_within_a_second():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1), entry(2))
        ours.journal.forget("pvc-1")
        await world.clock.sleep(1)
        assert await world.names() == ["pvc-2"]


async def test_what_is_left_to_be_forgotten_is_written_at_a_shutdown():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(entry(1))
            ours.journal.forget("pvc-1")
        await ours.journal.flush()
        assert await world.names() == []


async def test_a_volume_that_was_never_recorded_can_be_forgotten():
    async with JournalWorld() as world, world.opened() as ours:
        since = len(world.wire.requests)
        ours.journal.forget("pvc-9")
        await world.clock.sleep(1)
        assert world.wire.written(since) == []


# ---- many in one write -----------------------------------------------------------------------------------------------


async def test_many_records_are_one_write():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(0))
        since = len(world.wire.requests)
        await ours.record(*map(entry, range(1, 200)))
        assert len(world.wire.written(since)) == 1
        assert len(await world.names()) == 200


async def test_many_that_are_forgotten_are_one_write_and_wait_for_a_record():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(*map(entry, range(50)))
        since = len(world.wire.requests)
        for number in range(50):
            ours.journal.forget(f"pvc-{number}")
        await ours.record(entry(50))
        assert len(world.wire.written(since)) == 1
        assert await world.names() == ["pvc-50"]


async def test_writes_are_no_more_than_one_in_twenty_milliseconds():
    async with JournalWorld() as world, world.opened() as ours:
        since, began = len(world.wire.requests), world.clock.elapsed()
        for number in range(50):
            await ours.record(entry(number))
        assert world.clock.elapsed() - began >= 0.02 * 49
        assert len(world.wire.written(since)) == 50


async def test_a_caller_that_gives_up_does_not_undo_the_write_of_the_others():
    async with JournalWorld() as world, world.opened() as ours:
        first = asyncio.ensure_future(ours.journal.record(entry(1)))
        second = asyncio.ensure_future(ours.journal.record(entry(2)))
        await asyncio.sleep(0)
        first.cancel()
        await second
        assert "pvc-2" in await world.names()


# ---- one owner -------------------------------------------------------------------------------------------------------


async def test_a_journal_that_was_taken_over_refuses_the_next_record_of_its_former_owner():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(entry(1))
        async with world.opened() as ours:
            assert ours.entries == [entry(1)]
            with pytest.raises(JournalLost, match=r"is now held by .*use --leader-election"):
                await former.record(entry(2))
            with pytest.raises(JournalLost):
                await former.running
            await ours.record(entry(3))
        assert await world.names() == ["pvc-1", "pvc-3"]


async def test_a_former_owner_that_only_forgets_loses_the_journal_too_and_forgets_nothing():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(entry(1))
        async with world.opened():
            former.journal.forget("pvc-1")
            with pytest.raises(JournalLost):
                await former.running
        assert await world.names() == ["pvc-1"]


async def test_a_new_page_of_a_former_owner_does_not_count():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(large_entry(1, 200))
        async with world.opened() as ours:
            with pytest.raises(JournalLost):
                await former.record(large_entry(2, 200))
            await ours.record(entry(3))
        async with world.opened() as third:
            await third.record(entry(4))


async def test_a_page_that_the_former_owner_adds_during_the_take_over_is_taken_over_too():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(large_entry(1, 200))
        is_first = True

        async def record_first(request: HttpRequest) -> None:
            nonlocal is_first
            if request.method == "PUT" and is_first:
                is_first = False
                await former.record(large_entry(2, 200))

        world.wire.before = record_first
        async with world.opened() as ours:
            assert [each.order.volume_name for each in ours.entries] == ["pvc-1", "pvc-2"]
            assert len(await world.pages()) == 2


async def test_a_page_that_the_next_owner_has_deleted_is_not_created_again_by_the_former():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(large_entry(1, 200))
        await former.record(large_entry(2, 200))
        async with world.opened() as ours:
            ours.journal.forget("pvc-2")
            await world.clock.sleep(1)
            assert len(await world.pages()) == 1
            with pytest.raises(JournalLost):
                await former.record(large_entry(2, 200, is_being_deleted=True))


async def test_a_former_owner_writing_all_the_time_does_not_keep_the_next_from_taking_over():
    async with JournalWorld() as world, world.opened() as former:
        await former.record(entry(1))
        conflicts = 3

        async def write_first(request: HttpRequest) -> None:
            nonlocal conflicts
            if request.method == "PUT" and conflicts:
                conflicts -= 1
                patch = MergePatch({"metadata": {"labels": {"x": str(conflicts)}}})
                await world.client.patch(LEASE, await first_page(world), patch)

        world.wire.before = write_first
        async with world.opened() as ours:
            assert ours.entries == [entry(1)]


async def test_somebody_elses_change_of_our_page_is_not_a_loss():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        patch = MergePatch({"metadata": {"labels": {"team": "storage"}}})
        await world.client.patch(LEASE, await first_page(world), patch)
        await ours.record(entry(2))
        assert await world.names() == ["pvc-1", "pvc-2"]
        (lease,) = await world.leases()
        assert lease["metadata"]["labels"]["team"] == "storage"


# ---- responses are lost, Leases are deleted, the server is away ------------------------------------------------------


async def test_a_lost_response_to_our_own_write_is_not_a_loss():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        world.wire.before = world.losing_response("PUT")
        await ours.record(entry(2))
        assert await world.names() == ["pvc-1", "pvc-2"]


async def test_a_lost_response_to_a_new_page_fails_the_record_and_the_next_one_succeeds():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        world.wire.before = world.losing_response("POST")
        with pytest.raises(ConnectionBroken):
            await ours.record(large_entry(2, 200))
        await ours.record(large_entry(3, 200))
        async with world.opened() as next_one:
            found = {each.order.volume_name for each in next_one.entries}
        assert {"pvc-1", "pvc-3"} <= found


async def test_a_deleted_lease_is_created_again_with_all_its_entries():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        await world.client.delete(LEASE, await first_page(world))
        await ours.record(entry(2))
        assert await world.names() == ["pvc-1", "pvc-2"]


async def test_a_deleted_lease_for_which_the_server_reports_a_conflict_is_created_again():
    """Kubernetes does: the PUT has the uid of an object that is gone."""
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        await world.client.delete(LEASE, await first_page(world))
        world.wire.before = failing("PUT", answer=refusal(409, "Conflict"))
        await ours.record(entry(2))
        assert await world.names() == ["pvc-1", "pvc-2"]


async def test_a_deleted_further_page_is_created_again_and_is_still_one_page():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        await ours.record(large_entry(2, 200))
        second = max((await world.pages()), key=len)
        await world.client.delete(LEASE, ObjectName(NAMESPACE, second))
        answers = {"PUT": refusal(404, "NotFound"), "POST": refusal(400, "BadRequest")}

        async def refuse_once(request: HttpRequest) -> HttpResponse | None:
            return answers.pop(request.method, None)

        world.wire.before = refuse_once
        with pytest.raises(BadRequest):
            await ours.record(large_entry(2, 200, is_being_deleted=True))
        await ours.record(large_entry(2, 200, is_being_deleted=True))
        assert sorted(map(len, (await world.pages()).values())) == [1, 1]
        for number in (1, 2):
            ours.journal.forget(f"pvc-{number}")
        await world.clock.sleep(2)
        assert list((await world.pages()).values()) == [[]]


async def test_a_write_that_fails_fails_its_records_alone_and_what_is_forgotten_is_written_later():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        ours.journal.forget("pvc-1")
        world.wire.before = failing("PUT", answer=refusal(422, "Invalid"))
        with pytest.raises(ApiError):
            await ours.record(entry(2))
        await world.clock.sleep(2)
        assert await world.names() == []
        await ours.record(entry(3))
        assert await world.names() == ["pvc-3"]


async def test_without_rights_the_journal_is_volatile_and_that_is_logged_once():
    async with JournalWorld() as world:
        world.wire.before = failing("GET", "PUT", "POST", times=99, answer=NO_RIGHT_TO_LEASES)
        async with world.opened() as ours:
            await ours.record(entry(1))
            await ours.record(entry(2))
            ours.journal.forget("pvc-1")
            await world.clock.sleep(5)
            assert ours.journal.entry("pvc-1") is None
        assert await world.leases() == []
        (line,) = [each for each in world.log if "journal" in each.message]
        assert "cannot be kept" in line.message


async def test_without_the_right_to_list_the_journal_is_volatile_and_the_process_lives():
    async with JournalWorld() as world:

        async def refuse_lists(request: HttpRequest) -> object:
            return NO_RIGHT_TO_LEASES if request.path.endswith("/leases") and request.method == "GET" else None

        world.wire.before = refuse_lists  # type: ignore[assignment]
        async with world.opened() as ours:
            await ours.record(entry(1))
            assert not ours.running.done()
