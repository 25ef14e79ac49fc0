"""The cases of provisioning that the upstream provisioner tests, by their names there.

Not here: cases of what is refused (snapshots, references across namespaces, distributed provisioning, in-tree
migration), and those of other files (`test_provisioning_topology`, `test_provisioning_failures`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from orlop.binding import claim_state_rules as state
from orlop.csi.proto import csi_pb2
from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION
from support.provisioning.provisioner_worlds import (
    CREATE,
    DELETE,
    DRIVER,
    NAMESPACE,
    ProvisionerWorld,
)

pytestmark = pytest.mark.virtual_time
Mode = csi_pb2.VolumeCapability.AccessMode.Mode
RESERVED = "csi.storage.k8s.io"
PLAIN = ("CREATE_DELETE_VOLUME",)
MULTI_WRITER = (*PLAIN, "SINGLE_NODE_MULTI_WRITER")
SECRETS = {
    f"{RESERVED}/{use}-secret-{part}": value
    for use in ("provisioner", "controller-publish", "node-stage", "node-publish", "controller-expand", "node-expand")
    for part, value in (("name", "s"), ("namespace", NAMESPACE))
}
DEFAULT_SECRET = {f"{RESERVED}/secret-name": "s", f"{RESERVED}/secret-namespace": NAMESPACE}
TEMPLATE = {f"{RESERVED}/secret-name": "${pvc.name}-s", f"{RESERVED}/secret-namespace": "${pvc.namespace}"}
GOLD = {"volumeAttributesClassName": "gold"}


@dataclass(frozen=True)
class Case:
    claim: Mapping[str, Any] = field(default_factory=dict)
    storage_class: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    capabilities: tuple[str, ...] = PLAIN
    """Of the Controller service."""
    steps: tuple[Mapping[str, Any], ...] = ()
    modes: tuple[Any, ...] = (Mode.SINGLE_NODE_WRITER,)
    request: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the request, as they must be."""
    spec: Mapping[str, Any] = field(default_factory=dict)
    """Fields of the PersistentVolume's spec, as they must be."""
    csi: Mapping[str, Any] = field(default_factory=dict)
    fs_type: str = ""


def modes(*names: str) -> dict[str, Any]:
    return {"accessModes": list(names)}


SECRET_FIELDS = {
    name: {"name": "s", "namespace": NAMESPACE}
    for name in (
        *("controllerPublishSecretRef", "nodeStageSecretRef", "nodePublishSecretRef"),
        *("controllerExpandSecretRef", "nodeExpandSecretRef"),
    )
}
PROVISIONED = {
    "normal provision": Case(storage_class={"parameters": {"fstype": "ext3"}}, fs_type="ext3"),
    "normal provision with extra metadata": Case(settings={"claim_metadata": True}),
    "provision with prefixed FS Type key": Case(
        storage_class={"parameters": {f"{RESERVED}/fstype": "ext3"}}, fs_type="ext3"
    ),
    "fstype not set/'nil' in SC to provision": Case(settings={"default_fs_type": "ext4"}, fs_type="ext4"),
    "Other fstype(ex:'xfs') set in SC": Case(
        storage_class={"parameters": {"fstype": "xfs"}}, settings={"default_fs_type": "ext4"}, fs_type="xfs"
    ),
    "fstype not set/Nil in SC and defaultFSType arg unset for provisioner": Case(),
    "fstype set in SC and defaultFSType arg unset for provisioner": Case(
        storage_class={"parameters": {"fstype": "xfs"}}, fs_type="xfs"
    ),
    "provision with access mode multi node multi writer": Case(
        modes("ReadWriteMany"), modes=(Mode.MULTI_NODE_MULTI_WRITER,)
    ),
    "provision with access mode multi node multi readonly with sidecar arg false": Case(
        modes("ReadOnlyMany"), modes=(Mode.MULTI_NODE_READER_ONLY,), csi={"readOnly": None}
    ),
    "provision with access mode multi node multi readonly with sidecar arg true": Case(
        modes("ReadOnlyMany"),
        settings={"publish_read_only": True},
        modes=(Mode.MULTI_NODE_READER_ONLY,),
        csi={"readOnly": True},
    ),
    "provision with access mode single node writer": Case(modes("ReadWriteOnce")),
    "provision with access mode single node writer and single node multi writer capability": Case(
        modes("ReadWriteOnce"), capabilities=MULTI_WRITER, modes=(Mode.SINGLE_NODE_MULTI_WRITER,)
    ),
    "provision with access mode single node single writer and single node multi writer capability": Case(
        modes("ReadWriteOncePod"), capabilities=MULTI_WRITER, modes=(Mode.SINGLE_NODE_SINGLE_WRITER,)
    ),
    "provision with multiple access modes": Case(
        modes("ReadOnlyMany", "ReadWriteOnce"), modes=(Mode.MULTI_NODE_READER_ONLY, Mode.SINGLE_NODE_WRITER)
    ),
    "provision with secrets": Case(
        storage_class={"parameters": SECRETS}, request={"secrets": {"key": "value"}}, csi=SECRET_FIELDS
    ),
    "provision with default secrets": Case(
        storage_class={"parameters": DEFAULT_SECRET}, request={"secrets": {"key": "value"}}, csi=SECRET_FIELDS
    ),
    "provision with default secrets with template": Case(
        storage_class={"parameters": TEMPLATE},
        request={"secrets": {"key": "other"}},
        csi={"nodeStageSecretRef": {"name": "data-s", "namespace": NAMESPACE}},
    ),
    "provision with volume mode(Filesystem)": Case({"volumeMode": "Filesystem"}, spec={"volumeMode": "Filesystem"}),
    "provision with volume mode(Block)": Case({"volumeMode": "Block"}, spec={"volumeMode": "Block"}),
    "provision with mount options": Case(
        storage_class={"mountOptions": ["foo=bar", "baz=qux"]}, spec={"mountOptions": ["foo=bar", "baz=qux"]}
    ),
    "provision with size 0": Case(
        steps=({"answer": {"volume": {"volumeId": "v", "capacityBytes": "0"}}},), spec={"capacity": {"storage": "1Gi"}}
    ),
    "normal provision with VolumeAttributesClass": Case(
        GOLD,
        capabilities=(*PLAIN, "MODIFY_VOLUME"),
        request={"mutable_parameters": {"iops": "100"}},
        spec={"volumeAttributesClassName": "gold"},
    ),
}


async def prepare(world: ProvisionerWorld, case: Case) -> None:
    capabilities = {"plugin": ["CONTROLLER_SERVICE"], "controller": list(case.capabilities)}
    world.play({CREATE: list(case.steps)}, capabilities=capabilities)
    await world.make_secret("s", key="value")
    await world.make_secret("data-s", key="other")
    await world.make_attributes_class("gold", iops="100")
    await world.make_attributes_class("others", "other.example.com", iops="100")
    await world.make_class(**{"reclaimPolicy": "Delete", **case.storage_class})
    await world.make_claim(**case.claim)


@pytest.mark.parametrize("name", PROVISIONED)
async def test_it_is_provisioned(name: str):
    case = PROVISIONED[name]
    async with ProvisionerWorld() as world:
        await prepare(world, case)
        async with world.provisioner(**case.settings):
            (volume,) = await world.until_provisioned()
        (request,) = world.requests(CREATE)
        assert tuple(one.access_mode.mode for one in request.volume_capabilities) == case.modes
        assert request.volume_capabilities[0].mount.fs_type == case.fs_type
        for key, value in case.request.items():
            assert dict(getattr(request, key)) == value
        for fields, expected in ((volume["spec"], case.spec), (volume["spec"]["csi"], case.csi)):
            assert {key: fields.get(key) for key in expected} == dict(expected)


SMALL = {"answer": {"volume": {"volumeId": "v", "capacityBytes": "1"}}}
UNRESOLVED = {f"{RESERVED}/secret-name": "${pvc.annotations['missing']}", f"{RESERVED}/secret-namespace": NAMESPACE}
FAILED = {
    "multiple fsType provision": (
        Case(storage_class={"parameters": {"fstype": "ext3", f"{RESERVED}/fstype": "ext4"}}),
        "sets its file system more than once",
    ),
    "fail to get secret reference": (
        Case(storage_class={"parameters": {f"{RESERVED}/provisioner-secret-name": "s"}}),
        "without",
    ),
    "fail not nil selector": (Case({"selector": {"matchLabels": {"a": "b"}}}), "claim Selector is not supported"),
    "fail to get credentials": (
        Case(storage_class={"parameters": {key: value.replace("s", "x", 1) for key, value in SECRETS.items()}}),
        "failed to get secret",
    ),
    "fail to get secret reference for invalid default secret parameter template": (
        Case(storage_class={"parameters": UNRESOLVED}),
        "the claim has no annotation missing",
    ),
    "fail vol with less capacity": (Case(steps=(SMALL,)), "created volume capacity 1 less than requested"),
    "provision with final error": (
        Case(steps=({"error": {"code": "PERMISSION_DENIED", "message": "mock error"}, "times": 0},)),
        "rpc error: code = PermissionDenied desc = mock error",
    ),
    "provision with transient error": (
        Case(steps=({"error": {"code": "DEADLINE_EXCEEDED", "message": "mock error"}, "times": 0},)),
        "rpc error: code = DeadlineExceeded desc = mock error",
    ),
    "fail with VolumeAttributesClass but driver does not support MODIFY_VOLUME": (Case(GOLD), "MODIFY_VOLUME"),
    "fail with VolumeAttributesClass but VAC does not exist": (
        Case({"volumeAttributesClassName": "none"}, capabilities=(*PLAIN, "MODIFY_VOLUME")),
        "the VolumeAttributesClass none does not exist",
    ),
    "fail with VolumeAttributesClass but driver name does not match": (
        Case({"volumeAttributesClassName": "others"}, capabilities=(*PLAIN, "MODIFY_VOLUME")),
        "is for the driver other.example.com",
    ),
}


@pytest.mark.parametrize("name", FAILED)
async def test_it_fails(name: str):
    case, part = FAILED[name]
    async with ProvisionerWorld() as world:
        await prepare(world, case)
        async with world.provisioner(**case.settings, retry_start=300.0):
            await world.until_event("ProvisioningFailed", part)
            assert await world.volumes() == []
        assert bool(world.calls(CREATE)) is bool(case.steps)
        assert world.calls(DELETE) == ([DELETE] if case.steps == (SMALL,) else [])


async def test_provision_with_any_volume_data_source():
    source = {"apiGroup": "hello.example.com", "kind": "Hello", "name": "x"}
    async with ProvisionerWorld() as world:
        await prepare(world, Case({"dataSourceRef": source}))
        async with world.provisioner():
            await world.until_event("Provisioning", "Assuming an external populator will provision the volume")
            await world.clock.sleep(600)
        assert world.calls() == []


# ---- TestProvisionFromPVC --------------------------------------------------------------------------------------------

CLONE = {"dataSource": {"kind": "PersistentVolumeClaim", "name": "source"}}


@dataclass(frozen=True)
class CloneCase:
    part: str = ""
    """Of the event where it fails; empty where it succeeds."""
    clone: Mapping[str, Any] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)
    capabilities: tuple[str, ...] = (*PLAIN, "CLONE_VOLUME")
    claim_phase: str = "Bound"
    volume_phase: str = "Bound"
    volume_spec: Mapping[str, Any] = field(default_factory=dict)
    has_volume: bool = True


BLOCK, MOUNTED = {"volumeMode": "Block"}, {"volumeMode": "Filesystem"}
ELSEWHERE = {"namespace": "other", "name": "source", "uid": "x"}
SIZE = "resources"
CLONES = {
    "provision with pvc data source": CloneCase(),
    "provision with pvc data source no clone capability": CloneCase("CLONE_VOLUME", capabilities=PLAIN),
    "provision with pvc data source different storage classes": CloneCase(clone={"storageClassName": "second"}),
    "provision with pvc data source destination too small": CloneCase(
        "and the new claim only", clone={SIZE: {"requests": {"storage": "1Mi"}}}
    ),
    "provision with pvc data source destination too large": CloneCase(clone={SIZE: {"requests": {"storage": "2Gi"}}}),
    "provision with pvc data source not found": CloneCase(
        "it does not exist", clone={"dataSource": {"kind": "PersistentVolumeClaim", "name": "none"}}
    ),
    "provision with pvc data source when source pv not found": CloneCase("does not exist", has_volume=False),
    "provision with pvc data source when pvc status is claim pending": CloneCase(
        "it is Pending, not Bound", claim_phase="Pending"
    ),
    "provision with pvc data source when pvc status is claim lost": CloneCase(
        "it is Lost, not Bound", claim_phase="Lost"
    ),
    **{
        f"provision with pvc data source when clone pv has {phase.lower()} status": CloneCase(
            f"is {phase}, not Bound", volume_phase=phase
        )
        for phase in ("Released", "Failed", "Pending", "Available")
    },
    "provision with PVC using unbound PV": CloneCase("is bound to another claim", volume_spec={"claimRef": None}),
    "provision with PVC using PV bound to another PVC (with wrong UID)": CloneCase(
        "is bound to another claim", volume_spec={"claimRef": ELSEWHERE}
    ),
    "provision with PVC bound to PV with wrong provisioner": CloneCase(
        "its volume is not of the driver", volume_spec={"csi": {"driver": "other.example.com", "volumeHandle": "vol-1"}}
    ),
    "provision block data source is block": CloneCase(clone=BLOCK, source=BLOCK),
    "provision block but data source is filesystem": CloneCase("volumeMode", clone=BLOCK, source=MOUNTED),
    "provision block but data source is nil": CloneCase("volumeMode", clone=BLOCK),
    "provision nil mode data source is nil": CloneCase(),
    "provision filesystem data source is filesystem": CloneCase(clone=MOUNTED, source=MOUNTED),
    "provision filesystem but data source is block": CloneCase("volumeMode", clone=MOUNTED, source=BLOCK),
    "provision filesystem data source is nil": CloneCase(clone=MOUNTED),
}


async def prepare_source(world: ProvisionerWorld, case: CloneCase) -> None:
    world.play({}, capabilities={"plugin": ["CONTROLLER_SERVICE"], "controller": list(case.capabilities)})
    for name in ("fast", "second"):
        await world.make_class(name)
    marks = {state.STORAGE_PROVISIONER: ""}
    source = await world.make_claim("source", volumeName="pv", annotations=marks, **case.source)
    phase = MergePatch({"status": {"phase": case.claim_phase}})
    key = ObjectName(NAMESPACE, "source")
    await world.client.patch(PERSISTENT_VOLUME_CLAIM, key, phase, subresource="status")
    if not case.has_volume:
        return
    world.storage.add_volume("vol-1", 1 << 30)
    spec = {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "csi": {"driver": DRIVER, "volumeHandle": "vol-1"},
        "claimRef": {"namespace": NAMESPACE, "name": "source", "uid": source["metadata"]["uid"]},
        "persistentVolumeReclaimPolicy": "Retain",
        **case.volume_spec,
    }
    if spec["claimRef"] is None:
        del spec["claimRef"]
    await world.client.create(PERSISTENT_VOLUME, {"metadata": {"name": "pv"}, "spec": spec})
    await world.set_phase("pv", case.volume_phase)


@pytest.mark.parametrize("name", CLONES)
async def test_a_clone_is_provisioned_or_refused(name: str):
    case = CLONES[name]
    async with ProvisionerWorld() as world:
        await prepare_source(world, case)
        count = len(await world.volumes())
        await world.make_claim("copy", **{**CLONE, **case.clone})
        async with world.provisioner(retry_start=300.0):
            if case.part:
                await world.until_event("ProvisioningFailed", case.part)
            else:
                await world.until_provisioned(count + 1)
        finalizers = (await world.claim("source"))["metadata"].get("finalizers", [])
        assert (CLONING_PROTECTION in finalizers) is not bool(case.part)
        assert world.calls() == ([] if case.part else [CREATE])
