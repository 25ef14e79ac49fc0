"""Settings of the provisioner, and the caches it reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from orlop.binding.topology_rules import TopologyMode
from orlop.foundation.backoff import Backoff
from orlop.kube.cache.informer import Informer

CREATES: Final = "CREATE_DELETE_VOLUME"
CLONES: Final = "CLONE_VOLUME"
PUBLISHES: Final = "PUBLISH_UNPUBLISH_VOLUME"
MODIFIES: Final = "MODIFY_VOLUME"
HAS_TOPOLOGY: Final = "VOLUME_ACCESSIBILITY_CONSTRAINTS"
SLOW_RETRY_SECONDS: Final = 300.0
"""After INVALID_ARGUMENT, or a PersistentVolume that the API server refuses: a retry alone changes nothing."""
JITTER: Final = 0.1
SHORTEST_RETRY_SECONDS: Final = 0.001

ApiObject: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerSettings:
    driver: str
    identity: str
    """Written into the volumeAttributes of each volume that this process creates, as upstream does."""
    volume_name_prefix: str = "pvc"
    volume_name_uuid_length: int = -1
    """How many characters of the claim's uid, without dashes; -1: the whole uid."""
    default_fs_type: str = ""
    claim_metadata: bool = False
    publish_read_only: bool = False
    topology: TopologyMode = field(default_factory=TopologyMode)
    timeout: float = 10.0
    workers: int = 100
    """The number of workers of each pool."""
    retry_start: float = 1.0
    retry_most: float = 300.0
    slow_retry: float = SLOW_RETRY_SECONDS

    @property
    def backoff(self) -> Backoff:
        """The delays between retries. As upstream: a longest delay below the first one limits the first one too."""
        most = max(self.retry_most, SHORTEST_RETRY_SECONDS)
        first = max(self.retry_start, SHORTEST_RETRY_SECONDS)
        return Backoff(initial=min(first, most), factor=2.0, cap=most, jitter=JITTER)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvisionerCaches:
    claims: Informer
    volumes: Informer
    classes: Informer
    attachments: Informer | None = None
    """None for a driver without attach capability: nothing has to be detached before a volume is deleted."""
    nodes: Informer | None = None
    csi_nodes: Informer | None = None
    """None for a driver without topology."""
