"""`orlop drives …`: list drives, make them of disks and folders, and take them out of use.

Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar, cast, get_args

import click

from orlop.admin.drives.drive_change_rules import (
    DecideChange,
    cordon,
    remove,
    set_labels,
    set_tier,
    split_labels,
    uncordon,
)
from orlop.admin.drives.drive_changes import ChangeResult, OperatedDrives
from orlop.admin.drives.drive_list_rules import DriveFilter, DriveRow, chosen_drives, find_drive, totals_of
from orlop.admin.refusals import WrongUse
from orlop.cli.adopt import adopt_drives
from orlop.cli.drives_forget import forget_drives
from orlop.cli.drives_format import (
    drive_details,
    drive_table,
    drive_value,
    totals_table,
    totals_value,
)
from orlop.cli.drives_make import add_folder, discover, init
from orlop.cli.in_cluster import HELP_ON_CODES, ConnectedCluster, in_cluster, server_options
from orlop.cli.options import (
    CONTEXT_SETTINGS,
    FAILED,
    VerbFunction,
    VerbGroup,
    dry_run_option,
    output_option,
    program_name,
    with_options,
)
from orlop.cli.output import harmless, show
from orlop.kube.label_requirements import InvalidSelector
from orlop.kube.selectors import LabelSelector
from orlop.records.drive import Tier
from orlop.records.drive_record import DriveState

STATES: Final = (*(each.value for each in DriveState), "Unknown", "Cordoned")
Result = TypeVar("Result")


@click.group(
    "orlop drives",
    cls=VerbGroup,
    epilog=HELP_ON_CODES,
    context_settings=CONTEXT_SETTINGS,
)
def command() -> None:
    """Make, list and change drives: the disks and folders that volumes are placed on.

    DRIVE is a drive's name, the beginning of its name (at least 4 characters), or NODE/DEVICE.
    """


class SelectorType(click.ParamType[LabelSelector]):
    name = "selector"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> LabelSelector:
        try:
            return LabelSelector.parse(value)
        except InvalidSelector as error:
            self.fail(str(error), param, ctx)


def filter_options(function: VerbFunction) -> VerbFunction:
    options = (
        click.option("--node", "nodes", multiple=True, help="Only drives of this node; may be repeated."),
        click.option(
            "--status",
            "states",
            multiple=True,
            type=click.Choice(STATES, case_sensitive=False),
            help="Only drives in this state; may be repeated.",
        ),
        click.option(
            "--tier", "tiers", multiple=True, type=click.Choice(get_args(Tier)), help="Only drives of this access tier."
        ),
        click.option(
            "-l", "--selector", type=SelectorType(), default="", help="Only drives whose labels match, as in kubectl."
        ),
    )
    return with_options(function, *options)


@command.command("list", epilog=HELP_ON_CODES)
@filter_options
@output_option("wide", "name")
@server_options
def list_drives(output: str, **filters: Any) -> None:
    """List the drives of the cluster, with what is free on each."""

    async def read(cluster: ConnectedCluster) -> tuple[Sequence[DriveRow], Any]:
        return await OperatedDrives(cluster.client).rows(), cluster.now

    rows, now = in_cluster(read)
    chosen = chosen_drives(rows, DriveFilter(**filters))
    if output in {"json", "yaml"}:
        show([drive_value(row) for row in chosen], output)
    elif output == "name":
        click.echo("".join(f"{row.name}\n" for row in chosen), nl=False)
    elif chosen:
        click.echo(drive_table(chosen, (row.name for row in rows), now, wide=output == "wide"))
    elif rows:
        click.echo("No drive matches.", err=True)
    else:
        click.echo("There are no drives: `orlop drives discover` shows the disks that can become one.", err=True)


@command.command("info", epilog=HELP_ON_CODES)
@click.argument("drive", required=False, metavar="[DRIVE]")
@output_option()
@server_options
def info(drive: str | None, output: str) -> None:
    """Show all details of one drive; without DRIVE, the totals of each node."""

    async def read(cluster: ConnectedCluster) -> tuple[Sequence[DriveRow], DriveRow | None, Any]:
        rows = await OperatedDrives(cluster.client).rows()
        return rows, find_drive(rows, drive) if drive else None, cluster.now

    rows, row, now = in_cluster(read)
    if row is not None:
        click.echo(drive_details(row, now)) if output == "text" else show(drive_value(row), output)
        return
    totals = totals_of(rows)
    click.echo(totals_table(totals)) if output == "text" else show([totals_value(each) for each in totals], output)


# ---- changes ---------------------------------------------------------------------------------------------------------


def many_options(function: VerbFunction) -> VerbFunction:
    """Add the options of a change that may concern many drives."""
    options = (
        click.option("--all", "everything", is_flag=True, help="All drives, or all of the nodes named by --node."),
        click.option("--node", "nodes", multiple=True, help="With --all: only drives of this node; may be repeated."),
    )
    return dry_run_option(server_options(with_options(function, *options)))


@command.command("cordon", epilog=HELP_ON_CODES)
@click.argument("drives", nargs=-1, metavar="DRIVE...")
@many_options
def cordon_drives(drives: Sequence[str], **options: Any) -> None:
    """Place no new volumes on drives. The volumes on them stay usable."""
    change_drives(drives, lambda _row, _volumes: cordon, **options)


@command.command("uncordon", epilog=HELP_ON_CODES)
@click.argument("drives", nargs=-1, metavar="DRIVE...")
@many_options
def uncordon_drives(drives: Sequence[str], **options: Any) -> None:
    """Place new volumes on cordoned drives again."""
    change_drives(drives, lambda _row, _volumes: uncordon, **options)


@command.command("tier", epilog=HELP_ON_CODES)
@click.argument("tier", type=click.Choice(get_args(Tier)))
@click.argument("drives", nargs=-1, metavar="DRIVE...")
@many_options
def tier_drives(tier: str, drives: Sequence[str], **options: Any) -> None:
    """Set the access tier of drives, which a StorageClass asks for with orlop.dev/access-tier.

    Existing volumes stay where they are.
    """
    decide = set_tier(cast("Tier", tier))
    change_drives(drives, lambda _row, _volumes: decide, **options)


@command.command("label", epilog=HELP_ON_CODES)
@click.argument("words", nargs=-1, metavar="DRIVE... KEY=VALUE... KEY-...")
@click.option("--overwrite", is_flag=True, help="Replace the value of a label that a drive has already.")
@many_options
def label_drives(words: Sequence[str], *, overwrite: bool, **options: Any) -> None:
    """Set labels of drives with KEY=VALUE, remove them with KEY-.

    A StorageClass chooses drives by labels with orlop.dev/drive-selector.
    """
    try:
        names, change = split_labels(words)
    except WrongUse as error:
        raise click.UsageError(str(error)) from None
    if not change.values and not change.removed:
        raise click.UsageError("Name a label: KEY=VALUE sets it, KEY- removes it.")
    decide = set_labels(replace(change, overwrite=overwrite))
    change_drives(names, lambda _row, _volumes: decide, **options)


@command.command("remove", epilog=HELP_ON_CODES)
@click.argument("drives", nargs=-1, required=True, metavar="DRIVE...")
@dry_run_option
@server_options
def remove_drives(drives: Sequence[str], *, dry_run: bool) -> None:
    """Take empty drives out of use. A drive with a volume is refused.

    The node releases the disk or folder. The file system stays on the disk, which can become a drive again with
    `orlop drives init --force`. A drive whose disk is gone for good is given up with `orlop drives forget`.
    """
    change_drives(drives, lambda _row, volumes: remove(volumes), dry_run=dry_run, with_volumes=True)


def change_drives(
    words: Sequence[str],
    decision: Callable[[DriveRow, Sequence[str]], DecideChange],
    *,
    everything: bool = False,
    nodes: Sequence[str] = (),
    dry_run: bool = False,
    with_volumes: bool = False,
) -> None:
    """Change drives. `decision` gets, if `with_volumes`, the names of the Volume objects on the drive."""
    if bool(words) == everything:
        raise click.UsageError("Name the drives, or use --all, but not both.")
    if nodes and not everything:
        raise click.UsageError("--node restricts --all: add --all, or leave --node out.")

    async def change(cluster: ConnectedCluster) -> list[ChangeResult]:
        drives = OperatedDrives(cluster.client)
        rows = await drives.rows()
        named = {row.name: row for row in (find_drive(rows, word) for word in words)}
        chosen = list(named.values()) or chosen_drives(rows, DriveFilter(nodes=tuple(nodes)))
        return [
            await drives.change(
                row, decision(row, await drives.volumes_on(row.name) if with_volumes else ()), dry_run=dry_run
            )
            for row in chosen
        ]

    _print_changes(in_cluster(change), dry_run=dry_run)


def _print_changes(results: Sequence[ChangeResult], *, dry_run: bool) -> None:
    """Print one line for each drive. Exit with 1 if a change was refused."""
    for result in results:
        unchanged = " (dry run: nothing was changed)" if dry_run and result.changed else ""
        click.echo(harmless(f"The drive {result.drive.title} {result.sentence}{unchanged}."), err=result.refused)
    if not results:
        click.echo("There is no such drive.", err=True)
    if any(result.refused for result in results):
        sys.exit(FAILED)


for each in (discover, init, add_folder, adopt_drives, forget_drives):
    command.add_command(each)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("drives"))  # ends the process with its exit code
