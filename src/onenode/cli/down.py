"""`orlop down`: stop an `orlop up`, and with `--erase` remove everything that it created.

Exit codes: 0 done, 1 failed or not confirmed, 2 wrong use, 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from onenode.processes.up_folder import NotEnded, erase, stop, why_not_erasable
from orlop.admin.up_state import (
    DEFAULT_STATE,
    Holder,
    SeveralRun,
    UpState,
    is_up_state,
    last_driver,
    those_running,
    unnamed_state,
)

FAILED: Final = 1
INTERRUPTED: Final = 130


@click.command("orlop down", context_settings={"max_content_width": 100, "help_option_names": ["-h", "--help"]})
@click.option(
    "--state",
    type=Path,
    metavar="DIR",
    help=f"State folder of the `orlop up`. Default: that of the only one running, else {DEFAULT_STATE}.",
)
@click.option(
    "--erase", "erasing", is_flag=True, help="Also unmount its volumes, and erase its objects and all data of its pods."
)
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
def command(state: Path | None, *, erasing: bool, yes: bool) -> None:
    """Stop an `orlop up`. Its objects and the data of its pods are kept, unless --erase is given."""
    if os.geteuid() != 0:
        raise click.UsageError("Only root can stop an `orlop up`. Try again as root.")
    try:
        state = state or _default_state(erasing=erasing).folder
    except SeveralRun as error:
        raise click.UsageError(str(error)) from None
    if not state.is_dir():
        click.echo(f"There is no folder {state}: nothing to stop.{those_running()}")
        return
    up = UpState(Path(os.path.realpath(state)))
    try:
        if erasing:
            _confirm(up, yes=yes)
        stopped = stop(up)
        click.echo(f"Stopped {_described(stopped)}." if stopped else f"Nothing runs in {state}.")
        if erasing:
            erase(up, click.echo)
            click.echo(f"Erased {state}.")
    except NotEnded as error:
        click.echo(str(error), err=True)
        sys.exit(FAILED)


def _default_state(*, erasing: bool) -> UpState:
    """Return the state to use if none is named: of the only one that runs, else the default.

    Raises `SeveralRun`. An erasure cannot be undone, so it is refused also if a stopped one could be meant.
    """
    chosen, default = unnamed_state(), UpState(DEFAULT_STATE)
    if erasing and chosen != default and is_up_state(default):
        raise SeveralRun([chosen, default])
    return chosen


def _described(stopped: Holder) -> str:
    number = "it" if stopped.process is None else f"process {stopped.process.number}"
    return f"{number}, which had run since {stopped.since}" if stopped.since else number


def _confirm(state: UpState, *, yes: bool) -> None:
    if objection := why_not_erasable(state):
        raise NotEnded(objection)
    if yes:
        return
    if not _is_terminal():
        raise click.UsageError("There is no terminal to ask for confirmation. To erase without being asked, add --yes.")
    if driver := last_driver(state):
        click.echo(
            f"Volumes at the driver {driver} are not deleted. To have them deleted, answer no, and delete their claims "
            "first."
        )
    try:
        if click.confirm(f"Erase {state.folder} with all objects and all data of its pods?"):
            return
        code = FAILED
    except click.Abort:
        code = INTERRUPTED
        click.echo(err=True)
    click.echo("Nothing was stopped, and nothing was erased.", err=True)
    sys.exit(code)


def _is_terminal() -> bool:
    return sys.stdin.isatty()


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name="orlop down")  # ends the process with its exit code
