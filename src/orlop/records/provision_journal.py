"""The format of the provisioner's journal: orders whose outcome is not known yet, in annotations of Leases. Pure.

One page is one Lease. Values that many orders share (the terms of a class, a topology list with one entry for each
node of the cluster) are stored once for each page, under their hash, and the page is compressed: a hundred orders of
one class in a cluster of a thousand nodes take a few kilobytes. Entries that would exceed the limit of Kubernetes for
annotations are split into several pages.
"""

from __future__ import annotations

import base64
import hashlib
import zlib
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from orlop.records.volume_order import VERSION, ClassTerms, TopologyRequest, VolumeOrder

ANNOTATION: Final = "orlop.dev/provisioning"
DRIVER_LABEL: Final = "orlop.dev/provisioning-journal"
"""On each page, with the driver's name as its value."""
LARGEST_PAGE: Final = 250 << 10
"""Bytes of the annotation; Kubernetes allows 256 KiB for all annotations of an object."""
ROOMY_PAGE: Final = 192 << 10
"""Up to this size a page takes new entries. The rest is for the entries it has: they may grow when written again."""
LARGEST_DECODED: Final = 64 << 20
"""Other clients may write Leases too: a small compressed page must not fill our memory."""
_HASH_BYTES: Final = 9


class JournalEntry(msgspec.Struct, frozen=True, gc=False):
    order: VolumeOrder
    deadline: float
    """The latest deadline of the calls for this order, in seconds since 1970."""
    call_seconds: float
    """How long a call may run from now on. The next process waits this long: its clock may differ from the writer's."""
    is_being_deleted: bool = False
    """The last call was DeleteVolume."""
    earlier: tuple[VolumeOrder, ...] = ()
    """Other requests for this volume, of which a call may have created it."""


class UnreadablePage(ValueError):
    """A page that is damaged or was written by a newer version; the message names the cause."""


class PageOverflow(ValueError):
    """One order alone does not fit into a page."""


class _StoredOrder(msgspec.Struct, frozen=True):
    storage: str
    placement: str
    order: dict[str, Any]
    """The order's fields, without those that the page stores once for all entries."""


class _StoredEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    deadline: float
    call_seconds: float
    storage: str
    placement: str
    order: dict[str, Any]
    is_being_deleted: bool = False
    earlier: list[_StoredOrder] = []


class _Versioned(msgspec.Struct):
    version: int


class _StoredPage(msgspec.Struct, frozen=True):
    version: int
    classes: dict[str, ClassTerms]
    placements: dict[str, TopologyRequest]
    entries: list[_StoredEntry]


def encode_page(entries: Sequence[JournalEntry]) -> str:
    """Return the annotation that holds these entries."""
    classes: dict[str, ClassTerms] = {}
    placements: dict[str, TopologyRequest] = {}

    def stored_order(order: VolumeOrder) -> _StoredOrder:
        return _StoredOrder(_shared(classes, order.storage), _shared(placements, order.placement), _own_fields(order))

    def stored_entry(entry: JournalEntry) -> _StoredEntry:
        order = stored_order(entry.order)
        return _StoredEntry(
            entry.deadline,
            entry.call_seconds,
            order.storage,
            order.placement,
            order.order,
            entry.is_being_deleted,
            [stored_order(each) for each in entry.earlier],
        )

    stored = [stored_entry(entry) for entry in entries]
    page = msgspec.json.encode(_StoredPage(VERSION, classes, placements, stored))
    return base64.b64encode(zlib.compress(page, level=6)).decode()


def decode_page(annotation: str) -> tuple[JournalEntry, ...]:
    try:
        inflate = zlib.decompressobj()
        data = inflate.decompress(base64.b64decode(annotation, validate=True), LARGEST_DECODED)
        if not inflate.eof:
            raise UnreadablePage("the page is truncated, or larger than Orlop ever writes one")
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise UnreadablePage(f"the page has format {version}; this version of Orlop reads format {VERSION}")
        page = msgspec.json.decode(data, type=_StoredPage)
        return tuple(_restored(page, stored) for stored in page.entries)
    except (ValueError, zlib.error, KeyError, TypeError, msgspec.MsgspecError) as error:
        if isinstance(error, UnreadablePage):
            raise
        raise UnreadablePage(f"the page is damaged: {error}") from None


def split_into_pages(entries: Sequence[JournalEntry], largest: int = LARGEST_PAGE) -> list[tuple[JournalEntry, ...]]:
    """Return the entries in as many pages as they need, each small enough for a Lease."""
    if not entries:
        return []
    if len(encode_page(entries)) <= largest:
        return [tuple(entries)]
    if len(entries) == 1:
        name = entries[0].order.volume_name
        raise PageOverflow(
            f"the order for volume {name} is too large for the journal: shorten the class's parameters or topologies"
        )
    middle = len(entries) // 2
    return [*split_into_pages(entries[:middle], largest), *split_into_pages(entries[middle:], largest)]


def _shared(table: dict[str, Any], value: Any) -> str:
    digest = hashlib.blake2b(msgspec.json.encode(value), digest_size=_HASH_BYTES).digest()
    key = base64.urlsafe_b64encode(digest).decode()
    table[key] = value
    return key


def _own_fields(order: VolumeOrder) -> dict[str, Any]:
    fields: dict[str, Any] = msgspec.to_builtins(order)
    fields.pop("storage", None)
    fields.pop("placement", None)
    return fields


def _restored(page: _StoredPage, stored: _StoredEntry) -> JournalEntry:
    earlier = tuple(_restored_order(page, each) for each in stored.earlier)
    order = _restored_order(page, stored)
    return JournalEntry(order, stored.deadline, stored.call_seconds, stored.is_being_deleted, earlier)


def _restored_order(page: _StoredPage, stored: _StoredEntry | _StoredOrder) -> VolumeOrder:
    fields = {**stored.order, "storage": page.classes[stored.storage], "placement": page.placements[stored.placement]}
    return msgspec.convert(msgspec.to_builtins(fields), VolumeOrder)
