"""What is true of a real socket only: who may take it, who may reach it, how it goes away."""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import stat
from pathlib import Path

import pytest

from orlop.csi.endpoint import UnixEndpoint, parse_endpoint
from orlop.csi.error_codes import Cancelled, CsiError, Internal, is_final
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.server import serving
from orlop.foundation.structured_log import Level
from orlop.foundation.unix_socket import SocketInUse, SocketUnusable
from support.csi.csi_ends import Workshop
from support.csi.csi_services import Identity, SlowNode


@pytest.fixture
def workshop(short_folder: Path) -> Workshop:
    return Workshop("socket", short_folder)


def publish(volume: str) -> csi_pb2.NodePublishVolumeRequest:
    return csi_pb2.NodePublishVolumeRequest(volume_id=volume)


async def test_the_socket_is_for_root_alone_and_goes_away_with_the_server(workshop: Workshop):
    path = workshop.folder / "csi.sock"
    async with workshop.ends(Identity()):
        status = path.stat()
        assert stat.S_ISSOCK(status.st_mode)
        assert stat.S_IMODE(status.st_mode) & 0o077 == 0

    assert not path.exists()


async def test_a_socket_that_a_dead_server_left_is_replaced(workshop: Workshop):
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(workshop.folder / "csi.sock"))
        dead.listen()

    async with workshop.ends(Identity()) as ends:
        assert (await ends.client.plugin_info()).name == "test.example.com"


async def test_a_socket_that_took_the_place_of_ours_is_left_alone(workshop: Workshop):
    path = workshop.folder / "csi.sock"
    with socket.socket(socket.AF_UNIX) as theirs:
        async with workshop.ends(Identity()):
            path.unlink()
            theirs.bind(str(path))
            theirs.listen()

        assert path.is_socket()


@pytest.mark.parametrize("name", ["a%41.sock", "a?b", "a#b", "100%", "a b", "grün", os.fsdecode(b"\xff.sock"), "a\nb"])
async def test_a_path_is_taken_as_it_is_written_by_both_ends(workshop: Workshop, name: str):
    neighbour = workshop.folder / "aA.sock"
    endpoint = parse_endpoint(f"unix://{workshop.folder}/{name}")
    interceptor, metrics = workshop.interceptor(Identity())
    with socket.socket(socket.AF_UNIX) as theirs:
        theirs.bind(str(neighbour))
        theirs.listen()
        async with serving(endpoint, interceptor, grace=0, log=workshop.log()):
            client = workshop.client(GrpcConnection(endpoint), metrics)
            assert (await client.plugin_info()).name == "test.example.com"
            await client.close()

    assert {path.name for path in workshop.folder.iterdir()} == {"aA.sock", f"{name}.lock"}


def open_files(*names: str) -> list[str]:
    return [name for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink() and (name := str(fd.readlink())) in names]


async def test_serving_leaves_no_file_open(workshop: Workshop):
    names = (str(workshop.folder), str(workshop.folder / "csi.sock.lock"))
    before = open_files(*names)
    async with workshop.ends(Identity()) as ends:
        await ends.client.plugin_info()

    assert open_files(*names) == before


async def test_a_socket_that_somebody_answers_on_is_left_alone_and_named(workshop: Workshop):
    path = str(workshop.folder / "csi.sock")
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(path)
        alive.listen()
        with pytest.raises(SocketInUse, match=path):
            async with workshop.ends(Identity()):
                pass
        with socket.socket(socket.AF_UNIX) as caller:
            caller.connect(path)


async def test_two_servers_never_share_a_socket(workshop: Workshop):
    async with workshop.ends(Identity("first.example.com")) as ends:
        with pytest.raises(SocketInUse):
            async with workshop.ends(Identity("second.example.com")):
                pass
        assert (await ends.client.plugin_info()).name == "first.example.com"


async def test_a_file_that_is_no_socket_is_never_replaced(workshop: Workshop):
    (workshop.folder / "csi.sock").write_text("precious")

    with pytest.raises(SocketUnusable, match=r"csi\.sock"):
        async with workshop.ends(Identity()):
            pass

    assert (workshop.folder / "csi.sock").read_text() == "precious"


async def test_a_missing_folder_is_named_and_not_made(workshop: Workshop):
    interceptor, _ = workshop.interceptor(Identity())
    missing = workshop.folder / "missing"

    with pytest.raises(SocketUnusable, match=str(missing)):
        async with serving(UnixEndpoint(f"{missing}/csi.sock"), interceptor, grace=0, log=workshop.log()):
            pass

    assert not missing.exists()


async def test_stopping_lets_a_call_under_way_finish_and_takes_no_new_one(workshop: Workshop):
    node, stop = SlowNode(), asyncio.Event()
    interceptor, metrics = workshop.interceptor(node)
    endpoint = parse_endpoint(workshop.address)

    async def serve() -> None:
        async with serving(endpoint, interceptor, grace=5.0, log=workshop.log()):
            await stop.wait()

    server = asyncio.ensure_future(serve())
    client = workshop.client(GrpcConnection(endpoint), metrics)
    await client.connected()
    under_way = asyncio.ensure_future(client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
    await node.began.wait()
    stop.set()
    while not any("CSI server stopping" in line for line in workshop.lines):
        await asyncio.sleep(0)
    with pytest.raises(CsiError) as refused:
        while True:
            await client.call(rpc.NODE_UNPUBLISH_VOLUME, csi_pb2.NodeUnpublishVolumeRequest(volume_id="v2"))
    node.go_on.set()
    await under_way
    await server
    await client.close()

    assert node.finished == ["v1"]
    assert not is_final(refused.value)


async def test_what_is_still_running_after_the_grace_period_is_named(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node, grace=0.01) as ends:
        call = asyncio.ensure_future(ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
        await node.began.wait()
        call.cancel()
        unfinished = await ends.interceptor.drain(0.01)
        node.go_on.set()
        assert await ends.interceptor.drain(5.0) == []

    assert unfinished == ["Node.NodePublishVolume on volume v1 (request r-1)"]


async def test_a_client_that_disconnects_in_mid_call_leaves_the_work_to_finish(workshop: Workshop):
    node = SlowNode()
    async with workshop.ends(node) as ends:
        call = asyncio.ensure_future(ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1")))
        await node.began.wait()
        await ends.transport.close()
        with pytest.raises(Cancelled):
            await call
        while "caller stopped waiting" not in ends.logged:
            await asyncio.sleep(0)
        node.go_on.set()
        assert await ends.interceptor.drain(5.0) == []

    assert node.finished == ["v1"]
    assert "caller=gone" in ends.logged


async def test_calls_that_change_nothing_are_quiet_unless_they_fail(short_folder: Path):
    workshop = Workshop("socket", short_folder, level=Level.INFO)
    node = SlowNode()
    node.go_on.set()
    async with workshop.ends(Identity(), node) as ends:
        await ends.client.plugin_info()
        await ends.client.call(rpc.NODE_PUBLISH_VOLUME, publish("v1"))

    assert "GetPluginInfo" not in ends.logged
    assert [line for line in ends.lines if "Node.NodePublishVolume" in line and 'key="volume v1"' in line]


class Broken(BaseException):
    """Neither an error nor the end of a process."""


async def test_what_is_no_error_at_all_is_answered_and_its_secrets_are_printed_nowhere(
    workshop: Workshop, capfd: pytest.CaptureFixture[str]
):
    class Node(services.Node):
        async def NodeStageVolume(self, request: csi_pb2.NodeStageVolumeRequest) -> csi_pb2.NodeStageVolumeResponse:
            raise Broken(f"password {request.secrets['password']}")

    async with workshop.ends(Node()) as ends:
        with pytest.raises(Internal):
            await ends.client.call(
                rpc.NODE_STAGE_VOLUME,
                csi_pb2.NodeStageVolumeRequest(volume_id="v1", secrets={"password": "hunter2"}),
            )
        gc.collect()

    assert "Broken: password ***" in ends.logged
    assert "hunter2" not in ends.logged + "".join(capfd.readouterr())


async def test_a_port_is_chosen_where_none_is_named_and_outsiders_are_warned_about(workshop: Workshop):
    interceptor, _ = workshop.interceptor(Identity())
    async with serving(parse_endpoint("tcp://:0"), interceptor, grace=0, log=workshop.log()) as bound:
        assert str(bound) != "tcp://0.0.0.0:0"

    assert any("no authentication" in line for line in workshop.lines)


async def test_an_address_that_cannot_be_had_is_named(workshop: Workshop):
    interceptor, _ = workshop.interceptor(Identity())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(OSError, match=address):
            async with serving(parse_endpoint(address), interceptor, grace=0, log=workshop.log()):
                pass


async def test_the_umask_of_the_process_is_left_as_it_was(workshop: Workshop):
    before = os.umask(0o022)
    try:
        async with workshop.ends(Identity()):
            during = os.umask(0o022)
    finally:
        os.umask(before)

    assert during == 0o022
