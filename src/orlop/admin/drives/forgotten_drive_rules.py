"""Decide whether a drive can be forgotten, what is lost with it, and how its objects are removed. Pure.

Order: delete the object of the drive, which its finalizer keeps → remove each Volume object → remove the finalizers of
the drive. From the first write on no new volume is placed on the drive, and a command that was killed is continued by
the next.

Nothing on the disk is changed. DeleteVolume succeeds for a volume that has no object and that no drive lists, so that
its claim and its PersistentVolume can be deleted. If the disk comes back, its node makes the object of the drive again
and reports the volumes; adoption makes their objects.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orlop.admin.drives.adopted_object_rules import RETAIN
from orlop.admin.drives.adoption_rules import PatchObject, RequestDeletion, discard_step, handle_of
from orlop.admin.drives.drive_list_rules import SHORTEST_PREFIX, DriveRow
from orlop.admin.drives.volume_list_rules import VolumeRow
from orlop.admin.refusals import WrongUse
from orlop.admin.shell_commands import bare_command, delete_command
from orlop.binding import claim_state_rules as state
from orlop.binding.storage_protection_rules import claims_named_by
from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import ObjectName
from orlop.records.drive import DRIVE, DriveSpec, DriveStatus
from orlop.records.drive_record import DriveState, DriveType
from orlop.records.volume import VOLUME

ApiObject = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class LostVolume:
    """A volume that is given up with its drive, and what depends on it."""

    name: str
    bytes: int
    claim: ObjectName | None = None
    claim_exists: bool = False
    persistent_volumes: tuple[str, ...] = ()
    retained: tuple[str, ...] = ()
    """The PersistentVolumes that nothing deletes: their claim is gone, and their policy is Retain."""
    pods: tuple[ObjectName, ...] = ()


@dataclass(frozen=True, slots=True)
class ForgottenDrive:
    """A drive that is to be forgotten."""

    drive: DriveRow
    volumes: tuple[LostVolume, ...]
    why_not: str = ""
    """Why it is refused, as the end of a sentence; empty if it is not."""

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands that delete what depends on the volumes: claims first, and then the pods."""
        claims = _by_namespace(each.claim for each in self.volumes if each.claim is not None and each.claim_exists)
        pods = _by_namespace(pod for each in self.volumes for pod in each.pods)
        retained = sorted({name for each in self.volumes for name in each.retained})
        # Kubernetes keeps a claim until no pod uses it: without --wait=false kubectl would wait for the pods.
        deletions = [
            f"{bare_command(delete_command(PERSISTENT_VOLUME_CLAIM, namespace, *names))} --wait=false"
            for namespace, names in claims.items()
        ]
        deletions += [bare_command(delete_command(POD, namespace, *names)) for namespace, names in pods.items()]
        return (*deletions, *([bare_command(delete_command(PERSISTENT_VOLUME, None, *retained))] if retained else []))


def _by_namespace(names: Iterable[ObjectName]) -> dict[str, list[str]]:
    known = sorted({(name.namespace or "", name.name) for name in names})
    return {namespace: [name for each, name in known if each == namespace] for namespace, _ in known}


@dataclass(frozen=True, slots=True)
class Dependents:
    """Everything in the cluster that may depend on a volume."""

    persistent_volumes: Sequence[ApiObject] = ()
    claims: Sequence[ApiObject] = ()
    pods: Sequence[ApiObject] = ()
    """Pods that have not ended."""


def lost_volumes(drive: DriveRow, rows: Iterable[VolumeRow], dependents: Dependents) -> tuple[LostVolume, ...]:
    """Return the volumes of a drive by name: those that it lists, those with an object, and those last found on it."""
    sizes = {each.volume: each.bytes for each in drive.status.unrecorded_volumes}
    sizes |= {each.volume: each.bytes for each in drive.spec.allocations}
    own = {row.name: row for row in rows if row.spec.drive == drive.name}
    sizes |= {row.name: row.spec.bytes for row in own.values()}
    recorded = {
        each.volume: ObjectName(each.claim_namespace, each.claim_name)
        for each in drive.status.unrecorded_volumes
        if each.claim_name
    } | {
        row.name: ObjectName(row.spec.claim.namespace, row.spec.claim.name)
        for row in own.values()
        if row.spec.claim is not None
    }
    return tuple(_lost(name, size, recorded.get(name), dependents) for name, size in sorted(sizes.items()))


def _lost(name: str, size: int, recorded: ObjectName | None, dependents: Dependents) -> LostVolume:
    named = [each for each in dependents.persistent_volumes if handle_of(each) == name]
    references = [reference for each in named if (reference := state.claim_reference(each)) is not None]
    claim = recorded
    if references:
        claim = ObjectName(str(references[0].get("namespace")), str(references[0].get("name")))
    # A claim of the name that was made again and has another volume does not depend on this one.
    names = {objects.name(each) for each in named} | {name}
    exists = any(objects.name_of(each) == claim and state.volume_name(each) in names for each in dependents.claims)
    return LostVolume(
        name=name,
        bytes=size,
        claim=claim,
        claim_exists=exists,
        persistent_volumes=tuple(sorted(objects.name(each) for each in named)),
        retained=() if exists else tuple(objects.name(each) for each in named if _is_retained(each)),
        pods=tuple(objects.name_of(pod) for pod in dependents.pods if exists and claim in claims_named_by(pod)),
    )


def _is_retained(persistent_volume: ApiObject) -> bool:
    return (persistent_volume.get("spec") or {}).get("persistentVolumeReclaimPolicy") == RETAIN


def why_not_forgotten(drive: DriveRow, *, node_exists: bool) -> str:
    """Return why a drive must not be forgotten yet; empty if its node cannot use it any more."""
    if drive.status.state is DriveState.LOST or not node_exists or not objects.uid(drive.obj):
        return ""
    return (
        f"is reported as {drive.base_state} by its node {drive.node}: only a drive that is Lost is forgotten. Take out "
        f"its disk, and it is Lost within seconds. If that node is switched off for good: kubectl delete node "
        f"{drive.node}. --force forgets the drive anyway; a node that can still use the drive makes its object again"
    )


def drive_without_object(rows: Iterable[VolumeRow], word: str) -> DriveRow | None:
    """Return the drive of volumes that is named by a word and has no object: it was removed by force."""
    nodes = {row.spec.drive: row.spec.node_name for row in rows}
    named = sorted(each for each in nodes if each == word or (len(word) >= SHORTEST_PREFIX and each.startswith(word)))
    if len(named) > 1:
        raise WrongUse(f"{word} names {len(named)} drives: {', '.join(named)}. Write more of the name.")
    if not named:
        return None
    spec = DriveSpec(node_name=nodes[named[0]], type=DriveType.DISK)
    return DriveRow({"metadata": {"name": named[0]}}, spec, DriveStatus())


# ---- removal ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ForgetWith:
    """Make this write, and read everything again."""

    step: PatchObject | RequestDeletion


class DriveForgotten:
    """No object names the drive any more, except PersistentVolumes."""


def next_forgetting_step(drive: ApiObject | None, volume: ApiObject | None) -> ForgetWith | DriveForgotten:
    """Return the next write. `volume` is a Volume object on the drive; None: it has none any more."""
    # Only a finalizer keeps the object until the end: without one, its name would be lost before its volumes.
    if drive is not None and not objects.is_being_deleted(drive) and (objects.finalizers(drive) or volume is None):
        return ForgetWith(RequestDeletion(DRIVE, objects.name(drive), objects.uid(drive)))
    if volume is not None:
        return ForgetWith(discard_step(VOLUME, volume))
    return ForgetWith(discard_step(DRIVE, drive)) if drive is not None else DriveForgotten()
