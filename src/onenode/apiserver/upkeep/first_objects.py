"""What every API server has from its beginning: four namespaces, and the roles without which nobody can ask who he is.

Only what is missing is made: what an admin has changed stays changed.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from onenode.apiserver.access.rbac_rules import AUTHENTICATED, MASTERS, RBAC_GROUP, UNAUTHENTICATED
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import decode_object
from onenode.apiserver.store.store import ObjectStore
from onenode.apiserver.verbs.creating import Creator
from onenode.apiserver.verbs.namespace_gate import BUILT_IN_NAMESPACES
from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, Kind

Object = dict[str, Any]

LABELS: Final = {"kubernetes.io/bootstrapping": "rbac-defaults"}
INFO_PATHS: Final = ("/healthz", "/livez", "/readyz", "/version", "/version/")
DISCOVERY_PATHS: Final = (
    *("/api", "/api/*", "/apis", "/apis/*", "/healthz", "/livez", "/openapi", "/openapi/*", "/readyz"),
    *("/version", "/version/"),
)
READ: Final = ["get", "list", "watch"]
WRITE: Final = ["create", "delete", "deletecollection", "patch", "update"]
WORKLOADS: Final = [
    f"{kind}{part}"
    for kind in ("daemonsets", "deployments", "replicasets", "statefulsets")
    for part in ("", "/status", "/scale")
]
IN_NAMESPACES: Final = [
    *("configmaps", "events", "persistentvolumeclaims", "persistentvolumeclaims/status", "pods", "pods/log"),
    *("pods/status", "serviceaccounts"),
]
WRITTEN_BY_USERS: Final = [
    *("configmaps", "events", "persistentvolumeclaims", "pods", "pods/attach", "pods/eviction", "pods/exec"),
    *("pods/portforward", "secrets", "serviceaccounts", "serviceaccounts/token"),
]
VIEW: Final = (
    {"verbs": READ, "apiGroups": [""], "resources": [*IN_NAMESPACES, "namespaces"]},
    {"verbs": READ, "apiGroups": ["apps"], "resources": ["controllerrevisions", *WORKLOADS]},
    {"verbs": READ, "apiGroups": ["events.k8s.io"], "resources": ["events"]},
    {"verbs": READ, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
)
EDIT: Final = (
    *VIEW,
    {"verbs": READ, "apiGroups": [""], "resources": ["secrets"]},
    {"verbs": WRITE, "apiGroups": [""], "resources": WRITTEN_BY_USERS},
    {"verbs": WRITE, "apiGroups": ["apps"], "resources": WORKLOADS},
    {"verbs": WRITE, "apiGroups": ["coordination.k8s.io"], "resources": ["leases"]},
)
ADMIN: Final = (
    *EDIT,
    {"verbs": ["create"], "apiGroups": ["authorization.k8s.io"], "resources": ["localsubjectaccessreviews"]},
    {"verbs": [*READ, *WRITE], "apiGroups": [RBAC_GROUP], "resources": ["roles", "rolebindings"]},
)
ROLES: Final = {
    "admin": ADMIN,
    "edit": EDIT,
    "view": VIEW,
    "cluster-admin": (
        {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]},
        {"verbs": ["*"], "nonResourceURLs": ["*"]},
    ),
    "system:basic-user": (
        {
            "verbs": ["create"],
            "apiGroups": ["authorization.k8s.io"],
            "resources": ["selfsubjectaccessreviews", "selfsubjectrulesreviews"],
        },
        {"verbs": ["create"], "apiGroups": ["authentication.k8s.io"], "resources": ["selfsubjectreviews"]},
    ),
    "system:discovery": ({"verbs": ["get"], "nonResourceURLs": list(DISCOVERY_PATHS)},),
    "system:public-info-viewer": ({"verbs": ["get"], "nonResourceURLs": list(INFO_PATHS)},),
}
HOLDERS: Final = {
    "cluster-admin": (MASTERS,),
    "system:basic-user": (AUTHENTICATED,),
    "system:discovery": (AUTHENTICATED,),
    "system:public-info-viewer": (AUTHENTICATED, UNAUTHENTICATED),
}


def first_objects() -> list[tuple[Kind, Object]]:
    namespaces = [(NAMESPACE, {"metadata": {"name": name}}) for name in BUILT_IN_NAMESPACES]
    roles = [(CLUSTER_ROLE, {"metadata": _named(name), "rules": list(rules)}) for name, rules in ROLES.items()]
    bindings = [(CLUSTER_ROLE_BINDING, _binding(name, groups)) for name, groups in HOLDERS.items()]
    return [*namespaces, *roles, *bindings]


def _named(name: str) -> Object:
    return {"name": name, "labels": dict(LABELS)}


def _binding(role: str, groups: tuple[str, ...]) -> Object:
    subjects = [{"kind": "Group", "apiGroup": RBAC_GROUP, "name": group} for group in groups]
    reference = {"apiGroup": RBAC_GROUP, "kind": "ClusterRole", "name": role}
    return {"metadata": _named(role), "roleRef": reference, "subjects": subjects}


async def make_first_objects(store: ObjectStore, schemas: Schemas, creator: Creator) -> None:
    async def make(kind: Kind, value: Object) -> None:
        in_store = KindInStore(kind, kind)
        if store.get(in_store.key("", value["metadata"]["name"])) is None:
            decoded = decode_object(schemas, kind.api_version, kind.kind, value)
            await creator.create(in_store, "", decoded.object, dry_run=False)

    # All at once, so that one commit serves many.
    await asyncio.gather(*(make(kind, value) for kind, value in first_objects()))
