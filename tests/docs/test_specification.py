"""docs/specification.md: everything it names exists, and no sentence is left without an answer."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from support.places import REPOSITORY

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SPECIFICATION = REPOSITORY / "docs" / "specification.md"
REFERENCE = re.compile(r"`((?:src|tests|deploy|docs)/[\w./-]+)(?::([A-Za-z_][\w.]*))?`")
"""A file from the top of the repository, and the dotted name of something that it defines."""
NEEDS_NO_TEST = ("*Deviation*", "Not ours", "Not built yet")


def references() -> list[tuple[str, str]]:
    return sorted(set(REFERENCE.findall(SPECIFICATION.read_text())))


@cache
def defined_in(path: Path) -> frozenset[str]:
    """Functions, classes and constants of a module; of its classes, methods and fields too, as `Class.name`."""
    return frozenset(_names(ast.parse(path.read_text()).body))


def _names(statements: list[ast.stmt], prefix: str = "") -> Iterator[str]:
    for statement in statements:
        match statement:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                yield prefix + name
            case ast.ClassDef(name=name, body=body):
                yield prefix + name
                yield from _names(body, f"{prefix}{name}.")
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield prefix + name


@cache
def places() -> Mapping[str, list[str]]:
    """Where each name is defined, to say where something that was moved is now."""
    found: dict[str, list[str]] = defaultdict(list)
    for folder in ("src", "tests"):
        for path in sorted((REPOSITORY / folder).rglob("*.py")):
            for name in defined_in(path):
                found[name].append(str(path.relative_to(REPOSITORY)))
    return found


def exists(file: str, name: str) -> bool:
    path = REPOSITORY / file
    return name in defined_in(path) if name and path.is_file() else path.exists() and not name


def test_everything_it_names_exists():
    missing = [(file, name) for file, name in references() if not exists(file, name)]

    assert [f"{file}:{name}; now in {places().get(name, 'no file')}" for file, name in missing] == []


def rows() -> list[list[str]]:
    """The cells of every row that answers a sentence; rows of other tables have another head."""
    found, answers = [], False
    for line in SPECIFICATION.read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            answers = False
        elif cells[0] == "the document says":
            answers = True
        elif answers and not line.startswith("|---"):
            found.append(cells)
    return found


def is_answered(decided: str, held: str) -> bool:
    has_test = any(file.startswith("tests/") for file, _ in REFERENCE.findall(held))
    has_place = REFERENCE.search(decided) is not None
    return (has_place or "Not built yet" in held) and (has_test or held.startswith(NEEDS_NO_TEST))


def test_every_sentence_has_a_place_and_a_test_or_a_reason():
    assert len(rows()) > 100
    assert [sentence for sentence, decided, held in rows() if not is_answered(decided, held)] == []


def test_every_test_it_names_is_one():
    tests = [name for file, name in references() if file.startswith("tests/")]

    assert [name for name in tests if not name.startswith("test_")] == []


def test_all_five_documents_have_a_chapter():
    text = SPECIFICATION.read_text()
    linked = re.findall(r"^\| \[(\w+)\]\(#\1\)", text, re.MULTILINE)

    assert len(linked) == 5
    assert re.findall(r"^## (\w+)$", text, re.MULTILINE) == linked
