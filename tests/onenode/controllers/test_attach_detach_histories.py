"""Whatever pods, nodes, drivers and people do, and whenever the controller dies: what is mounted is attached."""

from __future__ import annotations

from contextlib import AsyncExitStack, suppress
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from onenode.controllers.attach_detach_rules import OUT_OF_SERVICE
from orlop.kube.api_errors import StatusError
from orlop.kube.client import MergePatch
from orlop.kube.kinds import NODE, POD, VOLUME_ATTACHMENT
from orlop.kube.objects import ObjectName
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.attaching.attaching_players import Players
from support.attaching.attaching_worlds import AttachingWorld, attachment_of
from support.random_tests import MANY_LIVES

HANDLES = {"one": "h1", "many": "h2"}
CLAIMS, NODES, PODS = (st.sampled_from(names) for names in (["one", "many"], ["n1", "n2"], ["p", "q", "r"]))
STEPS = (
    st.tuples(st.just("make pod"), PODS, CLAIMS, NODES),
    st.tuples(st.just("make pod"), PODS, CLAIMS, NODES),
    st.tuples(st.just("delete pod"), PODS),
    st.tuples(st.just("finish pod"), PODS),
    st.tuples(st.just("driver fails"), st.integers(1, 3)),
    st.tuples(st.just("meddle with the list"), NODES),
    st.tuples(st.just("lose writes"), st.integers(1, 6)),
    st.tuples(st.just("lose answers"), st.integers(1, 6)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("let pass"), st.sampled_from([0.0, 0.01, 0.1, 1.0, 400.0])),
)
HARM = (
    st.tuples(st.just("delete attachment"), CLAIMS, NODES),
    st.tuples(st.just("kubelet hangs"), NODES),
    st.tuples(st.just("kubelet is back"), NODES),
    st.tuples(st.just("out of service"), NODES),
)
READY, NOT_READY = ([{"type": "Ready", "status": status}] for status in ("True", "Unknown"))


class History:
    def __init__(self, world: AttachingWorld, life: AsyncExitStack) -> None:
        self.world = world
        self.life = life
        self.players = Players(world, HANDLES, frozenset({HANDLES["many"]}))

    async def begin(self) -> None:
        await self.life.enter_async_context(self.world.controller())

    async def take(self, step: tuple[Any, ...]) -> None:
        with suppress(StatusError):  # what is not there, or there already: nothing happened
            await self._do(*step)

    async def _do(self, what: str, *rest: Any) -> None:
        w = self.world
        match (what, *rest):
            case ("restart",):
                await self.life.aclose()
                await self.begin()
            case "let pass", seconds:
                await w.settle(seconds)
            case "make pod", name, claim_name, node:
                await w.pod(name, claim_name, node)
            case "delete pod", name:
                await w.delete(POD, name)
            case "finish pod", name:
                await w.pod_says(name, phase="Succeeded")
            case _:
                await self._harm(what, *rest)

    async def _harm(self, what: str, *rest: Any) -> None:
        w = self.world
        match (what, *rest):
            case "lose writes", times:
                w.lost_writes = times
            case "lose answers", times:
                w.lost_answers = times
            case "delete attachment", claim_name, node:
                self.players.excused.add(HANDLES[claim_name])
                await w.delete(VOLUME_ATTACHMENT, attachment_of(HANDLES[claim_name], node))
            case "driver fails", times:
                self.players.refuses = times
            case "kubelet hangs", node:
                self._excuse_all_on(node)
                self.players.silent.add(node)
                await w.node_says(node, conditions=NOT_READY)
            case "kubelet is back", node:
                await self._bring_back(node)
            case "out of service", node:
                self._excuse_all_on(node)
                await w.taint(OUT_OF_SERVICE, node)
            case "meddle with the list", node:
                await w.node_says(node, volumesAttached=None)

    def _excuse_all_on(self, _node: str) -> None:
        """It may be given up, with whatever it has, now or later."""
        self.players.excused |= set(HANDLES.values())

    async def _bring_back(self, node: str) -> None:
        self.players.silent.discard(node)
        await self.world.client.patch(NODE, ObjectName(None, node), MergePatch({"spec": {"taints": None}}))
        await self.world.node_says(node, conditions=READY)

    async def check_the_end(self) -> None:
        for node in ("n1", "n2"):
            await self._bring_back(node)
        self.players.refuses = self.world.lost_writes = self.world.lost_answers = 0
        for name in ("p", "q", "r"):
            with suppress(StatusError):
                await self.world.delete(POD, name)
        await self.world.settle(300)
        await self.players.check_clean()


@MANY_LIVES
@given(st.lists(st.one_of(*STEPS), max_size=25))
def test_what_is_mounted_is_attached_and_a_volume_for_one_node_is_at_one(steps: list[tuple[Any, ...]]):
    lived(steps)


@MANY_LIVES
@given(st.lists(st.one_of(*STEPS, *HARM), max_size=25))
def test_whatever_is_done_to_nodes_and_attachments_nothing_is_left_in_the_end(steps: list[tuple[Any, ...]]):
    lived(steps)


def lived(steps: list[tuple[Any, ...]]) -> None:
    async def run(_: VirtualClock) -> None:
        async with AttachingWorld() as w, AsyncExitStack() as life:
            for name in ("n1", "n2"):
                await w.node(name)
            await w.bound_claim("one", HANDLES["one"])
            await w.bound_claim("many", HANDLES["many"], accessModes=["ReadWriteMany"])
            history = History(w, life)
            async with history.players.playing():
                await history.begin()
                for step in steps:
                    await history.take(step)
                await history.check_the_end()

    run_virtual(run)
