"""The flags by which sidecars are told to elect a leader: upstream's, the same for each of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import MapOf, boolean, flag, text
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value
from orlop.kube.lease_rules import LeaseTimes


def are_labels(found: Mapping[str, str]) -> str | None:
    """A lease with others would be refused by the API server for ever."""
    for key, value in found.items():
        if faults := (*faults_of_label_key(key), *faults_of_label_value(value)):
            return f"{key}:{value} is no label: {faults[0]}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSettings:
    leader_election: bool = flag(
        boolean, default="false", help="Work only while leading; several replicas may run then."
    )
    leader_election_namespace: str = flag(
        text,
        default="",
        metavar="NAMESPACE",
        env="POD_NAMESPACE",
        help="Where the lease is; not given: the pod's own.",
    )
    leader_election_lease_duration: Duration = flag(
        Duration.parse, default="15s", metavar="DURATION", help="How long others wait before they take over."
    )
    leader_election_renew_deadline: Duration = flag(
        Duration.parse,
        default="10s",
        metavar="DURATION",
        help="How long a leader tries to renew before it gives up, and how long it waits for a driver that is away.",
    )
    leader_election_retry_period: Duration = flag(
        Duration.parse, default="5s", metavar="DURATION", help="How often everybody tries."
    )
    leader_election_labels: Mapping[str, str] = flag(
        MapOf(text, sign=":"),
        default="",
        metavar="K:V,…",
        check=are_labels,
        help="Labels that the lease is given by whoever leads; those of others stay.",
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
            yield "--leader-election-renew-deadline must be above 0: so long is a driver waited for, lease or not."
        elif self.leader_election:
            yield from self._what_cannot_be_led_with()

    def _what_cannot_be_led_with(self) -> Iterator[str]:
        try:
            _ = self.times
        except ValueError as error:
            yield f"--leader-election-*: {error}."
