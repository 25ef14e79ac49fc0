"""Remove secrets from CSI messages before they are logged: every field that CSI marks `csi_secret`. Pure.

Two fields hold secrets without the mark: kubelet puts service-account tokens into `volume_context` (hidden by key), and
CSI warns that `mount_flags` may hold some (what follows a `=` is hidden). The message itself is never changed.
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
"""Shorter values of mount flags, such as the 0 of `uid=0`, are not hidden: that would hide every 0 of an error."""


def printable(message: Message) -> dict[str, Any]:
    """Return the message as JSON values, without its secrets."""
    shown = type(message)()
    shown.CopyFrom(message)
    for holder, field in _secret_places(shown):
        _overwrite(holder, field)
    try:
        return json_format.MessageToDict(shown)
    except json_format.SerializeToJsonError as error:  # A timestamp after the year 9999 cannot be written as JSON.
        return {"unprintable": str(error)}


def printable_response(response: Message, request: Message) -> dict[str, Any]:
    """Return a response as `printable` does, also without the request's secrets: a driver may return them anywhere."""
    shown, secrets = printable(response), secret_values(request)
    return {name: _hidden(value, secrets) for name, value in shown.items()} if secrets else shown


def _hidden(value: Any, secrets: frozenset[str]) -> Any:
    match value:
        case str():
            return hide(value, secrets)
        case dict():
            return {hide(name, secrets): _hidden(inner, secrets) for name, inner in value.items()}
        case list():
            return [_hidden(inner, secrets) for inner in value]
    return value


def secret_values(message: Message) -> frozenset[str]:
    """Return every text of the message that must not appear in a log, error or metric."""
    secrets: set[str] = set()
    for holder, field in _secret_places(message):
        secrets.update(_texts(getattr(holder, field.name), field))
    secrets.discard("")
    return frozenset(secrets)


def _secret_places(message: Message) -> Iterator[tuple[Message, FieldDescriptor]]:
    for field in _fields_with_secrets(message.DESCRIPTOR):
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
def _fields_with_secrets(descriptor: Descriptor) -> tuple[FieldDescriptor, ...]:
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
        # One flag may hold several options, such as "username=joe,password=hunter2", and an error may quote one.
        single = [part for flag in value for part in (flag, *flag.split(","))]
        yield from (text for _, _, text in map(_parts, single) if len(text) >= SHORTEST_FLAG_SECRET)
    elif isinstance(value, Mapping):
        yield from value.values()
    else:
        yield value if isinstance(value, str) else value.decode(errors="replace")


def _parts(flag: str) -> tuple[str, str, str]:
    return flag.partition("=")


def _tokens_in(text: str) -> Iterator[str]:
    """Yield each token of kubelet's JSON of audiences: a driver's error may quote one without the rest."""
    try:
        audiences = json.loads(text)
    except ValueError:
        return
    if isinstance(audiences, dict):
        for entry in audiences.values():
            if isinstance(entry, dict) and isinstance(entry.get("token"), str):
                yield entry["token"]


def printable_text(sentence: str) -> str:
    """Escape control characters, which a terminal would interpret: a driver can put anything into an error."""
    if sentence.isprintable():
        return sentence
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in sentence)
