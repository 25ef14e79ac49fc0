"""The custom resources of Orlop: what an API server makes of their definitions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from copy import deepcopy
from typing import Any

import pytest
import yaml

from onenode.testing.api_server import api_server
from orlop.foundation.clock import SystemClock
from orlop.kube.api_errors import ApiError, PatchRefused
from orlop.kube.client import KubeClient, MergePatch
from orlop.kube.kinds import CUSTOM_RESOURCE_DEFINITION, Kind
from orlop.kube.objects import ObjectName, name_of
from orlop.kube.patches import JsonPatch
from orlop.records.api_record import new_object, part_of
from orlop.records.definitions import definitions
from orlop.records.drive import DRIVE, Allocation, DriveSpec, DriveStatus
from orlop.records.drive_record import DriveType
from orlop.records.drive_request import DRIVE_REQUEST, DriveRequestSpec, RequestedDevice, RequestedFolder
from orlop.records.node_devices import NODE_DEVICES, NodeDevicesSpec
from orlop.records.volume import VOLUME, DriveVolumeSpec, VolumeClaim
from support.places import REPOSITORY

CRDS = REPOSITORY / "deploy" / "crds"
ID = "6355041d-f9c6-4bd6-9335-f2bccbe73929"
OTHER_ID = "7355041d-f9c6-4bd6-9335-f2bccbe73929"
GIB = 1 << 30

DRIVE_1 = new_object("Drive", ID, DriveSpec(node_name="n1", type=DriveType.DISK))
VOLUME_1 = new_object(
    "Volume",
    "pvc-1",
    DriveVolumeSpec(
        drive=ID,
        node_name="n1",
        bytes=GIB,
        backing="image",
        file_system="xfs",
        volume_mode="Filesystem",
        claim=VolumeClaim(namespace="team", name="data"),
        parameters={"orlop.dev/access-tier": "hot"},
    ),
)
REQUEST_1 = new_object(
    "DriveRequest", "init-1", DriveRequestSpec(node_name="n1", devices=(RequestedDevice(name="sdb", fingerprint="f"),))
)
DEVICES_1 = new_object("NodeDevices", "n1", NodeDevicesSpec(node_name="n1"))


@asynccontextmanager
async def server_with_definitions() -> AsyncIterator[KubeClient]:
    async with api_server(SystemClock()) as server:
        client = server.client()
        for definition in definitions():
            await client.create(CUSTOM_RESOURCE_DEFINITION, definition)
        yield client


def test_the_files_are_the_definitions():
    files = {path.name: yaml.safe_load(path.read_text()) for path in CRDS.glob("*.orlop.dev.yaml")}

    assert files == {f"{each['metadata']['name']}.yaml": each for each in definitions()}


def _undescribed(schema: dict[str, Any], path: str) -> Iterator[str]:
    for name, inner in schema.get("properties", {}).items():
        if path or name != "metadata":
            if not inner.get("description"):
                yield f"{path}.{name}"
            yield from _undescribed(inner, f"{path}.{name}")
    if "items" in schema:
        yield from _undescribed(schema["items"], f"{path}[]")


@pytest.mark.parametrize("definition", definitions(), ids=lambda each: each["metadata"]["name"])
def test_every_field_is_described(definition: dict[str, Any]):
    (version,) = definition["spec"]["versions"]

    assert [*_undescribed(version["schema"]["openAPIV3Schema"], "")] == []


def _unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
    limit = {"string": ("maxLength", "enum"), "array": ("maxItems",)}.get(schema.get("type", ""))
    if limit and not any(name in schema for name in limit):
        yield path
    for name, inner in schema.get("properties", {}).items():
        if path or name in {"spec", "status"}:
            yield from _unbounded(inner, f"{path}.{name}")
    for name in ("items", "additionalProperties"):
        if name in schema:
            yield from _unbounded(schema[name], f"{path}[]")


@pytest.mark.parametrize("definition", definitions(), ids=lambda each: each["metadata"]["name"])
def test_every_text_and_list_has_a_limit_so_that_rules_cost_little(definition: dict[str, Any]):
    (version,) = definition["spec"]["versions"]

    assert [*_unbounded(version["schema"]["openAPIV3Schema"], "")] == []


LONG_VALUES = {
    "Node": "ip-10-0-112-203",
    "State": "Removing",
    "Tier": "default",
    "Capacity": "15360Gi",
    "Free": "15359Gi",
    "Volumes": "2048",
    "Age": "364d",
    "Claim": "data-postgres-12",
    "Size": "1024Gi",
    "Used": "1023Gi",
    "Phase": "Published",
    "Dry-Run": "false",
    "Message": "64 would be done, 64 failed.",
    "Devices": "1024",
    "Usable": "1024",
    "Drives": "1024",
    "Disks": "1024",
    "Requested": "1024",
    "Wiping": "1024",
    "Errors": "1024",
}
LONG_NAMES = {"Drive": ID, "Volume": f"pvc-{ID}", "DriveRequest": "orlop-0123456789abcdef"}


@pytest.mark.parametrize("definition", definitions(), ids=lambda each: each["metadata"]["name"])
def test_the_columns_of_kubectl_fit_into_120_characters(definition: dict[str, Any]):
    spec = definition["spec"]
    (version,) = spec["versions"]
    columns = [each["name"] for each in version["additionalPrinterColumns"] if not each.get("priority")]
    names = LONG_NAMES.get(spec["names"]["kind"], LONG_VALUES["Node"])
    cells = [(name, LONG_VALUES[name]) for name in columns]
    widths = [max(len(title), len(value)) for title, value in (("Name", names), *cells)]

    assert sum(widths) + 3 * (len(widths) - 1) <= 120


async def test_a_server_takes_the_definitions_and_objects_of_them():
    async with server_with_definitions() as client:
        drive = await client.create(DRIVE, DRIVE_1)
        volume = await client.create(VOLUME, VOLUME_1)
        await client.create(DRIVE_REQUEST, REQUEST_1)
        await client.create(NODE_DEVICES, DEVICES_1)

        assert drive["spec"] == {"nodeName": "n1", "type": "Disk", "tier": "default", "allocations": []}
        assert part_of(drive, "spec", DriveSpec) == DriveSpec(node_name="n1", type=DriveType.DISK)
        assert part_of(drive, "status", DriveStatus) == DriveStatus()
        assert volume["spec"]["erase"] is False
        assert part_of(volume, "spec", DriveVolumeSpec).claim == VolumeClaim(namespace="team", name="data")


async def test_the_first_reservation_needs_no_list_and_status_moves_no_generation():
    async with server_with_definitions() as client:
        drive = await client.create(DRIVE, DRIVE_1)
        drive = await client.patch(
            DRIVE, ObjectName(None, ID), MergePatch({"status": {"state": "Ready"}}), subresource="status"
        )
        assert (drive["metadata"]["generation"], drive["status"]) == (1, {"state": "Ready"})
        allocation = {"volume": "pvc-1", "bytes": GIB}
        patch = JsonPatch().test("metadata", "generation", value=1).add("spec", "allocations", "-", value=allocation)

        drive = await client.patch(DRIVE, ObjectName(None, ID), patch)

        assert drive["metadata"]["generation"] == 2
        assert part_of(drive, "spec", DriveSpec).allocations == (Allocation(volume="pvc-1", bytes=GIB),)


def changed(obj: dict[str, Any], **spec: Any) -> dict[str, Any]:
    other = deepcopy(obj)
    other["spec"] |= spec
    return other


ALLOCATED = {"allocations": [{"volume": "pvc-1", "bytes": 1}]}
REFUSED_CHANGES = [
    (DRIVE, DRIVE_1, {"nodeName": "n2"}, 'spec.nodeName: Invalid value: "n2": cannot be changed'),
    (DRIVE, DRIVE_1, {"type": "Folder"}, 'spec.type: Invalid value: "Folder": cannot be changed'),
    (DRIVE, DRIVE_1, {"removing": True, **ALLOCATED}, "a drive with allocations cannot be removed"),
    (DRIVE, DRIVE_1, {"tier": "tepid"}, "spec.tier: Unsupported value"),
    (DRIVE, DRIVE_1, {"allocations": [{"volume": "a", "bytes": 1}] * 2}, "Duplicate value"),
    (DRIVE, DRIVE_1, {"allocations": [{"volume": "../a", "bytes": 1}]}, "should match"),
    (DRIVE, DRIVE_1, {"allocations": [{"volume": "a", "bytes": 0}]}, "greater than or equal to 1"),
    (
        *(DRIVE, DRIVE_1, {"allocations": [{"volume": f"v{n}", "bytes": 1} for n in range(2049)]}),
        "must have at most 2048 items",
    ),
    (VOLUME, VOLUME_1, {"drive": OTHER_ID}, "spec.drive: Invalid value"),
    (VOLUME, VOLUME_1, {"nodeName": "n2"}, "spec.nodeName: Invalid value"),
    (VOLUME, VOLUME_1, {"bytes": GIB - 1}, "spec.bytes: Invalid value: 1073741823: cannot shrink"),
    (VOLUME, VOLUME_1, {"backing": "directory"}, "spec.backing: Invalid value"),
    (VOLUME, VOLUME_1, {"fileSystem": "ext4"}, "spec.fileSystem: Invalid value"),
    (VOLUME, VOLUME_1, {"volumeMode": "Block"}, "spec.volumeMode: Invalid value"),
    (VOLUME, VOLUME_1, {"thin": True}, "spec.thin: Invalid value"),
    (VOLUME, VOLUME_1, {"persistentVolume": "pv"}, "spec.persistentVolume: Invalid value"),
    (VOLUME, VOLUME_1, {"volumeClaimID": "x"}, "spec.volumeClaimID: Invalid value"),
    (VOLUME, VOLUME_1, {"parameters": {}}, "spec.parameters: Invalid value"),
    (VOLUME, VOLUME_1, {"claim": {"namespace": "team", "name": "other"}}, "claim cannot be changed"),
    (VOLUME, VOLUME_1, {"claim": None}, "claim cannot be changed"),
    (VOLUME, changed(VOLUME_1, erase=True), {"erase": False}, "spec.erase: Invalid value: false: cannot be undone"),
    (DRIVE_REQUEST, REQUEST_1, {"dryRun": True}, "a request cannot be changed"),
    (NODE_DEVICES, DEVICES_1, {"nodeName": "n2"}, "the object of a node has the name of the node"),
]


@pytest.mark.parametrize(
    ("kind", "obj", "spec", "sentence"),
    REFUSED_CHANGES,
    ids=[f"{kind.kind} {' '.join(spec)} {sentence[:20]}" for kind, _, spec, sentence in REFUSED_CHANGES],
)
async def test_a_change_that_may_never_be_is_refused(
    kind: Kind, obj: dict[str, Any], spec: dict[str, Any], sentence: str
):
    async with server_with_definitions() as client:
        made = await client.create(kind, obj)

        with pytest.raises(ApiError) as refusal:
            await client.replace(kind, changed(made, **spec))

        assert sentence in str(refusal.value)
        assert (await client.get(kind, name_of(made)))["spec"] == made["spec"]


ALLOWED_CHANGES = [
    (DRIVE, DRIVE_1, {"tier": "hot", "unschedulable": True, **ALLOCATED}),
    (DRIVE, DRIVE_1, {"removing": True}),
    (VOLUME, VOLUME_1, {"bytes": 2 * GIB}),
    (VOLUME, VOLUME_1, {"erase": True}),
]


@pytest.mark.parametrize(("kind", "obj", "spec"), ALLOWED_CHANGES)
async def test_what_changes_in_the_life_of_an_object_is_allowed(kind: Kind, obj: dict[str, Any], spec: dict[str, Any]):
    async with server_with_definitions() as client:
        made = await client.create(kind, obj)

        after = await client.replace(kind, changed(made, **spec))

        assert after["spec"].items() >= spec.items()


def without(obj: dict[str, Any], *fields: str) -> dict[str, Any]:
    other = deepcopy(obj)
    for field in fields:
        other["spec"].pop(field)
    return other


def named(obj: dict[str, Any], name: str) -> dict[str, Any]:
    return {**obj, "metadata": {"name": name}}


FOLDER = {"path": "/data", "capacityBytes": GIB}
REFUSED_OBJECTS: list[tuple[Kind, dict[str, Any], str]] = [
    (DRIVE, named(DRIVE_1, "sdb"), "metadata.name: Invalid value"),
    (DRIVE, named(DRIVE_1, ID.upper()), "metadata.name: Invalid value"),
    (DRIVE, without(DRIVE_1, "nodeName"), "spec.nodeName: Required value"),
    (DRIVE, {**DRIVE_1, "spec": None}, "spec: Required value"),
    (VOLUME, named(VOLUME_1, "a" * 129), "metadata.name: Too long"),
    (VOLUME, without(VOLUME_1, "fileSystem"), "spec.fileSystem: Required value"),
    (DRIVE_REQUEST, changed(REQUEST_1, folder=FOLDER), "exactly one of devices, folder and adopt is required"),
    (DRIVE_REQUEST, without(REQUEST_1, "devices"), "exactly one of devices, folder and adopt is required"),
    (DRIVE_REQUEST, changed(REQUEST_1, devices=[], folder={**FOLDER, "path": "data"}), "should match"),
    (NODE_DEVICES, named(DEVICES_1, "n2"), "the object of a node has the name of the node"),
]


@pytest.mark.parametrize(("kind", "obj", "sentence"), REFUSED_OBJECTS)
async def test_an_object_that_cannot_be_is_refused(kind: Kind, obj: dict[str, Any], sentence: str):
    async with server_with_definitions() as client:
        with pytest.raises(ApiError) as refusal:
            await client.create(kind, obj)

        assert sentence in str(refusal.value)


@pytest.mark.parametrize(
    "spec",
    [
        DriveRequestSpec(node_name="n1", folder=RequestedFolder(path="/data", capacity_bytes=GIB)),
        DriveRequestSpec(node_name="n1", adopt=True, dry_run=True),
    ],
)
async def test_each_form_of_a_request_is_accepted(spec: DriveRequestSpec):
    async with server_with_definitions() as client:
        made = await client.create(DRIVE_REQUEST, new_object("DriveRequest", "r", spec))

        assert part_of(made, "spec", DriveRequestSpec) == spec


async def test_of_many_reservations_with_one_generation_one_succeeds():
    async with server_with_definitions() as client:
        await client.create(DRIVE, DRIVE_1)
        read = JsonPatch().test("metadata", "generation", value=1)
        patches = [read.add("spec", "allocations", "-", value={"volume": f"v{n}", "bytes": 1}) for n in range(20)]

        answers = await asyncio.gather(
            *(client.patch(DRIVE, ObjectName(None, ID), patch) for patch in patches), return_exceptions=True
        )

        assert [isinstance(answer, PatchRefused) for answer in answers].count(False) == 1
