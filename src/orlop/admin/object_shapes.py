"""Keep of an object only fields of the type that the API defines. Pure.

The rules that controllers follow read objects from an API server, which validates them. `orlop explain` reads from any
server, and must not fail on what it reads: a field of another type is removed before a rule sees it. Fields that are
not listed here are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.admin.explanation import ApiObject, moment

ObjectShape = Any
"""A dict of the shapes of its fields, a list with the shape of its items, or one of the functions below."""


def text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def truth(value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


def time(value: Any) -> str | None:
    return value if moment(value) is not None else None


def quantity(value: Any) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def texts(value: Any) -> dict[str, str] | None:
    """Return labels, annotations or parameters."""
    if not isinstance(value, Mapping):
        return None
    return {key: each for key, each in value.items() if isinstance(key, str) and isinstance(each, str)}


METADATA: Final[ObjectShape] = {
    "name": text,
    "namespace": text,
    "uid": text,
    "labels": texts,
    "annotations": texts,
    "finalizers": [text],
    "creationTimestamp": time,
    "deletionTimestamp": time,
    "deletionGracePeriodSeconds": number,
    "ownerReferences": [{"uid": text, "kind": text, "name": text, "controller": truth}],
}
EXPRESSIONS: Final[ObjectShape] = [{"key": text, "operator": text, "values": [text]}]
NODE_SELECTOR: Final[ObjectShape] = {
    "nodeSelectorTerms": [{"matchExpressions": EXPRESSIONS, "matchFields": EXPRESSIONS}]
}
REFERENCE: Final[ObjectShape] = {"apiGroup": text, "kind": text, "name": text, "namespace": text, "uid": text}
CONDITIONS: Final[ObjectShape] = [
    {"type": text, "status": text, "reason": text, "message": text, "lastTransitionTime": time}
]
CONTAINERS: Final[ObjectShape] = [{"state": {"waiting": {"reason": text}, "running": {}, "terminated": {}}}]
VOLUME_SPEC: Final[ObjectShape] = {
    "capacity": {"storage": quantity},
    "claimRef": REFERENCE,
    "csi": {"driver": text, "volumeHandle": text},
    "nodeAffinity": {"required": NODE_SELECTOR},
    "persistentVolumeReclaimPolicy": text,
}
CLAIM_SPEC: Final[ObjectShape] = {
    "resources": {"requests": {"storage": quantity}},
    "selector": {"matchLabels": texts, "matchExpressions": EXPRESSIONS},
    "dataSource": REFERENCE,
    "dataSourceRef": REFERENCE,
    "volumeName": text,
}
OTHER_SPEC: Final[ObjectShape] = {
    "accessModes": [text],
    "storageClassName": text,
    "volumeAttributesClassName": text,
    "volumeMode": text,
    "nodeName": text,
    "source": {"persistentVolumeName": text},
    "drivers": [{"name": text, "topologyKeys": [text]}],
    "volumes": [{"name": text, "persistentVolumeClaim": {"claimName": text}, "ephemeral": {}}],
    "holderIdentity": text,
    "leaseDurationSeconds": number,
    "renewTime": time,
}
OBJECT: Final[ObjectShape] = {
    "metadata": METADATA,
    # Fields of different kinds do not collide: one shape serves all.
    "spec": {**VOLUME_SPEC, **CLAIM_SPEC, **OTHER_SPEC},
    "status": {
        "phase": text,
        "message": text,
        "lastPhaseTransitionTime": time,
        "conditions": CONDITIONS,
        "initContainerStatuses": CONTAINERS,
        "containerStatuses": CONTAINERS,
    },
    "provisioner": text,
    "volumeBindingMode": text,
    "reclaimPolicy": text,
    "parameters": texts,
    "mountOptions": [text],
    "allowedTopologies": [{"matchLabelExpressions": [{"key": text, "values": [text]}]}],
    "involvedObject": REFERENCE,
    "reason": text,
    "message": text,
    "type": text,
    "count": number,
    "firstTimestamp": time,
    "lastTimestamp": time,
    "eventTime": time,
    "series": {"count": number, "lastObservedTime": time},
    "source": {"component": text},
    "reportingComponent": text,
}


def well_formed(obj: Any) -> ApiObject:
    """Return the object without fields of a wrong type; an empty one if it is no object at all."""
    shaped = _shaped(obj, OBJECT)
    return {} if shaped is None else shaped


def _shaped(value: Any, shape: ObjectShape) -> Any:
    """Return None for a value of another type: a field that is null and one that is missing mean the same."""
    if isinstance(shape, dict):
        return _shaped_fields(value, shape) if isinstance(value, Mapping) else None
    if isinstance(shape, list):
        if not isinstance(value, list | tuple):
            return None
        return [each for item in value if (each := _shaped(item, shape[0])) is not None]
    return shape(value)


def _shaped_fields(value: ApiObject, shape: ObjectShape) -> ApiObject:
    shaped = {name: _shaped(each, shape[name]) if name in shape else each for name, each in value.items()}
    return {name: each for name, each in shaped.items() if each is not None}
