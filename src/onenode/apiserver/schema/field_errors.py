"""Why an object is invalid, field by field, in Kubernetes' words: the `causes` of an answer 422. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from onenode.go_text import as_json, printed, quoted


@dataclass(frozen=True, slots=True)
class Cause:
    """`field` is a path such as `spec.containers[0].name` or `spec.capacity[storage]`."""

    reason: str
    message: str
    field: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def required(path: str, hint: str = "") -> Cause:
    return Cause("FieldValueRequired", _text("Required value", hint), path)


def invalid(path: str, value: Any, why: str = "") -> Cause:
    return Cause("FieldValueInvalid", _text(f"Invalid value: {shown(value)}", why), path)


def not_supported(path: str, value: Any, supported: Sequence[str]) -> Cause:
    values = ", ".join(quoted(each) for each in supported)
    return Cause("FieldValueNotSupported", f"Unsupported value: {shown(value)}: supported values: {values}", path)


def forbidden(path: str, why: str) -> Cause:
    return Cause("FieldValueForbidden", _text("Forbidden", why), path)


def too_long(path: str, most_bytes: int) -> Cause:
    return Cause("FieldValueTooLong", f"Too long: may not be more than {most_bytes} bytes", path)


def duplicate(path: str, value: Any, why: str = "") -> Cause:
    return Cause("FieldValueDuplicate", _text(f"Duplicate value: {shown(value)}", why), path)


def not_found(path: str, value: Any) -> Cause:
    return Cause("FieldValueNotFound", f"Not found: {shown(value)}", path)


def _text(what: str, why: str) -> str:
    return f"{what}: {why}" if why else what


def shown(value: Any) -> str:
    if isinstance(value, str):
        return quoted(value)
    return printed(value) if isinstance(value, bool | int | float) else as_json(value)


def summary(causes: Iterable[Cause]) -> str:
    """One cause as it stands, several in brackets; what two causes say alike is said once."""
    texts = list(dict.fromkeys(str(cause) for cause in causes))
    return texts[0] if len(texts) == 1 else f"[{', '.join(texts)}]"


def invalid_message(group: str, kind: str, name: str, causes: Sequence[Cause]) -> str:
    """The message of an answer 422: `StorageClass.storage.k8s.io "x" is invalid: provisioner: Required value`."""
    qualified = f"{kind}.{group}" if group else kind
    return f"{qualified} {quoted(name)} is invalid: {summary(causes)}"
