"""Record Events about drives, their volumes, the claims of those, and requests: one for each change that was written.

Objects are compared before and after a write of their status, so a restart repeats no event. `orlop drives` deletes its
request when it has the result: what became of a disk or a folder is also on the NodeDevices of the node, which stays.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from orlop.driver.persistent.upkeep.drive_state_rules import BEING_REMOVED, WAS_REMOVED
from orlop.kube.events.event_bodies import ObjectReference
from orlop.kube.events.event_recorder import EventRecorder
from orlop.kube.kinds import PERSISTENT_VOLUME_CLAIM
from orlop.records.drive_record import DriveState
from orlop.records.drive_request import RequestResult

ApiObject = Mapping[str, Any]
_UID_OF_CLAIM: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
EXPECTED: Final = frozenset({BEING_REMOVED, WAS_REMOVED})
"""Reasons of a state that are no fault."""
MOST_VOLUMES_WITH_EVENTS: Final = 200


class ReportEvents:
    """`node_devices` returns the NodeDevices of this node; None before there is one."""

    def __init__(self, events: EventRecorder, *, node_devices: Callable[[], ApiObject | None]) -> None:
        self._events = events
        self._node_devices = node_devices

    def drive_changed(self, before: ApiObject, after: ApiObject, volumes: Sequence[ApiObject]) -> None:
        """Record a change of the state of a drive, on the drive and on everything that is on it.

        If the state stays and its reason changes, only the drive gets an Event: a volume has its own, of its condition.
        """
        state, why = _status(after, "state"), _status(after, "message")
        if not state:
            return
        if state == _status(before, "state"):
            if why and why != _status(before, "message"):
                self._record(after, f"Drive{state}", f"The drive is {state}. {why}", is_bad=_is_fault(state, why))
            return
        about = [after]
        # Volumes get an event only if their drive fails, or works again.
        if _status(before, "state") or state != DriveState.READY.value:
            about += volumes[:MOST_VOLUMES_WITH_EVENTS]
        for obj in about:
            drive = "The drive" if obj is after else f"The drive {after['metadata']['name']}"
            # A drive that is only waiting to be removed has nothing to add.
            more = "" if why == BEING_REMOVED else why
            note = f"{drive} is {state}. {more}".rstrip()
            self._record(obj, f"Drive{state}", note, is_bad=_is_fault(state, why))

    def volume_changed(self, before: ApiObject, after: ApiObject) -> None:
        """Record a change of the phase or the condition of a volume, on the volume and on its claim."""
        phase, was = _status(after, "phase"), _status(before, "phase")
        if phase != was and phase in {"Erasing", "Erased"}:
            self._record(after, f"Volume{phase}", f"The volume is {phase}. {_status(after, 'message')}".rstrip())
        elif phase == "Erasing" and (why := _status(after, "message")) and why != _status(before, "message"):
            self._record(after, "VolumeErasing", f"The volume is Erasing. {why}")
        trouble, old = _condition(after), _condition(before)
        if trouble and trouble != old:
            self._record(after, "VolumeAbnormal", trouble, is_bad=True)
        elif old and not trouble:
            self._record(after, "VolumeNormal", "The volume works again.")
        if (message := _status(after, "message")).startswith("The data is kept") and message != _status(
            before, "message"
        ):
            self._record(after, "DataKept", message, is_bad=True)

    def call_failed(self, volume: ApiObject, call: str, why: str) -> None:
        """Record that a call of kubelet failed, on the volume and on its claim; kubelet records it on the pod alone."""
        self._record(volume, f"{call}Failed", f"{call} failed: {why}", is_bad=True)

    def foreign_drive(self, drive: ApiObject, why: str) -> None:
        self._events.warning(drive, "DriveOfAnotherNode", why)

    def unreadable(self, obj: ApiObject, why: str) -> None:
        """Record that an object has a field that this node cannot read, so that nothing is done about the object."""
        note = f"The node cannot read this object, and leaves it as it is: {why}. Correct the field."
        self._record(obj, "InvalidField", note, is_bad=True)

    def task_ended(self, request: ApiObject, result: RequestResult, reason: str) -> None:
        """Record the result for one disk or folder, on the request and on the NodeDevices of the node."""
        note = f"{result.target}: {result.error}" if result.error else result.message
        for obj in (request, self._node_devices()):
            if obj is not None:
                self._record(obj, reason, note, is_bad=bool(result.error))

    def request_ended(self, request: ApiObject, state: str, message: str) -> None:
        record = self._events.warning if state == "Error" else self._events.normal
        record(request, f"Request{state}", message)

    def _record(self, obj: ApiObject, reason: str, note: str, *, is_bad: bool = False) -> None:
        record = self._events.warning if is_bad else self._events.normal
        claim = claim_of(obj)
        record(obj, reason, note, related=claim)
        if claim is not None:
            record(claim, reason, note, related=obj)


def claim_of(volume: ApiObject) -> ObjectReference | None:
    """Return the claim of a Volume. Its uid is the end of the PersistentVolume's name, unless a prefix hides it."""
    spec = volume.get("spec") or {}
    claim = spec.get("claim")
    # An object with invalid fields gets an Event too: its claim may be anything.
    if not isinstance(claim, Mapping) or not claim.get("name"):
        return None
    uid = _UID_OF_CLAIM.search(str(spec.get("persistentVolume", "")))
    kind = PERSISTENT_VOLUME_CLAIM
    name, namespace = str(claim["name"]), str(claim.get("namespace", ""))
    return ObjectReference(kind.api_version, kind.kind, name, namespace, uid=uid[0] if uid is not None else "")


def _is_fault(state: str, why: str) -> bool:
    return state in {DriveState.LOST.value, DriveState.ERROR.value} or (bool(why) and why not in EXPECTED)


def _status(obj: ApiObject, field: str) -> str:
    return str((obj.get("status") or {}).get(field, ""))


def _condition(obj: ApiObject) -> str:
    condition = (obj.get("status") or {}).get("condition") or {}
    return str(condition.get("message", "")) if condition.get("abnormal") else ""
