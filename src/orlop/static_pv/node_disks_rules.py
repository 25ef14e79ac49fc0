"""Read what is known of the disks of one node: its ProvisionerStatus, its PersistentVolumes, its Node. Pure.

`NodeDisks` is one view of all of them. `master_rules` decides on it, for one disk after the other.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from orlop.kube import objects
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import (
    DISCOVERED,
    DeleteOperation,
    DeleteStatus,
    LocalVolume,
    ProvisionerSpec,
    ProvisionerStatusStatus,
)
from orlop.static_pv.configuration import StaticConfiguration
from orlop.static_pv.naming_rules import entry_fault, entry_path
from orlop.static_pv.static_volume_rules import StaticVolume

ApiObject = Mapping[str, Any]
COMPLETE: Final = "Complete"
ERROR: Final = "Error"


@dataclass(frozen=True, slots=True)
class DiskReport:
    """The facts of a ProvisionerStatus."""

    node: str
    uid: str
    generation: int
    operations: tuple[DeleteOperation, ...]
    volumes: tuple[LocalVolume, ...] | None
    statuses: tuple[DeleteStatus, ...]
    is_discovered: bool
    """Whether every folder could be read: otherwise a disk that is not listed may be there."""

    @property
    def decisive(self) -> tuple[object, ...]:
        """Everything that a decision depends on, and so not the progress of a wipe."""
        states = tuple((each.uid, each.state, each.attempts) for each in self.statuses)
        return self.uid, self.operations, self.volumes, states, self.is_discovered


def read_node_report(obj: ApiObject) -> DiskReport:
    """Read a ProvisionerStatus. A field of a wrong type raises `ValueError`."""
    spec = part_of(obj, "spec", ProvisionerSpec)
    status = part_of(obj, "status", ProvisionerStatusStatus)
    failed = any(each.type == DISCOVERED and each.status == "False" for each in status.conditions)
    return DiskReport(
        node=spec.node_name,
        uid=objects.uid(obj),
        generation=objects.generation(obj),
        operations=spec.delete_operations,
        volumes=status.local_volumes,
        statuses=status.delete_statuses,
        is_discovered=not failed,
    )


def lists_disk(report: DiskReport, volume: StaticVolume) -> bool:
    """Return whether the node lists the disk of this volume under the volume's own name."""
    return any(each.name == volume.name and each.identity == volume.identity for each in report.volumes or ())


def is_unique_across_nodes(identity: str) -> bool:
    """Return whether an identity is unique: only one disk of all nodes can have it.

    Serial numbers of virtual disks, names of mapped devices and files, and folders of cloned file systems are not.
    """
    kind, _, rest = identity.partition(":")
    return kind == "wwn" or (kind == "fs" and ":" not in rest)


def is_file_system(identity: str) -> bool:
    """Return whether the identity is that of a file system, which may have been cloned with its machine."""
    return identity.startswith("fs:")


@dataclass(frozen=True, slots=True)
class VersionedVolume:
    """A PersistentVolume, and the resourceVersion at which its facts were read."""

    facts: StaticVolume
    version: str


@dataclass(frozen=True)
class NodeDisks:
    """Everything that is known of the disks of one node."""

    name: str
    node: ApiObject | None
    """The Node; None: it is missing."""
    is_gone: bool
    """Whether the Node has been missing for so long that it counts as gone."""
    report: DiskReport | None
    """None: no worker of this node has ever run, or its ProvisionerStatus was deleted."""
    volumes: Mapping[str, VersionedVolume]
    configuration: StaticConfiguration
    classes: Mapping[str, ApiObject] = field(default_factory=dict)
    """The StorageClasses that are configured, by name."""
    taken_names: frozenset[str] = frozenset()
    """Names of listed disks that PersistentVolumes of others have."""
    moved_here: Mapping[str, str] = field(default_factory=dict)
    """By identity: volumes of other nodes that were used, and whose disk is listed here."""

    @cached_property
    def listed(self) -> Mapping[str, LocalVolume]:
        return {each.name: each for each in (self.report.volumes or ())} if self.report is not None else {}

    @cached_property
    def operations(self) -> Mapping[str, list[DeleteOperation]]:
        """The operations, by the name of the listed volume."""
        found: dict[str, list[DeleteOperation]] = defaultdict(list)
        for each in self.report.operations if self.report is not None else ():
            found[each.volume].append(each)
        return found

    @cached_property
    def statuses(self) -> Mapping[str, DeleteStatus]:
        return {each.uid: each for each in self.report.statuses} if self.report is not None else {}

    @cached_property
    def has_stray_status(self) -> bool:
        """Whether the worker reports an operation that is not requested any more. It does not name the disk."""
        requested = {each.uid for each in (self.report.operations if self.report is not None else ())}
        return not requested.issuperset(self.statuses)

    @cached_property
    def missed_disks(self) -> Mapping[str, str]:
        """By identity: volumes that were used, and whose disk is not listed under their own name."""
        missed = {
            volume.facts.identity: name
            for name, volume in self.volumes.items()
            if volume.facts.identity and not volume.facts.is_untouched and not self._is_in_place(volume.facts)
        }
        return {**self.moved_here, **missed}

    def _is_in_place(self, volume: StaticVolume) -> bool:
        return self.report is not None and lists_disk(self.report, volume)

    @cached_property
    def disk_names(self) -> list[str]:
        """Return every disk that may need a step, in a stable order."""
        return sorted({*self.volumes, *self.listed, *self.operations})

    @cached_property
    def users_of_path(self) -> Mapping[str, frozenset[str]]:
        """The names of the volumes that have a path, or whose disk is being wiped there."""
        found: dict[str, set[str]] = defaultdict(set)
        for name, volume in self.volumes.items():
            found[volume.facts.path].add(name)
        for path, name in self._wiped_paths():
            found[path].add(name)
        return {path: frozenset(names) for path, names in found.items()}

    def _wiped_paths(self) -> Iterator[tuple[str, str]]:
        for operation in self.report.operations if self.report is not None else ():
            of_class = self.configuration.of_class(operation.storage_class)
            if of_class is not None and not entry_fault(operation.entry):
                yield entry_path(of_class.host_dir, operation.entry), operation.volume

    def is_being_wiped(self, identity: str) -> bool:
        """Whether an operation names this disk, under whichever entry."""
        operations = self.report.operations if self.report is not None else ()
        return bool(identity) and any(each.identity == identity for each in operations)
