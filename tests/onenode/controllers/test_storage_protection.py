"""Claims and volumes that are deleted go when nobody uses them, and never before; whatever happens in between."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from onenode.apiserver.access.rbac_rules import User
from onenode.apiserver.edge.in_process_client import Server
from onenode.controllers.storage_protection import LivePods
from orlop.kube.api_errors import NotFound
from orlop.kube.client import Selection
from orlop.kube.http.http_messages import HttpRequest, HttpResponse, HttpStream
from orlop.kube.kinds import NAMESPACE, PERSISTENT_VOLUME, PERSISTENT_VOLUME_CLAIM, POD, SERVICE_ACCOUNT, Kind
from orlop.kube.objects import ObjectName, finalizers
from support.api.api_objects import claim, finalized, pod, volume
from support.api.protected_storage import ProtectionWorld, user_of
from support.worlds import AT_ONCE

pytestmark = pytest.mark.virtual_time

Object = dict[str, Any]
CLAIM_PROTECTION, VOLUME_PROTECTION = "kubernetes.io/pvc-protection", "kubernetes.io/pv-protection"


# ---- claims ----------------------------------------------------------------------------------------------------------


async def test_a_claim_that_nobody_uses_goes_when_it_is_deleted():
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        await w.settle()
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is not None
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        await w.settle()

        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is None


async def test_a_claim_in_use_goes_when_its_last_pod_has_gone():
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        for name in ("p", "q"):
            await w.create(POD, user_of("data", name))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        await w.settle(3600)
        await w.delete(POD, "p")
        await w.settle(3600)
        held = await w.find(PERSISTENT_VOLUME_CLAIM, "data")
        await w.delete(POD, "q")
        await w.settle()

        assert held is not None
        assert finalizers(held) == (CLAIM_PROTECTION,)
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is None


async def test_a_pod_that_has_finished_still_holds_its_claim():
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        await w.create(POD, user_of("data"))
        await w.merge(POD, "p", {"status": {"phase": "Succeeded"}}, "status")
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        await w.settle(60)
        held = await w.find(PERSISTENT_VOLUME_CLAIM, "data")
        await w.delete(POD, "p")
        await w.settle()

        assert held is not None
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is None


async def test_updated_unscheduled_pod_a_pod_without_a_node_holds_nothing():
    """A case of Kubernetes' own tests: the update is not the scheduling for which the claim would have to stay."""
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        waiting = user_of("data")
        del waiting["spec"]["nodeName"]
        await w.create(POD, waiting)
        await w.settle()
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        await w.merge(POD, "p", {"metadata": {"labels": {"updated": "yes"}}})
        await w.settle()

        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is None


async def test_a_pod_of_the_same_name_that_uses_another_claim_frees_the_first():
    async with ProtectionWorld() as w, w.protection():
        for name in ("one", "two"):
            await w.create(PERSISTENT_VOLUME_CLAIM, claim(name))
        await w.create(POD, user_of("one"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "one")
        await w.settle()
        await w.delete(POD, "p")
        await w.create(POD, user_of("two"))
        await w.settle()

        assert await w.find(PERSISTENT_VOLUME_CLAIM, "one") is None
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "two") is not None


async def test_the_claim_of_an_ephemeral_volume_goes_though_its_pod_waits_for_a_finalizer():
    async with ProtectionWorld() as w, w.protection():
        template = {"spec": claim()["spec"]}
        volumes = [{"name": "v", "ephemeral": {"volumeClaimTemplate": template}}]
        made = await w.create(POD, finalized(pod("p", volumes=volumes, nodeName="n1"), "x/y"))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": "p", "uid": made["metadata"]["uid"], "controller": True}
        owned = claim("p-v")
        owned["metadata"]["ownerReferences"] = [owner]
        await w.create(PERSISTENT_VOLUME_CLAIM, owned)
        await w.delete(PERSISTENT_VOLUME_CLAIM, "p-v")
        await w.settle(60)
        held = await w.find(PERSISTENT_VOLUME_CLAIM, "p-v")
        await w.delete(POD, "p")
        await w.settle()

        assert held is not None
        assert await w.find(POD, "p") is not None
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "p-v") is None


async def test_a_namespace_goes_with_its_claims():
    async with ProtectionWorld() as w, w.protection():
        await w.client.create(NAMESPACE, {"metadata": {"name": "n"}})
        await w.client.create(SERVICE_ACCOUNT, {"metadata": {"name": "default"}}, namespace="n")
        for number in range(5):
            await w.client.create(PERSISTENT_VOLUME_CLAIM, claim(f"c{number}"), namespace="n")
        await w.client.create(POD, user_of("c1"), namespace="n")
        await w.client.delete(NAMESPACE, ObjectName(None, "n"))
        await w.settle(60)
        left = [one["metadata"]["name"] for one in (await w.client.list(PERSISTENT_VOLUME_CLAIM)).items]
        await w.client.delete(POD, ObjectName("n", "p"), AT_ONCE)
        await w.settle(60)

        assert left == ["c1"]
        with pytest.raises(NotFound):
            await w.client.get(NAMESPACE, ObjectName(None, "n"))


# ---- volumes ---------------------------------------------------------------------------------------------------------


async def test_a_volume_that_is_not_bound_goes_when_it_is_deleted():
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME, volume("v"))
        await w.delete(PERSISTENT_VOLUME, "v")
        await w.settle()

        assert await w.find(PERSISTENT_VOLUME, "v") is None


async def test_a_bound_volume_goes_when_it_is_released():
    async with ProtectionWorld() as w, w.protection():
        await w.create(PERSISTENT_VOLUME, volume("v"))
        await w.merge(PERSISTENT_VOLUME, "v", {"status": {"phase": "Bound"}}, "status")
        await w.delete(PERSISTENT_VOLUME, "v")
        await w.settle(3600)
        held = await w.find(PERSISTENT_VOLUME, "v")
        await w.merge(PERSISTENT_VOLUME, "v", {"status": {"phase": "Released"}}, "status")
        await w.settle()

        assert held is not None
        assert await w.find(PERSISTENT_VOLUME, "v") is None


# ---- others write too ------------------------------------------------------------------------------------------------


async def test_protection_that_was_taken_off_is_put_on_again():
    async with ProtectionWorld() as w, w.protection():
        for kind, obj in ((PERSISTENT_VOLUME_CLAIM, claim("o")), (PERSISTENT_VOLUME, volume("o"))):
            await w.create(kind, obj)
            await w.merge(kind, "o", {"metadata": {"finalizers": ["x/y"]}})
        await w.settle()

        for kind, ours in ((PERSISTENT_VOLUME_CLAIM, CLAIM_PROTECTION), (PERSISTENT_VOLUME, VOLUME_PROTECTION)):
            found = await w.find(kind, "o")
            assert found is not None
            assert finalizers(found) == ("x/y", ours)


async def test_what_others_hold_stays_and_only_our_finalizer_goes():
    async with ProtectionWorld() as w, w.protection():
        for kind, obj in ((PERSISTENT_VOLUME_CLAIM, claim("o")), (PERSISTENT_VOLUME, volume("o"))):
            await w.create(kind, finalized(obj, "x/y"))
            await w.delete(kind, "o")
        await w.settle()

        for kind in (PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME):
            found = await w.find(kind, "o")
            assert found is not None
            assert finalizers(found) == ("x/y",)


class Between:
    """Lets another writer in just before each patch of the protection."""

    def __init__(self, w: ProtectionWorld, most: int) -> None:
        self.world, self.left = w, most

    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        if request.method == "PATCH" and self.left:
            self.left -= 1
            kind = PERSISTENT_VOLUME if "persistentvolumes" in request.path else PERSISTENT_VOLUME_CLAIM
            others = [f"x/{number}" for number in range(self.left)]
            found = await self.world.find(kind, "o")
            assert found is not None
            ours = [one for one in finalizers(found) if one.startswith("kubernetes.io/")]
            # The finalizer is in another place each time, so that every patch of the protection is refused.
            changed = {"finalizers": [*others, *ours], "labels": {"n": str(self.left)}}
            await self.world.merge(kind, "o", {"metadata": changed})
        return await self.world.on.server.answer(request, user)


@pytest.mark.parametrize("kind", [PERSISTENT_VOLUME_CLAIM, PERSISTENT_VOLUME], ids=str)
async def test_a_writer_who_is_always_a_little_faster_only_delays_it(kind: Kind):
    async with ProtectionWorld() as w:
        obj = claim("o") if kind is PERSISTENT_VOLUME_CLAIM else volume("o")
        await w.create(kind, finalized(obj, *(f"x/{number}" for number in range(5))))
        await w.delete(kind, "o")
        async with w.protection(Between(w, 5)):
            await w.settle(60)

        assert await w.find(kind, "o") is None


async def test_a_volume_that_is_bound_at_the_last_moment_stays():
    class Binding:
        async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
            if request.method == "PATCH":
                await w.merge(PERSISTENT_VOLUME, "o", {"status": {"phase": "Bound"}}, "status")
            return await w.on.server.answer(request, user)

    async with ProtectionWorld() as w:
        await w.create(PERSISTENT_VOLUME, volume("o"))
        await w.delete(PERSISTENT_VOLUME, "o")
        async with w.protection(Binding()):
            await w.settle(60)

            found = await w.find(PERSISTENT_VOLUME, "o")
            assert found is not None
            assert finalizers(found) == (VOLUME_PROTECTION,)


async def test_what_goes_under_its_hands_is_no_trouble():
    class Forcing:
        async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
            if request.method == "PATCH":
                await w.merge(PERSISTENT_VOLUME_CLAIM, "o", {"metadata": {"finalizers": None}})
            return await w.on.server.answer(request, user)

    async with ProtectionWorld() as w:
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("o"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "o")
        async with w.protection(Forcing()):
            await w.settle(60)

        assert await w.find(PERSISTENT_VOLUME_CLAIM, "o") is None
        assert w.on.told.entries == []


# ---- the cache is behind ---------------------------------------------------------------------------------------------


class NoPodsSeen:
    """The protection is never told of a pod; whoever asks for those of a namespace is answered."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        query = tuple(pair for pair in request.query if pair[0] != "labelSelector")
        if request.path == "/api/v1/pods":
            query = (*query, ("labelSelector", "nobody=has-this"))
        asked = HttpRequest(request.method, request.path, query, request.headers, request.body)
        return await self.server.answer(asked, user)


class NoPodDeletionsSeen:
    """The protection is never told that a pod is gone: one of the same name that follows is seen as an update."""

    def __init__(self, server: Server) -> None:
        self.server = server

    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        answer = await self.server.answer(request, user)
        if isinstance(answer, HttpStream) and request.path == "/api/v1/pods":
            return replace(answer, pieces=self._without_deletions(answer.pieces))
        return answer

    async def _without_deletions(self, pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        async for piece in pieces:
            lines = piece.splitlines(keepends=True)
            yield b"".join(line for line in lines if json.loads(line)["type"] != "DELETED")


async def test_pod_delete_and_create_with_same_namespaced_name_seen_as_an_update_frees_the_claim_of_the_first():
    async with ProtectionWorld() as w, w.protection(NoPodDeletionsSeen(w.on.server)):
        for name in ("one", "two"):
            await w.create(PERSISTENT_VOLUME_CLAIM, claim(name))
        await w.create(POD, user_of("one"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "one")
        await w.settle()
        await w.delete(POD, "p")
        await w.settle()
        unnoticed = await w.find(PERSISTENT_VOLUME_CLAIM, "one")
        await w.create(POD, user_of("two"))
        await w.settle()

        assert unnoticed is not None, "the deletion was seen"
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "one") is None
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "two") is not None


async def test_not_in_the_informers_cache_yet_a_pod_holds_its_claim_and_its_end_is_noticed():
    async with ProtectionWorld() as w, w.protection(NoPodsSeen(w.on.server)):
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        await w.create(POD, user_of("data"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        await w.settle(60)
        held = await w.find(PERSISTENT_VOLUME_CLAIM, "data")
        await w.delete(POD, "p")
        await w.settle(10)

        assert held is not None
        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is None


class Counting:
    """Counts how often the pods of a namespace are asked for."""

    def __init__(self, server: Server) -> None:
        self.server, self.lists = server, 0

    async def answer(self, request: HttpRequest, user: User) -> HttpResponse | HttpStream:
        self.lists += request.path == "/api/v1/namespaces/default/pods"
        return await self.server.answer(request, user)


async def test_many_claims_that_go_at_once_share_the_question_for_pods():
    async with ProtectionWorld() as w:
        for number in range(100):
            await w.create(PERSISTENT_VOLUME_CLAIM, claim(f"c{number}"))
        await w.client.delete_all(PERSISTENT_VOLUME_CLAIM, Selection("default"))
        counting = Counting(w.on.server)
        async with w.protection(counting):
            await w.settle()

        assert (await w.client.list(PERSISTENT_VOLUME_CLAIM)).items == []
        assert 1 <= counting.lists <= 10


async def test_what_was_told_of_pods_before_a_claim_was_deleted_is_not_believed_of_it():
    async with ProtectionWorld() as w:
        for name in ("early", "late"):
            await w.create(PERSISTENT_VOLUME_CLAIM, claim(name))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "early")
        pods = LivePods(w.client)
        assert not await pods.use(await w.find(PERSISTENT_VOLUME_CLAIM, "early"))

        await w.create(POD, user_of("late"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "late")
        assert await pods.use(await w.find(PERSISTENT_VOLUME_CLAIM, "late"))
        await w.delete(POD, "p")
        assert not await pods.use(await w.find(PERSISTENT_VOLUME_CLAIM, "late"))


# ---- it comes and goes -----------------------------------------------------------------------------------------------


async def test_what_happened_while_it_was_away_is_caught_up_with():
    async with ProtectionWorld() as w:
        for name in ("free", "used", "freed"):
            await w.create(PERSISTENT_VOLUME_CLAIM, claim(name))
        await w.create(POD, user_of("used", "p"))
        await w.create(POD, user_of("freed", "q"))
        async with w.protection():
            await w.delete(PERSISTENT_VOLUME_CLAIM, "freed")
            await w.settle()
        for name in ("free", "used"):
            await w.delete(PERSISTENT_VOLUME_CLAIM, name)
        await w.delete(POD, "q")
        await w.settle(3600)
        async with w.protection():
            await w.settle()

        left = [one["metadata"]["name"] for one in (await w.client.list(PERSISTENT_VOLUME_CLAIM)).items]
        assert left == ["used"]


async def test_it_may_end_before_it_has_begun():
    async with ProtectionWorld() as w:
        await w.create(PERSISTENT_VOLUME_CLAIM, claim("data"))
        await w.delete(PERSISTENT_VOLUME_CLAIM, "data")
        async with w.protection():
            pass

        assert await w.find(PERSISTENT_VOLUME_CLAIM, "data") is not None
        assert w.on.told.entries == []
