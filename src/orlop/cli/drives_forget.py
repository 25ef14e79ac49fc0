"""`orlop drives forget`: give up drives whose disks are gone for good.

Exit codes: 0 done, 1 failed or refused, 2 wrong use, 3 no such object, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import click

from orlop.admin.drives.drive_forgetting import DriveForgetting
from orlop.admin.drives.forgotten_drive_rules import ForgottenDrive, LostVolume
from orlop.cli.in_cluster import HELP_ON_CODES, in_cluster, server_options
from orlop.cli.options import FAILED, confirm, dry_run_option, output_option, yes_option
from orlop.cli.output import harmless, show
from orlop.cli.tables import escaped_table, size_text

HEAD = ("VOLUME", "SIZE", "CLAIM", "PERSISTENT VOLUME", "PODS")


@click.command("forget", epilog=HELP_ON_CODES)
@click.argument("drives", nargs=-1, required=True, metavar="DRIVE...")
@click.option("--force", is_flag=True, help="Forget also a drive that is not Lost.")
@yes_option
@dry_run_option
@output_option()
@server_options
def forget_drives(drives: Sequence[str], output: str, *, force: bool, yes: bool, dry_run: bool) -> None:
    """Give up drives whose disks are gone for good, with the volumes on them.

    The Drive and Volume objects are removed, so that claims and PersistentVolumes of the volumes can be deleted.
    Nothing is erased: if a disk comes back, its node reports the drive and the volumes again, and `orlop adopt` makes
    the objects of the volumes. Only a drive that is Lost is forgotten, or one whose node was deleted from the cluster.
    """
    plans = in_cluster(lambda cluster: DriveForgetting(cluster.client, force=force).plans(drives))
    if output != "text":
        show([_plan_value(each) for each in plans], output)
    else:
        _print_plans(plans)
    if any(each.why_not for each in plans):
        sys.exit(FAILED)
    if dry_run:
        return
    if not yes:
        confirm(_question(plans), "Nothing was changed.")
    for plan in plans:
        _forget(plan, force=force)
        click.echo(harmless(f"The drive {plan.drive.title} is forgotten."), err=output != "text")
    if commands := [command for plan in plans for command in plan.commands]:
        click.echo("To delete what depends on its volumes, so that pods get new and empty ones:", err=True)
        click.echo("".join(f"  {harmless(command)}\n" for command in commands), nl=False, err=True)


def _forget(plan: ForgottenDrive, *, force: bool) -> None:
    in_cluster(lambda cluster: DriveForgetting(cluster.client, force=force).forget(plan.drive))


def _print_plans(plans: Sequence[ForgottenDrive]) -> None:
    for plan in plans:
        drive = plan.drive
        if plan.why_not:
            click.echo(harmless(f"The drive {drive.title} {plan.why_not}."), err=True)
            continue
        count = len(plan.volumes)
        held = "no volumes" if not count else "1 volume, which is" if count == 1 else f"{count} volumes, which are"
        lost = " lost with it:" if count else "."
        click.echo(harmless(f"The drive {drive.title} is {drive.state}, and has {held}{lost}"))
        if plan.volumes:
            click.echo(escaped_table(HEAD, [_cells(each) for each in plan.volumes]))


def _cells(volume: LostVolume) -> tuple[str, ...]:
    claim = str(volume.claim) if volume.claim is not None else ""
    shown = claim if volume.claim_exists or not claim else f"{claim} (deleted)"
    pods = ",".join(map(str, volume.pods))
    return (volume.name, size_text(volume.bytes), shown, ",".join(volume.persistent_volumes), pods)


def _question(plans: Sequence[ForgottenDrive]) -> str:
    count = sum(len(each.volumes) for each in plans)
    drives = "this drive" if len(plans) == 1 else f"these {len(plans)} drives"
    volumes = "1 volume" if count == 1 else f"{count} volumes"
    return f"Forget {drives}, and give up the data of {volumes}?" if count else f"Forget {drives}?"


def _plan_value(plan: ForgottenDrive) -> dict[str, Any]:
    return {
        "drive": plan.drive.name,
        "node": plan.drive.node,
        "place": plan.drive.place or None,
        "state": plan.drive.base_state,
        "whyNot": plan.why_not or None,
        "volumes": [
            {
                "name": each.name,
                "bytes": each.bytes,
                "claim": str(each.claim) if each.claim is not None else None,
                "claimExists": each.claim_exists,
                "persistentVolumes": each.persistent_volumes,
                "pods": [str(pod) for pod in each.pods],
            }
            for each in plan.volumes
        ],
        "commands": plan.commands,
    }
