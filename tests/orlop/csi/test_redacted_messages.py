"""Secrets: every field the interface marks, in every message, on every route to somebody's eyes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from orlop.csi.error_codes import CsiError, InvalidArgument
from orlop.csi.proto import csi_pb2, rpc, services
from orlop.csi.redacted_messages import TOKENS_KEY, printable, secret_values
from orlop.csi.rpc_type import Rpc
from support.csi.csi_ends import Workshop

SECRET = 'planted-S3CR3T/\n"quoted" ü'
TOKEN = "eyJhbGciOi.planted-token"
TOKENS = json.dumps({"vault": {"token": TOKEN, "expirationTimestamp": "2026-01-01T00:00:00Z"}})


def plant(message: Message, depth: int = 0) -> Message:
    """Fills every field of the message, secrets into those that are marked."""
    for field in message.DESCRIPTOR.fields:
        if field.containing_oneof is None or message.WhichOneof(field.containing_oneof.name) is None:
            fill(message, field, depth)
    return message


def fill(message: Message, field: FieldDescriptor, depth: int) -> None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        if kind.fields_by_name["value"].message_type is None:
            getattr(message, field.name)["key"] = SECRET if is_marked(field) else "shown"
        if field.name == "volume_context":
            getattr(message, field.name)[TOKENS_KEY] = TOKENS
    elif kind is not None and depth < 4 and not kind.full_name.startswith("google."):
        child = getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)
        child.SetInParent()
        plant(child, depth + 1)
    elif field.cpp_type == FieldDescriptor.CPPTYPE_STRING and not field.is_repeated:
        setattr(message, field.name, b"shown" if field.type == FieldDescriptor.TYPE_BYTES else "shown")


def is_marked(field: FieldDescriptor) -> bool:
    return any(option.name == "csi_secret" for option, _ in field.GetOptions().ListFields())


def marked_anywhere(message: Message) -> Iterator[FieldDescriptor]:
    for field in message.DESCRIPTOR.fields:
        if is_marked(field) or field.name == "volume_context":
            yield field


REQUESTS = [method for method in rpc.ALL if any(marked_anywhere(method.request()))]


def shows_a_secret(text: str) -> bool:
    return "planted" in text


@pytest.mark.parametrize("method", rpc.ALL, ids=lambda method: method.name)
def test_what_is_printed_of_a_message_holds_no_secret_and_everything_else(method: Rpc[Any, Any]):
    message = plant(method.request())
    before = message.SerializeToString(deterministic=True)

    shown = printable(message)

    assert not shows_a_secret(json.dumps(shown))
    assert message.SerializeToString(deterministic=True) == before
    assert set(shown) == {field.json_name for field, _ in message.ListFields()}


def test_the_interface_has_secrets_in_all_of_these_requests():
    assert len(REQUESTS) >= 20


def test_every_secret_value_is_known_so_that_it_can_be_hidden():
    message = plant(csi_pb2.NodePublishVolumeRequest())

    assert secret_values(message) == {SECRET, TOKENS, TOKEN}


def test_tokens_that_are_no_json_are_hidden_whole():
    message = csi_pb2.NodePublishVolumeRequest(volume_context={TOKENS_KEY: "planted", "size": "1Gi"})

    assert printable(message) == {"volumeContext": {TOKENS_KEY: "***stripped***", "size": "1Gi"}}
    assert secret_values(message) == {"planted"}


class Quoting:
    """Fails every call with an error that quotes the whole request, secrets and all."""

    def __init__(self, kind: type[Exception]) -> None:
        self.kind = kind

    async def serve(self, request: Message) -> Message:
        raise self.kind(f"cannot do this: {request} {list(secret_values(request))} {secret_values(request)!r}")


@pytest.mark.parametrize("kind", [InvalidArgument, RuntimeError], ids=["an expected error", "a bug"])
@pytest.mark.parametrize("method", [m for m in REQUESTS if not m.streams], ids=lambda method: method.name)
async def test_a_secret_reaches_neither_log_nor_error_nor_metric(
    method: Rpc[Any, Any], kind: type[Exception], short_folder: Path
):
    workshop = Workshop("in process", short_folder)
    async with workshop.ends(methods={method.path: (method, Quoting(kind).serve)}) as ends:
        with pytest.raises(CsiError) as caught:
            await ends.client.call(method, plant(method.request()))

    assert not shows_a_secret(str(caught.value))
    assert not shows_a_secret(ends.logged)
    assert not shows_a_secret(ends.counted)
    assert "cannot do this" in ends.logged


async def test_a_secret_that_the_answer_gives_back_reaches_no_log(short_folder: Path):
    class Controller(services.Controller):
        async def ControllerPublishVolume(
            self, request: csi_pb2.ControllerPublishVolumeRequest
        ) -> csi_pb2.ControllerPublishVolumeResponse:
            given = request.secrets["key"]
            return csi_pb2.ControllerPublishVolumeResponse(publish_context={"login": f"joe:{given}", given: "is known"})

    request = csi_pb2.ControllerPublishVolumeRequest(volume_id="v1", node_id="n1", secrets={"key": "hunter2"})
    async with Workshop("in process", short_folder).ends(Controller()) as ends:
        answer = await ends.client.call(rpc.CONTROLLER_PUBLISH_VOLUME, request)

    assert answer.publish_context["login"] == "joe:hunter2"
    assert "joe:***" in ends.logged
    assert "hunter2" not in ends.logged


@pytest.mark.parametrize("kind", ["socket", "in process"])
async def test_a_moment_that_json_cannot_show_does_not_fail_the_call_that_is_logged(short_folder: Path, kind: str):
    class Controller(services.Controller):
        async def CreateSnapshot(self, request: csi_pb2.CreateSnapshotRequest) -> csi_pb2.CreateSnapshotResponse:
            return csi_pb2.CreateSnapshotResponse(snapshot={"creation_time": {"seconds": 1 << 62}})

    async with Workshop(kind, short_folder).ends(Controller()) as ends:
        answer = await ends.client.call(rpc.CREATE_SNAPSHOT, csi_pb2.CreateSnapshotRequest(name="s1"))

    assert answer.snapshot.creation_time.seconds == 1 << 62
    assert "unprintable" in ends.logged


def test_each_of_several_options_in_one_mount_flag_is_a_secret():
    request = csi_pb2.NodeStageVolumeRequest()
    request.volume_capability.mount.mount_flags.append("username=joe,password=hunter2,ro")

    assert secret_values(request) == {"joe,password=hunter2,ro", "hunter2"}
    assert "hunter2" not in str(printable(request))
