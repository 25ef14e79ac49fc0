"""Explain whether a provisioner of a driver runs, as far as objects show it. Pure.

With leader election a provisioner, upstream's or ours, renews a Lease that is named after the driver. Without it there
is no such Lease, and nothing shows whether one runs. Our provisioner also has a journal of Leases, written only while
it creates volumes: an old one means nothing, an entry means that a volume is being created.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.admin.explanation import UNREADABLE, ApiObject, Unreadable, ago, is_unreadable, joined, moment
from orlop.kube import objects
from orlop.kube.kinds import CSI_DRIVER, LEASE
from orlop.kube.lease_rules import SIDECAR_TIMES, holder_of
from orlop.records.provision_journal import ANNOTATION, JournalEntry, UnreadablePage, decode_page

HOW_TO_START: Final = "start the provisioner of {driver} (csi-provisioner, or `orlop provisioner`)"
CLOCK_SKEW: Final = timedelta(seconds=30)
"""How far the clock of this machine may be ahead of the holder's before its Lease seems stale."""
LONGEST_LEASE_SECONDS: Final = 86_400
"""A Lease of a longer duration was not written by a provisioner."""


@dataclass(frozen=True, slots=True)
class ProvisionerSeen:
    """What was read about the provisioner of a driver."""

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

    @property
    def runs(self) -> bool | None:
        """None: no object shows it."""
        if is_unreadable(self.seen.unreadable, LEASE) or not self.seen.leases:
            return None
        return any(self._is_fresh(lease) for lease in self.seen.leases)

    def sentences(self) -> str:
        return " ".join(part for part in (self._about_driver(), self._about_leases()) if part)

    def to_do(self) -> str:
        """Return what to do if nothing changes."""
        start = HOW_TO_START.format(driver=self.seen.driver)
        if self.runs is False:
            return f"{start[0].upper()}{start[1:]}."
        if self.runs:
            return "Read the log of that provisioner, and of the driver beside it, if nothing changes."
        return f"If nothing changes, check that it runs: {start} where it does not."

    def order_of(self, claim_uid: str) -> JournalEntry | None:
        """Return the journal's entry for a claim: CreateVolume was called for it, and has no final result yet."""
        return next((entry for entry in _entries(self.seen.journal) if entry.order.claim.uid == claim_uid), None)

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
        if self.seen.csi_driver is None:
            return f"There is no CSIDriver {self.seen.driver}: most likely the driver is not installed."
        return ""

    def _about_leases(self) -> str:
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

    def _renewed(self, lease: ApiObject) -> str:
        holder = holder_of(lease)
        held = f"held by {holder}" if holder else "released by its last holder"
        return f"the Lease {objects.name_of(lease)}, {held}, was renewed{ago(_renewal(lease), self.now) or ' never'}"

    def _is_fresh(self, lease: ApiObject) -> bool:
        renewed, seconds = moment(_renewal(lease)), (lease.get("spec") or {}).get("leaseDurationSeconds")
        if renewed is None or not holder_of(lease):
            return False
        duration = seconds if seconds and 0 < seconds < LONGEST_LEASE_SECONDS else SIDECAR_TIMES.duration
        return self.now - renewed <= timedelta(seconds=duration) + CLOCK_SKEW

    @staticmethod
    def _lease_fields(lease: ApiObject) -> dict[str, Any]:
        return {"name": str(objects.name_of(lease)), "holder": holder_of(lease), "renewed": _renewal(lease)}


def _renewal(lease: ApiObject) -> str | None:
    renewed = (lease.get("spec") or {}).get("renewTime")
    return renewed if isinstance(renewed, str) else None


def _entries(journal: Iterable[ApiObject]) -> Iterable[JournalEntry]:
    for page in journal:
        content = objects.annotations(page).get(ANNOTATION)
        if not content:
            continue
        try:
            yield from decode_page(content)
        except UnreadablePage:
            # A newer provisioner wrote it: what it is doing is not known.
            continue
