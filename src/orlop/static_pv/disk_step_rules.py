"""What the master may do next with one disk. Pure.

`master_rules` and `offer_rules` choose one of these, `master` carries it out. Patches come complete with the tests that
make them fail if what was decided on has changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

from orlop.kube.patches import JsonPatch
from orlop.records.provisioner_status import DeleteOperation, DeleteStatus


@dataclass(frozen=True, slots=True)
class LeaveAlone:
    """There is nothing to do now. The reason is for the log and for `orlop explain`."""

    reason: str


@dataclass(frozen=True, slots=True)
class ReportVolume:
    """Record a warning about a PersistentVolume that needs an admin."""

    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class ReportFailure:
    """Report that the last attempt of a wipe failed. The worker tries again."""

    status: DeleteStatus


@dataclass(frozen=True, slots=True)
class ReportDisk:
    """Record a warning about a listed disk that cannot be offered."""

    reason: str
    note: str


@dataclass(frozen=True, slots=True)
class OfferDisk:
    """Create the PersistentVolume of a disk."""

    volume: dict[str, Any]


@dataclass(frozen=True, slots=True)
class PatchVolume:
    """Write what is known of a PersistentVolume into it."""

    patch: JsonPatch
    what: str


@dataclass(frozen=True, slots=True)
class EndVolume:
    """Delete a PersistentVolume of this uid and version. It stays, Terminating, while it has our finalizer."""

    uid: str
    version: str
    why: str


@dataclass(frozen=True, slots=True)
class LetVolumeGo:
    """Remove our finalizer: with that, the object is gone."""

    patch: JsonPatch
    why: str


@dataclass(frozen=True, slots=True)
class RequestWipe:
    """Add an operation to the ProvisionerStatus."""

    operation: DeleteOperation
    patch: JsonPatch


@dataclass(frozen=True, slots=True)
class DropOperation:
    """Remove an operation from the ProvisionerStatus."""

    operation: DeleteOperation
    patch: JsonPatch
    why: str


DiskStep: TypeAlias = (
    LeaveAlone
    | ReportVolume
    | ReportFailure
    | ReportDisk
    | OfferDisk
    | PatchVolume
    | EndVolume
    | LetVolumeGo
    | RequestWipe
    | DropOperation
)
