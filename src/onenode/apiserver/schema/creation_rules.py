"""What the server makes of a new object of each kind, after its defaults are set: status, finalizers, admission.

Whatever depends on the world (the time, other objects, randomness) is in CreationContext. Each function gives a new
object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.schema.field_rules import quantity, without

Object = dict[str, Any]

CLAIM_FINALIZER: Final = "kubernetes.io/pvc-protection"
VOLUME_FINALIZER: Final = "kubernetes.io/pv-protection"
NAMESPACE_FINALIZER: Final = "kubernetes"
NOT_READY: Final = "node.kubernetes.io/not-ready"
UNREACHABLE: Final = "node.kubernetes.io/unreachable"
TOLERATED_SECONDS: Final = 300
CLASS_ANNOTATION: Final = "volume.beta.kubernetes.io/storage-class"
DEFAULT_CLASS_ANNOTATIONS: Final = (
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
)
TOKEN_FOLDER: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105  a path, no token
TOKEN_SECONDS: Final = 3607
MIRROR_ANNOTATION: Final = "kubernetes.io/config.mirror"

JOB_UID_LABEL: Final = "batch.kubernetes.io/controller-uid"


@dataclass(frozen=True, slots=True)
class CreationContext:
    """What the making of an object depends on: `now` as RFC 3339 in seconds, five random letters, and other objects.

    `namespace` is the one of the request, None for kinds that have none. `service_account` is the one the pod names (or
    `default`), and None where there is none: then no token is mounted. `definitions` are the CustomResourceDefinitions
    there are.
    """

    now: str
    uid: str
    name_suffix: str
    namespace: str | None = None
    default_class: str | None = None
    service_account: Mapping[str, Any] | None = None
    definitions: Sequence[Mapping[str, Any]] = ()


Maker = Callable[[Object, CreationContext], Object]


def default_class(classes: Sequence[Mapping[str, Any]]) -> str | None:
    """The class of claims that name none: of several, the newest, then the first by name."""
    marked = [each for each in classes if _is_default(each)]
    ordered = sorted(marked, key=lambda each: each["metadata"]["name"])
    ordered.sort(key=lambda each: each["metadata"].get("creationTimestamp", ""), reverse=True)
    return ordered[0]["metadata"]["name"] if ordered else None


def _is_default(storage_class: Mapping[str, Any]) -> bool:
    annotations = storage_class["metadata"].get("annotations", {})
    return any(annotations.get(name) == "true" for name in DEFAULT_CLASS_ANNOTATIONS)


def new_pod(pod: Object, around: CreationContext) -> Object:
    spec = {**pod.get("spec", {})}
    mirror = MIRROR_ANNOTATION in pod.get("metadata", {}).get("annotations", {})
    if not mirror and not spec.get("serviceAccountName"):
        spec |= {"serviceAccountName": "default", "serviceAccount": "default"}
    spec = {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **with_tolerations(spec)}
    if not mirror and around.service_account is not None:
        spec = _with_account(spec, around.service_account, around.name_suffix)
    status: Object = {"phase": "Pending", "qosClass": qos_class(spec)}
    if spec.get("schedulingGates"):
        status["conditions"] = [_gated(around.now)]
    return {**pod, "spec": spec, "status": status}


def _gated(now: str) -> Object:
    return {
        "type": "PodScheduled",
        "status": "False",
        "reason": "SchedulingGated",
        "message": "Scheduling is blocked due to non-empty scheduling gates",
        "lastTransitionTime": now,
    }


def missing_account(namespace: str, name: str) -> str:
    """Why a pod is refused (403) whose service account is not there."""
    return f'error looking up service account {namespace}/{name}: serviceaccount "{name}" not found'


def with_tolerations(spec: Object) -> Object:
    """A pod stays for a while on a node that is not ready or not reached."""
    tolerations = list(spec.get("tolerations", []))
    for key in (NOT_READY, UNREACHABLE):
        if not any(_tolerates(each, key) for each in tolerations):
            tolerations.append(
                {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": TOLERATED_SECONDS}
            )
    return {**spec, "tolerations": tolerations}


def _tolerates(toleration: Mapping[str, Any], key: str) -> bool:
    return toleration.get("key", "") in {"", key} and toleration.get("effect", "") in {"", "NoExecute"}


def _with_account(spec: Object, account: Mapping[str, Any], suffix: str) -> Object:
    wanted = spec.get("automountServiceAccountToken", account.get("automountServiceAccountToken", True))
    secrets = spec.get("imagePullSecrets") or [{"name": each["name"]} for each in account.get("imagePullSecrets", [])]
    made = {**spec, "imagePullSecrets": secrets} if secrets else spec
    return _with_token(made, f"kube-api-access-{suffix}") if wanted else made


def _with_token(spec: Object, volume: str) -> Object:
    """Every container that has nothing mounted there gets the token, the certificate and the namespace."""
    mounted = False
    made = dict(spec)
    for kind in ("initContainers", "containers"):
        containers = []
        for each in spec.get(kind, []):
            taken = any(mount.get("mountPath") == TOKEN_FOLDER for mount in each.get("volumeMounts", []))
            mounted = mounted or not taken
            mount = {"name": volume, "mountPath": TOKEN_FOLDER, "readOnly": True}
            containers.append(each if taken else {**each, "volumeMounts": [*each.get("volumeMounts", []), mount]})
        if containers:
            made[kind] = containers
    if mounted:
        made["volumes"] = [*spec.get("volumes", []), {"name": volume, "projected": _token_volume()}]
    return made


def _token_volume() -> Object:
    namespace = {"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}
    return {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": TOKEN_SECONDS, "path": "token"}},
            {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
            {"downwardAPI": {"items": [namespace]}},
        ],
    }


def qos_class(spec: Mapping[str, Any]) -> str:
    containers = [*spec.get("initContainers", []), *spec.get("containers", [])]
    classes = {_container_class(each.get("resources", {})) for each in containers}
    return classes.pop() if len(classes) == 1 else "Burstable" if classes else "BestEffort"


def _container_class(resources: Mapping[str, Any]) -> str:
    requests, limits = resources.get("requests", {}), resources.get("limits", {})
    if not requests and not limits:
        return "BestEffort"
    classes = set()
    for name in ("cpu", "memory"):
        request, limit = quantity(requests.get(name)), quantity(limits.get(name))
        same = "Guaranteed" if request.nanos else "BestEffort"
        classes.add(same if request == limit else "Burstable")
    return classes.pop() if len(classes) == 1 else "Burstable"


def new_claim(claim: Object, around: CreationContext) -> Object:
    spec = with_data_sources(_without_odd_source(claim.get("spec", {})))
    annotated = CLASS_ANNOTATION in claim.get("metadata", {}).get("annotations", {})
    if spec.get("storageClassName") is None and not annotated and around.default_class is not None:
        spec = {**spec, "storageClassName": around.default_class}
    return {**_with_finalizer(claim, CLAIM_FINALIZER), "spec": spec, "status": {"phase": "Pending"}}


def _without_odd_source(spec: Object) -> Object:
    """Alone, `dataSource` may name only a claim or a snapshot; anything else is silently dropped."""
    source = spec.get("dataSource")
    if source is None or "dataSourceRef" in spec:
        return spec
    known = (source.get("apiGroup") or "", source.get("kind"))
    allowed = {("", "PersistentVolumeClaim"), ("snapshot.storage.k8s.io", "VolumeSnapshot")}
    return spec if known in allowed else without(spec, ["dataSource"])


def with_data_sources(spec: Object) -> Object:
    """The two fields for one thing say the same, unless the source is in another namespace."""
    source, reference = spec.get("dataSource"), spec.get("dataSourceRef")
    if source is not None and reference is None:
        return {**spec, "dataSourceRef": dict(source)}
    if source is None and reference is not None and not reference.get("namespace"):
        return {**spec, "dataSource": without(reference, ["namespace"])}
    return spec


def new_volume(volume: Object, around: CreationContext) -> Object:
    status = {"phase": "Pending", "lastPhaseTransitionTime": around.now}
    return {**_with_finalizer(volume, VOLUME_FINALIZER), "status": status}


def _with_finalizer(given: Object, finalizer: str) -> Object:
    metadata = given.get("metadata", {})
    finalizers = metadata.get("finalizers", [])
    if finalizer in finalizers:
        return given
    return {**given, "metadata": {**metadata, "finalizers": [*finalizers, finalizer]}}


def new_namespace(namespace: Object, _around: CreationContext) -> Object:
    finalizers = namespace.get("spec", {}).get("finalizers", [])
    if NAMESPACE_FINALIZER not in finalizers:
        finalizers = [*finalizers, NAMESPACE_FINALIZER]
    spec = {**namespace.get("spec", {}), "finalizers": finalizers}
    return {**namespace, "spec": spec, "status": {"phase": "Active"}}


def new_node(node: Object, _around: CreationContext) -> Object:
    spec = node.get("spec", {})
    taints = spec.get("taints", [])
    if not any((taint.get("key"), taint.get("effect")) == (NOT_READY, "NoSchedule") for taint in taints):
        taints = [*taints, {"key": NOT_READY, "effect": "NoSchedule"}]
    return {**node, "spec": {**spec, "taints": taints}}


def new_attachment(attachment: Object, _around: CreationContext) -> Object:
    return {**attachment, "status": {"attached": False}}


def new_job(job: Object, around: CreationContext) -> Object:
    """Its pods are those with its uid, unless its author selects others."""
    spec = job.get("spec", {})
    if spec.get("manualSelector"):
        return {**job, "status": {}}
    named = dict.fromkeys(("job-name", "batch.kubernetes.io/job-name"), job["metadata"].get("name", ""))
    by_uid = dict.fromkeys(("controller-uid", JOB_UID_LABEL), around.uid)
    template, selector = spec.get("template", {}), spec.get("selector", {})
    metadata = template.get("metadata", {})
    labelled = {**metadata, "labels": {**named, **by_uid, **metadata.get("labels", {})}}
    selected = {**selector, "matchLabels": {JOB_UID_LABEL: around.uid, **selector.get("matchLabels", {})}}
    return {**job, "spec": {**spec, "template": {**template, "metadata": labelled}, "selector": selected}, "status": {}}


def new_service_account(account: Object, _around: CreationContext) -> Object:
    return with_plain_secrets(account)


def with_plain_secrets(account: Object) -> Object:
    """Of the secrets of a service account, the name alone is kept."""
    if "secrets" not in account:
        return account
    return {**account, "secrets": [{"name": each.get("name", "")} for each in account["secrets"]]}


def with_counts(*fields: str) -> Maker:
    """The status of a workload nobody has looked at yet."""
    return lambda given, _around: {**given, "status": dict.fromkeys(fields, 0)}


def with_empty_status(given: Object, _around: CreationContext) -> Object:
    return {**given, "status": {}}
