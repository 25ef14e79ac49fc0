"""Decide whether the protection finalizer of a claim or volume must be added, or may be removed. Pure.

The rules are those of Kubernetes:
- A claim is in use while a pod that has a node names it. A pod without a node does not count, because kubelet starts no
  pod whose claim is being deleted. A finished pod counts, because its volumes may still be mounted.
- The claim of a generic ephemeral volume is `<pod>-<volume>`. It is in use only while the pod that controls it exists
  and is not shut down: a finalizer on that pod may wait for the claim, and both would wait for ever.
- A volume is in use while its phase is Bound.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from orlop.kube import objects, patches
from orlop.kube.objects import ObjectName
from orlop.kube.patches import NOT_THERE, JsonPatch

ApiObject: TypeAlias = Mapping[str, Any]
"""An object as read from the API server."""

CLAIM_FINALIZER: Final = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER: Final = "kubernetes.io/pv-protection"
BOUND: Final = "Bound"


# ---- claims and volumes alike ----------------------------------------------------------------------------------------


def lacks_protection(obj: ApiObject, finalizer: str) -> bool:
    return not objects.is_being_deleted(obj) and not objects.has_finalizer(obj, finalizer)


def waits_for_release(obj: ApiObject, finalizer: str) -> bool:
    """Return whether the object is being deleted and has this finalizer, so that it waits until it is not in use."""
    return objects.is_being_deleted(obj) and objects.has_finalizer(obj, finalizer)


def protecting_patch(obj: ApiObject, finalizer: str) -> JsonPatch | None:
    """Return a patch that adds the finalizer. It fails if the object is being deleted: then none may be added."""
    patch = patches.add_finalizer(obj, finalizer)
    return patch.test("metadata", "deletionTimestamp", value=NOT_THERE) if patch is not None else None


# ---- claims ----------------------------------------------------------------------------------------------------------


def is_claim_used(claim: ApiObject, pods: Iterable[ApiObject]) -> bool:
    return any(uses_claim(pod, claim) for pod in pods)


def uses_claim(pod: ApiObject, claim: ApiObject) -> bool:
    """Return whether the pod keeps the claim from being deleted."""
    if not node_of(pod) or not names_claim(pod, claim):
        return False
    return objects.name(claim) in _claims_by_name(pod) or not _is_shut_down(pod)


def names_claim(pod: ApiObject, claim: ApiObject) -> bool:
    """Return whether the pod uses the claim, or will once it runs."""
    if objects.namespace(pod) != objects.namespace(claim):
        return False
    name = objects.name(claim)
    return name in _claims_by_name(pod) or (name in _ephemeral_claims(pod) and _is_controlled_by(claim, pod))


def node_of(pod: ApiObject) -> str:
    """Return the name of the pod's node; "" while it has none."""
    return str(_spec(pod).get("nodeName") or "")


def claims_named_by(pod: ApiObject) -> list[ObjectName]:
    """Return the claims that the pod may be using, each once."""
    names = (*_claims_by_name(pod), *_ephemeral_claims(pod))
    return [ObjectName(objects.namespace(pod), name) for name in dict.fromkeys(names)]


def claim_releasing_patch(claim: ApiObject) -> JsonPatch | None:
    """Return a patch that removes the claim's finalizer."""
    # The patch is guarded by the uid and the finalizers. More is not needed: a deletion cannot be cancelled.
    return patches.remove_finalizer(claim, CLAIM_FINALIZER)


def _claims_by_name(pod: ApiObject) -> Iterator[str]:
    for volume in _spec(pod).get("volumes") or ():
        if source := volume.get("persistentVolumeClaim"):
            yield str(source.get("claimName", ""))


def _ephemeral_claims(pod: ApiObject) -> Iterator[str]:
    for volume in _spec(pod).get("volumes") or ():
        if volume.get("ephemeral") is not None:
            yield f"{objects.name(pod)}-{volume.get('name', '')}"


def _is_controlled_by(claim: ApiObject, pod: ApiObject) -> bool:
    owner = objects.controller_of(claim)
    return owner is not None and owner.get("uid") == objects.uid(pod)


def _is_shut_down(pod: ApiObject) -> bool:
    """Return whether kubelet has ended the pod, or it was deleted by force."""
    return objects.is_being_deleted(pod) and objects.metadata(pod).get("deletionGracePeriodSeconds") == 0


def _spec(pod: ApiObject) -> Mapping[str, Any]:
    return pod.get("spec") or {}


# ---- volumes ---------------------------------------------------------------------------------------------------------


def is_volume_used(volume: ApiObject) -> bool:
    return (volume.get("status") or {}).get("phase") == BOUND


def volume_releasing_patch(volume: ApiObject) -> JsonPatch | None:
    """Return a patch that removes the volume's finalizer, guarded by its version: it may have been bound meanwhile."""
    removal = patches.remove_finalizer(volume, VOLUME_FINALIZER)
    if removal is None:
        return None
    return JsonPatch((*patches.guarded_by_version(volume).operations, *removal.operations))
