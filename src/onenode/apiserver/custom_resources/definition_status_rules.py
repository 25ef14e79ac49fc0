"""The status of a CustomResourceDefinition: which of its names are accepted, whether it is established, what is stored.

Kubernetes has controllers that write these conditions one after the other. One server decides at once: the status is
part of the write that creates or changes the definition, so the next request finds the kind served. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.custom_resources.definition_rules import APPROVAL, is_established, is_protected
from onenode.apiserver.schema.creation_rules import CreationContext
from onenode.go_text import quoted

Object = dict[str, Any]
Definitions = Sequence[Mapping[str, Any]]

CLEANUP: Final = "customresourcecleanup.apiextensions.k8s.io"
ACCEPTED: Final = "the initial names have been accepted"
MARKED: Final = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
_COMPLETED: Final = ("InstanceDeletionCompleted", "removed all instances")
_NEVER_ESTABLISHED: Final = ("NeverEstablished", "resource was never established")
# Names of one kind of definition: plurals, singulars and short names share a space, kinds and list kinds another.
RESOURCES: Final = ("plural", "singular", "shortNames")
KINDS: Final = ("kind", "listKind")
NAMES: Final = (*RESOURCES, *KINDS)


def new_definition(obj: Object, around: CreationContext) -> Object:
    return with_status({**obj, "status": {}}, around.definitions, around.now)


def with_status(obj: Object, definitions: Definitions, now: str) -> Object:
    """Return the definition with its status brought up to date; `definitions` are all others."""
    spec, status = obj["spec"], obj.get("status", {})
    group, name = spec.get("group"), obj["metadata"].get("name")
    others = [each for each in definitions if each["spec"].get("group") == group and each["metadata"]["name"] != name]
    accepted, conflict = _accepted_names(spec.get("names", {}), status.get("acceptedNames", {}), others)
    conditions = _conditions(obj, conflict, now)
    storage = [each["name"] for each in spec.get("versions", []) if each.get("storage") and "name" in each]
    stored = list(dict.fromkeys([*status.get("storedVersions", []), *storage]))
    written = {"conditions": conditions, "acceptedNames": accepted, "storedVersions": stored}
    return {**obj, "status": {**status, **written}}


def with_condition(conditions: Iterable[Mapping[str, Any]], new: Mapping[str, Any]) -> list[Object]:
    """Return the conditions with one added or replaced; its time moves only with its status."""
    replaced, added = [], False
    for each in conditions:
        if each.get("type") != new["type"]:
            replaced.append(dict(each))
            continue
        same = each.get("status") == new["status"] and "lastTransitionTime" in each
        replaced.append({**each, **new, **({"lastTransitionTime": each["lastTransitionTime"]} if same else {})})
        added = True
    return replaced if added else [*replaced, dict(new)]


def condition(type_: str, now: str, reason: str, message: str, *, status: bool = True) -> Object:
    texts = {"status": "True" if status else "False", "lastTransitionTime": now, "reason": reason, "message": message}
    return {"type": type_, **texts}


def terminating(old: Mapping[str, Any], now: str) -> Object:
    """Return the definition as a deletion marks it; its finalizer is taken off when no object is left."""
    metadata = old["metadata"]
    if metadata.get("deletionTimestamp"):
        return dict(old)
    finalizers = [*(each for each in metadata.get("finalizers", []) if each != CLEANUP), CLEANUP]
    ending = _with_end(old, condition("Terminating", now, "InstanceDeletionPending", MARKED))
    return {**ending, "metadata": {**metadata, "finalizers": finalizers}}


def emptying(old: Mapping[str, Any], now: str) -> Object:
    """Return an ending definition with the condition that its objects are being deleted."""
    going = condition("Terminating", now, "InstanceDeletionInProgress", "CustomResource deletion is in progress")
    return _with_end(old, going)


def emptied(old: Mapping[str, Any], now: str) -> Object:
    """Return an ending definition of which no object is left, without the finalizer that held it."""
    reason, message = _COMPLETED if is_established(old) else _NEVER_ESTABLISHED
    metadata = old["metadata"]
    finalizers = [each for each in metadata.get("finalizers", []) if each != CLEANUP]
    ending = _with_end(old, condition("Terminating", now, reason, message, status=False))
    return {**ending, "metadata": {**metadata, "finalizers": finalizers}}


def _with_end(old: Mapping[str, Any], end: Mapping[str, Any]) -> Object:
    status = old.get("status", {})
    return {**old, "status": {**status, "conditions": with_condition(status.get("conditions", []), end)}}


def is_served(definition: Mapping[str, Any]) -> bool:
    conditions = definition.get("status", {}).get("conditions", [])
    true = {each.get("type") for each in conditions if each.get("status") == "True"}
    return bool(true & {"Established", "NamesAccepted"})


def waits_for_names(definition: Mapping[str, Any]) -> bool:
    """Return whether another definition had one of its names when they were last compared."""
    conditions = definition.get("status", {}).get("conditions", [])
    return any(each.get("type") == "NamesAccepted" and each.get("status") != "True" for each in conditions)


# ---- names -----------------------------------------------------------------------------------------------------------


def _accepted_names(
    requested: Mapping[str, Any], before: Mapping[str, Any], others: Definitions
) -> tuple[Object, tuple[str, str] | None]:
    """Return the names that are served, and the last conflict as a reason and a name."""
    taken = [each.get("status", {}).get("acceptedNames", {}) for each in others]
    resources = {name for each in taken for name in _names(each, RESOURCES)}
    kinds = {name for each in taken for name in _names(each, KINDS)}
    accepted: Object = {"plural": "", "kind": "", **before}
    conflict: tuple[str, str] | None = None
    for field in NAMES:
        clash = next(
            (name for name in _names(requested, (field,)) if name in (kinds if field in KINDS else resources)), ""
        )
        if clash:
            conflict = (f"{field[0].upper()}{field[1:]}Conflict", clash)
        elif field in requested:
            accepted[field] = requested[field]
        else:
            accepted.pop(field, None)
    if "categories" in requested:
        accepted["categories"] = requested["categories"]
    return accepted, conflict


def _names(names: Mapping[str, Any], fields: Iterable[str]) -> list[str]:
    values = [names.get(field, []) for field in fields]
    return [name for value in values for name in ([value] if isinstance(value, str) else value) if name]


def _conditions(obj: Mapping[str, Any], conflict: tuple[str, str] | None, now: str) -> list[Object]:
    conditions = obj.get("status", {}).get("conditions", [])
    if conflict is None:
        named = condition("NamesAccepted", now, "NoConflicts", "no conflicts found")
        established = condition("Established", now, "InitialNamesAccepted", ACCEPTED)
    else:
        message = f"{quoted(conflict[1])} is already in use"
        named = condition("NamesAccepted", now, conflict[0], message, status=False)
        established = condition("Established", now, "NotAccepted", "not all names are accepted", status=False)
    conditions = with_condition(conditions, named)
    # Once established it stays so, whatever names are added later.
    if not is_established(obj):
        conditions = with_condition(conditions, established)
    return with_condition(conditions, approval) if (approval := _approval(obj, now)) else conditions


def _approval(obj: Mapping[str, Any], now: str) -> Object | None:
    annotation = obj["metadata"].get("annotations", {}).get(APPROVAL, "")
    if not annotation or not is_protected(obj["spec"].get("group", "")):
        return None
    type_ = "KubernetesAPIApprovalPolicyConformant"
    if annotation.startswith("unapproved"):
        return condition(type_, now, "UnapprovedAnnotation", f"not approved: {quoted(annotation)}", status=False)
    return condition(type_, now, "ApprovedAnnotation", f"approved in {annotation}")
