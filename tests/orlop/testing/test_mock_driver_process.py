"""`orlop testing mock-driver` as people run it: a process with flags, a socket, a record and signals."""

from __future__ import annotations

import json
import os
import signal
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format

from orlop.csi.endpoint import UnixEndpoint
from orlop.csi.error_codes import DeadlineExceeded, Internal, Unavailable
from orlop.csi.grpc.grpc_transport import GrpcConnection
from orlop.foundation.clock import SystemClock
from orlop.processes.mock_driver import CreatedTargets
from orlop.testing.driver_script import RPCS
from support.csi.csi_drivers import CREATE, client_of
from support.processes.orlop_process import Running, run, run_here, running, tree

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from orlop.csi.client import CsiClient

SCRIPT = """
driver: {name: d.example.com}
script:
  CreateVolume:
    - {error: {code: UNAVAILABLE, message: not yet}}
  DeleteVolume:
    - {hang: true}
"""


@asynccontextmanager
async def client(folder: Path) -> AsyncIterator[CsiClient]:
    connection = GrpcConnection(UnixEndpoint(str(folder / "csi.sock")))
    yield client_of(connection, SystemClock())
    await connection.close()


async def call(driver: CsiClient, method: str, within: float = 20.0, **fields: Any) -> dict[str, Any]:
    rpc = RPCS[method]
    return json_format.MessageToDict(
        await driver.call(rpc, json_format.ParseDict(fields, rpc.request()), within=within)
    )


def flags(folder: Path, *more: str) -> tuple[str, ...]:
    return ("testing", "mock-driver", "--endpoint", f"unix://{folder}/csi.sock", *more)


def script_in(folder: Path, text: str = SCRIPT) -> str:
    (folder / "script.yaml").write_text(text)
    return str(folder / "script.yaml")


async def ends_well(driver: Running) -> None:
    driver.signal(signal.SIGTERM)
    assert await driver.exit_code() == 0
    assert "Traceback" not in driver.logged()


async def test_it_plays_its_script_and_records_each_call_without_its_secrets(short_folder: Path):
    record = short_folder / "calls.jsonl"
    options = ("--script", script_in(short_folder), "--record", str(record), "--grace-period=100ms", "--v=5")
    with running(short_folder, *flags(short_folder, *options)) as driver:
        await driver.says("listening")
        async with client(short_folder) as caller:
            assert (await caller.plugin_info()).name == "d.example.com"
            with pytest.raises(Unavailable, match="not yet"):
                await call(caller, "CreateVolume", **CREATE, secrets={"password": "hunter2"})
            made = await call(caller, "CreateVolume", **CREATE, secrets={"password": "hunter2"})
            assert made["volume"]["volumeId"] == "vol-1"
            with pytest.raises(DeadlineExceeded):
                await call(caller, "DeleteVolume", within=2.5, volumeId="vol-1")
        await ends_well(driver)
        logged = driver.logged()

    lines = [json.loads(line) for line in record.read_text().splitlines()]
    assert [(line["method"], line["code"]) for line in lines] == [
        ("GetPluginInfo", "OK"),
        ("CreateVolume", "UNAVAILABLE"),
        ("CreateVolume", "OK"),
        ("DeleteVolume", None),
    ]
    assert lines[1]["request"]["secrets"] == {"password": "***stripped***"}
    assert "hunter2" not in record.read_text() + logged
    assert not (short_folder / "csi.sock").exists()


async def test_without_a_script_it_is_the_model_and_without_a_record_it_writes_nothing(short_folder: Path):
    with running(short_folder, *flags(short_folder)) as driver:
        await driver.says("listening")
        async with client(short_folder) as caller:
            assert (await call(caller, "NodeGetInfo"))["nodeId"] == "node-1"
        await ends_well(driver)

    assert [name for name in tree(short_folder) if not name.startswith("output-")] == ["csi.sock.lock"]


async def test_target_paths_come_and_go_where_that_is_asked_for(short_folder: Path):
    script = script_in(short_folder, "capabilities: {plugin: [], node: []}\n")
    target = short_folder / "target"
    with running(short_folder, *flags(short_folder, "--script", script, "--create-targets")) as driver:
        await driver.says("listening")
        async with client(short_folder) as caller:
            where = {"volumeId": "v1", "targetPath": str(target)}
            await call(caller, "NodePublishVolume", **where, volumeCapability=CREATE["volumeCapabilities"][0])
            assert target.is_dir()
            if os.geteuid() == 0:
                # As root, what a pod wrote is on a file system of its own, and goes with it.
                assert target.is_mount()
                (target / "written").write_text("by a pod")
            await call(caller, "NodeUnpublishVolume", **where)
            assert not target.exists()
        await ends_well(driver)


async def test_a_second_driver_on_a_live_socket_ends_with_its_name(short_folder: Path):
    with running(short_folder, *flags(short_folder)) as driver:
        await driver.says("listening")
        second = run(*flags(short_folder))
        await ends_well(driver)

    assert second.returncode == 1
    assert f"{short_folder}/csi.sock" in second.stderr
    assert "Traceback" not in second.stderr


WRONG = [
    (
        ["--script", "{folder}/missing.yaml"],
        "--script cannot be '{folder}/missing.yaml': it cannot be read: No such file",
    ),
    (["--script", "{folder}"], "it cannot be read: Is a directory"),
    (["--script", "{folder}/bad.yaml"], "script.CreateVolume[0].delay: 'soon' is not a duration"),
    (["--script", "{folder}/latin.yaml"], "it is not UTF-8 text"),
    (["--record", "{folder}/missing/calls.jsonl"], "it cannot be written: No such file or directory"),
    (["--record", "{folder}"], "it cannot be written: Is a directory"),
    (["--record", "/proc/version"], "it cannot be written: "),
    (["--grace-period", "-1s"], "--grace-period cannot be '-1s'"),
    (["--endpoint", "unix://{folder}/missing/csi.sock"], "there is no folder {folder}/missing"),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_told_before_anything_is_made(given: list[str], sentence: str, short_folder: Path):
    (short_folder / "bad.yaml").write_text("script: {CreateVolume: [{delay: soon}]}\n")
    (short_folder / "latin.yaml").write_bytes(b"driver: {name: caf\xe9}\n")
    before = tree(short_folder)

    ended = run_here(
        *flags(short_folder, "--record", f"{short_folder}/calls.jsonl"),
        *(each.format(folder=short_folder) for each in given),
    )

    assert ended.returncode == 2
    assert sentence.format(folder=short_folder) in ended.stderr
    assert "Traceback" not in ended.stderr
    assert tree(short_folder) == before


def test_the_endpoint_has_to_be_given():
    ended = run_here("testing", "mock-driver")
    assert ended.returncode == 2
    assert "--endpoint is required" in ended.stderr


def test_a_target_is_a_folder_or_a_file_and_goes_only_when_it_is_empty(short_folder: Path):
    targets = CreatedTargets(mounts=False)
    folder, block = short_folder / "folder", short_folder / "block"
    for _ in range(2):
        targets.make(str(folder), block=False)
        targets.make(str(block), block=True)
    assert (folder.is_dir(), block.is_file()) == (True, True)
    (folder / "kept").write_text("somebody's")
    with pytest.raises(Internal, match="cannot be made or removed: Directory not empty"):
        targets.remove(str(folder))
    (folder / "kept").unlink()
    for _ in range(2):
        targets.remove(str(folder))
        targets.remove(str(block))
    assert tree(short_folder) == []


def test_a_target_whose_folder_is_missing_is_told_so(short_folder: Path):
    with pytest.raises(Internal, match="cannot be made or removed: No such file"):
        CreatedTargets(mounts=False).make(str(short_folder / "missing" / "target"), block=False)
