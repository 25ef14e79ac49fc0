"""The metadata of an object: what the server sets at its creation, what never changes, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from onenode.apiserver.schema import name_rules
from onenode.apiserver.schema.field_errors import Cause, forbidden, invalid, not_supported, required, too_long
from onenode.apiserver.schema.field_rules import NOT_NEGATIVE, labels, named_well, unchanged, without
from onenode.apiserver.schema.name_rules import NameCheck
from onenode.go_text import quoted

Metadata = Mapping[str, Any]

PATH: Final = "metadata"
# A generated name is this much of what was asked for, and five characters.
LONGEST_GENERATED_BASE: Final = 58
MOST_ANNOTATION_BYTES: Final = 256 * 1024
# Kubernetes reports each of them, with the whole list each time: for a long list that would be gigabytes.
MOST_CONTROLLERS_REPORTED: Final = 4
LONGEST_MANAGER: Final = 128
LONGEST_SUBRESOURCE: Final = 256
STANDARD_FINALIZERS: Final = frozenset({"kubernetes", "orphan", "foregroundDeletion"})
UNQUALIFIED: Final = "name is neither a standard finalizer name nor is it fully qualified"

# What a client cannot give to a new object.
SET_BY_THE_SERVER: Final = (
    *("uid", "creationTimestamp", "selfLink", "generation", "deletionTimestamp", "deletionGracePeriodSeconds"),
)
# What /status keeps of the old object, where a kind's /status leaves metadata alone.
KEPT_BY_STATUS: Final = ("labels", "annotations", "finalizers", "ownerReferences", "selfLink")


def at_creation(metadata: Metadata, *, uid: str, now: str, namespace: str | None, name_suffix: str) -> dict[str, Any]:
    """The metadata of a new object: named, placed and dated."""
    made = _without_reset(without(metadata, SET_BY_THE_SERVER))
    if not made.get("name") and made.get("generateName"):
        made["name"] = made["generateName"][:LONGEST_GENERATED_BASE] + name_suffix
    if namespace is not None:
        made["namespace"] = namespace
    return {**made, "uid": uid, "creationTimestamp": now}


def after_update(old: Metadata, new: Metadata) -> dict[str, Any]:
    """What the new object says, without what no update can change."""
    made = {**new, "uid": new.get("uid") or old.get("uid")}
    for field in ("creationTimestamp", "generation"):
        made[field] = old.get(field)
    if old.get("deletionTimestamp"):
        made["deletionTimestamp"] = old["deletionTimestamp"]
    if made.get("deletionGracePeriodSeconds") is None:
        made["deletionGracePeriodSeconds"] = old.get("deletionGracePeriodSeconds")
    return _without_reset({key: value for key, value in made.items() if value is not None})


def _without_reset(metadata: dict[str, Any]) -> dict[str, Any]:
    """One empty entry of managedFields is how a client drops all of them."""
    return without(metadata, ["managedFields"]) if metadata.get("managedFields") == [{}] else metadata


def with_old_fields(old: Metadata, new: Metadata, fields: Sequence[str]) -> dict[str, Any]:
    """The new metadata with these fields as they were, absence included."""
    return {**without(new, fields), **{field: old[field] for field in fields if field in old}}


def creation_causes(
    metadata: Metadata, *, namespaced: bool, check: NameCheck, qualified_finalizers: bool
) -> Iterator[Cause]:
    if metadata.get("generateName"):
        wrong = name_rules.as_prefix(check)(metadata["generateName"])
        yield from (invalid(f"{PATH}.generateName", metadata["generateName"], sentence) for sentence in wrong)
    if not metadata.get("name"):
        yield required(f"{PATH}.name", "name or generateName is required")
    else:
        yield from named_well(check, metadata["name"], f"{PATH}.name")
    yield from _namespace(metadata, namespaced=namespaced)
    yield from _common(metadata)
    yield from _finalizers(metadata, qualified=qualified_finalizers)


def update_causes(old: Metadata, new: Metadata, *, qualified_finalizers: bool) -> Iterator[Cause]:
    if old.get("deletionTimestamp"):
        yield from _no_new_finalizers(old, new)
    for field in ("name", "namespace", "uid", "deletionTimestamp", "deletionGracePeriodSeconds"):
        yield from unchanged(old.get(field), new.get(field), f"{PATH}.{field}")
    if new.get("generation", 0) < 0:
        yield invalid(f"{PATH}.generation", new["generation"], NOT_NEGATIVE)
    yield from _common(new)
    yield from _finalizers(new, qualified=qualified_finalizers)


def _namespace(metadata: Metadata, *, namespaced: bool) -> Iterator[Cause]:
    namespace = metadata.get("namespace")
    if namespaced and not namespace:
        yield required(f"{PATH}.namespace")
    elif namespaced:
        yield from named_well(name_rules.dns_label, str(namespace), f"{PATH}.namespace")
    elif namespace:
        yield forbidden(f"{PATH}.namespace", "not allowed on this type")


def _common(metadata: Metadata) -> Iterator[Cause]:
    yield from labels(metadata.get("labels"), f"{PATH}.labels")
    yield from annotation_causes(metadata.get("annotations", {}), f"{PATH}.annotations")
    yield from _owners(metadata.get("ownerReferences", []))
    yield from _managed_fields(metadata.get("managedFields", []))


def annotation_causes(given: Mapping[str, str], path: str) -> Iterator[Cause]:
    for key in given:
        yield from (invalid(path, key, sentence) for sentence in name_rules.label_key(key.lower()))
    if sum(len(key.encode()) + len(value.encode()) for key, value in given.items()) > MOST_ANNOTATION_BYTES:
        yield too_long(path, MOST_ANNOTATION_BYTES)


def _owners(owners: Sequence[Metadata]) -> Iterator[Cause]:
    controllers = []
    for place, owner in enumerate(owners):
        yield from _owner(owner, f"{PATH}.ownerReferences[{place}]")
        if owner.get("controller"):
            controllers.append(f"{owner.get('kind', '')}/{owner.get('name', '')}")
    for other in controllers[1 : 1 + MOST_CONTROLLERS_REPORTED]:
        yield invalid(
            f"{PATH}.ownerReferences",
            list(owners),
            "Only one reference can have Controller set to true. "
            f'Found "true" in references for {controllers[0]} and {other}',
        )


def _owner(owner: Metadata, path: str) -> Iterator[Cause]:
    version = owner.get("apiVersion", "")
    if not version:
        yield required(f"{path}.apiVersion", "must not be empty")
    elif version.count("/") > 1 or version.endswith("/"):
        yield invalid(f"{path}.apiVersion", version, "must be <group>/<version> or <version>")
    for field in ("kind", "name", "uid"):
        if not owner.get(field):
            yield required(f"{path}.{field}", "must not be empty")
    if (version, owner.get("kind")) == ("v1", "Event"):
        yield invalid(path, dict(owner), "/v1, Kind=Event is disallowed from being an owner")


def _managed_fields(entries: Sequence[Metadata]) -> Iterator[Cause]:
    for place, entry in enumerate(entries):
        path = f"{PATH}.managedFields[{place}]"
        operation = entry.get("operation", "")
        if not operation:
            yield required(f"{path}.operation", "must not be empty")
        elif operation not in {"Apply", "Update"}:
            yield not_supported(f"{path}.operation", operation, ("Apply", "Update"))
        if entry.get("fieldsType") not in {None, "", "FieldsV1"}:
            yield invalid(f"{path}.fieldsType", entry["fieldsType"], "must be `FieldsV1`")
        if len(entry.get("manager", "").encode()) > LONGEST_MANAGER:
            yield too_long(f"{path}.manager", LONGEST_MANAGER)
        if len(entry.get("subresource", "").encode()) > LONGEST_SUBRESOURCE:
            yield too_long(f"{path}.subresource", LONGEST_SUBRESOURCE)


def _finalizers(metadata: Metadata, *, qualified: bool) -> Iterator[Cause]:
    finalizers = metadata.get("finalizers", [])
    for finalizer in finalizers:
        yield from named_well(name_rules.label_key, finalizer, f"{PATH}.finalizers")
    if {"orphan", "foregroundDeletion"} <= set(finalizers):
        why = "finalizer orphan and foregroundDeletion cannot be both set"
        yield invalid(f"{PATH}.finalizers", list(finalizers), why)
    if qualified:
        for place, finalizer in enumerate(finalizers):
            yield from qualified_finalizer(finalizer, f"{PATH}.finalizers[{place}]")


def qualified_finalizer(finalizer: str, path: str) -> Iterator[Cause]:
    if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
        yield invalid(path, finalizer, UNQUALIFIED)


def finalizer_warnings(old: Metadata, new: Metadata) -> Iterator[str]:
    """Yield what a client is warned of in finalizers that it adds to a custom resource; built-in kinds refuse them."""
    for finalizer in sorted(set(new.get("finalizers", ())) - set(old.get("finalizers", ()))):
        field = f"{PATH}.finalizers: {quoted(finalizer)}"
        yield from (f"{field}: {why}" for why in name_rules.label_key(finalizer))
        if "/" not in finalizer and finalizer not in STANDARD_FINALIZERS:
            with_path = " including a path (/)" if "." in finalizer else ""
            preferred = f"prefer a domain-qualified finalizer name{with_path}"
            yield f"{field}: {preferred} to avoid accidental conflicts with other finalizer writers"


def _no_new_finalizers(old: Metadata, new: Metadata) -> Iterator[Cause]:
    added = sorted(set(new.get("finalizers", [])) - set(old.get("finalizers", [])))
    if added:
        found = f"[]string{{{', '.join(quoted(each) for each in added)}}}"
        why = f"no new finalizers can be added if the object is being deleted, found new finalizers {found}"
        yield forbidden(f"{PATH}.finalizers", why)


def missing_version() -> Cause:
    """For kinds that are never replaced without the version that was read."""
    return invalid(f"{PATH}.resourceVersion", 0, "must be specified for an update")
