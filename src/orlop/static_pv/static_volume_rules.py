"""Read and build the PersistentVolumes of static volumes, as local-static-provisioner makes them. Pure.

A PersistentVolume is one of ours if its annotation `provisioned-by` names a node and its name is the hash of that node,
its class and the last part of its path. So volumes of local-static-provisioner are ours too, wherever a worker runs,
and a node that was created again under its name keeps them: its uid is not compared.

Beyond what today's product writes, a volume has the finalizer `orlop.dev/wipe`, and annotations of which other products
know nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from sys import intern
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.host.static_disks.disk_entries import is_outdated
from orlop.kube import objects
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import GROUP
from orlop.records.provisioner_status import LocalVolume
from orlop.static_pv.configuration import StaticClass, StaticConfiguration
from orlop.static_pv.naming_rules import capacity_text, entry_path, rounded_capacity, volume_name

ApiObject = Mapping[str, Any]

WIPE_FINALIZER: Final = f"{GROUP}/wipe"
EVER_BOUND: Final = f"{GROUP}/ever-bound"
"""Annotation: a claim had the volume. Written when a claim is first seen, never removed."""
DISK_IDENTITY: Final = f"{GROUP}/disk-identity"
"""Annotation: what the disk was recognized by when it was offered, so that no other disk is wiped in its place."""
WIPE_DECIDED: Final = f"{GROUP}/wipe-decided"
"""Annotation: the disk is to be wiped, whatever is changed from then on. Written before the operation is requested."""
RELEASE: Final = f"{GROUP}/release"
"""Annotation, written by an admin: how the disk of a volume that is being deleted comes back, and of which deletion.

One that was written before the deletion is ignored: it would decide about data that a claim has written since.
"""
HANDED_BACK: Final = f"{GROUP}/handed-back"
"""Annotation: the uid of the ProvisionerStatus under which the volume was handed back. A master that has not seen yet
that this object is gone must not take the volume over again."""
NO_REPORT: Final = "none"
AS_IS: Final = "as-is"
WIPE: Final = "wipe"
PROVISIONER_PREFIX: Final = "local-volume-provisioner-"
HOSTNAME: Final = "kubernetes.io/hostname"
UID_AT_END: Final = re.compile(r"-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}$")

RELEASED, FAILED, BOUND = "Released", "Failed", "Bound"
DELETE, RETAIN, RECYCLE = "Delete", "Retain", "Recycle"
RECLAIM_POLICIES: Final = (DELETE, RETAIN)


@dataclass(frozen=True, slots=True)
class StaticVolume:
    """The facts of a PersistentVolume that the master decides with."""

    name: str
    uid: str
    node: str
    storage_class: str
    path: str
    entry: str
    volume_mode: str
    capacity: int
    phase: str
    policy: str
    claim: str
    """Namespace and name; empty: none."""
    claim_uid: str
    finalizers: tuple[str, ...]
    is_being_deleted: bool
    is_ever_bound_noted: bool
    was_bound_by_controller: bool
    is_wipe_decided: bool
    identity: str
    release: str
    """How its disk comes back after this deletion; empty until an admin decides."""
    deleted_at: str = ""
    handed_back: str = ""
    was_seen_bound: bool = False
    """A claim had it when the master saw it last, and has it no more."""

    @property
    def has_finalizer(self) -> bool:
        return WIPE_FINALIZER in self.finalizers

    @property
    def is_released(self) -> bool:
        return self.phase in (RELEASED, FAILED)

    @property
    def is_bound(self) -> bool:
        """Whether a claim has it, or is getting it: the phase follows the claim's uid a moment later."""
        return bool(self.claim_uid) and not self.is_released

    @property
    def was_ever_bound(self) -> bool:
        """Whether its disk may have data of a claim.

        The binder's own annotation stays when an admin removes the claim from the volume while the master is away.
        """
        noted = self.is_ever_bound_noted or self.was_bound_by_controller or self.was_seen_bound
        return noted or bool(self.claim_uid) or self.phase in (BOUND, RELEASED, FAILED)

    @property
    def is_untouched(self) -> bool:
        """Whether no claim has, had or is to get it, so that it can be withdrawn."""
        return not self.was_ever_bound and not self.claim


def read_static_volume(volume: ApiObject) -> StaticVolume | None:
    """Read a PersistentVolume; None if it is not a static volume."""
    spec, annotations = _mapping(volume, "spec"), objects.annotations(volume)
    path, storage_class = str(_mapping(spec, "local").get("path") or ""), state.class_name(volume)
    entry = path.rpartition("/")[2]
    name = objects.name(volume)
    nodes = _possible_nodes(annotations.get(state.PROVISIONED_BY) or "")
    node = next((each for each in nodes if volume_name(entry, each, storage_class) == name), "")
    if not node or not entry:
        return None
    claim, capacity = _mapping(spec, "claimRef"), state.capacity(volume)
    return StaticVolume(
        name=name,
        uid=objects.uid(volume),
        # Thousands of volumes have the same few texts: each is kept once.
        node=intern(node),
        storage_class=intern(storage_class),
        path=path,
        entry=intern(entry),
        volume_mode=intern(state.volume_mode(volume)),
        capacity=capacity.value() if capacity is not None else 0,
        phase=intern(state.phase(volume)),
        policy=intern(str(spec.get("persistentVolumeReclaimPolicy") or RETAIN)),
        claim=f"{claim.get('namespace', '')}/{claim['name']}" if claim.get("name") else "",
        claim_uid=str(claim.get("uid") or ""),
        finalizers=tuple(map(intern, objects.finalizers(volume))),
        is_being_deleted=objects.is_being_deleted(volume),
        is_ever_bound_noted=EVER_BOUND in annotations,
        was_bound_by_controller=state.BOUND_BY_CONTROLLER in annotations,
        is_wipe_decided=WIPE_DECIDED in annotations,
        identity=annotations.get(DISK_IDENTITY) or "",
        release=_release_of(annotations.get(RELEASE) or "", _deleted_at(volume)),
        deleted_at=_deleted_at(volume),
        handed_back=annotations.get(HANDED_BACK) or "",
    )


def release_note(how: str, deleted_at: str) -> str:
    """Return the value of the annotation for the deletion that began at this time."""
    return f"{how} {deleted_at}"


def _release_of(note: str, deleted_at: str) -> str:
    how, _, of_deletion = note.partition(" ")
    return how if deleted_at and of_deletion == deleted_at else ""


def _deleted_at(volume: ApiObject) -> str:
    return str(_mapping(volume, "metadata").get("deletionTimestamp") or "")


def _possible_nodes(provisioner: str) -> Iterator[str]:
    """Yield the node names that the annotation may mean: with or without a uid at the end."""
    if provisioner.startswith(PROVISIONER_PREFIX):
        rest = provisioner.removeprefix(PROVISIONER_PREFIX)
        yield rest
        if UID_AT_END.search(rest):
            yield UID_AT_END.sub("", rest)


def _mapping(parent: Mapping[str, Any], field: str) -> Mapping[str, Any]:
    part = parent.get(field)
    return part if isinstance(part, Mapping) else {}


# ---- a new volume ----------------------------------------------------------------------------------------------------


def provisioner_name(node: ApiObject, configuration: StaticConfiguration) -> str:
    """Return what the annotation has: its prefix keeps the controller manager from deleting the volume itself."""
    name = f"{PROVISIONER_PREFIX}{objects.name(node)}"
    return name if configuration.use_node_name_only else f"{name}-{objects.uid(node)}"


def new_volume(
    listed: LocalVolume,
    of_class: StaticClass,
    node: ApiObject,
    storage_class: ApiObject,
    configuration: StaticConfiguration,
) -> dict[str, Any]:
    """Return the PersistentVolume of a listed disk."""
    spec: dict[str, Any] = {
        "persistentVolumeReclaimPolicy": reclaim_policy(storage_class),
        "capacity": {"storage": capacity_text(rounded_capacity(listed.capacity_bytes))},
        "local": {"path": entry_path(of_class.host_dir, listed.entry)},
        "accessModes": [of_class.access_mode],
        "storageClassName": of_class.name,
        "volumeMode": of_class.volume_mode,
        "nodeAffinity": {"required": {"nodeSelectorTerms": [_term_of(node), *map(dict, of_class.selector)]}},
    }
    if of_class.fs_type:
        spec["local"]["fsType"] = of_class.fs_type
    if options := storage_class.get("mountOptions"):
        spec["mountOptions"] = list(options)
    return {"apiVersion": "v1", "kind": "PersistentVolume", "metadata": _metadata(listed, node, configuration)} | {
        "spec": spec
    }


def _metadata(listed: LocalVolume, node: ApiObject, configuration: StaticConfiguration) -> dict[str, Any]:
    identity = {DISK_IDENTITY: listed.identity} if listed.identity else {}
    metadata: dict[str, Any] = {
        "name": listed.name,
        "annotations": {state.PROVISIONED_BY: provisioner_name(node, configuration), **identity},
        "finalizers": [WIPE_FINALIZER],
    }
    present = objects.labels(node)
    if labels := {key: present[key] for key in configuration.node_labels if key in present} | dict(
        configuration.labels
    ):
        metadata["labels"] = labels
    if configuration.set_owner_reference:
        owner = {"apiVersion": "v1", "kind": "Node", "name": objects.name(node), "uid": objects.uid(node)}
        metadata["ownerReferences"] = [owner]
    return metadata


def _term_of(node: ApiObject) -> dict[str, Any]:
    values = [objects.labels(node)[HOSTNAME]]
    return {"matchExpressions": [{"key": HOSTNAME, "operator": "In", "values": values}]}


def reclaim_policy(storage_class: ApiObject) -> str:
    return str(storage_class.get("reclaimPolicy") or DELETE)


# ---- patches ---------------------------------------------------------------------------------------------------------
# Each tests the version: a claim that was bound meanwhile changes every decision.


def guarded_patch(volume: StaticVolume, version: str) -> JsonPatch:
    return JsonPatch().test("metadata", "uid", value=volume.uid).test("metadata", "resourceVersion", value=version)


def keeping_patch(volume: StaticVolume, version: str, identity: str) -> JsonPatch | None:
    """Add what every volume of ours has, once it is known: finalizer, note of a claim, identity of the disk."""
    patch = start = guarded_patch(volume, version)
    if not volume.has_finalizer and not volume.is_being_deleted:
        path, value = (("-",), WIPE_FINALIZER) if volume.finalizers else ((), [WIPE_FINALIZER])
        patch = patch.add("metadata", "finalizers", *path, value=value)
    if volume.was_ever_bound and not volume.is_ever_bound_noted:
        patch = patch.add("metadata", "annotations", EVER_BOUND, value="true")
    # A disk without an identity of its own is recognized only until the machine restarts. After a restart, replace what
    # was noted while a claim has the disk or none had it yet; once the volume is being deleted, keep it for the wipe.
    if identity and (not volume.identity or (not volume.is_being_deleted and is_outdated(volume.identity, identity))):
        patch = patch.add("metadata", "annotations", DISK_IDENTITY, value=identity)
    return None if patch == start else patch


def releasing_patch(volume: StaticVolume, version: str) -> JsonPatch:
    """Remove our finalizer. The index is safe: the version is tested."""
    patch = guarded_patch(volume, version)
    for place in reversed([at for at, name in enumerate(volume.finalizers) if name == WIPE_FINALIZER]):
        patch = patch.remove("metadata", "finalizers", place)
    return patch


def handing_back_patch(volume: StaticVolume, version: str, report_uid: str) -> JsonPatch:
    """Remove our finalizer, and note under which ProvisionerStatus the volume was handed back."""
    return releasing_patch(volume, version).add("metadata", "annotations", HANDED_BACK, value=report_uid or NO_REPORT)


def capacity_patch(volume: StaticVolume, version: str, capacity: int) -> JsonPatch:
    return guarded_patch(volume, version).replace("spec", "capacity", "storage", value=capacity_text(capacity))


def deciding_patch(volume: StaticVolume, version: str) -> JsonPatch:
    """Note that the disk is to be wiped. A claim that is named without a uid would be bound even now: unname it."""
    patch = guarded_patch(volume, version).add("metadata", "annotations", WIPE_DECIDED, value="true")
    return patch.remove("spec", "claimRef") if volume.claim and not volume.claim_uid else patch


def undeciding_patch(volume: StaticVolume, version: str) -> JsonPatch:
    return guarded_patch(volume, version).remove("metadata", "annotations", WIPE_DECIDED)
