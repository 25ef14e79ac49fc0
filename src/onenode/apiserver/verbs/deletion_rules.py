"""What a deletion makes of an object: gone at once, marked as being deleted, or left as it is. Pure.

An object with finalizers is only marked, and goes with its last finalizer. A pod on a node is marked with the time it
is given, and goes when it is deleted once more with no time at all. A namespace is marked until its content is gone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, Final

from onenode.apiserver.custom_resources.definition_status_rules import terminating
from onenode.apiserver.requests.request_options import DeletionOptions
from orlop.kube.objects import read_time, time_text

Object = dict[str, Any]

ORPHAN: Final = "orphan"
FOREGROUND: Final = "foregroundDeletion"
FINISHED: Final = frozenset({"Succeeded", "Failed"})
# Those whose deletion is answered with the object itself.
ANSWERED_WITH_OBJECT: Final = frozenset(
    {
        *("namespaces", "pods", "persistentvolumes", "persistentvolumeclaims", "serviceaccounts"),
        *("storageclasses.storage.k8s.io", "csidrivers.storage.k8s.io", "csinodes.storage.k8s.io"),
        *("volumeattachments.storage.k8s.io", "volumeattributesclasses.storage.k8s.io"),
    }
)


@dataclass(frozen=True, slots=True)
class KeepObject:
    """It stays, as it is or changed to this."""

    object: Object


@dataclass(frozen=True, slots=True)
class RemoveObject:
    """It goes now; this is how it is seen last."""

    object: Object


def deletion(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    if old["kind"] == "Namespace":
        return _of_namespace(old, options, now)
    if old["kind"] == "Pod":
        return _of_pod(old, options, now)
    if old["kind"] == "CustomResourceDefinition":
        return _of_definition(old, options, now)
    return _ungraceful(old, options, now)


def _of_definition(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    """A CustomResourceDefinition stays until its objects are gone; unlike others it is not given any time."""
    if old["metadata"].get("deletionTimestamp"):
        return _ungraceful(old, options, now)
    made = terminating(old, time_text(now))
    metadata = _with_collectors_finalizers(made["metadata"], options.propagation)
    return KeepObject({**made, "metadata": {**metadata, "deletionTimestamp": time_text(now)}})


def is_over(made: Mapping[str, Any]) -> bool:
    """Whether an object that was just updated has nothing left to wait for."""
    metadata = made.get("metadata", {})
    if not metadata.get("deletionTimestamp") or metadata.get("finalizers"):
        return False
    if made.get("kind") == "Namespace" and made.get("spec", {}).get("finalizers"):
        return False
    return not metadata.get("deletionGracePeriodSeconds")


def _ungraceful(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    metadata = _with_collectors_finalizers(old["metadata"], options.propagation)
    if not metadata.get("finalizers"):
        return RemoveObject(old)
    return KeepObject({**old, "metadata": _marked(metadata, now, 0)})


def _of_namespace(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    if not old["metadata"].get("deletionTimestamp"):
        metadata = _with_collectors_finalizers(old["metadata"], options.propagation)
        marked = {**metadata, "deletionTimestamp": time_text(now)}
        made = {**old, "metadata": marked, "status": {**old.get("status", {}), "phase": "Terminating"}}
        return RemoveObject(made) if not made.get("spec", {}).get("finalizers") and is_over(made) else KeepObject(made)
    return KeepObject(old) if old.get("spec", {}).get("finalizers") else _ungraceful(old, options, now)


def _of_pod(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    metadata = old["metadata"]
    if metadata.get("deletionTimestamp"):
        return _once_more(old, options, now)
    grace = _grace(old, options.grace_seconds)
    marked = _marked(_with_collectors_finalizers(metadata, options.propagation), now, grace)
    made = {**old, "metadata": marked}
    return KeepObject(made) if grace or marked.get("finalizers") else RemoveObject(made)


def _grace(pod: Object, asked: int | None) -> int:
    """A pod that runs nowhere needs no time to end."""
    spec = pod.get("spec", {})
    if not spec.get("nodeName") or pod.get("status", {}).get("phase") in FINISHED:
        return 0
    given = asked if asked is not None else spec.get("terminationGracePeriodSeconds", 0)
    return 1 if given < 0 else int(given)


def _once_more(old: Object, options: DeletionOptions, now: datetime) -> KeepObject | RemoveObject:
    """The time a pod is given can only be made shorter."""
    metadata = old["metadata"]
    before = metadata.get("deletionGracePeriodSeconds") or 0
    if not before:
        return _ungraceful(old, options, now)
    asked = options.grace_seconds
    if asked is None or asked >= before:
        return KeepObject(old)
    shorter = 1 if asked < 0 else asked
    moment = read_time(metadata["deletionTimestamp"]) - timedelta(seconds=before - shorter)
    marked = {**metadata, "deletionTimestamp": time_text(moment), "deletionGracePeriodSeconds": shorter}
    made = {**old, "metadata": marked}
    return KeepObject(made) if shorter or marked.get("finalizers") else RemoveObject(made)


def _marked(metadata: Object, now: datetime, grace: int) -> Object:
    if metadata.get("deletionTimestamp"):
        return metadata
    moment = time_text(now + timedelta(seconds=grace))
    made = {**metadata, "deletionTimestamp": moment, "deletionGracePeriodSeconds": grace}
    return {**made, "generation": made["generation"] + 1} if made.get("generation") else made


def _with_collectors_finalizers(metadata: Object, propagation: str) -> Object:
    """What makes a garbage collector act before the object goes; a deletion that has begun cannot change it."""
    if not propagation or metadata.get("deletionTimestamp"):
        return metadata
    wanted = {"Orphan": [ORPHAN], "Foreground": [FOREGROUND]}.get(propagation, [])
    others = [one for one in metadata.get("finalizers", []) if one not in {ORPHAN, FOREGROUND}]
    finalizers = [*others, *wanted]
    without = {key: value for key, value in metadata.items() if key != "finalizers"}
    return {**without, "finalizers": finalizers} if finalizers else without
