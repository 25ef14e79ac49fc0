"""`orlop adopt` and `orlop drives adopt`: make lost objects of drives and volumes again, also after a disk was moved.

Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import click

from orlop.admin.drives.adoption import Adoption, AdoptionResult, AdoptionTerms
from orlop.admin.drives.adoption_rules import PlannedAdoption
from orlop.admin.drives.drive_adoption import DriveAdoption, DriveAdoptionPlan
from orlop.admin.drives.drive_requests import NodeReport
from orlop.admin.drives.moved_drive_rules import MovedDrive
from orlop.cli.drives_format import report_value
from orlop.cli.drives_make import print_reports, print_result, wait_option
from orlop.cli.in_cluster import HELP_ON_CODES, ConnectedCluster, in_cluster, server_options
from orlop.cli.options import CONTEXT_SETTINGS, FAILED, confirm, dry_run_option, output_option, program_name, yes_option
from orlop.cli.output import harmless, show
from orlop.cli.tables import escaped_table, size_text
from orlop.kube.objects import ObjectName

NOTHING_DONE = "Nothing was changed."


# ---- drives ----------------------------------------------------------------------------------------------------------


@click.command("adopt", epilog=HELP_ON_CODES)
@click.argument("drives", nargs=-1, metavar="[DRIVE...]")
@click.option("--node", default="", help="Only the drives of this node; default: of all nodes.")
@yes_option
@dry_run_option
@wait_option
@output_option()
@server_options
def adopt_drives(drives: Sequence[str], node: str, seconds: float, output: str, *, yes: bool, dry_run: bool) -> None:
    """Take over the drives that a node has without an object, such as after the loss of the cluster.

    A disk that was moved from another node is taken over too, once that node reports its drive as Lost or is no node of
    the cluster any more, and no pod uses its volumes. A DRIVE that cannot be seen on the node, such as a folder on a
    moved disk, is named together with --node. `orlop adopt` then brings its volumes back.

    If the record of a disk (the file drive.json) is damaged, it is written again.
    """
    plan = in_cluster(lambda cluster: _drive_adoption(cluster).plan(node, drives))
    reports = _carry_out(plan, seconds, yes=yes, dry_run=dry_run, is_result=output == "text")
    if output != "text":
        show({"moved": [_moved_value(each) for each in plan.moved], "nodes": report_value(reports)}, output)
    if _is_failed(plan, reports):
        sys.exit(FAILED)


def _drive_adoption(cluster: ConnectedCluster) -> DriveAdoption:
    return DriveAdoption(cluster.client, cluster.clock, cluster.random)


def _carry_out(
    plan: DriveAdoptionPlan, seconds: float, *, yes: bool, dry_run: bool, is_result: bool
) -> Sequence[NodeReport]:
    """Adopt drives, and print what becomes of each: on stderr, unless that is the result of the command."""
    for moved in plan.moved:
        click.echo(harmless(_moved_sentence(moved)), err=bool(moved.why_not) or not is_result)
    if plan.movable and not dry_run and not yes:
        question = "The Drive and Volume objects of former nodes are removed and made again. Their data stay. Continue?"
        confirm(question, NOTHING_DONE)
    if plan.left_out:
        click.echo(harmless(f"Left out, because they are not Ready: {', '.join(plan.left_out)}."), err=True)
    click.echo(harmless(f"Waiting for {', '.join(plan.nodes)} …"), err=True)
    report = partial(print_result, is_error=not is_result)
    reports = in_cluster(lambda cluster: _drive_adoption(cluster).carry_out(plan, seconds, report, dry_run=dry_run))
    print_reports(reports, is_error=not is_result)
    return reports


def _is_failed(plan: DriveAdoptionPlan, reports: Sequence[NodeReport]) -> bool:
    return any(each.failed for each in reports) or any(each.why_not for each in plan.moved)


def _moved_sentence(moved: MovedDrive) -> str:
    where = f"The drive {moved.drive.title} is now on the node {moved.node}"
    return f"{where}, and is not taken over: {moved.why_not}." if moved.why_not else f"{where}."


def _moved_value(moved: MovedDrive) -> dict[str, Any]:
    return {
        "drive": moved.drive.name,
        "formerNode": moved.drive.node,
        "node": moved.node,
        "whyNot": moved.why_not or None,
    }


# ---- drives and volumes ----------------------------------------------------------------------------------------------


class ClaimName(click.ParamType[ObjectName]):
    name = "claim"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ObjectName:
        try:
            parsed = ObjectName.parse(value)
        except ValueError as error:
            self.fail(str(error), param, ctx)
        if parsed.namespace is None:
            self.fail(f"{value!r} lacks its namespace: write NAMESPACE/NAME", param, ctx)
        return parsed


@click.command(
    "orlop adopt",
    epilog=HELP_ON_CODES,
    context_settings=CONTEXT_SETTINGS,
)
@click.argument("volumes", nargs=-1, metavar="[VOLUME...]")
@click.option("--node", default="", help="Take over only the drives of this node; default: of all nodes.")
@click.option("--volumes-only", is_flag=True, help="Take over no drives: only make the objects of volumes.")
@click.option("--class", "class_name", default=None, help="StorageClass of volumes whose claim does not exist.")
@click.option(
    "--claim", type=ClaimName(), default=None, metavar="NAMESPACE/NAME", help="Claim of the one VOLUME that is named."
)
@yes_option
@dry_run_option
@wait_option
@output_option()
@server_options
def command(volumes: Sequence[str], seconds: float, output: str, *, yes: bool, dry_run: bool, **options: Any) -> None:
    """Bring drives and their volumes back, after the loss of a cluster or the move of a disk.

    First `orlop drives adopt`. Then each volume on a drive that no Volume object describes gets one, and a
    PersistentVolume of its former name with the policy Retain. A claim that lost this PersistentVolume is bound to it
    again; for any other it is reserved by the claim's name. PersistentVolumes of a moved disk are replaced under their
    names, only while no pod uses them. Nothing on the drives is changed.
    """
    terms = AdoptionTerms(options["class_name"], options["claim"], tuple(volumes))
    if terms.claim is not None and len(volumes) != 1:
        raise click.UsageError("--claim applies to one volume: name exactly one VOLUME.")
    failed = False
    if not options["volumes_only"]:
        drives = in_cluster(lambda cluster: _drive_adoption(cluster).plan(options["node"], ()))
        reports = _carry_out(drives, seconds, yes=yes, dry_run=dry_run, is_result=False)
        failed = _is_failed(drives, reports)
    plans = in_cluster(lambda cluster: Adoption(cluster.client, cluster.clock, terms).plans())
    if output != "text":
        show([_plan_value(each) for each in plans], output)
    else:
        _print_plans(plans)
    if not dry_run and plans:
        failed = not _adopt_volumes(plans, terms, seconds, yes=yes) or failed
    if failed or any(each.why_not for each in plans):
        sys.exit(FAILED)


def _print_plans(plans: Sequence[PlannedAdoption]) -> None:
    if not plans:
        click.echo("No volume lacks an object.", err=True)
        return
    head = ("VOLUME", "NODE", "DEVICE", "SIZE", "OBJECT", "PERSISTENT VOLUME", "WHAT")
    click.echo(escaped_table(head, [_plan_cells(plan) for plan in plans]))


def _plan_cells(plan: PlannedAdoption) -> tuple[str, ...]:
    drive = plan.facts.drive
    where = (plan.facts.volume_id, drive.node, drive.place, size_text(_bytes(plan)))
    return (*where, plan.volume, plan.persistent_volume, f"no: {plan.why_not}" if plan.why_not else plan.sentence)


def _bytes(plan: PlannedAdoption) -> int:
    if plan.facts.unrecorded is not None:
        return plan.facts.unrecorded.bytes
    return plan.facts.row.spec.bytes if plan.facts.row is not None else 0


def _plan_value(plan: PlannedAdoption) -> dict[str, Any]:
    claim = plan.facts.terms.claim_name
    return {
        "volume": plan.facts.volume_id,
        "drive": plan.facts.drive.name,
        "node": plan.facts.drive.node,
        "bytes": _bytes(plan),
        "claim": str(claim) if claim is not None else None,
        "volumeObject": plan.volume,
        "persistentVolume": plan.persistent_volume,
        "what": plan.sentence or None,
        "whyNot": plan.why_not or None,
    }


def _adopt_volumes(plans: Sequence[PlannedAdoption], terms: AdoptionTerms, seconds: float, *, yes: bool) -> bool:
    possible = [plan for plan in plans if not plan.why_not]
    if not possible:
        return False
    if not yes:
        what = "this volume" if len(possible) == 1 else f"these {len(possible)} volumes"
        confirm(f"Make the objects of {what}?", NOTHING_DONE)

    async def work(cluster: ConnectedCluster) -> bool:
        return await Adoption(cluster.client, cluster.clock, terms).adopt(possible, seconds, _print_adoption)

    return in_cluster(work)


def _print_adoption(result: AdoptionResult) -> None:
    word = "failed: " if result.failed else ""
    click.echo(harmless(f"{result.volume_id}: {word}{result.sentence}"), err=True)


def main(arguments: Sequence[str]) -> int:
    command.main(args=list(arguments), prog_name=program_name("adopt"))  # ends the process with its exit code
