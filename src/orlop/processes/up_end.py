"""The end of an `orlop up`, from outside: it is asked to stop; when asked to, every trace of it is removed.

Order of an erasure: the process that holds the folder is gone → the folder is held by us → what it left running is
ended → devices of raw block volumes are let go → what is mounted below is unmounted → the folder is unbound, for which
it must be let go → held again, its contents go, and last the folder itself, with its lock. Killed in between, the same
command goes on.

Erases nothing but a folder that an `orlop up` has used and in which there is nothing but its own.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Final

from orlop.admin.up_state import DEFAULT_STATE, Holder, InUse, UpState, held, holder_of, is_up_state
from orlop.embedded.kubelet.pods.machine_containers import PROCESSES
from orlop.embedded.kubelet.volumes.volume_paths import BLOCK_ROOT
from orlop.host import loop_devices, process_records
from orlop.host.confined_paths import Mounts, Use, names_in, opened_below, opened_root, remove_empty_folder
from orlop.host.errors import HostError
from orlop.host.folder_erase import erase_folder
from orlop.host.mounts import is_mount_point
from orlop.host.self_bound import is_bound_on_itself, mounted_below, unbind, unmount_below

PATIENCE_SECONDS: Final = 60.0


class NotEnded(Exception):
    """The sentence says why, and what to do."""


def stop(state: UpState) -> Holder | None:
    """Who was stopped; None: nobody used it."""
    holder = holder_of(state)
    if holder is None:
        return None
    if holder.process is None:
        raise NotEnded(f"{state.folder} is used by a process that has not said who it is; try again in a moment.")
    if not process_records.ask_to_end(holder.process, PATIENCE_SECONDS):
        raise NotEnded(
            f"Process {holder.process.number} was asked to stop {PATIENCE_SECONDS:.0f} seconds ago and still runs. "
            f"Look at what it waits for; 'kill -9 {holder.process.number}' loses nothing that was answered."
        )
    return holder


def why_not_erasable(state: UpState) -> str | None:
    if not is_up_state(state):
        return f"{state.folder} was never used by an `orlop up`: nothing is erased."
    if strangers := state.strangers():
        return f"{state.folder} holds what is none of ours: {', '.join(strangers[:5])}. Move it away, and try again."
    return None


def erase(state: UpState, tell: Callable[[str], None]) -> None:
    """Raises `NotEnded`."""
    try:
        with held(state, ""):
            _end_processes(state)
            _release_devices(state, tell)
            _unmount(state, tell)
        unbind(str(state.folder))
        with held(state, ""):
            if mounted_below(str(state.folder)):
                raise NotEnded(f"Something of your own is mounted below {state.folder}: unmount it, and try again.")
            _erase_folder(state.folder)
        if state.folder == DEFAULT_STATE:
            with suppress(OSError):  # others have something there
                state.folder.parent.rmdir()
    except InUse as error:
        raise NotEnded(f"{state.folder} is used again, by {error.holder}: stop that first.") from None
    except HostError as error:
        raise NotEnded(str(error)) from None


def _end_processes(state: UpState) -> None:
    """What a killed one left: noted in the kubelet's folder, which is not there when it was killed early."""
    with ExitStack() as stack:
        try:
            kubelet = stack.enter_context(opened_root(str(state.kubelet)))
            notes = stack.enter_context(opened_below(kubelet, (PROCESSES,), Use.FOLDER_CONTENT, Mounts.CROSSED))
        except HostError as error:
            if error.errno == errno.ENOENT:
                return
            raise
        process_records.end_all_noted(notes)


def _release_devices(state: UpState, tell: Callable[[str], None]) -> None:
    """What the kubelet held, and nothing else: other loop devices are a driver's."""
    folder = "/".join((os.path.realpath(state.kubelet), *BLOCK_ROOT))
    for path in loop_devices.held_below(folder):
        loop_devices.release(path)
        tell(f"let go of {path}")


def _unmount(state: UpState, tell: Callable[[str], None]) -> None:
    """What is mounted below a folder that is not bound on itself is none of ours: we mount nothing before."""
    folder = str(state.folder)
    if is_bound_on_itself(folder):
        for path in unmount_below(folder):
            tell(f"unmounted {folder}/{path}")


def _erase_folder(folder: Path) -> None:
    """A folder that is somebody's own mount stays, empty."""
    lock = UpState(folder).lock.name
    with opened_root(str(folder)) as opened:
        # The lock at last: until then it says whose folder it is, and keeps others out of it.
        for name in sorted(names_in(opened), key=lambda name: name == lock):
            _erase(opened, name)
    with opened_root(str(folder.parent)) as parent:
        if not is_mount_point(parent, folder.name):
            remove_empty_folder(parent, folder.name)


def _erase(parent: int, name: str) -> None:
    erasure = erase_folder(parent, name, threading.Event())
    if not erasure.is_complete:
        why = str(erasure.left[0]) if erasure.left else "it was stopped"
        raise NotEnded(f"{name} is not erased yet: {why}")
