"""One entry per kind, and one per type of part: what a new object gets, what is validated, what may change.

KINDS is keyed by apiVersion and kind; a kind that has no entry is stored as it is, with its metadata checked.
TYPE_RULES is keyed by the type of a part and holds wherever such a part stands: the spec of a claim is validated there,
since pods and StatefulSets hold templates of claims. A status is validated by its kind alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from onenode.apiserver.custom_resources import definition_rules, definition_status_rules
from onenode.apiserver.kinds import (
    access_kind_rules,
    admission_kind_rules,
    core_kind_rules,
    pod_rules,
    pod_update_rules,
    storage_kind_rules,
    volume_claim_rules,
    volume_rules,
    workload_rules,
)
from onenode.apiserver.kinds.container_validation_rules import CONTAINER_RULES
from onenode.apiserver.kinds.pod_rules import POD_RULES
from onenode.apiserver.kinds.volume_claim_rules import claim_spec
from onenode.apiserver.kinds.volume_source_validation_rules import REQUIRED_BY_SCHEMA, SOURCE_RULES
from onenode.apiserver.schema import creation_rules, name_rules
from onenode.apiserver.schema.creation_rules import Maker
from onenode.apiserver.schema.field_errors import Cause, required
from onenode.apiserver.schema.field_rules import is_empty, label_selector, node_selector
from onenode.apiserver.schema.metadata_rules import KEPT_BY_STATUS
from onenode.apiserver.schema.name_rules import NameCheck
from onenode.apiserver.schema.schemas import Definition, ListType, MapType, ReferenceType, Scalar, Schemas, Type
from orlop.kube.kinds import STORED_ONLY

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
_ADMISSION: Final = "admissionregistration.k8s.io/v1"
_RBAC: Final = "rbac.authorization.k8s.io/v1"

KINDS: Final[Mapping[tuple[str, str], KindRules]] = {
    ("v1", "Namespace"): KindRules(
        name_check=name_rules.dns_label,
        make=creation_rules.new_namespace,
        causes=core_kind_rules.namespace,
        has_status=True,
        status_causes=core_kind_rules.namespace_status,
    ),
    ("v1", "Node"): KindRules(
        make=creation_rules.new_node,
        causes=core_kind_rules.node,
        update_causes=core_kind_rules.node_update,
        has_status=True,
        status_causes=core_kind_rules.node_status,
    ),
    ("v1", "Pod"): KindRules(
        make=creation_rules.new_pod,
        causes=pod_rules.new_pod,
        update_causes=pod_update_rules.pod_update,
        has_status=True,
        status_causes=pod_update_rules.pod_status,
        status_keeps=("ownerReferences",),
        generation_of="spec",
        first_generation=1,
    ),
    ("v1", "PersistentVolume"): KindRules(
        make=creation_rules.new_volume,
        causes=volume_rules.persistent_volume,
        update_causes=volume_rules.volume_update,
        has_status=True,
    ),
    ("v1", "PersistentVolumeClaim"): KindRules(
        make=creation_rules.new_claim,
        # Its spec is validated by TYPE_RULES below, like every template of a claim.
        update_causes=volume_claim_rules.claim_update,
        has_status=True,
        status_causes=volume_claim_rules.claim_status,
    ),
    ("v1", "Secret"): KindRules(causes=core_kind_rules.secret, update_causes=core_kind_rules.secret_update),
    ("v1", "ConfigMap"): KindRules(causes=core_kind_rules.config_map, update_causes=core_kind_rules.config_map_update),
    ("v1", "ServiceAccount"): KindRules(make=creation_rules.new_service_account),
    ("v1", "Binding"): KindRules(causes=core_kind_rules.binding),
    ("v1", "Event"): KindRules(
        name_check=name_rules.path_segment, causes=core_kind_rules.core_event, created_by_replacing=True
    ),
    ("events.k8s.io/v1", "Event"): KindRules(
        causes=core_kind_rules.event, update_causes=core_kind_rules.event_update, created_by_replacing=True
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
        make=creation_rules.with_empty_status,
        causes=storage_kind_rules.csi_node,
        update_causes=storage_kind_rules.csi_node_update,
        has_status=True,
        status_causes=storage_kind_rules.csi_node_status,
        status_keeps=KEPT_BY_STATUS,
        replaced_without_version=False,
    ),
    (_STORAGE, "VolumeAttachment"): KindRules(
        make=creation_rules.new_attachment,
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
    (_STORAGE, "VolumeAttributesClass"): KindRules(
        causes=storage_kind_rules.attributes_class, update_causes=storage_kind_rules.attributes_class_update
    ),
    ("apps/v1", "Deployment"): KindRules(
        make=creation_rules.with_counts(),
        causes=workload_rules.deployment,
        update_causes=workload_rules.selector_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        status_keeps=("labels",),
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "ReplicaSet"): KindRules(
        make=creation_rules.with_counts("replicas"),
        causes=workload_rules.replica_set,
        update_causes=workload_rules.selector_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "StatefulSet"): KindRules(
        name_check=name_rules.dns_label,
        make=creation_rules.with_counts("replicas", "availableReplicas"),
        parts=workload_rules.with_claim_volumes,
        causes=workload_rules.stateful_set,
        update_causes=workload_rules.stateful_set_update,
        has_status=True,
        status_causes=workload_rules.workload_status,
        generation_of="spec",
        first_generation=1,
    ),
    ("apps/v1", "DaemonSet"): KindRules(
        make=creation_rules.with_counts(
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
    (_ADMISSION, "ValidatingAdmissionPolicy"): KindRules(
        make=lambda given, _around: {**given, "status": {}},
        causes=admission_kind_rules.admission_policy,
        has_status=True,
        generation_of="spec",
        first_generation=1,
        replaced_without_version=False,
    ),
    (_ADMISSION, "ValidatingAdmissionPolicyBinding"): KindRules(
        causes=admission_kind_rules.admission_binding,
        generation_of="spec",
        first_generation=1,
        replaced_without_version=False,
    ),
    ("apiextensions.k8s.io/v1", "CustomResourceDefinition"): KindRules(
        qualified_finalizers=False,
        make=definition_status_rules.new_definition,
        causes=definition_rules.definition,
        update_causes=definition_rules.definition_update,
        has_status=True,
        generation_of="spec",
        first_generation=1,
        replaced_without_version=False,
    ),
    ("authentication.k8s.io/v1", "TokenRequest"): KindRules(causes=access_kind_rules.token_request),
    ("authorization.k8s.io/v1", "SubjectAccessReview"): KindRules(causes=access_kind_rules.access_review),
    ("authorization.k8s.io/v1", "LocalSubjectAccessReview"): KindRules(causes=access_kind_rules.local_access_review),
    ("authorization.k8s.io/v1", "SelfSubjectAccessReview"): KindRules(causes=access_kind_rules.self_access_review),
    **{
        (kind.api_version, kind.kind): KindRules(has_status=True, generation_of="spec", first_generation=1)
        for kind in STORED_ONLY
        if kind.has_status
    },
    ("batch/v1", "Job"): KindRules(
        make=creation_rules.new_job, has_status=True, generation_of="spec", first_generation=1
    ),
}


def rules_of(api_version: str, kind: str) -> KindRules:
    return KINDS.get((api_version, kind), _PLAIN)


# ---- parts of objects ------------------------------------------------------------------------------------------------

# What is wrong with the parts of an object: each part of a type that has a rule is asked, wherever it stands.
#
# Status is left out: what a status may hold is said by its kind alone.


TYPE_RULES: Final[Mapping[str, Callable[[Object, str], Iterator[Cause]]]] = {
    **CONTAINER_RULES,
    **POD_RULES,
    **SOURCE_RULES,
    "core.v1.NodeSelector": node_selector,
    "core.v1.PersistentVolumeClaimSpec": claim_spec,
    "meta.v1.LabelSelector": label_selector,
}


def part_causes(schemas: Schemas, definition: Definition, value: Object, path: str = "") -> list[Cause]:
    """`value` was decoded, so that all of it is of the types its definition says."""
    found: list[Cause] = []
    rule = TYPE_RULES.get(definition.name)
    if rule is not None:
        found += rule(value, path)
    if definition.name in REQUIRED_BY_SCHEMA:
        found += _required(definition, value, path)
    for name, inner in value.items():
        field = definition.fields.get(name)
        # Plain values have no parts: most fields end here.
        if field is not None and not isinstance(field.type, Scalar) and name != "status":
            found += _inside(schemas, field.type, inner, f"{path}.{name}" if path else name)
    return found


def _required(definition: Definition, value: Object, path: str) -> Iterator[Cause]:
    for name in definition.required:
        if is_empty(value.get(name)) and not _is_number(definition.fields[name].type):
            yield required(f"{path}.{name}")


def _is_number(type_: Type) -> bool:
    return type_ in {Scalar("int32"), Scalar("int64"), Scalar("bool")}


def _inside(schemas: Schemas, type_: Type, value: Any, path: str) -> list[Cause]:
    match type_:
        case ReferenceType(name) if isinstance(value, dict):
            return part_causes(schemas, schemas.definition(name), value, path)
        case ListType(ReferenceType(name)):
            inner = schemas.definition(name)
            parts = (part_causes(schemas, inner, item, f"{path}[{place}]") for place, item in enumerate(value))
        case MapType(ReferenceType(name)):
            inner = schemas.definition(name)
            parts = (part_causes(schemas, inner, item, f"{path}[{key}]") for key, item in value.items())
        case _:
            return []
    return [cause for causes in parts for cause in causes]
