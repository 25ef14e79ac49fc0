"""Events have two forms, core/v1 and events.k8s.io/v1, and one place in the store, in the core form. Pure.

Each field of the one form has its counterpart in the other, so nothing is lost either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from orlop.kube.kinds import CORE_EVENT, EVENT

NEW_NAMES: Final[Mapping[str, str]] = {
    "involvedObject": "regarding",
    "message": "note",
    "source": "deprecatedSource",
    "firstTimestamp": "deprecatedFirstTimestamp",
    "lastTimestamp": "deprecatedLastTimestamp",
    "count": "deprecatedCount",
    "reportingComponent": "reportingController",
}
# The core form shows these also where they are empty; the new one does not.
ALWAYS_IN_CORE: Final[Mapping[str, str]] = {"reportingComponent": "", "reportingInstance": ""}
CORE_NAMES: Final[Mapping[str, str]] = {new: core for core, new in NEW_NAMES.items()}


def from_core(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event as events.k8s.io/v1 shows it."""
    shown = {name: value for name, value in event.items() if value != "" or name not in ALWAYS_IN_CORE}
    renamed = {NEW_NAMES.get(name, name): value for name, value in shown.items()}
    return {**renamed, "kind": EVENT.kind, "apiVersion": EVENT.api_version}


def to_core(event: Mapping[str, Any]) -> dict[str, Any]:
    """The event as it is stored, and as core/v1 shows it."""
    renamed = {CORE_NAMES.get(name, name): value for name, value in event.items()}
    return {**ALWAYS_IN_CORE, **renamed, "kind": CORE_EVENT.kind, "apiVersion": CORE_EVENT.api_version}
