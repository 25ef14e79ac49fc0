"""The real working directory and kubelet's directory, each held open from the start.

Joins what the other modules of this folder do; the orders of effects are told there. Both directories must exist: one
that is missing is a disk that was not mounted, and is not to be made up.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from orlop.host import confined_paths, disk_usage, folder_records, mount_table, mounts, project_quota
from orlop.host.confined_paths import Mounts, Use, opened_below
from orlop.host.errors import HostError
from orlop.host.folder_erase import REST_PREFIX
from orlop.host.node_host import FolderPlace, FolderState, Names, NodeHost
from orlop.host.peer_folders import PeerFolders
from orlop.host.project_strays import count_strays
from orlop.host.room_reserve import NAME as NAME_OF_RESERVE
from orlop.host.room_reserve import RoomReserve

if TYPE_CHECKING:
    from types import TracebackType

    from orlop.host.disk_usage import DiskRoom, TreeUsage
    from orlop.host.folder_records import ShelfListing
    from orlop.host.mount_option_rules import MountOptions
    from orlop.host.mounts import FileIdentity, MountedAt
    from orlop.host.project_quota import FolderQuota, ProjectUsage
    from orlop.host.project_strays import StrayCount

T = TypeVar("T")
TARGET_MODE = 0o750


class LinuxWorkdir:
    def __init__(self, path: str) -> None:
        with ExitStack() as opened:
            self._root = _held(opened, confined_paths.open_root(path))
            self._shelves = {
                state: _held(opened, folder_records.open_shelf(self._root, state.value)) for state in FolderState
            }
            self._opened = opened.pop_all()
        self._reserve = RoomReserve(self._root)
        self._reserve.fill(disk_usage.room_on(self._root).free_bytes)

    def shelf(self, state: FolderState) -> int:
        """Its descriptor, for what works on descriptors: it is ours, and closed by us."""
        return self._shelves[state]

    def peer_folders(self) -> PeerFolders:
        """Those of the driver that used the same working directory before."""
        return PeerFolders(self._root, frozenset({NAME_OF_RESERVE, *(state.value for state in FolderState)}))

    def create(self, place: FolderPlace, record: bytes, mode: int, quota: FolderQuota | None = None) -> None:
        prepare = partial(project_quota.hold_to, quota=quota) if quota is not None else None
        folder_records.create(self._shelves[place.state], place.name, record, mode, prepare)

    def remove_half_made(self, place: FolderPlace) -> bool:
        return folder_records.remove_half_made(self._shelves[place.state], place.name)

    def read_record(self, place: FolderPlace) -> bytes:
        return folder_records.read_record(self._shelves[place.state], place.name)

    def write_record(self, place: FolderPlace, record: bytes) -> None:
        folder_records.write_record(self._shelves[place.state], place.name, record)

    def move(self, place: FolderPlace, to: FolderPlace) -> None:
        try:
            folder_records.move(self._shelves[place.state], place.name, self._shelves[to.state], to.name)
        except HostError as error:
            if error.errno != errno.ENOSPC or not self._reserve.give_back():
                raise
            folder_records.move(self._shelves[place.state], place.name, self._shelves[to.state], to.name)

    def make_durable(self, state: FolderState) -> None:
        folder_records.make_durable(self._shelves[state], state.value)

    def listing(self, state: FolderState) -> ShelfListing:
        return folder_records.list_shelf(self._shelves[state])

    def synchronise(self) -> None:
        for state, shelf in self._shelves.items():
            folder_records.synchronise_shelf(shelf, state.value)

    def names_in_trash(self) -> frozenset[str]:
        # What an erasure moved aside belongs to its folder, and is not a second one to erase beside it.
        return frozenset(map(_erased_under, confined_paths.names_in(self._shelves[FolderState.TRASH])))

    def strangers(self) -> frozenset[str]:
        return frozenset(confined_paths.names_in(self._root)) - {
            NAME_OF_RESERVE,
            *(state.value for state in FolderState),
        }

    def opened(self, place: FolderPlace) -> AbstractContextManager[int]:
        """The folder itself, for what works on descriptors."""
        return folder_records.opened_folder(self._shelves[place.state], place.name)

    def holds(self, folder: int) -> bool:
        """Whether an open folder lies in the working directory, or in a folder of ours wherever that is mounted."""
        own = mounts.identity_of(self._root)
        above = confined_paths.folders_upwards(folder)
        return any(mounts.identity_of(each) == own or folder_records.has_record(each) for each in above)

    def identity(self, place: FolderPlace) -> FileIdentity:
        with self.opened(place) as folder:
            return mounts.identity_of(folder)

    def look_at_mounts(self) -> _MountsSeen:
        return _MountsSeen(mount_table.read_all_namespaces(), self._mounted_among)

    def mounted_folders(self) -> frozenset[FolderPlace]:
        return self._mounted_among(mount_table.read_all_namespaces())

    def room(self) -> DiskRoom:
        room = disk_usage.room_on(self._root)
        self._reserve.fill(room.free_bytes)
        return room

    def measure(self, place: FolderPlace, should_stop: Callable[[], bool]) -> TreeUsage:
        return disk_usage.measure_tree(self._shelves[place.state], place.name, should_stop)

    def why_not_writable(self) -> str | None:
        try:
            if os.fstatvfs(self._root).f_flag & os.ST_RDONLY:
                return "The disk of the working directory is read-only."
            # A disk can refuse changes and not say so before one is tried.
            os.utime(self._shelves[FolderState.TRASH])
            self._refuse_if_gone()
        except HostError as error:
            return f"The working directory is gone: {error} Bring it back and restart this process."
        except OSError as error:
            return f"The disk of the working directory takes no changes: {error.strerror}."
        return None

    def _refuse_if_gone(self) -> None:
        """One that was deleted or unmounted lets itself be changed as if nothing had happened."""
        mount_table.mount_of(self._root)
        for state, shelf in self._shelves.items():
            if os.fstat(shelf).st_nlink == 0:
                raise HostError(errno.ENOENT, f"its folder {state.value} was deleted.")

    def why_no_quota(self) -> str | None:
        return project_quota.why_not_enforced(self._root)

    def quota_usage(self, project: int) -> ProjectUsage:
        return project_quota.usage_of(self._root, project)

    def projects(self) -> tuple[ProjectUsage, ...]:
        return tuple(project_quota.projects(self._root))

    def lift_limits(self, project: int) -> None:
        project_quota.set_limits(self._root, project, project_quota.NO_LIMITS)

    def strays(self, place: FolderPlace, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
        with self.opened(place) as folder:
            return count_strays(folder, project, should_stop)

    def close(self) -> None:
        self._opened.close()

    def _mounted_among(self, seen: mount_table.SeenNamespaces) -> frozenset[FolderPlace]:
        # Each shelf is asked where it is: somebody may have renamed it since it was opened.
        mounted = seen.mounted_folders()
        return frozenset(
            _place(state, name)
            for state, shelf in self._shelves.items()
            for (name,) in mounted.names_below(seen.folder_of(shelf), 1)
        )


class _MountsSeen:
    def __init__(
        self, seen: mount_table.SeenNamespaces, find: Callable[[mount_table.SeenNamespaces], frozenset[FolderPlace]]
    ) -> None:
        self._seen, self._find = seen, find

    def is_mounted(self, place: FolderPlace) -> bool:
        return self._seen.mention(place.name) and place in self._find(self._seen)


class LinuxKubeletDir:
    """`path` may lead over symbolic links; they are followed when it is opened, and never again."""

    def __init__(self, path: str) -> None:
        self._opened = ExitStack()
        self._root = _held(self._opened, confined_paths.open_root(path))
        self._real_path = os.readlink(f"/proc/self/fd/{self._root}")
        self._path = os.path.abspath(path)

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self._path, self._real_path)))

    def is_shared(self) -> bool:
        if not mount_table.mount_of(self._root).is_shared:
            self._look_for_a_newer_mount()
        return mount_table.mount_of(self._root).is_shared

    def make_target(self, target: Names) -> bool:
        with self._parent_of(target) as parent:
            return confined_paths.make_folder(parent, target[-1], TARGET_MODE)

    def remove_target(self, target: Names) -> bool:
        try:
            with self._parent_of(target) as parent:
                return confined_paths.remove_empty_folder(parent, target[-1])
        except HostError as error:
            return _if_missing(error, False)

    def mounted_at(self, target: Names) -> MountedAt | None:
        try:
            with self._parent_of(target) as parent:
                return mounts.mounted_at(parent, target[-1])
        except HostError as error:
            return _if_missing(error, None)

    def unmount(self, target: Names) -> int:
        try:
            with self._parent_of(target) as parent:
                return mounts.unmount(parent, target[-1])
        except HostError as error:
            return _if_missing(error, 0)

    def names_in(self, folder: Names) -> frozenset[str] | None:
        try:
            with opened_below(self._root, folder, Use.FOLDER_CONTENT, Mounts.CROSSED) as opened:
                return frozenset(confined_paths.names_in(opened))
        except HostError as error:
            return _if_missing(error, None)

    def opened_target(self, target: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, target, Use.HANDLE, Mounts.CROSSED)

    def close(self) -> None:
        self._opened.close()

    def _parent_of(self, target: Names) -> AbstractContextManager[int]:
        return opened_below(self._root, target[:-1], Use.FOLDER_HANDLE, Mounts.CROSSED)

    def _look_for_a_newer_mount(self) -> None:
        """A kubelet that starts after us binds its directory to itself, which hides the one that we hold."""
        newer = confined_paths.open_root(self._real_path)
        if mounts.identity_of(newer) == mounts.identity_of(self._root) and mount_table.mount_of(newer).is_shared:
            # The old one stays open until the end: other threads may be using it.
            self._root = _held(self._opened, newer)
        else:
            os.close(newer)


class LinuxNodeHost:
    """To be closed, or used as a context; nothing may be running then."""

    def __init__(self, workdir: str, kubelet_dir: str) -> None:
        with ExitStack() as opened:
            self.workdir = LinuxWorkdir(workdir)
            opened.callback(self.workdir.close)
            self.kubelet_dir = LinuxKubeletDir(kubelet_dir)
            opened.callback(self.kubelet_dir.close)
            self._opened = opened.pop_all()

    def bind(self, place: FolderPlace, target: Names, options: MountOptions) -> None:
        with self.workdir.opened(place) as source, self.kubelet_dir.opened_target(target) as held:
            mounts.bind(source, held, options)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


def as_node_host(host: LinuxNodeHost) -> NodeHost:
    """The type checker's proof that the seam is kept."""
    return host


def _place(state: FolderState, name: str) -> FolderPlace:
    return FolderPlace(state, _erased_under(name) if state is FolderState.TRASH else name)


def _erased_under(name: str) -> str:
    return name.removeprefix(REST_PREFIX) or name


def _held(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _if_missing(error: HostError, answer: T) -> T:
    """Whose parent is missing is missing itself; every other error stays one."""
    if error.errno != errno.ENOENT:
        raise error
    return answer
