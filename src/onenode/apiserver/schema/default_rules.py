"""The defaults Kubernetes sets while it reads an object, type by type: as it is created, updated and patched.

Each function takes an object of its type as it was given and gives it with its defaults; nothing is changed in place.
As in Go, a text that is empty and a number that is zero count as not given where the type cannot tell the difference,
and a part that is always there (the spec of a pod, the template of a Deployment) has its defaults also when it was not
given.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

from onenode.apiserver.schema.decoding_rules import Completions
from onenode.apiserver.schema.json_values import copied

Object = dict[str, Any]

METADATA_NAME_LABEL: Final = "kubernetes.io/metadata.name"
RBAC_GROUP: Final = "rbac.authorization.k8s.io"
FILE_MODE: Final = 0o644
MOST_FAILURES: Final = 2**31 - 1
ONE_HOUR: Final = 3600
# Go writes these also where nobody knows them.
NO_NODE_INFO: Final = dict.fromkeys(
    (
        *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion"),
        *("kubeletVersion", "kubeProxyVersion", "operatingSystem", "architecture"),
    ),
    "",
)


def _filled(given: Mapping[str, Any], **defaults: Any) -> Object:
    """Given values win, unless they are null or an empty text."""
    made = {key: value for key, value in given.items() if key not in defaults or not _is_nothing(value)}
    return {**copied(defaults), **made}


def _is_nothing(value: Any) -> bool:
    return value is None or value == ""


def _filling(**defaults: Any) -> Callable[[Object], Object]:
    return lambda given: _filled(given, **defaults)


def _with_pull_policy(image: Any) -> str:
    return "Always" if _tag(str(image or "")) == "latest" else "IfNotPresent"


def _tag(image: str) -> str:
    """A digest is no tag, and what has neither is the latest; a colon before the last slash belongs to a port."""
    name, _, digest = image.partition("@")
    tag = name.rpartition("/")[2].partition(":")[2]
    return tag if tag or digest else "latest"


def container(given: Object) -> Object:
    return _filled(
        given,
        imagePullPolicy=_with_pull_policy(given.get("image")),
        terminationMessagePath="/dev/termination-log",
        terminationMessagePolicy="File",
        resources={},
    )


def probe(given: Object) -> Object:
    defaults = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
    return _filled({key: value for key, value in given.items() if value != 0 or key not in defaults}, **defaults)


def volume(given: Object) -> Object:
    return given if len(given.keys() - {"name"}) else {**given, "emptyDir": {}}


def image_volume(given: Object) -> Object:
    return _filled(given, pullPolicy=_with_pull_policy(given.get("reference")))


def pod_spec(given: Object) -> Object:
    account = given.get("serviceAccountName") or given.get("serviceAccount")
    accounts = {"serviceAccountName": account, "serviceAccount": account} if account else {}
    filled = _filled(
        given,
        dnsPolicy="ClusterFirst",
        restartPolicy="Always",
        schedulerName="default-scheduler",
        securityContext={},
        terminationGracePeriodSeconds=30,
    )
    return {**filled, **accounts}


def pod(given: Object) -> Object:
    """What holds for pods and not for templates of pods."""
    spec = _filled(given.get("spec") or pod_spec({}), enableServiceLinks=True)
    if spec.get("terminationGracePeriodSeconds", 0) < 0:
        spec["terminationGracePeriodSeconds"] = 1
    for name in ("containers", "initContainers"):
        if name in spec:
            spec[name] = [_pod_container(each, on_host=bool(spec.get("hostNetwork"))) for each in spec[name]]
    return {**given, "spec": spec}


def _pod_container(given: Object, *, on_host: bool) -> Object:
    resources = given.get("resources", {})
    if resources.get("limits"):
        requests = {**resources["limits"], **resources.get("requests", {})}
        given = {**given, "resources": {**resources, "requests": requests}}
    if on_host and "ports" in given:
        given = {**given, "ports": [_host_port(port) for port in given["ports"]]}
    return given


def _host_port(port: Object) -> Object:
    return port if port.get("hostPort") or "containerPort" not in port else {**port, "hostPort": port["containerPort"]}


def pod_status(given: Object) -> Object:
    """The one address and the list of addresses say the same; where they differ, the one wins."""
    address, addresses = given.get("podIP"), given.get("podIPs", [])
    if not address and addresses:
        return {**given, "podIP": addresses[0].get("ip", "")}
    if address and (not addresses or addresses[0].get("ip") != address):
        return {**given, "podIPs": [{"ip": address}]}
    return given


def persistent_volume(given: Object) -> Object:
    spec = _filled(given.get("spec", {}), persistentVolumeReclaimPolicy="Retain", volumeMode="Filesystem")
    return {**given, "spec": spec, "status": _filled(given.get("status", {}), phase="Pending")}


def pod_template(given: Object) -> Object:
    return given if "spec" in given else {**given, "spec": pod_spec({})}


def persistent_volume_claim(given: Object) -> Object:
    return {"spec": claim_spec({}), **given, "status": _filled(given.get("status", {}), phase="Pending")}


def claim_spec(given: Object) -> Object:
    return _filled(given, volumeMode="Filesystem", resources={})


def claim_template(given: Object) -> Object:
    return given if "spec" in given else {**given, "spec": claim_spec({})}


def secret(given: Object) -> Object:
    """Plain texts are encoded and win over what is encoded already; they are never shown again."""
    made = _filled(given, type="Opaque")
    texts = made.pop("stringData", {})
    if texts:
        made["data"] = {**made.get("data", {}), **{name: _encoded(text) for name, text in texts.items()}}
    return made


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def namespace(given: Object) -> Object:
    made = {**given, "status": _filled(given.get("status", {}), phase="Active")}
    metadata = given.get("metadata", {})
    if metadata.get("name"):
        labels = {**metadata.get("labels", {}), METADATA_NAME_LABEL: metadata["name"]}
        made["metadata"] = {**metadata, "labels": labels}
    return made


def node(given: Object) -> Object:
    return given if "status" in given else {**given, "status": node_status({})}


def node_status(given: Object) -> Object:
    endpoints = {"kubeletEndpoint": {"Port": 0}, **given.get("daemonEndpoints", {})}
    written = {**given, "daemonEndpoints": endpoints, "nodeInfo": {**NO_NODE_INFO, **given.get("nodeInfo", {})}}
    if "allocatable" in given or "capacity" not in given:
        return written
    return {**written, "allocatable": given["capacity"]}


def _workload(given: Object, **defaults: Any) -> Object:
    """The spec of a kind that makes pods."""
    return _filled({"template": pod_template({}), **given.get("spec", {})}, **defaults)


def deployment(given: Object) -> Object:
    spec = _workload(given, replicas=1, revisionHistoryLimit=10, progressDeadlineSeconds=600)
    strategy = _filled(spec.get("strategy", {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = _filled(strategy.get("rollingUpdate", {}), maxUnavailable="25%", maxSurge="25%")
    return {**given, "spec": {**spec, "strategy": strategy}}


def daemon_set(given: Object) -> Object:
    spec = _workload(given, revisionHistoryLimit=10)
    strategy = _filled(spec.get("updateStrategy", {}), type="RollingUpdate")
    if strategy["type"] == "RollingUpdate":
        strategy["rollingUpdate"] = _filled(strategy.get("rollingUpdate", {}), maxUnavailable=1, maxSurge=0)
    return {**given, "spec": {**spec, "updateStrategy": strategy}}


def stateful_set(given: Object) -> Object:
    spec = _workload(given, replicas=1, revisionHistoryLimit=10, podManagementPolicy="OrderedReady")
    strategy = spec.get("updateStrategy", {})
    if not strategy.get("type"):
        strategy = {"rollingUpdate": {}, **strategy, "type": "RollingUpdate"}
    if strategy["type"] == "RollingUpdate" and "rollingUpdate" in strategy:
        strategy = {**strategy, "rollingUpdate": _filled(strategy["rollingUpdate"], partition=0, maxUnavailable=1)}
    retention = _filled(spec.get("persistentVolumeClaimRetentionPolicy", {}), whenDeleted="Retain", whenScaled="Retain")
    return {
        **given,
        "spec": {**spec, "updateStrategy": strategy, "persistentVolumeClaimRetentionPolicy": retention},
    }


def replica_set(given: Object) -> Object:
    return {**given, "spec": _workload(given, replicas=1)}


def job(given: Object) -> Object:
    """A job controller ends itself at a Job without these."""
    spec = given.get("spec", {})
    counts = {} if "completions" in spec or "parallelism" in spec else {"completions": 1}
    replaced = "Failed" if "podFailurePolicy" in spec else "TerminatingOrFailed"
    filled = _filled(
        spec,
        **counts,
        parallelism=1,
        backoffLimit=MOST_FAILURES if "backoffLimitPerIndex" in spec else 6,
        completionMode="NonIndexed",
        suspend=False,
        podReplacementPolicy=replaced,
        manualSelector=False,
    )
    labels, metadata = spec.get("template", {}).get("metadata", {}).get("labels"), given.get("metadata", {})
    if labels and not metadata.get("labels"):
        metadata = {**metadata, "labels": labels}
    return {**given, "metadata": metadata, "spec": filled}


def cron_job(given: Object) -> Object:
    history = {"successfulJobsHistoryLimit": 3, "failedJobsHistoryLimit": 1}
    return {**given, "spec": _filled(given.get("spec", {}), concurrencyPolicy="Allow", suspend=False, **history)}


def service_port(port: Object) -> Object:
    # Go cannot omit targetPort: its clients send 0 in protobuf for a port without one.
    target = port.get("targetPort") or port.get("port", 0)
    return {**_filled(port, protocol="TCP"), "targetPort": target}


def token_request(given: Object) -> Object:
    return {**given, "spec": _filled(given.get("spec", {}), expirationSeconds=ONE_HOUR)}


def csi_driver(given: Object) -> Object:
    spec = given.get("spec", {})
    modes = spec.get("volumeLifecycleModes") or ["Persistent"]
    filled = _filled(
        spec,
        attachRequired=True,
        podInfoOnMount=False,
        storageCapacity=False,
        fsGroupPolicy="ReadWriteOnceWithFSType",
        requiresRepublish=False,
        seLinuxMount=False,
        preventPodSchedulingIfMissing=False,
    )
    return {**given, "spec": {**filled, "volumeLifecycleModes": modes}}


def role_binding(given: Object) -> Object:
    return {**given, "roleRef": _filled(given.get("roleRef", {}), apiGroup=RBAC_GROUP)}


def subject(given: Object) -> Object:
    return _filled(given, apiGroup=RBAC_GROUP) if given.get("kind") in {"User", "Group"} else given


def core_event(given: Object) -> Object:
    """Go writes these fields of an event also where there is nothing in them."""
    written: Object = {"source": {}, "firstTimestamp": None, "lastTimestamp": None, "eventTime": None}
    return {**written, "reportingComponent": "", "reportingInstance": "", **given}


def event(given: Object) -> Object:
    moments = {"deprecatedFirstTimestamp": None, "deprecatedLastTimestamp": None, "eventTime": None}
    return {**moments, "deprecatedSource": {}, **given}


def definition_spec(given: Object) -> Object:
    """Of a CustomResourceDefinition."""
    names = given.get("names", {})
    kind = names.get("kind", "")
    derived = {"singular": kind.lower(), "listKind": f"{kind}List"} if kind else {}
    return {"conversion": {"strategy": "None"}, **given, "names": _filled(names, **derived)}


DEFAULTS: Final[Completions] = {
    "admissionregistration.v1.MatchResources": _filling(
        matchPolicy="Equivalent", namespaceSelector={}, objectSelector={}
    ),
    "admissionregistration.v1.NamedRuleWithOperations": _filling(scope="*"),
    "admissionregistration.v1.ParamRef": _filling(parameterNotFoundAction="Deny"),
    "admissionregistration.v1.ValidatingAdmissionPolicy": lambda given: {"status": {}, **given},
    "admissionregistration.v1.ValidatingAdmissionPolicySpec": _filling(failurePolicy="Fail"),
    "apiextensions.v1.CustomResourceDefinitionSpec": definition_spec,
    "apps.v1.DaemonSet": daemon_set,
    "apps.v1.Deployment": deployment,
    "apps.v1.ReplicaSet": replica_set,
    "apps.v1.StatefulSet": stateful_set,
    "authentication.v1.TokenRequest": token_request,
    "batch.v1.CronJob": cron_job,
    "batch.v1.Job": job,
    "coordination.v1.Lease": lambda given: {"spec": {}, **given},
    "core.v1.AzureDiskVolumeSource": _filling(cachingMode="ReadWrite", fsType="ext4", kind="Shared", readOnly=False),
    "core.v1.ConfigMapVolumeSource": _filling(defaultMode=FILE_MODE),
    "core.v1.Container": container,
    "core.v1.ContainerPort": _filling(protocol="TCP"),
    "core.v1.DownwardAPIVolumeSource": _filling(defaultMode=FILE_MODE),
    "core.v1.EphemeralContainer": container,
    "core.v1.Event": core_event,
    "core.v1.HTTPGetAction": _filling(path="/", scheme="HTTP"),
    "core.v1.HostPathVolumeSource": lambda given: {"type": "", **given},
    "core.v1.ISCSIPersistentVolumeSource": _filling(iscsiInterface="default"),
    "core.v1.ISCSIVolumeSource": _filling(iscsiInterface="default"),
    "core.v1.ImageVolumeSource": image_volume,
    "core.v1.Namespace": namespace,
    "core.v1.Node": node,
    "core.v1.NodeStatus": node_status,
    "core.v1.ObjectFieldSelector": _filling(apiVersion="v1"),
    "core.v1.PersistentVolume": persistent_volume,
    "core.v1.PersistentVolumeClaim": persistent_volume_claim,
    "core.v1.PersistentVolumeClaimSpec": claim_spec,
    "core.v1.PersistentVolumeClaimTemplate": claim_template,
    "core.v1.Pod": pod,
    "core.v1.PodSpec": pod_spec,
    "core.v1.PodStatus": pod_status,
    "core.v1.PodTemplateSpec": pod_template,
    "core.v1.Probe": probe,
    "core.v1.ProjectedVolumeSource": _filling(defaultMode=FILE_MODE),
    "core.v1.RBDPersistentVolumeSource": _filling(pool="rbd", user="admin", keyring="/etc/ceph/keyring"),
    "core.v1.RBDVolumeSource": _filling(pool="rbd", user="admin", keyring="/etc/ceph/keyring"),
    "core.v1.ScaleIOPersistentVolumeSource": _filling(storageMode="ThinProvisioned", fsType="xfs"),
    "core.v1.ScaleIOVolumeSource": _filling(storageMode="ThinProvisioned", fsType="xfs"),
    "core.v1.Secret": secret,
    "core.v1.SecretVolumeSource": _filling(defaultMode=FILE_MODE),
    "core.v1.ServiceAccountTokenProjection": _filling(expirationSeconds=ONE_HOUR),
    "core.v1.ServicePort": service_port,
    "core.v1.Volume": volume,
    "events.v1.Event": event,
    "rbac.v1.ClusterRoleBinding": role_binding,
    "rbac.v1.RoleBinding": role_binding,
    "rbac.v1.Subject": subject,
    "storage.v1.CSIDriver": csi_driver,
    "storage.v1.CSINode": lambda given: {"status": {}, **given},
    "storage.v1.StorageClass": _filling(reclaimPolicy="Delete", volumeBindingMode="Immediate"),
}
