"""The StatefulSet controller: pods with stable names, each with its own claims, in order."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from onenode.controllers.workloads import revision_rules as revisions
from onenode.controllers.workloads import stateful_set_rules as rules
from onenode.controllers.workloads.ownership_rules import is_controlled
from onenode.controllers.workloads.pod_count_rules import is_finished, phase
from onenode.controllers.workloads.stateful_pod_rules import is_claim_of, is_member
from onenode.controllers.workloads.workload_controller import Reader, WorkloadController
from orlop.kube.api_errors import AlreadyExists, ApiError, NotFound
from orlop.kube.kinds import CONTROLLER_REVISION, PERSISTENT_VOLUME_CLAIM, POD, STATEFUL_SET, Kind
from orlop.kube.objects import name, name_of, namespace

Object = Mapping[str, Any]

FAILED_CREATE: Final = "FailedCreate"
CREATED: Final = "SuccessfulCreate"


class StatefulSets(WorkloadController):
    kind: ClassVar[Kind] = STATEFUL_SET
    children: ClassVar[tuple[Kind, ...]] = (POD, PERSISTENT_VOLUME_CLAIM, CONTROLLER_REVISION)

    def concerns(self, owner: Object, child: Object) -> bool:
        return is_member(owner, child) or is_claim_of(owner, child)

    async def decide(self, owner: Object, reader: Reader, failure: ApiError | None) -> rules.Step:
        where = namespace(owner)
        pods, revision_objects = await reader.list(POD, where), await reader.list(CONTROLLER_REVISION, where)
        claims = {name_of(claim): claim for claim in await reader.list(PERSISTENT_VOLUME_CLAIM, where)}
        view = rules.SetView(owner, tuple(pods), tuple(revision_objects), claims, self.clock.now())
        return rules.next_step(view, has_failed=failure is not None)

    async def act(self, owner: Object, step: rules.Step) -> None:
        match step:
            case revisions.CreateRevision(revision):
                await self._create_revision(owner, revision)
            case revisions.NumberRevision(revision, patch):
                await self.patch(CONTROLLER_REVISION, revision, patch)
            case revisions.DeleteRevision(revision):
                await self.delete(CONTROLLER_REVISION, revision)
            case rules.CreateSetClaim(claim, pod):
                await self._create_claim(owner, claim, pod)
            case rules.OwnSetClaim(claim, patch):
                await self.patch(PERSISTENT_VOLUME_CLAIM, claim, patch)
            case rules.CreateMember(pod):
                await self._create_pod(owner, pod)
            case rules.DeleteMember(pod):
                await self._delete_pod(owner, pod)

    async def _create_revision(self, owner: Object, revision: Object) -> None:
        try:
            await self.client.create(CONTROLLER_REVISION, revision)
        except AlreadyExists:
            existing = await self.client.get(CONTROLLER_REVISION, name_of(revision))
            if not (is_controlled(owner, existing) and existing.get("data") == revision["data"]):
                await self.count_collision(owner)

    async def _create_claim(self, owner: Object, claim: Object, pod: str) -> None:
        about = f"Claim {name(claim)}"
        try:
            await self.client.create(PERSISTENT_VOLUME_CLAIM, claim)
        except ApiError as error:
            text = f"create {about} for Pod {pod} in StatefulSet {name(owner)} failed error: {error.message}"
            self._warn(owner, error, text)
            raise
        self.events.normal(owner, CREATED, f"create {about} Pod {pod} in StatefulSet {name(owner)} success")

    async def _create_pod(self, owner: Object, pod: Object) -> None:
        about = f"create Pod {name(pod)} in StatefulSet {name(owner)}"
        try:
            await self.client.create(POD, pod)
        except ApiError as error:
            self._warn(owner, error, f"{about} failed error: {error.message}")
            raise
        self.events.normal(owner, CREATED, f"{about} successful")

    async def _delete_pod(self, owner: Object, pod: Object) -> None:
        if is_finished(pod):
            is_failed = phase(pod) == "Failed"
            reason = "RecreatingFailedPod" if is_failed else "RecreatingTerminatedPod"
            note = self.events.warning if is_failed else self.events.normal
            word = "failed" if is_failed else "terminated"
            note(owner, reason, f"StatefulSet {namespace(owner)}/{name(owner)} is recreating {word} Pod {name(pod)}")
        await self.delete(POD, pod)
        text = f"delete Pod {name(pod)} in StatefulSet {name(owner)} successful"
        self.events.normal(owner, "SuccessfulDelete", text)

    def _warn(self, owner: Object, error: ApiError, text: str) -> None:
        # In a deleted namespace no event can be written.
        if not isinstance(error, NotFound):
            self.events.warning(owner, FAILED_CREATE, text)
