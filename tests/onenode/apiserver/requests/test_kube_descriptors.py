"""The definitions of Kubernetes' messages, and the program that makes their descriptors from our .proto files."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

import pytest

from onenode.apiserver.proto import message_descriptors
from onenode.apiserver.requests import protobuf_messages
from support.api.kube_messages import KINDS, MESSAGES
from support.api.kube_protobuf import FORMS, table_fields
from support.places import REPOSITORY

SCALARS = {"string", "bytes", "bool", "int32", "int64"}


@pytest.fixture(scope="module")
def generator() -> dict[str, Any]:
    return runpy.run_path(str(REPOSITORY / "tools" / "generate_kube_protos.py"))


def test_the_committed_descriptors_are_what_the_generator_gives(generator: dict[str, Any]):
    assert Path(message_descriptors.__file__).read_bytes() == generator["generate"]()


def test_stale_descriptors_are_named_and_new_ones_are_written(
    generator: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    assert generator["main"](["--check", "--into", str(tmp_path)]) == 1
    assert "message_descriptors.py differs from what the generator gives" in capsys.readouterr().out
    assert generator["main"](["--into", str(tmp_path)]) == 0
    assert generator["main"](["--check", "--into", str(tmp_path)]) == 0


def test_the_kinds_that_are_read_are_the_messages_with_an_api_version():
    assert protobuf_messages.KINDS == KINDS


def test_every_type_is_a_scalar_or_a_message_with_a_definition():
    kinds = {field.kind for message in MESSAGES for field in table_fields(message)}
    assert kinds <= SCALARS | set(MESSAGES)


def test_every_message_is_part_of_a_kind():
    reached: set[str] = set()
    ahead = set(KINDS.values())
    while ahead:
        reached |= ahead
        ahead = {field.kind for message in ahead for field in table_fields(message)} & set(MESSAGES) - reached
    assert reached == set(MESSAGES)
    assert set(FORMS) <= reached


def test_numbers_and_names_are_used_once_in_a_message():
    for message in MESSAGES:
        fields = list(table_fields(message))
        assert len({field.number for field in fields}) == len({field.name for field in fields}) == len(fields)


PINNED = {
    "meta.ObjectMeta": "1 name string, 2 generateName string, 3 namespace string, 4 selfLink string, 5 uid string, "
    "6 resourceVersion string, 7 generation int64, 8 creationTimestamp Time, 9 deletionTimestamp *Time, "
    "10 deletionGracePeriodSeconds *int64, 11 labels {}string, 12 annotations {}string, "
    "13 ownerReferences []meta.OwnerReference, 14 finalizers []string, 17 managedFields []meta.ManagedFieldsEntry",
    "storage.VolumeAttachmentSpec": "1 attacher !string, 2 source !storage.VolumeAttachmentSource, 3 nodeName !string",
    "core.Volume": "1 name !string, 2 volumeSource <core.VolumeSource",
    "authentication.BoundObjectReference": "1 kind string, 2 apiVersion string, 3 name string, 4 uid string",
}


@pytest.mark.parametrize("message", PINNED)
def test_the_wire_is_not_changed_by_accident(message: str):
    assert MESSAGES[message] == PINNED[message]
