"""Read the block devices that nodes report, find those that an operator names, and plan the requests for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orlop.admin.refusals import ChangeRefused, UnknownObject, WrongUse
from orlop.kube import objects
from orlop.records.api_record import part_of
from orlop.records.drive import FileSystem
from orlop.records.drive_request import MOST_DEVICES, DriveRequestSpec, RequestedDevice
from orlop.records.node_devices import NodeDevicesStatus, SeenDevice
from orlop.static_pv.node_disks_rules import read_node_report
from orlop.static_pv.static_volume_rules import read_static_volume

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """A block device of a node."""

    node: str
    device: SeenDevice

    @property
    def word(self) -> str:
        """How the device is named in commands."""
        return f"{self.node}/{self.device.name}"

    @property
    def is_usable(self) -> bool:
        return not self.device.unusable and not self.device.drive

    @property
    def why_not(self) -> str:
        """Why it cannot become a drive; empty if it can."""
        is_drive = f"it is the drive {self.device.drive}" if self.device.drive else ""
        return "; ".join(self.device.unusable) or is_drive

    def why_not_overwritten(self, drives: Collection[str]) -> str:
        """Why it cannot become a drive even by force; empty if it can. `drives` have an object.

        The disk of a drive that was removed still has the drive's identity. What shows that nobody uses it: no node has
        it mounted, and no object describes it.
        """
        device = self.device
        if not device.drive or device.drive in drives or device.mount_points:
            return self.why_not
        return "; ".join(each for each in device.unusable if not each.startswith(f"it is the drive {device.drive}"))


StaticDisks = Mapping[tuple[str, str], str]
"""Volumes by node and identity of their disk."""
NO_STATIC_DISKS: Final[StaticDisks] = {}


def static_disks(reports: Iterable[ApiObject], volumes: Iterable[ApiObject]) -> StaticDisks:
    """Return the disks that are static volumes: those that workers list, and those of PersistentVolumes."""
    names: dict[tuple[str, str], str] = {}
    for obj in reports:
        try:
            report = read_node_report(obj)
        except ValueError:
            continue
        names |= {(report.node, each.identity): each.name for each in report.volumes or ()}
    facts = [read_static_volume(each) for each in volumes]
    names |= {(each.node, each.identity): each.name for each in facts if each is not None}
    return {key: name for key, name in names.items() if key[1]}


def _identities(device: SeenDevice) -> Iterator[str]:
    """Yield the identities that a worker of static volumes may list a device under: those of `disk_identity`."""
    if device.wwn:
        yield f"wwn:{device.wwn}"
    elif device.serial:
        yield f"serial:{device.model}:{device.serial}"
    if device.file_system_uuid:
        yield f"fs:{device.file_system_uuid.replace('-', '')}"


def _with_static_reason(node: str, device: SeenDevice, disks: StaticDisks) -> SeenDevice:
    """Return the device, with a reason against a drive if it is a static volume. Such a disk may be blank."""
    name = next((disks[node, each] for each in _identities(device) if (node, each) in disks), "")
    why = f"it is the static volume {name}"
    return msgspec.structs.replace(device, unusable=(*device.unusable, why)) if name else device


def device_rows(node_devices: Iterable[ApiObject], disks: StaticDisks = NO_STATIC_DISKS) -> list[DeviceRow]:
    """Return the devices of all nodes, by node and name. Objects with invalid fields are left out."""
    rows = []
    for obj in node_devices:
        try:
            status = part_of(obj, "status", NodeDevicesStatus)
        except ValueError:
            continue
        node = objects.name(obj)
        rows += [DeviceRow(node, _with_static_reason(node, device, disks)) for device in status.devices]
    return sorted(rows, key=lambda row: (row.node, row.device.name))


def find_devices(rows: Sequence[DeviceRow], words: Sequence[str], node: str) -> list[DeviceRow]:
    """Return the devices that the words name, each once: NODE/DEVICE, or DEVICE of the only or named node."""
    named = [_find(rows, word, node) for word in words]
    return list({row.word: row for row in named}.values())


def _find(rows: Sequence[DeviceRow], word: str, node: str) -> DeviceRow:
    before, slash, after = ("", "", word) if word.startswith("/") else word.partition("/")
    named_node, place = (before, after) if slash else (node, word)
    if named_node and node and named_node != node:
        raise WrongUse(f"{word} is of the node {named_node}, and --node names {node}: leave one of them out.")
    places = {place, f"/{place}"}
    matching = [row for row in rows if {row.device.name, row.device.path} & places and named_node in {"", row.node}]
    if not matching:
        where = f" on the node {named_node}" if named_node else ""
        raise UnknownObject(f"There is no device {place}{where}. `orlop drives discover` shows the devices.")
    if len(matching) > 1:
        raise WrongUse(
            f"Several nodes have a device {place}: {', '.join(row.word for row in matching)}. Name the node."
        )
    return matching[0]


def formatting_requests(
    rows: Sequence[DeviceRow], *, file_system: FileSystem, force: bool, dry_run: bool, drives: Collection[str]
) -> list[DriveRequestSpec]:
    """Return the requests that make drives of the devices, at least one for each node. `drives` have an object."""
    for row in rows:
        if why := row.why_not_overwritten(drives) if force else row.why_not:
            raise ChangeRefused(f"{row.word} cannot become a drive: {why}.")
        if row.device.file_system and not force:
            raise ChangeRefused(
                f"{row.word} holds a file system or signature ({row.device.file_system}): --force destroys what it has."
            )
    return [
        DriveRequestSpec(
            node_name=batch[0].node,
            devices=tuple(
                RequestedDevice(name=row.device.name, fingerprint=row.device.fingerprint, force=force) for row in batch
            ),
            file_system=file_system,
            dry_run=dry_run,
        )
        for batch in _batches(rows)
    ]


def _batches(rows: Sequence[DeviceRow]) -> list[Sequence[DeviceRow]]:
    """Return the rows by node, at most as many together as a request can have."""
    by_node = [[row for row in rows if row.node == node] for node in sorted({row.node for row in rows})]
    return [of_node[at : at + MOST_DEVICES] for of_node in by_node for at in range(0, len(of_node), MOST_DEVICES)]


def chosen_node(nodes: Iterable[str], node: str, option: str = "--node") -> str:
    """Return the node for a request: the named one, else the only one there is."""
    known = sorted(nodes)
    if node:
        if known and node not in known:
            raise UnknownObject(f"The node {node} has not reported its devices; those that have: {', '.join(known)}.")
        return node
    if len(known) == 1:
        return known[0]
    if not known:
        raise ChangeRefused("No node has reported its devices: check that `orlop node` runs on the nodes, with drives.")
    raise WrongUse(f"There are several nodes: choose one with {option} ({', '.join(known)}).")
