"""The kubelet's socket over real containers: logs, commands, clients that vanish, and clients that mean harm."""

from __future__ import annotations

import asyncio
import json
import resource
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from conftest import SOAK
from support.host.descriptors import opened
from support.kubelet.kubelet_servers import V4, KubeletUnderTest, exec_target, kubelet_under_test
from support.kubelet.machine_pods import nothing_left
from support.kubelet.websocket_clients import CLOSE, CONTINUATION, PING, TEXT, Heard, frame, handshake
from support.waiting import eventually

LOGS = "/containerLogs/default/p/main"
MEGABYTE = 1 << 20


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    with nothing_left(tmp_path):
        yield tmp_path


def ended(kubelet: KubeletUnderTest) -> bool:
    return not kubelet.pods.all["default/p"].running


async def processes(kubelet: KubeletUnderTest, program: str) -> int:
    """How many of this name run in the container."""
    client = await kubelet.sh(f"cat /proc/[0-9]*/comm | grep -c '^{program}$'")
    return int((await client.to_the_end()).channels[1])


# ---- who may ask, and what there is ----------------------------------------------------------------------------------


async def test_only_root_can_connect(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        assert stat.S_IMODE(kubelet.socket.stat().st_mode) == 0o600


async def test_health_pods_and_statistics_are_told(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")

        assert (await kubelet.get("/healthz"))[1] == b"ok"
        assert [pod["metadata"]["name"] for pod in json.loads((await kubelet.get("/pods"))[1])["items"]] == ["p"]
        assert json.loads((await kubelet.get("/stats/summary"))[1])["node"]["nodeName"] == "n1"
        assert (await kubelet.get("/nonsense"))[0].status == 404
        assert await kubelet.get("/pods", method="HEAD")


@pytest.mark.parametrize("data", [b"nonsense\r\n\r\n", b"GET / HTTP/1.1\r\nbad\r\n\r\n"])
async def test_what_is_no_http_is_a_bad_request(folder: Path, data: bytes):
    async with kubelet_under_test(folder) as kubelet:
        reader, writer = await asyncio.open_unix_connection(str(kubelet.socket))
        writer.write(data)
        assert (await reader.read(100)).startswith(b"HTTP/1.1 400 Bad Request")
        writer.transport.abort()


# ---- logs ------------------------------------------------------------------------------------------------------------


async def test_a_log_is_told_as_it_is_asked_for(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("echo one; sleep 0.1; echo two >&2; sleep 0.1; echo three")
        await eventually(lambda: ended(kubelet))

        assert (await kubelet.get(LOGS))[1] == b"one\ntwo\nthree\n"
        assert (await kubelet.get(f"{LOGS}?tailLines=1"))[1] == b"three\n"
        assert (await kubelet.get(f"{LOGS}?stream=Stderr"))[1] == b"two\n"
        assert (await kubelet.get(f"{LOGS}?limitBytes=5"))[1] == b"one\nt"
        assert b"Z one\n" in (await kubelet.get(f"{LOGS}?timestamps=true"))[1]
        assert (await kubelet.get(f"{LOGS}?sinceSeconds=1000&follow=true"))[1] == b"one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("target", "status", "text"),
    [
        ("/containerLogs/default/q/main", 404, 'pod "q" does not exist'),
        ("/containerLogs/default/..%2Fp/main", 404, 'pod "../p" does not exist'),
        ("/containerLogs/../default/p/main", 404, "404 page not found\n"),
        ("/containerLogs/default/p/..", 404, 'container ".." not found in pod "p"'),
        (f"{LOGS}?previous=true", 400, 'previous terminated container "main" in pod "p" not found'),
        ("/exec/default/q/main?command=x&output=1", 404, "pod does not exist"),
        ("/exec/default/p/..?command=x&output=1", 500, 'container not found ("..")'),
        ("/exec/default/p/main?command=x&output=1", 400, "Upgrade request required"),
    ],
)
async def test_what_is_not_there_is_said_in_kubelets_words(folder: Path, target: str, status: int, text: str):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        head, body = await kubelet.get(target)

        assert (head.status, body.decode()) == (status, text)


async def test_a_container_that_waits_has_no_log(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        seen = await kubelet.run("sleep 1000")
        seen.pod["status"]["containerStatuses"][0]["state"] = {"waiting": {"reason": "ContainerCreating"}}
        head, body = await kubelet.get(LOGS)

        assert head.status == 400
        assert body == b'container "main" in pod "p" is waiting to start: ContainerCreating'


async def test_a_log_that_was_lost_is_told_as_its_only_line(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("true")
        await eventually(lambda: ended(kubelet))
        (folder / "logs" / "uid-p" / "main" / "0.log").unlink()

        assert (await kubelet.get(LOGS))[1].startswith(b"unable to retrieve container logs")


async def test_a_log_is_followed_until_its_container_ends(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("echo first; while [ ! -e /go ]; do sleep 0.01; done; echo last")
        following = asyncio.create_task(kubelet.get(f"{LOGS}?follow=true"))
        await (await kubelet.sh("touch /go")).to_the_end()  # which may end with the container it ends

        assert (await following)[1] == b"first\nlast\n"


async def test_who_stops_following_is_noticed_though_nothing_is_printed(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("echo on; sleep 1000")
        client = await kubelet.open(f"{LOGS}?follow=true")
        await client.head()
        await eventually(lambda: _open_logs(folder) > 0)
        client.close()

        await eventually(lambda: _open_logs(folder) == 0)


def _open_logs(folder: Path) -> int:
    """Only this test's own: others may have theirs open."""
    return sum(path.startswith(f"{folder}/") and path.endswith(".log") for path in opened().values())


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", ["v5.channel.k8s.io", "v4.channel.k8s.io"])
@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)])
async def test_a_command_ends_with_its_code_and_a_close(folder: Path, protocol: str, script: str, code: int):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        heard = await (await kubelet.sh(script, protocol=protocol)).to_the_end()

        assert (heard.code, heard.close_code) == (code, 1000)


async def test_the_streams_of_a_command_are_kept_apart(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("cat; echo err >&2")
        await client.say(0, b"typed ")
        await client.say(0, b"more")
        await client.say(255, b"\0")
        heard = await client.to_the_end()

        assert (heard.channels[1], heard.channels[2], heard.code) == (b"typed more", b"err\n", 0)


async def test_only_what_was_asked_for_is_shown(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        heard = await (await kubelet.sh("cat; echo out; echo err >&2", input="0", error="0")).to_the_end()

        assert heard.channels.keys() == {1, 3}


async def test_a_command_has_its_containers_surroundings(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("cd /; sleep 1000")
        heard = await (await kubelet.sh("hostname; pwd")).to_the_end()

        assert heard.channels[1] == b"web-0\n/\n"


async def test_a_program_that_is_not_there_is_said(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        status = (await (await kubelet.exec("nonsense")).to_the_end()).status

        assert status["reason"] == "InternalError"
        assert "executable file not found" in status["message"]


async def test_commands_are_run_only_where_a_container_runs(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("true")
        await eventually(lambda: ended(kubelet))
        head, body = await kubelet.get(exec_target("true"), *handshake(V4))

        assert (head.status, body) == (500, b'container not found ("main")')


async def test_a_container_that_ends_takes_its_commands_along(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        seen = await kubelet.run("sleep 1000")
        client = await kubelet.sh("echo on; sleep 1000")
        assert await client.frame() == (2, b"\1on\n")
        seen.running["main"].kill()

        assert (await client.to_the_end()).code == 137


async def test_a_client_that_vanishes_ends_its_command(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("echo on; exec tail -f /dev/null")
        assert await client.frame() == (2, b"\1on\n")
        client.close()

        await _gone(kubelet, "tail")


async def test_a_client_that_closes_ends_its_command_and_is_answered(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("echo on; exec tail -f /dev/null")
        assert await client.frame() == (2, b"\1on\n")
        await client.send(frame((1000).to_bytes(2, "big"), CLOSE))

        assert (await client.to_the_end()).close_code == 1000
        await _gone(kubelet, "tail")


async def test_a_client_that_vanishes_while_nobody_reads_its_input_ends_its_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
):
    async with kubelet_under_test(folder) as kubelet:
        monkeypatch.setattr("onenode.kubelet.server.exec_stream.UNASKED_PONG_SECONDS", 0.05)
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("exec tail -f /dev/null")
        client.writer.write(frame(b"\0" + b"x" * (4 * MEGABYTE)))
        assert (await client.frame()) == (10, b"")  # a pong nobody asked for: it is stuck, and alive
        client.close()

        await _gone(kubelet, "tail")


async def _gone(kubelet: KubeletUnderTest, program: str) -> None:
    client = await kubelet.sh(f"while grep -qx {program} /proc/[0-9]*/comm; do sleep 0.01; done; echo gone")
    assert (await client.to_the_end()).channels[1] == b"gone\n"


async def test_input_that_a_command_has_closed_holds_nothing_up(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("exec <&-; while [ ! -e /go ]; do sleep 0.01; done; exit 5")
        client.writer.write(frame(b"\0" + b"x" * (4 * MEGABYTE)))
        await client.send(frame(b"still here", PING))
        opcode, data = await client.frame() or (0, b"")
        assert (opcode, data) == (10, b"still here")
        await (await kubelet.sh("touch /go")).to_the_end()

        assert (await client.to_the_end()).code == 5


async def test_fifty_commands_run_side_by_side(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")

        async def one(number: int) -> Heard:
            client = await kubelet.sh(f"cat; exit {number}")
            await client.say(0, b"%d" % number)
            await client.say(255, b"\0")
            return await client.to_the_end()

        heard = await asyncio.gather(*(one(number) for number in range(50)))
        assert [(each.code, each.channels[1]) for each in heard] == [(n, b"%d" % n) for n in range(50)]


async def test_large_output_takes_no_memory_and_waits_for_its_reader(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        client = await kubelet.sh("head -c 104857600 /dev/zero")
        total = 0
        while (got := await client.frame()) is not None and got[0] != CLOSE:
            total += len(got[1]) - 1 if got[1][:1] == b"\1" else 0
        client.close()

        assert total == 100 * MEGABYTE
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_large_input_arrives_whole(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("wc -c")
        # The client masks each byte in Python: a second for two megabytes.
        megabytes = 16 if SOAK else 4
        for _ in range(megabytes):
            await client.say(0, b"x" * MEGABYTE)
        await client.say(255, b"\0")

        assert (await client.to_the_end()).channels[1].strip() == b"%d" % (megabytes * MEGABYTE)


# ---- clients that mean harm ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (frame(b"\0x", mask=None), 1002),
        (frame(b"\0x", TEXT), 1003),
        (frame(b"x" * 126, PING), 1002),
        (frame(b"x", CONTINUATION), 1002),
        (frame(b"\0", claims=2**63), 1002),
    ],
)
async def test_a_client_that_breaks_the_protocol_is_told_and_its_command_ends(folder: Path, data: bytes, code: int):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("exec tail -f /dev/null")
        await client.send(data)

        assert (await client.to_the_end()).close_code == code
        await _gone(kubelet, "tail")


async def test_fragments_and_control_frames_in_between_do_no_harm(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("cat")
        await client.send(frame(b"", fin=False) + frame(b"one", PING) + frame(b"\0ab", CONTINUATION, fin=False))
        await client.send(frame(b"", CONTINUATION, fin=False) + frame(b"two", PING) + frame(b"cd", CONTINUATION))
        await client.send(frame(b"\xff\0"))
        heard = await client.to_the_end()

        assert (heard.channels[1], heard.pongs) == (b"abcd", [b"one", b"two"])


async def test_channels_that_are_not_the_clients_are_passed_over(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("cat")
        for channel in (1, 2, 3, 4, 77, 254):
            await client.say(channel, b"nonsense")
        await client.send(frame(b""))
        await client.say(255, b"\7")
        await client.say(0, b"typed")
        await client.say(255, b"\0")

        assert (await client.to_the_end()).channels[1] == b"typed"


async def test_with_v4_a_channel_cannot_be_closed(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("head -c 5", protocol=V4)
        await client.say(255, b"\0")
        await client.say(0, b"typed")

        assert (await client.to_the_end()).channels[1] == b"typed"


async def test_a_frame_that_claims_more_than_there_is_memory_is_typed_as_it_comes(folder: Path):
    async with kubelet_under_test(folder) as kubelet:
        await kubelet.run("sleep 1000")
        client = await kubelet.sh("head -c 5")
        await client.send(frame(b"\0typed", claims=2**62))

        assert (await client.to_the_end()).channels[1] == b"typed"
