"""Send nodes requests to adopt drives without an object, also drives that were moved from another node.

Order: remove the objects of the former node (`moved_drive_rules`) → a request to the node → it writes its name into the
drive, and makes the Drive object → it reports what is on the drive. Before a drive is taken over, no pod may use a
volume of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.admin.drives.adoption import ENDED_PODS, POLL_SECONDS, write_step
from orlop.admin.drives.adoption_rules import handle_of
from orlop.admin.drives.device_list_rules import device_rows
from orlop.admin.drives.drive_changes import OperatedDrives, list_orlop
from orlop.admin.drives.drive_list_rules import DriveRow, find_drive, read_drive_row
from orlop.admin.drives.drive_requests import DriveRequests, NodeReport, ReportResult
from orlop.admin.drives.moved_drive_rules import (
    FormerObjects,
    FormerObjectsGone,
    MovedDrive,
    moved_drives,
    next_removal_step,
)
from orlop.admin.drives.volume_list_rules import VolumeRow, volume_rows
from orlop.admin.refusals import ChangeRefused, UnknownObject, WrongUse
from orlop.binding import claim_state_rules as state
from orlop.binding.storage_protection_rules import claims_named_by, node_of
from orlop.foundation.clock import Clock, Deadline
from orlop.kube import objects
from orlop.kube.api_errors import NotFound
from orlop.kube.client import KubeClient
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME, POD
from orlop.kube.objects import Object, ObjectName
from orlop.records.drive import DRIVE
from orlop.records.drive_request import DriveRequestSpec
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.volume import VOLUME

MOST_WRITES: Final = 5000
"""More writes than the removal of the objects of one drive needs."""


@dataclass(frozen=True, slots=True)
class DriveAdoptionPlan:
    nodes: tuple[str, ...]
    """The nodes that get a request."""
    moved: tuple[MovedDrive, ...] = ()
    left_out: tuple[str, ...] = ()
    """Nodes that are not Ready, or do not exist any more."""

    @property
    def movable(self) -> tuple[MovedDrive, ...]:
        return tuple(each for each in self.moved if not each.why_not)


class DriveAdoption:
    def __init__(self, kube: KubeClient, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._requests = DriveRequests(kube, clock, random)

    async def plan(self, node: str, words: Sequence[str]) -> DriveAdoptionPlan:
        """Return what would be adopted. `words` name drives that are on `node`, even if it does not report them."""
        devices = await list_orlop(self._kube, NODE_DEVICES)
        known = sorted(objects.name(each) for each in devices)
        if node and node not in known:
            raise UnknownObject(f"The node {node} has not reported its devices: check that `orlop node` runs there.")
        if not known:
            raise ChangeRefused("No node has reported its devices: check that `orlop node` runs on the nodes.")
        if words and not node:
            raise WrongUse("Name with --node the node that has these drives now.")
        drives = await OperatedDrives(self._kube).rows()
        named = {find_drive(drives, word).name: node for word in words}
        nodes = {objects.name(each): each for each in (await self._kube.list(NODE)).items}
        moved = moved_drives(drives, device_rows(devices), named, nodes)
        pods = (await self._kube.list(POD)).items if moved else []
        chosen = [await self._checked(each, pods) for each in moved if node in {"", each.node}]
        chosen_nodes = [node] if node else [each for each in known if is_ready(nodes.get(each))]
        if not chosen_nodes:
            raise ChangeRefused("No node with drives is Ready: what is on its drives can be read only there.")
        return DriveAdoptionPlan(
            tuple(chosen_nodes),
            tuple(chosen),
            () if node else tuple(each for each in known if each not in chosen_nodes),
        )

    async def _checked(self, moved: MovedDrive, pods: Sequence[Object]) -> MovedDrive:
        users = await self._users(moved.drive, pods) if not moved.why_not else []
        if not users:
            return moved
        why = f"pods use its volumes: {', '.join(users[:5])}. Delete them first"
        return MovedDrive(moved.drive, moved.node, why)

    async def _users(self, drive: DriveRow, pods: Sequence[Object]) -> list[str]:
        """Return the pods that use a volume of the drive."""
        former = await self._former(drive)
        claims = {
            ObjectName(str(reference.get("namespace")), str(reference.get("name")))
            for each in (former.persistent_volumes if former is not None else ())
            if (reference := state.claim_reference(each))
        }
        running = (pod for pod in pods if node_of(pod) and state.phase(pod) not in ENDED_PODS)
        return sorted(str(objects.name_of(pod)) for pod in running if not claims.isdisjoint(claims_named_by(pod)))

    # ---- carrying out --------------------------------------------------------------------------------------------

    async def carry_out(
        self, plan: DriveAdoptionPlan, seconds: float, report: ReportResult, *, dry_run: bool
    ) -> Sequence[NodeReport]:
        """Remove the objects of former nodes, and send the requests. A dry run only sends the requests."""
        deadline = self._clock.deadline(seconds)
        for moved in () if dry_run else plan.movable:
            await self._release(moved)
        specs = [DriveRequestSpec(node_name=node, adopt=True, dry_run=dry_run) for node in plan.nodes]
        reports = await self._requests.carry_out(specs, seconds, report)
        adopted = [result.drive for each in reports for result in each.results if result.drive]
        if not dry_run:
            await self._wait_for(adopted, deadline)
        return reports

    async def _release(self, moved: MovedDrive) -> None:
        for _ in range(MOST_WRITES):
            former = await self._former(moved.drive)
            if former is None:
                return
            pods = (await self._kube.list(POD)).items
            if users := await self._users(moved.drive, pods):
                raise ChangeRefused(f"Pods use volumes of the drive {moved.drive.title}: {', '.join(users[:5])}.")
            step = next_removal_step(former)
            if isinstance(step, FormerObjectsGone):
                return
            await write_step(self._kube, step)
        raise ChangeRefused(f"The objects of the drive {moved.drive.title} are being changed by others: try again.")

    async def _former(self, drive: DriveRow) -> FormerObjects | None:
        """Return the objects of the former node; None if the drive has none of them any more."""
        try:
            obj = await self._kube.get(DRIVE, ObjectName(None, drive.name))
        except NotFound:
            return None
        if read_drive_row(obj).node != drive.node:
            return None
        rows = [row for row in volume_rows(await list_orlop(self._kube, VOLUME), []) if _is_former(row, drive)]
        named = {row.name for row in rows} | {each.volume for each in read_drive_row(obj).spec.allocations}
        volumes = (await self._kube.list(PERSISTENT_VOLUME)).items
        return FormerObjects(
            drive=obj, volumes=rows, persistent_volumes=[each for each in volumes if handle_of(each) in named]
        )

    async def _wait_for(self, drives: Sequence[str], deadline: Deadline) -> None:
        """Wait until the nodes have made the objects of drives, and reported what is on them."""
        while not deadline.passed():
            rows = {row.name: row for row in await OperatedDrives(self._kube).rows()}
            if all(name in rows and rows[name].capacity for name in drives):
                return
            await self._clock.sleep(POLL_SECONDS)


def is_ready(node: Object | None) -> bool:
    """Return whether a node exists, and is not known to be away."""
    return node is not None and (objects.condition(node, "Ready") or {}).get("status") in {None, "True"}


def _is_former(row: VolumeRow, drive: DriveRow) -> bool:
    return (row.spec.drive, row.spec.node_name) == (drive.name, drive.node)
