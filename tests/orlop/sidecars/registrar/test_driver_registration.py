"""One registrar, one driver and kubelet on virtual time: what kubelet knows of the driver is true, sooner or later."""

from __future__ import annotations

import asyncio
import os
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orlop.csi.proto import registration_pb2, rpc
from orlop.foundation.structured_log import Level
from orlop.foundation.unix_socket import SocketInUse
from orlop.sidecars.registrar.driver_registration import RegistrationRefused
from orlop.testing.virtual_clock import VirtualClock, run_virtual
from support.kubelet.kubelet_plugins import VirtualSocket
from support.kubelet.registrars import HOST_SOCKET, RegistrarWorld

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orlop.csi.endpoint import UnixEndpoint
    from orlop.csi.transport import CallHandler

pytestmark = pytest.mark.virtual_time

SOCKET = "/registration/mock.example.com-reg.sock"
MOCK = "mock.example.com"


def node(node_id: str = "node-1", **topology: str) -> dict[str, Any]:
    return {"node": {"id": node_id, "topology": topology}}


async def test_kubelet_learns_the_driver_s_name_and_where_it_listens_on_the_host():
    async with RegistrarWorld(node("n-7", zone="a")) as the:
        the.start_registrar()
        await the.settle(10.0)

        known = the.kubelet.drivers[MOCK]
        assert (known.path, known.endpoint, known.node_id, known.topology) == (
            SOCKET,
            HOST_SOCKET,
            "n-7",
            {"zone": "a"},
        )
        assert the.kubelet.registrations == [MOCK]


async def test_a_driver_that_is_not_there_is_waited_for_however_long():
    async with RegistrarWorld() as the:
        the.driver.connection.cut()
        the.start_registrar()
        await the.settle(6 * 3600)
        assert the.folder.there == {}

        the.driver.connection.mend()
        await the.settle(10.0)
        assert MOCK in the.kubelet.drivers


async def test_a_driver_that_does_not_say_its_name_is_asked_again_and_complained_of_once():
    script = {"script": {"GetPluginInfo": [{"times": 50, "error": {"code": "INTERNAL", "message": "not today"}}]}}
    async with RegistrarWorld(script) as the:
        the.start_registrar()
        await the.settle(3600)

        assert MOCK in the.kubelet.drivers
        (complaint,) = the.said("call to the driver failed", Level.WARNING)
        assert complaint.fields["error"] == "INTERNAL: not today"
        assert len(the.said("driver answers again")) == 1


async def test_a_driver_that_hangs_when_asked_its_name_is_asked_again():
    async with RegistrarWorld({"script": {"GetPluginInfo": [{"hang": True}]}}) as the:
        the.start_registrar()
        await the.settle(700)  # the tests' client waits ten minutes

        assert MOCK in the.kubelet.drivers
        the.driver.drivers[0].stop_hanging()


@pytest.mark.parametrize("name", ["../../etc/cron.d/x", "a" * 64, "-x", "a b", "."])
async def test_a_name_that_breaks_the_interface_s_rule_never_becomes_a_path(name: str):
    async with RegistrarWorld({"driver": {"name": name}}) as the:
        the.start_registrar()
        await the.settle(100)
        assert the.folder.made == []
        assert len(the.said("call to the driver failed", Level.WARNING)) == 1

        the.driver.restart()
        await the.settle(20)
        assert MOCK in the.kubelet.drivers


async def test_a_driver_that_comes_back_as_it_was_is_not_registered_again():
    async with RegistrarWorld(node("n1", zone="a")) as the:
        the.start_registrar()
        for _ in range(20):
            await the.settle(10.0)
            the.driver.restart(node("n1", zone="a"))
        await the.settle(10.0)

        assert the.folder.made == [SOCKET]
        assert the.kubelet.registrations == [MOCK]
        assert the.driver.asked("GetPluginInfo") == 21


@pytest.mark.parametrize(
    ("after", "why"),
    [
        (node("n2", zone="a"), "node id changed from 'n1' to 'n2'"),
        (node("n1", zone="a", rack="r"), "topology changed from zone=a to rack=r, zone=a"),
        (node("n1"), "topology changed from zone=a to nothing"),
        ({"node": {"id": "n1", "topology": {"zone": "a"}, "maxVolumes": 5}}, "volume limit changed from 0 to 5"),
    ],
)
async def test_a_driver_that_comes_back_with_another_node_is_registered_again(after: dict[str, Any], why: str):
    async with RegistrarWorld(node("n1", zone="a")) as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.restart(after)
        await the.settle(10.0)

        assert the.folder.made == [SOCKET, SOCKET]
        assert the.kubelet.forgotten == [MOCK]
        known, said = the.kubelet.drivers[MOCK], after["node"]
        assert (known.node_id, known.topology, known.max_volumes) == (
            said["id"],
            said["topology"],
            said.get("maxVolumes", 0),
        )
        assert the.said("announcing the driver to kubelet")[-1].fields["reason"] == why


async def test_a_driver_that_comes_back_under_another_name_is_registered_under_it_alone():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.restart({"driver": {"name": "other.example.com"}})
        await the.settle(10.0)

        assert list(the.folder.there) == ["/registration/other.example.com-reg.sock"]
        assert list(the.kubelet.drivers) == ["other.example.com"]
        assert 'orlop_registrar_registered{driver_name="mock.example.com"} 0.0' in the.counted()
        assert 'orlop_registrar_registered{driver_name="other.example.com"} 1.0' in the.counted()


async def test_the_socket_stays_while_the_driver_is_away():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.connection.cut()
        await the.settle(3600)

        assert list(the.folder.there) == [SOCKET]
        assert the.kubelet.forgotten == []


async def test_the_name_is_announced_before_the_driver_has_said_anything_of_its_node():
    async with RegistrarWorld({"script": {"NodeGetInfo": [{"delay": "60s"}, {"delay": "60s"}]}}) as the:
        the.start_registrar()
        await the.settle(1)
        assert list(the.folder.there) == [SOCKET]

        await the.settle(150)
        assert the.folder.made == [SOCKET]
        assert MOCK in the.kubelet.drivers


async def test_a_driver_that_fails_to_tell_its_node_is_asked_again_and_not_announced_again():
    failing = {"code": "UNAVAILABLE", "message": "metadata service"}
    async with RegistrarWorld({"script": {"NodeGetInfo": [{"times": 5, "error": failing}]}}) as the:
        the.kubelet.waits[SOCKET] = (300.0, 122.0)  # it will ask when the driver is fit
        the.start_registrar()
        await the.settle(500)

        assert the.folder.made == [SOCKET]
        assert len(the.said("call to the driver failed", Level.WARNING)) == 1
        assert MOCK in the.kubelet.drivers


async def test_a_driver_whose_node_was_never_known_is_announced_again_after_a_restart():
    failing = {"times": 0, "error": {"code": "INTERNAL", "message": "no"}}
    async with RegistrarWorld({"script": {"NodeGetInfo": [failing]}}) as the:
        the.kubelet.waits[SOCKET] = (1e9, 122.0)
        the.start_registrar()
        await the.settle(30)
        the.driver.restart()
        await the.settle(30)

        assert the.folder.made == [SOCKET, SOCKET]


async def test_kubelet_s_refusal_ends_it_with_kubelet_s_sentence_and_without_a_socket():
    async with RegistrarWorld() as the:
        the.kubelet.refuse[MOCK] = "nobody likes it"
        with pytest.raises(RegistrationRefused, match=r"RegisterPlugin error -- .* nobody likes it"):
            await the.registrar().run()

        assert the.folder.there == {}
        assert len(the.said("kubelet has not registered the driver", Level.ERROR)) == 1


@pytest.mark.parametrize("gives_up", [False, True], ids=["kubelet since 1.36", "kubelet before 1.36"])
async def test_a_driver_that_must_go_on_is_announced_again_until_kubelet_takes_it(*, gives_up: bool):
    async with RegistrarWorld() as the:
        the.kubelet.gives_up = gives_up
        the.kubelet.refuse[MOCK] = "the API server is away"
        registrar = the.registrar()
        the.running = asyncio.get_running_loop().create_task(registrar.keep_running())
        await the.settle(600)

        assert not the.running.done()
        assert await registrar.why_not_registered() == f"kubelet has not registered {MOCK} yet"
        # kubelet since 1.36 remembers the path: it waits up to two minutes before it tries a new socket there.
        assert (20 if gives_up else 10) < len(the.folder.made) < 80, "announced again, later each time"

        the.kubelet.refuse.clear()
        await the.settle(150)
        assert await registrar.why_not_registered() is None
        assert list(the.kubelet.drivers) == [MOCK]
        announced = len(the.folder.made)
        await the.settle(600)
        assert len(the.folder.made) == announced


async def test_a_topology_that_collides_with_a_label_of_the_node_is_refused_by_kubelet():
    async with RegistrarWorld(node(zone="a")) as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.restart(node(zone="b"))
        await the.settle(10.0)

        assert the.running is not None
        with pytest.raises(RegistrationRefused, match="detected topology value collision"):
            await the.running
        the.running = None


async def test_told_to_stop_it_takes_its_socket_away_and_kubelet_forgets_the_driver():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        await the.stop_registrar()
        await the.settle(10.0)

        assert the.folder.there == {}
        assert the.kubelet.drivers == {}


async def test_after_a_kill_the_next_one_replaces_the_socket_and_kubelet_registers_anew():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        await the.kill_registrar()
        assert list(the.folder.there) == [SOCKET]
        await the.settle(10.0)
        the.start_registrar()
        await the.settle(10.0)

        assert the.kubelet.registrations == [MOCK, MOCK]
        assert the.kubelet.drivers[MOCK].identity is the.folder.there[SOCKET]


async def test_a_stale_socket_after_a_boot_is_replaced_and_kubelet_comes_as_soon_as_it_tries_again():
    async with RegistrarWorld() as the:
        the.folder.there[SOCKET] = VirtualSocket(None)
        the.driver.connection.cut()
        the.start_registrar()
        await the.settle(600)  # kubelet has given up to look often
        the.driver.connection.mend()
        await the.settle(130)

        assert the.kubelet.drivers[MOCK].identity is the.folder.there[SOCKET]


async def test_a_socket_that_somebody_else_serves_is_left_to_him():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        with pytest.raises(SocketInUse, match=r"mock\.example\.com-reg\.sock"):
            await the.registrar().run()

        assert MOCK in the.kubelet.drivers
        assert list(the.folder.there) == [SOCKET]


async def test_a_kubelet_that_was_restarted_finds_the_socket_and_registers_again():
    async with RegistrarWorld() as the:
        the.start_registrar()
        await the.settle(10.0)
        the.kubelet.drivers.clear()
        await the.settle(10.0)

        assert the.kubelet.registrations == [MOCK, MOCK]
        assert the.folder.made == [SOCKET]


async def test_readiness_says_what_is_missing_until_kubelet_has_registered_it():
    async with RegistrarWorld() as the:
        the.kubelet.waits[SOCKET] = (100.0, 122.0)
        registrar = the.registrar()
        assert await registrar.why_not_registered() == "the driver has not responded yet"

        the.registrar = lambda: registrar  # type: ignore[method-assign]
        the.start_registrar()
        await the.settle(10.0)
        assert await registrar.why_not_registered() == f"kubelet has not registered {MOCK} yet"

        await the.settle(200)
        assert await registrar.why_not_registered() is None


async def test_a_driver_restarted_before_it_answered_for_its_node_is_registered_again():
    slow = {"script": {"NodeGetInfo": [{"delay": "60s"}]}}  # only the first call, which is the registrar's
    async with RegistrarWorld({**node("n1"), **slow}) as the:
        the.start_registrar()
        await the.settle(10.0)
        assert the.kubelet.drivers[MOCK].node_id == "n1"

        the.driver.restart(node("n2"))
        await the.settle(60)  # until the first driver's call is over, too

        assert the.kubelet.drivers[MOCK].node_id == "n2"


async def test_a_topology_in_another_order_is_no_change():
    segments = {f"key-{number}": "x" for number in range(20)}
    async with RegistrarWorld(node("n1", **segments)) as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.restart(node("n1", **dict(reversed(segments.items()))))
        await the.settle(10.0)

        assert the.folder.made == [SOCKET]


async def test_a_failure_after_a_success_is_retried_as_soon_as_the_first_one():
    failing = {"code": "UNAVAILABLE", "message": "starting"}
    script = {"GetPluginInfo": [{"times": 20, "error": failing}], "NodeGetInfo": [{"error": failing}]}
    async with RegistrarWorld({"script": script}) as the:
        the.kubelet.waits[SOCKET] = (1e9, 122.0)
        the.start_registrar()
        while not the.folder.made:
            await the.settle(0.1)
        await the.settle(1)

        assert the.driver.asked("NodeGetInfo") == 2


async def test_a_registration_reported_while_the_old_socket_closes_does_not_count_for_the_new_one():
    report = registration_pb2.RegistrationStatus(plugin_registered=True).SerializeToString()
    async with RegistrarWorld(node("n1")) as the:
        serve = the.folder.serve

        @asynccontextmanager
        async def closing_slowly(endpoint: UnixEndpoint, handler: CallHandler) -> AsyncIterator[None]:
            async with serve(endpoint, handler):
                yield
                await handler.answer(rpc.NOTIFY_REGISTRATION_STATUS.path, report)

        the.folder.serve = closing_slowly  # type: ignore[method-assign]
        registrar = the.registrar()
        the.registrar = lambda: registrar  # type: ignore[method-assign]
        the.start_registrar()
        await the.settle(10.0)
        the.kubelet.waits[SOCKET] = (1e9, 122.0)
        the.driver.restart(node("n2"))
        await the.settle(10.0)

        assert the.folder.made == [SOCKET, SOCKET]
        assert await registrar.why_not_registered() == f"kubelet has not registered {MOCK} yet"
        assert 'orlop_registrar_registered{driver_name="mock.example.com"} 0.0' in the.counted()


# ---- any history -----------------------------------------------------------------------------------------------------

INCARNATIONS = st.fixed_dictionaries(
    {
        "driver": st.fixed_dictionaries({"name": st.sampled_from(["a.example.com", "b.example.com"])}),
        "node": st.fixed_dictionaries(
            {
                "id": st.sampled_from(["n1", "n2"]),
                "topology": st.sampled_from([{}, {"zone": "a"}, {"zone": "a", "rack": "1"}]),
            }
        ),
        "script": st.fixed_dictionaries(
            {
                method: st.sampled_from([[], [{"error": {"code": "UNAVAILABLE"}}], [{"delay": "3s"}]])
                for method in ("GetPluginInfo", "NodeGetInfo")
            }
        ),
    }
)
MOMENTS = st.tuples(st.sampled_from(["restart", "away", "kill", "stop", "wait"]), st.sampled_from([0.1, 1.5, 7.0]))


@settings(max_examples=300 if os.environ.get("ORLOP_SOAK") else 40)
@given(st.lists(st.tuples(MOMENTS, INCARNATIONS), max_size=8))
def test_whatever_happens_kubelet_knows_in_the_end_what_the_driver_says(history: list[Any]):
    async def main(_clock: VirtualClock) -> None:
        async with RegistrarWorld(history[0][1] if history else None) as the:
            the.start_registrar()
            for (what, seconds), incarnation in history:
                await _happens(the, what, incarnation)
                await the.settle(seconds)
                if the.running is None or the.running.done():
                    await _restart_registrar(the)
            the.driver.connection.mend()
            await _settle(the)
            said = the.driver.drivers[-1].model.facts
            known = the.kubelet.drivers[said.name]
            socket = the.folder.there[f"/registration/{said.name}-reg.sock"]
            assert (known.node_id, known.topology, known.identity) == (said.node_id, dict(said.topology), socket)
            assert [one for one in the.folder.there.values() if one.handler is not None] == [socket]

    run_virtual(main)


async def _happens(the: RegistrarWorld, what: str, incarnation: dict[str, Any]) -> None:
    match what:
        case "restart":
            the.driver.restart(incarnation)
        case "away":
            the.driver.connection.cut()
        case "kill":
            await the.kill_registrar()
        case "stop":
            await the.stop_registrar()


async def _restart_registrar(the: RegistrarWorld) -> None:
    if the.running is not None:
        with pytest.raises(RegistrationRefused):
            await the.running
    the.start_registrar()


async def _settle(the: RegistrarWorld) -> None:
    """A container that ends is started again; two minutes is the longest that kubelet leaves a socket alone."""
    for _ in range(6):
        await the.settle(60)
        if the.running is not None and the.running.done():
            await _restart_registrar(the)
