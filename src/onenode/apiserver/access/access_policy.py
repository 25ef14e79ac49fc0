"""Who may do what, as the objects in the store say right now.

The rules of RBAC are decoded once and kept until one of them changes: watches on their four kinds tell of that.
"""

from __future__ import annotations

from onenode.apiserver.access.rbac_rules import MASTERS, Decision, Policy, Question, User, decide
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.store_errors import TooSlow
from onenode.apiserver.store.versions import fresh
from onenode.apiserver.store.watches import Watch
from orlop.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING, Kind


class AccessPolicy:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._policy: Policy | None = None
        self._watches: list[Watch] = []

    def decide(self, user: User, question: Question) -> Decision:
        policy = Policy() if MASTERS in user.groups else self.current()
        return decide(user, question, policy)

    def current(self) -> Policy:
        if self._policy is None or self._has_changed():
            self.close()
            kinds = (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING)
            self._watches = [self._store.watch(kind.resource, after=self._store.revision) for kind in kinds]
            self._policy = Policy(*map(self._objects, kinds))
        return self._policy

    def close(self) -> None:
        for watch in self._watches:
            watch.close()
        self._watches = []
        self._policy = None

    def _has_changed(self) -> bool:
        try:
            unread = [watch.seen_until for watch in self._watches]
        except TooSlow:  # so much has changed that nobody kept count
            return True
        return any(seen < self._store.revision for seen in unread)

    def _objects(self, kind: Kind) -> tuple[dict[str, object], ...]:
        return tuple(fresh(stored) for stored in self._store.list(kind.resource).items)
