"""The base of the records that are custom resources, and what their schemas have in common. Pure.

A record is the shape of a part of an object: the definitions that the API server validates with are made from it
(`definitions`), it reads an object as the server sent it, and it builds a new one. It is never written back: an object
may have fields of a newer version, so that existing objects are changed by patches alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec

GROUP: Final = "orlop.dev"
VERSION: Final = "v1"
API_VERSION: Final = f"{GROUP}/{VERSION}"
CATEGORIES: Final = ("orlop", "storage")

LONGEST_NAME: Final = 253
LONGEST_VOLUME_ID: Final = 128
LONGEST_TEXT: Final = 1024
LONGEST_PATH: Final = 4096
MOST_VOLUMES: Final = 2048
"""Volumes of one drive: an object with more of them grows too large for the API server."""

DRIVE_ID: Final = "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"
VOLUME_ID: Final = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
QUANTITY: Final = "^[0-9]{1,19}(Ki|Mi|Gi|Ti|Pi|Ei|k|M|G|T|P|E)?$"

SPECIAL: Final = {"id": "ID", "uid": "UID", "uuid": "UUID"}
NEVER_CHANGES: Final = {"rule": "self == oldSelf", "message": "cannot be changed"}

Record = TypeVar("Record", bound="ApiRecord")


def api_name(name: str) -> str:
    """Return the name of a field in an object: `volume_claim_id` is `volumeClaimID`."""
    first, *others = name.split("_")
    return first + "".join(SPECIAL.get(part, part.capitalize()) for part in others)


class ApiRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename=api_name):
    """Part of a custom resource. A field whose value is the default is left out of the object."""


def described(
    description: str,
    *,
    default: Any = None,
    format_: str = "",
    rules: tuple[Mapping[str, str], ...] = (),
    keys: tuple[str, ...] = (),
    **limits: Any,
) -> msgspec.Meta:
    """Return the description and limits of a field. With `keys`, it is a list that merges by these keys.

    A `default` is what the API server fills in; without one, an absent field stays absent.
    """
    extra: dict[str, Any] = {"x-default": default} if default is not None else {}
    if format_:
        extra["format"] = format_
    if rules:
        extra["x-kubernetes-validations"] = [dict(rule) for rule in rules]
    if keys:
        extra |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": list(keys)}
    return msgspec.Meta(description=description, extra_json_schema=extra, **limits)


def byte_count(description: str, *, least: int = 0, rules: tuple[Mapping[str, str], ...] = ()) -> msgspec.Meta:
    return described(description, ge=least, format_="int64", rules=rules)


class ObjectCondition(ApiRecord, frozen=True):
    """One observation of the state of an object."""

    type: Annotated[str, described("What was observed, in CamelCase.", min_length=1, max_length=316)]
    status: Annotated[Literal["True", "False", "Unknown"], described("Whether it holds.")]
    reason: Annotated[str, described("Why, as one word in CamelCase.", max_length=LONGEST_TEXT)] = ""
    message: Annotated[str, described("Why, as a sentence.", max_length=32768)] = ""
    observed_generation: Annotated[
        int, described("Generation of the object that was observed.", ge=0, format_="int64")
    ] = 0
    last_transition_time: Annotated[
        str, described("When the status last changed.", format_="date-time", max_length=64)
    ] = ""


Conditions = Annotated[
    tuple[ObjectCondition, ...],
    described("Latest observations of the object, one of each type.", keys=("type",), max_length=16),
]


def part_of(obj: Mapping[str, Any], part: str, record: type[Record]) -> Record:
    """Read `spec` or `status` of an object. Unknown fields are ignored; a field of a wrong type raises `ValueError`."""
    return msgspec.convert(obj.get(part) or {}, record)


def why_unreadable(obj: Mapping[str, Any], spec: type[ApiRecord], status: type[ApiRecord]) -> str:
    """Return which field of an object has a wrong type or value; empty if both parts can be read.

    Definitions refuse such objects: this one was written before its definition was changed.
    """
    try:
        part_of(obj, "spec", spec)
        part_of(obj, "status", status)
    except ValueError as error:
        return str(error)
    return ""


def new_object(kind: str, name: str, spec: ApiRecord, **metadata: Any) -> dict[str, Any]:
    """Return a new object to be created."""
    return {
        "apiVersion": API_VERSION,
        "kind": kind,
        "metadata": {"name": name, **metadata},
        "spec": msgspec.to_builtins(spec),
    }


def rounded_quantity(count: int) -> str:
    """Return bytes as a quantity for people, rounded down to two digits at least: `931Gi`."""
    for bits, suffix in ((60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")):
        if count >= 10 << bits or (count and count % (1 << bits) == 0):
            return f"{count >> bits}{suffix}"
    return str(count)
