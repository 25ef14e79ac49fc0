"""Read and write the Leases that hold the provisioner's journal, so that only one process at a time can write them.

A page of the journal is one Lease; its `holderIdentity` names the process that owns it. Every write is a PUT with the
resourceVersion last read: upstream's role may not patch Leases, and a former owner that still writes gets a Conflict.
If the page then names another holder, another process owns the journal: `JournalLost`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, Conflict, Forbidden, NotFound
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.kinds import LEASE
from orlop.kube.lease_rules import holder_of
from orlop.kube.objects import Object, ObjectName, micro_time_text
from orlop.records.provision_journal import ANNOTATION, DRIVER_LABEL

MOST_ATTEMPTS: Final = 5
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")
_NO_RIGHT: Final = re.compile(r'User ".*" cannot ')
"""In the message of every authorizer. Admission answers 403 too, in other words: an exhausted ResourceQuota does."""


class JournalLost(Exception):
    """Another process has taken the journal over: this one must not call the driver any more."""


def lacks_right(error: Forbidden) -> bool:
    """Return whether this process has no right to the request; otherwise the request was refused as it is."""
    return bool(_NO_RIGHT.search(error.message))


class JournalLeases:
    def __init__(
        self,
        kube: KubeClient,
        namespace: str,
        driver: str,
        identity: str,
        *,
        clock: Clock,
        may_act: Callable[[], None],
    ) -> None:
        """`identity` names this process as the holder; `may_act` raises if this process has lost its own lease."""
        self._kube = kube
        self._namespace = namespace
        self._driver = driver
        self._identity = identity
        self._clock = clock
        self._may_act = may_act

    async def further_pages(self) -> dict[int, Object]:
        """Return all pages except the first, by number. The first, number 0, always exists once the journal is open."""
        # By name and not by label: somebody may have removed the label, and the orders of that page would be lost.
        leases = await self._kube.list(LEASE, Selection(self._namespace))
        return {number: lease for lease in leases.items if (number := self._number_of(lease))}

    async def take_over(self, number: int, lease: Object | None) -> Object:
        """Write this process into a page as its holder and return the page; create it if it does not exist.

        `lease` is the page as last read; None to read it here. The entries of the page are kept.
        """
        # No check of the holder here, unlike in `put`: this process takes the page from any former owner, whose next
        # write then fails.
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            lease = lease or await self._find(number)
            try:
                if lease is None:
                    return await self._kube.create(LEASE, self._new_lease(number, None))
                return await self._kube.replace(LEASE, self._written(lease, None))
            except (Conflict, AlreadyExists, NotFound):
                # The former owner is still writing. Read the page again, with the entries that it has just added.
                lease = None
        raise JournalLost(f"the journal {self._name(number)} cannot be taken over: another process keeps writing to it")

    async def put(self, number: int, lease: Object | None, content: str | None) -> Object:
        """Write a page that we own. A `lease` of None creates it; a `content` of None keeps its entries."""
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            try:
                if lease is None:
                    return await self._kube.create(LEASE, self._new_lease(number, content))
                return await self._kube.replace(LEASE, self._written(lease, content))
            except (Conflict, AlreadyExists, NotFound):
                # Not always another process: our own write may have succeeded though its response was lost, and then
                # the page still names us. Or the page was deleted: Kubernetes returns Conflict for a PUT with the uid
                # of an object that is gone.
                lease = await self._find(number)
                self._check_holder(number, lease)
        raise JournalLost(f"the journal {self._name(number)} cannot be written: another process keeps changing it")

    async def delete(self, number: int, lease: Object | None) -> None:
        """Delete an empty page that we own. `lease` is the page as last read; None to read it here."""
        self._may_act()
        lease = lease or await self._find(number)
        self._check_holder(number, lease)
        if lease is None:
            return
        options = DeleteOptions(uid=objects.uid(lease), version=objects.resource_version(lease))
        try:
            await self._kube.delete(LEASE, self._name(number), options)
        except NotFound:
            return
        except Conflict:
            # The page changed since it was read. `put` checks whether we or a new owner wrote it; if it is still ours,
            # an empty page does no harm.
            await self.put(number, lease, "")

    async def _find(self, number: int) -> Object | None:
        try:
            return await self._kube.get(LEASE, self._name(number))
        except NotFound:
            return None

    def _check_holder(self, number: int, lease: Object | None) -> None:
        if lease is not None and holder_of(lease) != self._identity:
            raise JournalLost(
                f"the journal {self._name(number)} is now held by {holder_of(lease)}: another provisioner of "
                f"{self._driver} runs. With several replicas, use --leader-election"
            )

    def _name(self, number: int) -> ObjectName:
        # Two drivers may differ only in upper case or in a dot. The readable part does not show that: add a digest.
        digest = hashlib.sha256(self._driver.encode()).hexdigest()[:8]
        readable = _NOT_IN_NAMES.sub("-", self._driver.lower())
        suffix = f"-{number}" if number else ""
        return ObjectName(self._namespace, f"orlop-provisioner-journal-{readable}-{digest}{suffix}")

    def _number_of(self, lease: Object) -> int | None:
        """Return the number in the name of a further page; None for the first page and for any other Lease."""
        name = objects.name(lease)
        suffix = name.removeprefix(f"{self._name(0).name}-")
        return int(suffix) if suffix != name and suffix.isascii() and suffix.isdigit() else None

    def _new_lease(self, number: int, content: str | None) -> Object:
        name = self._name(number)
        return self._written({"metadata": {"namespace": name.namespace, "name": name.name}}, content)

    def _written(self, lease: Object, content: str | None) -> Object:
        """Return the Lease with us as its holder and with `content`; None keeps the entries."""
        metadata = dict(lease["metadata"])
        metadata["labels"] = {**(metadata.get("labels") or {}), DRIVER_LABEL: self._driver}
        if content is not None:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: content}
        spec = {
            **(lease.get("spec") or {}),
            "holderIdentity": self._identity,
            "renewTime": micro_time_text(self._clock.now()),
        }
        return {**lease, "metadata": metadata, "spec": spec}
