"""Secrets of both places go to the driver that is to have them, and nowhere else: canaries are looked for all over."""

from __future__ import annotations

import base64
from typing import Any

import pytest

from orlop.kube.kinds import SECRET
from orlop.kube.objects import uid
from support.api.api_objects import STORED, secret
from support.host.remains import NOTHING
from support.kubelet.journey_machines import GONE, Machine, journey_machine
from support.kubelet.volume_worlds import DRIVER

pytestmark = pytest.mark.virtual_time
STAGE, PUBLISH, UNPUBLISH, UNSTAGE = (f"Node{verb}Volume" for verb in ("Stage", "Publish", "Unpublish", "Unstage"))
CANARIES = {place: f"canary-of-{place}-7c2f" for place in ("staging", "publishing", "inline")}
REFERENCES = {
    "nodeStageSecretRef": {"name": "staging", "namespace": "default"},
    "nodePublishSecretRef": {"name": "publishing", "namespace": "default"},
}
CLAIMED = {"name": "data", "persistentVolumeClaim": {"claimName": "c"}}
INLINE = {"name": "scratch", "csi": {"driver": DRIVER, "nodePublishSecretRef": {"name": "inline"}}}
SPEC: dict[str, Any] = {
    "attachRequired": False,
    "podInfoOnMount": True,
    "volumeLifecycleModes": ["Ephemeral", "Persistent"],
}


def quoting(place: str) -> list[dict[str, Any]]:
    """A driver that repeats in its error what it was given."""
    return [{"error": {"code": "INTERNAL", "message": f"cannot log in with {CANARIES[place]}"}}]


async def everything_told(machine: Machine) -> str:
    """The log to the last detail, all that is on the disk, and every object of the API but the secrets themselves."""
    kept = [machine.world.log, machine.world.contents(), machine.remains(), machine.containers.all]
    for kind in STORED:
        if kind is not SECRET:
            kept.append((await machine.world.client.list(kind)).items)
    return repr(kept)


def found_in(text: str) -> list[str]:
    forms = [form for value in CANARIES.values() for form in (value, base64.b64encode(value.encode()).decode())]
    return [form for form in forms if form in text]


def given(machine: Machine, method: str) -> list[dict[str, str]]:
    return [dict(request.secrets) for request in machine.world.requests(method)]


async def test_each_step_gets_its_own_secret_and_nobody_else_ever_sees_one():
    script = {STAGE: quoting("staging"), PUBLISH: quoting("publishing")}
    async with journey_machine() as machine:
        for name, value in CANARIES.items():
            await machine.world.client.create(SECRET, secret(name, password=value, user="u"), namespace="default")
        await machine.world.csi_driver(**SPEC)
        await machine.world.bound_claim(csi=REFERENCES)
        machine.world.play(script)
        machine.start_driver()
        await machine.start_kubelet()
        claimed = await machine.make_pod("claimed", CLAIMED)
        await machine.until_phase("Running", "claimed")
        await machine.make_pod("inline", INLINE)
        await machine.until_phase("Running", "inline")
        while_running = await everything_told(machine)

        expected = {place: {"password": value, "user": "u"} for place, value in CANARIES.items()}
        assert given(machine, STAGE) == [expected["staging"]] * 2
        by_handle = {one.volume_id: dict(one.secrets) for one in machine.world.requests(PUBLISH)}
        assert by_handle.pop("h1") == expected["publishing"]
        assert list(by_handle.values()) == [expected["inline"]]
        told = [event for event in await machine.world.events() if event.startswith("FailedMount")]
        assert [("MountDevice" in event, "SetUp" in event) for event in told] == [(True, False), (False, True)]
        assert all("cannot log in with" in event for event in told), told

        for name in ("claimed", "inline"):
            await machine.delete_pod(name)
            await machine.until_phase(GONE, name)
        await machine.settle(10)
        assert uid(claimed) in while_running
        assert found_in(while_running) == []
        assert found_in(await everything_told(machine)) == []
        assert not {field.name for method in (UNPUBLISH, UNSTAGE) for field in fields_of(machine, method)} & {"secrets"}
        assert machine.remains() == NOTHING


def fields_of(machine: Machine, method: str) -> Any:
    """The interface has no secrets for what is undone."""
    return machine.world.requests(method)[0].DESCRIPTOR.fields


@pytest.mark.parametrize(
    ("volume", "missing", "told"),
    [
        (CLAIMED, "staging", "fetching NodeStageSecretRef default/staging failed"),
        (CLAIMED, "publishing", "fetching NodePublishSecretRef default/publishing failed"),
        (INLINE, "inline", "fetching NodePublishSecretRef default/inline failed"),
    ],
    ids=["staging", "publishing", "inline"],
)
async def test_a_secret_that_is_missing_is_named_and_the_pod_begins_when_it_is_there(
    volume: dict[str, Any], missing: str, told: str
):
    async with journey_machine() as machine:
        for name in CANARIES.keys() - {missing}:
            await machine.world.client.create(SECRET, secret(name, password="x"), namespace="default")
        await machine.world.csi_driver(**SPEC)
        await machine.world.bound_claim(csi=REFERENCES)
        machine.start_driver()
        await machine.start_kubelet()
        await machine.make_pod("p", volume)
        await machine.settle(10)
        assert await machine.phase() == "Pending"
        assert [event for event in await machine.world.events() if told in event]

        await machine.world.client.create(SECRET, secret(missing, password="x"), namespace="default")
        await machine.until_phase("Running")
        await machine.delete_pod()
        await machine.until_phase(GONE)
        await machine.settle(10)
        assert machine.remains() == NOTHING
