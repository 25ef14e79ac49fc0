"""`orlop static …`: list static volumes and their disks, release, forget and hand them back.

Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial

import click

from orlop.admin.static.static_changes import OperatedStaticVolumes, StaticVolumes
from orlop.admin.static.static_list_rules import STATES, StaticRow, find_row
from orlop.admin.static.static_release_rules import ForgetPlan, HandBackPlan, ReleasePlan
from orlop.cli.in_cluster import HELP_ON_CODES, ConnectedCluster, in_cluster, server_options
from orlop.cli.options import (
    CONTEXT_SETTINGS,
    FAILED,
    VerbGroup,
    confirm,
    dry_run_option,
    output_option,
    program_name,
    yes_option,
)
from orlop.cli.output import harmless, show
from orlop.cli.static_format import (
    plan_value,
    problems_table,
    release_value,
    static_details,
    static_table,
    static_value,
)
from orlop.cli.tables import counted
from orlop.static_pv.static_volume_rules import AS_IS, WIPE


@click.group("orlop static", cls=VerbGroup, epilog=HELP_ON_CODES, context_settings=CONTEXT_SETTINGS)
def command() -> None:
    """List static volumes and the disks they are on, and decide what the cluster may not decide by itself.

    VOLUME is the name of a PersistentVolume or its beginning (at least 4 characters), NODE/DISK, or NAMESPACE/CLAIM.
    """


def _read() -> StaticVolumes:
    return in_cluster(lambda cluster: OperatedStaticVolumes(cluster.client).read())


@command.command("list", epilog=HELP_ON_CODES)
@click.option("--node", "nodes", multiple=True, help="Only of this node; may be repeated.")
@click.option("--class", "classes", multiple=True, help="Only of this StorageClass; may be repeated.")
@click.option(
    "--status",
    "states",
    multiple=True,
    type=click.Choice(STATES, case_sensitive=False),
    help="Only in this state; may be repeated.",
)
@output_option("wide", "name")
@server_options
def list_static(nodes: Sequence[str], classes: Sequence[str], states: Sequence[str], output: str) -> None:
    """List the disks of the nodes, with their volumes and how far a wipe is."""
    seen = _read()
    chosen = [
        row
        for row in seen.rows
        if (not nodes or row.node in nodes)
        and (not classes or row.storage_class in classes)
        and (not states or row.state in states)
    ]
    if output in {"json", "yaml"}:
        show([static_value(row) for row in chosen], output)
    elif output == "name":
        click.echo("".join(f"{row.name}\n" for row in chosen), nl=False)
    elif chosen:
        click.echo(static_table(chosen, wide=output == "wide"))
    else:
        click.echo("No disk matches." if seen.rows else "No node lists a disk.", err=True)
    if output in {"text", "wide"} and (problems := problems_table(seen, nodes)):
        click.echo(f"\nThese entries are not offered:\n{problems}", err=True)


@command.command("show", epilog=HELP_ON_CODES)
@click.argument("volume")
@output_option()
@server_options
def show_static(volume: str, output: str) -> None:
    """Show all details of one disk and its volume."""
    row = in_cluster(lambda cluster: _find(OperatedStaticVolumes(cluster.client), volume))
    click.echo(static_details(row)) if output == "text" else show(static_value(row), output)


async def _find(operated: OperatedStaticVolumes, word: str) -> StaticRow:
    return find_row((await operated.read()).rows, word)


# ---- release ---------------------------------------------------------------------------------------------------------


@command.command("release", epilog=HELP_ON_CODES)
@click.argument("volumes", nargs=-1, required=True, metavar="VOLUME...")
@click.option("--wipe", "how", flag_value=WIPE, help="Have the disk wiped, and offered again.")
@click.option("--as-is", "how", flag_value=AS_IS, help="Offer the disk again with the data that are on it.")
@yes_option
@dry_run_option
@output_option()
@server_options
def release(volumes: Sequence[str], how: str | None, output: str, *, yes: bool, dry_run: bool) -> None:
    """Offer the disks of volumes again that no claim has any more, such as those with the policy Retain.

    The PersistentVolume is deleted, and the master makes another one of the disk. With --as-is, the next claim can read
    what is on it. With --wipe, the data are destroyed. A wipe that fails again and again is given up by --as-is.
    """
    if how is None:
        raise click.UsageError("Name one of --wipe and --as-is.")
    plans = in_cluster(lambda cluster: OperatedStaticVolumes(cluster.client).release_plans(volumes, how))
    _print_releases(plans, output)
    if any(each.why_not for each in plans):
        sys.exit(FAILED)
    if dry_run:
        _note_dry_run(output)
        return
    if not yes:
        confirm(_question(plans, how), "Nothing was changed.")
    for plan in plans:
        name = plan.row.name
        in_cluster(partial(_release, name=name, how=how))
        click.echo(harmless(f"{name} is released: its disk {_fate(how)}."), err=output != "text")


async def _release(cluster: ConnectedCluster, *, name: str, how: str) -> None:
    await OperatedStaticVolumes(cluster.client).release(name, how)


def _fate(how: str) -> str:
    return "is wiped, and offered again" if how == WIPE else "is offered again as it is"


def _question(plans: Sequence[ReleasePlan], how: str) -> str:
    what = f"the disk {plans[0].row.node}/{plans[0].row.entry}" if len(plans) == 1 else f"{len(plans)} disks"
    if how == WIPE:
        return f"All data of {what} will be destroyed. Wipe?"
    return f"The next claim can read the data of {what}. Release as it is?"


def _print_releases(plans: Sequence[ReleasePlan], output: str) -> None:
    if output != "text":
        show([release_value(each) for each in plans], output)
        return
    refused = [each for each in plans if each.why_not]
    for each in refused:
        click.echo(harmless(f"{each.row.name} is not released: {each.why_not}."), err=True)
    if rows := [each.row for each in plans if not each.why_not]:
        click.echo(static_table(rows, wide=False))


# ---- nodes -----------------------------------------------------------------------------------------------------------


@command.command("forget", epilog=HELP_ON_CODES)
@click.argument("node")
@yes_option
@dry_run_option
@output_option()
@server_options
def forget(node: str, output: str, *, yes: bool, dry_run: bool) -> None:
    """Give up the static volumes of a node that was deleted from the cluster and does not come back.

    Their PersistentVolumes are deleted; one that a claim has goes when the claim is deleted. Nothing is wiped: if the
    disks ever come back under the same node, they are offered with the data that are on them.
    """
    plan = in_cluster(lambda cluster: OperatedStaticVolumes(cluster.client).forget_plan(node))
    _print_plans([plan], output, "is not forgotten")
    if dry_run:
        _note_dry_run(output)
        return
    if not yes:
        confirm(f"Give up the data of {counted(len(plan.volumes), 'disk')} of {node}?", "Nothing was changed.")
    in_cluster(lambda cluster: OperatedStaticVolumes(cluster.client).forget(node))
    click.echo(harmless(f"The static volumes of {node} are given up."), err=output != "text")
    if plan.claims:
        click.echo("These claims still have one. To delete them, so that pods get new volumes:", err=True)
        commands = [f"  kubectl -n {namespace} delete pvc {name}" for namespace, _, name in _parted(plan.claims)]
        click.echo("\n".join(map(harmless, commands)), err=True)


def _parted(claims: Sequence[str]) -> list[tuple[str, str, str]]:
    return [claim.partition("/") for claim in claims]


@command.command("hand-back", epilog=HELP_ON_CODES)
@click.argument("nodes", nargs=-1, metavar="[NODE...]")
@yes_option
@dry_run_option
@output_option()
@server_options
def hand_back(nodes: Sequence[str], output: str, *, yes: bool, dry_run: bool) -> None:
    """Remove Orlop's finalizers from static volumes, before another product takes them over.

    Stop the workers first. Without NODE: of all nodes. The volumes stay as they are; a node whose disks are being wiped
    is refused. The ProvisionerStatus of the node is deleted.
    """
    plans = in_cluster(lambda cluster: OperatedStaticVolumes(cluster.client).hand_back_plans(nodes))
    _print_plans(plans, output, "is not handed back")
    if not plans:
        click.echo("There is no static volume: nothing to hand back.", err=True)
        return
    if dry_run:
        _note_dry_run(output)
        return
    count = sum(len(each.volumes) for each in plans)
    if not yes:
        what = f"{counted(count, 'volume')} of {counted(len(plans), 'node')}"
        confirm(f"Hand back {what}? Nobody guards their disks until another product does.", "Nothing was changed.")
    for plan in plans:
        in_cluster(partial(_hand_back, node=plan.node))
    click.echo(f"{counted(count, 'volume')} handed back.", err=output != "text")


async def _hand_back(cluster: ConnectedCluster, *, node: str) -> int:
    return await OperatedStaticVolumes(cluster.client).hand_back(node)


def _note_dry_run(output: str) -> None:
    click.echo("Dry run: nothing was changed.", err=output != "text")


def _print_plans(plans: Sequence[ForgetPlan | HandBackPlan], output: str, refused: str) -> None:
    """Print what would be done; end the process if anything of it is refused."""
    if output != "text":
        show([plan_value(each) for each in plans], output)
    for plan in plans:
        if plan.why_not:
            click.echo(harmless(f"{plan.node} {refused}: {plan.why_not}."), err=True)
        elif output == "text" and plan.volumes:
            click.echo(static_table(plan.volumes, wide=False))
    if any(plan.why_not for plan in plans):
        sys.exit(FAILED)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("static"))  # ends the process with its exit code
