"""Objects put through the API server's rules: created, updated, and what was wrong with them as Kubernetes says it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from onenode.apiserver.schema.creation_rules import CreationContext
from onenode.apiserver.schema.schemas import Schemas
from onenode.apiserver.schema.validation_rules import (
    NEVER_STORED_KINDS,
    Prepared,
    decode_object,
    prepare_create,
    prepare_update,
)

SCHEMAS = Schemas.load()
NOW = "2026-08-01T12:00:00Z"
LATER = "2026-08-01T13:00:00Z"
STORAGE = "storage.k8s.io/v1"
RBAC = "rbac.authorization.k8s.io/v1"
CLUSTER_SCOPED = {
    *("Namespace", "Node", "PersistentVolume", "StorageClass", "CSIDriver", "CSINode", "VolumeAttachment"),
    *("ClusterRole", "ClusterRoleBinding", "SubjectAccessReview", "SelfSubjectAccessReview"),
}

VOLUME = {
    "capacity": {"storage": "1Gi"},
    "accessModes": ["ReadWriteOnce"],
    "csi": {"driver": "csi.example.com", "volumeHandle": "h"},
}
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
ATTACHMENT = {"attacher": "csi.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}
CONTAINER = {"name": "c", "image": "busybox:1"}
TEMPLATE = {"metadata": {"labels": {"app": "a"}}, "spec": {"containers": [CONTAINER]}}
WORKLOAD = {"selector": {"matchLabels": {"app": "a"}}, "template": TEMPLATE}


def create(api_version: str, kind: str, body: Mapping[str, Any], **around: Any) -> Prepared:
    metadata = {} if kind in NEVER_STORED_KINDS else {"metadata": {"name": "x", **body.get("metadata", {})}}
    decoded = decode_object(SCHEMAS, api_version, kind, {**body, **metadata})
    namespace = None if kind in CLUSTER_SCOPED else "default"
    surroundings = {"now": NOW, "uid": "uid-1", "name_suffix": "bcdfg", "namespace": namespace, **around}
    return prepare_create(SCHEMAS, api_version, kind, decoded.object, CreationContext(**surroundings))


def stored(api_version: str, kind: str, body: Mapping[str, Any], **around: Any) -> dict[str, Any]:
    """An object as it is after it was created; it must be valid."""
    made = create(api_version, kind, body, **around)
    assert made.causes == ()
    return {**made.object, "metadata": {**made.object["metadata"], "resourceVersion": "7"}}


def update(old: Mapping[str, Any], new: Mapping[str, Any], subresource: str = "") -> Prepared:
    decoded = decode_object(SCHEMAS, old["apiVersion"], old["kind"], new)
    return prepare_update(SCHEMAS, dict(old), decoded.object, now=LATER, subresource=subresource)


def changed(old: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """The object with these fields; a mapping is merged one level deep, and None takes away."""
    made = dict(old)
    for name, value in fields.items():
        merged = {**made.get(name, {}), **value} if isinstance(value, dict) else value
        made[name] = {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
    return {name: value for name, value in made.items() if value is not None}


def said(prepared: Prepared) -> list[str]:
    return [str(cause) for cause in prepared.causes]


def wrong(api_version: str, kind: str, body: Mapping[str, Any]) -> list[str]:
    return said(create(api_version, kind, body))


def wrong_change(old: Mapping[str, Any], subresource: str = "", **fields: Any) -> list[str]:
    return said(update(old, changed(old, **fields), subresource))
