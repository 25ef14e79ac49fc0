"""`orlop`: starts a role (a process that keeps running) or a verb (a command for people); imports only that one.

Roles parse flags as Go programs do, because they replace Go programs in manifests; verbs are click commands. Started
under the name of an upstream program, `orlop` is the role that replaces it; under `kubectl-orlop`, a plugin of kubectl.
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
class EntryPoint:
    """The module of a role or verb, with its function `main(arguments) -> exit code`."""

    module: str
    summary: str


ROLES: Final[Mapping[str, EntryPoint]] = {
    "up": EntryPoint("onenode.processes.up", "runs pods with volumes on this machine, driven by kubectl"),
    "node": EntryPoint("orlop.processes.node", "serves the CSI services of a node and registers them with its kubelet"),
    "controller": EntryPoint("orlop.processes.controller", "creates and deletes volumes on the drives of a cluster"),
    "driver": EntryPoint("orlop.processes.driver", "serves the CSI services alone, for use with other sidecars"),
    "static-master": EntryPoint(
        "orlop.processes.static_master", "makes PersistentVolumes of the disks that static workers list"
    ),
    "static-worker": EntryPoint(
        "orlop.processes.static_worker",
        "lists the disks of a node that become PersistentVolumes, and wipes released ones",
    ),
    "registrar": EntryPoint("orlop.processes.registrar", "registers any CSI driver with the kubelet of its node"),
    "provisioner": EntryPoint("orlop.processes.provisioner", "creates and deletes the volumes of any CSI driver"),
    "attacher": EntryPoint("orlop.processes.attacher", "attaches and detaches the volumes of any CSI driver"),
    "apiserver": EntryPoint(
        "onenode.processes.apiserver", "serves the Kubernetes API on this machine, with its state in one folder"
    ),
    "testing mock-driver": EntryPoint(
        "orlop.processes.mock_driver", "serves a scripted CSI driver, to test controllers with"
    ),
}
VERBS: Final[Mapping[str, EntryPoint]] = {
    "afterlife": EntryPoint("orlop.cli.afterlife", "list, read, restore, keep and erase the folders of deleted pods"),
    "drives": EntryPoint("orlop.cli.drives", "list drives, make them of disks and folders, take them out of use"),
    "adopt": EntryPoint(
        "orlop.cli.adopt", "bring back drives and volumes whose objects were lost, or whose disk moved"
    ),
    "volumes": EntryPoint("orlop.cli.volumes", "list the volumes on drives, delete those that no claim needs"),
    "static": EntryPoint("orlop.cli.static", "list static volumes and their disks, release, forget and hand them back"),
    "explain": EntryPoint("orlop.cli.explain", "explain what an object waits for, and what comes next"),
    "down": EntryPoint("onenode.cli.down", "stop what `orlop up` runs; erase it with --erase"),
    "kubectl": EntryPoint("onenode.cli.kubectl", "run kubectl against what `orlop up` runs"),
    "csi": EntryPoint("orlop.cli.csi", "call any RPC of any CSI driver"),
}
PLUGIN: Final = "kubectl-orlop"
"""The program's name as a plugin of kubectl, which runs it for `kubectl orlop …`."""
NOT_OF_THE_PLUGIN: Final = frozenset({"down", "kubectl"})
"""Verbs that its help leaves out: they are about an `orlop up` of this machine."""
BENCH_MODULES: Final = frozenset({"onenode", "aiohttp", "cryptography"})
"""The one-machine Kubernetes and its dependencies; images for clusters contain none of them."""
UPSTREAM_PROGRAMS: Final[Mapping[str, str]] = {
    "csi-provisioner": "provisioner",
    "csi-attacher": "attacher",
    "csi-node-driver-registrar": "registrar",
}
"""Names of upstream programs, and the roles that replace them."""


def arguments_of(argv: Sequence[str]) -> Sequence[str]:
    """Return the arguments; the role comes first if the program was started under an upstream program's name."""
    role = UPSTREAM_PROGRAMS.get(argv[0].rpartition("/")[2]) if argv else None
    return [*([role] if role else []), *argv[1:]]


def is_plugin(argv: Sequence[str]) -> bool:
    return bool(argv) and argv[0].rpartition("/")[2] == PLUGIN


def help_text() -> str:
    width = max(map(len, (*ROLES, *VERBS)))
    lines = ["Orlop gives Kubernetes pods the disks of the machine they run on.", ""]
    for title, entries in (("Processes:", ROLES), ("Commands:", VERBS)):
        lines += [title, *(f"  orlop {name:<{width}}  {entry.summary}" for name, entry in entries.items()), ""]
    return "\n".join([*lines, "Each explains itself with --help. `orlop --version` prints the version."])


def plugin_help() -> str:
    verbs = {name: entry for name, entry in VERBS.items() if name not in NOT_OF_THE_PLUGIN}
    width = max(map(len, verbs))
    lines = [f"  kubectl orlop {name:<{width}}  {entry.summary}" for name, entry in verbs.items()]
    last = "Each explains itself with --help. `kubectl orlop version` prints the version."
    return "\n".join(
        ["Show and change the drives and volumes of Orlop in a cluster.", "", "Commands:", *lines, "", last]
    )


def family_help(word: str) -> str:
    """Return the help for the first word of names that have two."""
    names = names_beginning_with(word)
    width = max(map(len, names))
    lines = (f"  orlop {name:<{width}}  {ROLES[name].summary}" for name in names)
    return "\n".join([f"Usage: orlop {word} NAME", "", *lines, "", f"`orlop {names[0]} --help` lists its flags."])


def find_entry(arguments: Sequence[str]) -> tuple[EntryPoint, Sequence[str]] | None:
    """Return the role or verb with the longest name that the arguments begin with, and the remaining arguments."""
    for words in (2, 1):
        name = " ".join(arguments[:words])
        entry = ROLES.get(name) or VERBS.get(name)
        if entry is not None:
            return entry, arguments[words:]
    return None


def names_beginning_with(word: str) -> list[str]:
    """Return the names of two words whose first word is this."""
    return [name for name in ROLES if name.startswith(f"{word} ")]


def unknown(arguments: Sequence[str]) -> str:
    """Return the error for arguments that name no role or verb."""
    typed = " ".join(arguments[:2])
    if family := names_beginning_with(arguments[0]):
        known = ", ".join(f"'orlop {name}'" for name in family)
        return f"orlop: there is no '{typed}'. There is {known}."
    near = get_close_matches(typed, (*ROLES, *VERBS), n=1) or get_close_matches(arguments[0], (*ROLES, *VERBS), n=1)
    hint = f" Did you mean 'orlop {near[0]}'?" if near else ""
    return f"orlop: there is no '{arguments[0]}'.{hint} 'orlop --help' lists what there is."


def run(arguments: Sequence[str]) -> int:
    if not arguments or arguments[0] in {"-h", "-help", "--help", "help"}:
        print(plugin_help() if is_plugin(sys.argv) else help_text())  # noqa: T201 - the requested output
        return 0
    if arguments[0] in {"-version", "--version", "version"}:
        print(f"orlop {__version__}")  # noqa: T201 - the requested output
        return 0
    match = find_entry(arguments)
    if match is None and names_beginning_with(arguments[0]) and list(arguments[1:]) in (["-h"], ["-help"], ["--help"]):
        print(family_help(arguments[0]))  # noqa: T201 - as above
        return 0
    if match is None:
        print(unknown(arguments), file=sys.stderr)  # noqa: T201 - as above
        return USAGE_ERROR
    entry, rest = match
    if list(rest) in (["--version"], ["-version"]):
        print(f"orlop {' '.join(arguments[: len(arguments) - len(rest)])} {__version__}")  # noqa: T201 - as above
        return 0
    return run_entry(entry, arguments[: len(arguments) - len(rest)], rest)


def run_entry(entry: EntryPoint, name: Sequence[str], arguments: Sequence[str]) -> int:
    try:
        module = import_module(entry.module)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in BENCH_MODULES:
            raise
        missing = f"'{' '.join(name)}' is not part of this installation"
        sys.stderr.write(f"orlop: {missing}: install it with pip install 'orlop[onenode]'.\n")
        return USAGE_ERROR
    return int(module.main(list(arguments)))


def open_missing_streams() -> None:
    """Open /dev/null for standard streams that the parent closed.

    Otherwise the next file or socket would get the stream's number, and receive what is written to the stream.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 - open for as long as the process lives


def main() -> None:
    open_missing_streams()
    try:
        code = run(arguments_of(sys.argv))
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, as in `orlop --help | head -1`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit must not fail again
        code = OUTPUT_ENDED
    except OSError as error:
        if error.errno not in OUTPUT_FAILURES:
            raise
        sys.stderr.write(f"orlop: the output cannot be written: {error.strerror}.\n")
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # as above
        code = OUTPUT_ENDED
    except KeyboardInterrupt:  # before the role or verb could handle it, usually during its import
        code = INTERRUPTED
    sys.exit(code)


if __name__ == "__main__":
    main()
