"""The folder of one `orlop up`, made ready for it: its parts made, locked, and a shared mount of its own meanwhile.

Order: the folder → its lock → bound on itself → its parts, which from then on are made and seen on that mount. Back:
the lock, whose file may be open on that mount → unbound, unless volumes of pods are mounted below it, which stay as
they do when a kubelet is stopped, or somebody's driver listens in it. Whoever has taken the lock meanwhile has a file
open there, and keeps it bound.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from orlop.admin.up_state import InUse, UpState, held
from orlop.embedded.kubelet.kubelet_folders import make_kubelet_folders
from orlop.host.errors import HostError
from orlop.host.self_bound import bind_on_itself, unbind
from orlop.kube.objects import time_text
from orlop.processes.daemon import CannotGoOn, Surroundings

OWNER_ONLY: Final = 0o700
KUBELET_MODE: Final = 0o750
LONGEST_NAME: Final = 63
UNFIT: Final = re.compile(r"[^a-z0-9.-]+")


@contextmanager
def held_folder(folder: Path, given: Surroundings, driver: str = "") -> Iterator[UpState]:
    """`driver` is the endpoint of one that stands in the place of ours. Raises `CannotGoOn` with the reason."""
    state = None
    try:
        with ExitStack() as stack:
            state = _prepared(folder, given, driver, stack)
            yield state
    except HostError as error:
        raise CannotGoOn(str(error)) from None
    finally:
        if state is not None:
            _unbind(state, given)


def _prepared(folder: Path, given: Surroundings, driver: str, stack: ExitStack) -> UpState:
    try:
        folder.mkdir(OWNER_ONLY, parents=True, exist_ok=True)
        state = UpState(Path(os.path.realpath(folder)))
        stack.enter_context(held(state, time_text(given.clock.now()), driver))
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
    if strangers := state.strangers():
        given.log.warning(
            "the state folder holds what is none of ours: `orlop down --erase` will refuse to erase it",
            folder=str(folder),
            found=", ".join(strangers[:5]),
        )
    return state


def _unbind(state: UpState, given: Surroundings) -> None:
    try:
        unbind(str(state.folder))
    except HostError as error:
        given.log.info("the state folder stays mounted", why=str(error))


def _make_parts(state: UpState) -> None:
    state.kubelet.mkdir(KUBELET_MODE, exist_ok=True)
    make_kubelet_folders(str(state.kubelet))
    state.scratch.mkdir(OWNER_ONLY, exist_ok=True)
    if not state.kubeconfig.is_symlink():
        state.kubeconfig.symlink_to(f"{state.api.name}/{state.kubeconfig.name}")


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
