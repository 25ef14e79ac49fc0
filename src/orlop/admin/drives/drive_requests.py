"""Send requests to nodes, and wait for their results.

Order: create the request → the node carries it out and writes its status → read the results → delete the request. A
caller who stops waiting withdraws the request: deletes it while the node has not begun, so that no disk is formatted
hours later. A request is safe to repeat: the node refuses a device that has changed since.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from orlop.admin.refusals import ChangeRefused
from orlop.foundation.clock import Clock, Deadline
from orlop.kube import objects
from orlop.kube.api_errors import ApiError, Conflict, NotFound
from orlop.kube.client import DeleteOptions, KubeClient
from orlop.kube.objects import Object, ObjectName
from orlop.records.api_record import new_object, part_of
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec, DriveRequestStatus, RequestResult

POLL_SECONDS: Final = 0.25
ENDED: Final = frozenset({"Done", "Error"})


@dataclass(frozen=True, slots=True)
class NodeResult:
    """The result for one device or folder of a node."""

    node: str
    result: RequestResult


@dataclass(frozen=True, slots=True)
class NodeReport:
    """What a node reports of a request: `why` is a summary, or why there are no results."""

    node: str
    results: tuple[RequestResult, ...] = ()
    why: str = ""
    failed: bool = False


ReportResult = Callable[[NodeResult], None]


class DriveRequests:
    def __init__(self, kube: KubeClient, clock: Clock, random: Random) -> None:
        self._kube = kube
        self._clock = clock
        self._random = random

    async def carry_out(
        self, specs: Iterable[DriveRequestSpec], seconds: float, report: ReportResult = lambda _result: None
    ) -> Sequence[NodeReport]:
        """Send all requests, wait for them at most `seconds`, and call `report` for each result as it comes."""
        deadline = self._clock.deadline(seconds)
        return await asyncio.gather(*(self._carry_out_one(spec, deadline, report) for spec in specs))

    async def _carry_out_one(self, spec: DriveRequestSpec, deadline: Deadline, report: ReportResult) -> NodeReport:
        request = await self._kube.create(DRIVE_REQUEST, new_object("DriveRequest", self._new_name(), spec))
        try:
            return await self._result(spec, request, deadline, report)
        except BaseException:
            # Also if the user interrupts: the cancellation is raised again after the request is withdrawn.
            await self._withdraw(request)
            raise

    def _new_name(self) -> str:
        return f"orlop-{self._random.getrandbits(64):016x}"

    async def _result(
        self, spec: DriveRequestSpec, request: Object, deadline: Deadline, report: ReportResult
    ) -> NodeReport:
        reported: set[str] = set()
        while True:
            status = await self._status(request)
            for result in status.results:
                if result.target not in reported:
                    reported.add(result.target)
                    report(NodeResult(spec.node_name, result))
            if status.state in ENDED:
                await self._delete(request)
                return NodeReport(spec.node_name, status.results, status.message, status.state == "Error")
            if deadline.passed():
                return await self._given_up(spec, request, status)
            await self._clock.sleep(POLL_SECONDS)

    async def _status(self, request: Object) -> DriveRequestStatus:
        name = ObjectName(None, objects.name(request))
        try:
            read = await self._kube.get(DRIVE_REQUEST, name)
        except NotFound:
            raise ChangeRefused(f"The request {name} was deleted meanwhile: its result is unknown.") from None
        try:
            return part_of(read, "status", DriveRequestStatus)
        except ValueError as error:
            raise ChangeRefused(f"The status of the request {name} cannot be read: {error}") from None

    async def _given_up(self, spec: DriveRequestSpec, request: Object, status: DriveRequestStatus) -> NodeReport:
        if status.state is None and await self._withdraw(request):
            why = "the node did not begin in time, and the request was withdrawn: check that `orlop node` runs there"
        else:
            why = (
                f"the node has not finished in time, and continues: see "
                f"`kubectl get driverequest {objects.name(request)}` and `orlop drives list`"
            )
        return NodeReport(spec.node_name, status.results, why, failed=True)

    async def _withdraw(self, request: Object) -> bool:
        """Delete a request that no node has begun; return whether it did."""
        options = DeleteOptions(uid=objects.uid(request), version=objects.resource_version(request))
        try:
            # The version is that of the creation: once the node has written its status, the request stays.
            await self._kube.delete(DRIVE_REQUEST, ObjectName(None, objects.name(request)), options)
        except (ApiError, Conflict):
            return False
        return True

    async def _delete(self, request: Object) -> None:
        try:
            options = DeleteOptions(uid=objects.uid(request))
            await self._kube.delete(DRIVE_REQUEST, ObjectName(None, objects.name(request)), options)
        except ApiError:
            # The request is done. Only its object is left.
            return
