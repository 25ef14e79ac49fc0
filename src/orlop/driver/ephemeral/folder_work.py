"""What publishing, unpublishing and burying do to the machine. Every function blocks; none knows of any other volume.

Publish, unpublish and bury are work that stops for steps which serve many volumes at once: making all that was done on
a shelf durable, and looking at what is mounted.

Order of effects:
- publish: the record is durable and names the target → the folder is live, held to its limits → the target is there →
  the folder is bound to it. Whatever fails is undone, last effect first, before the caller hears of it: after a final
  code kubelet removes the target and never unpublishes. Where undoing fails as well, or an earlier call may have left
  something at the target, the answer is UNAVAILABLE, and kubelet comes again.
- unpublish: nothing is mounted at the target → the target is gone → the record no longer names it.
- bury: one rename, whose new name says when it was and for how long the folder is kept; undone where it fails. keep:
  another such rename.

Each step looks first whether it was done already, so every function can be repeated after a kill at any point. The
caller sees to it that no two of them work on the same volume.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import lru_cache, partial

import msgspec

from orlop.csi.error_codes import AlreadyExists, FailedPrecondition
from orlop.driver.ephemeral.folder_steps import LookAtMounts, MakeDurable
from orlop.driver.ephemeral.machine_errors import GONE, LEADS_ASTRAY, Undo, telling, told, undone_on_failure
from orlop.driver.ephemeral.project_numbers import ProjectNumbers
from orlop.driver.ephemeral.publish_request_rules import PublishOrder
from orlop.driver.ephemeral.quota_rules import why_refused
from orlop.foundation.shared_steps import Work
from orlop.host.errors import HostError
from orlop.host.mount_option_rules import MountOptions, parse_mount_options
from orlop.host.mounts import FileIdentity
from orlop.host.node_host import FolderPlace, FolderState, MountsSeen, Names, NodeHost
from orlop.host.project_quota import FolderQuota, ProjectLimits
from orlop.records.ephemeral_folder import (
    Burial,
    FolderOptions,
    FolderRecord,
    UnreadableRecord,
    burial_of,
    decode_record,
    encode_record,
)


def live_place(volume_id: str) -> FolderPlace:
    return FolderPlace(FolderState.LIVE, volume_id)


def retained_place(burial: Burial) -> FolderPlace:
    return FolderPlace(FolderState.RETAINED, burial.folder_name)


def trash_place(burial: Burial) -> FolderPlace:
    return FolderPlace(FolderState.TRASH, burial.folder_name)


class FolderWork:
    def __init__(self, host: NodeHost, numbers: ProjectNumbers) -> None:
        self._host = host
        self._numbers = numbers
        self._workdir = host.workdir
        self._kubelet_dir = host.kubelet_dir
        self._live_durable = MakeDurable(host.workdir, FolderState.LIVE)

    # ---- publish -----------------------------------------------------------------------------------------------------

    def publish(
        self, order: PublishOrder, known: FolderRecord | None, burial: Burial | None, now: float
    ) -> Work[FolderRecord]:
        """`known` is the record of a folder that is there already, `burial` how it was buried, if it was."""
        place = live_place(order.volume_id) if burial is None else retained_place(burial)
        if known is not None and not told(partial(self._is_there, place)):
            known = burial = None  # somebody removed it by hand
        record = _with_target(_wanted(known, burial) or new_record(order, now), order.target)
        with telling(final=not _may_be_there(order, known, burial)), undone_on_failure() as undo:
            if record != known or burial is not None:
                self._refuse_unlimited(order, record)
            if known is None:
                record = yield from self._make_with_quota(record, now, undo)
            else:
                self._record(place, known, record, undo)
                yield from self._resurrect(burial, undo)
            self._bind(order, undo)
        return record

    def _refuse_unlimited(self, order: PublishOrder, record: FolderRecord) -> None:
        """Of a folder that was made without limits the record says so: it stays as it is."""
        reason = self._workdir.why_no_quota() if limits_of(record.options) is not None else None
        if reason is not None:
            raise FailedPrecondition(why_refused(order.limited_by, reason))

    def _make_with_quota(self, record: FolderRecord, now: float, undo: Undo) -> Work[FolderRecord]:
        limits = limits_of(record.options)
        if limits is None:
            yield from self._make(record, None, now, undo)
            return record
        with self._numbers.in_hand() as project:
            numbered = msgspec.structs.replace(record, project=project)
            yield from self._make(numbered, FolderQuota(project, limits), now, undo)
            return numbered

    def _make(self, record: FolderRecord, quota: FolderQuota | None, now: float, undo: Undo) -> Work[None]:
        place = live_place(record.volume_id)
        try:
            self._workdir.create(place, encode_record(record), record.options.mode, quota)
        except HostError as error:
            if error.errno == errno.EEXIST:
                raise FailedPrecondition(
                    f"the folder {place} of the working directory exists and has no record that can be read: "
                    "it is left alone; look at it, and move it away if nobody needs it"
                ) from error
            undo.append(partial(self._unmake, record.volume_id, now))
            raise
        undo.append(partial(self._unmake, record.volume_id, now))
        yield self._live_durable

    def _unmake(self, volume_id: str, now: float) -> None:
        place = live_place(volume_id)
        self._workdir.remove_half_made(place)
        self._move_durably(place, trash_place(Burial(volume_id, now, 0.0)))

    def _resurrect(self, burial: Burial | None, undo: Undo) -> Work[None]:
        if burial is None:
            return
        place = live_place(burial.volume_id)
        undo.append(partial(self._move_durably, place, retained_place(burial)))
        self._workdir.move(retained_place(burial), place)
        yield self._live_durable

    def _record(self, place: FolderPlace, before: FolderRecord, after: FolderRecord, undo: Undo) -> None:
        if before == after:
            return
        undo.append(partial(self._workdir.write_record, place, encode_record(before)))
        self._workdir.write_record(place, encode_record(after))

    def _bind(self, order: PublishOrder, undo: Undo) -> None:
        target, place, options = _names(order.target), live_place(order.volume_id), mount_options(order)
        undo.append(partial(self._remove_target_if_empty, target))
        is_new = self._kubelet_dir.make_target(target)
        mounted = None if is_new else self._kubelet_dir.mounted_at(target)
        if mounted is None:
            if not is_new:
                self._refuse_what_would_be_hidden(order.target)
            undo.append(partial(self._kubelet_dir.unmount, target))
            self._host.bind(place, target, options)
        elif mounted.root != self._workdir.identity(place):
            raise FailedPrecondition(f"something else is mounted at the target {order.target}: it has to go first")
        elif not mounted.options.fulfil(options):
            words = ",".join(mounted.options.words())
            raise AlreadyExists(f"the volume is mounted at the target {order.target} with other options: {words}")

    def _refuse_what_would_be_hidden(self, target: str) -> None:
        """Below a mount nobody sees it, and when the mount has gone, the target could not be removed because of it."""
        hidden = self._kubelet_dir.names_in(_names(target))
        if hidden:
            raise FailedPrecondition(
                f"the target {target} is not empty, and not of our making: it holds {min(hidden)[:100]!r}, which would "
                "be hidden; look whose it is, and move it away"
            )

    def _refuse_what_lies_in_the_target(self, target: str) -> None:
        """Written there while nothing was mounted: it may be all that somebody has of it."""
        found = self._kubelet_dir.names_in(_names(target))
        if found:
            raise FailedPrecondition(
                f"the volume is unmounted, but its target {target} cannot be removed: below the mount it holds "
                f"{min(found)[:100]!r}, which is not of our making; look whose it is, and move it away"
            )

    def _remove_target_if_empty(self, target: Names) -> None:
        try:
            self._kubelet_dir.remove_target(target)
        except HostError as error:
            if error.errno not in {errno.ENOTEMPTY, errno.EBUSY, *LEADS_ASTRAY}:
                raise

    # ---- unpublish ---------------------------------------------------------------------------------------------------

    def unpublish(self, target: str, record: FolderRecord | None, now: float) -> Work[FolderRecord | Burial | None]:
        """Takes the volume from its target; when that was the last one, and nothing has it mounted, buries it."""
        self.take_from_target(target, record)
        if record is None:
            return None
        if any(other != target for other in record.targets) or (yield from self.is_mounted(record.volume_id)):
            return self.forget_target(record, target)
        return (yield from self.bury(record.volume_id, now, record.options.lifespan_seconds))

    def is_mounted(self, volume_id: str) -> Work[bool]:
        with telling():
            seen: MountsSeen = yield LookAtMounts(self._workdir)
            return seen.is_mounted(live_place(volume_id))

    def take_from_target(self, target: str, record: FolderRecord | None) -> None:
        """Unmounts and removes the target; of what is not ours nothing is touched."""
        names = _names(target)
        with telling():
            mounted = self._kubelet_dir.mounted_at(names)
            if mounted is not None and not mounted.is_removed:
                self._refuse_what_is_not_ours(mounted.root, target, record)
            self._kubelet_dir.unmount(names)
            try:
                self._kubelet_dir.remove_target(names)
            except HostError as error:
                if error.errno == errno.ENOTEMPTY:
                    self._refuse_what_lies_in_the_target(target)
                raise

    def _refuse_what_is_not_ours(self, root: FileIdentity, target: str, record: FolderRecord | None) -> None:
        if record is not None and self._identity(record.volume_id) == root:
            return
        # Not the folder the request names; but perhaps its record is damaged, or another of ours got there by mistake.
        listing = self._workdir.listing(FolderState.LIVE)
        names = [*(folder.name for folder in listing.folders), *(stranger.name for stranger in listing.strangers)]
        name = next((name for name in names if self._identity(name) == root), None)
        if name is None:
            raise FailedPrecondition(f"what is mounted at the target {target} is no folder of this driver")
        other = self._record_at(live_place(name))
        if other is not None and target in other.targets:
            raise FailedPrecondition(
                f"what is mounted at the target {target} is the volume {name}, which is published there: "
                "unpublish that one, by its own id"
            )

    def _is_there(self, place: FolderPlace) -> bool:
        try:
            self._workdir.identity(place)
        except HostError as error:
            return error.errno not in GONE
        return True

    def _identity(self, name: str) -> FileIdentity | None:
        try:
            return self._workdir.identity(live_place(name))
        except HostError as error:
            if error.errno in {errno.ENOENT, errno.ENOTDIR, errno.ELOOP}:
                return None
            raise

    def forget_target(self, record: FolderRecord, target: str) -> FolderRecord:
        """The record without the target, durable."""
        left = tuple(other for other in record.targets if other != target)
        after = msgspec.structs.replace(record, targets=left)
        if after != record:
            with telling():
                self._workdir.write_record(live_place(record.volume_id), encode_record(after))
        return after

    def bury(self, volume_id: str, now: float, lifespan: float) -> Work[Burial]:
        """Into the afterlife; without one, straight to the trash."""
        burial = Burial(volume_id, round(now, 3), round(lifespan, 3))
        place, retained = live_place(volume_id), retained_place(burial)
        with telling(), undone_on_failure() as undo:
            if burial.lifespan_seconds > 0:  # as it is written down: less than a millisecond is none
                undo.append(partial(self._move_durably, retained, place))
                self._move(place, retained)
                yield MakeDurable(self._workdir, FolderState.RETAINED)
            else:  # never undone: somebody may be erasing it already
                self._move_durably(place, trash_place(burial))
        return burial

    def keep(self, burial: Burial, lifespan: float) -> Burial:
        """In the afterlife for another while: one rename. Where that fails, its old name is its name."""
        longer = Burial(burial.volume_id, burial.buried_at, round(lifespan, 3))
        if longer.folder_name == burial.folder_name:
            return burial  # less than a millisecond more
        with telling(), undone_on_failure() as undo:
            undo.append(partial(self._move_durably, retained_place(longer), retained_place(burial)))
            self._workdir.move(retained_place(burial), retained_place(longer))
            self._workdir.make_durable(FolderState.RETAINED)
        return longer

    def discard(self, burial: Burial) -> None:
        """From the afterlife into the trash."""
        with telling():
            self._move_durably(retained_place(burial), trash_place(burial))

    # ---- where it is -------------------------------------------------------------------------------------------------

    def find(self, volume_id: str, known: Burial | None) -> tuple[FolderRecord | None, Burial | None]:
        """The record of a volume's folder, and its burial where it is retained; (None, None) if it is neither."""
        with telling():
            self._workdir.synchronise()  # what is found was perhaps never made durable, and will be told as done
            live = self._record_at(live_place(volume_id))
            if live is not None:
                return live, None
            for burial in self._burials(volume_id, known):
                record = self._record_at(retained_place(burial))
                if record is not None:
                    return record, burial
            return None, None

    def _burials(self, volume_id: str, known: Burial | None) -> Iterator[Burial]:
        if known is not None:
            yield known
        found = [burial_of(folder.name) for folder in self._workdir.listing(FolderState.RETAINED).folders]
        yield from (burial for burial in found if burial is not None and burial.volume_id == volume_id)

    def _record_at(self, place: FolderPlace) -> FolderRecord | None:
        try:
            return decode_record(self._workdir.read_record(place))
        except UnreadableRecord:
            return None
        except HostError as error:
            if error.errno not in {errno.ENOENT, errno.ENODATA}:
                raise
            return None

    def _move_durably(self, place: FolderPlace, to: FolderPlace) -> None:
        self._move(place, to)
        self._workdir.make_durable(to.state)

    def _move(self, place: FolderPlace, to: FolderPlace) -> None:
        """What has gone meanwhile need not be moved."""
        try:
            self._workdir.move(place, to)
        except HostError as error:
            if error.errno not in GONE:
                raise


def new_record(order: PublishOrder, now: float) -> FolderRecord:
    return FolderRecord(
        order.volume_id, order.owner, order.options, created_at=round(now, 3), volume_name=order.volume_name
    )


def limits_of(options: FolderOptions) -> ProjectLimits | None:
    """None: it may grow as it likes."""
    if not options.size_bytes and not options.inodes:
        return None
    return ProjectLimits(options.size_bytes or None, options.inodes or None)


def mount_options(order: PublishOrder) -> MountOptions:
    return _parsed_options(order.options.mount_options, order.options.read_only)


@lru_cache
def _parsed_options(words: tuple[str, ...], read_only: bool) -> MountOptions:  # noqa: FBT001 - a key
    return parse_mount_options((*words, *(("ro",) if read_only else ())))


def _wanted(known: FolderRecord | None, burial: Burial | None) -> FolderRecord | None:
    """Buried is what has been taken from all its targets, also from those that its record still names."""
    if known is None or burial is None:
        return known
    return msgspec.structs.replace(known, targets=())


def _may_be_there(order: PublishOrder, known: FolderRecord | None, burial: Burial | None) -> bool:
    return known is not None and burial is None and order.target in known.targets


def _with_target(record: FolderRecord, target: str) -> FolderRecord:
    if target in record.targets:
        return record
    return msgspec.structs.replace(record, targets=(*record.targets, target))


def _names(target: str) -> Names:
    return tuple(target.split("/"))
