"""`orlop down`: stops what `orlop up` runs, and with `--erase` removes every trace of it.

Exit codes: 0 done, 1 it failed, or was not wanted after all, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from onenode.processes.up_folder import NotEnded, erase, stop, why_not_erasable
from orlop.admin.up_state import DEFAULT_STATE, Holder, SeveralRun, UpState, is_up_state, unnamed_state

FAILED: Final = 1
INTERRUPTED: Final = 130


@click.command("orlop down", context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=Path,
    metavar="DIR",
    help=f"The folder that holds it. Not given: of the only one that runs, else {DEFAULT_STATE}.",
)
@click.option("--erase", "erasing", is_flag=True, help="Unmount everything, and remove every trace of it.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def command(state: Path | None, *, erasing: bool, yes: bool) -> None:
    """Stop what `orlop up` runs. What pods have written stays, unless --erase is given."""
    if os.geteuid() != 0:
        raise click.UsageError("Only root can stop it: try again as root.")
    try:
        state = state or _unnamed(erasing=erasing).folder
    except SeveralRun as error:
        raise click.UsageError(str(error)) from None
    if not state.is_dir():
        click.echo(f"There is no {state}: nothing to stop.")
        return
    found = UpState(Path(os.path.realpath(state)))
    try:
        if erasing:
            _confirm(found, yes=yes)
        stopped = stop(found)
        click.echo(f"Stopped {_told(stopped)}." if stopped else f"Nothing runs in {state}.")
        if erasing:
            erase(found, click.echo)
            click.echo(f"Erased {state}.")
    except NotEnded as error:
        click.echo(str(error), err=True)
        sys.exit(FAILED)


def _unnamed(*, erasing: bool) -> UpState:
    """The one that runs; never one of two of which either could be meant to be erased."""
    chosen, default = unnamed_state(), UpState(DEFAULT_STATE)
    if erasing and chosen != default and is_up_state(default):
        raise SeveralRun([chosen, default])
    return chosen


def _told(stopped: Holder) -> str:
    number = "it" if stopped.process is None else f"process {stopped.process.number}"
    return f"{number}, which had run since {stopped.since}" if stopped.since else number


def _confirm(state: UpState, *, yes: bool) -> None:
    if objection := why_not_erasable(state):
        raise NotEnded(objection)
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("Nobody can be asked whether to erase it: repeat the command with --yes.")
    try:
        if click.confirm(f"Erase {state.folder} with all objects, and all that pods have written?"):
            return
        code = FAILED
    except click.Abort:
        code = INTERRUPTED
        click.echo(err=True)
    click.echo("Nothing was erased, and nothing stopped.", err=True)
    sys.exit(code)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name="orlop down")  # ends the process with its exit code
