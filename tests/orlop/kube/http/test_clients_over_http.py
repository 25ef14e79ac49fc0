"""The clients over real sockets: client, informer, election and events together, in real time, against the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

from orlop.foundation.clock import SystemClock
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from orlop.kube.cache.informer import Watched
from orlop.kube.cache.informers import Informers
from orlop.kube.client import KubeClient
from orlop.kube.config.cluster_access import ClusterAccess, FixedCredentials
from orlop.kube.events.event_bodies import Reporter
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.http.http_transport import HttpTransport
from orlop.kube.kinds import EVENT, LEASE, PERSISTENT_VOLUME
from orlop.kube.leader_election import LeaderElection
from orlop.kube.lease_rules import Candidate
from orlop.kube.objects import ObjectName, resource_version
from support.api.kube_model import ModelServer, over_http
from support.processes.http_servers import serving

CLOCK = SystemClock()
PV = PERSISTENT_VOLUME


@asynccontextmanager
async def connected(server: ModelServer) -> AsyncIterator[KubeClient]:
    async with serving(lambda request: over_http(server, request)) as listening:
        transport = HttpTransport(ClusterAccess(listening.address, FixedCredentials()))
        try:
            yield KubeClient(transport, clock=CLOCK, random=Random(1), log=silent_log())
        finally:
            await transport.close()


async def test_a_cache_follows_over_ended_watches_and_its_reader_sees_his_own_write():
    server = ModelServer()
    server.put(PV, "a")
    async with (
        connected(server) as client,
        Informers(client, clock=CLOCK, random=Random(1), log=silent_log()) as informers,
        informers.using(Watched(PV)) as informer,
    ):
        await informer.wait_synced()
        for number in range(5):
            made = await client.create(PV, {"metadata": {"name": f"pv{number}"}})
            await informer.reached(resource_version(made))
            assert informer.get(ObjectName(None, f"pv{number}")) == made
            server.end_watches()
        assert len(informer.cache) == 6
    assert not server.watches


async def test_a_watch_over_a_network_ends_soon_so_that_a_dead_connection_is_noticed():
    server = ModelServer()
    async with (
        connected(server) as client,
        Informers(client, clock=CLOCK, random=Random(1), log=silent_log()) as informers,
        informers.using(Watched(PV)) as informer,
    ):
        await informer.wait_synced()
        await informer.reached(resource_version(await client.create(PV, {"metadata": {"name": "pv"}})))
    seconds = [int(dict(asked.query)["timeoutSeconds"]) for asked in server.asked if "watch=true" in asked.target]
    assert seconds
    assert all(20 <= each <= 30 for each in seconds)


async def test_one_leads_and_leaves_the_lease_free():
    server = ModelServer()
    async with connected(server) as client:
        candidate = Candidate(ObjectName("ns", "lock"), "me")
        election = LeaderElection(client, candidate, clock=CLOCK, random=Random(1), log=silent_log())
        async with election.leading() as leadership:
            assert leadership.held()
            assert server.of(LEASE)[0]["spec"]["holderIdentity"] == "me"
    assert server.of(LEASE)[0]["spec"]["holderIdentity"] == ""


async def test_what_happened_is_told():
    server = ModelServer()
    async with connected(server) as client:
        metrics = Metrics("test", of_process=False)
        reporter = Reporter("orlop.dev/test", "me")
        recorder = EventRecorder(client, reporter, clock=CLOCK, random=Random(1), log=silent_log(), metrics=metrics)
        running = asyncio.create_task(recorder.run())
        recorder.normal(server.put(PV, "a"), "Made", "it is there")
        await recorder.drain(5)
        running.cancel()
        await asyncio.wait([running])
    assert [event["reason"] for event in server.of(EVENT)] == ["Made"]
