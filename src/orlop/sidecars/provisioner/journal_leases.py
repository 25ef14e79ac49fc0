"""Read and write the Leases that hold the provisioner's journal, so that one process at a time can write them.

Every write is a PUT with the resourceVersion last read: upstream's role may not patch Leases, and a former owner that
still writes is refused. A page that names another holder than us belongs to another process: `JournalLost`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Final

from orlop.foundation.clock import Clock
from orlop.kube import objects
from orlop.kube.api_errors import AlreadyExists, Conflict, NotFound
from orlop.kube.client import DeleteOptions, KubeClient, Selection
from orlop.kube.kinds import LEASE
from orlop.kube.lease_rules import holder_of
from orlop.kube.objects import Object, ObjectName, micro_time_text
from orlop.records.provision_journal import ANNOTATION

DRIVER_LABEL: Final = "orlop.dev/provisioning-journal"
MOST_ATTEMPTS: Final = 5
_NOT_IN_NAMES: Final = re.compile(r"[^a-z0-9]+")


class JournalLost(Exception):
    """Another process has taken the journal over: this one must not call the driver any more."""


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
        """Return all pages but the first, by number."""
        leases = await self._kube.list(LEASE, Selection(self._namespace, labels=f"{DRIVER_LABEL}={self._driver}"))
        return {number: lease for lease in leases.items if (number := self._number_of(lease))}

    async def take_over(self, number: int, lease: Object | None) -> Object:
        """Return the page after a write of ours; create it if it does not exist. `lease` is the page as last read."""
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            lease = lease or await self._find(number)
            try:
                if lease is None:
                    return await self._kube.create(LEASE, self._new_lease(number, None))
                return await self._kube.replace(LEASE, self._written(lease, None))
            except (Conflict, AlreadyExists, NotFound):
                # The former owner is still writing: what it recorded meanwhile must be read.
                lease = None
        raise JournalLost(f"another process writes to the journal {self._name(number)} all the time")

    async def put(self, number: int, lease: Object | None, content: str | None) -> Object:
        """Write a page that is ours; `lease` None creates it, `content` None keeps its entries."""
        for _ in range(MOST_ATTEMPTS):
            self._may_act()
            try:
                if lease is None:
                    return await self._kube.create(LEASE, self._new_lease(number, content))
                return await self._kube.replace(LEASE, self._written(lease, content))
            except (Conflict, AlreadyExists, NotFound):
                # Our own write may have landed though its response was lost: then the page still names us. Or the page
                # was deleted: Kubernetes refuses the uid of an object that is gone with a Conflict.
                lease = await self._find(number)
                self._check_holder(number, lease)
        raise JournalLost(f"the journal {self._name(number)} is changed by somebody else all the time")

    async def delete(self, number: int, lease: Object | None) -> None:
        """Delete a page that is ours and empty; `lease` None: as it is found."""
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
            await self.put(number, lease, "")

    async def _find(self, number: int) -> Object | None:
        try:
            return await self._kube.get(LEASE, self._name(number))
        except NotFound:
            return None

    def _check_holder(self, number: int, lease: Object | None) -> None:
        if lease is not None and holder_of(lease) != self._identity:
            raise JournalLost(
                f"the journal {self._name(number)} belongs to {holder_of(lease)} now: another provisioner of "
                f"{self._driver} runs. With several replicas, use --leader-election"
            )

    def _name(self, number: int) -> ObjectName:
        # Names of drivers may differ in case or in a dot alone, which names of objects do not allow or not show.
        digest = hashlib.sha256(self._driver.encode()).hexdigest()[:8]
        readable = _NOT_IN_NAMES.sub("-", self._driver.lower())
        suffix = f"-{number}" if number else ""
        return ObjectName(self._namespace, f"orlop-provisioner-journal-{readable}-{digest}{suffix}")

    def _number_of(self, lease: Object) -> int | None:
        """Return the number of a further page."""
        name = objects.name(lease)
        suffix = name.removeprefix(f"{self._name(0).name}-")
        return int(suffix) if suffix != name and suffix.isascii() and suffix.isdigit() else None

    def _new_lease(self, number: int, content: str | None) -> Object:
        name = self._name(number)
        metadata: Object = {"namespace": name.namespace, "name": name.name, "labels": {DRIVER_LABEL: self._driver}}
        return self._written({"metadata": metadata}, content)

    def _written(self, lease: Object, content: str | None) -> Object:
        """Return the Lease as we write it: with us as its holder; `content` None keeps the entries."""
        metadata = dict(lease["metadata"])
        if content is not None:
            metadata["annotations"] = {**(metadata.get("annotations") or {}), ANNOTATION: content}
        spec = {
            **(lease.get("spec") or {}),
            "holderIdentity": self._identity,
            "renewTime": micro_time_text(self._clock.now()),
        }
        return {**lease, "metadata": metadata, "spec": spec}
