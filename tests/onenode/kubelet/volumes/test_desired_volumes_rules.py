"""Pods, claims and volumes in; volumes that should be mounted, and kubelet's words for those that cannot be, out."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from onenode.kubelet.volumes import desired_volumes_rules as rules
from onenode.kubelet.volumes.desired_volumes_rules import PodDesire, Unread, VolumeObjects
from onenode.kubelet.volumes.volume_values import Lifecycle, VolumeMode
from orlop.kube.objects import ObjectName

Object = dict[str, Any]
DATA: Object = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
INLINE: Object = {"name": "scratch", "csi": {"driver": "d.example"}}


def pod(*volumes: Object, mounts: list[str] | None = None, devices: list[str] | None = None, **spec: Any) -> Object:
    names = [volume["name"] for volume in volumes] if mounts is None and devices is None else mounts or []
    container = {
        "name": "main",
        "volumeMounts": [{"name": name} for name in names],
        "volumeDevices": [{"name": name} for name in devices or []],
    }
    metadata = {"name": "web-0", "namespace": "ns1", "uid": "u1"}
    return {"metadata": metadata, "spec": {"containers": [container], "volumes": list(volumes), **spec}}


def claim(**changes: Any) -> Object:
    metadata = {"name": "c", "namespace": "ns1", "uid": "cu", **changes.pop("metadata", {})}
    return {"metadata": metadata, "spec": {"volumeName": "pv1"}, "status": {"phase": "Bound"}, **changes}


def volume(**spec: Any) -> Object:
    source = {"driver": "d.example", "volumeHandle": "h1"}
    return {"metadata": {"name": "pv1"}, "spec": {"csi": source, "claimRef": {"uid": "cu"}, **spec}}


def found(claimed: Any = None, persistent: Any = None, **driver: Any) -> VolumeObjects:
    drivers = {"d.example": {"spec": driver}} if driver else {}
    return VolumeObjects({"c": claimed or claim()}, {"pv1": persistent or volume()}, drivers)


def error_of(desire: PodDesire) -> str:
    (text,) = desire.errors.values()
    return text


def test_only_volumes_that_a_container_uses_are_wanted():
    desire = rules.desire_of(pod(INLINE, DATA, mounts=["scratch"]), found())

    assert desire.wanted == ("scratch",)
    assert [mount.spec.name for mount in desire.mounts] == ["scratch"]


@pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
def test_containers_of_every_kind_count(kind: str):
    used = {"name": "x", "volumeMounts": [{"name": "scratch"}]}

    assert rules.desire_of(pod(INLINE, mounts=[], **{kind: [used]}), found()).wanted == ("scratch",)


def test_an_inline_volume_is_what_the_pod_says():
    source = {
        "driver": "d.example",
        "readOnly": True,
        "fsType": "ext4",
        "volumeAttributes": {"a": "b"},
        "nodePublishSecretRef": {"name": "s"},
    }

    (mount,) = rules.desire_of(pod({"name": "scratch", "csi": source}), found(attachRequired=True)).mounts

    assert mount.spec.lifecycle is Lifecycle.EPHEMERAL
    assert (mount.spec.fs_type, mount.spec.attributes, mount.read_only) == ("ext4", {"a": "b"}, True)
    assert mount.spec.publish_secret == ObjectName("ns1", "s")
    assert not mount.attach_required


def test_a_claims_volume_is_what_the_persistent_volume_says():
    persistent = volume(
        volumeMode="Filesystem",
        mountOptions=["noatime"],
        accessModes=["ReadWriteMany"],
        csi={
            "driver": "d.example",
            "volumeHandle": "h9",
            "fsType": "xfs",
            "readOnly": True,
            "nodeStageSecretRef": {"namespace": "k", "name": "s1"},
            "nodePublishSecretRef": {"namespace": "k", "name": "s2"},
        },
    )

    (mount,) = rules.desire_of(pod(DATA), found(persistent=persistent)).mounts

    assert mount.volume == "kubernetes.io/csi/d.example^h9"
    assert mount.spec.mount_options == ("noatime",)
    assert (mount.spec.stage_secret, mount.spec.publish_secret) == (ObjectName("k", "s1"), ObjectName("k", "s2"))
    assert not mount.read_only, "the volume's own readOnly is not used"
    assert mount.attach_required, "there is no CSIDriver object"


def test_two_volumes_of_a_pod_may_share_a_claim():
    other = {"name": "again", "persistentVolumeClaim": {"claimName": "c"}}

    (mount,) = rules.desire_of(pod(DATA, other), found()).mounts

    assert mount.outer_names == ("data", "again")


ABOUT = "error processing PVC ns1/c: "


@pytest.mark.parametrize(
    ("claimed", "persistent", "text"),
    [
        (Unread("gone"), None, ABOUT + "failed to fetch PVC from API server: gone"),
        (claim(status={"phase": "Pending"}), None, ABOUT + "PVC is not bound"),
        (claim(spec={}), None, ABOUT + "PVC has empty pvc.Spec.VolumeName"),
        (claim(metadata={"deletionTimestamp": "t"}), None, ABOUT + "PVC is being deleted"),
        (None, Unread("gone"), ABOUT + "failed to fetch PV pv1 from API server: gone"),
        (
            None,
            volume(claimRef=None),
            ABOUT + "found PV object pv1 but it has a nil pv.Spec.ClaimRef indicating it is not yet bound to the claim",
        ),
        (
            None,
            volume(claimRef={"uid": "x"}),
            ABOUT + "found PV object pv1 but its pv.Spec.ClaimRef.UID x does not point to claim.UID cu",
        ),
        (None, volume(volumeMode="Block"), "volume data has volumeMode Block, but is specified in volumeMounts"),
        (
            None,
            volume(csi=None, nfs={}),
            'failed to get Plugin from volumeSpec for volume "pv1" err=no volume plugin matched',
        ),
    ],
)
def test_what_cannot_be_had_yet_is_told_in_kubelets_words(claimed: Any, persistent: Any, text: str):
    desire = rules.desire_of(pod(DATA), found(claimed, persistent))

    assert error_of(desire) == text
    assert desire.mounts == ()
    assert desire.wanted == ("data",)


def test_a_claim_that_goes_but_is_still_protected_may_be_used():
    metadata = {"deletionTimestamp": "t", "finalizers": ["kubernetes.io/pvc-protection"]}

    assert rules.desire_of(pod(DATA), found(claim(metadata=metadata))).errors == {}


def test_a_device_must_be_a_block_volume():
    assert error_of(rules.desire_of(pod(DATA, devices=["data"]), found())) == (
        "volume data has volumeMode Filesystem, but is specified in volumeDevices"
    )
    (mount,) = rules.desire_of(pod(DATA, devices=["data"]), found(persistent=volume(volumeMode="Block"))).mounts
    assert mount.spec.mode is VolumeMode.BLOCK


def test_a_generic_ephemeral_volumes_claim_must_be_the_pods_own():
    ephemeral = {"name": "tmp", "ephemeral": {"volumeClaimTemplate": {}}}
    owner = {"controller": True, "uid": "u1"}
    foreign, own = claim(metadata={"name": "web-0-tmp"}), claim(metadata={"ownerReferences": [owner]})

    assert rules.claims_to_read(pod(ephemeral)) == ("web-0-tmp",)
    refused = rules.desire_of(pod(ephemeral), VolumeObjects({"web-0-tmp": foreign}, {"pv1": volume()}))
    assert error_of(refused) == "PVC ns1/web-0-tmp was not created for pod ns1/web-0 (pod is not owner)"
    assert len(rules.desire_of(pod(ephemeral), VolumeObjects({"web-0-tmp": own}, {"pv1": volume()})).mounts) == 1


@pytest.mark.parametrize("name", ["..", ".", "", "a\0b", "x" * 256])
def test_names_that_lead_elsewhere_are_refused(name: str):
    hostile = pod({"name": name, "csi": {"driver": "d.example"}}, mounts=[name])
    driver = pod({"name": "v", "csi": {"driver": f"../{name}"}})

    assert rules.desire_of(hostile, found()).mounts == ()
    assert rules.desire_of(driver, found()).mounts == ()


@given(used=st.lists(st.sampled_from(["data", "scratch", "none"]), max_size=3), is_bound=st.booleans())
def test_each_wanted_volume_is_mounted_or_has_an_error(*, used: list[str], is_bound: bool):
    claimed = claim() if is_bound else claim(status={})

    desire = rules.desire_of(pod(DATA, INLINE, mounts=used), found(claimed))

    mounted = {name for mount in desire.mounts for name in mount.outer_names}
    assert mounted | set(desire.errors) == set(desire.wanted)
    assert not mounted & set(desire.errors)
