"""Read the metadata and conditions of Kubernetes objects from plain dicts, and format times. Pure.

A part that is missing, null or empty reads the same. Nothing here changes an object.
"""

# No `from __future__ import annotations` here: this module has a function of that name.
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, Final, Self, TypeAlias

Object: TypeAlias = dict[str, Any]
"""An object as it is on the wire."""


# ---- names -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ObjectName:
    """An object's namespace and name, unique within its kind; a cluster-scoped object has no namespace."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse what `str` returns."""
        namespace, slash, name = text.rpartition("/")
        if not name or "/" in namespace or bool(slash) != bool(namespace):
            raise ValueError(f'{text!r} does not name an object: a name looks like "web-0" or "default/web-0"')
        return cls(namespace or None, name)


def name_of(obj: Mapping[str, Any]) -> ObjectName:
    return ObjectName(namespace(obj), name(obj))


def name(obj: Mapping[str, Any]) -> str:
    return _text(obj, "name")


def namespace(obj: Mapping[str, Any]) -> str | None:
    return _text(obj, "namespace") or None


def uid(obj: Mapping[str, Any]) -> str:
    return _text(obj, "uid")


# ---- versions --------------------------------------------------------------------------------------------------------

DECIMAL: Final = re.compile(r"0|[1-9][0-9]*")


def resource_version(obj: Mapping[str, Any]) -> str:
    """Return the resourceVersion of an object or a list, or ""."""
    return _text(obj, "resourceVersion")


def version_order(version: str) -> tuple[int, str]:
    """Return a key that sorts resourceVersions by age: they are decimal numbers of any length.

    Kubernetes guarantees since 1.35 that resourceVersions of one kind can be compared; it was true before.
    """
    if not DECIMAL.fullmatch(version):
        raise ValueError(f"the resourceVersion {version!r} is no decimal number, so it cannot be compared with another")
    return len(version), version


def generation(obj: Mapping[str, Any]) -> int:
    number = metadata(obj).get("generation")
    return number if isinstance(number, int) else 0


# ---- the rest of the metadata ----------------------------------------------------------------------------------------


def metadata(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    part = obj.get("metadata")
    # Called very often; the check of the exact type is faster than isinstance, and nearly all are dicts.
    return part if type(part) is dict or isinstance(part, Mapping) else {}


def labels(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return metadata(obj).get("labels") or {}


def annotations(obj: Mapping[str, Any]) -> Mapping[str, str]:
    return metadata(obj).get("annotations") or {}


def finalizers(obj: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(metadata(obj).get("finalizers") or ())


def has_finalizer(obj: Mapping[str, Any], finalizer: str) -> bool:
    return finalizer in finalizers(obj)


def owner_references(obj: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    return tuple(metadata(obj).get("ownerReferences") or ())


def controller_of(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference of the controller that manages the object; there is at most one."""
    return next((owner for owner in owner_references(obj) if owner.get("controller") is True), None)


def controller_reference(owner: Mapping[str, Any], api_version: str, kind: str) -> Object:
    """Return the reference with which an object names its controller, whose foreground deletion waits for it."""
    named = {"apiVersion": api_version, "kind": kind, "name": name(owner), "uid": uid(owner)}
    return {**named, "controller": True, "blockOwnerDeletion": True}


def is_owned_by(obj: Mapping[str, Any], owner_uid: str) -> bool:
    return any(owner.get("uid") == owner_uid for owner in owner_references(obj))


def creation_time(obj: Mapping[str, Any]) -> datetime | None:
    return _time(obj, "creationTimestamp")


def deletion_time(obj: Mapping[str, Any]) -> datetime | None:
    """Return the deletionTimestamp; a pod's lies in the future by its grace period."""
    return _time(obj, "deletionTimestamp")


def is_being_deleted(obj: Mapping[str, Any]) -> bool:
    return bool(metadata(obj).get("deletionTimestamp"))


def _text(obj: Mapping[str, Any], field: str) -> str:
    value = metadata(obj).get(field)
    return value if isinstance(value, str) else ""


def _time(obj: Mapping[str, Any], field: str) -> datetime | None:
    text = _text(obj, field)
    return read_time(text) if text else None


# ---- conditions ------------------------------------------------------------------------------------------------------


def conditions(obj: Mapping[str, Any]) -> tuple[Mapping[str, Any], ...]:
    status = obj.get("status")
    return tuple(status.get("conditions") or ()) if isinstance(status, Mapping) else ()


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    return next((condition for condition in conditions(obj) if condition.get("type") == kind), None)


def is_condition_true(obj: Mapping[str, Any], kind: str) -> bool:
    current = condition(obj, kind)
    return current is not None and current.get("status") == "True"


def with_condition(present: Iterable[Mapping[str, Any]], new: Mapping[str, Any], now: datetime) -> list[Object]:
    """Return the conditions with the new one replacing that of its type, or appended.

    `lastTransitionTime` changes only when the status does. Fields that the new condition does not name stay.
    """
    result = [dict(condition) for condition in present]
    old = next((condition for condition in result if condition.get("type") == new["type"]), None)
    if old is None:
        result.append({**new, "lastTransitionTime": time_text(now)})
        return result
    kept = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    old.update(new)
    old["lastTransitionTime"] = kept or time_text(now)
    return result


def without_condition(present: Iterable[Mapping[str, Any]], kind: str) -> list[Object]:
    return [dict(condition) for condition in present if condition.get("type") != kind]


# ---- times -----------------------------------------------------------------------------------------------------------


class InvalidTime(ValueError):
    pass


RFC_3339: Final = re.compile(
    r"(?P<seconds>[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))"
)


def time_text(moment: datetime) -> str:
    """Format a Time as Kubernetes does: UTC, in whole seconds, fractions cut off."""
    return _utc(moment).isoformat(timespec="seconds") + "Z"


def micro_time_text(moment: datetime) -> str:
    """Format a MicroTime as Kubernetes does: UTC, always six decimals."""
    return _utc(moment).isoformat(timespec="microseconds") + "Z"


def read_time(text: str) -> datetime:
    """Parse a Time or a MicroTime into UTC; digits below a microsecond are cut off."""
    match = RFC_3339.fullmatch(text)
    if match is None:
        raise InvalidTime(f'{text!r} is no time: times look like "2026-01-02T03:04:05Z"')
    try:
        fraction = (match["fraction"] or "")[:6].ljust(6, "0")
        if match["sign"] is None:  # nearly always, and tables read thousands: `replace` takes longer than all the rest
            return datetime.fromisoformat(f"{match['seconds']}.{fraction}+00:00")
        moment = datetime.fromisoformat(match["seconds"]).replace(tzinfo=_zone(match))
        return moment.astimezone(UTC).replace(microsecond=int(fraction))
    except (ValueError, OverflowError) as error:
        raise InvalidTime(f"{text!r} is no time: {error}") from None


def _zone(match: re.Match[str]) -> timezone:
    offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
    return timezone(-offset if match["sign"] == "-" else offset)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone: pass a datetime with one (UTC)")
    return moment.astimezone(UTC).replace(tzinfo=None)
