"""Explain the open orders in the provisioner's journal: requests of which a call may have created a volume. Pure.

An order may outlive its claim. Until the driver has returned a final result, the provisioner repeats the request, to
save the volume or to delete it, and nothing but the journal shows that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from orlop.admin.explanation import ApiObject, Explanation, length
from orlop.kube import objects
from orlop.kube.objects import ObjectName, time_text
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL, JournalEntry, UnreadablePage, decode_page

GONE: Final = "Gone"
LATEST_DEADLINE: Final = 253_402_300_799
"""The last second of the year 9999: later times cannot be written."""


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """An order on a page of a journal."""

    page: str
    """Namespace and name of the Lease."""
    driver: str
    entry: JournalEntry

    @property
    def deadline(self) -> datetime:
        """Until when its last call may run."""
        return datetime.fromtimestamp(min(max(0.0, self.entry.deadline), LATEST_DEADLINE), UTC)

    def sentence(self, now: datetime) -> str:
        """Return what is known of its calls."""
        entry = self.entry
        call = "DeleteVolume" if entry.is_being_deleted else "CreateVolume"
        if now < self.deadline:
            known = f"a call of {call} may still run, for {length(self.deadline - now)}"
        else:
            known = f"a call of {call} had no final result {length(now - self.deadline)} ago"
        requests = f", one of {1 + len(entry.earlier)} different requests" if entry.earlier else ""
        return (
            f"The journal (Lease {self.page}) has a request for the volume {entry.order.volume_name}{requests}: "
            f"{known}, so the driver may have the volume."
        )

    def fields(self) -> dict[str, Any]:
        return {
            "lease": self.page,
            "driver": self.driver,
            "volumeName": self.entry.order.volume_name,
            "claimUid": self.entry.order.claim.uid,
            "requests": 1 + len(self.entry.earlier),
            "isBeingDeleted": self.entry.is_being_deleted,
            "mayRunUntil": time_text(self.deadline),
        }


def open_requests(journal: Iterable[ApiObject]) -> Iterator[OpenRequest]:
    """Yield the orders of these pages. Those of a newer provisioner's page are unknown to this version."""
    for page in journal:
        content = objects.annotations(page).get(ANNOTATION)
        if not content:
            continue
        try:
            entries = decode_page(content)
        except UnreadablePage:
            continue
        driver = str(objects.labels(page).get(DRIVER_LABEL) or "")
        for entry in entries:
            yield OpenRequest(str(objects.name_of(page)), driver, entry)


def requests_of_name(journal: Iterable[ApiObject], name: ObjectName) -> list[OpenRequest]:
    """Return the orders for claims of this name, whatever their uid."""
    requests = ((each, each.entry.order.claim) for each in open_requests(journal))
    return [each for each, claim in requests if (claim.namespace, claim.name) == (name.namespace, name.name)]


def explain_gone(name: ObjectName, requests: Sequence[OpenRequest], now: datetime) -> Explanation:
    """Explain a claim that does not exist, but for which a volume may."""
    driver = requests[0].driver
    return Explanation(
        f"There is no PersistentVolumeClaim {name} any more.",
        f"{GONE}: {' '.join(each.sentence(now) for each in requests)}",
        (),
        f"Nothing to do while the provisioner of {driver} runs: it repeats the request until the driver returns the "
        f"volume, and deletes it. If this lasts, its log has the driver's error.",
        {
            "namespace": name.namespace,
            "name": name.name,
            "state": GONE,
            "openRequests": [each.fields() for each in requests],
        },
    )
