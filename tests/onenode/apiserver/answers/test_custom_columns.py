from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from onenode.apiserver.answers.custom_columns import JsonPath, custom_table

NOW = datetime(2026, 11, 18, 12, tzinfo=UTC)
OBJECT: dict[str, Any] = {
    "metadata": {"name": "n", "creationTimestamp": "2026-11-18T11:00:00Z", "annotations": {"a.b/c": "x"}},
    "spec": {"a": 1, "list": [{"k": "p", "v": 1}, {"k": "q", "v": 2}], "flag": True, "half": 0.5, "map": {"z": 1}},
}
PATHS = [
    (".spec.a", 1),
    (".spec.list[1].v", 2),
    (".spec.list[-1].k", "q"),
    (".spec.list[*].k", "p"),
    ('.spec.list[?(@.k=="q")].v', 2),
    (".spec.list[?(@.v!=1)].k", "q"),
    (".spec.list[?(@.k)].v", 1),
    (".metadata.annotations['a.b/c']", "x"),
    (".metadata.annotations.a\\.b/c", "x"),
    (".spec.none", None),
    (".spec.a.b", None),
    (".spec.list[9]", None),
    (".spec[", None),
    (".spec.list[?(nonsense)]", None),
]


@pytest.mark.parametrize(("path", "value"), PATHS)
def test_a_path_finds_its_first_value(path: str, value: Any):
    assert JsonPath.parse(path).first(OBJECT) == value


CELLS = [
    ("string", ".spec.a", "1"),
    ("string", ".spec.flag", "true"),
    ("string", ".spec.map", '{"z":1}'),
    ("string", ".spec.none", None),
    ("integer", ".spec.a", 1),
    ("integer", ".spec.half", 0),
    ("integer", ".spec.flag", None),
    ("number", ".spec.half", 0.5),
    ("boolean", ".spec.flag", True),
    ("boolean", ".spec.a", None),
    ("date", ".metadata.creationTimestamp", "60m"),
    ("date", ".metadata.name", "<invalid>"),
    ("date", ".spec.a", None),
]


@pytest.mark.parametrize(("type_", "path", "cell"), CELLS)
def test_a_cell_has_the_type_of_its_column(type_: str, path: str, cell: Any):
    table = custom_table([{"name": "C", "type": type_, "jsonPath": path}])

    assert table.cells(OBJECT, NOW) == ["n", cell]


def test_without_columns_there_is_the_age():
    table = custom_table([])

    assert [column.name for column in table.columns] == ["Name", "Age"]
    assert table.cells(OBJECT, NOW) == ["n", "60m"]
