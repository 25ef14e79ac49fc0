"""The simulated storage of a driver model: volumes, snapshots, and where each of them is in use.

In memory; shared by the services of one driver, and by the drivers of all nodes of a modelled cluster. Used space is
counted by listing, never by adding. This module knows no requests.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Generic, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from datetime import datetime

    from orlop.csi.proto import csi_pb2

BLOCK_BYTES: Final = 1 << 20
Block = int
WriteNumber = int


@dataclass(frozen=True, slots=True)
class VolumeUse:
    """One use of a volume: attached to a node, or staged or published at a path."""

    capability: csi_pb2.VolumeCapability
    readonly: bool = False


@dataclass(frozen=True, slots=True)
class NodePath:
    """A path on a node."""

    node_id: str
    path: str


@dataclass(slots=True)
class ModelVolume:
    id: str
    serial: int
    name: str
    size: int
    # The request that created it, to compare with a second one for the same name; None: it existed from the start.
    made_from: csi_pb2.CreateVolumeRequest | None = None
    topology: tuple[Mapping[str, str], ...] = ()
    mutable_parameters: dict[str, str] = field(default_factory=dict)
    ephemeral: bool = False
    attached: dict[str, VolumeUse] = field(default_factory=dict)
    staged: dict[NodePath, VolumeUse] = field(default_factory=dict)
    published: dict[NodePath, VolumeUse] = field(default_factory=dict)
    # Which blocks hold data, and the last write that changed each, to compare snapshots.
    blocks: dict[Block, WriteNumber] = field(default_factory=dict)
    writes: int = 0
    health: list[csi_pb2.VolumeHealth.VolumeHealthEntry] = field(default_factory=list)

    def write(self, block: Block) -> None:
        """Change the content of one block, as a workload would."""
        self.writes += 1
        self.blocks[block] = self.writes

    def is_at(self, place: NodePath) -> bool:
        return place in self.staged or place in self.published

    def nodes_using(self) -> list[str]:
        return sorted({*self.attached, *(place.node_id for place in (*self.staged, *self.published))})


@dataclass(slots=True)
class ModelSnapshot:
    id: str
    serial: int
    name: str
    source_volume_id: str
    size: int
    taken: datetime
    blocks: Mapping[Block, WriteNumber]
    group_id: str = ""


@dataclass(slots=True)
class ModelGroupSnapshot:
    id: str
    serial: int
    name: str
    parameters: Mapping[str, str]
    taken: datetime


class ModelItem(Protocol):
    """An item of a shelf."""

    id: str
    serial: int
    name: str


Item = TypeVar("Item", bound=ModelItem)


class Shelf(Generic[Item]):
    """Items by id, in the order of their creation. A serial is never used again."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._items: dict[str, Item] = {}
        self.last_serial = 0

    def __iter__(self) -> Iterator[Item]:
        return iter(list(self._items.values()))

    def __len__(self) -> int:
        return len(self._items)

    def next_serial(self) -> int:
        self.last_serial += 1
        return self.last_serial

    def id_of(self, serial: int) -> str:
        return f"{self._prefix}-{serial}"

    def put(self, item: Item) -> Item:
        self._items[item.id] = item
        return item

    def get(self, item_id: str) -> Item | None:
        return self._items.get(item_id)

    def named(self, name: str) -> Item | None:
        return next((item for item in self if item.name == name), None)

    def remove(self, item_id: str) -> None:
        self._items.pop(item_id, None)


class Storage:
    """Everything that a driver stores. Tests may read and change it directly."""

    def __init__(self) -> None:
        self.volumes: Shelf[ModelVolume] = Shelf("vol")
        self.snapshots: Shelf[ModelSnapshot] = Shelf("snap")
        self.groups: Shelf[ModelGroupSnapshot] = Shelf("group")
        self.backend_health: list[csi_pb2.NodeGetStorageHealthResponse.StorageBackendHealth] = []
        # An ephemeral volume ends with its unpublish; a repeated unpublish must still succeed.
        self.ended_ephemeral: set[str] = set()

    def add_volume(self, volume_id: str, size: int) -> ModelVolume:
        """Add a volume that was not created by this driver."""
        return self.volumes.put(ModelVolume(volume_id, self.volumes.next_serial(), name=volume_id, size=size))

    def used(self) -> int:
        return sum(volume.size for volume in self.volumes)

    def attached_to(self, node_id: str) -> int:
        return sum(node_id in volume.attached for volume in self.volumes)

    def members_of(self, group_id: str) -> list[ModelSnapshot]:
        return [snapshot for snapshot in self.snapshots if snapshot.group_id == group_id]
