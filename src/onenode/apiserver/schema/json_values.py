"""Plain JSON values (dicts, lists, texts, numbers, true, false, null): copying them. Pure."""

from __future__ import annotations

from typing import Any


def copied(value: Any) -> Any:
    """A copy that shares nothing that can be changed."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copied(item) for item in value]
    return value
