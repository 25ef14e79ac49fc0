"""Secrets: which are used for what, what a class may say about them, and that their values are nowhere to be seen."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from orlop.kube.kinds import (
    EVENT,
    LEASE,
    PERSISTENT_VOLUME,
    PERSISTENT_VOLUME_CLAIM,
    SECRET,
    STORAGE_CLASS,
)
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.volume_object_rules import (
    DELETION_SECRET_NAME,
    DELETION_SECRET_NAMESPACE,
    MODIFY_SECRET_NAME,
    MODIFY_SECRET_NAMESPACE,
)
from support.provisioning.provisioner_worlds import CREATE, DELETE, NAMESPACE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
RESERVED = "csi.storage.k8s.io"
USES = {
    "controller-publish": "controllerPublishSecretRef",
    "node-stage": "nodeStageSecretRef",
    "node-publish": "nodePublishSecretRef",
    "controller-expand": "controllerExpandSecretRef",
    "node-expand": "nodeExpandSecretRef",
}


def pair(use: str, name: str, namespace: str = NAMESPACE) -> dict[str, str]:
    return {f"{RESERVED}/{use}secret-name": name, f"{RESERVED}/{use}secret-namespace": namespace}


async def provisioned(world: ProvisionerWorld) -> tuple[Any, Any]:
    await world.make_claim()
    async with world.provisioner():
        (volume,) = await world.until_provisioned()
    return world.requests(CREATE)[-1], volume


async def test_the_provisioners_secret_is_sent_with_both_calls_and_the_object_names_it():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", user="u", password="p")
        await world.make_class(parameters=pair("provisioner-", "s"))
        await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            annotations = volume["metadata"]["annotations"]
            assert (annotations[DELETION_SECRET_NAME], annotations[DELETION_SECRET_NAMESPACE]) == ("s", NAMESPACE)
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)
        for method in (CREATE, DELETE):
            assert dict(world.requests(method)[0].secrets) == {"user": "u", "password": "p"}


async def test_each_pair_becomes_a_field_of_the_persistent_volume():
    async with ProvisionerWorld() as world:
        parameters = {key: value for use in USES for key, value in pair(f"{use}-", f"{use}-s").items()}
        await world.make_class(parameters={**parameters, **pair("controller-modify-", "modify-s")})
        request, volume = await provisioned(world)
        for use, field in USES.items():
            assert volume["spec"]["csi"][field] == {"name": f"{use}-s", "namespace": NAMESPACE}
        annotations = volume["metadata"]["annotations"]
        assert (annotations[MODIFY_SECRET_NAME], annotations[MODIFY_SECRET_NAMESPACE]) == ("modify-s", NAMESPACE)
        assert dict(request.parameters) == {}
        assert dict(request.secrets) == {}


async def test_the_default_pair_is_for_everything_that_has_none():
    async with ProvisionerWorld() as world:
        await world.make_secret("all", key="value")
        await world.make_class(parameters={**pair("", "all"), **pair("node-stage-", "stage")})
        request, volume = await provisioned(world)
        assert dict(request.secrets) == {"key": "value"}
        assert volume["spec"]["csi"]["nodePublishSecretRef"]["name"] == "all"
        assert volume["spec"]["csi"]["nodeStageSecretRef"]["name"] == "stage"


async def test_the_older_family_is_read_and_still_sent_as_parameters():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", key="value")
        old = {"csiProvisionerSecretName": "s", "csiProvisionerSecretNamespace": NAMESPACE}
        stage = {"csiNodeStageSecretName": "t", "csiNodeStageSecretNamespace": NAMESPACE}
        await world.make_class(parameters={**old, **stage})
        request, volume = await provisioned(world)
        assert dict(request.secrets) == {"key": "value"}
        assert dict(request.parameters) == {**old, **stage}
        assert volume["spec"]["csi"]["nodeStageSecretRef"]["name"] == "t"


async def test_names_are_templates_of_claim_and_volume():
    async with ProvisionerWorld() as world:
        await world.make_class(
            parameters={
                **pair("node-stage-", "${pvc.name}-${pvc.annotations['team']}", "${pvc.namespace}"),
                **pair("node-publish-", "${pv.name}", "${pvc.namespace}"),
            }
        )
        await world.make_claim(annotations={"team": "red"})
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
        csi = volume["spec"]["csi"]
        assert csi["nodeStageSecretRef"] == {"name": "data-red", "namespace": NAMESPACE}
        assert csi["nodePublishSecretRef"]["name"] == volume["metadata"]["name"]


@pytest.mark.parametrize(
    ("parameters", "part"),
    [
        ({f"{RESERVED}/provisioner-secret-name": "s"}, "without"),
        ({f"{RESERVED}/provisioner-secret-namespace": "n"}, "without"),
        ({"csiProvisionerSecretName": "s"}, "without"),
        ({**pair("provisioner-", "s"), "csiProvisionerSecretName": "s"}, "names the same secret twice"),
        (pair("node-stage-", "${pvc.uid}"), "unknown token"),
        (pair("node-stage-", "s", "${pvc.name}"), "unknown token"),
        (pair("node-stage-", "Not A Name"), "is not a secret's name"),
    ],
)
async def test_a_class_with_wrong_secrets_is_reported_and_nothing_is_created(parameters: dict[str, str], part: str):
    async with ProvisionerWorld() as world:
        await world.make_class(parameters=parameters)
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", part)
        assert world.calls() == []
        assert await world.journal() == []


async def test_a_secret_that_is_missing_is_waited_for():
    async with ProvisionerWorld() as world:
        await world.make_class(parameters=pair("provisioner-", "s"))
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", f"failed to get secret {NAMESPACE}/s")
            assert await world.journal() == []
            await world.make_secret("s", key="value")
            await world.until_provisioned()
        assert world.calls() == [CREATE]


async def test_a_secret_that_is_not_text_is_reported_without_its_value():
    async with ProvisionerWorld() as world:
        value = base64.b64encode(b"\xff\xfecanary").decode()
        body = {"metadata": {"name": "s", "namespace": NAMESPACE}, "data": {"key": value}}
        await world.client.create(SECRET, body)
        await world.make_class(parameters=pair("provisioner-", "s"))
        await world.make_claim()
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "not UTF-8")
        assert world.calls() == []
        assert "canary" not in repr(await world.events()) + repr(world.log)


async def test_a_volume_is_deleted_without_its_secret_when_that_is_gone():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", key="value")
        await world.make_class(parameters=pair("provisioner-", "s"))
        await world.make_claim()
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            await world.client.delete(SECRET, ObjectName(NAMESPACE, "s"))
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)
        assert world.names() == []
        assert dict(world.requests(DELETE)[0].secrets) == {}


async def test_a_changed_secret_is_read_for_each_call():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", key="old")
        await world.make_class(parameters=pair("provisioner-", "s"))
        world.play({CREATE: [{"error": {"code": "UNAVAILABLE", "message": "no"}}]})
        await world.make_claim()
        async with world.provisioner(retry_start=30.0):
            await world.until_event("ProvisioningFailed")
            await world.client.delete(SECRET, ObjectName(NAMESPACE, "s"))
            await world.make_secret("s", key="new")
            await world.until_provisioned()
        assert [request.secrets["key"] for request in world.requests(CREATE)] == ["old", "new"]


# ---- I8: nothing that anybody can read holds the value of a secret --------------------------------------------------

CANARIES = ("canary-hunter2", "canary-second")


async def test_the_values_of_secrets_are_nowhere_to_be_seen_in_a_whole_life_with_errors_that_quote_them():
    async with ProvisionerWorld() as world:
        await world.make_secret("s", password=CANARIES[0], token=CANARIES[1])
        await world.make_class(parameters=pair("", "s"))
        codes = ["INTERNAL", "UNAVAILABLE", "DEADLINE_EXCEEDED", "PERMISSION_DENIED", "UNAUTHENTICATED"]
        errors = [{"error": {"code": code, "message": f"denied for {CANARIES[0]}"}} for code in codes]
        small = {"answer": {"volume": {"volumeId": "v", "capacityBytes": "1"}}}
        world.play({CREATE: [*errors, small], DELETE: errors})
        await world.make_claim()
        seen = []
        async with world.provisioner():
            (volume,) = await world.until_provisioned()
            seen.append(await everything(world))
            await world.release(volume["metadata"]["name"])
            await world.until_provisioned(0)
            seen.append(world.metrics[-1].render()[0].decode())
        seen += [await everything(world), repr(world.log)]
        assert len(world.calls(CREATE)) == len(codes) + 2
        assert len([event for event in await world.events() if "Failed" in event]) > 5
        for canary in CANARIES:
            for encoded in (canary, base64.b64encode(canary.encode()).decode()):
                assert encoded not in "".join(seen)


async def everything(world: ProvisionerWorld) -> str:
    kinds = (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, STORAGE_CLASS, EVENT, LEASE)
    objects = [await world.client.list(kind) for kind in kinds]
    return json.dumps([each.items for each in objects]) + repr(await world.journal())
