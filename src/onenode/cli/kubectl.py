"""`orlop kubectl …`: the kubectl of this machine, with the kubeconfig of an `orlop up`.

Only a `--state DIR` that comes first is ours; everything else is kubectl's.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from orlop.admin.up_state import (
    DEFAULT_STATE,
    SeveralRun,
    UpState,
    is_stopped,
    start_command,
    state_of,
    unnamed_state,
)
from orlop.host.host_errors import HostError
from orlop.host.kernel.programs import become, find_program

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
NOT_FOUND: Final = 127
FLAG: Final = "--state"
HELP: Final = f"""\
Usage: orlop kubectl [--state DIR] ARGUMENTS…

Runs kubectl with the kubeconfig of the `orlop up` whose state is in DIR. Where that is not given: of the one that
$KUBECONFIG belongs to, else of the only one that runs, else of that in {DEFAULT_STATE}.
"""


def split_state(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """The state folder, and what is left for kubectl. ValueError: the flag has no value. SeveralRun: none was named."""
    match list(arguments):
        case [first, *rest] if first.startswith(f"{FLAG}="):
            return Path(first.removeprefix(f"{FLAG}=")), rest
        case ["--state", folder, *rest]:
            return Path(folder), rest
        case ["--state"]:
            raise ValueError("orlop kubectl: --state needs the folder of an `orlop up`.")
        case rest:
            return _of_environment() or unnamed_state().folder, rest


def _of_environment() -> Path | None:
    """The state folder of the `orlop up` that was chosen with $KUBECONFIG, as its greeting proposes."""
    chosen = os.environ.get("KUBECONFIG", "")
    if not chosen or os.pathsep in chosen:
        return None
    state = state_of(Path(chosen))
    return state.folder if state else None


def main(arguments: Sequence[str]) -> int:
    try:
        folder, rest = split_state(arguments)
    except ValueError as error:
        return _failed(str(error), EXIT_USAGE)
    except SeveralRun as error:
        return _failed(f"orlop kubectl: {error}", EXIT_USAGE)
    state = UpState(folder.absolute())
    why_not = _why_nothing_answers(state)
    if not rest or (why_not and rest in (["-h"], ["--help"])):  # with something running, kubectl explains itself
        sys.stdout.write(f"{HELP}\n{why_not}\n" if rest else HELP)
        return 0
    if why_not:
        return _failed(why_not, EXIT_FAILED)
    kubectl = find_program("kubectl", beside=Path(sys.executable).parent)
    if kubectl is None:
        return _failed("orlop kubectl: there is no kubectl on the PATH. Install it, or add its folder.", NOT_FOUND)
    try:
        become(kubectl, rest, {**os.environ, "KUBECONFIG": str(state.kubeconfig)})
    except HostError as error:
        return _failed(f"orlop kubectl: {error}", EXIT_FAILED)


def _why_nothing_answers(state: UpState) -> str | None:
    if not os.access(state.kubeconfig, os.R_OK):
        return _why_no_kubeconfig(state.kubeconfig)
    if is_stopped(state):
        return f"orlop kubectl: nothing runs in {state.folder}: start it with `{start_command(state)}`."
    return None


def _why_no_kubeconfig(path: Path) -> str:
    if os.geteuid() != 0:
        return f"orlop kubectl: {path} cannot be read: it is root's. Try again as root."
    return (
        f"orlop kubectl: there is no {path}: start it with `orlop up`, or name its folder with --state, first of all."
    )


def _failed(sentence: str, code: int) -> int:
    sys.stderr.write(f"{sentence}\n")
    return code
