"""The pages of the journal: how they are split, kept and named."""

from __future__ import annotations

import asyncio

import pytest
import yaml

from onenode.apiserver.access.rbac_rules import AUTHENTICATED, User
from orlop.kube.client import MergePatch
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import LEASE, ROLE, ROLE_BINDING
from orlop.kube.kinds import NAMESPACE as NAMESPACE_KIND
from orlop.kube.objects import ObjectName
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL, PageOverflow, encode_page
from support.api.api_wires import NO_RIGHT_TO_LEASES, Wire, failing
from support.places import REPOSITORY
from support.provisioning.journal_worlds import (
    DRIVER,
    NAMESPACE,
    JournalWorld,
    entry,
    large_entry,
)

pytestmark = pytest.mark.virtual_time
PROVISIONERS = "orlop-system"
FIRST = "orlop-provisioner-journal-mock-example-com-"


async def first_page(world: JournalWorld) -> ObjectName:
    names = [lease["metadata"]["name"] for lease in await world.leases()]
    return ObjectName(NAMESPACE, min(names, key=len))


# ---- pages -----------------------------------------------------------------------------------------------------------


async def test_a_page_that_is_full_is_followed_by_another_and_an_empty_one_is_deleted():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        await ours.record(large_entry(2, 200))
        await ours.record(entry(3))
        assert sorted((await world.pages()).values()) == [["pvc-1", "pvc-3"], ["pvc-2"]]
        ours.journal.forget("pvc-2")
        await world.clock.sleep(1)
        assert list((await world.pages()).values()) == [["pvc-1", "pvc-3"]]


async def test_a_batch_that_fits_into_no_page_is_split_and_every_page_is_small_enough_for_a_lease():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(*(large_entry(number, 80) for number in range(10)))
        pages = [lease["metadata"]["annotations"].get(ANNOTATION, "") for lease in await world.leases()]
        assert len(pages) >= 4
        assert max(map(len, pages)) <= 256 << 10
        async with world.opened() as next_one:
            assert len(next_one.entries) == 10


async def test_pages_are_added_taken_over_and_deleted_with_the_rights_of_the_role_and_no_lease_is_patched():
    kinds = {each.kind: each for each in (ROLE, ROLE_BINDING)}
    objects = yaml.safe_load_all((REPOSITORY / "deploy" / "manifests" / "provisioner" / "rbac.yaml").read_text())
    async with JournalWorld() as world:
        await world.create(NAMESPACE_KIND, {"metadata": {"name": PROVISIONERS}})
        for each in objects:
            if each["kind"] in kinds:
                await world.create(kinds[each["kind"]], each)
        world.user = User(f"system:serviceaccount:{PROVISIONERS}:orlop-provisioner", (AUTHENTICATED,))
        async with world.opened(namespace=PROVISIONERS) as first:
            await first.record(large_entry(1, 200))
            await first.record(large_entry(2, 200))
        async with world.opened(namespace=PROVISIONERS) as second:
            assert len(second.entries) == len(await world.pages()) == 2
            second.journal.forget("pvc-2")
            await world.clock.sleep(1)
        assert list((await world.pages()).values()) == [["pvc-1"]]
        assert {request.method for request in world.wire.requests} == {"GET", "POST", "PUT", "DELETE"}


async def test_an_order_that_is_too_large_for_any_page_fails_alone():
    async with JournalWorld() as world, world.opened() as ours:
        results = await asyncio.gather(
            *map(ours.journal.record, [large_entry(1, 400), entry(2), large_entry(3, 200)]), return_exceptions=True
        )
        assert [type(result) for result in results] == [PageOverflow, type(None), type(None)]
        assert await world.names() == ["pvc-2", "pvc-3"]


async def test_entries_stay_in_their_page():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        await ours.record(large_entry(2, 200))
        ours.journal.forget("pvc-1")
        await world.clock.sleep(1)
        before = await world.pages()
        await ours.record(large_entry(2, 200, is_being_deleted=True))
        assert await world.pages() == before


async def test_an_entry_that_outgrows_its_page_moves_to_another_one():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(large_entry(1, 120), large_entry(2, 120))
            await ours.record(large_entry(2, 260))
            await world.clock.sleep(2)
            assert sorted((await world.pages()).values()) == [["pvc-1"], ["pvc-2"]]
            await ours.record(large_entry(2, 260, is_being_deleted=True))
        async with world.opened() as next_one:
            assert next_one.entries == [large_entry(1, 120), large_entry(2, 260, is_being_deleted=True)]


async def test_an_entry_is_in_its_new_page_before_it_leaves_the_former_one():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(large_entry(1, 120), large_entry(2, 120))
            first = await first_page(world)

            async def dies_before_it_leaves(request: HttpRequest) -> None:
                is_first = request.path.endswith(first.name)
                if request.method == "PUT" and is_first and len(await world.leases()) > 1:
                    proves.append(request)
                    if len(proves) > 1:
                        await world.clock.sleep(10_000_000)

            proves: list[HttpRequest] = []
            world.wire.before = dies_before_it_leaves
            await ours.record(large_entry(2, 260, deadline=2e9))
            assert sorted(await world.names()) == ["pvc-1", "pvc-2", "pvc-2"]
            await world.clock.sleep(2)
        assert len(proves) == 2
        world.wire.before = nothing
        async with world.opened() as next_one:
            assert next_one.entries == [large_entry(1, 120), large_entry(2, 260, deadline=2e9)]
            await next_one.record(entry(3))
            assert await world.names() == ["pvc-1", "pvc-2", "pvc-3"]


async def nothing(_request: HttpRequest) -> None:
    """Carry every request."""


async def test_a_page_that_is_nearly_full_takes_no_new_entries_and_keeps_room_for_its_own():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(*(large_entry(number, 125) for number in (1, 2)))
        await ours.record(large_entry(3, 20))
        assert sorted((await world.pages()).values()) == [["pvc-1", "pvc-2"], ["pvc-3"]]
        await ours.record(*(large_entry(number, 160) for number in (1, 2)))
        assert sorted((await world.pages()).values()) == [["pvc-1", "pvc-2"], ["pvc-3"]]


async def test_an_entry_that_nearly_fills_a_page_has_one_of_its_own():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 300), entry(2))
        assert sorted((await world.pages()).values()) == [[], ["pvc-1"], ["pvc-2"]]


async def test_an_entry_that_is_forgotten_while_another_page_is_written_goes_with_its_own():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        await ours.record(large_entry(2, 120), large_entry(3, 120))
        first = str(await first_page(world))

        async def forget_then(request: HttpRequest) -> None:
            if request.method == "PUT" and request.path.endswith(first.rpartition("/")[2]):
                ours.journal.forget("pvc-3")

        world.wire.before = forget_then
        await ours.record(large_entry(1, 200, is_being_deleted=True), large_entry(2, 120, is_being_deleted=True))
        await world.clock.sleep(2)
        assert await world.names() == ["pvc-1", "pvc-2"]


async def test_a_page_that_cannot_be_read_is_kept_and_the_others_are_read():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(large_entry(1, 200))
            await ours.record(large_entry(2, 200))
        second = ObjectName(NAMESPACE, max((await world.pages()), key=len))
        broken = MergePatch({"metadata": {"annotations": {ANNOTATION: "!!"}}})
        await world.client.patch(LEASE, second, broken)
        async with world.opened() as next_one:
            assert [each.order.volume_name for each in next_one.entries] == ["pvc-1"]
            await next_one.record(large_entry(3, 200))
            next_one.journal.forget("pvc-1")
            await world.clock.sleep(1)
        lease = await world.client.get(LEASE, second)
        assert lease["metadata"]["annotations"][ANNOTATION] == "!!"
        assert [line.message for line in world.log if "cannot be read" in line.message]


async def test_a_first_page_that_cannot_be_read_is_kept_when_a_new_page_is_added():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(entry(1))
        first = await first_page(world)
        await world.client.patch(LEASE, first, MergePatch({"metadata": {"annotations": {ANNOTATION: "!!"}}}))
        async with world.opened() as next_one:
            await next_one.record(entry(2))
        assert (await world.client.get(LEASE, first))["metadata"]["annotations"][ANNOTATION] == "!!"
        async with world.opened() as third:
            assert third.entries == [entry(2)]


@pytest.mark.parametrize("deadlines", [(1e9, 2e9), (2e9, 1e9)], ids=["the second", "the first"])
async def test_of_two_entries_for_one_volume_the_later_counts_and_both_are_forgotten(deadlines: tuple[float, float]):
    """A page whose creation failed for its writer may exist all the same."""
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(entry(1, deadline=deadlines[0]))
        (first,) = await world.leases()
        second = {
            "name": f"{first['metadata']['name']}-1",
            "namespace": NAMESPACE,
            "labels": first["metadata"]["labels"],
        }
        page = {ANNOTATION: encode_page([entry(1, deadline=deadlines[1])])}
        body = {"metadata": {**second, "annotations": page}, "spec": {"holderIdentity": "somebody"}}
        await world.client.create(LEASE, body)
        async with world.opened() as next_one:
            assert next_one.entries == [entry(1, deadline=2e9)]
            next_one.journal.forget("pvc-1")
            await world.clock.sleep(1)
        assert await world.names() == []


async def test_a_page_whose_label_was_removed_is_found_and_labelled_again():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(large_entry(1, 200))
            await ours.record(large_entry(2, 200))
        for lease in await world.leases():
            name = ObjectName(NAMESPACE, lease["metadata"]["name"])
            await world.client.patch(LEASE, name, MergePatch({"metadata": {"labels": None}}))
        async with world.opened() as next_one:
            assert next_one.entries == [large_entry(1, 200), large_entry(2, 200)]
        labels = [lease["metadata"]["labels"] for lease in await world.leases()]
        assert labels == [{DRIVER_LABEL: DRIVER}] * 2


async def test_an_entry_of_the_time_without_rights_that_is_forgotten_while_it_is_written_leaves_the_journal():
    async with JournalWorld() as world, world.opened() as ours:
        world.wire.before = failing("PUT", times=1, answer=NO_RIGHT_TO_LEASES)
        await ours.record(entry(1))
        assert await world.names() == []

        async def forget_then(request: HttpRequest) -> None:
            if request.method == "PUT":
                ours.journal.forget("pvc-1")

        world.wire.before = forget_then
        await ours.record(entry(2))
        world.wire.before = nothing
        await world.clock.sleep(2)
        assert await world.names() == ["pvc-2"]


# ---- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("other", ["a-b", "A.b", "a.B", "a.b.c", "a.b-1"])
async def test_drivers_with_similar_names_have_journals_of_their_own(other: str):
    async with JournalWorld() as world:
        async with world.opened("a.b") as one, world.opened(other) as another:
            await one.record(entry(1))
            await another.record(entry(2))
        async with world.opened("a.b") as one, world.opened(other) as another:
            assert (one.entries, another.entries) == ([entry(1)], [entry(2)])


async def test_each_namespace_has_a_journal_of_its_own():
    async with JournalWorld() as world:
        async with world.opened() as ours:
            await ours.record(entry(1))
        async with world.opened(namespace="kube-system") as other:
            assert other.entries == []


async def test_a_lease_of_the_journal_says_whose_it_is():
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(entry(1))
        (lease,) = await world.leases()
        assert lease["metadata"]["name"].startswith(FIRST)
        assert lease["metadata"]["labels"] == {DRIVER_LABEL: DRIVER}
        assert lease["spec"]["holderIdentity"].startswith(DRIVER)


async def test_a_page_that_the_former_owner_adds_while_the_journal_is_taken_over_is_found():
    """Its order counts as recorded, and its call may follow."""
    async with JournalWorld() as world, world.opened() as ours:
        await ours.record(large_entry(1, 200))
        first = await first_page(world)

        async def recorded_meanwhile(request: HttpRequest) -> None:
            if request.method == "PUT" and request.path.endswith(f"/{first.name}"):
                world.wire.before = Wire().before
                await ours.record(large_entry(2, 200))

        world.wire.before = recorded_meanwhile
        async with world.opened() as theirs:
            assert [each.order.volume_name for each in theirs.entries] == ["pvc-1", "pvc-2"]
