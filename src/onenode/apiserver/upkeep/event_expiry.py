"""Events are kept for an hour after they were last seen, as in Kubernetes; then they go.

Level-triggered: it looks at the events there are, also when it begins, and sleeps until the next one is due. While
there are none it waits for one. When an event was last seen is what it says itself, unless that lies in the future.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Final

import msgspec

from onenode.apiserver.requests.request_options import DeletionOptions
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import RevisionExpired, StoreClosed, TooSlow
from onenode.apiserver.store.versions import Stored
from onenode.apiserver.verbs.deleting import Deleter
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.foundation.runtime import Runtime
from orlop.kube.kinds import CORE_EVENT

KEPT: Final = timedelta(hours=1)
SHORTEST_SLEEP_SECONDS: Final = 60.0


class _Metadata(msgspec.Struct):
    creationTimestamp: datetime  # noqa: N815 - the wire's own name


class _Series(msgspec.Struct):
    lastObservedTime: datetime | None = None  # noqa: N815


class _StoredEvent(msgspec.Struct):
    metadata: _Metadata
    lastTimestamp: datetime | None = None  # noqa: N815
    series: _Series | None = None


_DECODER: Final = msgspec.json.Decoder(_StoredEvent)


def last_seen(event: Stored, now: datetime) -> datetime:
    read = _DECODER.decode(event.json)
    times = (read.lastTimestamp, read.series.lastObservedTime if read.series else None)
    return max([read.metadata.creationTimestamp, *(time for time in times if time is not None and time <= now)])


class EventExpiry:
    def __init__(self, store: ObjectStore, runtime: Runtime, deleter: Deleter) -> None:
        self._store = store
        self._runtime = runtime
        self._deleter = deleter
        self._events = KindInStore(CORE_EVENT, CORE_EVENT)

    async def run(self) -> None:
        """Until it is cancelled, or the store is closed."""
        going_on = True
        while going_on:
            try:
                going_on = await self._expire_and_wait()
            except StoreClosed:
                return
            except Exception as error:  # noqa: BLE001 - what fails now is tried again; old events harm nobody
                self._runtime.log.error("cannot delete expired events, retrying", error=error)
                await self._runtime.clock.sleep(SHORTEST_SLEEP_SECONDS)

    async def _expire_and_wait(self) -> bool:
        page, now = self._store.list(self._events.resource), self._runtime.clock.now()
        due = [(stored, last_seen(stored, now) + KEPT) for stored in page.items]
        expired = [stored for stored, moment in due if moment <= now]
        await self._deleter.delete_all(self._events, expired, DeletionOptions())
        left = [moment for _, moment in due if moment > now]
        if not left:
            return await self._any_change(page.revision)
        await self._runtime.clock.sleep(max(SHORTEST_SLEEP_SECONDS, (min(left) - now).total_seconds()))
        return True

    async def _any_change(self, revision: int) -> bool:
        """Waits for an event, and is True when one came or was missed."""
        try:
            with self._store.watch(self._events.resource, after=revision) as watch:
                return await watch.news() is not None
        except (TooSlow, RevisionExpired):
            return True
