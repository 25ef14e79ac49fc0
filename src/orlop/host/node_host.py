"""What a node's driver asks of its machine: a working directory, kubelet's directory, and binds from one to the other.

These are the seams: `linux_node_host` is the real one, `testing/fake_host` a model of it, and one contract suite is
kept by both. Everything blocks and raises HostError, whose `errno` tells the reasons named here apart. Calls may come
from several threads; two that change the same folder or target must not run side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from orlop.host.disk_usage import DiskRoom, TreeUsage
from orlop.host.folder_records import ShelfListing
from orlop.host.mount_option_rules import MountOptions
from orlop.host.mounts import FileIdentity, MountedAt
from orlop.host.project_quota import FolderQuota, ProjectUsage
from orlop.host.project_strays import StrayCount

Names = tuple[str, ...]
"""Names that lead from a root to something below it."""


class FolderState(Enum):
    """The shelves of a working directory; the value is the shelf's name on disk."""

    LIVE = "live"
    RETAINED = "retained"
    TRASH = "trash"


@dataclass(frozen=True, slots=True)
class FolderPlace:
    state: FolderState
    name: str

    def __str__(self) -> str:
        return f"{self.state.value}/{self.name}"


class MountsSeen(Protocol):
    """What was mounted in one moment."""

    def is_mounted(self, place: FolderPlace) -> bool:
        """Wholly or in part, anywhere; costs less than finding all `mounted_folders`."""


class Workdir(Protocol):
    """Folders with their records. What a function changed survives power loss when it returns, unless it says so."""

    def create(self, place: FolderPlace, record: bytes, mode: int, quota: FolderQuota | None = None) -> None:
        """A new, empty folder, held to its limits before it has its name. Durable after `make_durable` of its shelf.

        EEXIST: the name is taken, and no folder was changed. EOPNOTSUPP: its limits would not be enforced.
        """

    def remove_half_made(self, place: FolderPlace) -> bool:
        """What a `create` that died has left; whether there was any."""

    def read_record(self, place: FolderPlace) -> bytes:
        """ENOENT: no such folder. ENODATA: it has no record."""

    def write_record(self, place: FolderPlace, record: bytes) -> None:
        """ENOENT: no such folder. After an error either record is there, whole; read it to know which."""

    def move(self, place: FolderPlace, to: FolderPlace) -> None:
        """With all it holds; durable after `make_durable` of the shelf it went to.

        ENOENT: it is not there. EEXIST: the other place is taken. EBUSY: mounted on.
        """

    def make_durable(self, state: FolderState) -> None:
        """All folders that were made on this shelf, or moved there, survive power loss."""

    def listing(self, state: FolderState) -> ShelfListing:
        """All folders of a shelf with their records, and what is there without one."""

    def synchronise(self) -> None:
        """All that is there survives power loss: for whoever cannot know whether a change that failed was made."""

    def names_in_trash(self) -> frozenset[str]:
        """Whatever is there: all of it is to be erased. What is left of a folder has the folder's name."""

    def strangers(self) -> frozenset[str]:
        """What stands beside the shelves and is none of ours."""

    def identity(self, place: FolderPlace) -> FileIdentity:
        """ENOENT: no such folder."""

    def look_at_mounts(self) -> MountsSeen:
        """Of all mount namespaces that can be seen; looked up anew."""

    def mounted_folders(self) -> frozenset[FolderPlace]:
        """Those that are mounted, wholly or in part, in any mount namespace that can be seen; looked up anew."""

    def room(self) -> DiskRoom: ...

    def measure(self, place: FolderPlace, should_stop: Callable[[], bool]) -> TreeUsage:
        """ENOENT: no such folder. ECANCELED: stopped. ESTALE: it changed under our feet; measure again."""

    def why_not_writable(self) -> str | None:
        """A sentence when the disk takes no changes, or does not answer."""

    def why_no_quota(self) -> str | None:
        """A sentence when limits of folders would not be enforced; None when they are."""

    def quota_usage(self, project: int) -> ProjectUsage:
        """What counts by the number, and its limits; a number that was never used has neither."""

    def projects(self) -> tuple[ProjectUsage, ...]:
        """Every number that has usage or limits, also those that are not ours."""

    def lift_limits(self, project: int) -> None:
        """Of a number that nothing counts by any more."""

    def strays(self, place: FolderPlace, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
        """Files in the folder that count by another number; fewer when stopped.

        ENOENT: no such folder. ECANCELED: stopped before any was found.
        """


class KubeletDir(Protocol):
    """Targets below kubelet's directory. No symbolic link is followed there; mounts may be crossed."""

    @property
    def paths(self) -> tuple[str, ...]:
        """As it was given, and where it was when it was opened, if links led there: kubelet may use either."""

    def is_shared(self) -> bool:
        """Whether mounts made below it are seen by others: if not, no pod would ever see its volume."""

    def make_target(self, target: Names) -> bool:
        """Whether it was made now. ENOENT: its parent is missing. ENOTDIR: something else has its name."""

    def remove_target(self, target: Names) -> bool:
        """Whether it was there. ENOTEMPTY and EBUSY (mounted on): it stays."""

    def mounted_at(self, target: Names) -> MountedAt | None:
        """The topmost mount; None if nothing is mounted or nothing is there."""

    def unmount(self, target: Names) -> int:
        """How many mounts were taken away; afterwards there is none. EBUSY: somebody uses it; it stays."""

    def names_in(self, folder: Names) -> frozenset[str] | None:
        """What a folder below it holds; None if it is missing. No names: kubelet's directory itself."""


class NodeHost(Protocol):
    @property
    def workdir(self) -> Workdir: ...

    @property
    def kubelet_dir(self) -> KubeletDir: ...

    def bind(self, place: FolderPlace, target: Names, options: MountOptions) -> None:
        """Mounts the folder on the target, above what is mounted there. ENOENT: one of them is missing."""
