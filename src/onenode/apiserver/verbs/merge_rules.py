"""Strategic merge patch: what a patch makes of an object, exactly as Kubernetes decides it.

Objects are merged field by field; null takes a field away. A list is replaced whole, unless the schema says it is
merged: lists of objects by their merge key, lists of plain values as sets. Directives in the patch:

- `$patch: replace` beside the fields of an object, or alone as an item of a merged list: no merging, the patch stands;
  `$patch: delete`: the object becomes empty, or the item with that merge key goes.
- `$retainKeys: [...]`: what the object has besides these goes.
- `$deleteFromPrimitiveList/f: [...]`: these values go from the list f.
- `$setElementOrder/f: [...]`: the order of the items of f named there (order_rules decides the whole of it).

As in Kubernetes, `$patch: merge` is refused (it is what happens anyway). Unlike there, an order for a list that is
empty on both sides is no error: it changes nothing.

A patch comes from anybody: a list is merged in little more than linear time, and a patch that names the same item again
and again, so that long lists would be merged many times, is refused. Refusals name fields and types and never quote a
value, of the patch or of the object: it may be a Secret.

Neither the object nor the patch is changed. `apply` gives a new object, which may still hold what no schema knows (a
directive in the wrong place, a null inside a list): decoding it drops that, as Kubernetes does. A patch that cannot be
applied raises MergeRefused.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from onenode.apiserver.schema.json_values import copied
from onenode.apiserver.schema.schemas import Definition, Field, ListType, ReferenceType, Schemas
from onenode.apiserver.verbs.order_rules import KeyedItems, identity, in_order
from onenode.go_text import go_type

DIRECTIVE: Final = "$patch"
RETAIN_KEYS: Final = "$retainKeys"
DELETE_FROM_LIST: Final = "$deleteFromPrimitiveList"
ELEMENT_ORDER: Final = "$setElementOrder"

BAD_REQUEST: Final = 400
TOO_LARGE: Final = 413
UNPROCESSABLE: Final = 422
# What Kubernetes answers where it did not foresee the mistake.
UNFORESEEN: Final = 500

# Many times what any object has; more would take seconds, and nobody else is served meanwhile.
MOST_MERGED_ITEMS: Final = 250_000
LONGEST_NAMES: Final = 200

_BAD_ORDER: Final = "invalid patch format of setElementOrder list"
_BAD_RETAIN_KEYS: Final = "invalid patch format of retainKeys"
_BAD_DELETE_LIST: Final = "invalid patch format of primitive list"

Object = dict[str, Any]


class MergeRefused(Exception):
    """The patch cannot be applied; `code` is the HTTP status Kubernetes gives it."""

    def __init__(self, message: str, code: int = UNFORESEEN) -> None:
        super().__init__(message)
        self.code = code


def apply(schemas: Schemas, definition: Definition, original: Mapping[str, Any], patch: Mapping[str, Any]) -> Object:
    """What the patch makes of the original, an object of this definition."""
    return _Merge(schemas).objects(copied(original), copied(patch), definition)


class _Merge:
    """One application of a patch: it owns both trees, and moves parts of the patch into the original."""

    __slots__ = ("_merged_items", "_schemas")

    def __init__(self, schemas: Schemas) -> None:
        self._schemas = schemas
        self._merged_items = 0

    def objects(self, original: Object, patch: Object, definition: Definition | None) -> Object:
        if DIRECTIVE in patch:
            return _directed(patch)
        _retain_keys(original, patch)
        self._order_lists(original, patch, definition)
        for key in sorted(patch, key=_deletions_first):
            self._field(original, key, patch[key], definition)
        return original

    def _field(self, original: Object, key: str, value: Any, definition: Definition | None) -> None:
        deleting = key.startswith(DELETE_FROM_LIST)
        name = _after_slash(key, DELETE_FROM_LIST, _BAD_DELETE_LIST) if deleting else key
        if value is None:
            original.pop(name, None)
        elif name not in original or go_type(original[name]) != go_type(value):
            if not deleting:
                _place(original, name, _without_nulls(value))
        elif isinstance(value, dict):
            original[name] = self._object_field(original[name], value, _field_of(definition, name))
        elif isinstance(value, list):
            field = _field_of(definition, name)
            original[name] = (
                self._deleted(original[name], value) if deleting else self.lists(original[name], value, field)
            )
        else:
            original[name] = value

    def _object_field(self, original: Object, patch: Object, field: Field | None) -> Object:
        if field is not None and "replace" in field.patch_strategies:
            return patch
        inside = field.type if field is not None else None
        definition = self._schemas.definition(inside.definition) if isinstance(inside, ReferenceType) else None
        return self.objects(original, patch, definition)

    def lists(self, original: list[Any], patch: list[Any], field: Field | None) -> list[Any]:
        if field is None or not field.is_merged:
            return patch
        self._count(original, patch)
        if not _are_objects(original, patch):
            return in_order(_distinct([*original, *patch]), patch, original, None)
        if field.merge_key is None:
            raise MergeRefused(f"cannot merge lists without merge key for {_go_kind(field)}")
        return self._merged_by_key(original, patch, field, field.merge_key)

    def _merged_by_key(self, original: list[Object], patch: list[Object], field: Field, key: str) -> list[Any]:
        original, patch = _special_items_applied(original, patch, key)
        before = list(original)
        definition = self._schemas.inside(field.type)
        keyed = KeyedItems(original, key)
        for item in patch:
            place = keyed.position(_key_value(item, key))
            if place is None:
                keyed.append(item)
            else:
                keyed.replace(place, self.objects(original[place], item, definition))
        _check_keys(original, key)
        return in_order(original, patch, before, key)

    def _count(self, *lists: list[Any] | None) -> None:
        self._merged_items += sum(len(items) for items in lists if items is not None)
        if self._merged_items > MOST_MERGED_ITEMS:
            raise MergeRefused(f"the patch merges more than {MOST_MERGED_ITEMS} items of lists", TOO_LARGE)

    def _deleted(self, original: list[Any], gone: list[Any]) -> list[Any]:
        self._count(original, gone)
        if _are_objects(original, gone):
            raise MergeRefused(_BAD_DELETE_LIST, BAD_REQUEST)
        unwanted = {identity(value) for value in gone}
        return [value for value in original if identity(value) not in unwanted]

    def _order_lists(self, original: Object, patch: Object, definition: Definition | None) -> None:
        """Takes every `$setElementOrder` out of the patch, with the list it belongs to, and applies both."""
        for key in [key for key in patch if key.startswith(ELEMENT_ORDER)]:
            order = _a_list(patch.pop(key))
            name = _after_slash(key, ELEMENT_ORDER, _BAD_ORDER)
            items = _a_list(patch.pop(name)) if name in patch else None
            live = _a_list(original[name]) if name in original else None
            field = _list_field(definition, name)
            self._count(order, items, live)
            _check_keys(order, field.merge_key)
            _check_order(items or [], order, field.merge_key)
            if items is not None or live is not None:
                original[name] = self._ordered(live, items, order, field)

    def _ordered(self, live: list[Any] | None, items: list[Any] | None, order: list[Any], field: Field) -> list[Any]:
        before = list(live or [])
        if items is None:
            merged = list(before)
        elif live is None:
            merged = _without_directives(items)
        else:
            merged = self.lists(list(live), items, field)
            before = _with_new_in_freed_places(before, merged, items, field.merge_key)
        _check_keys(merged, field.merge_key)
        return in_order(merged, order, before, field.merge_key)


def _deletions_first(key: str) -> tuple[bool, str]:
    """What is taken out of a list and put into it by one patch is in it at the end."""
    return not key.startswith(DELETE_FROM_LIST), key


def _directed(patch: Object) -> Object:
    directive = patch[DIRECTIVE]
    if directive == "replace":
        return {key: value for key, value in patch.items() if key != DIRECTIVE}
    if directive == "delete":
        return {}
    raise MergeRefused(_unknown_directive(patch))


def _unknown_directive(patch: Object) -> str:
    return f"unknown patch type in map: {_without_values(patch)}"


def _without_values(item: Object) -> str:
    names = " ".join(sorted(item))
    return f"map[{names if len(names) <= LONGEST_NAMES else f'{names[:LONGEST_NAMES]}…'}]"


def _retain_keys(original: Object, patch: Object) -> None:
    if RETAIN_KEYS not in patch:
        return
    kept = patch.pop(RETAIN_KEYS)
    if not isinstance(kept, list):
        raise MergeRefused(_BAD_RETAIN_KEYS, BAD_REQUEST)
    set_by_patch = [
        key
        for key, value in patch.items()
        if value is not None and not key.startswith((DELETE_FROM_LIST, ELEMENT_ORDER))
    ]
    names = {key for key in kept if isinstance(key, str)}
    if not names.issuperset(set_by_patch):
        raise MergeRefused(_BAD_RETAIN_KEYS, BAD_REQUEST)
    for key in [key for key in original if key not in names]:
        del original[key]


def _special_items_applied(original: list[Object], patch: list[Object], key: str) -> tuple[list[Object], list[Object]]:
    """The two lists after the items of the patch that are directives were obeyed and taken out."""
    plain = [item for item in patch if DIRECTIVE not in item]
    replace, gone = False, set()
    for item in patch:
        match item.get(DIRECTIVE, plain):
            case "delete":
                gone.add(identity(_key_value(item, key)))
            case "replace":
                replace = True
            case "merge":
                raise MergeRefused("merging lists cannot yet be specified in the patch")
            case directive if directive is not plain:
                raise MergeRefused(_unknown_directive(item))
    if replace:
        return plain, []
    return [each for each in original if not gone or identity(each.get(key)) not in gone], plain


def _with_new_in_freed_places(before: list[Any], merged: list[Any], patch: list[Any], key: str | None) -> list[Any]:
    """The order that counts as the one before: new items stand where, and as many as, deleted ones made room.

    So it is in Kubernetes, which keeps the new items in the array of the old ones.
    """
    if key is None:
        return before
    kept = {_identity_in(item, key) for item in merged}
    known = {_identity_in(item, key) for item in before}
    survivors = [item for item in before if _identity_in(item, key) in kept]
    new = [item for item in patch if not _is_directive(item) and _identity_in(item, key) not in known]
    return [*survivors, *new[: len(before) - len(survivors)]]


def _check_order(items: list[Any], order: list[Any], key: str | None) -> None:
    """What the patch sets must be named by the order, and in that order."""
    if not items or not order:
        return
    wanted = [_identity_in(item, key) for item in items if not (key and _is_directive(item))]
    named = iter([_identity_in(item, key) for item in order])
    if not all(any(one == name for name in named) for one in wanted):
        raise MergeRefused(f"The order in patch list doesn't match {ELEMENT_ORDER} list")


def _check_keys(items: list[Any], key: str | None) -> None:
    for item in items:
        _identity_in(item, key)


def _is_directive(item: Any) -> bool:
    return isinstance(item, dict) and DIRECTIVE in item


def _identity_in(item: Any, key: str | None) -> Any:
    if key is None:
        return identity(item)
    if not isinstance(item, dict):
        raise MergeRefused(f"expected a map[string]interface {{}}, but received a {go_type(item)}")
    return identity(_key_value(item, key))


def _key_value(item: Object, key: str) -> Any:
    if key not in item:
        raise MergeRefused(f"map: {_without_values(item)} does not contain declared merge key: {key}")
    return item[key]


def _after_slash(key: str, prefix: str, why_not: str) -> str:
    head, slash, name = key.partition("/")
    if head != prefix or not slash:
        raise MergeRefused(why_not, BAD_REQUEST)
    return name


def _a_list(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise MergeRefused(f"expected a []interface {{}}, but received a {go_type(value)}")
    return value


def _field_of(definition: Definition | None, name: str) -> Field | None:
    return None if definition is None else definition.fields.get(name)


def _list_field(definition: Definition | None, name: str) -> Field:
    field = _field_of(definition, name)
    if field is None or not isinstance(field.type, ListType):
        raise MergeRefused(_BAD_ORDER, BAD_REQUEST)
    return field


def _go_kind(field: Field) -> str:
    inside = field.type.item if isinstance(field.type, ListType) else field.type
    return "struct" if isinstance(inside, ReferenceType) else "string"


def _are_objects(*lists: Iterable[Any]) -> bool:
    """Whether the items are objects; mixed lists, lists of lists and nulls cannot be merged."""
    types = {go_type(item) for items in lists for item in items}
    if go_type([]) in types:
        raise MergeRefused("lists of lists are not supported", UNPROCESSABLE)
    if len(types) > 1 or go_type(None) in types:
        raise MergeRefused(f"list element types are not identical: [{', '.join(sorted(types))}]")
    return types == {go_type({})}


def _distinct(values: list[Any]) -> list[Any]:
    return list({identity(value): value for value in reversed(values)}.values())[::-1]


def _place(original: Object, name: str, value: Any) -> None:
    """Sets a field that was not there, or was of another type; a directive is no value."""
    if _is_directive(value):
        original.pop(name, None)
    else:
        original[name] = _without_directives(value)


def _without_directives(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_directives(item) for item in value if not _is_directive(item)]
    if isinstance(value, dict):
        return {key: _without_directives(inner) for key, inner in value.items() if not _is_directive(inner)}
    return value


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value
