from __future__ import annotations

import inspect
import re
from typing import TYPE_CHECKING, Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from orlop.csi.error_codes import Code
from orlop.csi.proto import csi_pb2
from orlop.testing import driver_script
from orlop.testing.driver_model import ALL_CAPABILITIES, GIBIBYTE
from orlop.testing.driver_script import (
    RPCS,
    Script,
    ScriptedError,
    ScriptedStep,
    ScriptError,
    read_script,
    script_from_yaml,
)

if TYPE_CHECKING:
    from google.protobuf.message import Message


def documented_script() -> str:
    text = inspect.getdoc(driver_script) or ""
    return text.split("\n\n")[1] + "\n"


def test_the_script_in_the_documentation_is_one():
    script = script_from_yaml(documented_script())
    assert script.facts.nodes == {"node-1", "node-2"}
    assert script.facts.topology == {"zone": "a"}
    assert script.facts.capabilities.controller == {"CREATE_DELETE_VOLUME", "PUBLISH_UNPUBLISH_VOLUME"}
    assert script.facts.capacity == 1024 * GIBIBYTE
    assert script.volumes == {"v1": GIBIBYTE}
    first, second, third, fourth, fifth = script.steps["ControllerPublishVolume"]
    assert first == ScriptedStep(
        {"volumeId": "v1"}, times=2, effect=False, error=ScriptedError(Code.UNAVAILABLE, "not yet")
    )
    assert (second.delay, second.is_as_the_model) == (5.0, True)
    assert third.answers == (csi_pb2.ControllerPublishVolumeResponse(publish_context={"device": "sda"}),)
    assert (fourth.hang, fourth.effect) == (True, False)
    assert (fifth.delay, fifth.effect, fifth.error and fifth.error.code) == (1.0, True, Code.DEADLINE_EXCEEDED)
    (broken_stream,) = script.steps["GetMetadataAllocated"]
    assert len(broken_stream.answers or ()) == 1
    assert broken_stream.error == ScriptedError(Code.INTERNAL, "the stream broke")


@pytest.mark.parametrize("nothing", [None, {}, {"script": {}}, {"driver": None}])
def test_an_empty_script_is_the_model_with_everything_on(nothing: Any):
    assert read_script(nothing) == Script()
    assert read_script(nothing).facts.capabilities == ALL_CAPABILITIES


def test_a_driver_that_cannot_create_volumes_knows_any_of_them_unless_told_which():
    assert not read_script({}).facts.knows_any_volume
    cannot = {"capabilities": {"controller": ["PUBLISH_UNPUBLISH_VOLUME"]}}
    assert read_script(cannot).facts.knows_any_volume
    assert not read_script({**cannot, "volumes": []}).facts.knows_any_volume
    assert read_script({"capabilities": {"plugin": []}}).facts.knows_any_volume


def test_a_group_of_capabilities_that_is_absent_is_all_on():
    capabilities = read_script({"capabilities": {"node": []}}).facts.capabilities
    assert capabilities.node == frozenset()
    assert capabilities.controller == ALL_CAPABILITIES.controller


def test_the_place_of_a_node_is_itself_unless_told():
    script = {"driver": {"name": "d.example.com"}, "node": {"id": "n7"}}
    assert read_script(script).facts.topology == {"d.example.com/node": "n7"}
    assert read_script({"node": {"topology": {}}}).facts.topology == {}


def one_step(**step: Any) -> dict[str, Any]:
    return {"script": {"CreateVolume": [step]}}


WRONG: list[tuple[Any, str]] = [
    ([], "the script: is a list: a mapping is needed"),
    (
        {"drivers": {}},
        "the script: there is no key 'drivers' here (did you mean driver?); allowed are capabilities, cap",
    ),
    ({"driver": {"title": "x"}}, "driver: there is no key 'title' here; allowed are name, ready, version"),
    ({"driver": {"version": 1.0}}, "driver.version: is a number: a text is needed (write it in quotes)"),
    ({"driver": {"name": ""}}, "driver.name: is empty"),
    ({"driver": {"ready": "yes"}}, "driver.ready: is 'yes': allowed are true and false"),
    ({"node": {"maxVolumes": -1}}, "node.maxVolumes: is -1: allowed are whole numbers from 0 on"),
    ({"node": {"maxVolumes": True}}, "node.maxVolumes: is True: allowed are whole numbers from 0 on"),
    ({"node": {"topology": {"zone": 1}}}, "node.topology.zone: is a number: a text is needed"),
    ({"nodes": "node-1"}, "nodes: is a text: a list is needed"),
    ({"nodes": None}, "nodes: is nothing: a list is needed"),
    ({"volumes": [{"size": "1Gi"}]}, "volumes[0]: has no id"),
    ({"volumes": [{"id": "v1", "size": "1GB"}]}, "volumes[0].size: '1GB' is not a quantity"),
    ({"capacity": "-1"}, "capacity: is -1: allowed are sizes from 0 on"),
    (
        {"capabilities": {"controller": ["CREATE_VOLUME"]}},
        "capabilities.controller[0]: there is no 'CREATE_VOLUME' (did you mean CREATE_DELETE_VOLUME?); allowed are",
    ),
    (
        {"capabilities": {"group": []}},
        "capabilities: there is no key 'group' here; allowed are controller, groupController",
    ),
    (
        {"script": {"CreateVolum": []}},
        "script: there is no key 'CreateVolum' here (did you mean CreateVolume?); allowed",
    ),
    ({"script": {"GetInfo": []}}, "script: there is no key 'GetInfo' here"),
    ({"script": {"CreateVolume": {}}}, "script.CreateVolume: is a mapping: a list is needed"),
    (one_step(wait="5s"), "script.CreateVolume[0]: there is no key 'wait' here; allowed are answer, delay, effect"),
    (
        one_step(delay="5"),
        "script.CreateVolume[0].delay: '5' is not a duration: there is no unit after 5; allowed is 0",
    ),
    (one_step(delay=5), "script.CreateVolume[0].delay: '5' is not a duration"),
    (one_step(delay="-1s"), "script.CreateVolume[0].delay: is -1s: allowed are durations from 0 on"),
    (one_step(times="two"), "script.CreateVolume[0].times: is 'two': allowed are whole numbers from 0 on"),
    (one_step(error={}), "script.CreateVolume[0].error: has no code: allowed are CANCELLED, UNKNOWN"),
    (
        one_step(error={"code": "GONE"}),
        "script.CreateVolume[0].error.code: there is no 'GONE'; allowed are ABORTED, ALREADY_EXISTS",
    ),
    (one_step(error={"code": "OK"}), "script.CreateVolume[0].error.code: there is no 'OK'"),
    (
        one_step(answer={"volume": {"id": "v1"}}),
        "script.CreateVolume[0].answer: is no CreateVolumeResponse: Failed to parse volume field: Message type",
    ),
    (one_step(answer=[]), "script.CreateVolume[0].answer: is a list: a mapping is needed"),
    (one_step(when={"volumeId": "v1"}), "script.CreateVolume[0].when: is no CreateVolumeRequest"),
    (one_step(when={"capacityRange": None}), "script.CreateVolume[0].when.capacityRange: has no value"),
    (
        one_step(answer={}, error={"code": "ABORTED"}),
        "script.CreateVolume[0]: has answer and error: the caller can get only one of them",
    ),
    (one_step(hang=True, answer={}), "script.CreateVolume[0]: has answer and hang: the caller can get only one"),
    (one_step(effect=True), "script.CreateVolume[0]: has effect, but nothing that the caller gets instead"),
    (
        {"script": {"GetMetadataDelta": [{"answer": {}}]}},
        "script.GetMetadataDelta[0].answer: is a mapping: a list is needed",
    ),
]


@pytest.mark.parametrize(("given", "sentence"), WRONG, ids=[sentence for _, sentence in WRONG])
def test_what_is_wrong_is_told_with_its_place_and_what_is_allowed(given: Any, sentence: str):
    with pytest.raises(ScriptError, match="^" + re.escape(sentence)):
        read_script(given)


def test_a_key_that_stands_twice_is_an_error_with_its_line():
    with pytest.raises(ScriptError, match="line 3: the key 'driver' occurs twice in one mapping"):
        script_from_yaml("driver: {}\nnode: {}\ndriver: {}\n")


def test_text_that_is_no_yaml_is_told_so():
    with pytest.raises(ScriptError, match="the script is not YAML: "):
        script_from_yaml("driver: {name: ")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("[" * 1000, "nested too deep"),
        ("\ndriver: {ready: !!bool maybe}", "line 2: the value does not fit its tag tag:yaml.org,2002:bool"),
        ("driver: {name: !!timestamp noon}", "does not fit its tag"),
        ('capacity: !!int ""', "does not fit its tag"),
        ("capacity: " + "9" * 5000, "does not fit its tag"),
        ("capacity: 0x" + "f" * 5000, "capacity: is more"),
        ("capacity: true", "capacity: is true or false"),
        ("? [a]\n: b", "line 1: a key must be a text"),
        ("volumes: [{id: a}, {id: a, size: 2}]", "the volume 'a' is listed twice"),
        (r'script: {Probe: [{error: {code: NOT_FOUND, message: "\ud800"}}]}', "lone surrogate"),
    ],
    ids=lambda value: value[:30],
)
def test_whatever_yaml_can_be_made_to_hold_is_refused_with_a_sentence(text: str, sentence: str):
    with pytest.raises(ScriptError, match=re.escape(sentence)):
        script_from_yaml(text)


def test_yaml_anchors_and_merges_work():
    script = script_from_yaml(
        "script:\n  CreateVolume:\n    - &late {delay: 1s, error: {code: ABORTED}}\n    - {<<: *late, times: 0}\n"
    )
    first, second = script.steps["CreateVolume"]
    assert (first.delay, first.times, second.delay, second.times) == (1.0, 1, 1.0, 0)


def test_an_answer_has_an_effect_unless_told_and_an_error_has_none():
    def effect(**step: Any) -> bool:
        return read_script(one_step(**step)).steps["CreateVolume"][0].effect

    error = {"code": "INTERNAL"}
    assert effect(answer={})
    assert not effect(answer={}, effect=False)
    assert not effect(error=error)
    assert effect(error=error, effect=True)
    assert not effect(hang=True)
    assert effect(hang=True, effect=True)


REQUEST = csi_pb2.CreateVolumeRequest(
    name="pvc-1",
    capacity_range=csi_pb2.CapacityRange(required_bytes=GIBIBYTE),
    parameters={"tier": "fast", "colour": "blue"},
    volume_capabilities=[
        csi_pb2.VolumeCapability(
            mount=csi_pb2.VolumeCapability.MountVolume(fs_type="xfs"),
            access_mode=csi_pb2.VolumeCapability.AccessMode(mode="SINGLE_NODE_WRITER"),
        )
    ],
)


@pytest.mark.parametrize(
    ("when", "matches"),
    [
        ({}, True),
        ({"name": "pvc-1"}, True),
        ({"name": "pvc-2"}, False),
        ({"capacityRange": {"requiredBytes": GIBIBYTE}}, True),
        ({"capacity_range": {"required_bytes": str(GIBIBYTE)}}, True),
        ({"capacityRange": {"limitBytes": 0}}, True),
        ({"capacityRange": {"limitBytes": 5}}, False),
        ({"parameters": {"tier": "fast"}}, True),
        ({"parameters": {"tier": "slow"}}, False),
        ({"parameters": {"size": "big"}}, False),
        ({"volumeCapabilities": [{"accessMode": {"mode": "SINGLE_NODE_WRITER"}}]}, True),
        ({"volumeCapabilities": [{"accessMode": {"mode": 1}}]}, True),
        ({"volumeCapabilities": [{"block": {}}]}, False),
        ({"volumeCapabilities": []}, False),
        ({"volumeContentSource": {}}, False),
        ({"accessibilityRequirements": {"requisite": []}}, False),
    ],
)
def test_a_step_is_for_requests_that_hold_all_of_its_when(when: dict[str, Any], matches: bool):  # noqa: FBT001
    (step,) = read_script(one_step(when=when)).steps["CreateVolume"]
    assert step.matches(REQUEST) is matches


@given(st.sampled_from(sorted(RPCS)), st.data())
def test_every_request_matches_its_own_json(name: str, data: st.DataObject):
    request = RPCS[name].request()
    fill(request, data)
    given_json = json_format.MessageToDict(request)
    (step,) = read_script({"script": {name: [{"when": given_json}]}}).steps[name]
    assert step.matches(request)


def fill(message: Message, data: st.DataObject) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            getattr(message, field.name).update(data.draw(st.dictionaries(st.text(max_size=3), st.text(max_size=3))))
        elif field.type == field.TYPE_STRING and not field.is_repeated:
            setattr(message, field.name, data.draw(st.text(max_size=3)))
        elif field.message_type is not None and not field.is_repeated and data.draw(st.booleans()):
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name), data)
