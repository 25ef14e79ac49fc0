"""Whether a volume that grew is to be expanded on this node, and what its claim says meanwhile. Pure.

A resizer that knows how to begin again writes how far it is into the claim's status (`allocatedResources` and
`allocatedResourceStatuses`): the node waits for its turn there, and says when it has begun, ended, or failed. Where
there is neither, the resizer is an older one: the node always tries, and writes the new capacity alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

from onenode.kubelet.volumes.volume_values import NOTHING, ApiObject, ClaimFacts
from orlop.csi.error_codes import Code
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube import objects

PENDING: Final = "NodeResizePending"
IN_PROGRESS: Final = "NodeResizeInProgress"
INFEASIBLE: Final = "NodeResizeInfeasible"
NOT_REQUIRED: Final = "volume.kubernetes.io/node-expansion-not-required"
ERROR_CONDITION: Final = "NodeResizeError"
RESIZE_CONDITIONS: Final = frozenset({"FileSystemResizePending", "Resizing", "ControllerResizeError", ERROR_CONDITION})
INFEASIBLE_CODES: Final = frozenset({Code.INVALID_ARGUMENT, Code.OUT_OF_RANGE, Code.NOT_FOUND})
STORAGE: Final = "storage"


@dataclass(frozen=True, slots=True)
class AlreadyExpanded:
    """No expansion is needed on this node."""


@dataclass(frozen=True, slots=True)
class NotNow:
    """Another component acts first, or the expansion has failed for good."""


@dataclass(frozen=True, slots=True)
class ExpandOnNode:
    """Call NodeExpandVolume with `size`.

    `is_older`: the resizer writes no progress into the claim. `is_told`: the claim's status shows the size already.
    """

    size: Quantity
    is_older: bool = False
    is_told: bool = False


Decision: TypeAlias = AlreadyExpanded | NotNow | ExpandOnNode


# ---- whether ---------------------------------------------------------------------------------------------------------


def decide(claim: ClaimFacts, volume_size: Quantity) -> Decision:
    if not claim.resize_status and claim.allocated is None:
        return ExpandOnNode(volume_size, is_older=True, is_told=claim.size >= volume_size)
    wanted = claim.allocated or NOTHING
    is_told = claim.size >= wanted and not claim.resize_status
    if is_told and claim.is_for_many_nodes and not claim.is_not_required:
        return ExpandOnNode(wanted, is_told=True)
    if claim.resize_status in {PENDING, IN_PROGRESS}:
        return ExpandOnNode(wanted)
    return AlreadyExpanded() if is_told else NotNow()


def is_worth_a_try(claim: ClaimFacts | None, volume_size: Quantity | None, known: Quantity | None) -> bool:
    """Of a volume in use, whose size on this node is known, by what was last read of its claim."""
    if claim is None or not volume_size or not known or not known.nanos or volume_size <= known:
        return False
    return not isinstance(decide(claim, volume_size), NotNow)


def is_due_at_mount(claim: ClaimFacts | None, volume_size: Quantity | None) -> bool:
    return claim is not None and volume_size is not None and claim.size < volume_size


# ---- reading a claim -------------------------------------------------------------------------------------------------


def claim_facts(claim: ApiObject) -> ClaimFacts:
    status, spec = claim.get("status") or {}, claim.get("spec") or {}
    annotations = (claim.get("metadata") or {}).get("annotations") or {}
    allocated = status.get("allocatedResources")
    return ClaimFacts(
        objects.name_of(claim),
        storage_of(status.get("capacity")) or NOTHING,
        storage_of((spec.get("resources") or {}).get("requests")) or NOTHING,
        None if allocated is None else storage_of(allocated) or NOTHING,
        str((status.get("allocatedResourceStatuses") or {}).get(STORAGE) or ""),
        is_for_many_nodes="ReadWriteMany" in (spec.get("accessModes") or ()),
        is_not_required=NOT_REQUIRED in annotations,
    )


def storage_of(resources: Mapping[str, Any] | None) -> Quantity | None:
    text = (resources or {}).get(STORAGE)
    if text is None:
        return None
    try:
        return Quantity.parse(str(text))
    except InvalidQuantity:
        return None


# ---- what is written into the status of the claim --------------------------------------------------------------------


def begun(claim: ApiObject) -> dict[str, Any]:
    """A merge patch of its status, refused when somebody else wrote since."""
    return _patch(claim, {"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}, is_guarded=True)


def finished(claim: ApiObject, size: Quantity) -> dict[str, Any]:
    kept = [one for one in _conditions(claim) if one.get("type") not in RESIZE_CONDITIONS]
    statuses = (claim.get("status") or {}).get("allocatedResourceStatuses") or {}
    status = {
        "capacity": {STORAGE: str(size)},
        "allocatedResourceStatuses": {STORAGE: None} if set(statuses) - {STORAGE} else None,
        "conditions": kept or None,
    }
    return _patch(claim, status, is_guarded=True)


def failed(claim: ApiObject, why: str, now: str, *, is_infeasible: bool) -> dict[str, Any]:
    """A condition that is there already stays as it is."""
    conditions = [*_conditions(claim)]
    condition = {
        "type": ERROR_CONDITION,
        "status": "True",
        "lastTransitionTime": now,
        "message": f"failed to expand pvc with {why}",
    }
    others = [one for one in conditions if one.get("type") != ERROR_CONDITION]
    before = next((one for one in conditions if one.get("type") == ERROR_CONDITION), None)
    is_same = before is not None and before.get("status") == "True"
    status: dict[str, Any] = {"conditions": conditions if is_same else [*others, condition]}
    if is_infeasible:
        status["allocatedResourceStatuses"] = {STORAGE: INFEASIBLE}
    return _patch(claim, status, is_guarded=False)


def _patch(claim: ApiObject, status: Mapping[str, Any], *, is_guarded: bool) -> dict[str, Any]:
    metadata = claim.get("metadata") or {}
    guard = {"uid": metadata.get("uid")} | ({"resourceVersion": metadata.get("resourceVersion")} if is_guarded else {})
    return {"metadata": guard, "status": dict(status)}


def _conditions(claim: ApiObject) -> Sequence[Mapping[str, Any]]:
    return (claim.get("status") or {}).get("conditions") or ()
