"""`orlop volumes …`: list the volumes on drives, and delete those that no claim needs any more.

Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from orlop.admin.drives.drive_changes import OperatedDrives
from orlop.admin.drives.drive_list_rules import find_drive
from orlop.admin.drives.volume_cleaning import CleaningPlan, CleaningResult, OperatedVolumes
from orlop.admin.drives.volume_cleaning_rules import KeepVolume
from orlop.admin.drives.volume_list_rules import STATES, VolumeFilter, VolumeRow, find_volume
from orlop.cli.in_cluster import HELP_ON_CODES, ConnectedCluster, in_cluster, server_options
from orlop.cli.options import (
    CONTEXT_SETTINGS,
    FAILED,
    VerbFunction,
    VerbGroup,
    confirm,
    dry_run_option,
    output_option,
    program_name,
    with_options,
    yes_option,
)
from orlop.cli.output import harmless, show
from orlop.cli.tables import counted
from orlop.cli.volumes_format import cleaning_table, plan_value, volume_details, volume_table, volume_value

PATTERN: Final = "* and ? match anything"


@click.group(
    "orlop volumes",
    cls=VerbGroup,
    epilog=HELP_ON_CODES,
    context_settings=CONTEXT_SETTINGS,
)
def command() -> None:
    """List the volumes on drives, and delete those that no claim needs any more.

    VOLUME is a volume's name or its beginning, the name of its PersistentVolume, or NAMESPACE/CLAIM.
    """


@dataclass(frozen=True, slots=True)
class FilterWords:
    """A filter as it was typed: drives are not resolved yet."""

    nodes: tuple[str, ...]
    drives: tuple[str, ...]
    namespace: str
    claim: str
    pod: str
    states: tuple[str, ...] = ()

    async def resolved(self, cluster: ConnectedCluster) -> VolumeFilter:
        rows = await OperatedDrives(cluster.client).rows() if self.drives else []
        drives = tuple(find_drive(rows, word).name for word in self.drives)
        return VolumeFilter(self.nodes, drives, self.namespace, self.claim, self.pod, self.states)


def filter_options(function: VerbFunction) -> VerbFunction:
    options = (
        click.option("--node", "nodes", multiple=True, help="Only volumes on this node; may be repeated."),
        click.option("--drive", "drives", multiple=True, help="Only volumes on this drive; may be repeated."),
        click.option("-n", "--namespace", default="", help="Only volumes of claims in this namespace; default: all."),
        click.option(
            "-A",
            "--all-namespaces",
            is_flag=True,
            expose_value=False,
            help="Volumes of claims in all namespaces; this is the default.",
        ),
        click.option("--claim", default="", metavar="[NAMESPACE/]NAME", help=f"Only of this claim; {PATTERN}."),
        click.option("--pod", default="", metavar="[NAMESPACE/]NAME", help=f"Only of this pod; {PATTERN}."),
    )
    return with_options(function, *options)


@command.command("list", epilog=HELP_ON_CODES)
@filter_options
@click.option(
    "--status",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only volumes in this state; may be repeated.",
)
@output_option("wide", "name")
@server_options
def list_volumes(output: str, **words: Any) -> None:
    """List the volumes, with their drive, their claim and the pods that use them."""

    async def read(cluster: ConnectedCluster) -> tuple[Sequence[VolumeRow], VolumeFilter, Any, int]:
        volume_filter = await FilterWords(**words).resolved(cluster)
        drives = await OperatedDrives(cluster.client).rows()
        lost = sum(len(each.status.unrecorded_volumes) for each in drives)
        return await OperatedVolumes(cluster.client, cluster.clock).rows(), volume_filter, cluster.now, lost

    rows, volume_filter, now, lost = in_cluster(read)
    chosen = [row for row in rows if volume_filter.includes(row)]
    if output in {"json", "yaml"}:
        show([volume_value(row) for row in chosen], output)
    elif output == "name":
        click.echo("".join(f"{row.name}\n" for row in chosen), nl=False)
    elif chosen:
        click.echo(volume_table(chosen, (row.name for row in rows), now, wide=output == "wide"))
    else:
        click.echo("No volume matches." if rows or lost else "There are no volumes on drives.", err=True)
    if lost and output in {"text", "wide"}:
        loss, pronoun = ("has lost its object", "it") if lost == 1 else ("have lost their objects", "them")
        hint = f"`orlop adopt --dry-run` shows {pronoun}."
        click.echo(f"{counted(lost, 'volume')} on drives {loss}: {hint}", err=True)


@command.command("show", epilog=HELP_ON_CODES)
@click.argument("volume")
@output_option()
@server_options
def show_volume(volume: str, output: str) -> None:
    """Show all details of one volume."""

    async def read(cluster: ConnectedCluster) -> tuple[VolumeRow, Any]:
        return find_volume(await OperatedVolumes(cluster.client, cluster.clock).rows(), volume), cluster.now

    row, now = in_cluster(read)
    click.echo(volume_details(row, now)) if output == "text" else show(volume_value(row), output)


@command.command("clean", epilog=HELP_ON_CODES)
@click.argument("volumes", nargs=-1, metavar="[VOLUME...]")
@filter_options
@yes_option
@dry_run_option
@output_option()
@server_options
def clean(volumes: Sequence[str], output: str, *, yes: bool, dry_run: bool, **words: Any) -> None:
    """Delete volumes that no claim needs any more. Their data is erased.

    Such a volume has no PersistentVolume, or one that is Released with the policy Retain; no claim names it, no pod
    uses it, no provisioner is creating it, and it is older than 10 minutes. Without VOLUME: all such volumes.
    """

    async def plan(cluster: ConnectedCluster) -> list[CleaningPlan]:
        volume_filter = await FilterWords(**words).resolved(cluster)
        plans = await OperatedVolumes(cluster.client, cluster.clock).plans()
        named = {find_volume([each.row for each in plans], word).name for word in volumes}
        return [each for each in plans if volume_filter.includes(each.row) and (not named or each.row.name in named)]

    plans = in_cluster(plan)
    unneeded = [each for each in plans if not each.is_kept]
    if output != "text":
        show([plan_value(each) for each in plans], output)
    else:
        _print_plan(plans, unneeded, is_named=bool(volumes))
    if dry_run or not unneeded:
        sys.exit(FAILED if volumes and len(unneeded) < len(plans) else 0)
    if not yes:
        what = "this volume" if len(unneeded) == 1 else f"these {len(unneeded)} volumes"
        confirm(f"The data of {what} will be erased. Delete?", "Nothing was deleted.")
    agreed = [each.row for each in unneeded]
    results = in_cluster(lambda cluster: OperatedVolumes(cluster.client, cluster.clock).clean(agreed))
    _print_results(results, failed=bool(volumes) and len(unneeded) < len(plans))


def _print_plan(plans: Sequence[CleaningPlan], unneeded: Sequence[CleaningPlan], *, is_named: bool) -> None:
    for each in plans if is_named else ():
        if isinstance(each.decision, KeepVolume):
            click.echo(harmless(f"{each.row.name} is kept: {each.decision.why}."), err=True)
    if unneeded:
        click.echo(cleaning_table(unneeded))
    elif not is_named:
        click.echo("Every volume is still needed: nothing to delete.", err=True)


def _print_results(results: Sequence[CleaningResult], *, failed: bool) -> None:
    for each in results:
        if each.why:
            click.echo(harmless(f"{each.row.name} is kept: {each.why}."), err=True)
        else:
            click.echo(f"{each.row.name} is being deleted.", err=True)
    if failed or any(each.why for each in results):
        sys.exit(FAILED)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("volumes"))  # ends the process with its exit code
