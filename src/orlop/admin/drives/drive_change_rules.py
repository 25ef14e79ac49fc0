"""Decide what a change of a drive's spec writes. Pure.

Every patch tests the uid and the generation that it was decided on, as reservations do: a reservation and a removal of
one drive never both succeed. Labels have no generation: their patch tests the labels too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from orlop.admin.drives.drive_list_rules import DriveRow, read_drive_row
from orlop.admin.refusals import WrongUse
from orlop.kube import objects
from orlop.kube.label_syntax import faults_of_label_key, faults_of_label_value
from orlop.kube.patches import JsonPatch, guarded_by_generation
from orlop.records.drive import Tier
from orlop.records.drive_record import DriveState

ApiObject = Mapping[str, Any]
MOST_NAMES = 3


@dataclass(frozen=True, slots=True)
class ChangeDrive:
    """Write the patch."""

    patch: JsonPatch
    done: str
    """The end of a sentence about the drive, after the patch."""


@dataclass(frozen=True, slots=True)
class LeaveDrive:
    """Write nothing: the drive has the requested state already."""

    why: str


@dataclass(frozen=True, slots=True)
class RefuseChange:
    """Write nothing, and report an error. `why` is the end of a sentence."""

    why: str


DriveChange = ChangeDrive | LeaveDrive | RefuseChange
DecideChange = Callable[[ApiObject], DriveChange]


def cordon(obj: ApiObject) -> DriveChange:
    """Place no new volumes on a drive."""
    if read_drive_row(obj).spec.unschedulable:
        return LeaveDrive("is cordoned already")
    return ChangeDrive(guarded_by_generation(obj).add("spec", "unschedulable", value=True), "is cordoned")


def uncordon(obj: ApiObject) -> DriveChange:
    """Place new volumes on a drive again."""
    if not read_drive_row(obj).spec.unschedulable:
        return LeaveDrive("is not cordoned")
    return ChangeDrive(guarded_by_generation(obj).add("spec", "unschedulable", value=False), "is uncordoned")


def set_tier(tier: Tier) -> DecideChange:
    """Return the rule that sets the access tier of a drive."""

    def decide(obj: ApiObject) -> DriveChange:
        if read_drive_row(obj).spec.tier == tier:
            return LeaveDrive(f"has the tier {tier} already")
        return ChangeDrive(guarded_by_generation(obj).add("spec", "tier", value=tier), f"has the tier {tier}")

    return decide


# ---- labels ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LabelChange:
    """Labels to set, and keys to remove."""

    values: Mapping[str, str]
    removed: tuple[str, ...]
    overwrite: bool = False


def split_labels(words: Sequence[str]) -> tuple[list[str], LabelChange]:
    """Return the names of drives, and the labels among the words: `key=value` sets one, `key-` removes one."""
    values = {key: value for key, equals, value in (word.partition("=") for word in words) if equals}
    removed = tuple(word[:-1] for word in words if "=" not in word and word.endswith("-"))
    faults = [f"{key}: {fault}" for key in (*values, *removed) for fault in faults_of_label_key(key)]
    faults += [f"{key}={value}: {fault}" for key, value in values.items() for fault in faults_of_label_value(value)]
    if both := sorted(set(values) & set(removed)):
        faults.append(f"{both[0]} is both set and removed")
    if faults:
        raise WrongUse(f"These are not labels: {'; '.join(faults)}.")
    names = [word for word in words if "=" not in word and not word.endswith("-")]
    return names, LabelChange(values, removed)


def set_labels(change: LabelChange) -> DecideChange:
    """Return the rule that changes the labels of a drive."""

    def decide(obj: ApiObject) -> DriveChange:
        before = objects.labels(obj)
        taken = [key for key, value in change.values.items() if before.get(key, value) != value]
        if taken and not change.overwrite:
            return RefuseChange(f"has the label {taken[0]}={before[taken[0]]} already: --overwrite replaces it")
        after = {key: value for key, value in {**before, **change.values}.items() if key not in change.removed}
        if after == before:
            return LeaveDrive("has these labels already")
        present = objects.metadata(obj).get("labels")
        patch = guarded_by_generation(obj).test(
            "metadata", "labels", value=dict(present) if present is not None else None
        )
        return ChangeDrive(patch.add("metadata", "labels", value=after), "is labelled")

    return decide


# ---- removal ---------------------------------------------------------------------------------------------------------


def remove(volumes: Sequence[str]) -> DecideChange:
    """Return the rule that takes a drive out of use. `volumes` are the names of the Volume objects on it."""

    def decide(obj: ApiObject) -> DriveChange:
        row = read_drive_row(obj)
        if row.is_removing:
            return LeaveDrive("is being removed already")
        if why := _why_not_empty(row, volumes):
            return RefuseChange(why)
        return ChangeDrive(guarded_by_generation(obj).add("spec", "removing", value=True), "is being removed")

    return decide


def _why_not_empty(row: DriveRow, volumes: Sequence[str]) -> str:
    held = sorted({each.volume for each in row.spec.allocations} | set(volumes))
    if held and row.status.state is DriveState.LOST:
        return (
            f"is Lost and holds {_names(held)}: put the disk back, or give up the drive and its volumes with "
            f"'orlop drives forget {row.name}'"
        )
    if held:
        return (
            f"holds {_names(held)}: only an empty drive can be removed. Delete the claims of its volumes; "
            f"'orlop volumes clean --drive {row.name}' deletes those that no claim needs"
        )
    if row.status.unrecorded_volumes:
        unrecorded = sorted(each.volume for each in row.status.unrecorded_volumes)
        return f"holds {_names(unrecorded)}, which no object describes: 'orlop adopt' makes their objects"
    # The node reports nothing about a lost drive: only the listed volumes are known.
    if not row.status.allocations_restored and row.status.state is not DriveState.LOST:
        return "may hold volumes that are not listed yet: its node has not compared them. Try again in a minute"
    return ""


def _names(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    kind = "the volume" if len(names) == 1 else "the volumes"
    return f"{kind} {', '.join(names[:MOST_NAMES])}{more}"
