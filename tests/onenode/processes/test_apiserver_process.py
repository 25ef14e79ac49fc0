"""`orlop apiserver` as people run it: a process with a state folder, and kubectl beside it."""

from __future__ import annotations

import asyncio
import json
import re
import resource
import shutil
import signal
import socket
import stat
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pytest

from conftest import SOAK, folder_with_a_short_name
from support.host.file_systems import mounted
from support.processes.kubectl_commands import Kubectl
from support.processes.orlop_process import Running, run, run_here, running, tree
from support.waiting import eventually, eventually_there


@asynccontextmanager
async def apiserver(folder: Path, *flags: str) -> AsyncIterator[tuple[Running, Kubectl]]:
    state = folder / "state"
    with running(folder, "apiserver", "--state", str(state), *flags) as process:
        await process.says("use it with")
        yield process, Kubectl(state / "kubeconfig", folder / "home")


@dataclass(frozen=True)
class Serving:
    """One server for all tests that change nothing of it."""

    folder: Path
    process: Running
    kubectl: Kubectl


@contextmanager
def served(folder: Path) -> Iterator[Running]:
    with running(folder, "apiserver", "--state", str(folder / "state")) as process:
        eventually_there(lambda: "use it with" in process.logged() or process.ended())
        yield process


@pytest.fixture(scope="module")
def serving() -> Iterator[Serving]:
    with folder_with_a_short_name() as folder, served(folder) as process:
        yield Serving(folder, process, Kubectl(folder / "state" / "kubeconfig", folder / "home"))


@pytest.fixture(scope="module")
def stopped_state() -> Iterator[Path]:
    """The state folder of one that was told to stop."""
    with folder_with_a_short_name() as folder, served(folder) as process:
        process.signal(signal.SIGTERM)
        assert process.process.wait() == 0, process.logged()
        yield folder / "state"


@pytest.fixture
def old_state(stopped_state: Path, short_folder: Path) -> Path:
    """A copy of it, for one test."""
    return Path(shutil.copytree(stopped_state, short_folder / "state"))


async def test_kubectl_works_as_the_printed_line_says_until_it_is_told_to_stop(short_folder: Path):
    async with apiserver(short_folder) as (server, kubectl):
        line = f"kubectl --kubeconfig {short_folder}/state/kubeconfig get ns"
        namespaces = kubectl.ok("get", "ns", "-o", "name")
        version = json.loads(kubectl.ok("version", "-o", "json"))
        told = server.logged()
        server.signal(signal.SIGTERM)
        code = await server.exit_code()

    assert line in told
    assert "namespace/default" in namespaces
    assert version["serverVersion"]["gitVersion"] == "v1.37.0+orlop"
    assert code == 0
    assert not (short_folder / "state" / "api.sock").exists()


def test_the_state_is_its_owners_alone(serving: Serving):
    state = serving.folder / "state"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in state.iterdir()}

    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    assert set(modes.values()) == {0o600}
    assert {"kubeconfig", "objects.db", "ca.crt", "server.key", "admin.token", "api.sock"} <= set(modes)


async def test_no_secret_is_logged(short_folder: Path):
    async with apiserver(short_folder, "--v=5") as (server, kubectl):
        kubectl.ok("create", "secret", "generic", "s", "--from-literal=k=planted-secret")
        token = (short_folder / "state" / "admin.token").read_text().strip()
        logged = server.logged()

    assert token not in logged
    assert "planted-secret" not in logged


async def test_what_was_acknowledged_and_who_one_is_survive_a_kill(short_folder: Path):
    async with apiserver(short_folder) as (server, kubectl):
        kubectl.ok("create", "configmap", "kept", "--from-literal=a=b")
        before = (short_folder / "state" / "admin.token").read_text()
        server.signal(signal.SIGKILL)
        await server.exit_code()
    async with apiserver(short_folder) as (_, kubectl):
        assert kubectl.ok("get", "configmap", "kept", "-o", "jsonpath={.data.a}") == "b"
        assert (short_folder / "state" / "admin.token").read_text() == before


def test_a_second_process_on_the_folder_is_refused_and_harms_nothing(serving: Serving):
    second = run("apiserver", "--state", str(serving.folder / "state"))
    still = serving.kubectl.ok("get", "ns", "default", "-o", "name")

    assert second.returncode == 1
    assert "is in use by process" in second.stderr
    assert "Traceback" not in second.stderr
    assert still == "namespace/default\n"


NEWER = (99).to_bytes(4)


def corrupt(database: Path) -> None:
    database.write_bytes(b"not a database" * 100)


def make_newer(database: Path) -> None:
    header = bytearray(database.read_bytes())
    header[60:64] = NEWER
    database.write_bytes(header)


@pytest.mark.parametrize(("spoil", "sentence"), [(corrupt, "is not a database"), (make_newer, "by a newer")])
def test_a_database_that_is_none_of_ours_is_refused_and_left_as_it_is(spoil, sentence: str, old_state: Path):
    database = old_state / "objects.db"
    spoil(database)
    spoiled = database.read_bytes()

    ended = run_here("apiserver", "--state", str(old_state))

    assert ended.returncode == 1
    assert sentence in ended.stderr
    assert "Traceback" not in ended.stderr
    assert database.read_bytes() == spoiled


SPOILED = [("ca.key", "remove both"), ("tokens.key", "every token ends"), ("admin.token", "a new one is made")]


@pytest.mark.parametrize(("name", "sentence"), SPOILED, ids=[name for name, _ in SPOILED])
def test_a_spoiled_key_is_named_with_what_to_do(name: str, sentence: str, old_state: Path):
    (old_state / name).write_text("x")

    ended = run_here("apiserver", "--state", str(old_state))

    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert name in ended.stderr
    assert sentence in ended.stderr


FOLDERS = ["kubeconfig", "tokens.key", "admin.token", "ca.key", "server.crt", "objects.db", "objects.lock"]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_in_the_place_of_a_file_is_named_in_a_sentence(name: str, old_state: Path):
    (old_state / name).unlink()
    (old_state / name).mkdir()

    ended = run_here("apiserver", "--state", str(old_state))

    assert (ended.returncode, "Traceback" in ended.stderr) == (1, False)
    assert name in ended.stderr


@pytest.mark.parametrize("largest_file", [0, 300, 1_000, 5_000, 20_000, 25_000, 30_000] if SOAK else [0, 25_000])
async def test_a_disk_with_too_little_room_is_told_in_a_sentence_and_harms_nothing(
    largest_file: int, short_folder: Path
):
    (short_folder / "state").mkdir()
    code = (
        f"import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, ({largest_file}, {largest_file})); "
        f"from orlop.__main__ import main; sys.argv = ['orlop', 'apiserver', '--state', '{short_folder}/state']; main()"
    )
    with running(
        short_folder, program=["/bin/sh", "-c", 'exec "$@" 2>&1 | cat', "sh", sys.executable, "-c", code]
    ) as it:
        await it.exit_code()

    assert "start again" in it.logged()
    assert "Traceback" not in it.logged()
    assert list((short_folder / "state").glob("*.new*")) == []
    async with apiserver(short_folder) as (_, kubectl):
        assert kubectl.ok("get", "ns", "default", "-o", "name") == "namespace/default\n"


async def test_a_folder_that_is_there_keeps_its_mode(short_folder: Path):
    (short_folder / "state").mkdir(mode=0o755)
    (short_folder / "state").chmod(0o755)
    async with apiserver(short_folder):
        assert stat.S_IMODE((short_folder / "state").stat().st_mode) == 0o755


async def test_without_cryptography_it_says_what_to_install(short_folder: Path):
    code = (
        "import sys; sys.modules['cryptography'] = None; from orlop.__main__ import main; "
        f"sys.argv = ['orlop', 'apiserver', '--state', '{short_folder}/state']; main()"
    )
    with running(short_folder, program=[sys.executable, "-c", code]) as process:
        ended = await process.exit_code()

    assert ended == 1
    assert "pip install 'orlop[onenode]'" in process.logged()
    assert "Traceback" not in process.logged()
    assert not (short_folder / "state").exists()


WRONG_FLAGS = [
    ([], ["--state", "required"]),
    (["--state", "/dev/null"], ["--state", "no folder"]),
    (["--state", "x", "--listen", "0.0.0.0:1"], ["--listen", "127.0.0.1"]),
    (["--state", "x", "--listen", "nonsense"], ["--listen", "'nonsense'"]),
    (["--state", "x", "--max-connections", "0"], ["--max-connections", "1 or more"]),
    (["--state", "x", "--max-connections", "many"], ["--max-connections", "'many'"]),
]


@pytest.mark.parametrize(("flags", "named"), WRONG_FLAGS, ids=[" ".join(flags) for flags, _ in WRONG_FLAGS])
def test_a_wrong_flag_is_named_before_anything_is_made(flags: list[str], named: list[str], tmp_path: Path):
    flags = [str(tmp_path / flag) if flag == "x" else flag for flag in flags]

    ended = run_here("apiserver", *flags)

    assert ended.returncode == 2
    assert [text for text in named if text not in ended.stderr] == []
    assert tree(tmp_path) == []


def test_an_address_in_use_is_named(serving: Serving, short_folder: Path):
    address = serving.process.logged().partition("https://")[2].split()[0].strip('"')
    second = run_here("apiserver", "--state", str(short_folder / "other"), "--listen", address)

    assert second.returncode == 1
    assert address in second.stderr


async def test_a_watch_ends_properly_when_the_server_is_told_to_stop(short_folder: Path):
    async with apiserver(short_folder) as (server, _):
        reader, writer = await asyncio.open_unix_connection(str(short_folder / "state" / "api.sock"))
        writer.write(b"GET /api/v1/namespaces?watch=true HTTP/1.1\r\nHost: x\r\n\r\n")
        first = await reader.readuntil(b"kube-system")
        server.signal(signal.SIGTERM)
        rest = await reader.read()
        writer.close()
        code = await server.exit_code()

    assert first.startswith(b"HTTP/1.1 200")
    assert rest.endswith(b"0\r\n\r\n")
    assert code == 0


async def test_pods_are_given_the_ca_of_the_server_also_when_it_was_made_anew(short_folder: Path):
    state = short_folder / "state"
    async with apiserver(short_folder) as (server, _):
        server.signal(signal.SIGTERM)
        await server.exit_code()
    before = (state / "ca.crt").read_text()
    for name in ("ca.crt", "ca.key", "server.crt", "server.key"):
        (state / name).unlink()
    async with apiserver(short_folder) as (_, kubectl):
        told = json.loads(kubectl.ok("get", "configmap", "kube-root-ca.crt", "-o", "json"))["data"]["ca.crt"]

    assert told == (state / "ca.crt").read_text() != before


async def test_it_is_not_ready_while_nothing_can_be_written(short_folder: Path):
    async with apiserver(short_folder) as (server, kubectl):
        assert kubectl.ok("get", "--raw", "/readyz") == "ok"
        before = resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE)
        largest = (short_folder / "state" / "objects.db-wal").stat().st_size
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, (largest, before[1]))
        refused = kubectl.run("create", "configmap", "a")
        while_full = kubectl.run("get", "--raw", "/readyz")
        alive = kubectl.ok("get", "--raw", "/livez")
        resource.prlimit(server.process.pid, resource.RLIMIT_FSIZE, before)

        await eventually(lambda: kubectl.run("get", "--raw", "/readyz").stdout == "ok")

    assert refused.returncode == 1
    assert "[-]storage failed: the last change could not be made durable" in while_full.stderr
    assert alive == "ok"


async def test_on_a_full_disk_objects_are_deleted_with_kubectl_and_none_is_created(short_folder: Path):
    with mounted("tmpfs", short_folder, "size=32m") as disk:
        async with apiserver(disk) as (_, kubectl):
            kubectl.ok("create", "configmap", "a", "--from-literal=a=b")
            filler = disk / "filler"
            with suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(1 << 16)):
                    pass
            names = (f"refused{number}" for number in range(100))
            refused = next(ran for name in names if (ran := kubectl.run("create", "configmap", name)).returncode)
            kubectl.ok("delete", "configmap", "a", "--wait=false")
            left = kubectl.run("get", "configmap", "a")
            filler.unlink()
            kubectl.ok("create", "configmap", "a")

    assert "the disk is full: delete objects, or make room on it" in refused.stderr
    assert "not found" in left.stderr


async def test_the_port_stays_the_same_where_it_can(short_folder: Path):
    async with apiserver(short_folder) as (server, _):
        first = (short_folder / "state" / "kubeconfig").read_text()
        server.signal(signal.SIGTERM)
        await server.exit_code()
    async with apiserver(short_folder):
        second = (short_folder / "state" / "kubeconfig").read_text()

    assert first == second


async def test_another_port_is_taken_where_the_old_one_is_in_use(short_folder: Path):
    async with apiserver(short_folder) as (server, _):
        url = re.search(r"https://127.0.0.1:([0-9]+)", (short_folder / "state" / "kubeconfig").read_text())
        server.signal(signal.SIGTERM)
        await server.exit_code()
    assert url is not None
    with socket.create_server(("127.0.0.1", int(url[1]))):
        async with apiserver(short_folder) as (_, kubectl):
            assert kubectl.ok("get", "ns", "default", "-o", "name") == "namespace/default\n"


def test_an_address_that_is_in_use_leaves_no_folder_behind(short_folder: Path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        ended = run_here("apiserver", "--state", str(short_folder / "state"), "--listen", address)

    assert ended.returncode == 1
    assert address in ended.stderr
    assert tree(short_folder) == []


def test_a_state_folder_whose_path_is_too_long_for_a_socket_is_a_wrong_flag(short_folder: Path):
    ended = run_here("apiserver", "--state", str(short_folder / ("x" * 110)))

    assert ended.returncode == 2
    assert "the path may have 98 bytes" in ended.stderr
    assert tree(short_folder) == []


async def test_each_request_is_logged_at_debug_without_its_body(short_folder: Path):
    async with apiserver(short_folder, "--v=5") as (server, kubectl):
        kubectl.ok("create", "secret", "generic", "s", "--from-literal=k=planted-secret")
        await server.says("path=/api/v1/namespaces/default/secrets status=201")

        assert "planted-secret" not in server.logged()


def test_a_kind_that_is_not_served_is_told_as_that(serving: Serving, short_folder: Path):
    ingress = {"apiVersion": "networking.k8s.io/v1", "kind": "Ingress", "metadata": {"name": "i"}, "spec": {}}
    manifest = short_folder / "ingress.json"
    manifest.write_text(json.dumps(ingress))
    ended = serving.kubectl.run("apply", "-f", str(manifest))

    assert 'no matches for kind "Ingress" in version "networking.k8s.io/v1"' in ended.stderr


async def test_a_database_begun_anew_is_behind_every_version_of_the_one_before(short_folder: Path):
    """So that whoever watched the old one is told that its version is gone, and lists anew."""
    async with apiserver(short_folder) as (server, kubectl):
        old = int(kubectl.ok("get", "ns", "default", "-o", "jsonpath={.metadata.resourceVersion}"))
        server.signal(signal.SIGTERM)
        await server.exit_code()
    for file in (short_folder / "state").glob("objects.db*"):
        file.unlink()
    async with apiserver(short_folder) as (_, kubectl):
        new = int(kubectl.ok("get", "ns", "default", "-o", "jsonpath={.metadata.resourceVersion}"))
        watched = kubectl.run("get", "--raw", f"/api/v1/namespaces?watch=true&resourceVersion={old}&timeoutSeconds=2")

    assert new > old
    assert '"code":410' in watched.stdout
