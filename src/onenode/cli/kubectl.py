"""`orlop kubectl …`: run the kubectl of this machine with the kubeconfig of an `orlop up`.

Only `--state DIR` as the first argument is ours; all other arguments go to kubectl.
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
    why_unused,
)
from orlop.host.host_errors import HostError
from orlop.host.kernel.programs import become, find_program

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2
NOT_FOUND: Final = 127
FLAG: Final = "--state"
HELP: Final = f"""\
Usage: orlop kubectl [--state DIR] ARGUMENTS…

Run kubectl with the kubeconfig of the `orlop up` whose state folder is DIR. Default: the one that $KUBECONFIG belongs
to, else the only one that is running, else {DEFAULT_STATE}.
"""


def split_state(arguments: Sequence[str]) -> tuple[Path, list[str]]:
    """Return the state folder and the arguments for kubectl.

    Raises ValueError if the flag has no value, and SeveralRun if none was named and several run.
    """
    match list(arguments):
        case [first, *rest] if first.startswith(f"{FLAG}="):
            return Path(first.removeprefix(f"{FLAG}=")), rest
        case ["--state", folder, *rest]:
            return Path(folder), rest
        case ["--state"]:
            raise ValueError("orlop kubectl: --state needs a value: the state folder of an `orlop up`.")
        case rest:
            return _state_of_environment() or unnamed_state().folder, rest


def _state_of_environment() -> Path | None:
    """Return the state folder of the `orlop up` whose kubeconfig is in $KUBECONFIG, as its start message suggests."""
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
        why_several = f"orlop kubectl: {error}"
        return _help(arguments, why_several) if _asks_for_help(arguments) else _failed(why_several, EXIT_USAGE)
    state = UpState(folder.absolute())
    why_not = _why_nothing_answers(state)
    if not rest or (why_not and _asks_for_help(rest)):  # with something running, kubectl explains itself
        return _help(rest, why_not)
    return _failed(why_not, EXIT_FAILED) if why_not else _run_kubectl(rest, state)


def _asks_for_help(arguments: Sequence[str]) -> bool:
    """Return whether kubectl would only print a help text: no cluster is needed for that. None at all: our help."""
    own = list(arguments)
    own = own[: own.index("--")] if "--" in own else own
    return not own or bool({"-h", "--help"} & set(own))


def _help(rest: Sequence[str], why_not: str | None) -> int:
    if rest and list(rest) not in (["-h"], ["--help"]):
        return _run_kubectl(rest, None)
    sys.stdout.write(f"{HELP}\n{why_not}\n" if rest and why_not else HELP)
    return 0


def _run_kubectl(arguments: Sequence[str], state: UpState | None) -> int:
    """Become kubectl, for what runs in this state folder; None: for no cluster."""
    kubectl = find_program("kubectl", beside=Path(sys.executable).parent)
    if kubectl is None:
        return _failed(
            "orlop kubectl: there is no kubectl on the PATH. Install it, or add its folder to the PATH.", NOT_FOUND
        )
    try:
        become(kubectl, arguments, {**os.environ, **({"KUBECONFIG": str(state.kubeconfig)} if state else {})})
    except HostError as error:
        return _failed(f"orlop kubectl: {error}", EXIT_FAILED)


def _why_nothing_answers(state: UpState) -> str | None:
    if not os.access(state.kubeconfig, os.R_OK):
        return _why_no_kubeconfig(state)
    if is_stopped(state):
        return f"orlop kubectl: nothing runs in {state.folder}: start it with `{start_command(state)}`."
    return None


def _why_no_kubeconfig(state: UpState) -> str:
    if why := why_unused(state):
        return f"orlop kubectl: {why} --state must be the first argument."
    if os.geteuid() != 0:
        return f"orlop kubectl: {state.kubeconfig} cannot be read: it belongs to root. Try again as root."
    return f"orlop kubectl: there is no file {state.kubeconfig}: start it with `{start_command(state)}`."


def _failed(sentence: str, code: int) -> int:
    sys.stderr.write(f"{sentence}\n")
    return code
