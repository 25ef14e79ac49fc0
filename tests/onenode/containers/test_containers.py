"""Containers on the real kernel: what a command sees, what it cannot reach, and that nothing of it is left."""

from __future__ import annotations

import asyncio
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from onenode.containers import container_launcher
from onenode.containers.container_request import Account, Command, LogLimits, VolumePlace
from onenode.containers.passed_descriptors import received
from onenode.kubelet.pods.container_runtime import ContainerRefused, Streams
from orlop.host.kernel import process_records
from support.host.file_systems import mounted
from support.kubelet.machine_pods import Kubelet, kubelet_in, nothing_left, processes_that_know, shell
from support.places import REPOSITORY
from support.waiting import eventually

SRC = REPOSITORY / "src"


@pytest.fixture
def seen_inside() -> Iterator[Path]:
    """A folder of this machine that containers see: /tmp is empty for them, /var/tmp is not."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/var/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def folder(seen_inside: Path) -> Iterator[Path]:
    kubelet = seen_inside / "kubelet"
    kubelet.mkdir()
    with nothing_left(kubelet):
        yield kubelet


# ---- what a command is given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("script", "code"), [("exit 0", 0), ("exit 7", 7), ("kill -9 $$", 137), ("kill -15 $$", 143)])
async def test_the_exit_code_is_the_commands_own(folder: Path, script: str, code: int):
    async with kubelet_in(folder) as k:
        assert (await k.run(script))[0] == code


async def test_environment_working_directory_and_host_name_are_as_asked(folder: Path):
    async with kubelet_in(folder) as k:
        asked = {"environment": (("GREETING", "hello"), ("EMPTY", "")), "working_folder": "/made/for/it"}
        _, lines = await k.run('echo "$GREETING"; pwd; hostname; env | grep -c EMPTY', **asked)

    assert lines == ["hello", "/made/for/it", "web-0", "1"]


async def test_nothing_of_our_own_environment_is_inherited(folder: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CANARY", "tweet")
    async with kubelet_in(folder) as k:
        _, lines = await k.run("env; cat /proc/1/environ")

    assert not any("tweet" in line for line in lines)


async def test_user_group_and_supplementary_groups_are_as_asked(folder: Path):
    async with kubelet_in(folder) as k:
        _, lines = await k.run("id -u; id -g; id -G", account=Account(1234, 2345, (3456, 4567)))

    assert lines == ["1234", "2345", "2345 3456 4567"]


async def test_another_user_can_open_its_standard_output_by_name(folder: Path):
    async with kubelet_in(folder) as k:
        assert await k.run("echo out > /dev/stdout", account=Account(1234, 1234)) == (0, ["out"])


async def test_a_command_has_no_descriptors_but_its_three(folder: Path):
    async with kubelet_in(folder) as k:
        _, lines = await k.run(
            "for f in 0 1 2 3 4 5 6 7 8 9 10 11 12 13; do [ -e /proc/$$/fd/$f ] && echo $f; done; true"
        )

    assert lines == ["0", "1", "2"]


async def test_a_program_that_is_not_there_is_refused_with_a_sentence(folder: Path):
    async with kubelet_in(folder) as k:
        with pytest.raises(ContainerRefused, match=r'exec: "no-such-thing": executable file not found in \$PATH'):
            await k.containers.start(shell("", arguments=("no-such-thing",)))
        with pytest.raises(ContainerRefused, match=r'exec: "/etc": Permission denied'):
            await k.containers.start(shell("", arguments=("/etc",)))


@pytest.mark.parametrize("word", ["a\0b", "\ud800"])
async def test_words_that_no_program_can_be_given_are_refused(folder: Path, word: str):
    async with kubelet_in(folder) as k:
        with pytest.raises(ContainerRefused, match="cannot be given to a program"):
            await k.containers.start(shell("", arguments=("echo", word)))
        with pytest.raises(ContainerRefused, match="cannot be given to a program"):
            await k.containers.start(shell("true", environment=(("A", word),)))


async def test_a_large_environment_arrives(folder: Path):
    big = tuple((f"NAME_{number}", "x" * 100_000) for number in range(10))
    async with kubelet_in(folder) as k:
        assert await k.run("echo ${#NAME_9}", environment=big) == (0, ["100000"])


# ---- volumes ---------------------------------------------------------------------------------------------------------


def volume(folder: Path, name: str = "v") -> tuple[str, ...]:
    (folder / "pods" / name / "mount").mkdir(parents=True)
    return ("pods", name, "mount")


async def test_what_is_written_to_a_volume_is_there_afterwards(folder: Path):
    source = volume(folder)
    async with kubelet_in(folder) as k:
        code, _ = await k.run(
            "echo hi > /data/new/x || echo hi > /data/x", places=(VolumePlace("/data"),), volumes=(source,)
        )

    assert code == 0
    assert (folder / "pods/v/mount/x").read_text() == "hi\n"


async def test_a_read_only_volume_cannot_be_written(folder: Path):
    source = volume(folder)
    (folder / "pods/v/mount/x").write_text("old")
    async with kubelet_in(folder) as k:
        script = "cat /data/x; echo new > /data/x; touch /data/y; mount -o remount,rw /data"
        code, _ = await k.run(script, places=(VolumePlace("/data", read_only=True),), volumes=(source,))

    assert code != 0
    assert (folder / "pods/v/mount/x").read_text() == "old"
    assert not (folder / "pods/v/mount/y").exists()


async def test_volumes_lie_in_each_other_whatever_their_order(folder: Path):
    inner, outer = volume(folder, "inner"), volume(folder, "outer")
    async with kubelet_in(folder) as k:
        places = (VolumePlace("/data/deep/inner"), VolumePlace("/data"))
        code, _ = await k.run("touch /data/deep/inner/i /data/o", places=places, volumes=(inner, outer))

    assert code == 0
    assert (folder / "pods/inner/mount/i").exists()
    assert (folder / "pods/outer/mount/o").exists()


async def test_a_file_can_be_a_volume(folder: Path):
    volume(folder)
    (folder / "pods/v/mount/file").write_text("content")
    source = ("pods", "v", "mount", "file")
    async with kubelet_in(folder) as k:
        assert await k.run("cat /etc/made", places=(VolumePlace("/etc/made"),), volumes=(source,)) == (0, ["content"])


@pytest.mark.parametrize("path", ["/../escape", "/data/../../x", "/", "/proc/../.."])
async def test_a_mount_path_that_leads_out_is_refused(folder: Path, path: str):
    source = volume(folder)
    async with kubelet_in(folder) as k:
        with pytest.raises(ContainerRefused, match="without `"):
            await k.containers.start(shell("true", places=(VolumePlace(path),), volumes=(source,)))


async def test_a_link_in_the_way_of_a_mount_path_leads_nowhere_outside(folder: Path, seen_inside: Path):
    """A tenant plants links in its volume that point to this machine's folders; the second volume goes through them."""
    planted, other = volume(folder, "planted"), volume(folder, "other")
    target = seen_inside / "machine"
    target.mkdir()
    (folder / "pods/planted/mount/out").symlink_to(target)
    (folder / "pods/planted/mount/up").symlink_to("../../../../../../../../..")
    async with kubelet_in(folder) as k:
        places = (VolumePlace("/data"), VolumePlace("/data/out/sub"))
        code, _ = await k.run("touch /data/out/sub/x", places=places, volumes=(planted, other))
        ups = (VolumePlace("/data"), VolumePlace("/data/up/made-by-link"))
        await k.run("true", places=ups, volumes=(planted, other))

    assert code == 0
    assert (folder / "pods/other/mount/x").exists()
    assert list(target.iterdir()) == []
    assert not Path("/made-by-link").exists()


async def test_a_link_to_nowhere_in_the_way_of_a_mount_path_is_refused(folder: Path):
    planted, other = volume(folder, "planted"), volume(folder, "other")
    (folder / "pods/planted/mount/out").symlink_to("/no/such/place")
    async with kubelet_in(folder) as k:
        places = (VolumePlace("/data"), VolumePlace("/data/out"))
        with pytest.raises(ContainerRefused, match="Nothing can be mounted at /data/out in the container"):
            await k.containers.start(shell("true", places=places, volumes=(planted, other)))

    assert not Path("/no").exists()


async def test_a_volume_that_is_a_link_is_refused(folder: Path):
    volume(folder)
    (folder / "pods/v/link").symlink_to("/etc")
    async with kubelet_in(folder) as k:
        with pytest.raises(ContainerRefused, match="symbolic link"):
            wanted = shell("true", places=(VolumePlace("/data"),), volumes=(("pods", "v", "link"),))
            await k.containers.start(wanted)


# ---- what cannot be reached ------------------------------------------------------------------------------------------


async def test_the_state_folder_and_other_pods_look_empty(folder: Path):
    volume(folder, "somebody-else")
    (folder / "pods/somebody-else/mount/secret").write_text("secret")
    async with kubelet_in(folder) as k:
        look = f"ls -A {folder}; find {folder}; find /proc/*/root{folder}"
        script = f"{look}; touch {folder}/x; umount {folder}; {look}"
        _, lines = await k.run(script)

    assert not any("secret" in line or line == "pods" for line in lines)


async def test_what_is_written_to_the_root_is_not_written_to_the_machine(folder: Path, seen_inside: Path):
    victim = seen_inside / "victim"
    victim.write_text("old")
    async with kubelet_in(folder) as k:
        code, lines = await k.run(
            f"cat {victim}; echo new > {victim}; cat {victim}; touch /made-inside; rm -rf {victim}"
        )

    assert (code, lines) == (0, ["oldnew"])
    assert victim.read_text() == "old"
    assert not Path("/made-inside").exists()


@pytest.fixture
def place_of_programs() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/srv"))
    yield folder
    shutil.rmtree(folder)


async def test_another_disk_with_programs_of_the_machine_is_seen_and_cannot_be_written(
    folder: Path, place_of_programs: Path
):
    with mounted("ext4", place_of_programs) as disk:
        (disk / "file").write_text("on the disk")
        hidden = disk / "state"
        hidden.mkdir()
        (hidden / "secret").write_text("secret")
        opened = hidden / "kubelet"
        opened.mkdir()
        async with kubelet_in(opened) as k:
            wanted = shell(f"cat {disk}/file; echo; touch {disk}/new; ls -A {hidden}", hidden=(str(hidden),))
            container = await k.containers.start(wanted)
            code = await container.ended()
            lines = k.lines()

        assert code == 0
        assert lines[0] == "on the disk"
        assert not any("secret" in line or "kubelet" in line for line in lines)
        assert not (disk / "new").exists()


async def test_a_disk_that_holds_no_programs_is_not_seen_and_not_held_by_any_container(folder: Path, seen_inside: Path):
    with mounted("ext4", seen_inside) as disk:
        (disk / "file").write_text("on the disk")
        device = disk.stat().st_dev
        async with kubelet_in(folder) as k:
            _, lines = await k.run(f"ls -A {disk}; cat /proc/self/mountinfo")

    assert "file" not in lines
    assert lines
    assert not [line for line in lines if f" {os.major(device)}:{os.minor(device)} " in line]


async def test_what_others_have_in_tmp_and_run_is_not_seen(folder: Path, tmp_path: Path):
    (tmp_path / "socket").write_text("somebody's")
    async with kubelet_in(folder) as k:
        _, lines = await k.run("ls -A /tmp /run; stat -c %a /tmp; echo x > /tmp/x; cat /tmp/x", account=Account(7, 7))

    assert tmp_path.is_relative_to("/tmp")
    assert lines == ["/run:", "", "/tmp:", "1777", "x"]


async def test_a_full_root_is_the_containers_own_trouble(folder: Path):
    async with kubelet_in(folder) as k:
        script = "head -c 64M /dev/zero > /big; echo rc $?; wc -c < /big"
        _, lines = await k.run(script, writable_bytes=4 << 20)

    assert "rc 1" in lines
    assert [int(line) <= 4 << 20 for line in lines if line.isdecimal()] == [True]


async def test_a_read_only_root_cannot_be_written(folder: Path):
    async with kubelet_in(folder) as k:
        code, _ = await k.run("touch /x", read_only=True)

    assert code != 0


HOSTILE = [
    "cat /proc/1/environ",
    "ls -L /proc/1/root",
    "cat /proc/1/fd/3",
    "cd /proc/1/cwd && ls",
    "mknod /d b 7 0",
    "mount -t tmpfs none /mnt",
    "echo x > /proc/sys/kernel/hostname",
    "echo 1 > /proc/sys/vm/drop_caches",
    "touch /sys/kernel/x",
    "chroot /proc/1/root true",
    "unshare -m true",
    "nsenter -t 1 -m true",
]


@pytest.mark.parametrize("script", HOSTILE)
async def test_root_in_a_container_cannot(folder: Path, script: str):
    async with kubelet_in(folder) as k:
        code, lines = await k.run(script)

    assert code != 0, lines


async def test_a_container_sees_its_own_processes_alone(folder: Path):
    async with kubelet_in(folder) as k:
        _, lines = await k.run("echo /proc/[0-9]*")

    assert lines == ["/proc/1 /proc/2"]


# ---- ends ------------------------------------------------------------------------------------------------------------


async def test_a_command_is_asked_to_end(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("trap 'exit 5' TERM; echo ready; while :; do sleep 0.01; done"))
        await line(k, "ready")
        container.ask_to_end()

        assert await container.ended() == 5


async def test_a_command_that_does_not_listen_is_killed_with_all_it_started(folder: Path):
    async with kubelet_in(folder) as k:
        script = "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 1000' & echo ready; sleep 1000"
        container = await k.containers.start(shell(script))
        await line(k, "ready")
        container.ask_to_end()
        container.kill()

        assert await container.ended() == 137
        assert len(k.notes()) == 1  # the launcher's


async def test_a_daemon_ends_with_the_command_that_left_it(folder: Path):
    async with kubelet_in(folder) as k:
        code, lines = await k.run("setsid sh -c 'while :; do echo noise; sleep 0.001; done' & sleep 0.05; exit 3")

    assert code == 3
    assert "noise" in lines


async def test_a_command_that_closes_its_output_goes_on(folder: Path):
    async with kubelet_in(folder) as k:
        assert await k.run("echo first; exec >&- 2>&-; sleep 0.05; exit 4") == (4, ["first"])


@pytest.mark.parametrize("turns", [0, 1, 2, 5])
async def test_a_container_that_is_given_up_while_it_starts_does_not_run_on(folder: Path, turns: int):
    async with kubelet_in(folder) as k:
        starting = asyncio.create_task(k.containers.start(shell("sleep 1000")))
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        other = await k.containers.start(shell("exit 0", pod="pod-2"))
        await other.ended()

        await eventually(lambda: len(processes_that_know(folder)) == 1)  # the launcher


async def test_no_container_outlives_its_owner(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))

    assert await container.ended() == 137


async def test_containers_of_a_killed_launcher_end_and_new_ones_begin(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("sleep 1000"))
        launcher = k.containers._launcher
        assert launcher is not None
        os.kill(launcher.pid, signal.SIGKILL)
        launcher._process.wait()

        assert await container.ended() == 137
        assert await k.run("echo again; exit 6") == (6, ["again"])


def test_the_descriptor_of_a_process_is_its_first_message(monkeypatch: pytest.MonkeyPatch):
    """A child that is faster than its launcher waits: without the descriptor, no command could be run inside."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    requests = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    outside = container_launcher._Outside(requests, os.open("/proc/self/ns/pid", os.O_RDONLY))
    open_descriptor = os.pidfd_open

    def open_late(child: int) -> int:
        select.select([ours], [], [], 0.2)  # a child that does not wait sends its message meanwhile
        return open_descriptor(child)

    def send_started() -> NoReturn:
        theirs.send(b"started")
        os._exit(0)

    monkeypatch.setattr(os, "pidfd_open", open_late)
    with ours, theirs, requests:
        container_launcher._fork_told(theirs, outside, send_started)
        words, descriptors = received(ours, 1000, 1)
        os.close(outside.own_processes)

        assert (json.loads(words)["pid"] > 0, len(descriptors)) == (True, 1)
        assert received(ours, 1000, 1) == (b"started", [])
        os.waitid(os.P_PIDFD, descriptors[0], os.WEXITED)
        os.close(descriptors[0])


OWNER = """
import asyncio, os, sys
sys.path[:0] = [{src!r}, {tests!r}]
from support.kubelet.machine_pods import kubelet_in, shell
from pathlib import Path
async def main():
    async with kubelet_in(Path({folder!r})) as k:
        await k.containers.start(shell("trap '' TERM; sleep 1000"))
        print("ready", flush=True)
        await asyncio.sleep(1000)
asyncio.run(main())
"""


async def test_what_a_killed_owner_left_is_ended_by_the_next(folder: Path):
    program = OWNER.format(src=str(SRC), tests=str(SRC.parent / "tests"), folder=str(folder))
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as owner:  # noqa: ASYNC220 - it returns at once
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"ready\n"
        assert len(list((folder / "processes").iterdir())) == 2
        owner.kill()
    async with kubelet_in(folder) as k:
        assert k.notes() == []


async def test_nobody_else_is_ended_for_having_a_number_we_noted(folder: Path):
    with subprocess.Popen(["sleep", "1000"]) as innocent:  # noqa: ASYNC220 - it returns at once
        found = process_records.identity_of_process(innocent.pid)
        assert found is not None
        (folder / "processes").mkdir()
        (folder / "processes" / f"{found.number}.{found.start - 1}.{found.boot}").touch()
        (folder / "processes" / f"{found.number}.{found.start}.other-boot").touch()
        async with kubelet_in(folder) as k:
            assert k.notes() == []
        assert innocent.poll() is None
        innocent.kill()


# ---- output ----------------------------------------------------------------------------------------------------------


async def test_both_streams_are_logged_under_their_names(folder: Path):
    async with kubelet_in(folder) as k:
        await k.run("echo out; echo err >&2; printf unfinished")

        assert k.lines("stdout") == ["out", "unfinished"]
        assert k.lines("stderr") == ["err"]


async def test_a_gibibyte_of_output_takes_no_more_room_than_the_log_may(folder: Path):
    size = "1G" if os.environ.get("ORLOP_SOAK") else "200M"
    limits = LogLimits(file_bytes=1 << 20)
    async with kubelet_in(folder) as k:
        code, _ = await k.run(f"head -c {size} /dev/zero | tr '\\0' x; echo; echo last", limits=limits)

    logs = folder / "logs/pod-1/main"
    assert code == 0
    assert sum(file.stat().st_size for file in logs.iterdir()) <= 2 << 20
    assert (logs / "0.log").read_text().endswith(" stdout F last\n")


async def test_the_logs_of_a_pod_go_with_it(folder: Path):
    async with kubelet_in(folder) as k:
        await k.run("echo x")
        await k.containers.forget_pod("pod-1")
        await k.containers.forget_pod("pod-1")

    assert list((folder / "logs").iterdir()) == []


# ---- commands inside -------------------------------------------------------------------------------------------------


async def test_a_command_inside_sees_what_the_container_sees(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("echo mine > /mine; echo ready; sleep 1000"))
        await line(k, "ready")
        code, out, err = await inside(container, "cat /mine; cat; id -u; echo oops >&2; exit 9", b"typed\n")
        container.kill()
        await container.ended()

    assert (code, out, err) == (9, b"mine\ntyped\n0\n", b"oops\n")


async def test_a_command_inside_ends_with_the_container(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("until [ -e /on ]; do sleep 0.01; done; echo on; sleep 1000"))
        running = asyncio.create_task(inside(container, "touch /on; sleep 1000", b""))
        await line(k, "on")
        container.kill()
        code, _, _ = await running
        await container.ended()

    assert code == 137


async def test_no_command_runs_in_a_container_that_has_ended(folder: Path):
    async with kubelet_in(folder) as k:
        container = await k.containers.start(shell("exit 0"))
        await container.ended()
        with pytest.raises(ContainerRefused, match="is not running"):
            await inside(container, "true", b"")


async def inside(container, script: str, typed: bytes) -> tuple[int, bytes, bytes]:
    (in_read, in_write), (out_read, out_write), (err_read, err_write) = os.pipe(), os.pipe(), os.pipe()
    try:
        running = await container.run_inside(Command(("sh", "-c", script)), Streams(in_read, out_write, err_write))
    finally:
        for descriptor in (in_read, out_write, err_write):
            os.close(descriptor)
        os.write(in_write, typed)
        os.close(in_write)
    out, err = await asyncio.gather(asyncio.to_thread(read_all, out_read), asyncio.to_thread(read_all, err_read))
    return await running.ended(), out, err


def read_all(descriptor: int) -> bytes:
    with open(descriptor, "rb") as file:
        return file.read()


async def line(k: Kubelet, text: str) -> None:
    await eventually(lambda: text in k.lines())
