"""What may be shown of a CSI message, decided from the descriptors: every field marked `csi_secret` is hidden.

Two places are not marked and hold secrets all the same: kubelet puts service-account tokens into `volume_context`
(hidden by their key), and the interface warns of `mount_flags` (of which what follows a `=` is hidden).
Pure: messages in, values out; a message is never changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, MutableMapping
from functools import cache
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message

from orlop.csi.proto import csi_pb2
from orlop.foundation.structured_log import hide

HIDDEN: Final = "***stripped***"
TOKENS_KEY: Final = "csi.storage.k8s.io/serviceAccount.tokens"
SHORTEST_FLAG_SECRET: Final = 4
"""Of a mount flag such as `uid=0`: hiding every 0 of an error would hide the error."""


def printable(message: Message) -> dict[str, Any]:
    """The message as JSON would show it, without its secrets."""
    shown = type(message)()
    shown.CopyFrom(message)
    for holder, field in _secret_places(shown):
        _overwrite(holder, field)
    try:
        return json_format.MessageToDict(shown)
    except json_format.SerializeToJsonError as error:  # a moment after the year 9999 has no JSON
        return {"unprintable": str(error)}


def printable_answer(response: Message, request: Message) -> dict[str, Any]:
    """As `printable`, also without the secrets of the request: a driver may give them back in whatever field."""
    shown, secrets = printable(response), secret_values(request)
    return {name: _hidden(value, secrets) for name, value in shown.items()} if secrets else shown


def _hidden(value: Any, secrets: frozenset[str]) -> Any:
    match value:
        case str():
            return hide(value, secrets)
        case dict():
            return {hide(name, secrets): _hidden(one, secrets) for name, one in value.items()}
        case list():
            return [_hidden(one, secrets) for one in value]
    return value


def secret_values(message: Message) -> frozenset[str]:
    """Every text that must appear in no log, error or metric because of this message."""
    found: set[str] = set()
    for holder, field in _secret_places(message):
        found.update(_texts(getattr(holder, field.name), field))
    found.discard("")
    return frozenset(found)


def _secret_places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field in _fields_worth_a_look(message.DESCRIPTOR):
        if _holds_secrets(field):
            yield message, field
        else:
            for child in _children(message, field):
                yield from _secret_places(child)


def _children(message: Message, field: FieldDescriptor) -> list[Message]:
    if field.is_repeated:
        return list(getattr(message, field.name))
    return [getattr(message, field.name)] if message.HasField(field.name) else []


@cache
def _fields_worth_a_look(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
    return tuple(field for field in descriptor.fields if _leads_to_secret(field, frozenset()))


def _leads_to_secret(field: FieldDescriptor, seen: frozenset[str]) -> bool:
    if _holds_secrets(field):
        return True
    child = field.message_type
    if child is None or child.GetOptions().map_entry or child.full_name in seen:
        return False
    return any(_leads_to_secret(inner, seen | {child.full_name}) for inner in child.fields)


def _is_secret(field: FieldDescriptor) -> bool:
    marks = field.GetOptions().ListFields()
    return any(mark.number == csi_pb2.CSI_SECRET_FIELD_NUMBER and value for mark, value in marks)


def _is_context(field: FieldDescriptor) -> bool:
    return field.name == "volume_context"


def _is_mount_flags(field: FieldDescriptor) -> bool:
    return field.name == "mount_flags"


def _holds_secrets(field: FieldDescriptor) -> bool:
    return _is_secret(field) or _is_context(field) or _is_mount_flags(field)


def _overwrite(holder: Message, field: FieldDescriptor) -> None:
    value = getattr(holder, field.name)
    if _is_context(field):
        if TOKENS_KEY in value:
            value[TOKENS_KEY] = HIDDEN
    elif _is_mount_flags(field):
        value[:] = [f"{name}={HIDDEN}" if separator else name for name, separator, _ in map(_parts, value)]
    elif isinstance(value, MutableMapping):
        for key in list(value):
            value[key] = HIDDEN
    else:
        setattr(holder, field.name, HIDDEN if isinstance(value, str) else HIDDEN.encode())


def _texts(value: Any, field: FieldDescriptor) -> Iterator[str]:
    if _is_context(field):
        if TOKENS_KEY in value:
            yield value[TOKENS_KEY]
            yield from _tokens_in(value[TOKENS_KEY])
    elif _is_mount_flags(field):
        # One flag may hold several, as "username=joe,password=hunter2", and an error may quote one of them.
        single = [part for flag in value for part in (flag, *flag.split(","))]
        yield from (text for _, _, text in map(_parts, single) if len(text) >= SHORTEST_FLAG_SECRET)
    elif isinstance(value, Mapping):
        yield from value.values()
    else:
        yield value if isinstance(value, str) else value.decode(errors="replace")


def _parts(flag: str) -> tuple[str, str, str]:
    return flag.partition("=")


def _tokens_in(text: str) -> Iterator[str]:
    """Kubelet's JSON of audiences: a driver's error may quote one token without the rest."""
    try:
        audiences = json.loads(text)
    except ValueError:
        return
    if isinstance(audiences, dict):
        for entry in audiences.values():
            if isinstance(entry, dict) and isinstance(entry.get("token"), str):
                yield entry["token"]
