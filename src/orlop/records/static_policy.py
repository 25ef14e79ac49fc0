"""What the worker and the master of static volumes may do: accounts, permissions, and the policy of workers. Pure.

The worker creates the ProvisionerStatus of its node and writes its status; it has no rights on PersistentVolumes. All
workers share one account, so a ValidatingAdmissionPolicy holds each to the node that its token names, as `node_policy`
does for the drives. The master writes `spec` alone: it has no right on the status, and the definition of the kind
refuses a change of an operation.
"""

from __future__ import annotations

from typing import Any, Final

from orlop.kube.kinds import CLUSTER_ROLE, CLUSTER_ROLE_BINDING, NAMESPACE, ROLE, ROLE_BINDING, SERVICE_ACCOUNT
from orlop.records.api_record import GROUP
from orlop.records.cluster_objects import (
    CONTROLLER_ACCOUNT,
    EVENTS,
    FOLLOW,
    NODE_ACCOUNT,
    READ,
    access_rule,
    granted,
    labelled_object,
)
from orlop.records.node_policy import (
    COMES_EMPTY,
    HAS_A_NODE,
    IS_OF_THE_NODE,
    IS_STATUS,
    account_policy,
    policy_validation,
)
from orlop.records.provisioner_status import PROVISIONER_STATUS

ApiObject = dict[str, Any]

STATIC_NAMESPACE: Final = "orlop-static"
WORKER_ACCOUNT: Final = "orlop-static-worker"
MASTER_ACCOUNT: Final = "orlop-static-master"
WORKER_POLICY_NAME: Final = "orlop-static-worker-objects"
WORKER_RULES: Final = (
    access_rule(GROUP, ("provisionerstatuses",), (*READ, "create")),
    access_rule(GROUP, ("provisionerstatuses/status",), ("patch",)),
    *EVENTS,
)
MASTER_RULES: Final = (
    access_rule(GROUP, ("provisionerstatuses",), (*READ, "patch", "delete")),
    access_rule("coordination.k8s.io", ("leases",), ("get", "create", "update")),
)
"""In the namespace of the ProvisionerStatus objects, and nowhere else."""
MASTER_CLUSTER_RULES: Final = (
    access_rule("", ("persistentvolumes",), (*READ, "create", "patch", "delete")),
    access_rule("", ("nodes",), READ),
    access_rule("storage.k8s.io", ("storageclasses",), FOLLOW),
    *EVENTS,
)
CREATES_ITS_STATUS: Final = policy_validation(
    f"request.operation == 'CREATE' ? variables.mayCreate && !variables.isPart : {IS_STATUS}",
    "a worker creates the ProvisionerStatus of its node, and changes nothing but status",
)


def worker_access(namespace: str) -> list[ApiObject]:
    """Return the account of the workers and what it may do."""
    return _namespaced_access(WORKER_ACCOUNT, "static-worker", namespace, WORKER_RULES)


def master_access(namespace: str) -> list[ApiObject]:
    """Return the account of the master and what it may do."""
    role, binding = (
        labelled_object(kind, MASTER_ACCOUNT, component="static-master")
        for kind in (CLUSTER_ROLE, CLUSTER_ROLE_BINDING)
    )
    return [
        *_namespaced_access(MASTER_ACCOUNT, "static-master", namespace, MASTER_RULES),
        role | {"rules": list(MASTER_CLUSTER_RULES)},
        binding | granted(CLUSTER_ROLE, MASTER_ACCOUNT, MASTER_ACCOUNT, namespace),
    ]


def _namespaced_access(name: str, component: str, namespace: str, rules: tuple[ApiObject, ...]) -> list[ApiObject]:
    account = labelled_object(SERVICE_ACCOUNT, name, component=component, namespace=namespace)
    # The workload asks for the token itself: no other pod of the account gets one unasked.
    account["automountServiceAccountToken"] = False
    return [account, *_role_of(name, component, namespace, rules, name, namespace)]


def _role_of(
    name: str, component: str, namespace: str, rules: tuple[ApiObject, ...], account: str, account_namespace: str
) -> list[ApiObject]:
    role, binding = (
        labelled_object(kind, name, component=component, namespace=namespace) for kind in (ROLE, ROLE_BINDING)
    )
    return [role | {"rules": list(rules)}, binding | granted(ROLE, name, account, account_namespace)]


def worker_policy(namespace: str) -> list[ApiObject]:
    """Return the policy of the workers' account, and its binding."""
    account = f"system:serviceaccount:{namespace}:{WORKER_ACCOUNT}"
    validations = (HAS_A_NODE, IS_OF_THE_NODE, CREATES_ITS_STATUS, COMES_EMPTY)
    return account_policy(WORKER_POLICY_NAME, "static-worker", account, (PROVISIONER_STATUS,), validations)


def access_of_shared_processes(namespace: str, system_namespace: str) -> list[ApiObject]:
    """Return the additional rights of `orlop node` and `orlop controller` if they serve static volumes too.

    The policy of the node's account covers ProvisionerStatus already, and the controller has a Lease of its own.
    """
    return [
        *_role_of(WORKER_ACCOUNT, "static-worker", namespace, WORKER_RULES, NODE_ACCOUNT, system_namespace),
        *_role_of(MASTER_ACCOUNT, "static-master", namespace, MASTER_RULES[:1], CONTROLLER_ACCOUNT, system_namespace),
    ]


def static_cluster_objects(namespace: str = STATIC_NAMESPACE) -> list[ApiObject]:
    """Return everything but workloads and the configuration, in the order in which it is applied."""
    return [
        static_namespace(namespace),
        *worker_policy(namespace),
        *worker_access(namespace),
        *master_access(namespace),
    ]


def static_namespace(namespace: str) -> ApiObject:
    """Return the namespace. Workers see the disks of their node, so it must allow privileged pods."""
    levels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return labelled_object(NAMESPACE, namespace, labels=levels)
