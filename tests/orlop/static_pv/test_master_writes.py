"""The writes of the master: they are as decided, seen at once, and made only by the process that leads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import User, service_account_user
from onenode.apiserver.edge.in_process_client import InProcessTransport
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, ConnectionBroken
from orlop.kube.http.http_messages import HttpRequest, HttpResponse
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.leader_election import LeadershipLost
from orlop.kube.objects import ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.provisioner_status import PROVISIONER_STATUS
from orlop.records.static_policy import MASTER_ACCOUNT
from orlop.static_pv.disk_step_rules import EndVolume, OfferDisk, PatchVolume
from orlop.static_pv.master_metrics import MasterMetrics
from orlop.static_pv.master_reports import MasterReports
from orlop.static_pv.master_view import MasterView, master_view
from orlop.static_pv.master_writes import DiskWrite, MasterWrites, Stale
from orlop.static_pv.naming_rules import volume_name
from support.api.api_wires import Wire, refusal
from support.static_volumes.static_objects import CLASS, CONFIGURATION, SPACE
from support.static_volumes.static_worlds import StaticWorld
from support.worlds import Object

pytestmark = pytest.mark.virtual_time
PV = volume_name("disk0", "n1", CLASS)
NAME = ObjectName(None, PV)


@dataclass
class Lease:
    is_lost: bool = False

    def check(self) -> None:
        if self.is_lost:
            raise LeadershipLost("another process leads")


@dataclass
class Writer:
    """A master with the volume of one disk, whose watches deliver nothing: it sees its own writes alone."""

    world: StaticWorld
    view: MasterView
    writes: MasterWrites
    wire: Wire
    lease: Lease

    async def carry_out(self, step: DiskWrite) -> None:
        await self.writes.carry_out(self.view.disks_of("n1", CONFIGURATION, is_gone=False), PV, step)

    @property
    def seen(self) -> Any:
        return self.view.volumes.get(NAME)


async def nothing_comes() -> None:
    await asyncio.Event().wait()


@asynccontextmanager
async def writer() -> AsyncIterator[Writer]:
    async with StaticWorld("n1") as world:
        async with world.master():
            await world.settle(30.0)
        world.nodes.clear()  # its worker writes nothing more
        await world.settle(30.0)
        wire = Wire()
        transport = wire.around(InProcessTransport(world.on.server, User(service_account_user(SPACE, MASTER_ACCOUNT))))
        async with (
            world.controller_parts("static-master", transport) as parts,
            master_view(parts.informers, SPACE) as view,
        ):
            await view.wait_synced()
            wire.before_event = nothing_comes
            reports = MasterReports(view.namespace, parts.events, parts.runtime.clock)
            lease = Lease()
            writes = MasterWrites(
                view,
                kube=parts.kube,
                runtime=parts.runtime,
                reports=reports,
                metrics=MasterMetrics(parts.runtime.metrics),
                may_act=lease.check,
            )
            yield Writer(world, view, writes, wire, lease)


def labelled(obj: Object, value: str) -> PatchVolume:
    """Patch the volume as it was read."""
    patch = JsonPatch().test("metadata", "resourceVersion", value=objects.resource_version(obj))
    return PatchVolume(patch.add("metadata", "labels", "seen", value=value), "a label")


async def test_a_write_is_seen_at_once():
    async with writer() as the:
        await the.world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"labels": {"seen": "0"}}})
        before = (await the.world.volumes())[PV]
        await the.carry_out(labelled(before, "1"))

        assert objects.resource_version(the.seen) != objects.resource_version(before)
        assert objects.resource_version(the.seen) == objects.resource_version((await the.world.volumes())[PV])


async def test_a_volume_that_has_changed_since_is_not_deleted_and_seen_as_it_is():
    async with writer() as the:
        decided_on = the.seen
        await the.world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"labels": {"seen": "1"}}})

        with pytest.raises(Stale):
            await the.carry_out(EndVolume(objects.uid(decided_on), objects.resource_version(decided_on), "a test"))

        stored = (await the.world.volumes())[PV]
        assert not objects.is_being_deleted(stored)
        assert objects.resource_version(the.seen) == objects.resource_version(stored)


async def test_a_volume_that_others_have_deleted_is_not_returned_any_more():
    async with writer() as the:
        decided_on = the.seen
        await the.world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"finalizers": None}})
        await the.world.delete(PERSISTENT_VOLUME, PV)

        with pytest.raises(Stale):
            await the.carry_out(labelled(decided_on, "1"))

        assert the.seen is None


async def test_a_volume_whose_last_finalizer_goes_with_its_deletion_is_gone_at_once():
    async with writer() as the:
        await the.world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"finalizers": None}})
        stored = (await the.world.volumes())[PV]
        await the.carry_out(EndVolume(objects.uid(stored), objects.resource_version(stored), "a test"))

        assert the.seen is None


async def end_volume(the: Writer) -> Object:
    """Delete the volume by our own write; return a function that creates the next one of its name."""
    await the.world.merge(PERSISTENT_VOLUME, PV, {"metadata": {"finalizers": None}})
    stored = (await the.world.volumes())[PV]
    await the.carry_out(EndVolume(objects.uid(stored), objects.resource_version(stored), "a test"))
    return {**{key: value for key, value in stored.items() if key != "status"}, "metadata": {"name": PV}}


async def test_the_next_volume_of_a_name_is_seen_while_the_cache_still_has_the_one_before():
    async with writer() as the:
        await the.carry_out(OfferDisk(await end_volume(the)))

        assert objects.uid(the.seen) == objects.uid((await the.world.volumes())[PV])


async def test_a_write_whose_response_is_lost_is_seen_where_it_was_made():
    async with writer() as the:
        body = await end_volume(the)

        async def lost(request: HttpRequest) -> HttpResponse | None:
            if request.method != "POST":
                return None
            the.wire.before = Wire().before
            await the.world.client.create(PERSISTENT_VOLUME, body)
            raise ConnectionBroken("the connection broke before the response")

        the.wire.before = lost
        with pytest.raises((ApiError, Stale)):
            await the.carry_out(OfferDisk(body))

        assert objects.uid(the.seen) == objects.uid((await the.world.volumes())[PV])


async def test_a_process_that_has_lost_its_lease_repeats_no_write():
    """A POST has no resourceVersion that could make it fail, and the disk may be in a wipe by now."""
    async with writer() as the:
        body = {"metadata": {"name": "pv-late"}, "spec": (await the.world.volumes())[PV]["spec"]}

        async def busy(request: HttpRequest) -> HttpResponse | None:
            if request.method != "POST":
                return None
            the.lease.is_lost, the.wire.before = True, Wire().before
            return refusal(429, "TooManyRequests")

        the.wire.before = busy
        with pytest.raises(LeadershipLost):
            await the.carry_out(OfferDisk(body))

        assert PV in await the.world.volumes()
        assert await the.world.find(PERSISTENT_VOLUME, "pv-late") is None


async def test_the_next_status_of_a_node_is_not_deleted_with_the_one_before():
    async with writer() as the:
        report = await the.world.report("n1")
        assert report is not None
        await the.world.client.delete(PROVISIONER_STATUS, ObjectName(SPACE, "n1"))
        await the.world.client.create(
            PROVISIONER_STATUS, {**report, "metadata": {"namespace": SPACE, "name": "n1"}}, namespace=SPACE
        )

        await the.writes.delete_report("n1")

        assert await the.world.report("n1") is not None
