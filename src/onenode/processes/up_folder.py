"""The folder of one `orlop up`: made ready for it, and from outside its end, with every trace removed when asked for.

Order of a beginning: the folder, which must hold nothing of anybody else → its lock → bound on itself → its parts,
which from then on are made and seen on that mount → recorded as one that runs. Back: the record → the lock, whose file
may be open on that mount → unbound, unless volumes of pods are mounted below it, which stay as they do when a kubelet
is stopped, or somebody's driver listens in it. A process that has taken the lock meanwhile has a file open there, which
keeps the folder bound.

Order of an erasure: the process that holds the folder is gone → the folder is held by us → volumes that stay at a
driver of somebody else are reported, while the objects that name them are there → what it left running is ended →
devices of raw block volumes are released → what is mounted below is unmounted → the folder is unbound, for which it
must be released → held again, its contents go, and last the folder itself, with its lock. Killed in between, the same
command goes on. Erases nothing but what is an `orlop up`'s own, in a folder that one has used: whatever else is there
stays, and with it the folder.
"""

from __future__ import annotations

import errno
import json
import os
import re
import shlex
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from onenode.apiserver.store.store_errors import StoreUnusable
from onenode.host.self_bind_mount import bind_on_itself, is_bound_on_itself, mounted_below, unbind, unmount_below
from onenode.kubelet.node.kubelet_folders import make_kubelet_folders
from onenode.kubelet.pods.linux_container_runtime import PROCESSES
from onenode.kubelet.volumes.volume_paths import BLOCK_ROOT
from orlop.admin.up_state import (
    DEFAULT_STATE,
    Holder,
    InUse,
    UpState,
    held,
    holder_of,
    is_up_state,
    last_driver,
    recorded,
)
from orlop.foundation.runtime import Runtime
from orlop.host.block import loop_devices
from orlop.host.drives.folder_drives import LinuxFolderDrives
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.host_errors import HostError
from orlop.host.kernel import process_records
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    names_in,
    opened_below,
    opened_root,
    remove_empty_folder,
)
from orlop.host.mounts.mounts import is_mount_point
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.objects import time_text
from orlop.processes.daemon import CannotGoOn
from orlop.records.drive_record import MIB, DriveRecord, DriveType, drive_id_from, encode_drive, whole_mebibytes

OWNER_ONLY: Final = 0o700
KUBELET_MODE: Final = 0o750
LONGEST_NAME: Final = 63
FIRST_DRIVE: Final = "first"
LARGEST_FIRST_DRIVE: Final = 20 << 30
SMALLEST_FIRST_DRIVE: Final = 64 * MIB
MOST_VOLUMES: Final = 10
"""How many volumes that stay at a driver are named."""
UNFIT: Final = re.compile(r"[^a-z0-9.-]+")


@contextmanager
def held_folder(folder: Path, runtime: Runtime, driver: str = "") -> Iterator[UpState]:
    """`driver` is the endpoint of one that stands in the place of ours. Raises `CannotGoOn` with the reason."""
    state = None
    try:
        with ExitStack() as stack:
            state = _prepared(folder, runtime, driver, stack)
            yield state
    except HostError as error:
        raise CannotGoOn(str(error)) from None
    finally:
        if state is not None:
            _unbind(state, runtime)


def _prepared(folder: Path, runtime: Runtime, driver: str, stack: ExitStack) -> UpState:
    try:
        folder.mkdir(OWNER_ONLY, parents=True, exist_ok=True)
        state = UpState(Path(os.path.realpath(folder)))
        _refuse_strangers(state)
        stack.enter_context(held(state, time_text(runtime.clock.now()), driver))
        bind_on_itself(str(state.folder))
        _make_parts(state)
    except InUse as error:
        raise CannotGoOn(
            f"the state folder {folder} is used by {error.holder}. "
            f"'orlop down --state {folder}' stops that one; another --state is for a second one."
        ) from None
    except HostError:
        raise
    except OSError as error:
        raise CannotGoOn(f"the state folder {folder} cannot be used: {error.strerror or error}.") from None
    try:
        stack.enter_context(recorded(state))
    except OSError as error:
        # Commands then need --state; nothing else depends on it.
        runtime.log.warning("running orlop up not recorded", folder=str(folder), error=str(error))
    return state


def _refuse_strangers(state: UpState) -> None:
    """Before anything is made in the folder: `orlop down --erase` must never meet what somebody else keeps there."""
    if strangers := state.strangers():
        raise CannotGoOn(
            f"the state folder {state.folder} holds what is not of an `orlop up`: {_some(strangers)}. "
            "Name an empty folder, or one that an `orlop up` has used, with --state."
        )


def _some(names: Sequence[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def _unbind(state: UpState, runtime: Runtime) -> None:
    try:
        unbind(str(state.folder))
    except HostError as error:
        runtime.log.info("state folder stays mounted", reason=str(error))


def _make_parts(state: UpState) -> None:
    state.kubelet.mkdir(KUBELET_MODE, exist_ok=True)
    make_kubelet_folders(str(state.kubelet))
    for folder in (state.scratch, state.drives, state.folders, state.credentials):
        folder.mkdir(OWNER_ONLY, exist_ok=True)
    for stale in state.credentials.iterdir():
        # A kubeconfig of an earlier start may name a port that is somebody else's now. Children wait for the new one.
        stale.unlink()
    if not state.kubeconfig.is_symlink():
        state.kubeconfig.symlink_to(f"{state.api.name}/{state.kubeconfig.name}")


def make_first_drive(state: UpState, capacity: int | None, node: str, runtime: Runtime) -> None:
    """Make the drive on which a claim works with nothing prepared, unless it was made, or removed, before.

    `capacity` is the user's: 0 for none, None for the default. Without a drive everything else works.
    """
    path, host = state.folders / FIRST_DRIVE, LinuxFolderDrives(str(state.folders))
    try:
        found = {each.path: each.record for each in host.folder_drives()}
        if found.get(str(path)) is not None or (path.exists() and str(path) not in found and capacity is None):
            return
        size = default_capacity(state.folders) if capacity is None else whole_mebibytes(capacity)
        if size < MIB:
            return
        record = DriveRecord(
            drive_id=drive_id_from(runtime.random.randbytes(16)),
            type=DriveType.FOLDER,
            file_system="",
            capacity_bytes=size,
            node_name=node,
            created_at=runtime.clock.now().timestamp(),
        )
        host.make_folder_drive(str(path), encode_drive(record), size)
    except HostError as error:
        runtime.log.warning("no drive was made in the state folder", error=str(error))


def default_capacity(folder: Path) -> int:
    """Return a fifth of what is free, at most 20 GiB; 0 if that is too little for a volume."""
    size = whole_mebibytes(min(LARGEST_FIRST_DRIVE, free_bytes(folder) // 5))
    return size if size >= SMALLEST_FIRST_DRIVE else 0


def free_bytes(folder: Path) -> int:
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def node_name(asked: str, state: UpState) -> str:
    """The one that was asked for, or the one it had before, or this machine's: noted for the next time."""
    try:
        name = asked or _noted(state) or _of_this_machine()
        state.node_name.write_text(f"{name}\n")
    except OSError as error:
        raise CannotGoOn(f"{state.node_name} cannot be written: {error.strerror}.") from None
    return name


def _noted(state: UpState) -> str:
    return state.node_name.read_text().strip() if state.node_name.exists() else ""


def _of_this_machine() -> str:
    name = UNFIT.sub("-", socket.gethostname().lower())[:LONGEST_NAME].strip("-.")
    return name or "localhost"


# ---- the end of it, from outside -------------------------------------------------------------------------------------


PATIENCE_SECONDS: Final = 60.0


class NotEnded(Exception):
    """An `orlop up` could not be stopped or erased; the text says why, and what to do."""


def stop(state: UpState) -> Holder | None:
    """Stop the process that holds the folder, and return it; None if none does. Raises `NotEnded`."""
    holder = holder_of(state)
    if holder is None:
        return None
    if holder.process is None:
        raise NotEnded(f"{state.folder} is used by a process that has not recorded its id yet. Try again in a moment.")
    if not process_records.ask_to_end(holder.process, PATIENCE_SECONDS):
        raise NotEnded(
            f"Process {holder.process.number} was asked to stop {PATIENCE_SECONDS:.0f} seconds ago and still runs. "
            f"See its log for what it waits for. 'kill -9 {holder.process.number}' loses no acknowledged write."
        )
    return holder


def why_not_erasable(state: UpState) -> str | None:
    if not is_up_state(state):
        return f"{state.folder} was never used by an `orlop up`: nothing is erased."
    return None


def erase(state: UpState, report: Callable[[str], None]) -> None:
    """Erase everything of an `orlop up`; `report` is called with each step. Raises `NotEnded`."""
    driver = last_driver(state)
    try:
        with held(state, "", driver):
            if driver:
                _report_volumes_at(driver, state, report)
            _end_processes(state)
            _release_devices(state, report)
            _unmount_below(state, report)
            _release_images(state, report)
        unbind(str(state.folder))
        with held(state, "", driver):
            if mounted_below(str(state.folder)):
                raise NotEnded(f"Something of your own is mounted below {state.folder}: unmount it, and try again.")
            _erase_folder(state, report)
        if state.folder == DEFAULT_STATE:
            with suppress(OSError):  # others have something there
                state.folder.parent.rmdir()
    except InUse as error:
        raise NotEnded(f"{state.folder} is used again, by {error.holder}: stop that first.") from None
    except HostError as error:
        raise NotEnded(str(error)) from None


def _report_volumes_at(driver: str, state: UpState, report: Callable[[str], None]) -> None:
    """Report the volumes of another driver: only a provisioner deletes them, and it needs the objects that go now."""
    try:
        volumes = volumes_in(state)
    except StoreUnusable as error:
        report(f"volumes at the driver {driver} stay there, and which ones is unknown: {error}")
        return
    if not volumes:
        return
    names = _some([f"{name} (volume {handle})" for name, handle in volumes], most=MOST_VOLUMES)
    request = shlex.quote(json.dumps({"volumeId": volumes[0][1]}))
    report(
        f"{len(volumes)} volume{'s stay' if len(volumes) > 1 else ' stays'} at the driver {driver}: {names}. Delete "
        f"with: orlop csi DeleteVolume {request} --endpoint {shlex.quote(driver)}"
    )


def volumes_in(state: UpState) -> list[tuple[str, str]]:
    """Return name and volume handle of every PersistentVolume of a CSI driver in a stopped state folder.

    Raises `StoreUnusable`.
    """
    from onenode.apiserver.store.database import open_database  # noqa: PLC0415 - `orlop up` opens it much later

    if not state.api.is_dir():
        return []
    opened = open_database(state.api)
    try:
        stored = [each.json for key, each in opened.kept.objects.items() if key.resource == PERSISTENT_VOLUME.plural]
    finally:
        opened.database.close()
    sources = [(volume["metadata"]["name"], volume["spec"].get("csi")) for volume in map(json.loads, stored)]
    return sorted((name, source["volumeHandle"]) for name, source in sources if source)


def _end_processes(state: UpState) -> None:
    """End processes that a killed `orlop up` left, as noted in its kubelet's folder, which may not exist yet."""
    with ExitStack() as stack:
        try:
            kubelet = stack.enter_context(opened_root(str(state.kubelet)))
            notes = stack.enter_context(
                opened_below(kubelet, (PROCESSES,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED)
            )
        except HostError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        process_records.end_all_noted(notes)


def _release_devices(state: UpState, report: Callable[[str], None]) -> None:
    """Release the loop devices of the kubelet's raw block volumes; other loop devices belong to a driver."""
    _release_below("/".join((os.path.realpath(state.kubelet), *BLOCK_ROOT)), report)


def _release_images(state: UpState, report: Callable[[str], None]) -> None:
    """Release the loop devices over images on our drives; those of mounted images went with their mounts."""
    for folder in (state.folders, state.drives):
        _release_below(os.path.realpath(folder), report)


def _release_below(folder: str, report: Callable[[str], None]) -> None:
    for path in loop_devices.held_below(folder):
        loop_devices.release(path)
        report(f"released {path}")


def _unmount_below(state: UpState, report: Callable[[str], None]) -> None:
    """Unmount what is below the folder, if it is bound on itself: before that, mounts there are not ours."""
    folder = str(state.folder)
    if is_bound_on_itself(folder):
        for path in unmount_below(folder):
            report(f"unmounted {folder}/{path}")


def _erase_folder(state: UpState, report: Callable[[str], None]) -> None:
    """Erase our entries, then the folder, unless it is a mount point or holds files that are not ours."""
    folder, lock, own = state.folder, state.lock.name, state.own_names()
    with opened_root(str(folder)) as opened:
        # The lock last: until then it marks the folder as ours, and keeps other processes out of it.
        for name in sorted(own & set(names_in(opened)), key=lambda name: name == lock):
            _erase(opened, name)
        left = sorted(names_in(opened))
    if left:
        report(f"left {folder}: it holds files that are not of an `orlop up`: {', '.join(left[:5])}")
        return
    with opened_root(str(folder.parent)) as parent:
        if not is_mount_point(parent, folder.name):
            remove_empty_folder(parent, folder.name)


def _erase(parent: int, name: str) -> None:
    erasure = erase_folder(parent, name, threading.Event())
    if not erasure.is_complete:
        why = str(erasure.left[0]) if erasure.left else "it was stopped"
        raise NotEnded(f"{name} is not erased yet: {why}")
