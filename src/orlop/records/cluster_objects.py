"""The objects that a cluster needs before Orlop can serve volumes on drives: kinds, permissions, policy, class. Pure.

`orlop up` applies them from here, and deploy/manifests/drives has them as files (tools/generate_manifests.py). The
permissions are exactly what the processes use; tests run the processes with them.
"""

from __future__ import annotations

from typing import Any, Final

from orlop.kube.kinds import (
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CSI_DRIVER,
    NAMESPACE,
    ROLE,
    ROLE_BINDING,
    SERVICE_ACCOUNT,
    STORAGE_CLASS,
    Kind,
)
from orlop.records.api_record import GROUP
from orlop.records.definitions import definitions
from orlop.records.node_policy import node_policy

ApiObject = dict[str, Any]

DRIVER_NAME: Final = f"csi.{GROUP}"
SYSTEM_NAMESPACE: Final = "orlop-system"
NODE_ACCOUNT: Final = "orlop-node"
CONTROLLER_ACCOUNT: Final = "orlop-controller"
CLASS_NAME: Final = "orlop"
DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"

READ: Final = ("get", "list", "watch")
FOLLOW: Final = ("list", "watch")


def access_rule(group: str, resources: tuple[str, ...], verbs: tuple[str, ...]) -> ApiObject:
    """Return one rule of a role."""
    return {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}


EVENTS: Final = (
    access_rule("events.k8s.io", ("events",), ("create", "patch")),
    # Where a server does not have the newer group.
    access_rule("", ("events",), ("create", "patch")),
)
NODE_RULES: Final = (
    access_rule(GROUP, ("drives", "nodedevices"), (*READ, "create")),
    access_rule(GROUP, ("volumes", "driverequests"), FOLLOW),
    access_rule(GROUP, ("drives/status", "nodedevices/status", "volumes/status", "driverequests/status"), ("patch",)),
    *EVENTS,
)
CONTROLLER_RULES: Final = (
    access_rule(GROUP, ("drives",), (*READ, "patch", "delete")),
    access_rule(GROUP, ("volumes",), (*READ, "create", "patch", "delete")),
    # As the provisioner beside any driver; without attachments, which this driver does not have.
    access_rule("", ("persistentvolumes",), (*READ, "create", "patch", "delete")),
    access_rule("", ("persistentvolumeclaims",), (*READ, "update")),
    access_rule("storage.k8s.io", ("storageclasses", "csinodes"), READ),
    access_rule("", ("nodes",), READ),
    *EVENTS,
)
LEASE_RULES: Final = (access_rule("coordination.k8s.io", ("leases",), ("get", "list", "create", "update", "delete")),)
"""In the controller's own namespace: the lease of the leader, and the provisioner's journal."""


def cluster_objects(namespace: str = SYSTEM_NAMESPACE, *, is_default_class: bool = False) -> list[ApiObject]:
    """Return everything but the workloads, in the order in which it is applied."""
    return [
        *definitions(),
        namespace_object(namespace),
        *node_policy(f"system:serviceaccount:{namespace}:{NODE_ACCOUNT}"),
        *node_access(namespace),
        *controller_access(namespace),
        csi_driver(),
        storage_class(is_default=is_default_class),
    ]


def namespace_object(namespace: str) -> ApiObject:
    """Return the namespace. The node's process mounts file systems of the host, so it must allow privileged pods."""
    levels = {f"pod-security.kubernetes.io/{mode}": "privileged" for mode in ("enforce", "audit", "warn")}
    return labelled_object(NAMESPACE, namespace, labels=levels)


def node_access(namespace: str) -> list[ApiObject]:
    account = labelled_object(SERVICE_ACCOUNT, NODE_ACCOUNT, component="node", namespace=namespace)
    # The DaemonSet asks for the token itself: no other pod of the account gets one unasked.
    account["automountServiceAccountToken"] = False
    return [account, *_cluster_role(NODE_ACCOUNT, "node", namespace, NODE_RULES)]


def controller_access(namespace: str) -> list[ApiObject]:
    account = labelled_object(SERVICE_ACCOUNT, CONTROLLER_ACCOUNT, component="controller", namespace=namespace)
    name = f"{CONTROLLER_ACCOUNT}-leases"
    leases = labelled_object(ROLE, name, component="controller", namespace=namespace)
    leases["rules"] = list(LEASE_RULES)
    binding = labelled_object(ROLE_BINDING, name, component="controller", namespace=namespace)
    binding |= granted(ROLE, name, CONTROLLER_ACCOUNT, namespace)
    return [
        account,
        *_cluster_role(CONTROLLER_ACCOUNT, "controller", namespace, CONTROLLER_RULES),
        leases,
        binding,
    ]


def _cluster_role(name: str, component: str, namespace: str, rules: tuple[ApiObject, ...]) -> list[ApiObject]:
    role, binding = (labelled_object(kind, name, component=component) for kind in (CLUSTER_ROLE, CLUSTER_ROLE_BINDING))
    return [role | {"rules": list(rules)}, binding | granted(CLUSTER_ROLE, name, name, namespace)]


def granted(kind: Kind, role: str, account: str, namespace: str) -> ApiObject:
    """Return the fields of a binding that grants a role to a service account."""
    return {
        "roleRef": {"apiGroup": kind.group, "kind": kind.kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }


def csi_driver(name: str = DRIVER_NAME) -> ApiObject:
    """Return the CSIDriver. Most of its fields cannot be changed later.

    `storageCapacity` stays false: with true, and without capacity objects, no pod would be scheduled.
    """
    # Pods of OpenShift's restricted profile may use inline volumes: empty folders that contain nothing of the host.
    driver = labelled_object(
        CSI_DRIVER, name, labels={"security.openshift.io/csi-ephemeral-volume-profile": "restricted"}
    )
    driver["spec"] = {
        "volumeLifecycleModes": ["Ephemeral", "Persistent"],
        "attachRequired": False,
        "podInfoOnMount": True,
        "fsGroupPolicy": "File",
        "seLinuxMount": False,
    }
    return driver


def storage_class(name: str = CLASS_NAME, *, driver: str = DRIVER_NAME, is_default: bool = False) -> ApiObject:
    """Return the class. Its volumes wait for their pod, so that the pod's node has a drive that fits."""
    storage = labelled_object(STORAGE_CLASS, name, annotations={DEFAULT_CLASS: "true"} if is_default else None)
    return storage | {
        "provisioner": driver,
        "reclaimPolicy": "Delete",
        "volumeBindingMode": "WaitForFirstConsumer",
        # Needs a resizer, which resizes the volumes of a claim that was changed.
        "allowVolumeExpansion": False,
    }


def labelled_object(
    kind: Kind,
    name: str,
    *,
    component: str = "",
    namespace: str = "",
    labels: dict[str, str] | None = None,
    annotations: dict[str, str] | None = None,
) -> ApiObject:
    """Return an object with the labels that all of ours have, and without a spec."""
    common = {
        "app.kubernetes.io/name": "orlop",
        **({"app.kubernetes.io/component": component} if component else {}),
        **(labels or {}),
    }
    metadata: ApiObject = {
        "name": name,
        **({"namespace": namespace} if namespace else {}),
        "labels": common,
        **({"annotations": annotations} if annotations else {}),
    }
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata}
