"""Explain whether a provisioner of a driver runs, as far as objects show it. Pure.

With leader election a provisioner, upstream's or ours, renews a Lease that is named after the driver. Without leader
election there is no such Lease, and only a recent write shows that a provisioner runs: the event of a failure, or its
journal. Our provisioner stores that journal in Leases and writes it only while it creates volumes: an old journal
proves nothing, and an entry means that a volume is being created.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.admin.explanation import UNREADABLE, ApiObject, Unreadable, ago, is_unreadable, joined, moment
from orlop.admin.journal_orders import OpenRequest, open_requests
from orlop.admin.past_events import PastEvent, events_about, failures_of_provisioner
from orlop.kube import objects
from orlop.kube.kinds import CSI_DRIVER, LEASE
from orlop.kube.lease_rules import SIDECAR_TIMES, holder_of

HOW_TO_START: Final = "start the provisioner of {driver} (csi-provisioner, or `orlop provisioner`)"
CLOCK_SKEW: Final = timedelta(seconds=30)
"""How far the clock of this machine may be ahead of the holder's before its Lease seems stale."""
LONGEST_LEASE_SECONDS: Final = 86_400
"""A Lease of a longer duration was not written by a provisioner."""
LONGEST_RETRY: Final = timedelta(minutes=5)
"""The longest delay before a retry, by default."""
FIRST_RETRIES: Final = 8
"""After this many failures the delay, which begins with one second and doubles, is the longest one."""
JOURNAL_COUNTS: Final = timedelta(minutes=1)
"""How long a written journal shows that its writer runs."""
LONGEST_CALL: Final = timedelta(seconds=60)
"""How long the call of a retry may take before it fails, with room for a `--timeout` of more than the default."""
INVALID_ARGUMENT: Final = "code = InvalidArgument"
RPC_ERROR: Final = "rpc error: code = "
"""Part of an event's message if the driver, and not the provisioner itself, reported the error."""


@dataclass(frozen=True, slots=True)
class ProvisionerSeen:
    """The objects that were read about the provisioner of a driver."""

    driver: str = ""
    csi_driver: ApiObject | None = None
    leases: tuple[ApiObject, ...] = ()
    """Leases of any namespace that are named after the driver."""
    journal: tuple[ApiObject, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()


@dataclass(frozen=True, slots=True)
class ProvisionerOutlook:
    seen: ProvisionerSeen
    now: datetime
    failure: PastEvent | None = None
    """The last failure that a provisioner reported on the explained object."""
    attempts: int = 0
    """How many failures it reported, as far as events show it."""

    @classmethod
    def on(
        cls, obj: ApiObject, events: Iterable[ApiObject], reason: str, seen: ProvisionerSeen, now: datetime
    ) -> ProvisionerOutlook:
        """Return the outlook for this object. Failures of a provisioner have `reason` in the events about it."""
        reported = failures_of_provisioner(events_about(events, objects.uid(obj)), reason)
        return cls(seen, now, reported[0] if reported else None, sum(event.count for event in reported))

    @property
    def runs(self) -> bool | None:
        """Whether a provisioner runs; None if no object shows it."""
        if any(self._is_fresh(lease) for lease in self.seen.leases):
            return True
        sign = self._last_sign()
        # A stale Lease may be left from a time with leader election: a write after its expiry proves a provisioner.
        if sign is not None and all(self._had_expired(lease, sign) for lease in self.seen.leases):
            return True
        return False if self.seen.leases and not is_unreadable(self.seen.unreadable, LEASE) else None

    @property
    def current_failure(self) -> PastEvent | None:
        """Return the last failure, if a provisioner runs that reported it lately."""
        return self.failure if self.runs and self._is_recent(self._failed_at(), self._failure_counts) else None

    @property
    def outdated_failure(self) -> PastEvent | None:
        """Return the last failure, if a retry should have been reported since.

        Such a failure does not show the driver's current state: the driver or its provisioner may have ended. None if
        a stale Lease shows already that the provisioner has ended.
        """
        failed_at = self._failed_at()
        is_current = failed_at is None or self._is_recent(failed_at, self._failure_counts)
        return None if is_current or self.runs is False else self.failure

    def sentences(self) -> str:
        parts = (self._about_driver(), self._about_leases(), self._about_outdated_failure())
        return " ".join(part for part in parts if part)

    def to_do(self) -> str:
        """Return what to do if nothing changes."""
        if (failure := self.current_failure) is not None:
            return _correct(failure)
        start = HOW_TO_START.format(driver=self.seen.driver)
        if self.runs is False:
            return f"{start[0].upper()}{start[1:]}."
        if self.runs and self.outdated_failure is not None:
            return (
                "Check that the driver runs: read its log, and that of the provisioner beside it. Its last error may "
                "no longer occur."
            )
        if self.runs:
            return "Read the log of the provisioner, and of the driver beside it, if nothing changes."
        return f"If nothing changes, check that it runs: {start} where it does not."

    def request_of(self, claim_uid: str) -> OpenRequest | None:
        """Return the journal's request for a claim: CreateVolume was called for it, and has no final result yet."""
        requests = open_requests(self.seen.journal)
        return next((each for each in requests if each.entry.order.claim.uid == claim_uid), None)

    def fields(self) -> dict[str, Any]:
        is_known = not is_unreadable(self.seen.unreadable, CSI_DRIVER)
        return {
            "driver": self.seen.driver,
            "csiDriverExists": self.seen.csi_driver is not None if is_known else None,
            "runs": self.runs,
            "leases": [self._lease_fields(lease) for lease in self.seen.leases],
            "journal": [self._lease_fields(lease) for lease in self.seen.journal],
        }

    def _about_driver(self) -> str:
        if is_unreadable(self.seen.unreadable, CSI_DRIVER):
            return f"Whether the driver is installed is unknown: the CSIDriver {self.seen.driver} {UNREADABLE}."
        # A provisioner starts its work only after the driver has responded: if one runs, so does the driver.
        if self.seen.csi_driver is None and not self.runs:
            return (
                f"There is no CSIDriver {self.seen.driver}: most likely the driver is not installed, though this "
                "object is optional."
            )
        return ""

    def _about_leases(self) -> str:
        if self.runs and not any(self._is_fresh(lease) for lease in self.seen.leases):
            return self._about_signs()
        if is_unreadable(self.seen.unreadable, LEASE):
            return f"Whether a provisioner runs is unknown: the list of leases {UNREADABLE}."
        fresh = [lease for lease in self.seen.leases if self._is_fresh(lease)]
        if fresh:
            return f"A provisioner runs: {joined(map(self._renewed, fresh))}."
        if self.seen.leases:
            return f"No provisioner runs: {joined(map(self._renewed, self.seen.leases))}."
        last = "".join(
            f" Its journal was last written{ago(_renewal(page), self.now)}." for page in self.seen.journal[:1]
        )
        return f"No Lease shows whether a provisioner runs: one without leader election has none.{last}"

    # ---- what a provisioner wrote lately -------------------------------------------------------------------------

    def _about_signs(self) -> str:
        if self.current_failure is not None:
            return f"A provisioner runs: it reported a failure{ago(self.current_failure.last, self.now)}."
        return f"A provisioner runs: it wrote its journal{ago(self._journal_text(), self.now)}."

    def _about_outdated_failure(self) -> str:
        if (failure := self.outdated_failure) is None:
            return ""
        who = "the driver does not answer it" if self.runs else "the provisioner or its driver does not answer any more"
        return (
            f"The last failure{ago(failure.last, self.now)} is old: a retry was due, and none was reported. Most "
            f"likely {who}."
        )

    @property
    def _failure_counts(self) -> timedelta:
        """Return how long a failure is current: twice the delay before its retry, and the time of a call."""
        # After INVALID_ARGUMENT of a driver, even the first retry has the longest delay.
        is_slow = self.failure is not None and INVALID_ARGUMENT in self.failure.message
        doubled = LONGEST_RETRY if is_slow or self.attempts > FIRST_RETRIES else timedelta(seconds=2**self.attempts)
        return 2 * min(doubled, LONGEST_RETRY) + LONGEST_CALL

    def _last_sign(self) -> datetime | None:
        signs = ((self._failed_at(), self._failure_counts), (moment(self._journal_text()), JOURNAL_COUNTS))
        return max((at for at, counts in signs if at is not None and self._is_recent(at, counts)), default=None)

    def _failed_at(self) -> datetime | None:
        return None if self.failure is None else moment(self.failure.last)

    def _journal_text(self) -> str | None:
        return max((text for page in self.seen.journal if (text := _renewal(page)) is not None), default=None)

    def _is_recent(self, at: datetime | None, counts: timedelta) -> bool:
        return at is not None and self.now - at <= counts + CLOCK_SKEW

    def _had_expired(self, lease: ApiObject, at: datetime) -> bool:
        renewed = moment(_renewal(lease))
        return renewed is None or at > renewed + _duration(lease) + CLOCK_SKEW

    # ---- leases --------------------------------------------------------------------------------------------------

    def _renewed(self, lease: ApiObject) -> str:
        holder = holder_of(lease)
        state = f"held by {holder}" if holder else "released by its last holder"
        return f"the Lease {objects.name_of(lease)}, {state}, was renewed{ago(_renewal(lease), self.now) or ' never'}"

    def _is_fresh(self, lease: ApiObject) -> bool:
        renewed = moment(_renewal(lease))
        if renewed is None or not holder_of(lease):
            return False
        return self.now - renewed <= _duration(lease) + CLOCK_SKEW

    @staticmethod
    def _lease_fields(lease: ApiObject) -> dict[str, Any]:
        return {"name": str(objects.name_of(lease)), "holder": holder_of(lease), "renewed": _renewal(lease)}


def _correct(failure: PastEvent) -> str:
    message = failure.message.rstrip(".") or "an error without a message"
    if RPC_ERROR in message:
        return (
            f"Remove the cause of the driver's error: {message}. The driver's log may have more. The provisioner "
            "retries by itself."
        )
    return f"Remove the cause of the provisioner's error: {message}. It retries by itself."


def _duration(lease: ApiObject) -> timedelta:
    seconds = (lease.get("spec") or {}).get("leaseDurationSeconds")
    return timedelta(seconds=seconds if seconds and 0 < seconds < LONGEST_LEASE_SECONDS else SIDECAR_TIMES.duration)


def _renewal(lease: ApiObject) -> str | None:
    renewed = (lease.get("spec") or {}).get("renewTime")
    return renewed if isinstance(renewed, str) else None
