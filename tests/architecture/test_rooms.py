"""Folders and modules of a size that a reader can hold: what docs/architecture.md promises of the tree."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.places import REPOSITORY

SOURCES = REPOSITORY / "src"
MOST_MODULES = 25
FEWEST_MODULES = 3
SMALL_LINES = 75
"""About 80: a module that lost a few lines to better words is not a splinter."""
GENERATED = ("csi/proto", "apiserver/proto")
# One thing at two layers: the process and the verb beside the operator's function, the client of each API.
SAME_THING = {"afterlife", "client", "static", "drives", "volumes"}
# Roles and seams stay folders of their own, however small.
SMALL_FOLDERS_WITH_A_REASON = {
    "orlop/records": "grows with drives and static volumes",
    "orlop/host/block": "grows with drives; loop devices are of no other folder",
    "orlop/driver": "one file per CSI service; what they do is in its folders",
    "onenode/cli": "one file per verb",
}
SPLINTERS_WITH_A_REASON = {
    "orlop.driver.identity_service": "one file for each CSI service",
    "orlop.csi.grpc.grpc_answer_rules": "the folder is frozen",
    "orlop.csi.grpc.http2_call": "the folder is frozen",
    "orlop.kube.cache.informer_rules": "pure, and the informer is as long as a file may be",
    "orlop.testing.fake_host.fake_node_host": "shipped: the door of the folder",
    "orlop.testing.driver_model.identity_model": "one file for each CSI service",
    "onenode.testing.api_server": "shipped: imported by users' tests",
}


@cache
def modules() -> dict[str, Path]:
    return {_dotted(path): path for path in SOURCES.rglob("*.py") if path.name != "__init__.py"}


def _dotted(path: Path) -> str:
    return ".".join(path.relative_to(SOURCES).with_suffix("").parts)


@cache
def importers() -> dict[str, set[str]]:
    """By module: the modules of src that import it."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES.rglob("*.py"):
        for name in _imported(ast.parse(path.read_text())):
            found[name].add(_dotted(path))
    return found


def _imported(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def named_by_string() -> str:
    return "\n".join((SOURCES / path).read_text() for path in ("orlop/__main__.py",))


def folders() -> list[str]:
    found = {path.parent.relative_to(SOURCES).as_posix() for path in modules().values()}
    return sorted(folder for folder in found if not folder.endswith(GENERATED) and "/" in folder)


def _modules_in(folder: str) -> list[str]:
    return [name for name, path in modules().items() if path.parent == SOURCES / folder]


@pytest.mark.parametrize("folder", folders())
def test_a_folder_has_as_many_modules_as_a_reader_can_hold(folder: str):
    count = len(_modules_in(folder))

    assert count <= MOST_MODULES, f"{folder} has {count} modules: give it rooms"
    if folder not in SMALL_FOLDERS_WITH_A_REASON:
        assert count >= FEWEST_MODULES, f"{folder} has {count} modules: join it with its neighbour, or say why not"


@pytest.mark.parametrize("folder", folders())
def test_a_folder_says_what_belongs_in_it(folder: str):
    init = SOURCES / folder / "__init__.py"

    assert init.exists(), f"{folder} has no __init__.py"
    assert ast.get_docstring(ast.parse(init.read_text())), f"{folder}/__init__.py has no docstring"


@pytest.mark.parametrize("name", sorted(name for name in modules() if not name.startswith("orlop.__main__")))
def test_a_module_has_two_importers_or_is_long_enough_to_stand_alone(name: str):
    path = modules()[name]
    if any(part in path.as_posix() for part in GENERATED) or name in SPLINTERS_WITH_A_REASON:
        return
    lines = path.read_text().count("\n")
    users = importers()[name]

    assert lines >= SMALL_LINES or len(users) >= 2 or f'"{name}"' in named_by_string(), (
        f"{name} has {lines} lines and is imported by {sorted(users) or 'nobody'}: merge it there"
    )


def test_a_module_s_name_is_the_name_of_one_thing():
    by_name = defaultdict(list)
    for name in modules():
        by_name[name.rpartition(".")[2]].append(name)

    twice = {short: names for short, names in by_name.items() if len(names) > 1 and short not in SAME_THING}
    assert twice == {}
