"""What people are told of attaching, in the words of Kubernetes' attach/detach controller. Pure.

A success ends with a blank, and a failure has one before its colon: so they stand in every cluster, and people and
their tools look for them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ATTACHED: Final = "SuccessfulAttachVolume"
NOT_ATTACHED: Final = "FailedAttachVolume"
BEING_DELETED: Final = "volume attachment is being deleted"
TAKEN: Final = (
    "Volume is already exclusively attached to one node, waiting on detach before it can be attached to another node"
)


@dataclass(frozen=True, slots=True)
class PodName:
    namespace: str
    name: str


def attached(volume: str) -> str:
    return f'AttachVolume.Attach succeeded for volume "{volume}" '


def not_attached(volume: str, why: str) -> str:
    return f'AttachVolume.Attach failed for volume "{volume}" : {why}'


def timed_out(driver: str, handle: str) -> str:
    return f"timed out waiting for external-attacher of {driver} CSI driver to attach volume {handle}"


def taken(volume: str, for_namespace: str, users: Sequence[PodName]) -> str:
    """`users` have it on other nodes; of those in other namespaces a pod's owner learns the number alone."""
    return f'Waiting for detach for volume "{volume}" {_why_taken(for_namespace, users)}'


def _why_taken(for_namespace: str, users: Sequence[PodName]) -> str:
    if not users:
        return TAKEN
    known = [user.name for user in users if user.namespace == for_namespace]
    others = len(users) - len(known)
    if not known:
        return f"Volume is already used by {others} pod(s) in different namespaces"
    rest = f" and {others} pod(s) in different namespaces" if others else ""
    return f"Volume is already used by pod(s) {', '.join(known)}{rest}"
