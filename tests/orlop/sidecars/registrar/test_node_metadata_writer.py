"""What a driver says of its node comes to stand on the Node object, whoever else writes there, and whatever fails."""

from __future__ import annotations

import asyncio
import json
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

from orlop.foundation.structured_log import Level, LogEntry
from orlop.kube.kinds import NODE
from orlop.sidecars.registrar.node_metadata_rules import NODE_IDS_ANNOTATION
from orlop.sidecars.registrar.node_metadata_writer import NodeMetadataWriter
from orlop.sidecars.registrar.registration_rules import NodeInfo
from orlop.testing.virtual_clock import VirtualClock
from support.api.kube_model import BROKEN, ModelServer, status
from support.kubelet.registrars import RegistrarWorld, runtime_of

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from orlop.kube.http.http_messages import HttpRequest, HttpResponse

pytestmark = pytest.mark.virtual_time

CANNOT = "cannot write the driver's node id and topology to the Node"


def server_with_node(**metadata: Any) -> ModelServer:
    server = ModelServer()
    server.put(NODE, "node-1", metadata=metadata)
    return server


def metadata(server: ModelServer) -> dict[str, Any]:
    (node,) = server.of(NODE)
    return node["metadata"]  # type: ignore[no-any-return]


def node_ids(server: ModelServer) -> dict[str, str]:
    return json.loads(metadata(server)["annotations"][NODE_IDS_ANNOTATION])  # type: ignore[no-any-return]


@asynccontextmanager
async def writing(
    server: ModelServer, *, annotate: bool = True, label: bool = True, entries: list[LogEntry] | None = None
) -> AsyncIterator[NodeMetadataWriter]:
    runtime = runtime_of(VirtualClock(), entries if entries is not None else [])
    writer = NodeMetadataWriter(server.client(), "node-1", runtime, annotate=annotate, label=label)
    task = asyncio.get_running_loop().create_task(writer.run())
    try:
        yield writer
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def a_while(seconds: float = 10.0) -> None:
    await VirtualClock().sleep(seconds)


def patches(server: ModelServer) -> int:
    return sum(request.method == "PATCH" for request in server.asked)


@pytest.mark.parametrize("requested", [{"annotate", "label"}, {"annotate"}, {"label"}])
async def test_what_was_requested_is_written_and_nothing_else(requested: set[str]):
    annotate, label = "annotate" in requested, "label" in requested
    server = server_with_node(labels={"role": "db"}, annotations={"other": "kept"})
    async with writing(server, annotate=annotate, label=label) as node:
        node.set_desired("a.example.com", NodeInfo("n1", (("zone", "a"),)))
        await a_while()

    found = metadata(server)
    assert found["labels"] == {"role": "db", **({"zone": "a"} if label else {})}
    assert found["annotations"].get(NODE_IDS_ANNOTATION) == ('{"a.example.com":"n1"}' if annotate else None)
    assert found["annotations"]["other"] == "kept"
    assert patches(server) == 1


async def test_what_stands_there_already_is_not_written_again():
    server = server_with_node(annotations={NODE_IDS_ANNOTATION: '{ "a.example.com": "n1" }'})
    async with writing(server) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while()
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(24 * 3600)

    assert patches(server) == 0
    assert len(server.asked) == 1


async def test_many_drivers_on_one_node_that_write_at_once_all_come_to_stand_there():
    server = server_with_node()
    server.delay = 0.3
    drivers = [f"d{number}.example.com" for number in range(8)]
    async with AsyncExitStack() as stack:
        for driver in drivers:
            node = await stack.enter_async_context(writing(server))
            node.set_desired(driver, NodeInfo(f"id-of-{driver}", ((driver, "here"),)))
        await a_while(120)

    assert node_ids(server) == {driver: f"id-of-{driver}" for driver in drivers}
    assert metadata(server)["labels"] == dict.fromkeys(drivers, "here")
    assert patches(server) > len(drivers), "nobody was in anybody's way, so the test proves nothing"


async def test_who_may_not_write_says_so_once_and_writes_as_soon_as_it_may():
    server, entries = server_with_node(), list[LogEntry]()
    may = False

    def refuse(request: HttpRequest) -> HttpResponse | None:
        return None if may or request.method == "GET" else status(403, "Forbidden", "cannot patch nodes")

    server.refuse = refuse
    async with writing(server, entries=entries) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(24 * 3600)
        assert patches(server) < 300
        may = True
        await a_while(600)

    assert node_ids(server) == {"a.example.com": "n1"}
    assert [entry.fields["error"] for entry in entries if entry.level >= Level.WARNING] == ["cannot patch nodes"]
    assert entries[-1].message == "the Node shows the driver's node id and topology"


async def test_a_server_that_is_away_or_breaks_off_is_asked_again():
    server, entries = server_with_node(), list[LogEntry]()
    server.faults.extend([BROKEN, status(500, "InternalError"), *([BROKEN] * 30)])
    async with writing(server, entries=entries) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(3600)

    assert node_ids(server) == {"a.example.com": "n1"}


async def test_a_node_that_does_not_exist_yet_is_waited_for():
    server, entries = ModelServer(), list[LogEntry]()
    async with writing(server, entries=entries) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(600)
        server.put(NODE, "node-1")
        await a_while(120)

    assert node_ids(server) == {"a.example.com": "n1"}
    assert len([entry for entry in entries if entry.message == CANNOT and entry.level >= Level.WARNING]) == 1


async def test_news_does_not_wait_for_the_end_of_a_pause():
    server = ModelServer()
    async with writing(server) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(600)  # by now it looks once a minute
        server.put(NODE, "node-1")
        node.set_desired("a.example.com", NodeInfo("n2"))
        await a_while(0.1)

        assert node_ids(server) == {"a.example.com": "n2"}


async def test_a_collision_is_said_once_and_mended_when_the_label_is_gone():
    server, entries = server_with_node(labels={"zone": "b"}), list[LogEntry]()
    async with writing(server, entries=entries) as node:
        node.set_desired("a.example.com", NodeInfo("n1", (("zone", "a"),)))
        await a_while(3600)
        assert metadata(server)["labels"] == {"zone": "b"}
        assert node_ids(server) == {"a.example.com": "n1"}
        server.put(NODE, "node-1", metadata={"annotations": metadata(server)["annotations"]})
        await a_while(600)

    assert metadata(server)["labels"] == {"zone": "a"}
    (complaint,) = [entry for entry in entries if entry.level >= Level.WARNING]
    assert "detected topology value collision" in str(complaint.fields["error"])


async def test_a_driver_under_another_name_takes_its_former_entry_away():
    server = server_with_node(annotations={NODE_IDS_ANNOTATION: '{"other.example.com":"o"}'})
    async with writing(server) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while()
        node.set_desired("b.example.com", NodeInfo("n1"))
        await a_while()

    assert node_ids(server) == {"b.example.com": "n1", "other.example.com": "o"}


async def test_an_entry_whose_response_was_lost_is_taken_away_with_the_former_name():
    server = server_with_node()
    patch = server.exchange

    async def lose_the_response(request: HttpRequest, within: float) -> HttpResponse:
        answer = await patch(request, within)
        if request.method == "PATCH":
            server.exchange = patch  # type: ignore[method-assign]
            raise BROKEN
        return answer

    server.exchange = lose_the_response  # type: ignore[method-assign]
    async with writing(server) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        while "annotations" not in metadata(server):
            await a_while(0.01)
        node.set_desired("b.example.com", NodeInfo("n1"))
        await a_while(600)

    assert node_ids(server) == {"b.example.com": "n1"}


async def test_what_changes_during_a_write_is_written_too():
    server = server_with_node()
    server.delay = 0.3
    async with writing(server) as node:
        node.set_desired("a.example.com", NodeInfo("n1"))
        await a_while(0.45)  # the Node has been read, the patch is under way
        node.set_desired("a.example.com", NodeInfo("n2"))
        await a_while(600)

    assert node_ids(server) == {"a.example.com": "n2"}


# ---- in the registrar ------------------------------------------------------------------------------------------------


async def test_the_registrar_has_it_written_and_leaves_it_there_when_it_ends():
    server = server_with_node()
    async with RegistrarWorld({"node": {"id": "n1", "topology": {"zone": "a"}}}, kube=server.client()) as the:
        the.start_registrar()
        await the.settle(10.0)
        await the.stop_registrar()
        await the.settle(10.0)

    assert node_ids(server) == {"mock.example.com": "n1"}
    assert metadata(server)["labels"] == {"zone": "a"}


async def test_a_restarted_driver_s_new_id_and_topology_are_written_too():
    server = server_with_node()
    async with RegistrarWorld({"node": {"id": "n1", "topology": {"zone": "a"}}}, kube=server.client()) as the:
        the.start_registrar()
        await the.settle(10.0)
        the.driver.restart({"node": {"id": "n2", "topology": {"zone": "a", "rack": "1"}}})
        await the.settle(10.0)

    assert node_ids(server) == {"mock.example.com": "n2"}
    assert metadata(server)["labels"] == {"zone": "a", "rack": "1"}


async def test_what_somebody_took_away_is_written_again_when_kubelet_has_registered_the_driver():
    server = server_with_node()
    async with RegistrarWorld(kube=server.client()) as the:
        the.start_registrar()
        await the.settle(10.0)
        server.put(NODE, "node-1")
        the.kubelet.drivers.clear()  # kubelet was restarted
        await the.settle(10.0)

    assert node_ids(server) == {"mock.example.com": "node-1"}


async def test_the_registration_does_not_wait_for_the_api_server():
    server = server_with_node()
    server.refuse = lambda _request: BROKEN
    async with RegistrarWorld(kube=server.client()) as the:
        the.start_registrar()
        await the.settle(10.0)

        assert "mock.example.com" in the.kubelet.drivers
