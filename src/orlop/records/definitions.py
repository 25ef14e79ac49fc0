"""The CustomResourceDefinitions of Orlop's kinds, made from their records. Pure.

deploy/crds holds them as files (tools/generate_crds.py), and `orlop up` creates them from here. The columns show
owner, place and space within 120 characters; `kubectl get -o wide` also shows those with a priority.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from orlop.kube.kinds import Kind
from orlop.records.api_record import DRIVE_ID, LONGEST_VOLUME_ID, VOLUME_ID, ApiRecord
from orlop.records.drive import DRIVE, DriveSpec, DriveStatus
from orlop.records.drive_request import DRIVE_REQUEST, ONE_KIND, DriveRequestSpec, DriveRequestStatus
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec, NodeDevicesStatus
from orlop.records.provisioner_status import PROVISIONER_STATUS, ProvisionerSpec, ProvisionerStatusStatus
from orlop.records.volume import CLAIM_STAYS, VOLUME, DriveVolumeSpec, DriveVolumeStatus

Schema = dict[str, Any]

WIDE: Final = 1
EMPTY_WHEN_REMOVING: Final = {
    "rule": "!has(self.removing) || !self.removing || !has(self.allocations) || size(self.allocations) == 0",
    "message": "a drive with allocations cannot be removed, and a drive that is being removed takes no allocations",
}
OWN_NAME: Final = {
    "rule": "self.spec.nodeName == self.metadata.name",
    "message": "the object of a node has the name of the node",
}
NEVER_CHANGES: Final = {"rule": "self == oldSelf", "message": "a request cannot be changed: create another one"}


@dataclass(frozen=True, slots=True)
class PrinterColumn:
    name: str
    path: str
    type: str = "string"
    priority: int = 0
    description: str = ""

    def schema(self) -> Schema:
        wide = {"priority": self.priority} if self.priority else {}
        return {"name": self.name, "type": self.type, "jsonPath": self.path, **wide}


AGE: Final = PrinterColumn("Age", ".metadata.creationTimestamp", "date")


@dataclass(frozen=True, slots=True)
class KindDefinition:
    """A kind, with the records of its parts and what else its definition has."""

    kind: Kind
    description: str
    spec: type[ApiRecord]
    status: type[ApiRecord]
    columns: tuple[PrinterColumn, ...]
    spec_rules: tuple[Mapping[str, str], ...] = ()
    rules: tuple[Mapping[str, str], ...] = ()
    name: Mapping[str, Any] | None = None
    """Restrictions of metadata.name."""


DEFINITIONS: Final = (
    KindDefinition(
        DRIVE,
        "A drive: a whole disk, or a folder with a stated capacity, that volumes are placed on. Its name is the UUID "
        "of its file system, or of the folder.",
        DriveSpec,
        DriveStatus,
        (
            PrinterColumn("Node", ".spec.nodeName"),
            PrinterColumn("State", ".status.state"),
            PrinterColumn("Tier", ".spec.tier"),
            PrinterColumn("Capacity", ".status.capacity"),
            PrinterColumn("Free", ".status.free"),
            PrinterColumn("Volumes", ".status.volumes", "integer"),
            AGE,
            PrinterColumn("Allocated", ".status.allocated", priority=WIDE),
            PrinterColumn("Type", ".spec.type", priority=WIDE),
            PrinterColumn("Device", ".status.device.path", priority=WIDE),
            PrinterColumn("Folder", ".status.path", priority=WIDE),
            PrinterColumn("Model", ".status.device.model", priority=WIDE),
            PrinterColumn("Cordoned", ".spec.unschedulable", "boolean", priority=WIDE),
        ),
        spec_rules=(EMPTY_WHEN_REMOVING,),
        name={"pattern": DRIVE_ID, "maxLength": 36},
    ),
    KindDefinition(
        VOLUME,
        "A volume on a drive, made for a PersistentVolume. Its name is the volume handle.",
        DriveVolumeSpec,
        DriveVolumeStatus,
        (
            PrinterColumn("Claim", ".spec.claim.name"),
            PrinterColumn("Node", ".spec.nodeName"),
            PrinterColumn("Size", ".status.capacity"),
            PrinterColumn("Used", ".status.used"),
            PrinterColumn("Phase", ".status.phase"),
            AGE,
            PrinterColumn("Namespace", ".spec.claim.namespace", priority=WIDE),
            PrinterColumn("Drive", ".spec.drive", priority=WIDE),
            PrinterColumn("Backing", ".spec.backing", priority=WIDE),
            PrinterColumn("FS", ".spec.fileSystem", priority=WIDE),
            PrinterColumn("Bytes", ".spec.bytes", "integer", priority=WIDE),
        ),
        spec_rules=(CLAIM_STAYS,),
        name={"pattern": VOLUME_ID, "maxLength": LONGEST_VOLUME_ID},
    ),
    KindDefinition(
        DRIVE_REQUEST,
        "A request to a node to make drives of devices or of a folder, or to adopt the drives it has.",
        DriveRequestSpec,
        DriveRequestStatus,
        (
            PrinterColumn("Node", ".spec.nodeName"),
            PrinterColumn("State", ".status.state"),
            PrinterColumn("Dry-Run", ".spec.dryRun", "boolean"),
            PrinterColumn("Message", ".status.message"),
            AGE,
        ),
        spec_rules=(NEVER_CHANGES, ONE_KIND),
    ),
    KindDefinition(
        NODE_DEVICES,
        "The block devices of a node, and why one cannot become a drive. Its name is the name of the node.",
        NodeDevicesSpec,
        NodeDevicesStatus,
        (
            PrinterColumn("Devices", ".status.count", "integer"),
            PrinterColumn("Usable", ".status.usable", "integer"),
            PrinterColumn("Drives", ".status.drives", "integer"),
            AGE,
        ),
        rules=(OWN_NAME,),
    ),
    KindDefinition(
        PROVISIONER_STATUS,
        "The disks of a node that become PersistentVolumes, and the wiping of released ones. Its name is that of the "
        "node.",
        ProvisionerSpec,
        ProvisionerStatusStatus,
        (
            PrinterColumn("Disks", ".status.disks", "integer"),
            PrinterColumn("Requested", ".status.requested", "integer"),
            PrinterColumn("Wiping", ".status.wiping", "integer"),
            PrinterColumn("Errors", ".status.errors", "integer"),
            AGE,
        ),
        rules=(OWN_NAME,),
    ),
)


def definitions() -> list[dict[str, Any]]:
    """Return the CustomResourceDefinition of every kind."""
    return [definition_object(definition) for definition in DEFINITIONS]


def definition_object(definition: KindDefinition) -> dict[str, Any]:
    kind = definition.kind
    names = {
        "kind": kind.kind,
        "listKind": kind.list_kind,
        "plural": kind.plural,
        "singular": kind.singular,
        "shortNames": list(kind.short_names),
        "categories": list(kind.categories),
    }
    version = {
        "name": kind.version,
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": object_schema(definition)},
        "subresources": {"status": {}},
        "selectableFields": [{"jsonPath": ".spec.nodeName"}],
        "additionalPrinterColumns": [column.schema() for column in definition.columns],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": kind.resource, "labels": {"app.kubernetes.io/name": "orlop"}},
        "spec": {
            "group": kind.group,
            "scope": "Namespaced" if kind.namespaced else "Cluster",
            "names": names,
            "versions": [version],
        },
    }


def object_schema(definition: KindDefinition) -> Schema:
    spec, status = (_record_schema(record) for record in (definition.spec, definition.status))
    if definition.spec_rules:
        spec["x-kubernetes-validations"] = [dict(rule) for rule in definition.spec_rules]
    properties: Schema = {
        "apiVersion": {"type": "string", "description": "Version of the schema of this object."},
        "kind": {"type": "string", "description": "Kind of this object."},
        "metadata": {"type": "object"},
        "spec": spec,
        "status": status,
    }
    if definition.name is not None:
        properties["metadata"]["properties"] = {"name": {"type": "string", **definition.name}}
    rules = {"x-kubernetes-validations": [dict(rule) for rule in definition.rules]} if definition.rules else {}
    return {
        "type": "object",
        "description": definition.description,
        "properties": properties,
        "required": ["spec"],
        **rules,
    }


def _record_schema(record: type[ApiRecord]) -> Schema:
    (schema,), components = msgspec.json.schema_components([record], ref_template="{name}")
    return _structural(schema, components)


def _structural(schema: Mapping[str, Any], components: Mapping[str, Any]) -> Schema:
    """Return a schema as a definition may have it: without references, and with a default only where one is filled in.

    msgspec writes every Python default into the schema; as a definition's default it would appear in every object.
    """
    merged: Schema = dict(schema)
    if reference := merged.pop("$ref", None):
        merged = dict(components[reference]) | merged
    alternatives = [each for each in merged.pop("anyOf", []) if each != {"type": "null"}]
    for alternative in alternatives:
        merged = _structural(alternative, components) | merged
    for name in ("title", "default", "propertyNames"):
        merged.pop(name, None)
    if "x-default" in merged:
        merged["default"] = merged.pop("x-default")
    if "enum" in merged:
        merged.setdefault("type", "string")
    if "items" in merged:
        merged["items"] = _structural(merged["items"], components)
    if "properties" in merged:
        merged["properties"] = {name: _structural(each, components) for name, each in merged["properties"].items()}
    if isinstance(merged.get("additionalProperties"), Mapping):
        merged["additionalProperties"] = _structural(merged["additionalProperties"], components)
    if not merged.get("required", True):
        del merged["required"]
    return merged
