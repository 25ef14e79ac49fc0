"""Read static volumes, and carry out what an operator decides about them.

Order of a release: ensure our finalizer → delete the PersistentVolume, which stays → note how its disk comes back.
The master does the rest. A command that is killed in between leaves a volume that waits for a release, or is wiped. In
another order it could leave `as-is` on a volume that a claim uses, and later its data to the next claim.

Every write is guarded by the version that was decided on; what changed meanwhile is read and decided again.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Final

from orlop.admin.refusals import ChangeRefused, UnknownObject
from orlop.admin.static.static_list_rules import StaticNode, StaticRow, find_row, static_rows
from orlop.admin.static.static_release_rules import (
    NODE_EXISTS,
    ForgetPlan,
    HandBackPlan,
    ReleasePlan,
    forget_plan,
    hand_back_plan,
    is_kept_until_wiped,
    release_patch,
    release_plan,
)
from orlop.kube import objects
from orlop.kube.api_errors import Conflict, NotFound, PatchRefused
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.kinds import NODE, PERSISTENT_VOLUME
from orlop.kube.objects import Object, ObjectName
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import part_of
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerStatusStatus
from orlop.static_pv.node_disks_rules import DiskReport, read_node_report
from orlop.static_pv.static_volume_rules import (
    AS_IS,
    StaticVolume,
    handing_back_patch,
    keeping_patch,
    read_static_volume,
)

MOST_ATTEMPTS: Final = 10
AFTER_A_REFUSAL: Final = "start the worker of its node again, and repeat the command when its disk is offered again"


@dataclass(frozen=True, slots=True)
class StaticVolumes:
    """All disks and volumes, as they were read."""

    rows: Sequence[StaticRow]
    nodes: Sequence[StaticNode]
    existing: frozenset[str]
    """Names of the Nodes that exist."""

    def of_node(self, node: str) -> tuple[StaticRow, ...]:
        return tuple(row for row in self.rows if row.node == node)

    def report_of(self, node: str) -> DiskReport | None:
        return next((each.report for each in self.nodes if each.report.node == node), None)


class OperatedStaticVolumes:
    def __init__(self, kube: KubeClient) -> None:
        self._kube = kube

    async def read(self) -> StaticVolumes:
        reports = await self._reports()
        nodes = [
            StaticNode(read_node_report(each), part_of(each, "status", ProvisionerStatusStatus)) for each in reports
        ]
        volumes = (await self._kube.list(PERSISTENT_VOLUME)).items
        existing = frozenset(objects.name(each) for each in (await self._kube.list(NODE)).items)
        rows = static_rows([each.report for each in nodes], volumes, existing)
        return StaticVolumes(rows, nodes, existing)

    async def _reports(self) -> list[Object]:
        try:
            return (await self._kube.list(PROVISIONER_STATUS)).items
        except NotFound:
            raise ChangeRefused(
                "The cluster has no kind ProvisionerStatus: Orlop's static volumes are not installed."
            ) from None

    # ---- release -------------------------------------------------------------------------------------------------

    async def release_plans(self, words: Sequence[str], how: str) -> list[ReleasePlan]:
        rows = (await self.read()).rows
        named = {row.name: row for row in (find_row(rows, word) for word in words)}
        return [release_plan(row, how) for row in named.values()]

    async def release(self, name: str, how: str) -> None:
        """Release a volume; the master offers its disk again."""

        async def once() -> None:
            row = find_row((await self.read()).rows, name)
            plan = release_plan(row, how)
            if plan.why_not:
                raise ChangeRefused(f"{name} is not released: {plan.why_not}.")
            if row.volume is not None and not plan.is_done:
                await self._end(row.volume, row.version, how)

        await self._insist(name, once)

    async def _end(self, volume: StaticVolume, version: str, how: str) -> None:
        name = ObjectName(None, volume.name)
        if not volume.is_being_deleted:
            if (patch := keeping_patch(volume, version, "")) is not None:
                version = objects.resource_version(await self._kube.patch(PERSISTENT_VOLUME, name, patch))
            options = DeleteOptions(uid=volume.uid, version=version)
            deleted = await self._kube.delete(PERSISTENT_VOLUME, name, options)
            volume, version = read_static_volume(deleted) or volume, objects.resource_version(deleted)
        await self._patch(volume.name, release_patch(volume, version, how))

    # ---- forget --------------------------------------------------------------------------------------------------

    async def forget_plan(self, node: str) -> ForgetPlan:
        seen = await self.read()
        plan = forget_plan(node, seen.of_node(node), node_exists=node in seen.existing)
        if not plan.why_not and not plan.volumes:
            raise UnknownObject(f"There is no static volume of a node {node!r}: `orlop static list` shows all.")
        return plan

    async def forget(self, node: str) -> list[StaticRow]:
        """Give up all volumes of a node; return them. One that a claim has goes when the claim is deleted."""
        plan = await self.forget_plan(node)
        if plan.why_not:
            raise ChangeRefused(f"The node {node} is not forgotten: {plan.why_not}.")

        async def once(name: str) -> None:
            await self._refuse_existing(node)
            volume, version = await self._volume(name)
            if volume is not None and not (volume.is_being_deleted and volume.release == AS_IS):
                await self._end(volume, version, AS_IS)

        for row in plan.volumes:
            await self._insist(row.name, partial(once, row.name))
        return list(plan.volumes)

    async def _refuse_existing(self, node: str) -> None:
        """Raise if the Node has come back: its worker can wipe its disks."""
        with suppress(NotFound):
            await self._kube.get(NODE, ObjectName(None, node))
            raise ChangeRefused(f"The node {node} is not forgotten: {NODE_EXISTS}.")

    async def _volume(self, name: str) -> tuple[StaticVolume | None, str]:
        try:
            obj = await self._kube.get(PERSISTENT_VOLUME, ObjectName(None, name))
        except NotFound:
            return None, ""
        return read_static_volume(obj), objects.resource_version(obj)

    # ---- hand-back -----------------------------------------------------------------------------------------------

    async def hand_back_plans(self, nodes: Sequence[str]) -> list[HandBackPlan]:
        """Return a plan for each node; without names, for each that has anything of ours."""
        seen = await self.read()
        known = sorted({row.node for row in seen.rows} | {each.report.node for each in seen.nodes})
        for node in nodes:
            if node not in known:
                raise UnknownObject(f"There is no static volume of a node {node!r}: `orlop static list` shows all.")
        return [hand_back_plan(node, seen.of_node(node), seen.report_of(node)) for node in nodes or known]

    async def hand_back(self, node: str) -> int:
        """Remove our finalizers from the volumes of a node; return from how many.

        Delete its ProvisionerStatus first: without one, the master leaves the volumes alone. An annotation of each
        volume stops a master that has not seen the deletion yet. So the master may keep running, also as a part of
        `orlop controller`.
        """
        (plan,) = await self.hand_back_plans([node])
        if plan.why_not:
            raise ChangeRefused(f"The volumes of {node} are not handed back: {plan.why_not}.")
        former = ""
        for report in await self._reports():
            if objects.name(report) == node:
                former = objects.uid(report)
                with suppress(NotFound):
                    options = DeleteOptions(uid=objects.uid(report))
                    await self._kube.delete(PROVISIONER_STATUS, objects.name_of(report), options)

        async def once(name: str) -> None:
            volume, version = await self._volume(name)
            if volume is None or not volume.has_finalizer:
                return
            # The master may have deleted it since the plan was made: without our finalizer it would vanish, and its
            # disk would be offered as it is.
            if is_kept_until_wiped(volume):
                raise ChangeRefused(f"{name} is being deleted, and its disk is not wiped: {AFTER_A_REFUSAL}.")
            await self._patch(name, handing_back_patch(volume, version, former))

        for row in plan.volumes:
            await self._insist(row.name, partial(once, row.name))
        if any(objects.name(report) == node for report in await self._reports()):
            raise ChangeRefused(f"A worker still runs on {node}, and its volumes are taken over again: stop it first.")
        return len(plan.volumes)

    # ---- inside --------------------------------------------------------------------------------------------------

    async def _patch(self, name: str, patch: JsonPatch) -> None:
        await self._kube.patch(PERSISTENT_VOLUME, ObjectName(None, name), patch)

    async def _insist(self, name: str, once: Callable[[], Awaitable[None]]) -> None:
        """Try again while the object is changed by others."""
        for _ in range(MOST_ATTEMPTS):
            with suppress(Conflict, PatchRefused):
                return await once()
        raise ChangeRefused(f"{name} is changed by others all the time: try again.")


def _node_of(report: Object) -> StaticNode:
    return StaticNode(read_node_report(report), part_of(report, "status", ProvisionerStatusStatus))
