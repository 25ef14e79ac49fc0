"""PersistentVolumes are made as local-static-provisioner makes them, and recognized whichever product made them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from onenode.testing.api_server import api_server
from orlop.foundation.clock import SystemClock
from orlop.kube import objects
from orlop.kube.api_errors import PatchRefused
from orlop.kube.kinds import PERSISTENT_VOLUME
from orlop.kube.patches import JsonPatch
from orlop.static_pv.configuration import StaticClass, StaticConfiguration
from orlop.static_pv.naming_rules import volume_name
from orlop.static_pv.static_volume_rules import (
    EVER_BOUND,
    WIPE_FINALIZER,
    StaticVolume,
    capacity_patch,
    deciding_patch,
    keeping_patch,
    new_volume,
    read_static_volume,
    releasing_patch,
    undeciding_patch,
)
from support.static_volumes.static_objects import CONFIGURATION, GIB, class_object, local_volume, node_object

NODE = node_object("n1", zone="a", color="blue")
NODE["metadata"]["uid"] = "7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d"


def made(configuration: StaticConfiguration = CONFIGURATION, of_class: Any = None, **listed: Any) -> dict[str, Any]:
    return new_volume(
        local_volume("disk1", **listed), configuration.classes[0], NODE, of_class or class_object(), configuration
    )


def test_a_volume_has_everything_that_todays_product_writes_and_our_finalizer():
    assert made(capacity=107374182400 + 5) == {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {
            "name": volume_name("disk1", "n1", "fast"),
            "annotations": {
                "pv.kubernetes.io/provisioned-by": "local-volume-provisioner-n1-7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d"
            },
            "labels": {"zone": "a", "team": "a"},
            "finalizers": ["orlop.dev/wipe"],
        },
        "spec": {
            "persistentVolumeReclaimPolicy": "Delete",
            "capacity": {"storage": "100Gi"},
            "local": {"path": "/mnt/fast/disk1"},
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "fast",
            "volumeMode": "Filesystem",
            "nodeAffinity": {
                "required": {
                    "nodeSelectorTerms": [
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/hostname", "operator": "In", "values": ["host-n1"]}
                            ]
                        }
                    ]
                }
            },
        },
    }


def test_class_and_configuration_choose_the_rest():
    term = {"matchExpressions": [{"key": "shared", "operator": "Exists"}]}
    chosen = StaticClass(
        "fast",
        "/mnt/fast",
        "/mnt/fast",
        volume_mode="Block",
        access_mode="ReadWriteMany",
        fs_type="xfs",
        selector=(term,),
    )
    configuration = replace(
        CONFIGURATION, classes=(chosen,), use_node_name_only=True, set_owner_reference=True, node_labels=(), labels=()
    )
    volume = made(configuration, class_object(reclaimPolicy="Retain", mountOptions=["noatime"]), identity="wwn:1")

    assert volume["spec"] | {"nodeAffinity": None} == {
        "persistentVolumeReclaimPolicy": "Retain",
        "capacity": {"storage": "20Gi"},
        "local": {"path": "/mnt/fast/disk1", "fsType": "xfs"},
        "accessModes": ["ReadWriteMany"],
        "storageClassName": "fast",
        "volumeMode": "Block",
        "mountOptions": ["noatime"],
        "nodeAffinity": None,
    }
    assert volume["spec"]["nodeAffinity"]["required"]["nodeSelectorTerms"][1:] == [term]
    metadata = volume["metadata"]
    assert "labels" not in metadata
    assert metadata["annotations"] == {
        "pv.kubernetes.io/provisioned-by": "local-volume-provisioner-n1",
        "orlop.dev/disk-identity": "wwn:1",
    }
    assert metadata["ownerReferences"] == [
        {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": "7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d"}
    ]


def of_others(provisioner: str, **changes: Any) -> StaticVolume | None:
    volume = made()
    volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = provisioner
    return read_static_volume(volume | changes)


@pytest.mark.parametrize(
    "provisioner",
    [
        "local-volume-provisioner-n1-7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d",
        # Of a Node that was deleted, and created again under its name.
        "local-volume-provisioner-n1-00000000-0000-0000-0000-000000000000",
        "local-volume-provisioner-n1",
    ],
)
def test_a_volume_of_todays_product_is_recognized_by_the_name_of_its_node(provisioner: str):
    volume = of_others(provisioner)

    assert volume is not None
    assert (volume.node, volume.storage_class, volume.entry) == ("n1", "fast", "disk1")


@pytest.mark.parametrize(
    "provisioner",
    [
        "local-volume-provisioner-n2",
        "csi.example.com",
        "",
        "local-volume-provisioner-",
        "local-volume-provisioner-n1-x",
    ],
)
def test_a_volume_whose_name_does_not_follow_from_its_node_is_not_ours(provisioner: str):
    assert of_others(provisioner) is None


def test_a_node_whose_name_ends_like_a_uid_is_recognized():
    node = "n-7f4f3f0e-5d58-4a3f-9d0a-0c9f3a2b1c4d"
    volume = made()
    volume["metadata"]["name"] = volume_name("disk1", node, "fast")
    volume["metadata"]["annotations"]["pv.kubernetes.io/provisioned-by"] = f"local-volume-provisioner-{node}"

    found = read_static_volume(volume)

    assert found is not None
    assert found.node == node


@pytest.mark.parametrize(
    "spec",
    [{}, {"local": None}, {"local": {"path": "/mnt/fast/"}}, {"csi": {"driver": "d"}, "storageClassName": "fast"}],
)
def test_anything_else_is_no_static_volume(spec: dict[str, Any]):
    assert of_others("local-volume-provisioner-n1", spec=spec) is None


def facts(**changes: Any) -> StaticVolume:
    volume = made(identity="wwn:1")
    volume["metadata"]["uid"] = "u1"
    found = read_static_volume(volume)
    assert found is not None
    return replace(found, **changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"claim": "default/c", "claim_uid": "c1"},
        {"phase": "Bound"},
        {"phase": "Released"},
        {"phase": "Failed"},
        {"is_ever_bound_noted": True, "phase": "Available"},
        {"was_bound_by_controller": True, "phase": "Available"},
    ],
)
def test_a_volume_that_a_claim_had_may_have_its_data(changes: dict[str, Any]):
    assert facts(**changes).was_ever_bound
    assert not facts(**changes).is_untouched


def test_a_volume_is_untouched_only_while_nobody_has_reserved_it():
    assert facts(phase="Available").is_untouched
    assert not facts(phase="Available", claim="default/c").is_untouched
    assert not facts(phase="Available", claim="default/c").was_ever_bound


@pytest.mark.parametrize(
    ("phase", "expected"),
    [("Pending", "bound"), ("Available", "bound"), ("Bound", "bound"), ("Released", "free"), ("Failed", "free")],
)
def test_a_claim_has_a_volume_from_its_uid_until_it_is_released(phase: str, expected: str):
    is_bound = facts(phase=phase, claim="default/c", claim_uid="c1").is_bound
    assert is_bound == (expected == "bound")
    assert not facts(phase=phase, claim="default/c").is_bound


# ---- patches ---------------------------------------------------------------------------------------------------------


class Patched:
    """A PersistentVolume on a server, with the facts that are read of it."""

    def __init__(self, client: Any, stored: dict[str, Any]) -> None:
        self.client = client
        self.stored = stored

    @property
    def facts(self) -> StaticVolume:
        found = read_static_volume(self.stored)
        assert found is not None
        return found

    @property
    def version(self) -> str:
        return objects.resource_version(self.stored)

    async def apply(self, patch: JsonPatch | None) -> None:
        assert patch is not None
        self.stored = await self.client.patch(PERSISTENT_VOLUME, objects.name_of(self.stored), patch)


async def test_each_patch_changes_its_one_thing_and_only_what_it_was_decided_on():
    async with api_server(SystemClock()) as server:
        client = server.client()
        volume = made()
        volume["metadata"].pop("finalizers")
        patched = Patched(client, await client.create(PERSISTENT_VOLUME, volume))
        first = keeping_patch(patched.facts, patched.version, "wwn:1")

        await patched.apply(first)
        assert patched.facts.has_finalizer
        assert patched.facts.identity == "wwn:1"
        assert not patched.facts.is_ever_bound_noted
        assert keeping_patch(patched.facts, patched.version, "wwn:2") is None

        await patched.apply(capacity_patch(patched.facts, patched.version, 40 * GIB))
        assert patched.facts.capacity == 40 * GIB

        reference = JsonPatch().add("spec", "claimRef", value={"namespace": "default", "name": "c"})
        await patched.apply(reference)
        await patched.apply(deciding_patch(patched.facts, patched.version))
        assert patched.facts.is_wipe_decided
        assert patched.facts.claim == ""
        await patched.apply(undeciding_patch(patched.facts, patched.version))
        assert not patched.facts.is_wipe_decided

        await patched.apply(
            JsonPatch().add("spec", "claimRef", value={"namespace": "default", "name": "c", "uid": "c1"})
        )
        await patched.apply(keeping_patch(patched.facts, patched.version, ""))
        assert objects.annotations(patched.stored)[EVER_BOUND] == "true"

        for stale in (first, releasing_patch(patched.facts, "1")):
            with pytest.raises(PatchRefused):
                await patched.apply(stale)
        await patched.apply(releasing_patch(patched.facts, patched.version))
        assert WIPE_FINALIZER not in objects.finalizers(patched.stored)
        assert objects.finalizers(patched.stored) == ("kubernetes.io/pv-protection",)
