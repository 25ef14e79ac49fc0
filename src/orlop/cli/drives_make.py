"""`orlop drives discover`, `init` and `add-folder`: show devices, and send requests to make drives of them.

Nodes do the work: each gets a DriveRequest, also with --dry-run, and checks the device again.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Final, get_args

import click

from orlop.admin.drives.device_list_rules import (
    DeviceRow,
    chosen_node,
    device_rows,
    find_devices,
    formatting_requests,
)
from orlop.admin.drives.drive_changes import list_orlop, list_static_disks
from orlop.admin.drives.drive_requests import DriveRequests, NodeReport, NodeResult
from orlop.admin.refusals import ChangeRefused
from orlop.cli.drives_format import device_table, device_value, report_value
from orlop.cli.durations import DurationType
from orlop.cli.in_cluster import HELP_ON_CODES, ConnectedCluster, in_cluster, server_options
from orlop.cli.options import FAILED, VerbFunction, confirm, dry_run_option, output_option, yes_option
from orlop.cli.output import harmless, show
from orlop.foundation.quantity import InvalidQuantity, Quantity
from orlop.kube import objects
from orlop.records.drive import DRIVE, FileSystem
from orlop.records.drive_record import MIB, whole_mebibytes
from orlop.records.drive_request import DriveRequestSpec, RequestedFolder
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.volume_context import LARGEST

REPORT_SECONDS: Final = 5.0
"""How long a node that has just started may take to report its devices."""
LOOK_SECONDS: Final = 0.5


def wait_option(function: VerbFunction) -> VerbFunction:
    return click.option(
        "--timeout",
        "seconds",
        type=DurationType(),
        default="2m",
        show_default=True,
        help="How long to wait for the nodes.",
    )(function)


@click.command("discover", epilog=HELP_ON_CODES)
@click.option("--node", default="", help="Only devices of this node.")
@click.option("--usable", "usable_only", is_flag=True, help="Only devices that can become drives.")
@output_option("wide")
@server_options
def discover(node: str, output: str, *, usable_only: bool) -> None:
    """List the block devices of nodes, and why one cannot become a drive."""
    rows = in_cluster(_read_devices)
    chosen = [row for row in rows if node in {"", row.node} and (row.is_usable or not usable_only)]
    if output in {"json", "yaml"}:
        show([device_value(row) for row in chosen], output)
        return
    if chosen:
        click.echo(device_table(chosen, wide=output == "wide"))
    else:
        click.echo(_nothing_found(rows, node), err=True)
    if usable := [row.word for row in chosen if row.is_usable and not row.device.file_system]:
        hint = f"To make drives of those that hold nothing: orlop drives init {' '.join(usable)}"
        click.echo(harmless(hint), err=True)


def _nothing_found(rows: Sequence[DeviceRow], node: str) -> str:
    if not rows:
        return "No node has reported its devices: check that `orlop node` runs on the nodes, with drives."
    where = f" of the node {node}" if node else ""
    return f"No device{where} matches. A folder can be a drive too: `orlop drives add-folder --help`."


async def _read_devices(cluster: ConnectedCluster) -> list[DeviceRow]:
    reports = await list_orlop(cluster.client, NODE_DEVICES)
    return device_rows(reports, await list_static_disks(cluster.client))


@dataclass(frozen=True, slots=True)
class InitOptions:
    devices: Sequence[str]
    node: str
    everything: bool
    file_system: FileSystem
    force: bool
    dry_run: bool

    def check(self) -> None:
        if bool(self.devices) == self.everything:
            raise click.UsageError("Name the devices, or use --all, but not both.")
        if self.everything and self.force:
            raise click.UsageError("--all chooses devices that hold nothing: with --force, name each device.")


@click.command("init", epilog=HELP_ON_CODES)
@click.argument("devices", nargs=-1, metavar="NODE/DEVICE...")
@click.option(
    "--node", default="", help="Node of the devices that are named without a node; with --all: only its devices."
)
@click.option("--all", "everything", is_flag=True, help="Every device that can become a drive and holds nothing.")
@click.option(
    "--fs",
    "file_system",
    type=click.Choice(get_args(FileSystem)),
    default="xfs",
    show_default=True,
    help="File system to format with.",
)
@click.option("--force", is_flag=True, help="Also format devices that hold a file system, which is destroyed.")
@yes_option
@dry_run_option
@wait_option
@output_option()
@server_options
def init(seconds: float, output: str, *, yes: bool, **options: Any) -> None:
    """Format disks as drives. This destroys what is on them.

    Each node checks that the device is still the one that `discover` shows, and that nothing uses it. With --dry-run it
    checks, and reports what it would do.
    """
    chosen_options = InitOptions(**options)
    chosen_options.check()
    chosen, requests = in_cluster(lambda cluster: _plan_init(cluster, chosen_options))
    if not chosen_options.dry_run and not yes:
        click.echo(device_table(chosen, wide=False), err=True)
        what, drives = ("this device", "a drive of it") if len(chosen) == 1 else ("these devices", "drives of them")
        confirm(f"Everything on {what} will be destroyed. Make {drives}?", "Nothing was changed.")
    carry_out(requests, seconds, output)


async def _plan_init(
    cluster: ConnectedCluster, options: InitOptions
) -> tuple[Sequence[DeviceRow], Sequence[DriveRequestSpec]]:
    rows = device_rows(await _reports(cluster), await list_static_disks(cluster.client))
    blank = [row for row in rows if row.is_usable and not row.device.file_system and options.node in {"", row.node}]
    chosen = blank if options.everything else find_devices(rows, options.devices, options.node)
    if not chosen:
        raise ChangeRefused("No device that holds nothing can become a drive: `orlop drives discover` shows why.")
    drives = {objects.name(each) for each in await list_orlop(cluster.client, DRIVE)}
    return chosen, formatting_requests(
        chosen, file_system=options.file_system, drives=drives, force=options.force, dry_run=options.dry_run
    )


@click.command("add-folder", epilog=HELP_ON_CODES)
@click.argument("path")
@click.option(
    "--capacity", required=True, metavar="SIZE", help="The space for all volumes of the drive together, such as 100Gi."
)
@click.option("--node", default="", help="The node; may be left out if there is only one.")
@dry_run_option
@wait_option
@output_option()
@server_options
def add_folder(path: str, capacity: str, node: str, seconds: float, output: str, *, dry_run: bool) -> None:
    """Make a drive of a folder, in a file system that exists already.

    The capacity is set aside at once, so that other programs cannot take it. The request is refused if the file system
    lacks the space. In a cluster, PATH is below the folder that the DaemonSet mounts (--folder-root of `orlop node`).
    The folder is created if it does not exist, and otherwise has to be empty.
    """
    folder = RequestedFolder(path=_absolute(path), capacity_bytes=_capacity(capacity))

    async def plan(cluster: ConnectedCluster) -> DriveRequestSpec:
        nodes = [objects.name(each) for each in await _reports(cluster)]
        return DriveRequestSpec(node_name=chosen_node(nodes, node), folder=folder, dry_run=dry_run)

    carry_out([in_cluster(plan)], seconds, output)


async def _reports(cluster: ConnectedCluster) -> Sequence[objects.Object]:
    """Return what nodes report; wait a moment for the first one, because nodes report soon after they have started."""
    patience = cluster.clock.deadline(REPORT_SECONDS)
    is_waiting = False
    while not (reports := await list_orlop(cluster.client, NODE_DEVICES)) and not patience.passed():
        if not is_waiting:
            click.echo("Waiting for a node to report its devices …", err=True)
            is_waiting = True
        await cluster.clock.sleep(LOOK_SECONDS)
    return reports


def _absolute(path: str) -> str:
    pure = PurePosixPath(path)
    if not pure.is_absolute() or ".." in pure.parts:
        fault = "has '..' in it" if pure.is_absolute() else "is not an absolute path"
        raise click.UsageError(f"{path!r} {fault}: write the path on the node, such as /var/lib/orlop/folders/a.")
    return str(pure)


def _capacity(text: str) -> int:
    try:
        size = whole_mebibytes(Quantity.parse(text).value())
    except InvalidQuantity as error:
        raise click.UsageError(f"--capacity: {error}.") from None
    if not MIB <= size <= LARGEST:
        raise click.UsageError(f"--capacity: {text} is not a capacity for a drive: write a size such as 100Gi.")
    return size


# ---- requests --------------------------------------------------------------------------------------------------------


def carry_out(requests: Sequence[DriveRequestSpec], seconds: float, output: str) -> None:
    """Send the requests, and print each result as it comes. Exit with 1 if one failed."""
    nodes = ", ".join(sorted({each.node_name for each in requests}))
    if output == "text":
        click.echo(harmless(f"Waiting for {nodes} …"), err=True)
    report = print_result if output == "text" else report_nothing

    async def work(cluster: ConnectedCluster) -> Sequence[NodeReport]:
        return await DriveRequests(cluster.client, cluster.clock, cluster.random).carry_out(requests, seconds, report)

    reports = in_cluster(work)
    if output != "text":
        show(report_value(reports), output)
    else:
        print_reports(reports)
    if any(each.failed for each in reports):
        sys.exit(FAILED)


def print_reports(reports: Sequence[NodeReport], *, is_error: bool = False) -> None:
    """Print the summary of each node that failed, or has no results."""
    for each in reports:
        if each.why and (each.failed or not each.results):
            click.echo(harmless(f"{each.node}: {each.why}"), err=each.failed or is_error)


def print_result(result: NodeResult, *, is_error: bool = False) -> None:
    target, error = result.result.target, result.result.error
    text = f"failed: {error}" if error else result.result.message or "done"
    drive = f" (drive {result.result.drive})" if result.result.drive and result.result.drive not in text else ""
    about = "" if target in text else f"{target}: "
    click.echo(harmless(f"{result.node}: {about}{text}{drive}"), err=is_error or bool(error))


def report_nothing(_result: NodeResult) -> None:
    return
