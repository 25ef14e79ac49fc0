"""Whatever pods, claims and writers do, and whenever the protection ends and begins: used claims stay, others go."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from orlop.kube.api_errors import StatusError
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM, POD
from orlop.kube.objects import finalizers, is_being_deleted, uid
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.api.api_objects import claim
from support.api.protected_storage import ProtectionWorld, user_of

CLAIMS = st.sampled_from(["a", "b"])
PODS = st.sampled_from(["p", "q"])
STEPS = st.one_of(
    st.tuples(st.just("make claim"), CLAIMS),
    st.tuples(st.just("delete claim"), CLAIMS),
    st.tuples(st.just("make pod"), PODS, CLAIMS),
    st.tuples(st.just("delete pod"), PODS),
    st.tuples(st.just("finish pod"), PODS),
    st.tuples(st.just("bare claim"), CLAIMS),
    st.tuples(st.just("label claim"), CLAIMS),
    st.tuples(st.just("restart")),
    st.tuples(st.just("let pass"), st.sampled_from([0.0, 0.001, 0.1, 10.0])),
)
PROTECTION = "kubernetes.io/pvc-protection"


class History:
    """`holders` are the pods that used a claim when its deletion was asked for: it may not go while one is there."""

    def __init__(self, w: ProtectionWorld, life: AsyncExitStack) -> None:
        self.world = w
        self.life = life
        self.holders: dict[str, set[str]] = {}

    async def begin(self) -> None:
        await self.life.enter_async_context(self.world.protection())

    async def take(self, step: tuple[Any, ...]) -> None:
        with suppress(StatusError):  # what is not there, or there already, or refused: nothing happened
            await self._do(*step)
        await self._check_that_what_is_held_is_there()

    async def _do(self, what: str, *rest: Any) -> None:
        w = self.world
        match (what, *rest):
            case "make claim", name:
                await w.create(PERSISTENT_VOLUME_CLAIM, claim(name))
            case "delete claim", name:
                await self._delete_claim(name)
            case "make pod", name, used:
                await w.create(POD, user_of(used, name))
            case "delete pod", name:
                await w.delete(POD, name)
            case "finish pod", name:
                await w.merge(POD, name, {"status": {"phase": "Failed"}}, "status")
            case "bare claim", name:
                await self._take_protection_off(name)
            case "label claim", name:
                labels = {"at": f"{w.clock.elapsed():.3f}"}
                await w.merge(PERSISTENT_VOLUME_CLAIM, name, {"metadata": {"labels": labels}})
            case ("restart",):
                await self.life.aclose()
                await self.begin()
            case "let pass", seconds:
                await w.settle(seconds)

    async def _delete_claim(self, name: str) -> None:
        found = await self.world.find(PERSISTENT_VOLUME_CLAIM, name)
        if found is not None and not is_being_deleted(found) and PROTECTION in finalizers(found):
            self.holders[uid(found)] = {uid(pod) for pod in await self._users(name)}
        await self.world.delete(PERSISTENT_VOLUME_CLAIM, name)

    async def _take_protection_off(self, name: str) -> None:
        """Not of one that is being deleted: that would be by force."""
        found = await self.world.find(PERSISTENT_VOLUME_CLAIM, name)
        if found is not None and not is_being_deleted(found):
            await self.world.merge(PERSISTENT_VOLUME_CLAIM, name, {"metadata": {"finalizers": None}})

    async def _users(self, name: str) -> list[dict[str, Any]]:
        pods = (await self.world.client.list(POD)).items
        sources = lambda pod: [one.get("persistentVolumeClaim") for one in pod["spec"]["volumes"]]  # noqa: E731
        return [pod for pod in pods if {"claimName": name} in sources(pod)]

    async def _check_that_what_is_held_is_there(self) -> None:
        claims = {uid(one) for one in (await self.world.client.list(PERSISTENT_VOLUME_CLAIM)).items}
        pods = {uid(one) for one in (await self.world.client.list(POD)).items}
        for held, holders in self.holders.items():
            assert held in claims or not holders & pods

    async def check_the_end(self) -> None:
        await self.world.settle(60)
        for one in (await self.world.client.list(PERSISTENT_VOLUME_CLAIM)).items:
            assert PROTECTION in finalizers(one)
            if is_being_deleted(one):
                assert await self._users(one["metadata"]["name"]), "nobody uses it, and it stays"


@given(st.lists(STEPS, max_size=25))
def test_a_deleted_claim_stays_exactly_as_long_as_it_is_used(steps: list[tuple[Any, ...]]):
    async def run(_: VirtualClock) -> None:
        async with ProtectionWorld() as w, AsyncExitStack() as life:
            history = History(w, life)
            await history.begin()
            for step in steps:
                await history.take(step)
            await history.check_the_end()

    run_virtual(run)
