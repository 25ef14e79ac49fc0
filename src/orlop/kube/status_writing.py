"""Write the status of objects: only the fields that changed, only of the object that was read.

The cache lags behind our own writes: the newest state of each object is remembered until the cache has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Final

import msgspec

from orlop.foundation.backoff import Backoff
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, Conflict, PatchRefused
from orlop.kube.cache.informer import Informer
from orlop.kube.client import KubeClient
from orlop.kube.kinds import Kind
from orlop.kube.objects import ObjectName, version_order
from orlop.kube.patches import JsonPatch, guarded_by_uid

ApiObject = Mapping[str, Any]
RESYNC_SECONDS: Final = 600.0
REPORT_BACKOFF: Final = Backoff(initial=0.5, factor=2.0, cap=60.0, jitter=0.2)


class ObjectsOfNode:
    """The objects of one kind that are this node's, all in one namespace or all in none."""

    def __init__(self, kind: Kind, client: KubeClient, informer: Informer, namespace: str | None = None) -> None:
        self.kind = kind
        self._namespace = namespace
        self._client = client
        self._informer = informer
        self._written: dict[str, ApiObject] = {}

    @property
    def is_synced(self) -> bool:
        return self._informer.synced

    def get(self, name: str) -> ApiObject | None:
        """Return the newest state that is known."""
        cached, written = self._informer.get(ObjectName(self._namespace, name)), self._written.get(name)
        if cached is None or written is None or _is_newer(cached, written):
            # Also a written object that the cache lacks: it was deleted, or comes with the next event.
            self._written.pop(name, None)
            return cached
        return written

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the name of every object, then on each change. Return a function that ends it."""
        return self._informer.add_listener(lambda name: listener(name.name), resync=RESYNC_SECONDS)

    def names(self) -> list[str]:
        return [name.name for name in self._informer.cache.names()]

    async def create(self, body: ApiObject) -> ApiObject:
        return await self._client.create(self.kind, body, namespace=self._namespace)

    async def read(self, name: str) -> ApiObject:
        """Read an object from the API server. NotFound: there is none."""
        return await self._client.get(self.kind, ObjectName(self._namespace, name))

    async def write_status(
        self,
        obj: ApiObject,
        status: Mapping[str, Any],
        record: type[msgspec.Struct],
        guard: Callable[[ApiObject], JsonPatch] = guarded_by_uid,
    ) -> ApiObject | None:
        """Make the status of an object this one; return the written object, None if nothing had to be changed.

        `guard` begins the patch with what must still be as it was read; if it has changed, `PatchRefused` is raised,
        and the next call starts from the object as it is now.
        """
        patch = status_patch(obj, status, record, guard)
        if patch is None:
            return None
        name = objects.name(obj)
        full_name = ObjectName(self._namespace, name)
        try:
            written = await self._client.patch(self.kind, full_name, patch, subresource="status")
        except (PatchRefused, Conflict):
            # Read the object from the API server. After the restore of a backup the cache is not enough: versions are
            # smaller then, and our own last write would count as the newer object until they have caught up.
            self._written.pop(name, None)
            with suppress(ApiError):
                self._written[name] = await self.read(name)
            raise
        self._written[name] = written
        return written


def status_patch(
    obj: ApiObject,
    status: Mapping[str, Any],
    record: type[msgspec.Struct],
    guard: Callable[[ApiObject], JsonPatch] = guarded_by_uid,
) -> JsonPatch | None:
    """Return the patch that sets each field of the status, and removes those that are not there; None: all are so.

    Fields that `record` does not have stay: the object may have been written by a newer version.
    """
    before = obj.get("status")
    # As the server returns it, or no list would ever be equal: a record has tuples.
    status = msgspec.json.decode(msgspec.json.encode(status))
    patch = guard(obj)
    if not isinstance(before, Mapping):
        return patch.add("status", value=status)
    guards = len(patch.operations)
    for field, value in status.items():
        if before.get(field) != value:
            patch = patch.add("status", field, value=value)
    for known in msgspec.structs.fields(record):
        if known.encode_name in before and known.encode_name not in status:
            patch = patch.remove("status", known.encode_name)
    return patch if len(patch.operations) > guards else None


def _is_newer(cached: ApiObject, written: ApiObject) -> bool:
    """Return whether the cached object is at least as new as the written one, or another object of the name."""
    if objects.uid(cached) != objects.uid(written):
        return True
    return version_order(objects.resource_version(cached)) >= version_order(objects.resource_version(written))
