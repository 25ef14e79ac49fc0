"""Reading the metadata every Kubernetes object has, from plain dicts, and writing times as Kubernetes does. Pure.

A part that is missing, null or empty reads the same. Nothing here changes an object it was given.
"""

# No `from __future__ import annotations` here: `annotations` is what a part of the metadata is called.
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
    """What tells an object from the others of its kind; a cluster-scoped one has no namespace."""

    namespace: str | None
    name: str

    def __str__(self) -> str:
        return self.name if self.namespace is None else f"{self.namespace}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Reads what `str` wrote."""
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
    """Also a list's; empty if it has none."""
    return _text(obj, "resourceVersion")


def version_order(version: str) -> tuple[int, str]:
    """A key that sorts resource versions by age: they are decimal numbers of any length.

    Kubernetes promises since 1.35 that versions of one kind can be compared so; before that it was only true.
    """
    if not DECIMAL.fullmatch(version):
        raise ValueError(
            f"the resource version {version!r} is no decimal number, so it cannot be compared with another"
        )
    return len(version), version


def generation(obj: Mapping[str, Any]) -> int:
    number = metadata(obj).get("generation")
    return number if isinstance(number, int) else 0


# ---- the rest of the metadata ----------------------------------------------------------------------------------------


def metadata(obj: Mapping[str, Any]) -> Mapping[str, Any]:
    part = obj.get("metadata")
    # Asked for at every turn; a dict, as nearly all are, is known at once.
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
    """The owner that manages the object, of which there is at most one."""
    return next((owner for owner in owner_references(obj) if owner.get("controller") is True), None)


def is_owned_by(obj: Mapping[str, Any], owner_uid: str) -> bool:
    return any(owner.get("uid") == owner_uid for owner in owner_references(obj))


def creation_time(obj: Mapping[str, Any]) -> datetime | None:
    return _time(obj, "creationTimestamp")


def deletion_time(obj: Mapping[str, Any]) -> datetime | None:
    """When the object was, or will be, asked to go; a pod's lies in the future by its grace period."""
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
    found = condition(obj, kind)
    return found is not None and found.get("status") == "True"


def with_condition(present: Iterable[Mapping[str, Any]], new: Mapping[str, Any], now: datetime) -> list[Object]:
    """The conditions with the new one in the place of its type's, or at the end.

    `lastTransitionTime` says when the status changed, so it stays as it is while the status does. Other fields of the
    condition that the new one does not name stay too.
    """
    result = [dict(one) for one in present]
    old = next((one for one in result if one.get("type") == new["type"]), None)
    if old is None:
        result.append({**new, "lastTransitionTime": time_text(now)})
        return result
    kept = old.get("lastTransitionTime") if old.get("status") == new["status"] else None
    old.update(new)
    old["lastTransitionTime"] = kept or time_text(now)
    return result


def without_condition(present: Iterable[Mapping[str, Any]], kind: str) -> list[Object]:
    return [dict(one) for one in present if one.get("type") != kind]


# ---- times -----------------------------------------------------------------------------------------------------------


class InvalidTime(ValueError):
    pass


RFC_3339: Final = re.compile(
    r"(?P<seconds>[0-9]{4}-[0-9]{2}-[0-9]{2}T(?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2})"
    r"(?:\.(?P<fraction>[0-9]+))?"
    r"(?:Z|(?P<sign>[+-])(?P<hours>[0-9]{2}):(?P<minutes>[0-9]{2}))"
)


def time_text(moment: datetime) -> str:
    """As Kubernetes writes a Time: UTC, whole seconds, what is finer cut off."""
    return _utc(moment).isoformat(timespec="seconds") + "Z"


def micro_time_text(moment: datetime) -> str:
    """As Kubernetes writes a MicroTime: UTC, always six decimals."""
    return _utc(moment).isoformat(timespec="microseconds") + "Z"


def read_time(text: str) -> datetime:
    """A Time or a MicroTime, in UTC. What is finer than a microsecond is cut off."""
    match = RFC_3339.fullmatch(text)
    if match is None:
        raise InvalidTime(f'{text!r} is no time: times look like "2026-01-02T03:04:05Z"')
    try:
        moment = datetime.fromisoformat(match["seconds"]).replace(tzinfo=_zone(match))
        fraction = int((match["fraction"] or "")[:6].ljust(6, "0"))
        return moment.astimezone(UTC).replace(microsecond=fraction)
    except (ValueError, OverflowError) as error:
        raise InvalidTime(f"{text!r} is no time: {error}") from None


def _zone(match: re.Match[str]) -> timezone:
    if match["sign"] is None:
        return UTC
    offset = timedelta(hours=int(match["hours"]), minutes=int(match["minutes"]))
    return timezone(-offset if match["sign"] == "-" else offset)


def _utc(moment: datetime) -> datetime:
    if moment.tzinfo is None:
        raise ValueError(f"{moment} says no time zone, so it is no moment; give it one (UTC)")
    return moment.astimezone(UTC).replace(tzinfo=None)
