"""Claims that are copied from others: the source is checked, protected while it is copied, and free afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from orlop.kube.client import MergePatch
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM
from orlop.kube.objects import ObjectName
from orlop.sidecars.provisioner.clone_rules import CLONING_PROTECTION
from support.api.api_wires import failing, refusal
from support.provisioning.provisioner_worlds import CREATE, NAMESPACE, ProvisionerWorld

pytestmark = pytest.mark.virtual_time
SOURCE = {"kind": "PersistentVolumeClaim", "name": "source"}


async def bound_source(world: ProvisionerWorld) -> None:
    """Provision the claim `source`, bind it, and give its volume some content."""
    await world.make_class()
    await world.make_claim("source")
    async with world.provisioner():
        (volume,) = await world.until_provisioned()
        await world.until_journal_is_empty()
    await world.bind("source", volume["metadata"]["name"])
    next(iter(world.storage.volumes)).write(7)


async def is_protected(world: ProvisionerWorld) -> bool:
    return CLONING_PROTECTION in (await world.claim("source"))["metadata"].get("finalizers", [])


async def until_free(world: ProvisionerWorld) -> None:
    async def is_free() -> bool:
        return not await is_protected(world)

    await world.until(is_free)


def copy_of(world: ProvisionerWorld) -> Any:
    return next(volume for volume in world.storage.volumes if volume.id != "vol-1")


@pytest.mark.parametrize("field", ["dataSource", "dataSourceRef"])
async def test_a_clone_has_the_content_of_its_source_which_is_protected_until_it_is_bound(field: str):
    async with ProvisionerWorld() as world:
        await bound_source(world)
        await world.make_claim("copy", **{field: SOURCE})
        async with world.provisioner():
            volumes = await world.until_provisioned(2)
            assert world.requests(CREATE)[-1].volume_content_source.volume.volume_id == "vol-1"
            assert copy_of(world).blocks
            assert await is_protected(world)
            clone = next(one for one in volumes if one["spec"]["claimRef"]["name"] == "copy")
            await world.bind("copy", clone["metadata"]["name"])
            await until_free(world)


async def test_the_source_is_protected_before_the_driver_is_called():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.wire.before = failing(
            "PUT namespaces/team/persistentvolumeclaims/source", times=2, answer=refusal(403, "Forbidden")
        )
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner(retry_start=30.0):
            await world.clock.sleep(20)
            assert world.calls() == [CREATE]
            await world.until_provisioned(2)
            assert await is_protected(world)


async def test_a_source_is_free_when_its_clone_was_deleted_unfinished():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.play({CREATE: [{"error": {"code": "UNAVAILABLE", "message": "slow"}}]})
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "slow")
            assert await is_protected(world)
            await world.delete_claim("copy")
            await world.clock.sleep(5)
            assert await is_protected(world), "the call without an answer may still copy from it"
            await until_free(world)
            await world.until_journal_is_empty()
        assert len(world.names()) == 1


async def test_a_source_is_free_though_its_clone_was_bound_while_a_call_had_no_final_answer():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.play({CREATE: [{"error": {"code": "UNAVAILABLE", "message": "slow"}, "effect": True}]})
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner(timeout=60.0):
            volumes = await world.until_provisioned(2)
            clone = next(one for one in volumes if one["spec"]["claimRef"]["name"] == "copy")
            await world.bind("copy", clone["metadata"]["name"])
            await world.clock.sleep(5)
            assert await is_protected(world)
            await until_free(world)


async def test_a_source_that_is_deleted_waits_for_its_clone_and_goes_after_it():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.play({CREATE: [{"delay": "5s"}]})
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner():

            async def is_held() -> bool:
                return await is_protected(world)

            await world.until(is_held)
            key = ObjectName(NAMESPACE, "source")
            await world.client.delete(PERSISTENT_VOLUME_CLAIM, key)
            patch = MergePatch({"metadata": {"finalizers": [CLONING_PROTECTION]}})
            await world.client.patch(PERSISTENT_VOLUME_CLAIM, key, patch)
            volumes = await world.until_provisioned(2)
            assert await world.get(PERSISTENT_VOLUME_CLAIM, "source", NAMESPACE) is not None
            clone = next(one for one in volumes if one["spec"]["claimRef"]["name"] == "copy")
            await world.bind("copy", clone["metadata"]["name"])

            async def is_gone() -> bool:
                return await world.get(PERSISTENT_VOLUME_CLAIM, "source", NAMESPACE) is None

            await world.until(is_gone)


@pytest.mark.parametrize(
    ("changes", "part"),
    [
        ({"dataSource": {**SOURCE, "name": "missing"}}, "the claim missing cannot be cloned: it does not exist"),
        ({"resources": {"requests": {"storage": "1Mi"}}}, "it requests 1Gi, and the new claim only 1Mi"),
        ({"volumeMode": "Block"}, "its volumeMode is Filesystem, and the new claim's Block"),
    ],
)
async def test_a_source_that_does_not_fit_is_reported_and_nothing_is_called(changes: dict[str, Any], part: str):
    async with ProvisionerWorld() as world:
        await bound_source(world)
        await world.make_claim("copy", **{"dataSource": SOURCE, **changes})
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", part)
            assert not await is_protected(world)
        assert world.calls() == [CREATE]


async def test_a_driver_that_cannot_clone_is_not_asked_to():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.play({}, capabilities={"controller": ["CREATE_DELETE_VOLUME"]})
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "lacks the capability CLONE_VOLUME")
        assert world.calls() == [CREATE]


async def test_a_clone_waits_until_its_source_is_bound():
    async with ProvisionerWorld() as world:
        await world.make_class()
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "it does not exist")
            await world.make_claim("source")
            (volume,) = await world.until_provisioned()
            await world.bind("source", volume["metadata"]["name"])
            await world.until_provisioned(2)


async def test_a_snapshot_is_refused_with_an_event_and_no_call():
    async with ProvisionerWorld() as world:
        await world.make_class()
        snapshot = {"apiGroup": "snapshot.storage.k8s.io", "kind": "VolumeSnapshot", "name": "s"}
        await world.make_claim(dataSource=snapshot)
        async with world.provisioner():
            await world.until_event("ProvisioningFailed", "the data source is a VolumeSnapshot")
            await world.clock.sleep(60)
        assert world.calls() == []


async def test_a_retried_clone_is_one_copy():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        world.play({CREATE: [{"error": {"code": "DEADLINE_EXCEEDED", "message": "slow"}, "effect": True, "times": 2}]})
        await world.make_claim("copy", dataSource=SOURCE)
        async with world.provisioner():
            await world.until_provisioned(2)
        assert len(world.names()) == 2


async def test_a_protection_that_a_former_process_left_is_removed():
    async with ProvisionerWorld() as world:
        await bound_source(world)
        key = ObjectName(NAMESPACE, "source")
        finalizers = [*(await world.claim("source"))["metadata"].get("finalizers", []), CLONING_PROTECTION]
        await world.client.patch(PERSISTENT_VOLUME_CLAIM, key, MergePatch({"metadata": {"finalizers": finalizers}}))
        async with world.provisioner():
            await until_free(world)
