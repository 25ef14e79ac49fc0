"""The pods that may use a claim, asked of the API server itself: no cache is new enough to say that there is none.

One answer serves many claims: each that was being deleted before the answer was given, because a pod that gets its node
later is not started any more. So a namespace with a thousand claims is emptied without listing its pods a thousand
times. Only that there is no pod is believed of an answer given to another; that there is one may be over by now.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from orlop.embedded.controllers.storage_protection_rules import Seen, claims_named_by, is_claim_used
from orlop.kube.client import KubeClient, Selection
from orlop.kube.kinds import POD
from orlop.kube.objects import ObjectName, name_of, resource_version, version_order


@dataclass(frozen=True, slots=True)
class _Answer:
    """`version` is the server's when it answered, which it counts for all kinds together."""

    namespace: str | None = None
    version: str = "0"
    users: dict[ObjectName, list[Seen]] = field(default_factory=dict)

    def is_about(self, claim: Seen) -> bool:
        is_new_enough = version_order(self.version) >= version_order(resource_version(claim))
        return is_new_enough and self.namespace == name_of(claim).namespace

    def uses(self, claim: Seen) -> bool:
        return is_claim_used(claim, self.users.get(name_of(claim), ()))


class LivePods:
    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._last = _Answer()

    async def use(self, claim: Seen) -> bool:
        """Whether one uses this claim, which must have been read while it was being deleted."""
        if self._last.is_about(claim) and not self._last.uses(claim):
            return False
        answer = self._last = await self._ask(name_of(claim).namespace)
        return answer.uses(claim)

    def forget(self) -> None:
        """Nobody is waiting who could share the last answer."""
        self._last = _Answer()

    async def _ask(self, namespace: str | None) -> _Answer:
        pods = await self._client.list(POD, Selection(namespace))
        users: dict[ObjectName, list[Seen]] = {}
        for pod in pods.items:
            for claim in claims_named_by(pod):
                users.setdefault(claim, []).append(pod)
        return _Answer(namespace, pods.version, users)
