"""The drives and volumes that the controller knows: from the caches, and newer ones from its own writes and reads.

A reservation that was just made must count for the next one, and the watch delivers it only later; the same holds for a
Volume that was just created. A drive that is read again after a conflict replaces the known state, even one with a
version that seems newer: after the restore of a backup, versions are smaller.

If a drive does not list a Volume object placed on it, the Drive object was lost and made again. The drive takes no new
volumes until its allocations are complete, even if its node reports that they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from orlop.driver.persistent.drive_choice_rules import DriveFacts, Offer
from orlop.driver.persistent.reservation_rules import PlacedVolume, missing_allocations, read_drive, read_volume
from orlop.foundation.structured_log import Log
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.objects import ObjectName, version_order
from orlop.records.volume import DriveVolumeSpec

ApiObject = Mapping[str, Any]


class DriveCatalog:
    """Registers its own listeners; `drives` and `volumes` must be synced before the first choice."""

    def __init__(self, drives: Informer, volumes: Informer, log: Log, events: EventRecorder) -> None:
        self._drives, self._volumes = drives, volumes
        self._log = log
        self._events = events
        self._facts: dict[str, DriveFacts] = {}
        self._listing: dict[str, set[str]] = {}
        """By volume: the drives that list it, normally one."""
        self._offers: dict[Offer, Offer] = {}
        self._known: dict[str, PlacedVolume] = {}
        self._specs: dict[str, dict[str, DriveVolumeSpec]] = {}
        """By drive: the Volume objects on it whose data may still exist."""
        self._removers = (drives.add_listener(self._drive_changed), volumes.add_listener(self._volume_changed))

    @property
    def caches(self) -> tuple[Informer, Informer]:
        """The caches of Drives and Volumes."""
        return self._drives, self._volumes

    def close(self) -> None:
        for remove in self._removers:
            remove()

    def drives(self) -> Sequence[DriveFacts]:
        return tuple(self._facts.values())

    def get(self, name: str) -> DriveFacts | None:
        return self._facts.get(name)

    def holders(self, volume_id: str) -> tuple[DriveFacts, ...]:
        """Return the drives that list a volume."""
        return tuple(self._facts[drive] for drive in sorted(self._listing.get(volume_id, ())))

    def volume(self, volume_id: str) -> PlacedVolume | None:
        return self._known.get(volume_id)

    def volumes(self) -> Sequence[PlacedVolume]:
        return tuple(self._known.values())

    def volumes_on(self, drive: str) -> Mapping[str, DriveVolumeSpec]:
        """Return the Volume objects that a drive must list."""
        return self._specs.get(drive, {})

    def put(self, obj: ApiObject, *, is_live: bool = False) -> None:
        """Add a drive from a write or, with `is_live`, from a read that replaces the known state."""
        name = objects.name(obj)
        known = self._facts.get(name)
        if known is not None and not is_live and _is_newer(known, obj):
            return
        try:
            facts = read_drive(obj, self._offers)
        except ValueError as error:
            # The definition refuses such objects: this one was written before the definition was changed.
            self._log.warning("drive has an invalid field; it takes no volumes", drive=name, error=error)
            note = f"The controller cannot read this object, and places no volume on the drive: {error}"
            self._events.warning(obj, "InvalidField", note)
            if known is not None:
                # What it lists still counts, or its volumes would be placed again on other drives.
                self._facts[name] = replace(known, state=None)
            return
        self._set_drive(name, self._checked(facts))

    def forget(self, name: str) -> None:
        self._set_drive(name, None)

    def _set_drive(self, name: str, after: DriveFacts | None) -> None:
        before = self._facts.pop(name, None)
        old = before.allocations.keys() if before is not None else set[str]()
        new = after.allocations.keys() if after is not None else set[str]()
        for volume in old - new:
            self._listing[volume].discard(name)
            if not self._listing[volume]:
                del self._listing[volume]
        for volume in new - old:
            self._listing.setdefault(volume, set()).add(name)
        if after is not None:
            self._facts[name] = after

    def _drive_changed(self, name: ObjectName) -> None:
        obj = self._drives.get(name)
        if obj is None:
            self.forget(name.name)
        else:
            self.put(obj)

    def put_volume(self, obj: ApiObject) -> None:
        """Add a Volume from the cache, from a write or from a read."""
        name = objects.name(obj)
        known = self._known.get(name)
        if known is not None and _is_newer(known, obj):
            return
        try:
            self._set_volume(name, read_volume(obj))
        except ValueError as error:
            self._log.warning("volume has an invalid field", volume=name, error=error)
            self._events.warning(obj, "InvalidField", f"The controller cannot read this object: {error}")

    def forget_volume(self, name: str) -> None:
        self._set_volume(name, None)

    def _volume_changed(self, name: ObjectName) -> None:
        obj, known = self._volumes.get(name), self._known.get(name.name)
        # The changes of an earlier Volume of the name may arrive after we have created the next one, or read it.
        if known is not None and version_order(known.version) > version_order(self._volumes.version or "0"):
            return
        if obj is not None:
            self.put_volume(obj)
        else:
            self.forget_volume(name.name)

    def _set_volume(self, name: str, after: PlacedVolume | None) -> None:
        before = self._known.pop(name, None)
        if before is not None and (specs := self._specs.get(before.spec.drive)) is not None:
            specs.pop(name, None)
            if not specs:
                del self._specs[before.spec.drive]
        if after is not None:
            self._known[name] = after
            if after.holds_space:
                self._specs.setdefault(after.spec.drive, {})[name] = after.spec
        for drive in {each.spec.drive for each in (before, after) if each is not None}:
            self._check_again(drive)

    def _check_again(self, drive: str) -> None:
        facts = self._facts.get(drive)
        if facts is not None:
            obj = self._drives.get(ObjectName(None, drive)) or {}
            reported = facts.restored or bool((obj.get("status") or {}).get("allocationsRestored"))
            self._facts[drive] = self._checked(replace(facts, restored=reported))

    def _checked(self, facts: DriveFacts) -> DriveFacts:
        is_complete = not missing_allocations(facts, self.volumes_on(facts.name))
        return facts if facts.restored == (facts.restored and is_complete) else replace(facts, restored=False)


def _is_newer(known: DriveFacts | PlacedVolume, obj: ApiObject) -> bool:
    is_same = known.uid == objects.uid(obj)
    return is_same and version_order(known.version) > version_order(objects.resource_version(obj))
