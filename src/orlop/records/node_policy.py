"""The ValidatingAdmissionPolicy that holds the process of a node to the objects of its own node. Pure.

The nodes of a cluster share one service account, and RBAC knows accounts alone. The token of a pod also names the node
that the pod runs on (`authentication.kubernetes.io/node-name`), and a pod cannot change it. With this policy a process
that was taken over can write what is about its own node: a Drive, a NodeDevices and a ProvisionerStatus when it creates
them, and the status of its objects afterwards. `spec` is the controller's and the admin's. `static_policy` holds the
worker of static volumes, which has an account of its own, in the same way.

An expression that fails refuses the write (`failurePolicy: Fail`), so that a token without a node is refused too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from orlop.kube.kinds import VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING, Kind
from orlop.records.api_record import GROUP
from orlop.records.drive import DRIVE
from orlop.records.node_devices import NODE_DEVICES
from orlop.records.provisioner_status import PROVISIONER_STATUS

ApiObject = dict[str, Any]

POLICY_NAME: Final = "orlop-node-objects"
NODE_OF_TOKEN: Final = "authentication.kubernetes.io/node-name"  # noqa: S105 - the name of a claim
MAY_CREATE: Final = (DRIVE, NODE_DEVICES, PROVISIONER_STATUS)

VARIABLES: Final = {
    "nodeOfToken": (
        f"has(request.userInfo.extra) && '{NODE_OF_TOKEN}' in request.userInfo.extra"
        f" ? request.userInfo.extra['{NODE_OF_TOKEN}'][0] : ''"
    ),
    "written": "request.operation == 'DELETE' ? oldObject : object",
    # Absent on the object itself, and not an empty text.
    "isStatus": "has(request.subResource) && request.subResource == 'status'",
    "isPart": "has(request.subResource) && request.subResource != ''",
}


def policy_validation(expression: str, message: str) -> dict[str, str]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


COMES_EMPTY: Final = policy_validation(
    "request.operation != 'CREATE' || request.resource.resource != 'provisionerstatuses' ||"
    " !has(object.spec.deleteOperations) || size(object.spec.deleteOperations) == 0",
    "a node creates a ProvisionerStatus without operations: the master adds them",
)
HAS_A_NODE: Final = policy_validation(
    "variables.nodeOfToken != ''",
    "the token names no node: the process of a node needs the token of its own pod",
)
IS_OF_THE_NODE: Final = {
    **policy_validation("variables.written.spec.nodeName == variables.nodeOfToken", "the object is of another node"),
    "messageExpression": (
        "'the object is of the node ' + variables.written.spec.nodeName + ', and the token of the node ' + "
        "variables.nodeOfToken"
    ),
}
IS_STATUS: Final = "request.operation == 'UPDATE' && variables.isStatus"
COMES_WITHOUT_ALLOCATIONS: Final = policy_validation(
    "request.operation != 'CREATE' || request.resource.resource != 'drives' ||"
    " (!has(object.spec.allocations) || size(object.spec.allocations) == 0) &&"
    " (!has(object.spec.removing) || !object.spec.removing)",
    "a node creates a Drive without allocations: the controller restores them",
)
CREATES_ITS_OWN: Final = policy_validation(
    f"request.operation == 'CREATE' ? variables.mayCreate && !variables.isPart : {IS_STATUS}",
    "a node creates its Drives, its NodeDevices and its ProvisionerStatus, and changes nothing but status",
)


def node_policy(account: str) -> list[ApiObject]:
    """Return the policy and its binding. `account` is the user name of the service account of nodes."""
    validations = (HAS_A_NODE, IS_OF_THE_NODE, CREATES_ITS_OWN, COMES_WITHOUT_ALLOCATIONS, COMES_EMPTY)
    return account_policy(POLICY_NAME, "node", account, MAY_CREATE, validations)


def account_policy(
    name: str, component: str, account: str, may_create: Sequence[Kind], validations: Sequence[Mapping[str, str]]
) -> list[ApiObject]:
    """Return a policy, and its binding, for everything in our group that an account writes."""
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["*/*"],
        "scope": "*",
    }
    created = f"request.resource.resource in [{', '.join(repr(kind.plural) for kind in may_create)}]"
    variables = VARIABLES | {"mayCreate": created}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
        "matchConditions": [{"name": "is-a-node", "expression": f"request.userInfo.username == '{account}'"}],
        "variables": [{"name": name, "expression": expression} for name, expression in variables.items()],
        "validations": [dict(each) for each in validations],
    }
    bound = {"policyName": name, "validationActions": ["Deny"]}
    return [
        _policy_object(VALIDATING_ADMISSION_POLICY, name, component, spec),
        _policy_object(VALIDATING_ADMISSION_POLICY_BINDING, name, component, bound),
    ]


def _policy_object(kind: Kind, name: str, component: str, spec: ApiObject) -> ApiObject:
    labels = {"app.kubernetes.io/name": "orlop", "app.kubernetes.io/component": component}
    return {
        "apiVersion": kind.api_version,
        "kind": kind.kind,
        "metadata": {"name": name, "labels": labels},
        "spec": spec,
    }
