"""Objects that cannot be attached as they are: each is told what is wrong with it, and nobody is kept busy by it.

They are put where the API server keeps its own, past its checks: older servers let in what newer ones refuse.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from orlop.kube import objects
from orlop.kube.kinds import PERSISTENT_VOLUME, SECRET, VOLUME_ATTACHMENT
from orlop.sidecars.attacher.attach_rules import NODE_ID_ANNOTATION
from orlop.sidecars.attacher.volume_source_rules import MIGRATED
from support.api.api_objects import attachment, finalized, named, volume
from support.attaching.attacher_worlds import DRIVER, OURS, PUBLISH, UNPUBLISH, AttacherWorld

pytestmark = pytest.mark.virtual_time
HOUR = 3600.0
MOST_ATTEMPTS = 40
"""In an hour: eight until they are five minutes apart, then twelve an hour, and six when all is looked at again."""
SECRET_OF = {"controllerPublishSecretRef": {"name": "s", "namespace": "default"}}
Json = dict[str, Any]


def csi_volume(spec: Json | None = None, **csi: Any) -> Json:
    filled_in = {"volumeMode": "Filesystem", "persistentVolumeReclaimPolicy": "Retain"}
    return volume("pv1", csi={"driver": DRIVER, "volumeHandle": "h1", **csi}, **filled_in, **(spec or {}))


def of_kind(kind: str) -> Json:
    made = volume("pv1", **{kind: {"path": "/", "volumeID": "v"}})
    del made["spec"]["csi"]
    return made


def wanted(**spec: Any) -> Json:
    return {**attachment("va1", **{"attacher": DRIVER, "nodeName": "n1", **spec}), "status": {"attached": False}}


def inline(spec: Any) -> Json:
    return wanted(source={"inlineVolumeSpec": spec})


@dataclass(frozen=True)
class Bad:
    sentence: str
    pv: Json | None = field(default_factory=csi_volume)
    va: Json = field(default_factory=wanted)
    secret: Mapping[str, bytes] | None = None
    node: bool = True


CONTRADICTING = {
    "access modes ROX and RWO": (["ReadOnlyMany", "ReadWriteOnce"], "contradict each other"),
    "access modes RWOP and another": (["ReadWriteOncePod", "ReadWriteOnce"], "allows no other beside it"),
    "no access mode": ([], "has no access mode"),
    "an unknown access mode": (["ReadWriteTwice"], "'ReadWriteTwice' is unknown"),
}
BAD: dict[str, Bad] = {
    "missing volume": Bad("there is no PersistentVolume pv1", pv=None),
    "volume without csi": Bad("not a volume of a CSI driver, but of hostPath", of_kind("hostPath")),
    "volume without anything": Bad(
        "not a volume of a CSI driver", named("pv1", spec={"accessModes": ["ReadWriteOnce"]})
    ),
    "volume without a spec": Bad("has no spec", named("pv1")),
    "wrong driver": Bad("belongs to the driver 'other'", csi_volume(driver="other")),
    "empty handle": Bad("has no csi.volumeHandle", csi_volume(volumeHandle="")),
    "no handle": Bad("has no csi.volumeHandle", csi_volume(volumeHandle=None)),
    "huge attributes": Bad("at most 1048576 are allowed", csi_volume(volumeAttributes={"a": "x" * (2 << 20)})),
    "attributes that are no texts": Bad("must be strings", csi_volume(volumeAttributes={"a": [1]})),
    "node without an id": Bad("no CSINode of that name lists the driver", node=False),
    "node of an impossible name": Bad("has no id for the node '../n1'", va=wanted(nodeName="../n1")),
    "node without a name": Bad("has no id for the node ''", va=wanted(nodeName="")),
    "missing secret": Bad("the secret default/s cannot be read", csi_volume(**SECRET_OF)),
    "secret not UTF-8": Bad("the key 'k' .* is not UTF-8 text", csi_volume(**SECRET_OF), secret={"k": b"\xff\xfe"}),
    "secret of an impossible name": Bad(
        "the secret default/../s cannot be read",
        csi_volume(controllerPublishSecretRef={"name": "../s", "namespace": "default"}),
    ),
    "half a secret": Bad("needs a name and a namespace", csi_volume(controllerPublishSecretRef={"name": "s"})),
    "inline without csi": Bad("spec.source.inlineVolumeSpec is not a volume", va=inline({"hostPath": {"path": "/"}})),
    "inline of another driver": Bad("belongs to the driver 'x'", va=inline({"csi": {"driver": "x"}})),
    **{name: Bad(told, csi_volume({"accessModes": modes})) for name, (modes, told) in CONTRADICTING.items()},
    **{f"migrated {kind}": Bad(f"{kind}, .* migrates to {driver}", of_kind(kind)) for kind, driver in MIGRATED.items()},
}


async def make(world: AttacherWorld, bad: Bad) -> None:
    if bad.node:
        await world.node()
    if bad.secret is not None:
        data = {key: base64.b64encode(value).decode() for key, value in bad.secret.items()}
        await world.client.create(SECRET, named("s", data=data), namespace="default")
    if bad.pv is not None:
        await world.put(PERSISTENT_VOLUME, bad.pv)
    await world.put(VOLUME_ATTACHMENT, bad.va)


async def assert_that_nobody_is_busy(world: AttacherWorld) -> None:
    await world.clock.sleep(HOUR)
    assert len([one for one in world.wire.written() if "va1/status" in one]) <= MOST_ATTEMPTS
    assert len(world.wire.requests) <= 4 * MOST_ATTEMPTS


def assert_that_nothing_broke(world: AttacherWorld) -> None:
    assert not [entry for entry in world.log if "Traceback" in str(entry)]


@pytest.mark.parametrize("bad", BAD.values(), ids=list(BAD))
async def test_it_is_told_on_the_object_and_nobody_is_kept_busy(bad: Bad):
    async with AttacherWorld() as world:
        await make(world, bad)
        async with world.attacher():
            told = await world.until_told()
            assert re.search(bad.sentence, told["message"]), told["message"]
            await assert_that_nobody_is_busy(world)
        assert world.calls() == []
        assert (await world.attachment())["status"]["attached"] is False
        assert any(event.startswith("FailedAttachVolume") for event in await world.events())
        assert_that_nothing_broke(world)


@pytest.mark.parametrize(
    "source",
    [{}, None, {"persistentVolumeName": "pv1", "inlineVolumeSpec": csi_volume()["spec"]}],
    ids=["neither source", "no source at all", "both sources"],
)
async def test_one_that_the_api_server_does_not_even_let_be_told_is_told_by_an_event(source: Any):
    async with AttacherWorld() as world:
        await make(world, Bad("", va=wanted(source=source)))
        async with world.attacher():
            await assert_that_nobody_is_busy(world)
        assert world.calls() == []
        assert any("spec.source names" in event for event in await world.events())
        assert_that_nothing_broke(world)


def going(**changes: Any) -> Json:
    metadata = {"name": "va1", "finalizers": [OURS], "deletionTimestamp": "2026-01-02T03:04:05Z"}
    annotations = {NODE_ID_ANNOTATION: "id-1"} if changes.pop("recorded", True) else {}
    return {**wanted(), "metadata": {**metadata, "annotations": annotations}, **changes}


GOING: dict[str, Bad] = {
    "missing volume": Bad("pv1 is gone", pv=None, va=going()),
    "volume without csi": Bad("not a volume of a CSI driver", of_kind("hostPath"), going()),
    "wrong driver": Bad("belongs to the driver 'other'", csi_volume(driver="other"), going()),
    "empty handle": Bad("has no csi.volumeHandle", csi_volume(volumeHandle=""), going()),
    "node without an id": Bad("Set the annotation", va=going(recorded=False), node=False),
    "missing secret": Bad("the secret default/s cannot be read", csi_volume(**SECRET_OF), going()),
    "secret not UTF-8": Bad("the key 'k' .* is not UTF-8 text", csi_volume(**SECRET_OF), going(), {"k": b"\xff"}),
}


@pytest.mark.parametrize("bad", GOING.values(), ids=list(GOING))
async def test_one_that_cannot_be_detached_is_told_so_and_keeps_our_finalizer(bad: Bad):
    async with AttacherWorld() as world:
        await make(world, bad)
        async with world.attacher():
            told = await world.until_told("detachError")
            assert re.search(bad.sentence, told["message"]), told["message"]
            await assert_that_nobody_is_busy(world)
        assert world.calls() == []
        assert objects.finalizers(await world.attachment()) == (OURS,)
        assert any(event.startswith("FailedDetachVolume") for event in await world.events())
        assert_that_nothing_broke(world)


HARMLESS: dict[str, Json] = {
    "access modes that contradict": csi_volume({"accessModes": ["ReadOnlyMany", "ReadWriteOnce"]}),
    "huge attributes": csi_volume(volumeAttributes={"a": "x" * (2 << 20)}),
    "attributes that are no texts": csi_volume(volumeAttributes={"a": [1]}),
}


@pytest.mark.parametrize("pv", HARMLESS.values(), ids=list(HARMLESS))
async def test_what_only_attaching_needs_hinders_no_detaching(pv: Json):
    async with AttacherWorld() as world:
        await make(world, Bad("", pv, going()))
        async with world.attacher():
            await world.until_gone(VOLUME_ATTACHMENT, "va1")
        assert world.calls() == [UNPUBLISH]


async def test_fields_that_nobody_knows_hinder_nothing():
    async with AttacherWorld() as world:
        world.storage.add_volume("h1", 1 << 30)
        pv = {**finalized(csi_volume({"newField": {"a": 1}}, another=[1, 2]), OURS), "more": True}
        await make(world, Bad("", pv, {**wanted(), "extra": {"b": 2}}))
        async with world.attacher():
            await world.until_attached()
        assert world.calls() == [PUBLISH]
        assert_that_nothing_broke(world)


async def test_one_that_is_mended_is_attached_at_once():
    async with AttacherWorld() as world:
        await make(world, BAD["missing volume"])
        async with world.attacher():
            await world.clock.sleep(HOUR)
            await world.volume()
            began = world.clock.elapsed()
            found = await world.until_attached()
            assert world.clock.elapsed() - began < 1
        assert found["status"] == {"attached": True, "attachmentMetadata": found["status"]["attachmentMetadata"]}


async def test_many_bad_ones_hold_up_no_good_one():
    async with AttacherWorld() as world:
        await world.node()
        for number in range(50):
            await world.wanted(f"bad{number}", "none")
        async with world.attacher(workers=2):
            await world.clock.sleep(60)
            await world.volume()
            await world.wanted()
            began = world.clock.elapsed()
            await world.until_attached()
            assert world.clock.elapsed() - began < 1
