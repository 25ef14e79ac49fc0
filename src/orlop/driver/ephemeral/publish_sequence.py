"""The order of effects of publish, unpublish and burial on the machine, and how a failed call is undone.

- publish: the record names the target → the folder is live, limited and durable → the target exists → bind. Where no
  quota would hold the size, the folder has an image of that size, whose file system is mounted instead of the folder.
- unpublish: unmount → remove the target → the record forgets it, or, at the last target, the folder is buried.
- bury: one rename, whose new name holds the time of the burial and the lifespan. keep: another such rename.

Every step first checks whether it was done already, so each function can be repeated after a kill at any point. All
functions block and handle one volume. The caller ensures that no two work on one volume or one target at a time.
Publish, unpublish and bury are `BatchedWork`: they yield each fsync and each snapshot of the mounts, which also serve
other volumes.
"""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import lru_cache, partial
from typing import Final

import msgspec

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition
from orlop.driver.ephemeral.folder_index import live_place, read_record, retained_place, trash_place
from orlop.driver.ephemeral.publish_request_rules import PublishOrder, new_record, why_limits_are_refused
from orlop.driver.kubelet_calls import UNSAFE_PATH_ERRORS, Undo, as_csi_errors, undo_on_failure
from orlop.driver.project_numbers import ProjectNumbers
from orlop.host.batched_work import BatchedWork, FlushShelf, SnapshotMounts
from orlop.host.block.image_files import ImageShape
from orlop.host.block.image_formats import BLOCK, SMALLEST
from orlop.host.folders.project_quota import FolderQuota, ProjectLimits
from orlop.host.host_errors import HostError
from orlop.host.mounts.mounts import FileIdentity, MountedAt, MountOptions, parse_mount_options
from orlop.host.node_host import FolderPlace, FolderState, MountSnapshot, Names, NodeHost
from orlop.records.ephemeral_folder import VERSION, Burial, FolderOptions, FolderRecord, encode_record

IMAGE_FOLDER_MODE: Final = 0o700


class PublishSequence:
    """Changes folders, targets and mounts of one volume at a time, in the documented order."""

    def __init__(self, host: NodeHost, numbers: ProjectNumbers) -> None:
        self._host = host
        self._numbers = numbers
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._flush_live = FlushShelf(host.workdir, FolderState.LIVE)

    # ---- publish -----------------------------------------------------------------------------------------------------

    def publish(
        self, order: PublishOrder, known: FolderRecord | None, burial: Burial | None, now: float
    ) -> BatchedWork[FolderRecord]:
        """Publish a volume. `known` is the record of its folder, if it has one; `burial` is set if it is retained."""
        with as_csi_errors():
            place = live_place(order.volume_id) if burial is None else retained_place(burial)
            if known is not None and not self._exists(place):
                # The folder was removed by hand. Create it with the options of its record: the current limits apply
                # only to new volumes.
                order, known, burial = replace(order, options=known.options), None, None
            # A buried folder has no targets, even if its record still lists some.
            base = known if burial is None or known is None else msgspec.structs.replace(known, targets=())
            record = _with_target(base or self._new_record(order, now), order.target)
            if record != known or burial is not None:
                self._refuse_unenforced_limits(order, record, is_new=base is None)
            # After a final error kubelet deletes the target and never calls NodeUnpublishVolume. So a failed publish
            # leaves nothing behind: every effect is undone, the last one first, before the error is returned.
            with undo_on_failure() as undo:
                if known is None:
                    record = yield from self._create(record, now, undo)
                else:
                    # The record before the mount: after a crash the record must name everything that is mounted.
                    self._write_record(place, known, record, undo)
                    yield from self._resurrect(burial, undo)
                # Bind last. Once the target is mounted the pod can write, and what it writes must not be lost or
                # unlimited: by now the record is durable and the quota is set.
                self._bind(order, record, undo)
            return record

    def _new_record(self, order: PublishOrder, now: float) -> FolderRecord:
        record = new_record(order, now)
        # An image limits the size, but not the number of files. And a folder is cheaper, so quota comes first.
        if not record.options.size_bytes or record.options.inodes or self._workdir.why_no_quota() is None:
            return record
        if self._workdir.why_no_images() is not None:
            return record
        return msgspec.structs.replace(record, image=image_of(record.options).file_system, version=VERSION)

    def _refuse_unenforced_limits(self, order: PublishOrder, record: FolderRecord, *, is_new: bool) -> None:
        # Check the record, not the request: a folder that was created without limits stays without.
        if limits_of(record.options) is None or record.image:
            return
        no_quota = self._workdir.why_no_quota()
        if no_quota is None:
            return
        no_image = "An image would limit only its size." if record.options.inodes else self._workdir.why_no_images()
        reason = f"{no_quota} {no_image}" if is_new and no_image else no_quota
        raise FailedPrecondition(why_limits_are_refused(order.limited_by, reason))

    def _create(self, record: FolderRecord, now: float, undo: Undo) -> BatchedWork[FolderRecord]:
        limits = limits_of(record.options)
        if limits is None:
            yield from self._create_folder(record, now, undo)
            return record
        if record.image:
            yield from self._create_folder(record, now, undo, image=image_of(record.options))
            return record
        # Reserve the number until the folder has it: before that, the file system does not show that it is in use.
        with self._numbers.reserved() as project:
            numbered = msgspec.structs.replace(record, project=project)
            yield from self._create_folder(numbered, now, undo, quota=FolderQuota(project, limits))
            return numbered

    def _create_folder(
        self,
        record: FolderRecord,
        now: float,
        undo: Undo,
        quota: FolderQuota | None = None,
        image: ImageShape | None = None,
    ) -> BatchedWork[None]:
        place = live_place(record.volume_id)
        # Register the undo before the call: a create that fails may have taken effect, partly or completely.
        undo.append(partial(self._discard_new, record.volume_id, now))
        try:
            # The mode of an image's folder is ours: a tenant who could change the image would write a file system.
            mode = record.options.mode if image is None else IMAGE_FOLDER_MODE
            self._workdir.create(place, encode_record(record), mode, quota, image)
        except HostError as error:
            if error.errno == errno.EEXIST:
                undo.pop()  # this call did not create the folder: undo must not move it to the trash
                raise FailedPrecondition(
                    f"the folder {place} of the working directory exists and has no record that can be read: "
                    "it is left alone; check what it holds, and move it away if nobody needs it"
                ) from error
            raise
        yield self._flush_live

    def _discard_new(self, volume_id: str, now: float) -> None:
        place = live_place(volume_id)
        self._workdir.remove_half_made(place)
        self._move_durably(place, trash_place(Burial(volume_id, now, 0.0)))

    def _write_record(self, place: FolderPlace, before: FolderRecord, after: FolderRecord, undo: Undo) -> None:
        if before != after:
            undo.append(partial(self._workdir.write_record, place, encode_record(before)))
            self._workdir.write_record(place, encode_record(after))

    def _resurrect(self, burial: Burial | None, undo: Undo) -> BatchedWork[None]:
        """Move a retained folder to the live ones."""
        if burial is None:
            return
        place = live_place(burial.volume_id)
        undo.append(partial(self._move_durably, place, retained_place(burial)))
        self._workdir.move(retained_place(burial), place)
        # Flush before the bind: after a power loss the folder must not be found retained, because it would then be
        # erased with what the pod wrote since.
        yield self._flush_live

    def _bind(self, order: PublishOrder, record: FolderRecord, undo: Undo) -> None:
        target, place, options = _names(order.target), live_place(order.volume_id), mount_options(order)
        # Registered before the effect, as every undo: a call that fails may still have created the target.
        undo.append(partial(self._remove_target_if_empty, target))
        is_new = self._kubelet_dir.make_target(target)
        mounted = None if is_new else self._kubelet_dir.mounted_at(target)
        if mounted is None:
            if not is_new:
                self._refuse_hiding_files(order.target)
            undo.append(partial(self._kubelet_dir.unmount, target))
            if record.image:
                self._host.mount_image(place, record.image, target, options)
            else:
                self._host.bind(place, target, options)
        elif not self._workdir.is_shown_by(place, mounted.root):
            raise FailedPrecondition(f"something else is mounted at the target {order.target}: unmount it first")
        elif not mounted.options.fulfil(options):
            words = ",".join(mounted.options.words())
            raise AlreadyExists(f"the volume is mounted at the target {order.target} with other options: {words}")

    def _refuse_hiding_files(self, target: str) -> None:
        # A mount would hide the files, and after the unmount they would prevent removing the target.
        names = self._kubelet_dir.names_in(_names(target))
        if names:
            raise FailedPrecondition(
                f"the target {target} is not empty: it holds {min(names)[:100]!r}, which this driver did not create "
                "and the mount would hide; find out whose it is, and move it away"
            )

    def _remove_target_if_empty(self, target: Names) -> None:
        try:
            self._kubelet_dir.remove_target(target)
        except HostError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EBUSY, *UNSAFE_PATH_ERRORS}:
                raise

    # ---- unpublish ---------------------------------------------------------------------------------------------------

    def unpublish(
        self, target: str, record: FolderRecord | None, now: float, lifespan: float
    ) -> BatchedWork[FolderRecord | Burial | None]:
        """Unpublish a volume from one target. Return its record, its burial after the last target, or None."""
        # Unmount before removing the target from the record: after a crash in between, the record must still name
        # every target that may be mounted.
        self._remove_target(target, record)
        if record is None:
            return None
        # Containers have the volume mounted in their own mount namespaces, which unmounting the target does not change.
        if any(other != target for other in record.targets) or (yield from self.is_mounted(record)):
            return self._forget_target(record, target)
        return (yield from self.bury(record.volume_id, now, lifespan))

    def is_mounted(self, record: FolderRecord) -> BatchedWork[bool]:
        """Return whether any visible mount namespace has the volume's folder, a part of it, or its image mounted."""
        with as_csi_errors():
            mounts: MountSnapshot = yield SnapshotMounts(self._workdir)
            # The record, and not the folder, shows that there is an image: a tenant may have a file of the same name.
            return mounts.is_mounted(live_place(record.volume_id), has_image=bool(record.image))

    def _remove_target(self, target: str, record: FolderRecord | None) -> None:
        names = _names(target)
        with as_csi_errors():
            mounted = self._kubelet_dir.mounted_at(names)
            # The identity of a removed folder cannot be compared with any other. Unmount it: it is empty for ever.
            if mounted is not None and not mounted.is_removed and not _is_failed_image(mounted, target, record):
                self._refuse_foreign_mount(mounted.root, target, record)
            self._kubelet_dir.unmount(names)
            try:
                self._kubelet_dir.remove_target(names)
            except HostError as error:
                if error.errno == errno.ENOTEMPTY:
                    self._refuse_removing_files(target)
                raise

    def _refuse_removing_files(self, target: str) -> None:
        # A process wrote the files while nothing was mounted: they may be the only copy.
        names = self._kubelet_dir.names_in(_names(target))
        if names:
            raise FailedPrecondition(
                f"the volume is unmounted, but its target {target} cannot be removed: it holds {min(names)[:100]!r}, "
                "which this driver did not create; find out whose it is, and move it away"
            )

    def _refuse_foreign_mount(self, root: FileIdentity, target: str, record: FolderRecord | None) -> None:
        if record is not None and self._is_shown_by(record.volume_id, root):
            return
        # The mount is not the folder of this volume. It may still be one of ours: with a damaged record, or of another
        # volume by mistake. Unmount those, unless the other volume's record names this target.
        listing = self._workdir.listing(FolderState.LIVE)
        names = [*(folder.name for folder in listing.folders), *(stranger.name for stranger in listing.strangers)]
        name = next((name for name in names if self._is_shown_by(name, root)), None)
        if name is None:
            raise FailedPrecondition(
                f"what is mounted at the target {target} is no folder of this driver: unmount it by hand"
            )
        other = read_record(self._workdir, live_place(name))
        if other is not None and target in other.targets:
            raise FailedPrecondition(
                f"what is mounted at the target {target} is the volume {name}, which is published there: "
                "unpublish that volume by its own id"
            )

    def _forget_target(self, record: FolderRecord, target: str) -> FolderRecord:
        targets = tuple(other for other in record.targets if other != target)
        after = msgspec.structs.replace(record, targets=targets)
        if after != record:
            with as_csi_errors():
                self._workdir.write_record(live_place(record.volume_id), encode_record(after))
        return after

    def bury(self, volume_id: str, now: float, lifespan: float) -> BatchedWork[Burial]:
        """Move a live folder to the retained folders; with lifespan 0, to the trash."""
        burial = Burial(volume_id, round(now, 3), round(lifespan, 3))
        place, retained = live_place(volume_id), retained_place(burial)
        with as_csi_errors(), undo_on_failure() as undo:
            if burial.lifespan_seconds > 0:  # the rounded value, which is in the name: below a millisecond it is 0
                undo.append(partial(self._move_durably, retained, place))
                self._move(place, retained)
                yield FlushShelf(self._workdir, FolderState.RETAINED)
            else:
                # Never undone: the purge may have found the folder in the trash, and be erasing it.
                self._move_durably(place, trash_place(burial))
        return burial

    def keep(self, burial: Burial, lifespan: float) -> Burial:
        """Retain a folder for longer: one rename. If it fails, the folder has its old name."""
        longer = Burial(burial.volume_id, burial.buried_at, round(lifespan, 3))
        if longer.folder_name == burial.folder_name:
            return burial  # the names are equal: less than a millisecond more
        with as_csi_errors(), undo_on_failure() as undo:
            undo.append(partial(self._move_durably, retained_place(longer), retained_place(burial)))
            self._workdir.move(retained_place(burial), retained_place(longer))
            self._workdir.make_durable(FolderState.RETAINED)
        return longer

    def discard(self, burial: Burial) -> None:
        """Move a retained folder to the trash."""
        with as_csi_errors():
            self._move_durably(retained_place(burial), trash_place(burial))

    # ---- folders -----------------------------------------------------------------------------------------------------

    def _exists(self, place: FolderPlace) -> bool:
        try:
            self._workdir.identity(place)
        except HostError as error:
            return error.errno != errno.ENOENT
        return True

    def _is_shown_by(self, name: str, root: FileIdentity) -> bool:
        try:
            return self._workdir.is_shown_by(live_place(name), root)
        except HostError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return False
            raise

    def _move_durably(self, place: FolderPlace, to: FolderPlace) -> None:
        self._move(place, to)
        self._workdir.make_durable(to.state)

    def _move(self, place: FolderPlace, to: FolderPlace) -> None:
        try:
            self._workdir.move(place, to)
        except HostError as error:
            # ENOENT: an earlier call that failed or was killed has moved the folder, or it was removed by hand.
            if error.errno != errno.ENOENT:
                raise


# ---- values ----------------------------------------------------------------------------------------------------------


def limits_of(options: FolderOptions) -> ProjectLimits | None:
    """Return the quota limits of a folder; None if it has none."""
    if not options.size_bytes and not options.inodes:
        return None
    return ProjectLimits(options.size_bytes or None, options.inodes or None)


def image_of(options: FolderOptions) -> ImageShape:
    """Return the image that limits a folder to its size, but is at least as large as a file system can be.

    All of its space is allocated: a file system whose disk is full would lose what was written to it.
    """
    size = options.size_bytes // BLOCK * BLOCK
    kind = "xfs" if size >= SMALLEST["xfs"] else "ext4"
    return ImageShape(max(size, SMALLEST[kind]), kind, keeps_space=True, mode=options.mode)


def mount_options(order: PublishOrder) -> MountOptions:
    return _parsed_options(order.options.mount_options, order.options.read_only)


@lru_cache
def _parsed_options(words: tuple[str, ...], read_only: bool) -> MountOptions:  # noqa: FBT001 - a key
    return parse_mount_options((*words, *(("ro",) if read_only else ())))


def _is_failed_image(mounted: MountedAt, target: str, record: FolderRecord | None) -> bool:
    """Return whether it is an image's file system that failed: its root cannot be read, so only the record names it."""
    return mounted.is_failed and record is not None and bool(record.image) and target in record.targets


def _with_target(record: FolderRecord, target: str) -> FolderRecord:
    if target in record.targets:
        return record
    return msgspec.structs.replace(record, targets=(*record.targets, target))


def _names(target: str) -> Names:
    return tuple(target.split("/"))
