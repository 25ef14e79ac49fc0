"""Decide who may acquire a Lease, and what to write then. Pure.

The rules are client-go's, so that our candidates and those of upstream sidecars work together. A holder renews well
before its lease expires, and stops leading at the renew deadline, before anybody may take over. Nobody trusts another's
clock: a lease has expired when its record has not changed for its duration, as observed by the candidate itself since
it first saw that record. Every write carries a resourceVersion, so of two candidates that write at once one is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, TypeAlias

from orlop.kube.objects import Object, ObjectName, micro_time_text

JITTER: Final = 0.2
"""The part of the retry period that is added at random."""
RELEASED_DURATION_SECONDS: Final = 1
NOT_IN_LOCK_NAMES: Final = re.compile(r"[^a-zA-Z0-9-]")


def lock_name(text: str) -> str:
    """Return a lease's name as upstream sidecars build it, such as `external-attacher-leader-csi-orlop-dev`."""
    name = NOT_IN_LOCK_NAMES.sub("-", text)
    return f"{name}X" if name.endswith("-") else name


@dataclass(frozen=True, slots=True)
class LeaseTimes:
    """In seconds: how long a lease is valid, when its holder gives up, and how often candidates try."""

    duration: float = 15.0
    renew_deadline: float = 10.0
    retry_period: float = 2.0

    def __post_init__(self) -> None:
        longest_try = self.retry_period * (1 + JITTER)
        if not 0 < longest_try < self.renew_deadline < self.duration < math.inf:
            raise ValueError(
                f"the lease duration ({self.duration:g}s) must be longer than the renew deadline "
                f"({self.renew_deadline:g}s), and that longer than {1 + JITTER} retry periods ({self.retry_period:g}s)"
            )


SIDECAR_TIMES: Final = LeaseTimes(15.0, 10.0, 5.0)


@dataclass(frozen=True, slots=True)
class Observed:
    """A lease, and since when, in the observer's elapsed time, its record is unchanged."""

    lease: Mapping[str, Any]
    since: float

    @property
    def holder(self) -> str:
        return holder_of(self.lease)


@dataclass(frozen=True, slots=True)
class Create:
    """There is no lease: the candidate that creates it first holds it."""

    lease: Object


@dataclass(frozen=True, slots=True)
class Write:
    """Write the lease: it is ours, or has expired."""

    lease: Object


@dataclass(frozen=True, slots=True)
class HeldByOther:
    holder: str


Step: TypeAlias = Create | Write | HeldByOther


def observed(before: Observed | None, lease: Mapping[str, Any], elapsed: float) -> Observed:
    """Return the observation: an unchanged spec keeps its time; metadata does not count."""
    same = before is not None and _spec(before.lease) == _spec(lease)
    return Observed(lease, before.since if same and before is not None else elapsed)


def next_step(seen: Observed | None, candidate: Candidate, elapsed: float, wall: datetime) -> Step:
    if seen is None:
        metadata: Object = {"namespace": candidate.lease.namespace, "name": candidate.lease.name}
        return Create({"metadata": _labelled(metadata, candidate), "spec": _record({}, candidate, wall)})
    if seen.holder not in {"", candidate.identity} and elapsed < seen.since + _duration(seen.lease, candidate):
        return HeldByOther(seen.holder)
    metadata = _labelled(_part(seen.lease, "metadata"), candidate)
    return Write({**seen.lease, "metadata": metadata, "spec": _record(_spec(seen.lease), candidate, wall)})


def released(lease: Mapping[str, Any], wall: datetime) -> Object:
    """Return the lease as its holder releases it: free for the next candidate at once."""
    now = micro_time_text(wall)
    left = {
        "holderIdentity": "",
        "leaseDurationSeconds": RELEASED_DURATION_SECONDS,
        "acquireTime": now,
        "renewTime": now,
    }
    return {**lease, "spec": {**_spec(lease), **left}}


def holder_of(lease: Mapping[str, Any]) -> str:
    return str(_spec(lease).get("holderIdentity") or "")


@dataclass(frozen=True, slots=True)
class Candidate:
    """Who wants which lease. No two processes may have the same identity at the same time."""

    lease: ObjectName
    identity: str
    times: LeaseTimes = LeaseTimes()
    labels: Mapping[str, str] = field(default_factory=dict)
    """Labels that the leader sets on the lease; other labels stay."""

    def __post_init__(self) -> None:
        if not self.identity or not self.lease.namespace:
            raise ValueError(f"a candidate for {self.lease} needs an identity, and the lease a namespace")


def _record(before: Mapping[str, Any], candidate: Candidate, wall: datetime) -> Object:
    now, mine = micro_time_text(wall), before.get("holderIdentity") == candidate.identity
    acquisition = {} if mine else {"acquireTime": now, "leaseTransitions": _transitions(before)}
    return {
        **before,
        **acquisition,
        "holderIdentity": candidate.identity,
        "leaseDurationSeconds": math.ceil(candidate.times.duration),
        "renewTime": now,
    }


def _transitions(before: Mapping[str, Any]) -> int:
    """Return 0 for the first holder, and one more for each further one."""
    known = before.get("leaseTransitions")
    return (known if isinstance(known, int) else 0) + 1 if before else 0


def _duration(lease: Mapping[str, Any], candidate: Candidate) -> float:
    """Return the duration in the record, which its holder relies on."""
    seconds = _spec(lease).get("leaseDurationSeconds")
    return float(seconds) if isinstance(seconds, int) and seconds > 0 else candidate.times.duration


def _labelled(metadata: Mapping[str, Any], candidate: Candidate) -> Object:
    if not candidate.labels:
        return dict(metadata)
    return {**metadata, "labels": {**_part(metadata, "labels"), **candidate.labels}}


def _spec(lease: Mapping[str, Any]) -> Mapping[str, Any]:
    return _part(lease, "spec")


def _part(obj: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    part = obj.get(member)
    return part if isinstance(part, Mapping) else {}
