"""The smallest object of each kind that an API server takes, to be changed by the test that needs more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from orlop.kube import kinds
from orlop.kube.kinds import Kind

Object = dict[str, Any]


def named(name: str, **rest: Any) -> Object:
    return {"metadata": {"name": name}, **rest}


def config_map(name: str = "c", **data: str) -> Object:
    return named(name, data=data) if data else named(name)


def secret(name: str = "s", **data: str) -> Object:
    return named(name, stringData=data) if data else named(name)


def labelled(obj: Object, **labels: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "labels": labels}}


def finalized(obj: Object, *finalizers: str) -> Object:
    return {**obj, "metadata": {**obj["metadata"], "finalizers": list(finalizers)}}


def container(name: str = "main", **rest: Any) -> Object:
    return {"name": name, "image": "busybox:1", **rest}


def pod(name: str = "p", **spec: Any) -> Object:
    return named(name, spec={"containers": [container()], **spec})


def template(**labels: str) -> Object:
    return {"metadata": {"labels": labels}, "spec": {"containers": [container()]}}


def workload(name: str = "w", **spec: Any) -> Object:
    """A Deployment, ReplicaSet or DaemonSet."""
    return named(name, spec={"selector": {"matchLabels": {"app": "x"}}, "template": template(app="x"), **spec})


def stateful_set(name: str = "w", **spec: Any) -> Object:
    return workload(name, serviceName="x", **spec)


def volume(name: str, **spec: Any) -> Object:
    source = {"csi": {"driver": "csi.example.com", "volumeHandle": "v1"}}
    ask = {"capacity": {"storage": "1Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "none"}
    return named(name, spec={**ask, **source, **spec})


def claim(name: str = "c", **spec: Any) -> Object:
    ask = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}, "storageClassName": "none"}
    return named(name, spec={**ask, **spec})


def storage_class(name: str, **rest: Any) -> Object:
    return named(name, provisioner="csi.example.com", **rest)


def csi_driver(name: str, **spec: Any) -> Object:
    return named(name, spec=spec)


def csi_node(name: str, *drivers: Object) -> Object:
    return named(name, spec={"drivers": list(drivers)})


def attachment(name: str, **spec: Any) -> Object:
    source = {"persistentVolumeName": "pv1"}
    return named(name, spec={"attacher": "csi.example.com", "nodeName": "n1", "source": source, **spec})


def capacity(name: str = "k", **rest: Any) -> Object:
    return named(name, storageClassName="fast", **rest)


def lease(name: str = "l", **spec: Any) -> Object:
    return named(name, spec={"holderIdentity": "me", "leaseDurationSeconds": 15, **spec})


def role(name: str, *rules: Object) -> Object:
    return named(name, rules=list(rules))


def allow(verbs: str, resources: str, group: str = "", **rest: Any) -> Object:
    return {"apiGroups": [group], "verbs": verbs.split(), "resources": resources.split(), **rest}


def binding(name: str, role_kind: str, role_name: str, *subjects: Object) -> Object:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": role_kind, "name": role_name}
    return named(name, roleRef=reference, subjects=list(subjects))


def user(name: str) -> Object:
    return {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}


def group(name: str) -> Object:
    return {"kind": "Group", "name": name, "apiGroup": "rbac.authorization.k8s.io"}


def account(name: str, namespace: str) -> Object:
    return {"kind": "ServiceAccount", "name": name, "namespace": namespace}


def core_event(name: str, namespace: str, **rest: Any) -> Object:
    about = {"kind": "Pod", "namespace": namespace, "name": "p", "apiVersion": "v1"}
    return named(name, involvedObject=about, reason="Tested", message="it was tested", type="Normal", **rest)


def new_event(name: str, namespace: str, **rest: Any) -> Object:
    about = {"kind": "Pod", "namespace": namespace, "name": "p", "apiVersion": "v1"}
    said = {"reason": "Tested", "note": "it was tested", "type": "Normal", "action": "Testing"}
    who = {"reportingController": "example.com/tests", "reportingInstance": "t1"}
    return named(name, regarding=about, eventTime="2026-01-02T03:04:05.000006Z", **said, **who, **rest)


def admission_policy(name: str) -> Object:
    rule = {"apiGroups": ["example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["none"]}
    return named(name, spec={"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]})


SMALLEST: dict[Kind, Callable[[str, str], Object]] = {
    kinds.NAMESPACE: lambda name, _: named(name),
    kinds.NODE: lambda name, _: named(name),
    kinds.POD: lambda name, _: pod(name),
    kinds.PERSISTENT_VOLUME: lambda name, _: volume(name),
    kinds.PERSISTENT_VOLUME_CLAIM: lambda name, _: claim(name),
    kinds.SECRET: lambda name, _: secret(name),
    kinds.CONFIG_MAP: lambda name, _: config_map(name),
    kinds.SERVICE_ACCOUNT: lambda name, _: named(name),
    kinds.CORE_EVENT: core_event,
    kinds.EVENT: new_event,
    kinds.STORAGE_CLASS: lambda name, _: storage_class(name),
    kinds.CSI_DRIVER: lambda name, _: csi_driver(name),
    kinds.CSI_NODE: lambda name, _: csi_node(name),
    kinds.VOLUME_ATTACHMENT: lambda name, _: attachment(name),
    kinds.CSI_STORAGE_CAPACITY: lambda name, _: capacity(name),
    kinds.LEASE: lambda name, _: lease(name),
    kinds.DAEMON_SET: lambda name, _: workload(name),
    kinds.DEPLOYMENT: lambda name, _: workload(name),
    kinds.STATEFUL_SET: lambda name, _: stateful_set(name),
    kinds.REPLICA_SET: lambda name, _: workload(name),
    kinds.ROLE: lambda name, _: role(name),
    kinds.ROLE_BINDING: lambda name, _: binding(name, "Role", "r", user("u")),
    kinds.CLUSTER_ROLE: lambda name, _: role(name),
    kinds.CLUSTER_ROLE_BINDING: lambda name, _: binding(name, "ClusterRole", "r", user("u")),
    kinds.VALIDATING_ADMISSION_POLICY: lambda name, _: admission_policy(name),
    kinds.VALIDATING_ADMISSION_POLICY_BINDING: lambda name, _: named(
        name, spec={"policyName": "none", "validationActions": ["Warn"]}
    ),
}
"""By kind: a name and a namespace make one."""
STORED = list(SMALLEST)
