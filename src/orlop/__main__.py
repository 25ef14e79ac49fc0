"""`orlop`: a role (a process that serves) or a verb (a question somebody asks)? Imports only the one asked for.

Roles read Go's flags, since they stand where Go programs stood; verbs are click commands, for people. Called by the
name of such a program, it is the role that stands in its place.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from importlib import import_module
from typing import Final

from orlop import __version__

USAGE_ERROR: Final = 2
OUTPUT_ENDED: Final = 1
INTERRUPTED: Final = 130
OUTPUT_FAILURES: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO})


@dataclass(frozen=True, slots=True)
class Entry:
    """Where a role or verb lives; its module has `main(arguments) -> exit code`."""

    module: str
    summary: str


ROLES: Final[Mapping[str, Entry]] = {
    "up": Entry("orlop.processes.up", "everything on this machine: pods with scratch folders, driven by kubectl"),
    "node": Entry("orlop.processes.node", "all that a node needs: the CSI services, and kubelet told of them"),
    "driver": Entry("orlop.processes.driver", "the CSI services of this node on a socket, for use with any sidecars"),
    "registrar": Entry("orlop.processes.registrar", "makes any CSI driver known to the kubelet of its node"),
    "attacher": Entry("orlop.processes.attacher", "attaches and detaches the volumes of any CSI driver"),
    "apiserver": Entry("orlop.processes.apiserver", "the Kubernetes API on this machine, with its state in one folder"),
    "testing mock-driver": Entry("orlop.processes.mock_driver", "a scripted CSI driver, to test controllers against"),
}
VERBS: Final[Mapping[str, Entry]] = {
    "afterlife": Entry("orlop.cli.afterlife", "list, read, restore, keep and erase the folders that dead pods left"),
    "explain": Entry("orlop.cli.explain", "say in words what an object waits for, and what comes next"),
    "down": Entry("orlop.cli.down", "stop what `orlop up` runs, and erase it when asked to"),
    "kubectl": Entry("orlop.cli.kubectl", "kubectl, for what `orlop up` runs"),
    "csi": Entry("orlop.cli.csi", "call any RPC of any CSI driver"),
}
UPSTREAMS_NAMES: Final[Mapping[str, str]] = {"csi-attacher": "attacher", "csi-node-driver-registrar": "registrar"}
"""What the upstream programs are called, and the roles that take their place."""


def asked_for(argv: Sequence[str]) -> Sequence[str]:
    """The words behind the program's name; that of an upstream program is a word itself."""
    role = UPSTREAMS_NAMES.get(argv[0].rpartition("/")[2]) if argv else None
    return [*([role] if role else []), *argv[1:]]


def help_text() -> str:
    width = max(map(len, (*ROLES, *VERBS)))
    lines = ["Orlop gives Kubernetes pods the disks of the machine they run on.", ""]
    for title, entries in (("Processes:", ROLES), ("Questions and commands:", VERBS)):
        lines += [title, *(f"  orlop {name:<{width}}  {entry.summary}" for name, entry in entries.items()), ""]
    return "\n".join([*lines, "Each explains itself with --help. `orlop --version` says which one this is."])


def find_entry(arguments: Sequence[str]) -> tuple[Entry, Sequence[str]] | None:
    """The longest name that the arguments begin with, and the arguments left for it."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        entry = ROLES.get(name) or VERBS.get(name)
        if entry is not None:
            return entry, arguments[words:]
    return None


def beginning_with(word: str) -> list[str]:
    """The names of two words, of which this is the first."""
    return [name for name in ROLES if name.startswith(f"{word} ")]


def unknown(arguments: Sequence[str]) -> str:
    asked = " ".join(arguments[:2])
    if family := beginning_with(arguments[0]):
        there_is = ", ".join(f"'orlop {name}'" for name in family)
        return f"orlop: there is no '{asked}'. There is {there_is}."
    near = get_close_matches(asked, (*ROLES, *VERBS), n=1) or get_close_matches(arguments[0], (*ROLES, *VERBS), n=1)
    hint = f" Did you mean 'orlop {near[0]}'?" if near else ""
    return f"orlop: there is no '{arguments[0]}'.{hint} 'orlop --help' lists what there is."


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in {"-h", "-help", "--help", "help"}:
        print(help_text())  # noqa: T201 - this is the answer
        return 0
    if arguments[0] in {"-version", "--version", "version"}:
        print(f"orlop {__version__}")  # noqa: T201 - this is the answer
        return 0
    found = find_entry(arguments)
    if found is None and beginning_with(arguments[0]) and list(arguments[1:]) in (["-h"], ["-help"], ["--help"]):
        print(help_text())  # noqa: T201 - as above
        return 0
    if found is None:
        print(unknown(arguments), file=sys.stderr)  # noqa: T201 - as above
        return USAGE_ERROR
    entry, rest = found
    if list(rest) in (["--version"], ["-version"]):
        print(f"orlop {' '.join(arguments[: len(arguments) - len(rest)])} {__version__}")  # noqa: T201 - as above
        return 0
    return int(import_module(entry.module).main(list(rest)))


def open_missing_streams() -> None:
    """What was closed by who started us: the next file or socket would take its number, and get what is written."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - open for as long as the process lives


def main() -> None:
    open_missing_streams()
    # gRPC's core would write to stderr by itself, in a form of its own and past the log.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    try:
        code = run(asked_for(sys.argv))
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has seen enough, as in `orlop --help | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # what is left goes nowhere at the end
        code = OUTPUT_ENDED
    except OSError as error:
        if error.errno not in OUTPUT_FAILURES:
            raise
        sys.stderr.write(f"orlop: the output cannot be written: {error.strerror}.\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # as above
        code = OUTPUT_ENDED
    except KeyboardInterrupt:  # before the role or verb could take care of it, most likely while it was imported
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
