"""A process's lease, where it was told to elect a leader: who does not lead waits, and who has lost it must not act.

Renewed by a client of its own where requests are limited in their rate: a lease that is renewed behind a hundred others
is lost when there is most to do.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from orlop.kube.client import KubeClient
from orlop.kube.leader_election import LeaderElection, Leadership
from orlop.kube.lease_rules import Candidate
from orlop.kube.objects import ObjectName
from orlop.processes.daemon import Surroundings
from orlop.processes.leader_flags import LeaderSettings


class LeaseSide:
    def __init__(self, settings: LeaderSettings, given: Surroundings, kube: KubeClient, namespace: str) -> None:
        """`namespace` is the one for leases where the flags name none; `kube` must not be limited in its rate."""
        self._settings = settings
        self._given = given
        self._kube = kube
        self._namespace = settings.leader_election_namespace or namespace
        # Machines' names are shared, by the pods in a node's network too; whoever is killed waits for his own lease.
        self._identity = f"{socket.gethostname()}_{given.random.getrandbits(64):016x}"
        self._leadership: Leadership | None = None

    @asynccontextmanager
    async def leading(self, lease: str) -> AsyncIterator[Callable[[], None]]:
        """Entered when we lead. What it gives raises `LeadershipLost` when we do no more, and so does leaving it."""
        if not self._settings.leader_election:
            yield _always
            return
        name = ObjectName(self._namespace, lease)
        labels = self._settings.leader_election_labels
        candidate = Candidate(name, self._identity, self._settings.times, labels)
        given = self._given
        election = LeaderElection(self._kube, candidate, clock=given.clock, random=given.random, log=given.log)
        async with election.leading() as leadership:
            self._leadership = leadership
            try:
                yield leadership.guard
            finally:
                self._leadership = None

    async def why_not_leading(self) -> str | None:
        """Only a leader that has lost its lease, and does not end, is ill."""
        lost = self._leadership is not None and not self._leadership.held()
        return "the lease is lost, and the process has not ended" if lost else None


def _always() -> None:
    """Without an election everybody may."""
