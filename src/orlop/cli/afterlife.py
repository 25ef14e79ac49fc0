"""`orlop afterlife …`: list, read, restore, keep and erase the retained folders of deleted pods on this node.

Sends requests to the node's process over its socket; as root, on the node. Exit codes: 0 done, 1 failed or refused,
2 wrong use, 3 there is no such folder or file, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click

from orlop.admin.afterlife import Afterlife
from orlop.admin.afterlife_list_rules import ORDERS, Wanted, chosen
from orlop.admin.node_socket import NodeError, NodeRefused, NodeUnreachable, SeveralNodes, find_socket
from orlop.admin.up_state import UpState, why_unused
from orlop.cli.afterlife_copy import archive_output, copy_file_to_output, print_problems, restore_into
from orlop.cli.afterlife_format import (
    content_text,
    details,
    erased_text,
    file_table,
    file_value,
    folder_table,
    folder_value,
    pod_text,
    time_text,
    usage_text,
    usage_value,
)
from orlop.cli.durations import DurationType
from orlop.cli.options import (
    CONTEXT_SETTINGS,
    FAILED,
    INTERRUPTED,
    VerbFunction,
    VerbGroup,
    confirm,
    dry_run_option,
    output_option,
    program_name,
    yes_option,
)
from orlop.cli.output import harmless
from orlop.cli.output import show as show_value
from orlop.cli.tables import size_text, span_text
from orlop.records.afterlife_report import FolderRow

WRONG_USE: Final = 2
EXIT_CODES: Final = {"refused": FAILED, "wrong-use": WRONG_USE, "not-found": 3}
FILES_AT_ONCE: Final = 1000
HELP_ON_CODES: Final = (
    "Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 there is no such folder or file, 130 interrupted."
)

HELP_ON_ORDER: Final = "Sort by this; the last deleted, the next erased or the largest is first."

STATE: Final = "orlop.state"


def socket_option(command: VerbFunction) -> VerbFunction:
    with_state = click.option(
        "--state",
        metavar="DIR",
        expose_value=False,
        callback=_note_state,
        help="The state folder of an `orlop up`, instead of a socket.",
    )(command)
    return click.option(
        "--socket",
        envvar="ORLOP_NODE_SOCKET",
        metavar="PATH",
        help="The node's admin socket (or $ORLOP_NODE_SOCKET); default: that in /run/orlop, else that of `orlop up`.",
    )(with_state)


def _note_state(context: click.Context, _parameter: click.Parameter, folder: str | None) -> None:
    if folder:
        context.meta[STATE] = UpState(Path(folder))


@contextmanager
def node(socket: str | None) -> Iterator[Afterlife]:
    """Connect to the node; print its errors on stderr, and exit with their code."""
    try:
        yield Afterlife(_socket(click.get_current_context().meta.get(STATE), socket))
    except NodeError as error:
        click.echo(harmless(str(error)), err=True)
        sys.exit(_exit_code(error))
    except KeyboardInterrupt:
        click.echo("interrupted", err=True)
        sys.exit(INTERRUPTED)


def _socket(state: UpState | None, socket: str | None) -> Path:
    if state is None:
        return find_socket(socket)
    if why := why_unused(state):
        raise NodeUnreachable(why)
    return state.node_socket


def _exit_code(error: NodeError) -> int:
    match error:
        case NodeRefused():
            return EXIT_CODES[error.why]
        case SeveralNodes():
            return WRONG_USE
        case _:
            return FAILED


@click.group(
    "orlop afterlife",
    cls=VerbGroup,
    epilog=HELP_ON_CODES,
    context_settings=CONTEXT_SETTINGS,
)
def command() -> None:
    """Manage the retained folders of deleted pods on this node.

    ID is a volume's id, or its beginning if no other retained volume begins so.
    """


@command.command("list", epilog=HELP_ON_CODES)
@socket_option
@output_option("wide", "name")
@click.option("-n", "--namespace", help="Only folders of pods in this namespace.")
@click.option("--pod", help="Only folders of pods with this name; * and ? match anything.")
@click.option("--older-than", type=DurationType(), help="Only folders of pods deleted longer ago, such as 2h.")
@click.option("--younger-than", type=DurationType(), help="Only folders of pods deleted more recently.")
@click.option(
    "--sort", "order", type=click.Choice(list(ORDERS)), default="deleted", show_default=True, help=HELP_ON_ORDER
)
@click.option("--reverse", is_flag=True, help="Reverse the order.")
def list_folders(socket: str | None, output: str, order: str, *, reverse: bool, **filters: Any) -> None:
    """List the retained folders.

    Shows the pod, the size, when the pod was deleted, and when the folder is erased.
    """
    with node(socket) as afterlife:
        folders = afterlife.list_folders()
    rows = chosen(folders, Wanted(**filters), order, reverse=reverse)
    if output in {"json", "yaml"}:
        show_value([folder_value(row) for row in rows], output)
    elif output == "name":
        click.echo("".join(f"{row.volume_id}\n" for row in rows), nl=False)
    elif rows:
        click.echo(folder_table(rows, (row.volume_id for row in folders), wide=output == "wide"))
    else:
        click.echo("No folder is retained." if not folders else "No retained folder matches.", err=True)


@command.command("show", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@socket_option
@output_option()
def show_folder(volume_id: str, socket: str | None, output: str) -> None:
    """Show all details of one folder."""
    with node(socket) as afterlife:
        row = afterlife.show(volume_id)
    if output == "text":
        click.echo(details(row))
    else:
        show_value(folder_value(row), output)


@command.command("ls", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@click.argument("path", default="", metavar="[PATH]")
@socket_option
@output_option()
def list_files(volume_id: str, path: str, socket: str | None, output: str) -> None:
    """List the files in a folder, or below PATH in it. Symbolic links are shown and not followed."""
    with node(socket) as afterlife:
        files = afterlife.list_files(volume_id, os.fsencode(path))
        if output != "text":
            show_value([file_value(file) for file in files], output)
            return
        while batch := list(islice(files, FILES_AT_ONCE)):
            click.echo(file_table(batch))


@command.command("cat", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@click.argument("path")
@socket_option
def print_file(volume_id: str, path: str, socket: str | None) -> None:
    """Print the contents of a file, unchanged. Only plain files are read."""
    with node(socket) as afterlife, afterlife.opened_file(volume_id, os.fsencode(path)) as descriptor:
        copy_file_to_output(descriptor)


@command.command("download", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@click.argument("path", default="", metavar="[PATH]")
@socket_option
@click.option("-o", "file", metavar="FILE", help="The file to write, readable only by you; default: standard output.")
def download(volume_id: str, path: str, socket: str | None, file: str | None) -> None:
    """Download a folder, or a part of it, as a tar archive.

    Devices, fifos and sockets are left out, and named on stderr. FILE is created when the archive is complete, and
    replaces an existing file.
    """
    try:
        with node(socket) as afterlife, archive_output(file) as write:
            result = afterlife.download(volume_id, os.fsencode(path), write)
    except OSError as error:
        if file is None or isinstance(error, BrokenPipeError):
            raise
        click.echo(f"{file} cannot be written: {error.strerror}.", err=True)
        sys.exit(FAILED)
    print_problems(result.problems, result.problem_count)


@command.command("keep", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@click.option("--for", "seconds", type=DurationType(), required=True, help="How long from now, such as 24h.")
@dry_run_option
@socket_option
def keep(volume_id: str, seconds: float, socket: str | None, *, dry_run: bool) -> None:
    """Keep a folder for longer.

    The time counts from now, and never shortens the lifespan. It cannot exceed the admin's --max-afterlifespan, which
    counts from the deletion of the pod. A disk that fills up shortens this lifespan like all others.
    """
    with node(socket) as afterlife:
        result = afterlife.keep(volume_id, seconds, dry_run=dry_run)
    until = f"until {time_text(result.row.erased_at)} ({erased_text(result.row)})"
    if not result.changed:
        click.echo(f"{result.row.volume_id} is kept {until} already.")
    else:
        click.echo(f"{result.row.volume_id} {'would be' if dry_run else 'is'} kept {until}.")
    if result.row.lifespan_seconds - result.row.age_seconds - result.row.erased_in_seconds > 1:
        click.echo(
            "That is less than requested, because less of the disk is free than the headroom: see `usage`.", err=True
        )


@command.command("restore", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@click.option("--to", "folder", type=Path, required=True, metavar="DIR", help="The existing folder to restore into.")
@dry_run_option
@socket_option
def restore(volume_id: str, folder: Path, socket: str | None, *, dry_run: bool) -> None:
    """Copy a folder to DIR/<volume id>, which must not exist yet.

    Only root can read the copy. Setuid, setgid and security attributes are removed; devices, fifos and sockets are left
    out. Until the copy is complete its name is DIR/.orlop-unfinished-<volume id>. After an interruption, run the same
    command again: it starts from the beginning.
    """
    with node(socket) as afterlife:
        try:
            restored = restore_into(afterlife, volume_id, folder, dry_run=dry_run)
        except NodeUnreachable as error:
            raise NodeUnreachable(f"{error} Any copied files are in {folder}/.orlop-unfinished-….") from None
    place = folder / restored.name
    print_problems(restored.problems, restored.problem_count)
    if dry_run:
        click.echo(f"It would be restored to {place}.")
    elif restored.finished:
        click.echo(f"Restored to {place}: {content_text(restored.entries, restored.bytes)}.")
    else:
        copied = content_text(restored.entries, restored.bytes)
        partial = f"{place} has the files copied so far ({copied}): remove it, or repeat the command to start again"
        click.echo(f"Stopped: {partial if restored.entries else 'nothing was copied yet'}.", err=True)
        sys.exit(INTERRUPTED)


@command.command("erase", epilog=HELP_ON_CODES)
@click.argument("volume_id", metavar="ID")
@yes_option
@dry_run_option
@socket_option
def erase(volume_id: str, socket: str | None, *, yes: bool, dry_run: bool) -> None:
    """Erase a retained folder now. It cannot be undone. A living pod's folder is never erased."""
    with node(socket) as afterlife:
        if not yes and not dry_run:
            volume_id = _confirmed(afterlife.show(volume_id))
        row = afterlife.erase(volume_id, dry_run=dry_run).row
    size = f" ({size_text(row.bytes_used)})" if row.bytes_used is not None else ""
    click.echo(f"{row.volume_id}{size} {'would be' if dry_run else 'is being'} erased.")


def _confirmed(row: FolderRow) -> str:
    about = f"{size_text(row.bytes_used)}, deleted {span_text(row.age_seconds)} ago"
    confirm(f"Erase {row.volume_id} of {pod_text(row)}, {about}?", "Nothing was erased.")
    return row.volume_id


@command.command("usage", epilog=HELP_ON_CODES)
@socket_option
@output_option()
def usage(socket: str | None, output: str) -> None:
    """Show how much space retained folders use, and how full the disk is.

    Also shows by how much that shortens every lifespan, and which folder is erased next.
    """
    with node(socket) as afterlife:
        report = afterlife.usage()
    if output == "text":
        click.echo(usage_text(report))
    else:
        show_value(usage_value(report), output)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("afterlife"))  # ends the process with its exit code
