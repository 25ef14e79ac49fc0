"""Ways out of a container that were tried, on the real kernel: none leads to this machine."""

from __future__ import annotations

import asyncio
import os
import select
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from onenode.containers.container_request import Account, Command, LogLimits, VolumePlace
from onenode.kubelet.pods.container_runtime import ContainerRefused, Streams
from onenode.kubelet.pods.exec_session import read_pipe
from support.kubelet.machine_pods import Kubelet, kubelet_in, nothing_left, shell
from support.waiting import HANGS_AFTER, eventually

DESCRIPTORS = range(3, 20)
"""More than a container's first process has open."""
PYTHON = str(Path(sys.executable).resolve())


@pytest.fixture
def folder() -> Iterator[Path]:
    """/tmp is empty for containers, /var/tmp is not."""
    kubelet = Path(tempfile.mkdtemp(prefix="o-", dir="/var/tmp"))
    try:
        with nothing_left(kubelet):
            yield kubelet
    finally:
        shutil.rmtree(kubelet)


def volume(folder: Path) -> tuple[tuple[str, ...], Path]:
    inside = folder / "pods/v/mount"
    inside.mkdir(parents=True)
    return ("pods", "v", "mount"), inside


# ---- what is open in a container's first process ---------------------------------------------------------------------


@pytest.mark.parametrize("who", ["self", "1"])
async def test_no_working_directory_is_a_descriptor_of_ours(folder: Path, who: str):
    async with kubelet_in(folder) as k:
        for number in DESCRIPTORS:
            path = f"/proc/{who}/fd/{number}"
            with pytest.raises(ContainerRefused, match=f"The working directory {path} cannot be entered"):
                await k.containers.start(shell("true", working_folder=path))


async def test_no_working_directory_is_a_descriptor_of_ours_by_a_link_in_a_volume(folder: Path):
    names, mount = volume(folder)
    async with kubelet_in(folder) as k:
        for number in DESCRIPTORS:
            (mount / f"{number}").symlink_to(f"/proc/self/fd/{number}")
            wanted = shell("true", working_folder=f"/v/{number}/below", places=(VolumePlace("/v"),), volumes=(names,))
            with pytest.raises(ContainerRefused, match="cannot be entered"):
                await k.containers.start(wanted)


@pytest.mark.parametrize("who", ["self", "1"])
async def test_no_program_is_found_by_a_descriptor_of_ours(folder: Path, who: str):
    """The log's folder is one that the container's first process has open."""
    logs = folder / "logs/pod-1/main"
    async with kubelet_in(folder) as k:
        await k.run("true")
        (logs / "probe").write_text("#!/bin/sh\necho outside\n")
        (logs / "probe").chmod(0o755)
        for number in DESCRIPTORS:
            with pytest.raises(ContainerRefused, match="exec: "):
                await k.containers.start(shell("", arguments=(f"/proc/{who}/fd/{number}/probe",)))
            with pytest.raises(ContainerRefused, match="exec: "):
                path = (("PATH", f"/proc/{who}/fd/{number}"),)
                await k.containers.start(shell("", arguments=("probe",), environment=path))


async def test_a_command_inside_has_no_descriptor_of_ours_as_its_working_directory(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("echo ready; sleep 1000"))
        await line(k, "ready")
        for path in [f"/proc/{who}/fd/{number}" for who in ("self", "1") for number in DESCRIPTORS]:
            with pytest.raises(ContainerRefused, match="cannot be entered"):
                await run_inside(container, Command(("true",), working_folder=path))
        container.kill()
        await container.ended()


async def test_a_terminal_is_the_user_s_and_nothing_of_ours_is_open_beside_it(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("echo ready; sleep 1000"))
        await line(k, "ready")
        script = "stat -c '%u %a' $(tty); echo open >/dev/tty; ls -m /proc/self/fd; ls -l /proc/self/fd/0 | wc -l"
        running = await container.run_inside(Command(("sh", "-c", script), account=Account(7, 7)), None)
        terminal = running.take_terminal()
        assert terminal is not None
        await running.ended()
        printed = await read_pipe(terminal)
        os.close(terminal)

        assert printed == b"7 620\r\nopen\r\n0, 1, 2, 3\r\n1\r\n"  # 3 is the folder that ls lists
        container.kill()
        await container.ended()


async def test_no_terminal_is_made_of_what_a_volume_has_in_the_place_of_one(folder: Path):
    names, mount = volume(folder)
    os.mkfifo(mount / "ptmx")
    async with kubelet_in(folder) as k:
        where = {"places": (VolumePlace("/dev/pts"),), "volumes": (names,)}
        container = await k.containers.start(shell("echo ready; sleep 1000", **where))
        await line(k, "ready")
        with pytest.raises(ContainerRefused, match="makes no terminals: leave out -t"):
            await container.run_inside(Command(("true",)), None)
        container.kill()
        await container.ended()


@pytest.mark.parametrize("path", ["/made/for/it", "/made/../made/for/./it", "made/for/it"])
async def test_a_missing_working_directory_is_made_for_root(folder: Path, path: str):
    async with kubelet_in(folder) as k:
        lines = (await k.run("pwd -P; stat -c '%u %a' .", working_folder=path, account=Account(7, 7)))[1]

    assert lines == ["/made/for/it", "0 755"]


async def test_a_user_is_put_into_a_working_directory_that_only_root_may_enter(folder: Path):
    """As container runtimes do."""
    names, mount = volume(folder)
    (mount / "deep").mkdir()
    mount.chmod(0o700)
    async with kubelet_in(folder) as k:
        how = {"places": (VolumePlace("/v"),), "volumes": (names,), "account": Account(7, 7)}
        assert await k.run("pwd", working_folder="/v/deep", **how) == (0, ["/v/deep"])


# ---- what is found by a name -----------------------------------------------------------------------------------------


async def test_a_null_device_of_the_tenants_is_not_opened_for_it(folder: Path):
    names, mount = volume(folder)
    async with kubelet_in(folder) as k:
        for number in DESCRIPTORS:
            (mount / "null").unlink(missing_ok=True)
            (mount / "null").symlink_to(f"/proc/self/fd/{number}")
            how = {"places": (VolumePlace("/dev"),), "volumes": (names,), "attempt": number}
            container = await k.containers.start(shell("stat -L -c %F /proc/self/fd/0", **how))
            await container.ended()
            assert k.lines(attempt=number) == ["character special file"]


async def test_a_fifo_in_the_place_of_the_null_device_keeps_no_container_from_starting(folder: Path):
    names, mount = volume(folder)
    os.mkfifo(mount / "null")
    async with kubelet_in(folder) as k:
        assert await k.run("echo ran", places=(VolumePlace("/dev"),), volumes=(names,)) == (0, ["ran"])


async def test_an_empty_volume_can_be_the_devices(folder: Path):
    names, _ = volume(folder)
    async with kubelet_in(folder) as k:
        assert await k.run("ls -A /dev; cat", places=(VolumePlace("/dev"),), volumes=(names,)) == (0, [])


async def test_what_the_kernel_refuses_is_told_as_a_sentence(folder: Path):
    wanted = shell("true")
    root = replace(wanted.request.root, host_name="x" * 65)
    async with kubelet_in(folder) as k:
        with pytest.raises(ContainerRefused, match=r"^The container cannot be made: Invalid argument\.$"):
            await k.containers.start(replace(wanted, request=replace(wanted.request, root=root)))


# ---- the program that a container begins as --------------------------------------------------------------------------

CHANGE_MYSELF = """
import os
path = "/proc/self/exe"
print(os.stat(path).st_ino)
try:
    os.chmod(path, os.stat(path).st_mode & 0o7777)
    print("changed")
except OSError as error:
    print(error.strerror)
"""


async def test_the_program_we_run_by_cannot_be_changed_through_the_command(folder: Path):
    async with kubelet_in(folder) as k:
        lines = await output(k, arguments=("/proc/self/exe", "-I", "-S", "-c", CHANGE_MYSELF))

    assert lines == [str(Path(sys.executable).stat().st_ino), "Read-only file system"]


async def test_the_program_we_run_by_cannot_be_changed_through_a_script(folder: Path):
    names, mount = volume(folder)
    (mount / "script").write_text(f"#!/proc/self/exe\n{CHANGE_MYSELF}")
    (mount / "script").chmod(0o755)
    async with kubelet_in(folder) as k:
        lines = await output(k, arguments=("/v/script",), places=(VolumePlace("/v"),), volumes=(names,))

    assert lines == [str(Path(sys.executable).stat().st_ino), "Read-only file system"]


async def output(k: Kubelet, **how: Any) -> list[str]:
    container = await k.containers.start(shell("", **how))
    await container.ended()
    return k.lines("stdout")


# ---- rights that nobody gave -----------------------------------------------------------------------------------------

NEW_USER = 0x10000000
CALLS = f"""
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def tried(name, *arguments):
    ctypes.set_errno(0)
    result = libc.syscall(*arguments)
    print(name, "done" if result >= 0 else errno.errorcode[ctypes.get_errno()])
number = dict(unshare=272, keyctl=250, add_key=248, bpf=321, perf=298, faults=323, setns=308, mount=165)
if os.uname().machine == "aarch64":
    number = dict(unshare=97, keyctl=219, add_key=217, bpf=280, perf=241, faults=282, setns=268, mount=40)
tried("unshare", number["unshare"], {NEW_USER})
tried("keyctl", number["keyctl"], 0, -3, 1)
tried("add_key", number["add_key"], b"user", b"mine", b"x", 1, -4)
tried("bpf", number["bpf"], 0, None, 0)
tried("perf", number["perf"], None, 0, -1, -1, 0)
tried("faults", number["faults"], 1)
tried("setns", number["setns"], os.open("/proc/self/ns/user", os.O_RDONLY), 0)
tried("mount", number["mount"], b"a", b"/tmp", b"tmpfs", 0, None)
tried("clone3", 435, None, 0)
"""


async def test_calls_that_lead_to_other_rights_are_refused(folder: Path):
    async with kubelet_in(folder) as k:
        lines = await output(k, arguments=(PYTHON, "-I", "-S", "-c", CALLS))

    refused = ["unshare", "keyctl", "add_key", "bpf", "perf", "faults", "setns", "mount"]
    assert lines == [*(f"{name} EPERM" for name in refused), "clone3 ENOSYS"]


@pytest.mark.parametrize("user", [0, 1234])
async def test_there_is_no_way_to_the_cgroups_of_the_machine(folder: Path, user: int):
    script = "mkdir -p /tmp/c; unshare -UrmC sh -c 'mount -t cgroup2 none /tmp/c && cat /tmp/c/cgroup.controllers'"
    async with kubelet_in(folder) as k:
        code, lines = await k.run(script, account=Account(user, user))

    assert code != 0
    assert lines == ["unshare: unshare failed: Operation not permitted"]


async def test_a_command_inside_is_refused_the_same(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("echo ready; sleep 1000"))
        await line(k, "ready")
        assert await run_inside(container, Command(("unshare", "-U", "true"))) == 1
        assert await run_inside(container, Command(("true",))) == 0
        container.kill()
        await container.ended()


ORDINARY = """
import os, subprocess, threading
done = []
threads = [threading.Thread(target=done.append, args=(n,)) for n in range(8)]
[t.start() for t in threads]
[t.join() for t in threads]
child = os.fork()
if child == 0:
    os._exit(3)
print(len(done), os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), subprocess.run(["true"]).returncode)
"""


async def test_threads_forks_and_pipes_work(folder: Path):
    async with kubelet_in(folder) as k:
        assert await output(k, arguments=(PYTHON, "-I", "-S", "-c", ORDINARY)) == ["8 3 0"]
        assert await k.run("(echo a; echo b) | sort -r | head -1") == (0, ["8 3 0", "b"])


async def test_queues_and_shared_memory_are_the_containers_own(folder: Path):
    script = "readlink /proc/self/ns/ipc; echo ready; sleep 1000"
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell(script))
        await line(k, "ready")
        own = k.lines()[0]
        same = f'[ "$(readlink /proc/self/ns/ipc)" = "{own}" ]'
        assert await run_inside(container, Command(("sh", "-c", same))) == 0
        container.kill()
        await container.ended()

    assert own != str(Path("/proc/self/ns/ipc").readlink())


# ---- ends ------------------------------------------------------------------------------------------------------------

GIVE_AWAY = """
import os, socket
with socket.socket(socket.AF_UNIX) as channel:
    channel.connect("/v/s")
    socket.send_fds(channel, [b"x"], [1])
    channel.recv(1)
os.write(1, b"last words")
"""


@pytest.mark.parametrize("then", ["waits", "writes on"])
async def test_a_container_ends_though_somebody_else_has_its_output(folder: Path, then: str):
    names, mount = volume(folder)
    async with kubelet_in(folder) as k:
        with socket.socket(socket.AF_UNIX) as listening, ThreadPoolExecutor() as threads:
            listening.bind(str(mount / "s"))
            listening.listen()
            taking = threads.submit(taken_output, listening, then)
            how = {"places": (VolumePlace("/v"),), "volumes": (names,), "limits": LogLimits(1 << 20)}
            container = await k.containers.start(shell("", arguments=(PYTHON, "-I", "-S", "-c", GIVE_AWAY), **how))
            code = await asyncio.wait_for(container.ended(), HANGS_AFTER)
            taking.result()

        assert code == 0
        assert then == "writes on" or k.lines() == ["last words"]


def taken_output(listening: socket.socket, then: str) -> None:
    """Until the container's end, which nobody but its first process can tell by closing the other end."""
    channel, _ = listening.accept()
    with channel:
        _, (output,), _, _ = socket.recv_fds(channel, 1, 1)
        channel.send(b"x")
    try:
        while then == "writes on":
            os.write(output, b"on and on\n" * 1000)
        poll = select.poll()
        poll.register(output, select.POLLERR)
        assert poll.poll(20_000)
    except BrokenPipeError:
        pass
    finally:
        os.close(output)


async def run_inside(container, command: Command) -> int:
    nothing = os.open("/dev/null", os.O_RDWR)
    try:
        running = await container.run_inside(command, Streams(nothing, nothing, nothing))
    finally:
        os.close(nothing)
    return await running.ended()


async def line(k: Kubelet, text: str) -> None:
    await eventually(lambda: text in k.lines())
