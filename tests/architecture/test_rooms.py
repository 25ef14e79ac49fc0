"""Folders and modules of a size that a reader can hold: what docs/architecture.md promises of the tree."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.places import REPOSITORY

SOURCES, TESTS = REPOSITORY / "src", REPOSITORY / "tests"
MOST_MODULES = 25
FEWEST_MODULES = 3
SMALL_LINES = 75
"""About 80: a module that lost a few lines to better words is not a splinter."""
GENERATED = ("csi/proto", "apiserver/proto")
# One thing at two layers: the process and the verb beside the operator's function, the client of each API.
SAME_THING = {"afterlife", "client"}
# A class or type alias that several modules define, because it names the same thing in each of them.
SAME_CLASS = {
    "AccessMode": "CSI's enum of access modes, which is too long to write out",
    "AlreadyExists": "the status of that name, of a CSI call and of the Kubernetes API",
    "ApiObject": "an object as the API server sent it, which nobody may change",
    "Cause": "a cause in a Kubernetes Status, at the server and at the client",
    "Check": "a health check: returns why it fails",
    "Connect": "connects to a CSI socket",
    "Details": "the details of a Kubernetes Status, at the server and at the client",
    "Document": "a document that the API server publishes about itself",
    "DoesNotRepeatItself": "a run that is not deterministic, found by either explorer",
    "Names": "the components of a path below a root",
    "NotFound": "the status of that name, of a CSI call and of the Kubernetes API",
    "Object": "an object of the Kubernetes API",
    "PathHandler": "answers a path of the API server that is no object's",
    "Ping": "the frame of that name, of HTTP/2 and of WebSocket",
    "Pod": "a Pod of the Kubernetes API",
    "Read": "an object, or why it could not be read",
    "RegistrationRefused": "kubelet refused to register a driver, seen from kubelet and from the registrar",
    "Reviews": "the class, and the protocol that its user defines",
    "Selection": "the objects of a kind that a request means, at the server and at the client",
    "ServeRpc": "a method of a CSI service",
    "Server": "the protocol of an API server that is called in this process",
    "TypeRule": "validates the fields of one type",
    "Wait": "the decision to do nothing, for some seconds or until something changes",
    "VolumeMode": "the volumeMode of a claim, as an enum of kubelet and as a field of a schema",
    "WatchEvent": "an event of a watch, at the server and at the client",
    "_Metadata": "the part of an object's metadata that its module reads",
    "_MountSnapshot": "the snapshot of the mount table of a host, real or fake",
    "_Versioned": "the version of a record, read before the rest of it",
}
# In a module of rules: the union of everything it may decide.
UNIONS_OF_RULES = {"Decision", "Step"}
# Roles and seams stay folders of their own, however small.
SMALL_FOLDERS_WITH_A_REASON = {
    "onenode/cli": "one file per verb",
}
SPLINTERS_WITH_A_REASON = {
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
def test_a_folder_says_what_belongs_in_it_and_what_does_not(folder: str):
    init = SOURCES / folder / "__init__.py"

    assert init.exists(), f"{folder} has no __init__.py"
    text = ast.get_docstring(ast.parse(init.read_text())) or ""
    assert re.search(r"\b(not|nothing|never|no)\b", text, re.IGNORECASE), f"{folder}/__init__.py lacks what is not here"


def test_folders_of_tests_are_those_of_the_sources():
    below = [path for name in ("orlop", "onenode") for path in (TESTS / name).rglob("*") if path.is_dir()]
    mirrored = [path.relative_to(TESTS) for path in below if path.name != "__pycache__"]

    assert [str(path) for path in mirrored if not (SOURCES / path).is_dir()] == []


@pytest.mark.parametrize("folder", sorted(SMALL_FOLDERS_WITH_A_REASON))
def test_a_folder_is_excused_only_while_it_is_small(folder: str):
    assert 0 < len(_modules_in(folder)) < FEWEST_MODULES, f"{folder} needs no reason: remove it from the list"


@pytest.mark.parametrize("name", sorted(name for name in modules() if not name.startswith("orlop.__main__")))
def test_a_module_has_two_importers_or_is_long_enough_to_stand_alone(name: str):
    if any(part in modules()[name].as_posix() for part in GENERATED) or name in SPLINTERS_WITH_A_REASON:
        return

    assert not _is_splinter(name), (
        f"{name} has few lines and is imported by {sorted(importers()[name]) or 'nobody'}: merge it there"
    )


@pytest.mark.parametrize("name", sorted(SPLINTERS_WITH_A_REASON))
def test_a_module_is_excused_only_while_it_is_a_splinter(name: str):
    assert _is_splinter(name), f"{name} needs no reason: remove it from the list"


def _is_splinter(name: str) -> bool:
    is_named = f'"{name}"' in named_by_string()
    return modules()[name].read_text().count("\n") < SMALL_LINES and len(importers()[name]) < 2 and not is_named


def test_a_test_file_named_as_a_module_is_in_the_folder_of_that_module():
    misplaced = [
        f"{path.relative_to(TESTS)} is named as a module of {where}"
        for name in ("orlop", "onenode")
        for path in sorted((TESTS / name).rglob("test_*.py"))
        if (where := [each.parent.relative_to(SOURCES).as_posix() for each in _named(path.stem.removeprefix("test_"))])
        and path.parent.relative_to(TESTS).as_posix() not in where
    ]

    assert misplaced == []


def _named(stem: str) -> list[Path]:
    return [path for name, path in modules().items() if name.rpartition(".")[2] == stem]


def test_a_module_s_name_is_the_name_of_one_thing():
    by_name = defaultdict(list)
    for name in modules():
        by_name[name.rpartition(".")[2]].append(name)

    twice = {short: names for short, names in by_name.items() if len(names) > 1 and short not in SAME_THING}
    assert twice == {}


def test_a_class_s_name_is_the_name_of_one_thing():
    twice = {name: sorted(found) for name, found in classes().items() if name not in SAME_CLASS}
    of_rules = {name for name in UNIONS_OF_RULES if all(module.endswith("_rules") for module in twice.get(name, ()))}

    assert {name: found for name, found in twice.items() if name not in of_rules} == {}


@pytest.mark.parametrize("name", sorted({*SAME_CLASS, *UNIONS_OF_RULES}))
def test_a_class_s_name_is_excused_only_while_several_modules_have_it(name: str):
    assert name in classes(), f"{name} is defined once: remove it from the list"


@cache
def classes() -> dict[str, list[str]]:
    """By name: the modules that define a class or type alias of it, if several do; not if all mean a type variable."""
    found: dict[str, dict[str, bool]] = defaultdict(dict)
    for module, path in modules().items():
        if not any(part in path.as_posix() for part in GENERATED):
            for name, is_variable in _types_of(ast.parse(path.read_text()).body):
                found[name][module] = is_variable
    return {name: list(places) for name, places in found.items() if len(places) > 1 and not all(places.values())}


def _types_of(statements: list[ast.stmt]) -> Iterator[tuple[str, bool]]:
    """Yield each class and type alias, and whether it is a type variable, which has a meaning in its module only."""
    for statement in statements:
        match statement:
            case ast.ClassDef(name=name):
                yield name, False
            case ast.Assign(targets=[ast.Name(id=name)], value=value) if _is_type_name(name):
                yield name, isinstance(value, ast.Call) and ast.unparse(value.func) == "TypeVar"
            case ast.AnnAssign(target=ast.Name(id=name)) if _is_type_name(name):
                yield name, False
            case ast.If(body=body):
                yield from _types_of(body)


def _is_type_name(name: str) -> bool:
    """CapWords; a constant is known by the name of its module too."""
    return name.lstrip("_")[:1].isupper() and not name.isupper()
