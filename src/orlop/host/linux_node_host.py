"""The node's real machine: the working directory and kubelet's directory, both held open from the start.

Every method calls one of the modules in `folders/`, `mounts/` and `kernel/`; those document the orders of effects. Both
directories must exist: a missing one is a disk that was not mounted, and must not be created.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from orlop.host.block import image_devices, image_files
from orlop.host.block.image_formats import ImageFormatter
from orlop.host.erase.erase_folder import REST_PREFIX
from orlop.host.folders import folder_records, project_quota
from orlop.host.folders.peer_folders import PeerFolders
from orlop.host.folders.project_strays import count_strays
from orlop.host.folders.room_reserve import NAME as NAME_OF_RESERVE
from orlop.host.folders.room_reserve import RoomReserve
from orlop.host.host_errors import HostError
from orlop.host.kernel import confined_paths, disk_usage
from orlop.host.mounts import mount_table, mounts
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.mounts.mounts import FileIdentity, MountOptions
from orlop.host.node_host import FolderPlace, FolderState, Names, NodeHost

if TYPE_CHECKING:
    from types import TracebackType

    from orlop.host.block.image_files import ImageShape
    from orlop.host.folders.folder_records import ShelfListing
    from orlop.host.folders.project_quota import FolderQuota, ProjectUsage
    from orlop.host.folders.project_strays import StrayCount
    from orlop.host.kernel.disk_usage import DiskRoom, TreeUsage

T = TypeVar("T")
_TO_READ = MountOptions(read_only=True, no_exec=True, no_symlinks=True)


class LinuxWorkdir:
    """The working directory, with one open descriptor for each shelf."""

    def __init__(self, path: str) -> None:
        with ExitStack() as opened:
            self._root = _held(opened, confined_paths.open_root(path))
            self._shelves = {
                state: _held(opened, folder_records.open_shelf(self._root, state.value)) for state in FolderState
            }
            self._opened = opened.pop_all()
        self._formatter = ImageFormatter()
        self._reserve = RoomReserve(self._root)
        self._reserve.fill(disk_usage.room_on(self._root).free_bytes)

    def shelf(self, state: FolderState) -> int:
        """Return the shelf's descriptor. It stays ours: do not close it."""
        return self._shelves[state]

    def peer_folders(self) -> PeerFolders:
        """Return the folders that another driver has left in this working directory."""
        return PeerFolders(self._root)

    def create(
        self,
        place: FolderPlace,
        record: bytes,
        mode: int,
        quota: FolderQuota | None = None,
        image: ImageShape | None = None,
    ) -> None:
        prepare = partial(self._prepare, quota=quota, image=image) if quota or image else None
        folder_records.create(self._shelves[place.state], place.name, record, mode, prepare)

    def _prepare(self, folder: int, quota: FolderQuota | None, image: ImageShape | None) -> None:
        if quota is not None:
            project_quota.hold_to(folder, quota=quota)
        if image is not None:
            try:
                image_files.write_image(folder, folder_records.IMAGE, image, self._formatter)
                os.fsync(folder)
            except OSError as error:
                raise HostError.because(error, f"An image of {image.bytes} bytes cannot be made") from error

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
            # On a full disk even a rename may need a block, and erasing begins with a rename into the trash. Release
            # the reserve for it, or a full disk could never be emptied.
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
        # The erasure of a deep tree moves its lower part aside: that belongs to the folder, and is not a second one.
        return frozenset(map(_erased_under, confined_paths.names_in(self._shelves[FolderState.TRASH])))

    def strangers(self) -> frozenset[str]:
        return frozenset(confined_paths.names_in(self._root)) - {
            NAME_OF_RESERVE,
            *(state.value for state in FolderState),
        }

    def opened(self, place: FolderPlace) -> AbstractContextManager[int]:
        """Open the folder itself."""
        return folder_records.opened_folder(self._shelves[place.state], place.name)

    def holds(self, folder: int) -> bool:
        """Return whether an open folder is inside the working directory, or inside a mount of one of our folders."""
        if self._is_in_image(image_devices.image_behind(os.fstat(folder).st_dev)):
            return True
        own = mounts.identity_of(self._root)
        above = confined_paths.folders_upwards(folder)
        return any(mounts.identity_of(each) == own or folder_records.has_record(each) for each in above)

    def identity(self, place: FolderPlace) -> FileIdentity:
        with self.opened(place) as folder:
            return mounts.identity_of(folder)

    def is_shown_by(self, place: FolderPlace, root: FileIdentity) -> bool:
        if self.identity(place) == root:
            return True
        image = image_files.image_identity(self._shelves[place.state], place.name)
        return image is not None and image_devices.image_behind(root.device) == image

    @contextmanager
    def opened_content(self, place: FolderPlace, file_system: str) -> Iterator[int]:
        """Open the root of the file system of the folder's image, mounted where nobody sees it; without, the folder."""
        if not file_system:
            with self.opened(place) as folder:
                yield folder
            return
        with image_files.detached_mount(
            self._shelves[place.state], place.name, file_system, _TO_READ, keeps_space=True
        ) as tree:
            root = confined_paths.reopen(tree, confined_paths.FOLDER_FLAGS & ~os.O_NOFOLLOW)
            try:
                yield root
            finally:
                os.close(root)

    def snapshot_mounts(self) -> _MountSnapshot:
        return _MountSnapshot(mount_table.read_all_namespaces(), self._mounted_among, self._is_attached)

    def mounted_folders(self) -> frozenset[FolderPlace]:
        return self._mounted_among(mount_table.read_all_namespaces()) | self._with_attached_images()

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
            # A disk may refuse changes without being marked read-only: only a change shows it.
            os.utime(self._shelves[FolderState.TRASH])
            self._refuse_if_gone()
        except HostError as error:
            return f"The working directory is gone: {error} Bring it back and restart this process."
        except OSError as error:
            return f"The disk of the working directory refuses changes: {error.strerror}."
        return None

    def _refuse_if_gone(self) -> None:
        """Raise if the working directory was deleted or unmounted: its descriptors would still accept changes."""
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

    def why_no_images(self) -> str | None:
        return image_files.why_no_images()

    def close(self) -> None:
        self._opened.close()

    def _is_in_image(self, image: FileIdentity | None) -> bool:
        return image is not None and any(image == attached for _, attached in self._attached_images())

    def _is_attached(self, place: FolderPlace) -> bool:
        with image_files.image_place(self._shelves[place.state], place.name) as image:
            return image is not None and bool(image_devices.devices_of(image, image_files.ending_of(place.name)))

    def _with_attached_images(self) -> frozenset[FolderPlace]:
        return frozenset(place for place, _ in self._attached_images())

    def _attached_images(self) -> Iterator[tuple[FolderPlace, FileIdentity]]:
        for name, image in image_devices.attached_images(folder_records.IMAGE):
            for state, shelf in self._shelves.items():
                # By identity: the path of an image may be another one in another mount namespace.
                if image_files.image_identity(shelf, name) == image:
                    yield _place(state, name), image

    def _mounted_among(self, namespaces: mount_table.SeenNamespaces) -> frozenset[FolderPlace]:
        # By descriptor, not by the path at the start: an admin may have renamed a shelf since.
        mounted = namespaces.mounted_folders()
        return frozenset(
            _place(state, name)
            for state, shelf in self._shelves.items()
            for (name,) in mounted.names_below(namespaces.folder_of(shelf), 1)
        )


class _MountSnapshot:
    def __init__(
        self,
        namespaces: mount_table.SeenNamespaces,
        find: Callable[[mount_table.SeenNamespaces], frozenset[FolderPlace]],
        is_attached: Callable[[FolderPlace], bool],
    ) -> None:
        self._namespaces, self._find, self._is_attached = namespaces, find, is_attached

    def is_mounted(self, place: FolderPlace, *, has_image: bool) -> bool:
        if self._namespaces.mention(place.name) and place in self._find(self._namespaces):
            return True
        return has_image and self._is_attached(place)


class LinuxNodeHost:
    """The machine as `NodeHost`. Close it, or use it as a context manager, when no call is running."""

    def __init__(self, workdir: str, kubelet_dir: str) -> None:
        with ExitStack() as opened:
            self.workdir = LinuxWorkdir(workdir)
            opened.callback(self.workdir.close)
            self.kubelet_dir = LinuxKubeletDir(kubelet_dir)
            opened.callback(self.kubelet_dir.close)
            self._opened = opened.pop_all()

    def bind(self, place: FolderPlace, target: Names, options: MountOptions) -> None:
        with self.workdir.opened(place) as source, self.kubelet_dir.opened_target(target) as target_handle:
            mounts.bind(source, target_handle, options)

    def mount_image(self, place: FolderPlace, file_system: str, target: Names, options: MountOptions) -> None:
        shelf = self.workdir.shelf(place.state)
        with (
            self.kubelet_dir.opened_target(target) as target_handle,
            image_files.detached_mount(shelf, place.name, file_system, options, keeps_space=True) as tree,
        ):
            image_files.attach_mount(tree, target_handle, place.name)

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _kind: type[BaseException] | None, _error: BaseException | None, _traceback: TracebackType | None
    ) -> None:
        self.close()


@contextmanager
def locked_workdir(path: str) -> Iterator[None]:
    """Hold the working directory for this process alone. EWOULDBLOCK: another process has it."""
    with confined_paths.opened_root(path) as folder:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            sentence = f"another process uses the working directory {path}. Stop it, or choose another --workdir"
            raise HostError(errno.EWOULDBLOCK, sentence) from None
        yield


def as_node_host(host: LinuxNodeHost) -> NodeHost:
    """Prove to the type checker that the seam is implemented."""
    return host


def _place(state: FolderState, name: str) -> FolderPlace:
    return FolderPlace(state, _erased_under(name) if state is FolderState.TRASH else name)


def _erased_under(name: str) -> str:
    return name.removeprefix(REST_PREFIX) or name


def _held(opened: ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor
