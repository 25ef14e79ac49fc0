"""Who may do what, as the objects in the store say right now.

The rules of RBAC are decoded once and kept until one of them changes: watches on their four kinds tell of that.
"""

from __future__ import annotations

from onenode.apiserver.access.rbac_rules import MASTERS, Decision, Policy, Question, User, decide
from onenode.apiserver.store.change_notice import ChangeNotice
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.store.versions import fresh
from orlop.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, ROLE, ROLE_BINDING, Kind

_KINDS = (ROLE, CLUSTER_ROLE, ROLE_BINDING, CLUSTER_ROLE_BINDING)


class AccessPolicy:
    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._policy = Policy()
        self._notice = ChangeNotice(store, *(kind.resource for kind in _KINDS))

    def decide(self, user: User, question: Question) -> Decision:
        policy = Policy() if MASTERS in user.groups else self.current()
        return decide(user, question, policy)

    def current(self) -> Policy:
        if self._notice.take():
            self._policy = Policy(*map(self._objects, _KINDS))
        return self._policy

    def close(self) -> None:
        self._notice.close()

    def _objects(self, kind: Kind) -> tuple[dict[str, object], ...]:
        return tuple(fresh(stored) for stored in self._store.list(kind.resource).items)
