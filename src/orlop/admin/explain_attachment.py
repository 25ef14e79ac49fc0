"""What a VolumeAttachment waits for, in words: from the objects alone, by the rules that the attacher goes by. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Final

from orlop.csi.error_codes import Code
from orlop.kube import objects
from orlop.kube.kinds import CSI_DRIVER, CSI_NODE, NODE, PERSISTENT_VOLUME, Kind
from orlop.kube.objects import InvalidTime, read_time
from orlop.sidecars.attacher.attach_rules import (
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
    next_step,
    node_name_of,
    recorded_node_id,
)
from orlop.sidecars.attacher.attacher_name_rules import NODE_IDS_ANNOTATION, finalizer_of
from orlop.sidecars.attacher.trivial_rules import next_trivial_step
from orlop.sidecars.attacher.volume_source_rules import volume_name_of

Json = Mapping[str, Any]
ATTACHING: Final = "Attaching"
DETACHING: Final = "Detaching"
NOTHING: Final = Nothing.__name__
AS_IT_SHOULD_BE: Final = "nothing, it is as it should be."
WITHOUT_FINALIZER: Final = "this is attached without the finalizer of an attacher that asks it"
AGAIN: Final = "again, later each time, by default five minutes at most"
UNREADABLE: Final = "may not be read with these credentials"


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An object that whoever asks may not read: not even whether it is there is known."""

    kind: Kind
    name: str

    def __str__(self) -> str:
        return f"{self.kind.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class AttachmentSeen:
    """`node_id` is what the driver calls the node at present, where somebody says so."""

    attachment: Json
    volume: Json | None
    node_id: str | None
    unreadable: tuple[Unreadable, ...] = ()
    attach_required: bool | None = None
    """As the CSIDriver says, where there is one. It is not the same as whether the driver can attach."""


@dataclass(frozen=True, slots=True)
class CannotBeTold:
    """It depends on something that may not be read."""

    unreadable: tuple[Unreadable, ...]


@dataclass(frozen=True, slots=True)
class _Outlook:
    """What is known, and what comes next as far as that tells."""

    facts: AttachmentFacts
    step: Step | CannotBeTold
    unreadable: tuple[Unreadable, ...]
    attach_required: bool | None
    untouched_for: str
    """How long no attacher has told anything on it; empty where that is not known."""

    @property
    def otherwise(self) -> str | None:
        """What the attacher of a driver that attaches nothing does; None: this driver attaches, or it is the same."""
        if isinstance(self.step, Nothing) or _is_surely_asked(self.facts):
            return None
        return type(next_trivial_step(self.facts.attachment, self.facts.finalizer)).__name__


@dataclass(frozen=True, slots=True)
class Explanation:
    what: str
    state: str
    tried: tuple[str, ...]
    """What failed, and when."""
    next: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    """The same for programs."""


def explain(seen: AttachmentSeen, now: datetime) -> Explanation:
    found = seen.attachment
    driver = attacher_of(found)
    facts = AttachmentFacts(found, seen.volume, seen.node_id, driver, finalizer_of(driver))
    step = _known_step(facts, seen.unreadable)
    outlook = _Outlook(facts, step, seen.unreadable, seen.attach_required, _untouched_for(found, now))
    what, state, tried = _what(found, driver), _state(found, now), _tried(found, now)
    return Explanation(what, state, tried, _either_way(outlook), _fields(outlook))


def _is_surely_asked(facts: AttachmentFacts) -> bool:
    """The driver, to attach and to detach: these are written by nobody who does not ask it."""
    protected = (each for each in (facts.attachment, facts.volume) if each is not None)
    return any(objects.has_finalizer(each, facts.finalizer) for each in protected) or bool(_errors(facts.attachment))


def _known_step(facts: AttachmentFacts, unreadable: tuple[Unreadable, ...]) -> Step | CannotBeTold:
    """Only one that is the same whatever stands in what may not be read."""
    step = next_step(facts)
    kinds = {each.kind for each in unreadable}
    of_no_volume = PERSISTENT_VOLUME in kinds and isinstance(step, Refuse)
    of_no_node_id = CSI_NODE in kinds and _depends_on_the_node_id(facts)
    if of_no_volume or of_no_node_id:
        return CannotBeTold(tuple(each for each in unreadable if each.kind != CSI_DRIVER))
    return step


def _depends_on_the_node_id(facts: AttachmentFacts) -> bool:
    """Where that is not known."""
    any_id = recorded_node_id(facts.attachment) or "any"
    return next_step(replace(facts, node_id=any_id)) != next_step(facts)


def _fields(outlook: _Outlook) -> Mapping[str, Any]:
    facts, step = outlook.facts, outlook.step
    found, metadata = facts.attachment, objects.metadata(facts.attachment)
    return {
        "name": objects.name_of(found).name,
        "driver": facts.driver,
        "node": node_name_of(found),
        "nodeId": recorded_node_id(found) or facts.node_id,
        "persistentVolume": volume_name_of(found) or None,
        "attached": is_attached(found),
        "created": metadata.get("creationTimestamp"),
        "deleted": metadata.get("deletionTimestamp"),
        "errors": [{"of": what, **error} for what, error in _errors(found)],
        "nextStep": None if isinstance(step, CannotBeTold) else type(step).__name__,
        "attachRequired": outlook.attach_required,
        "driverAttaches": True if _is_surely_asked(facts) else None,
        "nextStepWhereItDoesNot": outlook.otherwise,
        "unreadable": [str(each) for each in outlook.unreadable],
    }


def _what(found: Json, driver: str) -> str:
    volume = volume_name_of(found)
    which = f"the PersistentVolume {volume}" if volume else "a volume that it describes itself"
    name, node = objects.name_of(found).name, node_name_of(found)
    if objects.is_being_deleted(found):
        return f"{name} is being deleted: {which} is to be detached from the node {node} by {driver}."
    return f"{name} asks that {which} be attached to the node {node} by {driver}."


def _state(found: Json, now: datetime) -> str:
    asked = _ago(objects.metadata(found).get("creationTimestamp"), now)
    if objects.is_being_deleted(found):
        since = _ago(objects.metadata(found).get("deletionTimestamp"), now)
        attached = "still attached" if is_attached(found) else "not attached"
        return f"Its deletion was asked for{since}; it is {attached}."
    return (
        f"It was asked for{asked}, and is attached." if is_attached(found) else f"It was asked for{asked}, and waits."
    )


def _tried(found: Json, now: datetime) -> tuple[str, ...]:
    told = []
    for what, error in _errors(found):
        code = f" ({_code_name(error['errorCode'])})" if error.get("errorCode") is not None else ""
        told.append(f"{what} failed{_ago(error.get('time'), now)}{code}: {error.get('message') or 'no reason is told'}")
    return tuple(told)


def _errors(found: Json) -> list[tuple[str, Json]]:
    status = found.get("status")
    told = status if isinstance(status, Mapping) else {}
    kinds = ((ATTACHING, "attachError"), (DETACHING, "detachError"))
    return [(what, told[member]) for what, member in kinds if isinstance(told.get(member), Mapping)]


def _either_way(outlook: _Outlook) -> str:
    """Only the driver itself says whether it attaches; where it does not, its attacher only tells so."""
    if outlook.otherwise is None:
        return _next(outlook)
    otherwise = "its attacher tells that it is attached, and does nothing else."
    if outlook.otherwise == NOTHING:
        going = objects.is_being_deleted(outlook.facts.attachment)
        otherwise = "its attacher does nothing." if going else AS_IT_SHOULD_BE
    return f"{_what_speaks_against(outlook)} If it can: {_next(outlook)} If it cannot: {otherwise}"


def _what_speaks_against(outlook: _Outlook) -> str:
    which = "No object that may be read" if outlook.unreadable else "No object"
    told = f"{which} says whether {outlook.facts.driver} can publish volumes (PUBLISH_UNPUBLISH_VOLUME)"
    signs = [
        *(["its CSIDriver has attachRequired: false"] if outlook.attach_required is False else []),
        *([WITHOUT_FINALIZER] if is_attached(outlook.facts.attachment) else []),
    ]
    return f"{told}: most likely it cannot, as {' and '.join(signs)}." if signs else f"{told}."


def _next(outlook: _Outlook) -> str:
    facts, step = outlook.facts, outlook.step
    match step:
        case CannotBeTold(unreadable):
            them = " and ".join(f"the {each}" for each in unreadable)
            told = f"It cannot be told: {them} {UNREADABLE}, and what comes next depends on that."
        case Nothing():
            told = AS_IT_SHOULD_BE if is_attached(facts.attachment) else _waits_for_others(facts)
        case Refuse(sentence):
            told = f"Nothing, until somebody mends {_what_to_mend(sentence, facts)}{_perhaps_in_the_node(outlook)}"
        case Publish(source, node_id):
            told = _asked(outlook, f"ControllerPublishVolume of {source.handle} to {node_id}")
        case Unpublish(source, node_id):
            told = _asked(outlook, f"ControllerUnpublishVolume of {source.handle} from {node_id}")
        case UnpublishFormer(source, node_id, _):
            told = (
                f"The node was called {node_id} when this was tried first, and is called {facts.node_id} now: "
                f"{source.handle} is taken back from the former (ControllerUnpublishVolume), then attached."
            )
        case ProtectVolume() | ProtectAttachment() | MarkDetached():
            doing = f"The attacher of {facts.driver} {_what_it_does(step, facts)}."
            told = f"{doing} {_if_it_does_not(outlook)}"
    return told


def _what_to_mend(sentence: str, facts: AttachmentFacts) -> str:
    """Not a second time where it was told as what was tried."""
    last = _last_error(facts.attachment)
    if last is not None and last.get("message") == sentence:
        return "what it failed for."
    return f"it: {sentence}" if sentence.endswith("?") else f"it: {sentence}."


def _asked(outlook: _Outlook, call: str) -> str:
    """An error without a code may be none of the driver's: that of a secret that cannot be read comes before it."""
    last = _last_error(outlook.facts.attachment)
    if last is None:
        return f"The driver is asked: {call}. {_if_it_is_not(outlook)}"
    if last.get("errorCode") is None:
        return f"It is tried {AGAIN}; once what it failed for is mended, the driver is asked: {call}."
    return f"The driver is asked {AGAIN}: {call}."


def _if_it_is_not(outlook: _Outlook) -> str:
    quiet = outlook.untouched_for
    waiting = f"No outcome has been told for {quiet}: if that stays so" if quiet else "If no outcome is told"
    return f"{waiting}, no attacher of {outlook.facts.driver} is running, or the driver does not answer."


def _if_it_does_not(outlook: _Outlook) -> str:
    if _last_error(outlook.facts.attachment) is not None:
        return f"It is tried {AGAIN}."
    if not outlook.untouched_for:
        return "If that does not happen, none is running."
    return (
        f"No attacher of {outlook.facts.driver} has touched it for {outlook.untouched_for}: "
        "if that stays so, none is running."
    )


def _perhaps_in_the_node(outlook: _Outlook) -> str:
    """It is read only where the CSINode does not say what the driver calls the node."""
    node = next((each for each in outlook.unreadable if each.kind == NODE), None)
    if node is None or not _depends_on_the_node_id(outlook.facts):
        return ""
    return f" Unless the {node} says it, in its annotation {NODE_IDS_ANNOTATION}: that {UNREADABLE}."


def _last_error(found: Json) -> Json | None:
    """In what is being tried now: what failed in attaching stays there while it is detached."""
    tried = DETACHING if objects.is_being_deleted(found) else ATTACHING
    return next((error for what, error in _errors(found) if what == tried), None)


def _code_name(code: object) -> str:
    """As people know it: NOT_FOUND."""
    return next((f"{known.name}, code {known.value}" for known in Code if known.value == code), f"code {code}")


def _what_it_does(step: ProtectVolume | ProtectAttachment | MarkDetached, facts: AttachmentFacts) -> str:
    match step:
        case ProtectVolume(volume, _):
            return f"sets its finalizer on the PersistentVolume {volume}, and then attaches"
        case ProtectAttachment():
            return "sets its finalizer and the node's id on this object, and then attaches"
        case MarkDetached():
            then = "" if objects.is_being_deleted(facts.attachment) else ", and then attaches"
            return f"takes back that it is attached, since the finalizer that it sets before is missing{then}"


def _waits_for_others(facts: AttachmentFacts) -> str:
    finalizers = ", ".join(objects.finalizers(facts.attachment))
    if finalizers:
        return f"It is detached, and kept by others: {finalizers}."
    recorded = recorded_node_id(facts.attachment)
    return "Nothing." if recorded is None else f"Nothing: it was detached from {recorded}."


def _untouched_for(found: Json, now: datetime) -> str:
    """When it was told to be attached stands nowhere."""
    if is_attached(found) and not objects.is_being_deleted(found):
        return ""
    metadata = objects.metadata(found)
    told = [metadata.get("creationTimestamp"), metadata.get("deletionTimestamp")]
    times = [time for text in (*told, *(error.get("time") for _, error in _errors(found))) if (time := _time(text))]
    return _length(now - max(times)) if times else ""


def _ago(text: Any, now: datetime) -> str:
    time = _time(text)
    return "" if time is None else f" {_length(now - time)} ago"


def _time(text: Any) -> datetime | None:
    try:
        return read_time(text)
    except (InvalidTime, TypeError):
        return None


def _length(elapsed: timedelta) -> str:
    seconds = max(0, int(elapsed.total_seconds()))
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
