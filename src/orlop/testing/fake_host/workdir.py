"""The working directory of a fake machine, as one process uses it.

Order of effects as in `host/folders/folder_records`: a new folder is half-made first, then has its name.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain

from orlop.host.block.image_files import ImageShape
from orlop.host.erase.erase_folder import REST_PREFIX
from orlop.host.folders.folder_records import RecordedFolder, ShelfListing, Stranger
from orlop.host.folders.project_quota import FolderQuota, ProjectUsage
from orlop.host.folders.project_strays import StrayCount
from orlop.host.host_errors import HostError
from orlop.host.kernel.disk_usage import DiskRoom, TreeUsage
from orlop.host.mounts.mounts import FileIdentity
from orlop.host.node_host import FolderPlace, FolderState
from orlop.testing.fake_host.acts import Acts, refuse
from orlop.testing.fake_host.machine import FakeFolder


@dataclass(frozen=True)
class _MountSnapshot:
    mounted: frozenset[FolderPlace]
    images: frozenset[FolderPlace]

    def is_mounted(self, place: FolderPlace, *, has_image: bool) -> bool:
        return place in self.mounted and (has_image or place not in self.images)


class FakeWorkdir:
    def __init__(self, acts: Acts) -> None:
        self._acts = acts
        self._machine = acts.machine

    def create(
        self,
        place: FolderPlace,
        record: bytes,
        mode: int,
        quota: FolderQuota | None = None,
        image: ImageShape | None = None,
    ) -> None:
        _refuse_unfit(place.name)
        machine = self._machine
        with machine.faults.around("create"):
            with self._acts.effect(f"make {place} half"):
                machine.half_made[place] = machine.new_folder(mode, record)
            if quota is not None:
                self._hold_to(place, quota)
            if image is not None:
                self._make_image(place, image)
            if place in machine.folders:
                self._unmake_half(place)
                refuse(errno.EEXIST, f"The folder {place} cannot be made")
            with self._acts.effect(f"name {place}"):
                machine.folders[place] = machine.half_made.pop(place)

    def _hold_to(self, place: FolderPlace, quota: FolderQuota) -> None:
        machine = self._machine
        if machine.why_no_quota is not None:
            self._unmake_half(place)
            raise HostError(errno.EOPNOTSUPP, machine.why_no_quota)
        with self._acts.effect(f"limit the project {quota.project}"):
            machine.limits[quota.project] = quota.limits
        with self._acts.effect(f"give {place} the project {quota.project}"):
            machine.half_made[place].project = quota.project

    def _make_image(self, place: FolderPlace, image: ImageShape) -> None:
        if image.bytes > self._machine.free_bytes():
            self._unmake_half(place)
            refuse(errno.ENOSPC, "The image cannot be made")
        with self._acts.effect(f"make the image of {place}"):
            self._machine.half_made[place].image = image

    def _unmake_half(self, place: FolderPlace) -> None:
        with self._acts.effect(f"remove half-made {place}"):
            del self._machine.half_made[place]

    def remove_half_made(self, place: FolderPlace) -> bool:
        with self._acts.change("remove_half_made", f"remove half-made {place}"):
            return self._machine.half_made.pop(place, None) is not None

    def read_record(self, place: FolderPlace) -> bytes:
        with self._acts.look("read_record"):
            record = self._folder(place).record
            if record is None:
                refuse(errno.ENODATA, f"The folder {place} has no record")
            return record

    def write_record(self, place: FolderPlace, record: bytes) -> None:
        with self._acts.change("write_record", f"write record of {place}"):
            self._folder(place).record = record

    def move(self, place: FolderPlace, to: FolderPlace) -> None:
        _refuse_unfit(to.name)
        folders = self._machine.folders
        with self._acts.change("move", f"move {place} to {to}"):
            self._folder(place)
            if to in folders:
                refuse(errno.EEXIST, f"The folder {to} cannot be made")
            folders[to] = folders.pop(place)

    def make_durable(self, state: FolderState) -> None:  # noqa: ARG002 - which shelf, does not matter
        with self._acts.look("make_durable"):
            pass  # there is no power to lose here

    def listing(self, state: FolderState) -> ShelfListing:
        machine = self._machine
        with self._acts.look("listing"):
            here = {place.name: folder for place, folder in machine.folders.items() if place.state is state}
            bare = [Stranger(name, "it has no record") for name, folder in here.items() if folder.record is None]
            strange = [Stranger(name, why) for name, why in machine.strangers.get(state, {}).items()]
            return ShelfListing(
                tuple(RecordedFolder(name, f.record) for name, f in here.items() if f.record is not None),
                (*bare, *strange),
                tuple(place.name for place in machine.half_made if place.state is state),
            )

    def synchronise(self) -> None:
        with self._acts.look("synchronise"):
            pass  # there is no power to lose here

    def names_in_trash(self) -> frozenset[str]:
        with self._acts.look("names_in_trash"):
            listing = self.listing(FolderState.TRASH)
            names = [*(each.name for each in listing.folders), *(each.name for each in listing.strangers)]
            return frozenset(name.removeprefix(REST_PREFIX) for name in names)

    def strangers(self) -> frozenset[str]:
        with self._acts.look("strangers"):
            return frozenset(self._machine.strangers.get(None, {}))

    def identity(self, place: FolderPlace) -> FileIdentity:
        with self._acts.look("identity"):
            return self._folder(place).identity

    def is_shown_by(self, place: FolderPlace, root: FileIdentity) -> bool:
        with self._acts.look("is_shown_by"):
            folder = self._folder(place)
            return root == folder.identity or (folder.image is not None and root == folder.image_root)

    def snapshot_mounts(self) -> _MountSnapshot:
        mounted = self.mounted_folders()
        return _MountSnapshot(mounted, frozenset(each for each in mounted if self._machine.folders[each].image))

    def mounted_folders(self) -> frozenset[FolderPlace]:
        machine = self._machine
        with self._acts.look("mounted_folders"):
            mounts = chain(*machine.mounts.values(), machine.elsewhere)
            mounted = {mount.folder for mount in mounts}
            return frozenset(place for place, folder in machine.folders.items() if folder in mounted)

    def room(self) -> DiskRoom:
        machine = self._machine
        with self._acts.look("room"):
            return DiskRoom(machine.total_bytes, machine.free_bytes(), machine.total_inodes, machine.free_inodes())

    def measure(self, place: FolderPlace, should_stop: Callable[[], bool]) -> TreeUsage:
        with self._acts.look("measure"):
            folder = self._folder(place)
            if should_stop():
                refuse(errno.ECANCELED, f"The folder {place} cannot be measured: the measurement was stopped")
            return TreeUsage(folder.bytes, folder.inodes)

    def why_not_writable(self) -> str | None:
        with self._acts.look("why_not_writable"):
            return self._machine.why_not_writable

    def why_no_quota(self) -> str | None:
        with self._acts.look("why_no_quota"):
            return self._machine.why_no_quota

    def why_no_images(self) -> str | None:
        with self._acts.look("why_no_images"):
            return self._machine.why_no_images

    def quota_usage(self, project: int) -> ProjectUsage:
        with self._acts.look("quota_usage"):
            self._refuse_without_quota()
            return self._machine.usage(project)

    def projects(self) -> tuple[ProjectUsage, ...]:
        with self._acts.look("projects"):
            self._refuse_without_quota()
            return tuple(self._machine.projects())

    def lift_limits(self, project: int) -> None:
        with self._acts.change("lift_limits", f"lift the limits of the project {project}"):
            self._refuse_without_quota()
            self._machine.limits.pop(project, None)

    def strays(self, place: FolderPlace, project: int, should_stop: Callable[[], bool]) -> StrayCount | None:
        with self._acts.look("strays"):
            folder = self._folder(place)
            if should_stop():
                refuse(errno.ECANCELED, f"The folder {place} was not searched to the end: the search was stopped")
            strays = [share for share in folder.shares() if share.project != project]
            return StrayCount(len(strays), sum(share.bytes for share in strays), strays[0].path) if strays else None

    def _refuse_without_quota(self) -> None:
        if self._machine.why_no_quota is not None:
            raise HostError(errno.ENOSYS, self._machine.why_no_quota)

    def _folder(self, place: FolderPlace) -> FakeFolder:
        _refuse_unfit(place.name)
        folder = self._machine.folders.get(place)
        return folder if folder is not None else refuse(errno.ENOENT, f"The folder {place} cannot be opened")


def _refuse_unfit(name: str) -> None:
    if not name or name in {".", ".."} or "/" in name or "\0" in name:
        refuse(errno.EINVAL, f"{name!r} is not the name of one entry of a folder")
