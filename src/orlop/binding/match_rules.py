"""Decide which PersistentVolume fits a claim, for the binder and for the scheduler. Pure.

Both search the same way but for two differences, taken from Kubernetes:

- The binder groups volumes by their access modes and searches the group with the fewest modes first. The first group
  with a result wins, so that a large volume with exactly the requested modes beats a smaller one with more. It never
  considers nodes, and leaves claims of late-binding classes to the scheduler unless a volume is reserved for them.
- The scheduler searches for one node. It has no groups, checks node affinity, and excludes volumes it has already
  chosen for another claim of the same pod.

Kubernetes leaves open which of two equal volumes is taken. We take the first by name, so that a retry repeats itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from orlop.binding import claim_state_rules as state
from orlop.binding.node_affinity_rules import volume_allows_node
from orlop.foundation.quantity import Quantity
from orlop.kube import objects
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import LabelSelector

AVAILABLE: Final = "Available"
_NOTHING: Final = Quantity.of(0)

Object = Mapping[str, Any]


def mismatch(claim: Object, volume: Object) -> str | None:
    """Return why a volume that the claim names cannot be bound to it, in Kubernetes' words; None if it can.

    This is the check for a claim with `volumeName` and a volume without `claimRef`. Selector, phase and node affinity
    are not considered: the user asked for this very volume.
    """
    return next(iter(_mismatches(claim, volume, any_class=False)), None)


def mismatches(claim: Object, volume: Object) -> list[str]:
    """Return every reason why a search passes over the volume, without regard to nodes; empty if it fits.

    The search is the binder's, for a claim that does not wait for a pod. The reasons of `mismatch` come first, in its
    words; then those that `mismatch` does not check.
    """
    if state.refers_to(volume, claim):
        return _mismatches(claim, volume, any_class=True)
    reference = state.claim_reference(volume)
    if reference is not None:
        return [f"it is reserved for the claim {reference.get('namespace')}/{reference.get('name')}"]
    reasons = _mismatches(claim, volume, any_class=False)
    phase = state.phase(volume)
    if phase != AVAILABLE:
        reasons.append(f"its phase is {phase or 'Pending'}")
    if not _selector_matches(claim, volume):
        reasons.append("the claim's selector does not match its labels")
    return reasons


def _mismatches(claim: Object, volume: Object, *, any_class: bool) -> list[str]:
    checks = (
        (not objects.is_being_deleted(volume), f'the volume is marked for deletion "{objects.name(volume)}"'),
        (_size(volume) >= _wanted_size(claim), "requested PV is too small"),
        (any_class or state.class_name(volume) == state.class_name(claim), "storageClassName does not match"),
        (
            state.attributes_class_name(volume) == state.attributes_class_name(claim),
            "volumeAttributesClassName does not match",
        ),
        (state.volume_mode(volume) == state.volume_mode(claim), "incompatible volumeMode"),
        (state.access_modes(claim) <= state.access_modes(volume), "incompatible accessMode"),
    )
    return [reason for holds, reason in checks if not holds]


def volume_for_binder(claim: Object, volumes: Iterable[Object], *, is_late_binding: bool) -> Object | None:
    """Return the volume the binder binds to a claim that names none; None if it must be provisioned or wait."""
    groups: dict[frozenset[str], list[Object]] = {}
    for volume in volumes:
        modes = state.access_modes(volume)
        if state.access_modes(claim) <= modes:
            groups.setdefault(modes, []).append(volume)
    for modes in sorted(groups, key=lambda modes: (len(modes), sorted(modes))):
        chosen = _search(claim, groups[modes], may_take_free=not is_late_binding)
        if chosen is not None:
            return chosen
    return None


def volume_for_scheduler(
    claim: Object, volumes: Iterable[Object], labels: Mapping[str, str], excluded: frozenset[str] = frozenset()
) -> Object | None:
    """Return the volume for a late-binding claim on a node with these labels; None if there is none.

    `excluded` are names of volumes already chosen for other claims of the pod.
    """
    candidates = sorted((volume for volume in volumes if objects.name(volume) not in excluded), key=objects.name)
    reserved = reserved_volume(claim, candidates)
    if reserved is not None:
        # Reserved for this claim but not usable here: no other volume may take its place on this node.
        return reserved if volume_allows_node(reserved, labels) else None
    usable = [
        volume
        for volume in candidates
        if volume_allows_node(volume, labels) and state.access_modes(claim) <= state.access_modes(volume)
    ]
    return _search(claim, usable, may_take_free=True)


def reserved_volume(claim: Object, volumes: Iterable[Object]) -> Object | None:
    """Return the volume that is reserved for the claim and fits it, wherever it can be used; None if there is none."""
    fitting = (volume for volume in volumes if _fits_by_size_and_mode(claim, volume, reserved=True))
    return min(fitting, key=objects.name, default=None)


def _search(claim: Object, volumes: list[Object], *, may_take_free: bool) -> Object | None:
    """Return the volume reserved for the claim, else the smallest free one that fits."""
    for volume in sorted(volumes, key=objects.name):
        if _fits_by_size_and_mode(claim, volume, reserved=True):
            return volume
    if not may_take_free:
        return None
    free = [volume for volume in volumes if _is_free_and_fits(claim, volume)]
    return min(free, key=lambda volume: (_size(volume), objects.name(volume)), default=None)


def _fits_by_size_and_mode(claim: Object, volume: Object, *, reserved: bool) -> bool:
    """Return whether size, modes and state fit, for a volume reserved for this claim, or for one without `claimRef`.

    Class, selector and phase of a reserved volume are not compared: its `claimRef` already decides which claim gets it.
    """
    if state.refers_to(volume, claim) != reserved or (not reserved and state.claim_reference(volume) is not None):
        return False
    return (
        _size(volume) >= _wanted_size(claim)
        and state.volume_mode(volume) == state.volume_mode(claim)
        and state.attributes_class_name(volume) == state.attributes_class_name(claim)
        and not objects.is_being_deleted(volume)
    )


def _is_free_and_fits(claim: Object, volume: Object) -> bool:
    # Only the phase Available is free: a volume in Pending was created a moment ago, and the binder may be about to
    # bind it to another claim.
    return (
        _fits_by_size_and_mode(claim, volume, reserved=False)
        and state.phase(volume) == AVAILABLE
        and _selector_matches(claim, volume)
        and state.class_name(volume) == state.class_name(claim)
    )


def _selector_matches(claim: Object, volume: Object) -> bool:
    selector = (claim.get("spec") or {}).get("selector")
    if selector is None:
        return True
    try:
        return LabelSelector.of_object(selector).matches(objects.labels(volume))
    except InvalidSelector:
        return False


def _size(volume: Object) -> Quantity:
    return state.capacity(volume) or _NOTHING


def _wanted_size(claim: Object) -> Quantity:
    return state.requested_size(claim) or _NOTHING
