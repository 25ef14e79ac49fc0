"""Random objects of Kubernetes' kinds and strategic merge patches for them, from few names, so that they meet."""

from __future__ import annotations

from random import Random
from typing import Any

from onenode.apiserver.schema.schemas import Definition, Field, ListType, MapType, ReferenceType, Scalar, Schemas, Type

NAMES = ("a", "b", "c", "d")
SCALARS: dict[str, tuple[Any, ...]] = {
    "string": NAMES,
    "bool": (True, False),
    "int32": (1, 2, 3),
    "int64": (1, 2, 3),
    "quantity": ("1Gi", "2Gi"),
    "time": ("2026-08-01T00:00:00Z",),
    "microtime": ("2026-08-01T00:00:00.000000Z",),
    "bytes": ("YQ==",),
    "int-or-string": (1, "25%"),
    "float64": (1.5,),
    "any": ({"x": 1},),
}
DEEPEST = 7
# kubectl tells objects apart by these, and never shows the last.
LEFT_OUT = {"apiVersion", "kind", "managedFields"}


class PatchMaker:
    """Makes objects and patches; the same random source makes the same ones."""

    def __init__(self, schemas: Schemas, random: Random) -> None:
        self.schemas = schemas
        self.random = random

    def object_of(self, api_version: str, kind: str, name: str = "o") -> dict[str, Any]:
        made = self._object(self.schemas.kind(api_version, kind), 0)
        return {**made, "apiVersion": api_version, "kind": kind, "metadata": {**made.get("metadata", {}), "name": name}}

    def patch_of(self, api_version: str, kind: str, *, directives: bool = True) -> dict[str, Any]:
        definition = self.schemas.kind(api_version, kind)
        body = {name: field for name, field in definition.fields.items() if name in {"metadata", "spec", "status"}}
        made = self._patch(Definition(definition.name, body), 0, directives=directives)
        made["metadata"] = self._metadata(made.get("metadata"))
        return made

    @staticmethod
    def _metadata(made: dict[str, Any] | None) -> dict[str, Any]:
        """The object keeps its name."""
        return {key: value for key, value in (made or {}).items() if key not in {"name", "$patch", "$retainKeys"}}

    def _chosen(self, definition: Definition) -> list[Field]:
        fields = [field for field in definition.fields.values() if field.name not in LEFT_OUT]
        telling = [field for field in fields if isinstance(field.type, ListType)]
        several = self.random.sample(fields, min(len(fields), self.random.randint(0, 3)))
        lists = self.random.sample(telling, min(len(telling), self.random.randint(0, 2)))
        return list({field.name: field for field in [*several, *lists]}.values())

    def _object(self, definition: Definition, depth: int) -> dict[str, Any]:
        return {field.name: self._value(field.type, field, depth) for field in self._chosen(definition)}

    def _value(self, type_: Type, field: Field | None, depth: int) -> Any:
        match type_:
            case Scalar(name):
                return self.random.choice(SCALARS[name])
            case ReferenceType(name):
                return {} if depth > DEEPEST else self._object(self.schemas.definition(name), depth + 1)
            case MapType(inner):
                names = self.random.sample(NAMES, self.random.randint(0, 3))
                return {name: self._value(inner, None, depth + 1) for name in names}
            case ListType(inner):
                return self._list(inner, field, depth)
        return None

    def _list(self, inner: Type, field: Field | None, depth: int) -> list[Any]:
        keys = self._keys(inner, field)
        if field is not None and field.merge_key is not None:
            return [{**self._value(inner, None, depth + 1), field.merge_key: key} for key in keys]
        return keys if isinstance(inner, Scalar) else [self._value(inner, None, depth + 1) for _ in keys]

    def _keys(self, inner: Type, field: Field | None) -> list[Any]:
        """Different values for the merge key, or for the items of a set."""
        if isinstance(inner, Scalar):
            pool = SCALARS[inner.name]
        else:
            key = None if field is None or field.merge_key is None else self.schemas.inside(inner)
            scalar = (
                key.fields[str(field.merge_key)].type if key is not None and field is not None else Scalar("string")
            )
            pool = SCALARS[scalar.name] if isinstance(scalar, Scalar) else NAMES
        return self.random.sample(pool, self.random.randint(0, min(3, len(pool))))

    def _patch(self, definition: Definition, depth: int, *, directives: bool) -> dict[str, Any]:
        patch: dict[str, Any] = {}
        for field in self._chosen(definition):
            self._patch_field(patch, field, depth, directives=directives)
        if directives and depth and self.random.random() < 0.08:
            patch["$patch"] = self.random.choice(("replace", "delete"))
        if directives and depth and self.random.random() < 0.1:
            own = [key for key in patch if not key.startswith("$")]
            more = self.random.sample(sorted(definition.fields), min(2, len(definition.fields)))
            patch["$retainKeys"] = [*own, *more]
        return patch

    def _patch_field(self, patch: dict[str, Any], field: Field, depth: int, *, directives: bool) -> None:
        if self.random.random() < 0.15:
            patch[field.name] = None
            return
        value = self._patch_value(field, depth, directives=directives)
        if not directives or not isinstance(value, list) or not field.is_merged:
            patch[field.name] = value
        elif field.merge_key is None:
            self._patch_set(patch, field, value)
        else:
            self._patch_list(patch, field, field.merge_key, value)

    def _patch_value(self, field: Field, depth: int, *, directives: bool) -> Any:
        inside = self.schemas.inside(field.type)
        if isinstance(field.type, ReferenceType) and inside is not None and depth < DEEPEST:
            return self._patch(inside, depth + 1, directives=directives)
        if isinstance(field.type, ListType) and inside is not None and field.merge_key is not None and depth < DEEPEST:
            keys = self._keys(field.type.item, field)
            return [{**self._patch(inside, depth + 2, directives=directives), field.merge_key: key} for key in keys]
        return self._value(field.type, field, depth)

    def _patch_set(self, patch: dict[str, Any], field: Field, value: list[Any]) -> None:
        gone = [item for item in NAMES if item not in value]
        if self.random.random() < 0.4:
            patch[f"$deleteFromPrimitiveList/{field.name}"] = self.random.sample(gone, min(2, len(gone)))
        if value and self.random.random() < 0.7:
            patch[field.name] = value
        if self.random.random() < 0.4:
            patch[f"$setElementOrder/{field.name}"] = self._order(value, gone)

    def _patch_list(self, patch: dict[str, Any], field: Field, key: str, value: list[Any]) -> None:
        for item in value:
            if "$retainKeys" in item:
                item["$retainKeys"].append(key)
        if self.random.random() < 0.8:
            patch[field.name] = value
        named = [item[key] for item in value if item.get("$patch") != "delete"]
        if self.random.random() < 0.4:
            others = [name for name in NAMES if name not in named and isinstance((named or ["a"])[0], str)]
            patch[f"$setElementOrder/{field.name}"] = [{key: name} for name in self._order(named, others)]

    def _order(self, wanted: list[Any], others: list[Any]) -> list[Any]:
        order = list(wanted)
        for other in self.random.sample(others, self.random.randint(0, min(2, len(others)))):
            order.insert(self.random.randint(0, len(order)), other)
        return order
