"""The ValidatingAdmissionPolicy that holds the process of a node to the objects of its own node. Pure.

The nodes of a cluster share one service account, and RBAC knows accounts alone. The token of a pod also names the node
that the pod runs on (`authentication.kubernetes.io/node-name`), and a pod cannot change it. With this policy a process
that was taken over can write what is about its own node: a Drive and a NodeDevices when it creates them, and the status
of its objects afterwards. `spec` is the controller's and the admin's.

An expression that fails refuses the write (`failurePolicy: Fail`), so that a token without a node is refused too.
"""

from __future__ import annotations

from typing import Any, Final

from orlop.kube.kinds import VALIDATING_ADMISSION_POLICY, VALIDATING_ADMISSION_POLICY_BINDING, Kind
from orlop.records.api_record import GROUP
from orlop.records.drive import DRIVE
from orlop.records.node_devices import NODE_DEVICES

ApiObject = dict[str, Any]

POLICY_NAME: Final = "orlop-node-objects"
NODE_OF_TOKEN: Final = "authentication.kubernetes.io/node-name"  # noqa: S105 - the name of a claim
MAY_CREATE: Final = (DRIVE, NODE_DEVICES)

VARIABLES: Final = {
    "nodeOfToken": (
        f"has(request.userInfo.extra) && '{NODE_OF_TOKEN}' in request.userInfo.extra"
        f" ? request.userInfo.extra['{NODE_OF_TOKEN}'][0] : ''"
    ),
    "written": "request.operation == 'DELETE' ? oldObject : object",
    # Absent on the object itself, and not an empty text.
    "isStatus": "has(request.subResource) && request.subResource == 'status'",
    "isPart": "has(request.subResource) && request.subResource != ''",
    "mayCreate": f"request.resource.resource in [{', '.join(repr(kind.plural) for kind in MAY_CREATE)}]",
}


def _validation(expression: str, message: str) -> dict[str, str]:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


VALIDATIONS: Final = (
    _validation(
        "variables.nodeOfToken != ''",
        "the token names no node: the process of a node needs the token of its own pod",
    ),
    {
        **_validation("variables.written.spec.nodeName == variables.nodeOfToken", "the object is of another node"),
        "messageExpression": (
            "'the object is of the node ' + variables.written.spec.nodeName + ', and the token of the node ' + "
            "variables.nodeOfToken"
        ),
    },
    _validation(
        "request.operation == 'CREATE' ? variables.mayCreate && !variables.isPart"
        " : request.operation == 'UPDATE' && variables.isStatus",
        "a node creates its Drives and its NodeDevices, and changes nothing but status",
    ),
    _validation(
        "request.operation != 'CREATE' || request.resource.resource != 'drives' ||"
        " (!has(object.spec.allocations) || size(object.spec.allocations) == 0) &&"
        " (!has(object.spec.removing) || !object.spec.removing)",
        "a node creates a Drive without allocations: the controller restores them",
    ),
)


def node_policy(account: str) -> list[ApiObject]:
    """Return the policy and its binding. `account` is the user name of the service account of nodes."""
    rule = {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["CREATE", "UPDATE", "DELETE"],
        "resources": ["*/*"],
        "scope": "*",
    }
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule], "matchPolicy": "Equivalent"},
        "matchConditions": [{"name": "is-a-node", "expression": f"request.userInfo.username == '{account}'"}],
        "variables": [{"name": name, "expression": expression} for name, expression in VARIABLES.items()],
        "validations": list(VALIDATIONS),
    }
    return [
        _object(VALIDATING_ADMISSION_POLICY, spec),
        _object(VALIDATING_ADMISSION_POLICY_BINDING, {"policyName": POLICY_NAME, "validationActions": ["Deny"]}),
    ]


def _object(kind: Kind, spec: ApiObject) -> ApiObject:
    labels = {"app.kubernetes.io/name": "orlop", "app.kubernetes.io/component": "node"}
    metadata = {"name": POLICY_NAME, "labels": labels}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": metadata, "spec": spec}
