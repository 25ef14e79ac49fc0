"""The subresource `scale`, of workloads and of custom resources whose definition has it.

A scale is never stored: it is read from its object, and a write of it is a write of the object's replicas, decided in
the store's turn on the newest version. So quotas, rules and generations are those of the object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from onenode.apiserver.admission.write_attributes import Admit
from onenode.apiserver.answers.status_answers import bad_request
from onenode.apiserver.answers.table_columns import AGE, NAME, age_text, integer
from onenode.apiserver.answers.table_rules import TableShape
from onenode.apiserver.kinds.scale_rules import (
    SCALE_KIND,
    refuse_unset,
    scale_name,
    scale_of,
    scale_to_patch,
    scaled,
)
from onenode.apiserver.requests.request_bodies import read_unchecked
from onenode.apiserver.requests.request_options import WriteOptions, read_write_options
from onenode.apiserver.requests.request_paths import ResourceRequest
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.store.versions import Stored
from onenode.apiserver.verbs.object_patches import patched, read_patch
from onenode.apiserver.verbs.reading import ObjectReader
from onenode.apiserver.verbs.stored_objects import NO_REVISION, KindInStore
from onenode.apiserver.verbs.updating import Updater, WriteTarget

Object = dict[str, Any]


def _cells(scale: Any, now: datetime) -> list[Any]:
    wanted, observed = scale["spec"].get("replicas", 0), scale["status"]["replicas"]
    return [scale["metadata"]["name"], wanted, observed, age_text(scale["metadata"].get("creationTimestamp"), now)]


COLUMNS: Final = (NAME, integer("Desired"), integer("Available"), AGE)
SCALES: Final = KindInStore(SCALE_KIND, SCALE_KIND, table=TableShape(COLUMNS, _cells))
"""In which form scales are shown; none is stored."""


class Scales:
    """Each method returns a scale as if it were stored."""

    def __init__(self, schemas: Schemas, reader: ObjectReader, updater: Updater) -> None:
        self._schemas = schemas
        self._reader = reader
        self._updater = updater

    async def get(self, request: ResourceRequest) -> Stored:
        return _shown(request, await self._reader.get(request.kind, request.key, request.option("resourceVersion")))

    async def replace(self, request: ResourceRequest, admit: Admit) -> Stored:
        options = read_write_options(request.http.query, "UpdateOptions")
        scale = read_unchecked(request.http, SCALE_KIND)
        check_name(scale_name(scale), request.name)

        def make(old: Object) -> Object:
            return scaled(request.kind.kind, old, scale, request.kind.scale)

        return await self._changed(request, make, admit, options)

    async def patch(self, request: ResourceRequest, admit: Admit) -> Stored:
        options = read_write_options(request.http.query, "PatchOptions")
        patch = read_patch(request.http)

        def make(old: Object) -> Object:
            scale = patched(self._schemas, scale_to_patch(old, request.kind.scale), patch)
            refuse_unset(old, scale, request.kind.scale)
            return scaled(request.kind.kind, old, scale, request.kind.scale)

        return await self._changed(request, make, admit, options)

    async def _changed(
        self, request: ResourceRequest, make: Callable[[Object], Object], admit: Admit, options: WriteOptions
    ) -> Stored:
        paths = request.kind.scale

        def admit_scale(new: Mapping[str, Any] | None, old: Mapping[str, Any] | None) -> None:
            """Policies judge what the client reads and writes, not its object; the old one may lack replicas."""
            admit(scale_of(dict(new or {}), paths), scale_to_patch(dict(old or {}), paths))

        place = WriteTarget(request.kind, request.key)
        return _shown(request, await self._updater.change(place, make, admit_scale, dry_run=options.dry_run))


def _shown(request: ResourceRequest, stored: Stored) -> Stored:
    scale = scale_of(request.kind.object(stored), request.kind.scale)
    return Stored(stored.key, NO_REVISION, msgspec.json.encode(scale))


def check_name(named: str, name: str) -> None:
    if named and named != name:
        raise bad_request(f"the name of the object ({named}) does not match the name on the URL ({name})")
