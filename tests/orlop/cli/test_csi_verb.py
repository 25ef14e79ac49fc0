"""`orlop csi`: what a driver's author sees."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf import json_format

from orlop.cli.csi_format import fault_in, request_template, unknown_places
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.rpc_type import Rpc
from support.csi.csi_ends import Workshop
from support.processes.orlop_process import ORLOP, run, run_here, running

SCRIPT = """
driver: {name: mock.example.com, version: "7"}
script:
  Probe:
    - {error: {code: FAILED_PRECONDITION, message: "the module xfs is not loaded"}, times: 0}
  NodeGetInfo:
    - {hang: true, times: 0}
"""


@pytest.fixture
def script(short_folder: Path) -> Path:
    path = short_folder / "script.yaml"
    path.write_text(SCRIPT)
    return path


def test_every_rpc_of_the_interface_is_listed():
    listed = run_here("csi", "--list")

    assert listed.returncode == 0
    assert [m.name for m in rpc.ALL if f"{m.service}.{m.name}" not in listed.stdout] == []


def test_a_template_is_a_request_that_only_needs_filling_in():
    shown = run_here("csi", "NodePublishVolume", "--template")

    template = json.loads(shown.stdout)
    assert template["volumeId"] == ""
    assert template["volumeCapability"]["mount"]["mountFlags"] == [""]
    assert template["volumeCapability"]["accessMode"]["mode"] == "SINGLE_NODE_WRITER"
    assert "volumeCapability.{block | mount}: one of them" in shown.stderr
    assert "MULTI_NODE_MULTI_WRITER" in shown.stderr


@pytest.mark.parametrize("method", rpc.ALL, ids=lambda method: method.name)
def test_every_template_can_be_sent_as_it_is(method: Rpc[Any, Any]):
    template = request_template(method.request.DESCRIPTOR)

    filled = json_format.ParseDict(template, method.request())

    assert set(template) >= {field.json_name for field, _ in filled.ListFields()}


FAULTS = [
    ({"name": 5}, "name must be a string, in quotes"),
    ({"nam": "x"}, "nam is no field of CreateVolumeRequest, which has name, capacityRange,"),
    ({"capacityRange": {"requiredBytes": "12a"}}, "capacityRange.requiredBytes must be a whole number"),
    ({"capacityRange": {"requiredBytes": 1.5}}, "capacityRange.requiredBytes must be a whole number"),
    ({"capacity_range": 3}, "capacity_range must be an object, such as {}"),
    ({"parameters": {"a": 1}}, "parameters must be an object of strings, such as {}"),
    ({"volumeCapabilities": {}}, "volumeCapabilities must be a list, such as []"),
    (
        {"volumeCapabilities": [{"mount": {}}, {"accessMode": {"mode": "WRONG"}}]},
        "volumeCapabilities[1].accessMode.mode must be one of UNKNOWN, SINGLE_NODE_WRITER,",
    ),
]


@pytest.mark.parametrize(("request_json", "told"), FAULTS, ids=[told.split()[0] for _, told in FAULTS])
def test_a_usual_mistake_in_a_request_is_told_with_its_place(request_json: dict[str, Any], told: str):
    with pytest.raises(json_format.ParseError):
        json_format.ParseDict(request_json, csi_pb2.CreateVolumeRequest())

    fault = fault_in(csi_pb2.CreateVolumeRequest.DESCRIPTOR, request_json)

    assert fault is not None
    assert fault.startswith(told)


@pytest.mark.parametrize("method", rpc.ALL, ids=lambda method: method.name)
def test_a_request_that_can_be_read_has_no_fault(method: Rpc[Any, Any]):
    assert fault_in(method.request.DESCRIPTOR, request_template(method.request.DESCRIPTOR)) is None


def test_output_that_cannot_be_written_is_a_sentence_and_exit_code_1():
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run([*ORLOP, "csi", "--list"], stdout=full, stderr=subprocess.PIPE, text=True, check=False)

    assert ended.returncode == 1
    assert ended.stderr == "orlop: the output cannot be written: No space left on device.\n"


def test_fields_that_we_do_not_know_are_named_with_their_place():
    newer = csi_pb2.ListVolumesResponse()
    newer.entries.add().status.MergeFromString(b"\x12\x02\x08\x01")

    assert list(unknown_places(newer)) == ["ListVolumesResponse.entries.status field 2"]


async def test_a_driver_is_called_with_json_and_answers_with_json(short_folder: Path, script: Path):
    address = f"unix://{short_folder}/mock.sock"
    request = {"name": "v1", "capacityRange": {"requiredBytes": "1073741824"}}
    capability = {"mount": {}, "accessMode": {"mode": "SINGLE_NODE_WRITER"}}
    body = json.dumps({**request, "volumeCapabilities": [capability]})
    (short_folder / "request.json").write_text(body)
    with running(short_folder, "testing", "mock-driver", "--endpoint", address, "--script", str(script)) as driver:
        await driver.says("listening")
        made = [
            run("csi", "Controller.CreateVolume", body, "--endpoint", address),
            run_here("csi", "createvolume", f"@{short_folder}/request.json", "-e", address),
            run("csi", "/csi.v1.Controller/CreateVolume", "-", "-e", address, stdin=body),
            run_here("csi", "CreateVolume", body, env={"CSI_ENDPOINT": address}),
        ]
        in_yaml = run_here("csi", "GetPluginInfo", "-e", address, "-o", "yaml")
        driver.signal(signal.SIGTERM)
        await driver.exit_code()

    answers = [json.loads(ended.stdout) for ended in made]
    assert answers[0]["volume"]["capacityBytes"] == "1073741824"
    assert answers[0] == answers[1] == answers[2] == answers[3]
    assert "name: mock.example.com\n" in in_yaml.stdout


async def test_a_driver_s_error_is_code_and_message_on_stderr_and_exit_code_1(short_folder: Path, script: Path):
    address = f"unix://{short_folder}/mock.sock"
    with running(short_folder, "testing", "mock-driver", "--endpoint", address, "--script", str(script)) as driver:
        await driver.says("listening")
        failed = run_here("csi", "Probe", "-e", address)
        late = run_here("csi", "NodeGetInfo", "-e", address, "--timeout", "100ms")

    assert (failed.returncode, failed.stdout) == (1, "")
    assert failed.stderr == "FAILED_PRECONDITION: the module xfs is not loaded\n"
    assert late.returncode == 1
    assert late.stderr.startswith("DEADLINE_EXCEEDED: ")


async def test_many_answers_are_printed_one_by_one(short_folder: Path, script: Path):
    address = f"unix://{short_folder}/mock.sock"
    script.write_text("script: {GetMetadataAllocated: [{error: {code: NOT_FOUND, message: no such snapshot}}]}\n")
    with running(short_folder, "testing", "mock-driver", "--endpoint", address, "--script", str(script)) as driver:
        await driver.says("listening")
        failed = run_here("csi", "GetMetadataAllocated", '{"snapshotId": "s1"}', "-e", address)

    assert failed.stderr == "NOT_FOUND: no such snapshot\n"


def test_a_driver_that_is_not_there_is_unavailable(short_folder: Path):
    missing = run_here("csi", "Probe", "-e", f"unix://{short_folder}/none.sock")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(short_folder / "stale.sock"))
    dead = run_here("csi", "Probe", "-e", f"unix://{short_folder}/stale.sock")

    assert (missing.returncode, dead.returncode) == (1, 1)
    assert f"{short_folder}/none.sock" in missing.stderr
    assert "is the driver running?" in missing.stderr
    assert dead.stderr.startswith("UNAVAILABLE: no process listens on ")


WRONG = [
    (["NoSuchMethod", "-e", "/x/y.sock"], "NoSuchMethod"),
    (["Probe"], "--endpoint"),
    (["Probe", "-e", "ftp://x"], "ftp://x"),
    (["Probe", "{not json", "-e", "/x/y.sock"], "ProbeRequest"),
    (["Probe", '{"unknown": 1}', "-e", "/x/y.sock"], "unknown"),
    (["Probe", "@/no/such/file", "-e", "/x/y.sock"], "/no/such/file"),
    (["Probe", "-e", "/x/y.sock", "--timeout", "soon"], "soon"),
    (["Probe", "-e", "/x/y.sock", "--timeout", "0s"], "0s"),
    (["Probe", "-e", "/x/y.sock", "--nosuch"], "--nosuch"),
    (["Probe", "null", "-e", "/x/y.sock"], "object"),
    (["Probe", "[]", "-e", "/x/y.sock"], "object"),
    ([], "METHOD"),
]


@pytest.mark.parametrize(("arguments", "named"), WRONG, ids=[" ".join(arguments)[:40] for arguments, _ in WRONG])
def test_a_wrong_question_is_named_and_ends_with_exit_code_2(arguments: list[str], named: str):
    ended = run_here("csi", *arguments)

    assert ended.returncode == 2
    assert named in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("secrets", ['"hunter2"', '["hunter2"]', '{"password": ["hunter2"]}'])
def test_a_request_that_cannot_be_read_does_not_give_its_secrets_away(secrets: str):
    ended = run_here("csi", "CreateSnapshot", f'{{"name": "s1", "secrets": {secrets}}}', "-e", "/x/y.sock")

    assert ended.returncode == 2
    assert "secrets" in ended.stderr
    assert "hunter2" not in ended.stderr


async def test_an_answer_that_has_no_json_is_told_as_the_drivers_error(short_folder: Path):
    class Controller(services.Controller):
        async def CreateSnapshot(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
            return csi_pb2.CreateSnapshotResponse(snapshot={"creation_time": {"seconds": 1 << 62}})

    async with Workshop("socket", short_folder).ends(Controller()):
        address = f"unix://{short_folder}/csi.sock"
        ended = await asyncio.to_thread(run, "csi", "CreateSnapshot", "-e", address)

    assert ended.returncode == 1
    assert ended.stderr.startswith("INTERNAL: the driver's response cannot be written as JSON")


async def test_many_answers_in_yaml_are_documents_of_their_own(short_folder: Path, script: Path):
    address = f"unix://{short_folder}/mock.sock"
    script.write_text(
        "script: {GetMetadataAllocated: [{answer: [{volumeCapacityBytes: 1}, {volumeCapacityBytes: 2}]}]}\n"
    )
    with running(short_folder, "testing", "mock-driver", "--endpoint", address, "--script", str(script)) as driver:
        await driver.says("listening")
        printed = run_here("csi", "GetMetadataAllocated", '{"snapshotId": "s1"}', "-e", address, "-o", "yaml")

    assert list(yaml.safe_load_all(printed.stdout)) == [{"volumeCapacityBytes": "1"}, {"volumeCapacityBytes": "2"}]
