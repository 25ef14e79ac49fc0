"""Leader election of a process: its flags, which are upstream's, and the lease that they describe.

A process that does not lead waits; a process that lost its lease must not act. If the rate of requests is limited, a
separate client renews the lease: a renewal that waits behind a hundred other requests would lose the lease when there
is most work.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import MapOf, boolean, flag, text
from orlop.foundation.runtime import Runtime
from orlop.kube.client import KubeClient
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value
from orlop.kube.leader_election import LeaderElection, Leadership
from orlop.kube.lease_rules import Candidate, LeaseTimes
from orlop.kube.objects import ObjectName

STATUS: Final = "leader_election_master_status"
"""The metric that client-go has; alerts of upstream's sidecars name it."""


def fault_of_labels(labels: Mapping[str, str]) -> str | None:
    """Return what is wrong with the labels: with wrong ones, the API server would refuse every write of the lease."""
    for key, value in labels.items():
        if faults := (*faults_of_label_key(key), *faults_of_label_value(value)):
            return f"{key}:{value} is not a label: {faults[0]}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    leader_election: bool = flag(
        boolean, default="false", help="Work only while holding the lease, so that several replicas may run."
    )
    leader_election_namespace: str = flag(
        text,
        default="",
        metavar="NAMESPACE",
        env="POD_NAMESPACE",
        help="Namespace of the lease; if not set, the pod's own.",
    )
    leader_election_lease_duration: Duration = flag(
        Duration.parse, default="15s", metavar="DURATION", help="How long other replicas wait before they take over."
    )
    leader_election_renew_deadline: Duration = flag(
        Duration.parse,
        default="10s",
        metavar="DURATION",
        help="How long the leader tries to renew the lease before it exits, and how long it waits for a driver that "
        "does not respond.",
    )
    leader_election_retry_period: Duration = flag(
        Duration.parse,
        default="5s",
        metavar="DURATION",
        help="Interval of attempts to acquire or renew the lease.",
    )
    leader_election_labels: Mapping[str, str] = flag(
        MapOf(text, sign=":"),
        default="",
        metavar="K:V,…",
        check=fault_of_labels,
        help="Labels that the leader sets on the lease; other labels stay.",
    )

    @property
    def times(self) -> LeaseTimes:
        return LeaseTimes(
            self.leader_election_lease_duration.seconds,
            self.leader_election_renew_deadline.seconds,
            self.leader_election_retry_period.seconds,
        )

    def cross_check(self) -> Iterator[str]:
        if self.leader_election_renew_deadline.seconds <= 0:
            yield "--leader-election-renew-deadline must be above 0: it also limits how long a driver may not respond."
        elif self.leader_election:
            try:
                _ = self.times
            except ValueError as error:
                yield f"--leader-election-*: {error}."


class LeaseWiring:
    """Leader election by the flags. `namespace` is used for the lease if the flags name none.

    The rate of requests of `kube` must not be limited.
    """

    def __init__(self, settings: LeaderSettings, runtime: Runtime, kube: KubeClient, namespace: str) -> None:
        self._settings = settings
        self._runtime = runtime
        self._kube = kube
        self.namespace = settings.leader_election_namespace or namespace
        # Host names are not unique: pods in a node's network share the node's name. With the random part, two processes
        # on one machine never both lead. A restarted process has another identity, and waits until its lease expires.
        self._identity = f"{socket.gethostname()}_{runtime.random.getrandbits(64):016x}"
        self._leadership: Leadership | None = None
        self._lease = ""
        """The name of the lease; empty until it is first requested."""
        if settings.leader_election:
            runtime.metrics.gauge_from(STATUS, "1 while this process holds the lease, else 0.", self._status, ("name",))

    @asynccontextmanager
    async def leading(self, lease: str) -> AsyncIterator[Callable[[], None]]:
        """Wait until this process leads; yield a guard that raises `LeadershipLost` if the lease is lost.

        Leaving the context without the lease raises it too.
        """
        if not self._settings.leader_election:
            yield _always
            return
        self._lease = lease
        name = ObjectName(self.namespace, lease)
        candidate = Candidate(name, self._identity, self._settings.times, self._settings.leader_election_labels)
        runtime = self._runtime
        election = LeaderElection(self._kube, candidate, clock=runtime.clock, random=runtime.random, log=runtime.log)
        async with election.leading() as leadership:
            self._leadership = leadership
            try:
                yield leadership.guard
            finally:
                self._leadership = None

    def _status(self) -> dict[tuple[str, ...], float]:
        is_held = self._leadership is not None and self._leadership.held()
        return {(self._lease,): float(is_held)} if self._lease else {}

    async def why_not_leading(self) -> str | None:
        """Return a fault only for a leader that has lost its lease and has not ended."""
        is_lost = self._leadership is not None and not self._leadership.held()
        return "the lease is lost, and the process has not ended" if is_lost else None


def _always() -> None:
    """Guard nothing: without leader election every process may act."""
