"""Orders whose outcome is not known yet, by the uid of their claim. Each has a volume name of its own."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from orlop.records.provision_journal import JournalEntry
from orlop.records.volume_order import VolumeOrder
from orlop.sidecars.provisioner import uncertain_order_rules
from orlop.sidecars.provisioner.claim_rules import OpenOrder


class OpenOrders:
    def __init__(self) -> None:
        self._orders: dict[str, OpenOrder] = {}
        self._uid_of: dict[str, str] = {}
        """Uids of claims by the names of their volumes."""

    def __contains__(self, uid: str) -> bool:
        return uid in self._orders

    def __getitem__(self, uid: str) -> OpenOrder:
        return self._orders[uid]

    def get(self, uid: str) -> OpenOrder | None:
        return self._orders.get(uid)

    def begin(self, order: VolumeOrder) -> None:
        """Add an order, or give an open one this request instead of the one that was refused."""
        former = self._orders.get(order.claim.uid)
        self._add(OpenOrder(order) if former is None else uncertain_order_rules.rebuilt(former, order))

    def resume(self, entries: Iterable[JournalEntry], now: float) -> list[str]:
        """Add the orders that a former process left in the journal; return the uids of their claims."""
        uids = []
        for entry in entries:
            # The former process may have sent its last call just before we took the journal over. Wait for the whole
            # duration of a call: comparing the recorded deadline with our clock would trust two machines' clocks.
            until = now + entry.call_seconds
            opened = OpenOrder(entry.order, until, is_recorded=True, is_being_deleted=entry.is_being_deleted)
            # A volume that the former process was deleting has no data to keep: it was never saved, or is empty.
            opened = replace(opened, is_resumed=not entry.is_being_deleted)
            # An order is recorded before its call, so that its request may have created the volume too.
            self._add(replace(opened, uncertain=(entry.order, *entry.earlier)))
            uids.append(entry.order.claim.uid)
        return uids

    def change(self, uid: str, **changes: Any) -> None:
        self._orders[uid] = replace(self._orders[uid], **changes)

    def put(self, uid: str, opened: OpenOrder) -> None:
        """Replace an open order; its volume's name never changes."""
        self._orders[uid] = opened

    def remove(self, uid: str) -> OpenOrder:
        opened = self._orders.pop(uid)
        del self._uid_of[opened.order.volume_name]
        return opened

    def by_volume_name(self, volume_name: str) -> OpenOrder | None:
        """Return the order for a volume of this name."""
        return self._orders.get(self._uid_of.get(volume_name, ""))

    def may_run_until(self, volume_name: str) -> float:
        """Return until when a CreateVolume call for a volume of this name may still take effect."""
        opened = self.by_volume_name(volume_name)
        return 0.0 if opened is None else opened.may_run_until

    def copies_from(self, volume_id: str) -> bool:
        """Return whether an order is for a clone of this volume."""
        return any(opened.order.source_volume_id == volume_id for opened in self._orders.values())

    def names_with_id(self, volume_id: str) -> list[str]:
        """Return the names of the volumes for which the driver returned this id."""
        return [
            opened.order.volume_name
            for opened in self._orders.values()
            if opened.volume is not None and opened.volume.volume_id == volume_id
        ]

    def _add(self, opened: OpenOrder) -> None:
        self._orders[opened.order.claim.uid] = opened
        self._uid_of[opened.order.volume_name] = opened.order.claim.uid
