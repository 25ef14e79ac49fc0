"""The script of a scripted driver: its identity, and for each RPC the steps before it behaves as the model.

    driver: {name: mock.example.com, version: "1.0", ready: true}
    node: {id: node-1, maxVolumes: 0, topology: {zone: a}}
    nodes: [node-1, node-2]                       # the nodes there are; absent: any
    volumes: [{id: v1, size: 1Gi}]                # there from the start; absent: none, or any if it cannot create them
    capabilities:                                 # absent, also one of the four: all
      plugin: [CONTROLLER_SERVICE]
      controller: [CREATE_DELETE_VOLUME, PUBLISH_UNPUBLISH_VOLUME]
      groupController: []
      node: [STAGE_UNSTAGE_VOLUME]
    mutableParameters: [iops]                     # the keys that can be modified; absent: any
    capacity: 1Ti
    script:
      ControllerPublishVolume:
        - {when: {volumeId: v1}, times: 2, error: {code: UNAVAILABLE, message: not yet}}
        - {delay: 5s}                             # then as the model answers
        - {answer: {publishContext: {device: sda}}}
        - {hang: true}                            # never answers
        - {delay: 1s, effect: true, error: {code: DEADLINE_EXCEEDED}}
      GetMetadataAllocated:
        - {answer: [{volumeCapacityBytes: 1024}], error: {code: INTERNAL, message: the stream broke}}

Of the steps of an RPC, a request takes the first that is not used up and matches it: `times` is how often it can be
used (default 1; 0 means for ever), `when` is a part of the request's JSON. `effect` says whether the model acts though
the caller gets something else: by default it does with an `answer`, and does not with an `error` or a `hang`.
An `answer` is the JSON of the response, a list of them for a stream. All of it is checked when the script is read.

Pure: reads values, knows neither clock nor driver.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from google.protobuf import json_format

from orlop.csi.error_codes import Code
from orlop.csi.proto import rpc as rpc_table
from orlop.testing.driver_model.facts import ALL_CAPABILITIES, GIBIBYTE, DriverFacts
from orlop.testing.script_values import ScriptError, Value, load_yaml

if TYPE_CHECKING:
    from google.protobuf.descriptor import Descriptor
    from google.protobuf.message import Message

    from orlop.csi.client import DriverCapabilities
    from orlop.csi.rpc_type import Rpc

CSI_SERVICES: Final = ("Identity", "Controller", "GroupController", "SnapshotMetadata", "Node")
RPCS: Final[Mapping[str, Rpc[Any, Any]]] = {
    rpc.name: rpc for service in CSI_SERVICES for rpc in rpc_table.SERVICES[service]
}
ABILITY_GROUPS: Final = {
    "plugin": "plugin",
    "controller": "controller",
    "groupController": "group_controller",
    "node": "node",
}
ERROR_CODES: Final = tuple(code.name for code in Code if code is not Code.OK)
FOR_EVER: Final = 0


@dataclass(frozen=True, slots=True)
class ScriptedError:
    code: Code
    message: str


@dataclass(frozen=True, slots=True)
class ScriptedStep:
    when: Mapping[str, Any] = field(default_factory=dict)
    times: int = 1
    delay: float = 0.0
    effect: bool = True
    answers: tuple[Message, ...] | None = None
    error: ScriptedError | None = None
    hang: bool = False

    @property
    def is_as_the_model(self) -> bool:
        return self.answers is None and self.error is None and not self.hang

    def matches(self, request: Message) -> bool:
        return not self.when or _is_part(self.when, _json_of(request))


@dataclass(frozen=True, slots=True)
class Script:
    facts: DriverFacts = field(default_factory=DriverFacts)
    volumes: Mapping[str, int] = field(default_factory=dict)
    steps: Mapping[str, tuple[ScriptedStep, ...]] = field(default_factory=dict)


def script_from_yaml(text: str) -> Script:
    return read_script(load_yaml(text))


def read_script(script: Mapping[str, Any] | None) -> Script:
    """Read a script. Raises ScriptError, which names the problem and its place."""
    fields = Value(script, "").fields(KEYS)
    facts = DriverFacts(
        **_read(fields.get("driver"), DRIVER_FIELDS),
        **_read(fields.get("node"), NODE_FIELDS),
        **_read_some(fields, FACT_FIELDS),
    )
    if "topology" not in fields.get("node", Value({}, "")).mapping():
        facts = replace(facts, topology={f"{facts.name}/node": facts.node_id})
    if "volumes" not in fields and not facts.can("controller", "CREATE_DELETE_VOLUME"):
        facts = replace(facts, knows_any_volume=True)
    return Script(facts, **_read_some(fields, SCRIPT_FIELDS))


def _capabilities(value: Value) -> DriverCapabilities:
    groups = {ABILITY_GROUPS[key]: names for key, names in value.fields(ABILITY_GROUPS).items()}
    return replace(
        ALL_CAPABILITIES, **{group: names.names(getattr(ALL_CAPABILITIES, group)) for group, names in groups.items()}
    )


def _volumes(value: Value) -> dict[str, int]:
    volumes: dict[str, int] = {}
    for item in value.items():
        name, size = _volume(item)
        if name in volumes:
            raise item.wrong(f"the volume {name!r} is listed twice")
        volumes[name] = size
    return volumes


def _volume(value: Value) -> tuple[str, int]:
    fields = value.fields(("id", "size"))
    if "id" not in fields:
        raise value.wrong("has no id: each volume needs one")
    return fields["id"].text(), fields["size"].size() if "size" in fields else GIBIBYTE


def _steps(value: Value) -> dict[str, tuple[ScriptedStep, ...]]:
    rpcs = value.fields(RPCS)
    return {name: tuple(_step(step, RPCS[name]) for step in steps.items()) for name, steps in rpcs.items()}


ValueReader = Callable[[Value], Any]
# For each key of the script: the field it sets, and the function that reads it.
DRIVER_FIELDS: Final = {
    "name": ("name", Value.text),
    "version": ("version", Value.text),
    "ready": ("ready", Value.boolean),
}
NODE_FIELDS: Final = {
    "id": ("node_id", Value.text),
    "maxVolumes": ("max_volumes", Value.whole_number),
    "topology": ("topology", Value.text_map),
}
FACT_FIELDS: Final[Mapping[str, tuple[str, ValueReader]]] = {
    "nodes": ("nodes", Value.texts),
    "capabilities": ("capabilities", _capabilities),
    "mutableParameters": ("mutable_parameters", Value.texts),
    "capacity": ("capacity", Value.size),
}
SCRIPT_FIELDS: Final[Mapping[str, tuple[str, ValueReader]]] = {
    "volumes": ("volumes", _volumes),
    "script": ("steps", _steps),
}
KEYS: Final = ("driver", "node", *FACT_FIELDS, *SCRIPT_FIELDS)


def _read(value: Value | None, table: Mapping[str, tuple[str, ValueReader]]) -> dict[str, Any]:
    return {} if value is None else _read_some(value.fields(table), table)


def _read_some(fields: Mapping[str, Value], table: Mapping[str, tuple[str, ValueReader]]) -> dict[str, Any]:
    return {name: read(fields[key]) for key, (name, read) in table.items() if key in fields}


# ---- steps -----------------------------------------------------------------------------------------------------------

STEP_FIELDS: Final[Mapping[str, tuple[str, ValueReader]]] = {
    "times": ("times", Value.whole_number),
    "delay": ("delay", Value.seconds),
    "effect": ("effect", Value.boolean),
    "hang": ("hang", Value.boolean),
}
STEP_KEYS: Final = (*STEP_FIELDS, "when", "error", "answer")


def _step(value: Value, rpc: Rpc[Any, Any]) -> ScriptedStep:
    fields = value.fields(STEP_KEYS)
    step = ScriptedStep(
        **_read_some(fields, STEP_FIELDS),
        when=_when(fields["when"], rpc) if "when" in fields else {},
        answers=_answers(fields["answer"], rpc) if "answer" in fields else None,
        error=_error(fields["error"]) if "error" in fields else None,
    )
    outcomes = [key for key in ("answer", "error", "hang") if key in fields and fields[key].content is not False]
    if len(outcomes) > 1 and not (rpc.streams and outcomes == ["answer", "error"]):
        raise value.wrong(f"has {' and '.join(outcomes)}: the caller can get only one of them")
    if "effect" in fields and step.is_as_the_model:
        raise value.wrong("has effect, but nothing that the caller gets instead: add error, answer or hang")
    return step if "effect" in fields else replace(step, effect=step.error is None and not step.hang)


def _error(value: Value) -> ScriptedError:
    fields = value.fields(("code", "message"))
    if "code" not in fields:
        raise value.wrong(f"has no code: allowed are {', '.join(ERROR_CODES)}")
    message = fields["message"].text() if "message" in fields else "error from the script"
    return ScriptedError(Code[fields["code"].one_of(ERROR_CODES)], message)


def _answers(value: Value, rpc: Rpc[Any, Any]) -> tuple[Message, ...]:
    values = value.items() if rpc.streams else [value]
    return tuple(_parsed(each, rpc.response()) for each in values)


def _parsed(value: Value, message: Message) -> Message:
    try:
        return json_format.ParseDict(dict(value.mapping()), message)
    except json_format.ParseError as error:
        raise value.wrong(f"is no {message.DESCRIPTOR.name}: {error}") from None


# ---- matching: `when` is a part of the request's JSON ----------------------------------------------------------------


def _when(value: Value, rpc: Rpc[Any, Any]) -> Mapping[str, Any]:
    """Return the `when` part in the form of protobuf's JSON, in which requests are compared."""
    normal = _json_of(_parsed(value, rpc.request()))
    return _named_part(normal, value, rpc.request.DESCRIPTOR)


def _json_of(message: Message) -> dict[str, Any]:
    return json_format.MessageToDict(message, always_print_fields_with_no_presence=True)


def _named_part(normal: Mapping[str, Any], when: Value, descriptor: Descriptor) -> dict[str, Any]:
    part: dict[str, Any] = {}
    for key, value in when.mapping().items():
        descriptor_field = next(field for field in descriptor.fields if key in {field.name, field.json_name})
        place = Value(value, f"{when.place}.{key}")
        if descriptor_field.json_name not in normal:
            raise place.wrong("has no value: write the value that the request must have here")
        inner = descriptor_field.message_type
        if inner is None or inner.GetOptions().map_entry:
            part[descriptor_field.json_name] = normal[descriptor_field.json_name]
        elif descriptor_field.is_repeated:
            pairs = zip(normal[descriptor_field.json_name], place.items(), strict=True)
            part[descriptor_field.json_name] = [_named_part(each, item, inner) for each, item in pairs]
        else:
            part[descriptor_field.json_name] = _named_part(normal[descriptor_field.json_name], place, inner)
    return part


def _is_part(part: Any, whole: Any) -> bool:
    if isinstance(part, Mapping):
        return isinstance(whole, Mapping) and all(key in whole and _is_part(part[key], whole[key]) for key in part)
    if isinstance(part, list):
        return len(part) == len(whole) and all(map(_is_part, part, whole))
    return bool(part == whole)


__all__ = ["FOR_EVER", "Script", "ScriptError", "ScriptedError", "ScriptedStep", "read_script", "script_from_yaml"]
