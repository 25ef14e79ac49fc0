"""Objects and configurations of static volumes, as tests need them."""

from __future__ import annotations

from typing import Any

from onenode.apiserver.verbs.stored_objects import KindInStore
from orlop.kube.client import KubeClient
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, NAMESPACE, NODE, STORAGE_CLASS, Kind
from orlop.records.api_record import new_object
from orlop.records.definitions import DEFINITIONS, definition_object
from orlop.records.provisioner_status import PROVISIONER_STATUS, LocalVolume, ProvisionerSpec
from orlop.static_pv.configuration import StaticClass, StaticConfiguration
from orlop.static_pv.naming_rules import capacity_text, volume_name
from support.api.api_servers import TestServer

Object = dict[str, Any]
SPACE = "orlop-static"
CLASS = "fast"
HOST_DIR = "/mnt/fast"
GIB = 1 << 30
CONFIGURATION = StaticConfiguration(
    classes=(StaticClass(CLASS, HOST_DIR, HOST_DIR),), node_labels=("zone",), labels=(("team", "a"),)
)


def node_object(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": f"host-{name}", **labels}}}


def class_object(name: str = CLASS, **fields: Any) -> Object:
    return {
        "metadata": {"name": name},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        **fields,
    }


def report_object(node: str) -> Object:
    """Return a ProvisionerStatus as a worker creates it."""
    return new_object("ProvisionerStatus", node, ProvisionerSpec(node_name=node), namespace=SPACE)


def local_volume(entry: str, node: str = "n1", capacity: int = 20 * GIB, **fields: Any) -> LocalVolume:
    plain = {
        "name": volume_name(entry, node, fields.get("storage_class", CLASS)),
        "storage_class": CLASS,
        "entry": entry,
        "capacity_bytes": capacity,
        "capacity": capacity_text(capacity),
        "volume_mode": "Filesystem",
    }
    return LocalVolume(**plain | fields)


async def create_cluster(client: KubeClient, *nodes: str, **of_class: Any) -> None:
    """Create the definition, the namespace, the class and the Nodes."""
    definition = next(each for each in DEFINITIONS if each.kind == PROVISIONER_STATUS)
    await client.create(CUSTOM_RESOURCE_DEFINITION, definition_object(definition))
    await client.create(NAMESPACE, {"metadata": {"name": SPACE}})
    await client.create(STORAGE_CLASS, class_object(**of_class))
    for node in nodes:
        await client.create(NODE, node_object(node))


def all_of(on: TestServer, kind: Kind) -> list[Object]:
    """Read the store itself: no request, so no choice of the explorer."""
    kept = KindInStore(kind, kind)
    return [kept.kept_object(found) for found in on.store.list(kept.resource).items]


def stored(on: TestServer, kind: Kind, name: str, namespace: str = "") -> Object | None:
    kept = KindInStore(kind, kind)
    found = on.store.get(kept.key(namespace, name))
    return kept.kept_object(found) if found is not None else None
