"""Explain what a VolumeAttachment waits for: from the objects alone, by the rules that the attacher follows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from orlop.admin.explanation import UNREADABLE, ApiObject, Explanation, Unreadable, ago, lasting, length, moment
from orlop.csi.error_codes import Code
from orlop.kube import objects
from orlop.kube.kinds import CSI_DRIVER, CSI_NODE, NODE, PERSISTENT_VOLUME
from orlop.sidecars.attacher.attach_rules import (
    NODE_IDS_ANNOTATION,
    AttachmentFacts,
    MarkDetached,
    Nothing,
    ProtectAttachment,
    ProtectVolume,
    Publish,
    Refuse,
    Step,
    Unpublish,
    UnpublishFormer,
    attacher_of,
    is_attached,
    is_marked,
    next_step,
    node_name_of,
    recorded_node_id,
)
from orlop.sidecars.attacher.finalizer_rules import finalizer_of
from orlop.sidecars.attacher.trivial_rules import next_trivial_step
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

ATTACHING: Final = "Attaching"
DETACHING: Final = "Detaching"
NOTHING: Final = Nothing.__name__
WAITS_FOR_NOTHING: Final = "Nothing to do: it waits for nothing."
WAITS: Final = "the volume is not attached yet."
RETRIED: Final = "with growing delays, by default of five minutes at most"


@dataclass(frozen=True, slots=True)
class AttachmentSeen:
    """What was read. `node_id` is the driver's current id of the node, if an object has one."""

    attachment: ApiObject
    volume: ApiObject | None
    node_id: str | None
    unreadable: tuple[Unreadable, ...] = ()
    attach_required: bool | None = None
    """From the CSIDriver, if there is one. Not the same as whether the driver can attach."""


@dataclass(frozen=True, slots=True)
class UnknownStep:
    """The next step depends on objects that may not be read."""

    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What is known, and the next step as far as that determines it."""

    facts: AttachmentFacts
    step: Step | UnknownStep
    unreadable: tuple[Unreadable, ...]
    attach_required: bool | None
    untouched_for: str
    """How long no attacher has written to it; empty if that is not known."""

    @property
    def otherwise(self) -> str | None:
        """Return the step of an attacher whose driver cannot attach; None if this driver can, or it is the same."""
        if isinstance(self.step, Nothing) or _is_surely_called(self.facts):
            return None
        return type(next_trivial_step(self.facts.attachment, self.facts.finalizer)).__name__


def explain(seen: AttachmentSeen, now: datetime) -> Explanation:
    attachment = seen.attachment
    driver = attacher_of(attachment)
    facts = AttachmentFacts(attachment, seen.volume, seen.node_id, driver, finalizer_of(driver))
    step = _known_step(facts, seen.unreadable)
    outlook = _Outlook(facts, step, seen.unreadable, seen.attach_required, _untouched_for(attachment, now))
    what, state, tried = _what(attachment, driver, now), _state(attachment, now), _tried(attachment, now)
    return Explanation(what, state, tried, _either_way(outlook), _fields(outlook))


def _is_surely_called(facts: AttachmentFacts) -> bool:
    """Return whether the driver is called to attach: only an attacher that calls it writes these fields."""
    if is_marked(facts.attachment):
        return False
    protected = (each for each in (facts.attachment, facts.volume) if each is not None)
    return any(objects.has_finalizer(each, facts.finalizer) for each in protected) or bool(_errors(facts.attachment))


def _known_step(facts: AttachmentFacts, unreadable: tuple[Unreadable, ...]) -> Step | UnknownStep:
    """Return the next step, if it is the same whatever the unreadable objects contain."""
    step = next_step(facts)
    kinds = {each.kind for each in unreadable}
    lacks_volume = PERSISTENT_VOLUME in kinds and isinstance(step, Refuse)
    lacks_node_id = CSI_NODE in kinds and _depends_on_the_node_id(facts)
    if lacks_volume or lacks_node_id:
        return UnknownStep(tuple(each for each in unreadable if each.kind != CSI_DRIVER))
    return step


def _depends_on_the_node_id(facts: AttachmentFacts) -> bool:
    any_id = recorded_node_id(facts.attachment) or "any"
    return next_step(replace(facts, node_id=any_id)) != next_step(facts)


def _fields(outlook: _Outlook) -> Mapping[str, Any]:
    facts, step = outlook.facts, outlook.step
    attachment, metadata = facts.attachment, objects.metadata(facts.attachment)
    return {
        "name": objects.name_of(attachment).name,
        "state": _state_word(outlook),
        "since": _since(attachment),
        "driver": facts.driver,
        "node": node_name_of(attachment),
        "nodeId": recorded_node_id(attachment) or facts.node_id,
        "persistentVolume": volume_name_of(attachment) or None,
        "attached": is_attached(attachment),
        "created": metadata.get("creationTimestamp"),
        "deleted": metadata.get("deletionTimestamp"),
        "errors": [{"of": what, **error} for what, error in _errors(attachment)],
        "nextStep": None if isinstance(step, UnknownStep) else type(step).__name__,
        "attachRequired": outlook.attach_required,
        "driverAttaches": True if _is_surely_called(facts) else None,
        "nextStepWhereItDoesNot": outlook.otherwise,
        "unreadable": [str(each) for each in outlook.unreadable],
    }


def _what(attachment: ApiObject, driver: str, now: datetime) -> str:
    volume = volume_name_of(attachment)
    which = f"the PersistentVolume {volume}" if volume else "a volume that it describes itself"
    created = ago(objects.metadata(attachment).get("creationTimestamp"), now)
    was_created = f", created{created}," if created else ""
    return (
        f"The VolumeAttachment {objects.name_of(attachment).name}{was_created} requests that {which} be attached to "
        f"the node {node_name_of(attachment)} by {driver}."
    )


def _state(attachment: ApiObject, now: datetime) -> str:
    if objects.is_being_deleted(attachment):
        attached = "still attached" if is_attached(attachment) else "not attached"
        return f"Being deleted{lasting(_since(attachment), now)}: the volume is to be detached, and is {attached}."
    # No object shows since when it is attached.
    return (
        "Attached: the volume is attached."
        if is_attached(attachment)
        else f"Pending{lasting(_since(attachment), now)}: {WAITS}"
    )


def _since(attachment: ApiObject) -> Any:
    metadata = objects.metadata(attachment)
    if objects.is_being_deleted(attachment):
        return metadata.get("deletionTimestamp")
    return None if is_attached(attachment) else metadata.get("creationTimestamp")


def _state_word(outlook: _Outlook) -> str:
    """Return one word for programs."""
    attachment = outlook.facts.attachment
    if isinstance(outlook.step, UnknownStep):
        return "Unknown"
    direction = "Detach" if objects.is_being_deleted(attachment) else "Attach"
    if direction == "Attach" and is_attached(attachment):
        return "Attached"
    return f"{direction}Fails" if _last_error(attachment) is not None else f"{direction}ing"


def _tried(attachment: ApiObject, now: datetime) -> tuple[str, ...]:
    tried = []
    for what, error in _errors(attachment):
        code = f" ({_code_name(error['errorCode'])})" if error.get("errorCode") is not None else ""
        tried.append(f"{what} failed{ago(error.get('time'), now)}{code}: {error.get('message') or 'without a reason'}")
    return tuple(tried)


def _errors(attachment: ApiObject) -> list[tuple[str, ApiObject]]:
    status = attachment.get("status")
    members = status if isinstance(status, Mapping) else {}
    kinds = ((ATTACHING, "attachError"), (DETACHING, "detachError"))
    return [(what, members[member]) for what, member in kinds if isinstance(members.get(member), Mapping)]


def _either_way(outlook: _Outlook) -> str:
    """Return both next steps if no object shows whether the driver can attach: only the driver itself knows."""
    if outlook.otherwise is None:
        return _next(outlook)
    otherwise = "its attacher marks it attached, and does nothing else."
    if outlook.otherwise == NOTHING:
        going = objects.is_being_deleted(outlook.facts.attachment)
        otherwise = "its attacher does nothing." if going else "it is as it should be."
    return f"{_likelihood(outlook)} If it can: {_next(outlook)} If it cannot: {otherwise}"


def _likelihood(outlook: _Outlook) -> str:
    which = "No object that may be read" if outlook.unreadable else "No object"
    unknown = f"{which} shows whether {outlook.facts.driver} can publish volumes (PUBLISH_UNPUBLISH_VOLUME)"
    signs = []
    if outlook.attach_required is False:
        signs.append("its CSIDriver has attachRequired: false")
    if is_marked(outlook.facts.attachment):
        signs.append("it could not when this was marked attached")
    elif is_attached(outlook.facts.attachment):
        signs.append("it is attached without an attacher's finalizer")
    return f"{unknown}: most likely it cannot, as {' and '.join(signs)}." if signs else f"{unknown}."


def _next(outlook: _Outlook) -> str:
    facts, step = outlook.facts, outlook.step
    match step:
        case UnknownStep(unreadable):
            listed = " and ".join(f"the {each}" for each in unreadable)
            text = f"Unknown: {listed} {UNREADABLE}, and the next step depends on that."
        case Nothing():
            text = WAITS_FOR_NOTHING if is_attached(facts.attachment) else _kept_by(facts)
        case Refuse(sentence):
            text = f"Nothing, until an admin fixes {_what_to_fix(sentence, facts)}{_perhaps_in_the_node(outlook)}"
        case Publish(source, node_id):
            text = _called(outlook, f"ControllerPublishVolume of {source.handle} to {node_id}")
        case Unpublish(source, node_id):
            text = _called(outlook, f"ControllerUnpublishVolume of {source.handle} from {node_id}")
        case UnpublishFormer(source, node_id, _):
            text = (
                f"The node had the id {node_id} when this was tried first, and has the id {facts.node_id} now: "
                f"{source.handle} is detached from the former (ControllerUnpublishVolume), then attached."
            )
        case ProtectVolume() | ProtectAttachment() | MarkDetached():
            action = f"The attacher of {facts.driver} {_action(step, facts)}."
            text = f"{action} {_if_it_does_not(outlook)}"
    return text


def _what_to_fix(sentence: str, facts: AttachmentFacts) -> str:
    """Return the sentence, unless it is already shown as the last failure."""
    last = _last_error(facts.attachment)
    if last is not None and last.get("message") == sentence:
        return "the cause of that failure."
    return f"it: {sentence}."


def _called(outlook: _Outlook, call: str) -> str:
    last = _last_error(outlook.facts.attachment)
    if last is None:
        return f"The driver is called: {call}. {_if_it_is_not(outlook)}"
    # An error without a code need not be the driver's: a secret that cannot be read is attachment before the call.
    if last.get("errorCode") is None:
        return f"It is retried {RETRIED}; once that is fixed, the driver is called: {call}."
    return f"The driver is called again, {RETRIED}: {call}."


def _if_it_is_not(outlook: _Outlook) -> str:
    quiet = outlook.untouched_for
    waiting = (
        f"No result has been recorded for {quiet}: if that does not change" if quiet else "If no result is recorded"
    )
    return f"{waiting}, no attacher of {outlook.facts.driver} is running, or the driver does not respond."


def _if_it_does_not(outlook: _Outlook) -> str:
    if _last_error(outlook.facts.attachment) is not None:
        return f"It is retried {RETRIED}."
    if not outlook.untouched_for:
        return "If that does not happen, none is running."
    return (
        f"No attacher of {outlook.facts.driver} has touched it for {outlook.untouched_for}: "
        "if that does not change, none is running."
    )


def _perhaps_in_the_node(outlook: _Outlook) -> str:
    # The Node counts only if the CSINode does not have the driver's id.
    node = next((each for each in outlook.unreadable if each.kind == NODE), None)
    if node is None or not _depends_on_the_node_id(outlook.facts):
        return ""
    return f" Unless the {node} has it, in its annotation {NODE_IDS_ANNOTATION}: that {UNREADABLE}."


def _last_error(attachment: ApiObject) -> ApiObject | None:
    """Return the error of the current direction: that of attaching stays on an object that is being detached."""
    tried = DETACHING if objects.is_being_deleted(attachment) else ATTACHING
    return next((error for what, error in _errors(attachment) if what == tried), None)


def _code_name(code: object) -> str:
    """Return the code's name, such as NOT_FOUND, and its number."""
    return next((f"{known.name}, code {known.value}" for known in Code if known.value == code), f"code {code}")


def _action(step: ProtectVolume | ProtectAttachment | MarkDetached, facts: AttachmentFacts) -> str:
    match step:
        case ProtectVolume(volume, _):
            return f"adds its finalizer to the PersistentVolume {volume}, and then attaches"
        case ProtectAttachment():
            return "adds its finalizer and the node's id to this object, and then attaches"
        case MarkDetached():
            then = "" if objects.is_being_deleted(facts.attachment) else ", and then attaches"
            was_marked = is_marked(facts.attachment)
            reason = "the driver could not attach when it was set" if was_marked else "its finalizer is missing"
            return f"resets `attached`, since {reason}{then}"


def _kept_by(facts: AttachmentFacts) -> str:
    finalizers = ", ".join(objects.finalizers(facts.attachment))
    if finalizers:
        return f"It is detached; other finalizers keep it: {finalizers}."
    recorded = recorded_node_id(facts.attachment)
    return "Nothing." if recorded is None else f"Nothing: it was detached from {recorded}."


def _untouched_for(attachment: ApiObject, now: datetime) -> str:
    # No field shows when an object was attached.
    if is_attached(attachment) and not objects.is_being_deleted(attachment):
        return ""
    metadata = objects.metadata(attachment)
    stamps = [metadata.get("creationTimestamp"), metadata.get("deletionTimestamp")]
    times = [
        time for text in (*stamps, *(error.get("time") for _, error in _errors(attachment))) if (time := moment(text))
    ]
    return length(now - max(times)) if times else ""
