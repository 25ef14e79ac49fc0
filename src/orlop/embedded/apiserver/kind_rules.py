"""One entry per kind: which names it takes, what the server makes of a new one, what is validated, what may change.

Kinds are keyed by apiVersion and kind. A kind that has no entry is stored as it is, with its metadata checked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from orlop.embedded.apiserver import (
    access_kind_rules,
    birth_rules,
    claim_rules,
    core_kind_rules,
    event_rules,
    name_rules,
    pod_rules,
    pod_update_rules,
    storage_kind_rules,
    volume_rules,
    workload_rules,
)
from orlop.embedded.apiserver.birth_rules import Maker
from orlop.embedded.apiserver.causes import Cause
from orlop.embedded.apiserver.metadata_rules import KEPT_BY_STATUS
from orlop.embedded.apiserver.name_rules import NameCheck

Object = Mapping[str, Any]


def _nothing_wrong(*_objects: Object) -> Iterator[Cause]:
    return iter(())


@dataclass(frozen=True, slots=True)
class KindRules:
    """`status_keeps` are the fields of metadata that /status leaves as they were; most kinds' /status keeps changes.

    `parts` is the object whose parts are checked type by type, where that is not quite the object itself.
    `generation_of` is the field whose changes are counted, if any; `first_generation` what a new object begins with.
    """

    name_check: NameCheck = name_rules.dns_subdomain
    qualified_finalizers: bool = True
    make: Maker = lambda given, _around: given
    parts: Callable[[dict[str, Any]], dict[str, Any]] = lambda given: given
    causes: Callable[[Object], Iterator[Cause]] = _nothing_wrong
    update_causes: Callable[[Object, Object], Iterator[Cause]] = _nothing_wrong
    has_status: bool = False
    status_causes: Callable[[Object, Object], Iterator[Cause]] = _nothing_wrong
    status_keeps: tuple[str, ...] = ()
    generation_of: str | None = None
    first_generation: int | None = None
    replaced_without_version: bool = True
    created_by_replacing: bool = False


_PLAIN: Final = KindRules()
_STORAGE: Final = "storage.k8s.io/v1"
_RBAC: Final = "rbac.authorization.k8s.io/v1"

KINDS: Final[Mapping[tuple[str, str], KindRules]] = {
    ("v1", "Namespace"): KindRules(
        name_check=name_rules.dns_label,
        make=birth_rules.new_namespace,
        causes=core_kind_rules.namespace,
        has_status=True,
        status_causes=core_kind_rules.namespace_status,
    ),
    ("v1", "Node"): KindRules(
        make=birth_rules.new_node,
        causes=core_kind_rules.node,
        update_causes=core_kind_rules.node_update,
        has_status=True,
        status_causes=core_kind_rules.node_status,
    ),
    ("v1", "Pod"): KindRules(
        make=birth_rules.new_pod,
        causes=pod_rules.new_pod,
        update_causes=pod_update_rules.pod_update,
        has_status=True,
        status_causes=pod_update_rules.pod_status,
        status_keeps=("ownerReferences",),
        generation_of="spec",
        first_generation=1,
    ),
    ("v1", "PersistentVolume"): KindRules(
        make=birth_rules.new_volume,
        causes=volume_rules.persistent_volume,
        update_causes=volume_rules.volume_update,
        has_status=True,
    ),
    ("v1", "PersistentVolumeClaim"): KindRules(
        make=birth_rules.new_claim,
        update_causes=claim_rules.claim_update,
        has_status=True,
        status_causes=claim_rules.claim_status,
    ),
    ("v1", "Secret"): KindRules(causes=core_kind_rules.secret, update_causes=core_kind_rules.secret_update),
    ("v1", "ConfigMap"): KindRules(causes=core_kind_rules.config_map, update_causes=core_kind_rules.config_map_update),
    ("v1", "ServiceAccount"): KindRules(make=birth_rules.new_service_account),
    ("v1", "Binding"): KindRules(causes=core_kind_rules.binding),
    ("v1", "Event"): KindRules(
        name_check=name_rules.path_segment, causes=event_rules.core_event, created_by_replacing=True
    ),
    ("events.k8s.io/v1", "Event"): KindRules(
        causes=event_rules.event, update_causes=event_rules.event_update, created_by_replacing=True
    ),
    ("coordination.k8s.io/v1", "Lease"): KindRules(
        qualified_finalizers=False,
        causes=core_kind_rules.lease,
        replaced_without_version=False,
        created_by_replacing=True,
    ),
    (_STORAGE, "StorageClass"): KindRules(
        causes=storage_kind_rules.storage_class, update_causes=storage_kind_rules.storage_class_update
    ),
    (_STORAGE, "CSIDriver"): KindRules(
        causes=storage_kind_rules.csi_driver,
        update_causes=storage_kind_rules.csi_driver_update,
        generation_of="spec",
        replaced_without_version=False,
    ),
    (_STORAGE, "CSINode"): KindRules(
        make=birth_rules.with_empty_status,
        causes=storage_kind_rules.csi_node,
        update_causes=storage_kind_rules.csi_node_update,
        has_status=True,
        status_causes=storage_kind_rules.csi_node_status,
        status_keeps=KEPT_BY_STATUS,
        replaced_without_version=False,
    ),
    (_STORAGE, "VolumeAttachment"): KindRules(
        make=birth_rules.new_attachment,
        causes=storage_kind_rules.volume_attachment,
        update_causes=storage_kind_rules.volume_attachment_update,
        has_status=True,
        status_causes=storage_kind_rules.attachment_status,
        status_keeps=KEPT_BY_STATUS,
        replaced_without_version=False,
    ),
    (_STORAGE, "CSIStorageCapacity"): KindRules(
        causes=storage_kind_rules.storage_capacity,
        update_causes=storage_kind_rules.storage_capacity_update,
        replaced_without_version=False,
    ),
    ("apps/v1", "Deployment"): KindRules(
        make=birth_rules.with_counts(),
        causes=workload_rules.deployment,
        update_causes=workload_rules.selector_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        status_keeps=("labels",),
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "ReplicaSet"): KindRules(
        make=birth_rules.with_counts("replicas"),
        causes=workload_rules.replica_set,
        update_causes=workload_rules.selector_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "StatefulSet"): KindRules(
        name_check=name_rules.dns_label,
        make=birth_rules.with_counts("replicas", "availableReplicas"),
        parts=workload_rules.with_claim_volumes,
        causes=workload_rules.stateful_set,
        update_causes=workload_rules.stateful_set_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "DaemonSet"): KindRules(
        make=birth_rules.with_counts(
            *("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
        ),
        causes=workload_rules.daemon_set,
        update_causes=workload_rules.selector_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        generation_of="spec",
        first_generation=1,
    ),
    (_RBAC, "Role"): KindRules(
        name_check=name_rules.path_segment, causes=access_kind_rules.role, created_by_replacing=True
    ),
    (_RBAC, "ClusterRole"): KindRules(
        name_check=name_rules.path_segment, causes=access_kind_rules.cluster_role, created_by_replacing=True
    ),
    (_RBAC, "RoleBinding"): KindRules(
        name_check=name_rules.path_segment,
        causes=access_kind_rules.role_binding,
        update_causes=access_kind_rules.role_reference_update,
        created_by_replacing=True,
    ),
    (_RBAC, "ClusterRoleBinding"): KindRules(
        name_check=name_rules.path_segment,
        causes=access_kind_rules.cluster_role_binding,
        update_causes=access_kind_rules.role_reference_update,
        created_by_replacing=True,
    ),
    ("authentication.k8s.io/v1", "TokenRequest"): KindRules(causes=access_kind_rules.token_request),
    ("authorization.k8s.io/v1", "SubjectAccessReview"): KindRules(causes=access_kind_rules.access_review),
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): KindRules(causes=access_kind_rules.local_access_review),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): KindRules(causes=access_kind_rules.self_access_review),
}


def rules_of(api_version: str, kind: str) -> KindRules:
    return KINDS.get((api_version, kind), _PLAIN)
