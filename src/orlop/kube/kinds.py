"""Kinds of API objects: their names, paths and verbs. Pure.

`Kind` describes any kind, including custom resources. The constants are the built-in kinds that Orlop uses, as in
Kubernetes' discovery. Nothing here knows the fields of a kind, nor which kinds a server serves.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

READ_VERBS: Final = ("get", "list", "watch")
WRITE_VERBS: Final = ("create", "delete", "deletecollection", "patch", "update")
ALL_VERBS: Final = tuple(sorted((*READ_VERBS, *WRITE_VERBS)))
STATUS_VERBS: Final = ("get", "patch", "update")

# Characters allowed in a path segment besides letters, digits and "_.-~"; RBAC names have colons.
UNQUOTED: Final = "!$&'()*+,;=:@"


class InvalidPath(ValueError):
    """An object or a collection that has no valid path."""


@dataclass(frozen=True, slots=True)
class Subresource:
    """A subresource; its body is of the object's kind unless `kind` names another."""

    name: str
    verbs: tuple[str, ...]
    kind: str = ""
    group: str | None = None
    """The group of that other kind; None means the object's."""
    version: str = ""


STATUS: Final = Subresource("status", STATUS_VERBS)
SCALE: Final = Subresource("scale", STATUS_VERBS, kind="Scale", group="autoscaling", version="v1")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind, with the names of discovery: `plural` is the resource, `kind` is in objects."""

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool
    singular: str = ""
    short_names: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ALL_VERBS
    subresources: tuple[Subresource, ...] = ()

    def __post_init__(self) -> None:
        for field in ("version", "kind", "plural"):
            if not getattr(self, field):
                raise ValueError(f"a kind needs a {field}: {self!r}")
        if not self.singular:
            object.__setattr__(self, "singular", self.kind.lower())

    def __str__(self) -> str:
        return f"{self.api_version} {self.kind}"

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def list_kind(self) -> str:
        return f"{self.kind}List"

    @property
    def resource(self) -> str:
        """The resource in messages: `persistentvolumes`, `volumeattachments.storage.k8s.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def qualified_kind(self) -> str:
        """The kind in messages about an object: `PersistentVolume`, `VolumeAttachment.storage.k8s.io`."""
        return f"{self.kind}.{self.group}" if self.group else self.kind

    @property
    def group_path(self) -> str:
        return f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"

    @property
    def has_status(self) -> bool:
        return self.subresource("status") is not None

    def subresource(self, name: str) -> Subresource | None:
        return next((subresource for subresource in self.subresources if subresource.name == name), None)

    def collection_path(self, namespace: str | None = None) -> str:
        """Return the path to list and create objects. Without a namespace, all namespaces are listed."""
        if namespace is None:
            return f"{self.group_path}/{self.plural}"
        if not self.namespaced:
            raise InvalidPath(f"{self.resource} have no namespace, so {namespace!r} cannot be theirs")
        return f"{self.group_path}/namespaces/{_segment(namespace, 'namespace')}/{self.plural}"

    def object_path(self, namespace: str | None, name: str, subresource: str = "") -> str:
        if self.namespaced and namespace is None:
            raise InvalidPath(f"{self.resource} {name!r} needs a namespace: the kind is a namespaced one")
        path = f"{self.collection_path(namespace)}/{_segment(name, 'name')}"
        return f"{path}/{_segment(subresource, 'subresource')}" if subresource else path


def _segment(text: str, what: str) -> str:
    """Encode a text as exactly one path segment, by the API server's rules."""
    if text in {"", ".", ".."} or "/" in text or "%" in text:
        raise InvalidPath(f'{text!r} cannot be a {what}: it may not be empty, ".", "..", nor hold "/" or "%"')
    return quote(text, safe=UNQUOTED)


ALL: Final = ("all",)
CREATE: Final = ("create",)
PROXY_VERBS: Final = ("create", "delete", "get", "patch", "update")
STREAM_VERBS: Final = ("create", "get")
WITHOUT_DELETECOLLECTION: Final = tuple(verb for verb in ALL_VERBS if verb != "deletecollection")


def _proxy(kind: str) -> Subresource:
    return Subresource("proxy", PROXY_VERBS, kind=kind)


# ---- what Kubernetes has: core ---------------------------------------------------------------------------------------

NAMESPACE: Final = Kind(
    "",
    "v1",
    "Namespace",
    "namespaces",
    namespaced=False,
    short_names=("ns",),
    verbs=WITHOUT_DELETECOLLECTION,
    subresources=(Subresource("finalize", ("update",)), STATUS),
)
NODE: Final = Kind(
    "",
    "v1",
    "Node",
    "nodes",
    namespaced=False,
    short_names=("no",),
    subresources=(_proxy("NodeProxyOptions"), STATUS),
)
POD: Final = Kind(
    "",
    "v1",
    "Pod",
    "pods",
    namespaced=True,
    short_names=("po",),
    categories=ALL,
    subresources=(
        Subresource("attach", STREAM_VERBS, kind="PodAttachOptions"),
        Subresource("binding", CREATE, kind="Binding"),
        Subresource("ephemeralcontainers", STATUS_VERBS),
        Subresource("eviction", CREATE, kind="Eviction", group="policy", version="v1"),
        Subresource("exec", STREAM_VERBS, kind="PodExecOptions"),
        Subresource("log", ("get",)),
        Subresource("portforward", STREAM_VERBS, kind="PodPortForwardOptions"),
        _proxy("PodProxyOptions"),
        Subresource("resize", STATUS_VERBS),
        STATUS,
    ),
)
PERSISTENT_VOLUME: Final = Kind(
    "", "v1", "PersistentVolume", "persistentvolumes", namespaced=False, short_names=("pv",), subresources=(STATUS,)
)
PERSISTENT_VOLUME_CLAIM: Final = Kind(
    "",
    "v1",
    "PersistentVolumeClaim",
    "persistentvolumeclaims",
    namespaced=True,
    short_names=("pvc",),
    subresources=(STATUS,),
)
SECRET: Final = Kind("", "v1", "Secret", "secrets", namespaced=True)
CONFIG_MAP: Final = Kind("", "v1", "ConfigMap", "configmaps", namespaced=True, short_names=("cm",))
SERVICE_ACCOUNT: Final = Kind(
    "",
    "v1",
    "ServiceAccount",
    "serviceaccounts",
    namespaced=True,
    short_names=("sa",),
    subresources=(Subresource("token", CREATE, kind="TokenRequest", group="authentication.k8s.io", version="v1"),),
)
BINDING: Final = Kind("", "v1", "Binding", "bindings", namespaced=True, verbs=CREATE)
CORE_EVENT: Final = Kind("", "v1", "Event", "events", namespaced=True, short_names=("ev",))

# ---- what Kubernetes has: the other groups ---------------------------------------------------------------------------

EVENT: Final = Kind("events.k8s.io", "v1", "Event", "events", namespaced=True, short_names=("ev",))

STORAGE_CLASS: Final = Kind(
    "storage.k8s.io", "v1", "StorageClass", "storageclasses", namespaced=False, short_names=("sc",)
)
CSI_DRIVER: Final = Kind("storage.k8s.io", "v1", "CSIDriver", "csidrivers", namespaced=False)
CSI_NODE: Final = Kind("storage.k8s.io", "v1", "CSINode", "csinodes", namespaced=False)
VOLUME_ATTACHMENT: Final = Kind(
    "storage.k8s.io", "v1", "VolumeAttachment", "volumeattachments", namespaced=False, subresources=(STATUS,)
)
CSI_STORAGE_CAPACITY: Final = Kind(
    "storage.k8s.io", "v1", "CSIStorageCapacity", "csistoragecapacities", namespaced=True
)
VOLUME_ATTRIBUTES_CLASS: Final = Kind(
    "storage.k8s.io",
    "v1",
    "VolumeAttributesClass",
    "volumeattributesclasses",
    namespaced=False,
    short_names=("vac",),
)

LEASE: Final = Kind("coordination.k8s.io", "v1", "Lease", "leases", namespaced=True)

DAEMON_SET: Final = Kind(
    "apps",
    "v1",
    "DaemonSet",
    "daemonsets",
    namespaced=True,
    short_names=("ds",),
    categories=ALL,
    subresources=(STATUS,),
)
DEPLOYMENT: Final = Kind(
    "apps",
    "v1",
    "Deployment",
    "deployments",
    namespaced=True,
    short_names=("deploy",),
    categories=ALL,
    subresources=(SCALE, STATUS),
)
STATEFUL_SET: Final = Kind(
    "apps",
    "v1",
    "StatefulSet",
    "statefulsets",
    namespaced=True,
    short_names=("sts",),
    categories=ALL,
    subresources=(SCALE, STATUS),
)
REPLICA_SET: Final = Kind(
    *("apps", "v1", "ReplicaSet", "replicasets"),
    namespaced=True,
    short_names=("rs",),
    categories=ALL,
    subresources=(SCALE, STATUS),
)

CONTROLLER_REVISION: Final = Kind("apps", "v1", "ControllerRevision", "controllerrevisions", namespaced=True)

ROLE: Final = Kind("rbac.authorization.k8s.io", "v1", "Role", "roles", namespaced=True)
ROLE_BINDING: Final = Kind("rbac.authorization.k8s.io", "v1", "RoleBinding", "rolebindings", namespaced=True)
CLUSTER_ROLE: Final = Kind("rbac.authorization.k8s.io", "v1", "ClusterRole", "clusterroles", namespaced=False)
CLUSTER_ROLE_BINDING: Final = Kind(
    "rbac.authorization.k8s.io", "v1", "ClusterRoleBinding", "clusterrolebindings", namespaced=False
)

CUSTOM_RESOURCE_DEFINITION: Final = Kind(
    "apiextensions.k8s.io",
    "v1",
    "CustomResourceDefinition",
    "customresourcedefinitions",
    namespaced=False,
    short_names=("crd", "crds"),
    categories=("api-extensions",),
    subresources=(STATUS,),
)

VALIDATING_ADMISSION_POLICY: Final = Kind(
    *("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicy", "validatingadmissionpolicies"),
    namespaced=False,
    categories=("api-extensions",),
    subresources=(STATUS,),
)
VALIDATING_ADMISSION_POLICY_BINDING: Final = Kind(
    *("admissionregistration.k8s.io", "v1", "ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybindings"),
    namespaced=False,
    categories=("api-extensions",),
)

TOKEN_REVIEW: Final = Kind("authentication.k8s.io", "v1", "TokenReview", "tokenreviews", namespaced=False, verbs=CREATE)
SELF_SUBJECT_REVIEW: Final = Kind(
    "authentication.k8s.io", "v1", "SelfSubjectReview", "selfsubjectreviews", namespaced=False, verbs=CREATE
)
SUBJECT_ACCESS_REVIEW: Final = Kind(
    "authorization.k8s.io", "v1", "SubjectAccessReview", "subjectaccessreviews", namespaced=False, verbs=CREATE
)
SELF_SUBJECT_ACCESS_REVIEW: Final = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectAccessReview", "selfsubjectaccessreviews", namespaced=False, verbs=CREATE
)
LOCAL_SUBJECT_ACCESS_REVIEW: Final = Kind(
    "authorization.k8s.io", "v1", "LocalSubjectAccessReview", "localsubjectaccessreviews", namespaced=True, verbs=CREATE
)
SELF_SUBJECT_RULES_REVIEW: Final = Kind(
    "authorization.k8s.io", "v1", "SelfSubjectRulesReview", "selfsubjectrulesreviews", namespaced=False, verbs=CREATE
)

_PARTS: Final = (STATUS,)
_SCALED: Final = (SCALE, STATUS)
_OF_CLUSTER: Final[dict[str, Any]] = {"namespaced": False}


def _stored(of: str, kind: str, plural: str, short: str = "", **more: Any) -> Kind:
    group, _, version = of.rpartition("/")
    return Kind(group, version, kind, plural, short_names=(short,) if short else (), **{"namespaced": True, **more})


STORED_ONLY: Final = (
    _stored("v1", "Endpoints", "endpoints", "ep"),
    _stored("v1", "LimitRange", "limitranges", "limits"),
    _stored("v1", "ReplicationController", "replicationcontrollers", "rc", categories=ALL, subresources=_SCALED),
    _stored("v1", "ResourceQuota", "resourcequotas", "quota", subresources=_PARTS),
    _stored("v1", "Service", "services", "svc", categories=ALL, subresources=_PARTS),
    _stored("autoscaling/v2", "HorizontalPodAutoscaler", "horizontalpodautoscalers", "hpa", categories=ALL),
    _stored("batch/v1", "CronJob", "cronjobs", "cj", categories=ALL, subresources=_PARTS),
    _stored("batch/v1", "Job", "jobs", categories=ALL, subresources=_PARTS),
    _stored("certificates.k8s.io/v1", "CertificateSigningRequest", "certificatesigningrequests", "csr", **_OF_CLUSTER),
    _stored("certificates.k8s.io/v1", "PodCertificateRequest", "podcertificaterequests"),
    _stored("discovery.k8s.io/v1", "EndpointSlice", "endpointslices"),
    _stored("networking.k8s.io/v1", "IPAddress", "ipaddresses", "ip", **_OF_CLUSTER),
    _stored("networking.k8s.io/v1", "ServiceCIDR", "servicecidrs", **_OF_CLUSTER),
    _stored("node.k8s.io/v1", "RuntimeClass", "runtimeclasses", **_OF_CLUSTER),
    _stored("policy/v1", "PodDisruptionBudget", "poddisruptionbudgets", "pdb", subresources=_PARTS),
    _stored("resource.k8s.io/v1", "DeviceClass", "deviceclasses", **_OF_CLUSTER),
    _stored("resource.k8s.io/v1", "DeviceTaintRule", "devicetaintrules", **_OF_CLUSTER),
    _stored("resource.k8s.io/v1", "ResourceClaim", "resourceclaims", subresources=_PARTS),
    _stored("resource.k8s.io/v1", "ResourceClaimTemplate", "resourceclaimtemplates"),
    _stored("resource.k8s.io/v1", "ResourceSlice", "resourceslices", **_OF_CLUSTER),
    _stored("scheduling.k8s.io/v1", "PriorityClass", "priorityclasses", "pc", **_OF_CLUSTER),
    _stored("storagemigration.k8s.io/v1", "StorageVersionMigration", "storageversionmigrations", **_OF_CLUSTER),
)
"""Kinds that the embedded API server stores for the programs that watch them, and that nothing of ours acts on."""

BUILT_IN: Final[tuple[Kind, ...]] = (
    NAMESPACE,
    NODE,
    POD,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    CONFIG_MAP,
    SERVICE_ACCOUNT,
    BINDING,
    CORE_EVENT,
    EVENT,
    STORAGE_CLASS,
    CSI_DRIVER,
    CSI_NODE,
    VOLUME_ATTACHMENT,
    CSI_STORAGE_CAPACITY,
    VOLUME_ATTRIBUTES_CLASS,
    LEASE,
    DAEMON_SET,
    DEPLOYMENT,
    STATEFUL_SET,
    REPLICA_SET,
    CONTROLLER_REVISION,
    ROLE,
    ROLE_BINDING,
    CLUSTER_ROLE,
    CLUSTER_ROLE_BINDING,
    CUSTOM_RESOURCE_DEFINITION,
    VALIDATING_ADMISSION_POLICY,
    VALIDATING_ADMISSION_POLICY_BINDING,
    TOKEN_REVIEW,
    SELF_SUBJECT_REVIEW,
    SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_ACCESS_REVIEW,
    LOCAL_SUBJECT_ACCESS_REVIEW,
    SELF_SUBJECT_RULES_REVIEW,
    *STORED_ONLY,
)

_BY_RESOURCE: Final[Mapping[tuple[str, str], Kind]] = {(kind.group, kind.plural): kind for kind in BUILT_IN}
_BY_OBJECT: Final[Mapping[tuple[str, str], Kind]] = {(kind.api_version, kind.kind): kind for kind in BUILT_IN}


def kind_of_resource(group: str, plural: str) -> Kind | None:
    """Return the kind for the parts of a path: `("storage.k8s.io", "volumeattachments")`."""
    return _BY_RESOURCE.get((group, plural))


def kind_of_object(api_version: str, kind: str) -> Kind | None:
    """Return the kind for the fields of an object: `("storage.k8s.io/v1", "VolumeAttachment")`."""
    return _BY_OBJECT.get((api_version, kind))
