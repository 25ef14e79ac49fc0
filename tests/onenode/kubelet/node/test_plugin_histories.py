"""Any history of sockets, seen by our watcher and by the small model of kubelet's: both register the same drivers."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from onenode.kubelet.node.csi_node_rules import NODE_IDS_ANNOTATION
from onenode.kubelet.node.plugin_watcher import PluginWatcher
from orlop.csi.error_codes import Internal
from orlop.testing.virtual_clock import run_virtual
from support.kubelet.kubelet_plugins import Kubelet
from support.kubelet.plugin_worlds import Plugin, PluginWorld
from support.worlds import running

SOCKETS = ["s1", "s2", "s3"]
LONG_ENOUGH = 1000.0
"""Several of the longest waits, with what a hanging plugin may take in between."""


@dataclass(frozen=True)
class Make:
    socket: str
    name: str
    number: int
    behaviour: str


@dataclass(frozen=True)
class Remove:
    socket: str


@dataclass(frozen=True)
class Kill:
    """The process behind the socket is dead, the socket is there."""

    socket: str


@dataclass(frozen=True)
class Mend:
    """What was wrong with the plugins is over."""


@dataclass(frozen=True)
class Pass:
    seconds: float


Step = Make | Remove | Kill | Mend | Pass

BEHAVIOUR = st.sampled_from(["well", "well", "well", "broken", "garbage", "hangs", "node fails"])
SOCKET = st.sampled_from(SOCKETS)
OTHERS = st.one_of(
    st.builds(Remove, SOCKET),
    st.just(Mend()),
    st.builds(Pass, st.sampled_from([0.0, 0.05, 0.7, 3.0, 30.0, LONG_ENOUGH])),
)
CONTENDING = st.one_of(st.builds(Make, SOCKET, st.sampled_from(["a.b", "c.d"]), st.integers(1, 3), BEHAVIOUR), OTHERS)
"""Several sockets claim one name. None is killed: who has the name then is a matter of who came first."""
DYING = st.one_of(
    SOCKET.flatmap(lambda one: st.builds(Make, st.just(one), st.just(f"{one}.e"), st.integers(1, 3), BEHAVIOUR)),
    st.builds(Kill, SOCKET),
    OTHERS,
)
BEHAVIOURS = {
    "well": {},
    "broken": {"GetInfo": Internal("no")},
    "garbage": {"GetInfo": Internal("what is no message is an error too")},
    "hangs": {"GetInfo": None},
    "node fails": {"NodeGetInfo": Internal("no")},
}


def claimants(the: PluginWorld, name: str) -> list[str]:
    found = [(path, socket.handler) for path, socket in the.folder.there.items()]
    return [path for path, plugin in found if isinstance(plugin, Plugin) and plugin.name == name]


def take(the: PluginWorld, step: Step) -> None:
    match step:
        case Make(socket, name, number, behaviour):
            wrong = dict(BEHAVIOURS[behaviour])
            the.make(socket, Plugin(name, node_id=f"id-{number}", endpoint=the.path(socket), behaviour=wrong))
        case Remove(socket):
            if the.path(socket) in the.folder.there:
                the.remove(socket)
        case Kill(socket):
            if the.path(socket) in the.folder.there:
                the.folder.there[the.path(socket)].handler = None
        case Mend():
            for socket in the.folder.there.values():
                if isinstance(socket.handler, Plugin):
                    socket.handler.behaviour.clear()


async def compare(the: PluginWorld, watcher: PluginWatcher, model: Kubelet) -> None:
    """Who has a name that several claim is a matter of who came first, which is not the same in both."""
    assert set(watcher.drivers) == set(model.drivers)
    for name, driver in watcher.drivers.items():
        if len(claimants(the, name)) <= 1 and driver.endpoint.path == model.drivers[name].path:
            assert driver.node_id == model.drivers[name].node_id
    assert {entry["name"]: entry["nodeID"] for entry in await the.csi_drivers()} == {
        name: driver.node_id for name, driver in watcher.drivers.items()
    }
    ids = json.loads((await the.annotations()).get(NODE_IDS_ANNOTATION, "{}"))
    assert ids == {name: driver.node_id for name, driver in watcher.drivers.items()}


async def live(the: PluginWorld, steps: list[Step]) -> None:
    for step in steps:
        match step:
            case Pass(seconds):
                await the.settle(seconds)
            case Kill():
                await the.settle(LONG_ENOUGH)  # whether it was registered before is not to depend on the moment
                take(the, step)
            case _:
                take(the, step)


async def history_seen_by_both(steps: list[Step]) -> None:
    async with PluginWorld() as the, the.watcher() as watcher:
        model = Kubelet(the.folder, the.folder.dial, the.clock)
        async with running(model.run()):
            await live(the, steps)
            await the.settle(LONG_ENOUGH)
            await compare(the, watcher, model)


@given(st.lists(CONTENDING, max_size=12))
@settings(max_examples=400 if os.environ.get("ORLOP_SOAK") else 20)
def test_plugins_that_contend_for_names_are_registered_as_the_model_of_kubelet_registers_them(steps: list[Step]):
    run_virtual(lambda _clock: history_seen_by_both(steps))


@given(st.lists(DYING, max_size=12))
@settings(max_examples=400 if os.environ.get("ORLOP_SOAK") else 20)
def test_plugins_that_die_and_come_back_are_registered_as_the_model_of_kubelet_registers_them(steps: list[Step]):
    run_virtual(lambda _clock: history_seen_by_both(steps))


@given(st.lists(CONTENDING | DYING, max_size=12))
@settings(max_examples=400 if os.environ.get("ORLOP_SOAK") else 20)
def test_whatever_happened_plugins_that_behave_are_registered_in_the_end(steps: list[Step]):
    async def history(_clock: object) -> None:
        async with PluginWorld() as the, the.watcher() as watcher:
            await live(the, steps)
            for socket in SOCKETS:
                take(the, Make(socket, f"{socket}.e", 1, "well"))
            await the.settle(LONG_ENOUGH)

            assert set(watcher.drivers) == {f"{socket}.e" for socket in SOCKETS}
            assert sorted(entry["name"] for entry in await the.csi_drivers()) == sorted(watcher.drivers)

    run_virtual(history)
