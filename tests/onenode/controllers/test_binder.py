"""The binder on a real API server: what it binds, loses and releases, and what happens when objects come and go."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from onenode.controllers.binder import RESYNC_SECONDS
from orlop.kube.http.http_messages import HttpRequest
from orlop.kube.kinds import CORE_EVENT, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, STORAGE_CLASS
from orlop.kube.objects import annotations, resource_version
from support.api.api_wires import Wire, failing, refusal
from support.provisioning.binding_objects import (
    BIND_COMPLETED,
    BOUND_BY_CONTROLLER,
    DRIVER,
    IS_DEFAULT,
    PROVISIONED_BY,
    SELECTED_NODE,
    STORAGE_PROVISIONER,
    reference,
)
from support.provisioning.binding_worlds import BindingWorld, LateVolumes, MeddledWay

pytestmark = pytest.mark.virtual_time

Object = dict[str, Any]
FIRST_CONSUMER = "Normal WaitForFirstConsumer: waiting for first consumer to be created before binding"
NOTHING_AVAILABLE = "Normal FailedBinding: no persistent volumes available for this claim and no storage class is set"
LOST_VOLUME = "Warning ClaimLost: Bound claim has lost its PersistentVolume. Data on the volume is lost!"
EXTERNAL = "Normal ExternalProvisioning: Waiting for a volume to be created either by the external provisioner "


async def bound(w: BindingWorld, **volume: Any) -> None:
    await w.volume(**volume)
    await w.claim()
    await w.settle()
    assert (await w.claim_phase(), await w.volume_phase()) == ("Bound", "Bound")


# ---- the walk --------------------------------------------------------------------------------------------------------


async def test_a_claim_is_bound_and_its_volume_released_when_the_claim_is_deleted():
    async with BindingWorld() as w, w.binder(), w.protection():
        await w.volume(size="2Gi")
        await w.settle()
        available = await w.volume_phase()
        await w.claim()
        await w.settle()
        claim, volume = await w.find(PERSISTENT_VOLUME_CLAIM, "c"), await w.find(PERSISTENT_VOLUME, "v")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()

        assert available == "Available"
        assert claim is not None
        assert volume is not None
        assert claim["status"] == {
            "phase": "Bound",
            "accessModes": ["ReadWriteOnce"],
            "capacity": {"storage": "2Gi"},
        }
        assert set(annotations(claim)) == {BIND_COMPLETED, BOUND_BY_CONTROLLER}
        assert volume["spec"]["claimRef"].items() >= reference("c", claim["metadata"]["uid"]).items()
        assert volume["status"]["phase"] == "Bound"
        assert (await w.claim_phase(), await w.volume_phase()) == ("gone", "Released")


async def test_a_bound_pair_is_not_written_again():
    async with BindingWorld() as w, w.binder():
        await bound(w)
        before = [resource_version(await w.find(*one) or {}) for one in PAIR]
        await w.settle(3 * RESYNC_SECONDS)

        assert [resource_version(await w.find(*one) or {}) for one in PAIR] == before


PAIR = ((PERSISTENT_VOLUME_CLAIM, "c"), (PERSISTENT_VOLUME, "v"))


async def test_controller_startup_a_new_binder_changes_nothing_of_what_is_bound():
    """TestPersistentVolumeControllerStartup of Kubernetes' integration tests."""
    async with BindingWorld() as w:
        pairs = [(kind, f"{number}") for number in range(20) for kind in (PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM)]
        async with w.binder():
            for number in range(20):
                await w.volume(f"{number}")
                await w.claim(f"{number}")
            await w.settle(5)
        before = [await w.find(*each) or {} for each in pairs]
        async with w.binder():
            await w.settle(60)

        assert {obj["status"]["phase"] for obj in before} == {"Bound"}
        assert [await w.find(*each) for each in pairs] == before


# ---- changes that Kubernetes notices only at its resync --------------------------------------------------------------


async def test_a_claim_that_waits_is_bound_as_soon_as_a_volume_is_available():
    async with BindingWorld() as w, w.binder():
        await w.claim()
        await w.settle()
        waiting = await w.claim_phase(), await w.events()
        await w.volume()
        await w.settle()

        assert waiting == ("Pending", [NOTHING_AVAILABLE])
        assert await w.volume_of() == "v"


async def test_a_claim_that_waits_is_bound_as_soon_as_a_volume_is_reserved_for_it_by_name():
    async with BindingWorld() as w, w.binder():
        await w.claim(of_class="fast")
        await w.volume(of_class="other")
        await w.settle()
        await w.merge(PERSISTENT_VOLUME, "v", {"spec": {"claimRef": reference("c")}})
        await w.settle()

        assert await w.volume_of() == "v"
        assert BOUND_BY_CONTROLLER not in annotations(await w.find(PERSISTENT_VOLUME, "v") or {})


async def test_a_claim_that_names_a_volume_is_bound_as_soon_as_that_volume_is_created():
    async with BindingWorld() as w, w.binder():
        await w.claim(names="v")
        await w.settle()
        silent = await w.events()
        await w.volume()
        await w.settle()

        assert silent == []
        assert await w.claim_phase() == "Bound"


async def test_a_claim_is_marked_for_its_provisioner_as_soon_as_its_class_is_created():
    async with BindingWorld() as w, w.binder():
        await w.claim(of_class="fast")
        await w.settle()
        missing = await w.events()
        await w.storage_class("fast")
        await w.settle()

        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        assert missing == ['Warning ProvisioningFailed: storageclass.storage.k8s.io "fast" not found']
        assert annotations(claim)[STORAGE_PROVISIONER] == DRIVER
        assert any(event.startswith(EXTERNAL) for event in await w.events())


async def test_a_claim_that_cannot_be_marked_for_its_provisioner_says_why_and_is_marked_later():
    async with BindingWorld() as w:
        await w.storage_class("fast")
        refused = failing(
            "PUT namespaces/default/persistentvolumeclaims", times=2, answer=refusal(422, "Invalid", "no")
        )
        async with w.binder(Wire(refused).around(w.transport())):
            await w.claim(of_class="fast")
            await w.settle(30)

        assert "Warning ProvisioningFailed: Error saving claim: no" in await w.events()
        assert STORAGE_PROVISIONER in ((await w.find(PERSISTENT_VOLUME_CLAIM, "c")) or {})["metadata"]["annotations"]


async def test_a_claim_without_a_class_gets_the_default_class_as_soon_as_there_is_one():
    async with BindingWorld() as w, w.binder():
        await w.claim(of_class=None)
        await w.storage_class("std")
        await w.settle()
        before = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        await w.merge(STORAGE_CLASS, "std", {"metadata": {"annotations": {IS_DEFAULT: "true"}}})
        await w.settle()

        assert "storageClassName" not in before["spec"]
        assert (await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {})["spec"]["storageClassName"] == "std"


async def test_the_event_of_a_claim_that_waits_follows_its_pods():
    async with BindingWorld() as w, w.binder():
        await w.storage_class("late", late=True)
        await w.claim(of_class="late")
        await w.settle()
        first = await w.events()
        await w.pod()
        await w.settle()

        assert first == [FIRST_CONSUMER]
        assert set(await w.events()) == {
            FIRST_CONSUMER,
            "Normal WaitForPodScheduled: waiting for pod p to be scheduled",
        }


async def test_an_event_is_repeated_only_at_the_slow_resync():
    async with BindingWorld() as w, w.binder():
        await w.claim()
        for label in ("a", "b", "c"):
            await w.merge(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"labels": {"at": label}}})
            await w.settle()
        await w.settle(30)
        (at_first,) = (await w.client.list(CORE_EVENT)).items
        await w.settle(RESYNC_SECONDS * 1.2)

        assert "series" not in at_first, "it was recorded once"
        assert await w.events() == [NOTHING_AVAILABLE] * 2


# ---- what happens when … ---------------------------------------------------------------------------------------------


async def test_when_a_claim_is_deleted_first_its_provisioned_volume_is_left_released_for_the_provisioner():
    async with BindingWorld() as w, w.binder(), w.protection():
        claim = await w.claim(of_class="fast")
        reserved = ("c", claim["metadata"]["uid"])
        await w.volume(of_class="fast", policy="Delete", annotations={PROVISIONED_BY: DRIVER}, reserved=reserved)
        await w.settle()
        both = await w.claim_phase(), await w.volume_phase()
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()

        assert both == ("Bound", "Bound")
        assert await w.volume_phase() == "Released"


async def test_when_a_volume_is_deleted_first_both_stay_bound_until_the_claim_goes():
    async with BindingWorld() as w, w.binder(), w.protection():
        await bound(w)
        await w.delete(PERSISTENT_VOLUME, "v")
        await w.settle()
        dying = await w.claim_phase(), await w.volume_phase()
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()

        assert dying == ("Bound", "Bound")
        assert (await w.claim_phase(), await w.volume_phase()) == ("gone", "gone")


async def test_when_a_volumes_finalizers_are_stripped_its_claim_is_lost_and_found_again_with_a_volume_of_that_name():
    async with BindingWorld() as w, w.binder():
        await bound(w)
        await w.delete(PERSISTENT_VOLUME, "v")
        await w.strip(PERSISTENT_VOLUME, "v")
        await w.settle()
        lost = await w.claim_phase(), await w.events()
        await w.volume(reserved=("c", ""))
        await w.settle()
        without_uid = await w.claim_phase()
        await w.merge(PERSISTENT_VOLUME, "v", {"spec": {"claimRef": None}})
        await w.settle()

        assert lost == ("Lost", [LOST_VOLUME])
        assert without_uid == "Lost"
        assert (await w.claim_phase(), await w.volume_phase()) == ("Bound", "Bound")


async def test_when_a_claim_is_removed_by_force_though_a_pod_uses_it_its_volume_is_released_at_once():
    async with BindingWorld() as w, w.binder():
        await bound(w)
        await w.pod(nodeName="n1")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.strip(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()

        assert await w.volume_phase() == "Released"


async def test_when_a_claim_is_created_again_it_does_not_get_the_volume_of_its_former_self():
    async with BindingWorld() as w, w.binder(), w.protection():
        await bound(w)
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()
        await w.claim()
        await w.volume("w")
        await w.settle()

        assert await w.volume_of() == "w"
        assert await w.volume_phase() == "Released"


async def test_when_a_claim_reference_has_a_uid_that_never_existed_the_volume_is_released():
    async with BindingWorld() as w, w.binder():
        await w.claim()
        await w.volume(reserved=("c", "never"))
        await w.settle()

        assert await w.volume_phase() == "Released"
        assert await w.claim_phase() == "Pending"


async def test_when_a_volume_is_saved_after_its_claim_went_it_is_released():
    async with BindingWorld() as w, w.binder(), w.protection():
        claim = await w.claim(of_class="fast")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()
        await w.volume(of_class="fast", reserved=("c", claim["metadata"]["uid"]), policy="Delete")
        await w.settle()

        assert await w.volume_phase() == "Released"


async def test_when_two_volumes_are_made_for_one_claim_one_is_bound_and_the_other_released_or_free():
    async with BindingWorld() as w:
        claim = await w.claim(of_class="fast")
        reserved = ("c", claim["metadata"]["uid"])
        await w.volume("a", of_class="fast", reserved=reserved, keys=(BOUND_BY_CONTROLLER,))
        for name in ("b", "d"):
            await w.volume(
                name, of_class="fast", reserved=reserved, policy="Delete", annotations={PROVISIONED_BY: DRIVER}
            )
        async with w.binder():
            await w.settle()

        assert await w.volume_of() == "a"
        assert [await w.volume_phase(name) for name in ("a", "b", "d")] == ["Bound", "Released", "Released"]


async def test_when_the_claim_of_a_reserved_volume_is_bound_elsewhere_the_volume_is_free_again():
    async with BindingWorld() as w, w.binder():
        await bound(w)
        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        await w.volume("w", reserved=("c", claim["metadata"]["uid"]), keys=(BOUND_BY_CONTROLLER,))
        await w.settle()

        assert await w.volume_phase("w") == "Available"
        assert "claimRef" not in (await w.find(PERSISTENT_VOLUME, "w") or {})["spec"]


async def test_when_nobody_selects_a_node_a_late_claim_waits_for_ever_also_with_a_pod_that_has_a_node():
    async with BindingWorld() as w, w.binder():
        await w.storage_class("late", late=True)
        await w.claim(of_class="late")
        await w.volume(of_class="late")
        await w.pod(nodeName="n1")
        await w.settle(3600)

        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        assert claim["status"] == {"phase": "Pending"}
        assert annotations(claim) == {}
        assert set(await w.events()) == {FIRST_CONSUMER}


async def test_when_a_node_is_selected_a_late_claim_is_marked_for_its_provisioner_and_keeps_the_node():
    async with BindingWorld() as w, w.binder():
        await w.storage_class("late", late=True)
        await w.claim(of_class="late")
        await w.settle()
        await w.merge(PERSISTENT_VOLUME_CLAIM, "c", {"metadata": {"annotations": {SELECTED_NODE: "n1"}}})
        await w.settle()
        claim = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        await w.volume(of_class="late", reserved=("c", claim["metadata"]["uid"]), annotations={PROVISIONED_BY: DRIVER})
        await w.settle()

        bound_claim = await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {}
        assert annotations(claim)[STORAGE_PROVISIONER] == DRIVER
        assert bound_claim["status"]["phase"] == "Bound"
        assert annotations(bound_claim)[SELECTED_NODE] == "n1"
        assert BOUND_BY_CONTROLLER in annotations(bound_claim)
        assert BOUND_BY_CONTROLLER not in annotations(await w.find(PERSISTENT_VOLUME, "v") or {})


async def test_when_the_class_of_a_claim_that_waits_is_deleted_its_marks_stay():
    async with BindingWorld() as w, w.binder():
        await w.storage_class("fast")
        await w.claim(of_class="fast")
        await w.settle()
        await w.delete(STORAGE_CLASS, "fast")
        await w.settle()

        assert annotations(await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {})[STORAGE_PROVISIONER] == DRIVER
        assert 'Warning ProvisioningFailed: storageclass.storage.k8s.io "fast" not found' in await w.events()


async def test_when_the_last_pod_of_a_recycled_volume_ends_the_volume_fails_because_nobody_can_recycle_it():
    async with BindingWorld() as w, w.binder():
        await bound(w, policy="Recycle")
        await w.pod(nodeName="n1")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.strip(PERSISTENT_VOLUME_CLAIM, "c")
        await w.settle()
        used = await w.volume_phase(), await w.events("v")
        await w.delete(POD, "p")
        await w.settle()

        assert used == ("Released", ["Normal VolumeFailedRecycle: Volume is used by pods: default/p"])
        volume = await w.find(PERSISTENT_VOLUME, "v") or {}
        assert volume["status"]["phase"] == "Failed"
        assert volume["status"]["message"] == "No recycler plugin found for the volume!"


async def test_when_the_owner_removes_a_released_volumes_claim_reference_it_is_bound_to_the_next_claim():
    async with BindingWorld() as w, w.binder(), w.protection():
        await bound(w)
        await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
        await w.claim("d")
        await w.settle()
        waiting = await w.claim_phase("d")
        await w.merge(PERSISTENT_VOLUME, "v", {"spec": {"claimRef": None}})
        await w.settle()

        assert waiting == "Pending"
        assert await w.volume_of("d") == "v"


# ---- many ------------------------------------------------------------------------------------------------------------


async def test_bind_race_of_a_hundred_claims_the_one_with_the_reserved_volume_gets_it():
    """TestPersistentVolumeBindRace of Kubernetes' integration tests."""
    async with BindingWorld() as w, w.binder():
        for number in range(100):
            await w.claim(f"c{number}")
        await w.volume(reserved=("c42", ""))
        await w.settle(5)

        phases = {number: await w.claim_phase(f"c{number}") for number in range(100)}
        assert [number for number, phase in phases.items() if phase != "Pending"] == [42]


async def test_as_many_claims_as_volumes_are_all_bound_each_to_its_own():
    async with BindingWorld() as w:
        for number in range(30):
            await w.volume(f"v{number}", size=f"{number % 5 + 1}Gi")
            await w.claim(f"c{number}", size=f"{number % 5 + 1}Gi")
        async with w.binder():
            await w.settle(10)

        volumes = [await w.volume_of(f"c{number}") for number in range(30)]
        assert sorted(volumes) == sorted(f"v{number}" for number in range(30))
        assert [entry.message for entry in w.log] == [], "no write was refused, and nothing had to be retried"


@pytest.mark.parametrize("seed", range(3))
async def test_multi_pvs_pvcs_converge_while_others_edit_them(seed: int):
    """TestPersistentVolumeMultiPVsPVCs of Kubernetes' integration tests: a random edit beside every write."""
    random, count = Random(seed), 15
    async with BindingWorld() as w:

        async def edit(request: HttpRequest) -> None:
            if request.method == "PUT":
                kind = random.choice((PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM))
                changes = {"metadata": {"annotations": {"edited": f"{random.random()}"}}}
                await w.merge(kind, f"{random.randrange(count)}", changes)

        for number in range(count):
            await w.volume(f"{number}")
            await w.claim(f"{number}")
        async with w.binder(way=MeddledWay(w, edit)):
            await w.settle(60)

        bindings = {f"{number}": await w.volume_of(f"{number}") for number in range(count)}
        assert sorted(bindings.values()) == sorted(bindings), "each has a volume of its own"
        assert {await w.claim_phase(name) for name in bindings} == {"Bound"}
        assert {await w.volume_phase(name) for name in bindings} == {"Bound"}


async def test_nothing_is_marked_for_provisioning_before_all_volumes_are_known():
    async with BindingWorld() as w:
        await w.storage_class("fast")
        await w.claim(of_class="fast")
        await w.volume(of_class="fast", reserved=("c", ""))

        async def delay_lists_of_volumes(request: HttpRequest) -> None:
            if request.method == "GET" and request.path.endswith("/persistentvolumes"):
                await w.settle(5)

        async with w.binder(way=MeddledWay(w, delay_lists_of_volumes)):
            await w.settle(10)

        assert await w.volume_of() == "v"
        assert STORAGE_PROVISIONER not in annotations(await w.find(PERSISTENT_VOLUME_CLAIM, "c") or {})


async def test_a_claim_whose_chosen_volume_goes_before_it_is_reserved_gets_another():
    async with BindingWorld() as w:
        await w.volume("v", size="1Gi")
        await w.volume("w", size="2Gi")

        async def remove_it_first(request: HttpRequest) -> None:
            if request.method == "PUT" and request.path.endswith("/persistentvolumes/v"):
                await w.delete(PERSISTENT_VOLUME, "v")
                await w.strip(PERSISTENT_VOLUME, "v")

        async with w.binder(way=MeddledWay(w, remove_it_first)):
            await w.settle()
            await w.claim()
            await w.settle(5)

        assert await w.volume_of() == "w"


async def test_8_6_a_volume_that_goes_before_it_fails_is_gone_and_nothing_is_reported():
    async with BindingWorld() as w:
        await w.volume(policy="Delete", source={"hostPath": {"path": "/mnt/a"}})

        async def remove_it_first(request: HttpRequest) -> None:
            if request.method == "PUT" and request.path.endswith("/persistentvolumes/v/status"):
                found = await w.find(PERSISTENT_VOLUME, "v") or {}
                if found["status"]["phase"] == "Released":
                    await w.delete(PERSISTENT_VOLUME, "v")
                    await w.strip(PERSISTENT_VOLUME, "v")

        async with w.binder(way=MeddledWay(w, remove_it_first)):
            await w.claim()
            await w.settle(5)
            bound_before = await w.claim_phase()
            await w.delete(PERSISTENT_VOLUME_CLAIM, "c")
            await w.strip(PERSISTENT_VOLUME_CLAIM, "c")
            await w.settle(60)

        assert (bound_before, await w.volume_phase()) == ("Bound", "gone")
        assert await w.events("v") == []


async def test_a_claim_that_was_bound_finds_its_volume_at_once_though_the_cache_does_not_show_it_yet():
    async with BindingWorld() as w, w.binder(way=LateVolumes(w, seconds=1.0)):
        await w.settle()
        await w.volume()
        await w.claim(names="v", keys=(BIND_COMPLETED,))
        await w.settle(10)

        assert (await w.claim_phase(), await w.volume_phase()) == ("Bound", "Bound")
        assert await w.events() == []
        assert [entry.message for entry in w.log] == [], "no write was refused"
