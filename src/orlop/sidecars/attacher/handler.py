"""The interface of handlers of VolumeAttachments, and the settings and caches of both implementations.

`attachment_controller` watches and queues, and leaves the work to an `AttachmentHandler`: `attach_handler` for a driver
that can attach, `trivial_handler` for one that cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeAlias

from orlop.foundation.backoff import Backoff
from orlop.kube import objects
from orlop.kube.cache.informer import Informer
from orlop.kube.objects import ObjectName
from orlop.kube.queue.own_writes import OwnWrites
from orlop.sidecars.attacher.attach_rules import is_attached, is_marked, recorded_node_id
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

ApiObject = Mapping[str, Any]
ATTACH: Final = "csi-attacher-va"
DETACH: Final = "csi-attacher-va-detach"
VOLUMES: Final = "csi-attacher-pv"
"""Names of the pools, which are labels of their metrics; the first and the last are upstream's."""
JITTER: Final = 0.1
SHORTEST_RETRY_SECONDS: Final = 0.001
"""A shorter delay would let an object that fails at once occupy a worker all the time."""


@dataclass(frozen=True, slots=True)
class AttacherSettings:
    driver: str
    finalizer: str
    default_fs_type: str = ""
    timeout: float = 15.0
    workers: int = 10
    """The number of workers of each pool."""
    retry_start: float = 1.0
    retry_most: float = 300.0
    resync: float = 600.0
    drift_check: float = 60.0
    """Seconds between two readings of the driver's list of published volumes; 0: never."""
    page: int = 0
    """Entries on one page of that list; 0: the driver chooses."""

    @property
    def backoff(self) -> Backoff:
        """The delays between retries. As upstream: a longest delay below the first one limits the first one too."""
        most = max(self.retry_most, SHORTEST_RETRY_SECONDS)
        first = max(self.retry_start, SHORTEST_RETRY_SECONDS)
        return Backoff(initial=min(first, most), factor=2.0, cap=most, jitter=JITTER)


@dataclass(frozen=True, slots=True)
class AttacherCaches:
    attachments: Informer
    volumes: Informer
    csi_nodes: Informer


class NotReconciled(Exception):
    """Reconciling failed. Already reported on the object; the work queue retries."""


class AttachmentHandler(Protocol):
    """Reconciles VolumeAttachments; the driver's capabilities decide which handler is used."""

    async def reconcile_attachment(
        self,
        name: ObjectName,
        attachment: ApiObject,
        published: bool | None = None,  # noqa: FBT001 - a fact, not a switch
    ) -> ApiObject | None:
        """Reconcile an object; return it as of the last write, or None if it is gone. Raises `NotReconciled`.

        `published` is whether the driver lists the volume, if its list disagrees with the object.
        """

    async def drifted(self) -> Mapping[ObjectName, bool]:
        """Return the VolumeAttachments that the driver disagrees with, and whether it lists them as published."""


@dataclass(frozen=True, slots=True)
class AttachmentFingerprint:
    """The fields of a VolumeAttachment that the rules read."""

    is_being_deleted: bool
    finalizers: tuple[str, ...]
    node_id: str | None
    is_attached: bool
    is_marked: bool
    volume_name: str
    spec: str

    @property
    def pool(self) -> str:
        return DETACH if self.is_being_deleted else ATTACH


def fingerprint_of(attachment: ApiObject) -> AttachmentFingerprint:
    return AttachmentFingerprint(
        objects.is_being_deleted(attachment),
        objects.finalizers(attachment),
        recorded_node_id(attachment),
        is_attached(attachment),
        is_marked(attachment),
        volume_name_of(attachment),
        repr(attachment.get("spec")),
    )


AttachmentWrites: TypeAlias = OwnWrites[AttachmentFingerprint]


def attachment_writes() -> AttachmentWrites:
    return OwnWrites(fingerprint_of)
