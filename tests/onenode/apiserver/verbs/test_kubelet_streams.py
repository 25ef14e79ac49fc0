"""kubectl's logs and commands, through the API server, to pods of this machine."""

from __future__ import annotations

import asyncio
import json
import resource
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlencode

import pytest

from orlop.kube.kinds import POD, ROLE, ROLE_BINDING
from support.api.api_objects import container, pod
from support.kubelet.machine_pods import nothing_left
from support.kubelet.streaming_machines import StreamingMachine, streaming_machine
from support.kubelet.websocket_clients import CLOSE, frame, handshake
from support.waiting import eventually, eventually_answered

V5, V4 = "v5.channel.k8s.io", "v4.channel.k8s.io"
PODS = "/api/v1/namespaces/default/pods"
NOT_REACHED = "error trying to reach service: the kubelet of node"
MEGABYTE = 1 << 20
SPDY = {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS": "false"}


@pytest.fixture
def folder(short_folder: Path) -> Iterator[Path]:
    with nothing_left(short_folder):
        yield short_folder


def exec_target(script: str, name: str = "p", **more: str) -> str:
    options = {"container": "main", "stdin": "true", "stdout": "true", "stderr": "true", **more}
    command = [("command", word) for word in ("sh", "-c", script)]
    return f"{PODS}/{name}/exec?{urlencode([*command, *options.items()])}"


async def gone(m: StreamingMachine, program: str, name: str = "p") -> None:
    ran = await m.kubectl(
        "exec", name, "--", "sh", "-c", f"while grep -qx {program} /proc/[0-9]*/comm; do sleep 0.01; done; echo gone"
    )
    assert ran.out == b"gone\n", ran


# ---- logs ------------------------------------------------------------------------------------------------------------


async def test_kubectl_reads_logs_in_every_way(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("echo one; echo two; echo three")
        await m.in_phase("p", "Succeeded")

        assert (await m.kubectl("logs", "p")).out == b"one\ntwo\nthree\n"
        assert (await m.kubectl("logs", "p", "--tail=1")).out == b"three\n"
        assert (await m.kubectl("logs", "p", "-c", "main", "--since=1h")).out == b"one\ntwo\nthree\n"
        assert (await m.kubectl("logs", "p", "--limit-bytes=5")).out == b"one\nt"
        assert (await m.kubectl("logs", "-f", "p")).out == b"one\ntwo\nthree\n"
        stamped = (await m.kubectl("logs", "p", "--timestamps")).out.splitlines()
        assert [line.partition(b"Z ")[2] for line in stamped] == [b"one", b"two", b"three"]


async def test_kubectl_follows_a_log_until_the_container_ends(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("echo first; while [ ! -e /go ]; do sleep 0.01; done; echo last")
        following = await m.begin("logs", "-f", "p")
        assert following.stdout is not None
        assert await following.stdout.readline() == b"first\n"
        await m.kubectl("exec", "p", "--", "touch", "/go")  # which may end with the container it ends

        assert await following.communicate() == (b"last\n", b"")
        assert following.returncode == 0


async def test_the_log_of_the_attempt_before_can_be_read(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("echo attempt; test -e /seen || exit 1", restartPolicy="OnFailure")

        async def restarted() -> bool:
            found = await m.in_phase("p", "Running", "Pending")
            return found["status"]["containerStatuses"][0]["restartCount"] > 0

        await eventually_answered(restarted)
        assert (await m.kubectl("logs", "-p", "p")).out == b"attempt\n"


async def test_what_stands_against_a_log_is_said_in_kubernetes_words(folder: Path):
    async with streaming_machine(folder) as m:
        both = [container("a", command=["sleep", "9"]), container("b", command=["sleep", "9"])]
        await m.make("", containers=both)
        await m.client.create(POD, pod("nowhere"), namespace="default")
        await m.client.create(POD, pod("away", nodeName="gone"), namespace="default")
        await m.client.create(POD, pod("lost", nodeName="unknown"), namespace="default")

        asked = {
            f"{PODS}/q/log": (404, 'pods "q" not found'),
            f"{PODS}/p/log": (400, "a container name must be specified for pod p, choose one of: [a b]"),
            f"{PODS}/p/log?container=..": (400, "container .. is not valid for pod p"),
            f"{PODS}/p/log?container=a&previous=true": (
                400,
                'previous terminated container "a" in pod "p" not found',
            ),
            f"{PODS}/p/log?container=a&tailLines=x": (400, 'strconv.ParseInt: parsing "x": invalid syntax'),
            f"{PODS}/p/log?container=a&tailLines=-1": (
                422,
                'PodLogOptions "p" is invalid: tailLines: Invalid value: -1: must be greater than or equal to 0',
            ),
            f"{PODS}/away/log": (
                503,
                f'{NOT_REACHED} "gone" cannot be connected to: no such file or directory',
            ),
            f"{PODS}/lost/log": (
                503,
                f'{NOT_REACHED} "unknown" is not known here',
            ),
        }
        for path, (status, message) in asked.items():
            answer = await m.on.ask("GET", path)
            assert (answer.status, answer.body["message"]) == (status, message), path
        assert (await m.on.ask("GET", f"{PODS}/nowhere/log")).status == 204
        assert (await m.on.ask("DELETE", f"{PODS}/p/log")).status == 405


# ---- commands --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("true", 0), ("exit 3", 3), ("kill -9 $$", 137)])
async def test_kubectl_ends_with_the_commands_code(folder: Path, script: str, code: int):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        ran = await m.kubectl("exec", "p", "--", "sh", "-c", script)

        assert ran.code == code
        assert ran.err == (f"command terminated with exit code {code}\n" if code else "")


async def test_kubectl_types_and_reads_each_stream_apart(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        ran = await m.kubectl("exec", "-i", "p", "-c", "main", "--", "sh", "-c", "cat; echo err >&2", stdin=b"typed\n")

        assert (ran.code, ran.out, ran.err) == (0, b"typed\n", "err\n")


async def test_a_kubectl_that_asks_for_spdy_is_told_so_in_one_sentence(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        ran = await m.kubectl("exec", "p", "--", "true", **SPDY)

        assert ran.code == 1
        assert "commands are run over WebSocket here and not over SPDY: use kubectl 1.31 or newer" in ran.err
        assert len(ran.err.splitlines()) == 1


async def test_what_stands_against_a_command_is_what_kubectl_shows(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")

        missing = await m.kubectl("exec", "p", "--", "nonsense")
        assert (missing.code, "executable file not found" in missing.err) == (1, True), missing
        other = await m.kubectl("exec", "p", "-c", "x", "--", "true")
        assert "container x is not valid for pod p" in other.err


async def test_kubectl_has_a_terminal_with_its_size_its_signals_and_its_exit_code(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        async with m.kubectl_on_terminal("exec", "-it", "p", "--", "sh") as shell:
            await shell.types("while [ \"$(stty size)\" != '24 100' ]; do sleep 0.01; done; echo fi''rst\r")
            await shell.shows("first")
            shell.resize(width=120, height=40)
            await shell.types("while [ \"$(stty size)\" != '40 120' ]; do sleep 0.01; done; echo re''sized\r")
            await shell.shows("resized")
            # A signal between two commands, or while one is forked, would be lost: only `wait` is always interrupted.
            await shell.types('sh -c \'trap "exit 130" INT; echo be""gun; sleep 999 & wait\'\r')
            await shell.shows("begun")
            await shell.types("\x03")
            await shell.types("echo it ended with $?; exit 7\r")
            await shell.shows("it ended with 130")

            assert await shell.ended() == 7


async def test_kubectl_that_is_killed_leaves_nothing_of_its_terminal(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        async with m.kubectl_on_terminal("exec", "-it", "p", "--", "sh") as shell:
            await shell.types("echo be''gun; exec tail -f /dev/null\r")
            await shell.shows("begun")
            shell.kill()

        await gone(m, "tail")


async def test_kubectl_copies_files_both_ways(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("mkdir /data; sleep 1000")
        (folder / "here").write_bytes(b"x" * MEGABYTE)
        there = await m.kubectl("cp", str(folder / "here"), "p:/data/there")
        back = await m.kubectl("cp", "p:/data/there", str(folder / "back"))

        assert (there.code, back.code) == (0, 0), (there, back)
        assert (folder / "back").read_bytes() == b"x" * MEGABYTE


@pytest.mark.parametrize("protocol", [V5, V4])
async def test_both_protocols_are_spoken(folder: Path, protocol: str):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        async with m.websocket(exec_target("head -c 5; exit 7"), *handshake(protocol)) as client:
            status, headers = await client.head()
            assert (status, headers["sec-websocket-protocol"]) == (101, protocol)
            await client.say(0, b"typed")
            heard = await client.to_the_end()

        assert (heard.channels[1], heard.code, heard.close_code) == (b"typed", 7, 1000)


async def test_a_command_needs_the_right_to_create_it(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        rule = {"apiGroups": [""], "resources": ["pods/exec", "pods/log"], "verbs": ["get"]}
        await m.client.create(ROLE, {"metadata": {"name": "r"}, "rules": [rule]}, namespace="default")
        reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
        subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "eve"}
        binding = {"metadata": {"name": "b"}, "roleRef": reference, "subjects": [subject]}
        await m.client.create(ROLE_BINDING, binding, namespace="default")

        async with m.websocket(exec_target("true"), *handshake(V5), token="eve") as client:
            status, headers = await client.head()
            body = json.loads(await client.reader.readexactly(int(headers["content-length"])))
        assert status == 403
        assert body["message"].startswith('pods "p" is forbidden: User "eve" cannot create resource "pods/exec"')
        async with m.websocket(f"{PODS}/p/log", token="eve") as client:
            assert (await client.head())[0] == 200
        async with m.websocket(f"{PODS}/p/log", token="mallory") as client:
            assert (await client.head())[0] == 403


async def test_a_client_that_vanishes_ends_its_command_and_frees_the_connection(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        process = await m.begin("exec", "p", "--", "sh", "-c", "echo on; exec tail -f /dev/null")
        assert process.stdout is not None
        assert await process.stdout.readline() == b"on\n"
        process.kill()
        await process.communicate()

        await gone(m, "tail")
        await eventually(lambda: m.edge.connections() == 0)


async def test_large_output_goes_through_with_bounded_memory(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        process = await m.begin("exec", "p", "--", "head", "-c", str(100 * MEGABYTE), "/dev/zero")
        assert process.stdout is not None
        total = 0
        while piece := await process.stdout.read(MEGABYTE):
            total += len(piece)
        await process.communicate()

        assert (process.returncode, total) == (0, 100 * MEGABYTE)
        assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 32 * 1024


async def test_a_reader_who_takes_his_time_is_waited_for_and_holds_the_command(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        script = "head -c 67108864 /dev/zero; echo done > /done"
        async with m.websocket(exec_target(script), *handshake(V5)) as client:
            await client.head()
            ran = await m.kubectl("exec", "p", "--", "sh", "-c", "sleep 0.3; test -e /done")
            assert ran.code == 1
            total = 0
            while (got := await client.frame()) is not None and got[0] != CLOSE:
                total += len(got[1]) - 1 if got[1][:1] == b"\1" else 0

        assert total == 64 * MEGABYTE


async def test_large_input_goes_through(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        ran = await m.kubectl("exec", "-i", "p", "--", "wc", "-c", stdin=b"x" * (20 * MEGABYTE))

        assert ran.out.strip() == b"%d" % (20 * MEGABYTE)


async def test_fifty_commands_run_side_by_side(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")

        async def one(number: int) -> int:
            async with m.websocket(exec_target(f"exit {number}"), *handshake(V5)) as client:
                assert (await client.head())[0] == 101
                return (await client.to_the_end()).code

        assert await asyncio.gather(*(one(number) for number in range(50))) == list(range(50))


async def test_frames_that_come_with_the_request_and_those_that_harm_reach_the_kubelet(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        async with m.websocket(exec_target("cat"), *handshake(V5)) as client:
            await client.send(frame(b"\0early") + frame(b"\xff\0"))
            assert (await client.head())[0] == 101
            assert (await client.to_the_end()).channels[1] == b"early"
        async with m.websocket(exec_target("cat"), *handshake(V5)) as client:
            assert (await client.head())[0] == 101
            await client.send(frame(b"\0x", mask=None))
            assert (await client.to_the_end()).close_code == 1002


async def test_a_server_that_stops_ends_what_is_open(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        opened = m.websocket(exec_target("exec tail -f /dev/null"), *handshake(V5))
        client = await opened.__aenter__()
        assert (await client.head())[0] == 101
    assert (await client.frame()) is None
    await opened.__aexit__(None, None, None)


# ---- nodes -----------------------------------------------------------------------------------------------------------


async def test_a_nodes_proxy_leads_to_its_kubelet(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")

        summary = await m.kubectl("get", "--raw", "/api/v1/nodes/n1/proxy/stats/summary")
        assert json.loads(summary.out)["node"]["nodeName"] == "n1"
        assert (await m.kubectl("get", "--raw", "/api/v1/nodes/n1/proxy/healthz")).out == b"ok"
        assert (await m.kubectl("get", "--raw", "/api/v1/nodes/https:n1:10250/proxy/healthz")).out == b"ok"
        pods = json.loads((await m.kubectl("get", "--raw", "/api/v1/nodes/n1/proxy/pods/")).out)
        assert [one["metadata"]["name"] for one in pods["items"]] == ["p"]
        assert (await m.on.ask("GET", "/api/v1/nodes/nobody/proxy/pods")).body["message"] == 'nodes "nobody" not found'
        assert (await m.on.ask("GET", "/api/v1/nodes/gone/proxy/pods")).status == 503
        assert (await m.on.ask("POST", "/api/v1/nodes/n1/proxy/pods")).status == 405
        assert (await m.on.ask("GET", "/api/v1/nodes/n1/proxy/a/../pods")).status == 404


async def test_a_nodes_proxy_runs_no_commands(folder: Path):
    async with streaming_machine(folder) as m:
        await m.make("sleep 1000")
        target = "/api/v1/nodes/n1/proxy/exec/default/p/main?command=true&output=1"
        async with m.websocket(target, *handshake(V5)) as client:
            status, _ = await client.head()

        assert status == 400
