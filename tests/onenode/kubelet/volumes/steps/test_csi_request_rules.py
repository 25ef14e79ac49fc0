"""The requests that kubelet's source makes, field by field: {inline, PV, block} x {pod info} x {staging} and more."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from google.protobuf import json_format

from onenode.kubelet.volumes.steps import csi_request_rules as rules
from onenode.kubelet.volumes.steps.csi_request_rules import CsiDriverFacts, StepFacts
from onenode.kubelet.volumes.volume_values import DesiredMount, Lifecycle, PodFacts, VolumeMode, VolumeSpec
from orlop.kube.objects import ObjectName

POD = PodFacts("u1", ObjectName("ns1", "web-0"), "builder")
INLINE = VolumeSpec("scratch", "d.example", "csi-1", Lifecycle.EPHEMERAL, attributes={"size": "1Gi"})
PERSISTENT = VolumeSpec(
    "pv1",
    "d.example",
    "h1",
    Lifecycle.PERSISTENT,
    fs_type="xfs",
    mount_options=("noatime", "discard"),
    access_modes=("ReadWriteOnce", "ReadOnlyMany"),
    attributes={"tier": "fast"},
)
BLOCK = replace(PERSISTENT, mode=VolumeMode.BLOCK)
STAGES = frozenset({"STAGE_UNSTAGE_VOLUME"})
NOTHING: frozenset[str] = frozenset()
INFO = {
    "csi.storage.k8s.io/pod.name": "web-0",
    "csi.storage.k8s.io/pod.namespace": "ns1",
    "csi.storage.k8s.io/pod.uid": "u1",
    "csi.storage.k8s.io/serviceAccount.name": "builder",
}
XFS = {"fsType": "xfs", "mountFlags": ["noatime", "discard"]}
WRITER = {"mode": "SINGLE_NODE_WRITER"}


def mount(spec: VolumeSpec, **options: Any) -> DesiredMount:
    return DesiredMount("v", spec, POD, ("a",), **options)


def shown(message: Any) -> dict[str, Any]:
    return json_format.MessageToDict(message)


def published(spec: VolumeSpec, capabilities: frozenset[str] = STAGES, **options: Any) -> dict[str, Any]:
    facts = StepFacts(
        capabilities, CsiDriverFacts(exists=True, **options.pop("driver", {})), **options.pop("facts", {})
    )
    return shown(rules.publish_request(mount(spec, **options), facts, "/staging", "/target"))


def test_a_volume_is_staged_with_its_context_flags_and_secrets():
    facts = StepFacts(STAGES, publish_context={"disk": "sdb"}, secrets={"key": "s"})

    assert shown(rules.stage_request(mount(PERSISTENT), facts, "/staging")) == {
        "volumeId": "h1",
        "publishContext": {"disk": "sdb"},
        "stagingTargetPath": "/staging",
        "volumeCapability": {"mount": XFS, "accessMode": WRITER},
        "secrets": {"key": "s"},
        "volumeContext": {"tier": "fast"},
    }


def test_a_block_volume_is_staged_as_such():
    found = shown(rules.stage_request(mount(BLOCK), StepFacts(STAGES), "/staging"))

    assert found["volumeCapability"] == {"block": {}, "accessMode": WRITER}


@pytest.mark.parametrize(("has_info", "stages"), list(itertools.product([False, True], [False, True])))
def test_an_inline_volume_has_no_staging_path_and_pod_info_only_where_asked_for(*, has_info: bool, stages: bool):
    found = published(INLINE, STAGES if stages else NOTHING, driver={"pod_info_on_mount": has_info})

    assert found == {
        "volumeId": "csi-1",
        "targetPath": "/target",
        "volumeCapability": {"mount": {}, "accessMode": WRITER},
        "volumeContext": {"size": "1Gi", **({**INFO, "csi.storage.k8s.io/ephemeral": "true"} if has_info else {})},
    }


@pytest.mark.parametrize(("has_info", "stages"), list(itertools.product([False, True], [False, True])))
def test_a_persistent_volume_has_its_staging_path_where_the_driver_stages(*, has_info: bool, stages: bool):
    found = published(PERSISTENT, STAGES if stages else NOTHING, driver={"pod_info_on_mount": has_info})

    assert found == {
        "volumeId": "h1",
        **({"stagingTargetPath": "/staging"} if stages else {}),
        "targetPath": "/target",
        "volumeCapability": {"mount": XFS, "accessMode": WRITER},
        "volumeContext": {"tier": "fast", **({**INFO, "csi.storage.k8s.io/ephemeral": "false"} if has_info else {})},
    }


@pytest.mark.parametrize("stages", [False, True])
def test_a_block_volume_always_has_a_staging_path_and_never_tokens(*, stages: bool):
    facts = {"tokens": {"a": {"token": "t"}}}

    found = published(BLOCK, STAGES if stages else NOTHING, facts=facts)

    assert found["stagingTargetPath"] == "/staging"
    assert found["volumeContext"] == {"tier": "fast"}
    assert found["volumeCapability"] == {"block": {}, "accessMode": WRITER}


def test_read_only_is_what_the_pod_says():
    assert published(INLINE, read_only=True)["readonly"] is True
    assert "readonly" not in published(INLINE)


def test_tokens_go_last_into_the_context_or_into_the_secrets():
    key = "csi.storage.k8s.io/serviceAccount.tokens"
    spec = replace(INLINE, attributes={key: "forged"})
    facts = {"tokens": {"vault": {"token": "t", "expirationTimestamp": "e"}}}

    in_context = published(spec, facts=facts)
    in_secrets = published(spec, facts=facts, driver={"tokens_in_secrets": True})

    assert json.loads(in_context["volumeContext"][key]) == facts["tokens"]
    assert "secrets" not in in_context
    assert json.loads(in_secrets["secrets"][key]) == facts["tokens"]


def test_pod_info_wins_over_attributes_of_the_same_name():
    spec = replace(INLINE, attributes={"csi.storage.k8s.io/pod.uid": "forged"})

    found = published(spec, driver={"pod_info_on_mount": True})

    assert found["volumeContext"]["csi.storage.k8s.io/pod.uid"] == "u1"


@pytest.mark.parametrize(
    ("modes", "plain", "multi"),
    [
        ((), "SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"),
        (("ReadWriteOnce",), "SINGLE_NODE_WRITER", "SINGLE_NODE_MULTI_WRITER"),
        (("ReadWriteOncePod",), "SINGLE_NODE_WRITER", "SINGLE_NODE_SINGLE_WRITER"),
        (("ReadOnlyMany", "ReadWriteOnce"), "MULTI_NODE_READER_ONLY", "MULTI_NODE_READER_ONLY"),
        (("ReadWriteMany",), "MULTI_NODE_MULTI_WRITER", "MULTI_NODE_MULTI_WRITER"),
    ],
)
def test_the_first_access_mode_alone_is_asked_for(modes: tuple[str, ...], plain: str, multi: str):
    spec = replace(PERSISTENT, access_modes=modes)

    assert published(spec)["volumeCapability"]["accessMode"]["mode"] == plain
    capabilities = STAGES | {"SINGLE_NODE_MULTI_WRITER"}
    assert published(spec, capabilities)["volumeCapability"]["accessMode"]["mode"] == multi


def test_the_group_goes_to_drivers_that_mount_with_it():
    facts = StepFacts(STAGES | {"VOLUME_MOUNT_GROUP"})
    with_group = replace(mount(PERSISTENT), pod=replace(POD, fs_group=2000))

    found = shown(rules.publish_request(with_group, facts, "/s", "/t"))

    assert found["volumeCapability"]["mount"]["volumeMountGroup"] == "2000"
    without = shown(rules.publish_request(with_group, StepFacts(STAGES), "/s", "/t"))
    assert "volumeMountGroup" not in without["volumeCapability"]["mount"]


def test_secrets_are_not_in_the_repr_of_what_was_read():
    facts = StepFacts(STAGES, secrets={"k": "canary-1"}, tokens={"a": "canary-2"})

    assert "canary" not in repr(facts)
