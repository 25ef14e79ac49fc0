from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from support.places import REPOSITORY
from support.tree_rules import FOLDERS, LAYERS, breaches

SOURCES = REPOSITORY / "src"

DEPENDENCIES = {
    "click",
    "hpack",
    "msgspec",
    "protobuf",
    "PyYAML",
    "rich",
    "uvloop",
}

ONLY_FOR_ONENODE = {"aiohttp", "cel-expr-python", "cryptography"}


def files() -> list[str]:
    return sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py"))


@pytest.mark.parametrize("path", files())
def test_a_source_file_keeps_the_import_table_and_the_prohibitions(path: str):
    assert breaches(path, (SOURCES / path).read_text()) == []


BAD = [
    ("orlop/csi/client.py", "from orlop.kube import client", "csi and kube stand side by side"),
    ("orlop/kube/client.py", "import orlop.driver.node_service", "driver stands above kube"),
    ("orlop/sidecars/attacher/loop.py", "from orlop.driver import x", "sidecars and driver stand side by side"),
    ("orlop/sidecars/attacher/loop.py", "from orlop.sidecars.resizer import loop", "never import each other"),
    ("orlop/sidecars/attacher/loop.py", "from ..resizer import loop", "never import each other"),
    ("orlop/foundation/backoff.py", "from orlop.foundation import clock", "each could be a library"),
    ("orlop/foundation/backoff.py", "from . import clock", "each could be a library"),
    ("orlop/foundation/backoff.py", "from orlop.csi import client", "csi stands above foundation"),
    ("orlop/admin/explain.py", "from orlop.sidecars.attacher import attachment_loop", "only their *_rules"),
    ("orlop/driver/node_service.py", "from orlop.testing import fake_host", "only tests and processes/ import testing"),
    ("orlop/testing/explorer.py", "from orlop.processes import driver", "testing never imports processes"),
    ("orlop/processes/node.py", "from onenode.kubelet import node", "orlop never imports onenode"),
    ("orlop/testing/explorer.py", "import onenode.apiserver", "orlop never imports onenode"),
    (
        "onenode/processes/up.py",
        "from orlop.driver import identity_service",
        "through the API server and the CSI socket",
    ),
    ("onenode/processes/up.py", "from orlop.sidecars.attacher import attacher", "only its *_rules are imported"),
    ("onenode/apiserver/edge/x.py", "from onenode.kubelet.node import x", "apiserver and kubelet stand side by side"),
    ("onenode/host/x.py", "from onenode.kubelet.node import x", "kubelet stands above host"),
    ("onenode/controllers/x.py", "import subprocess", "only host/ touches the kernel"),
    ("orlop/driver/node_service.py", "import subprocess", "only host/ touches the kernel"),
    ("orlop/driver/node_service.py", "from asyncio import create_subprocess_exec", "only host/ touches the kernel"),
    ("orlop/driver/node_service.py", "import os\nos.kill(1, 9)", "only host/ touches the kernel"),
    (
        "orlop/driver/node_service.py",
        "import os as system\nsystem.execv('/bin/sh', [])",
        "only host/ touches the kernel",
    ),
    ("orlop/driver/node_service.py", "from shutil import rmtree", "only host/ touches the kernel"),
    ("orlop/driver/node_service.py", "import ctypes.util", "only host/ touches the kernel"),
    ("onenode/apiserver/http_routes.py", "import sqlite3", "the one database"),
    ("onenode/apiserver/store/store.py", "import sqlite3", "the one database"),
    ("orlop/csi/client.py", "import grpc.aio", "spoken by hand"),
    ("orlop/csi/grpc/grpc_transport.py", "from grpc import aio", "spoken by hand"),
    ("orlop/csi/grpc/grpc_server.py", "import hpack", "by csi/grpc/header_blocks"),
    ("orlop/kube/client.py", "import aiohttp", "HTTP is spoken by"),
    ("orlop/foundation/metrics.py", "import prometheus_client", "for tests alone"),
    ("orlop/driver/reaper.py", "import time\ntime.time()", "through the Clock"),
    ("orlop/driver/reaper.py", "from datetime import datetime\ndatetime.now()", "through the Clock"),
    ("orlop/driver/reaper.py", "import asyncio\nasyncio.sleep(1)", "through the Clock"),
    ("onenode/kubelet/pods/x.py", "import asyncio\nasyncio.to_thread(print)", "the threads of orlop/host/threads"),
    ("orlop/processes/x.py", "from asyncio import to_thread", "the threads of orlop/host/threads"),
    ("orlop/driver/x.py", "async def x(loop):\n    await loop.run_in_executor(None, print)", "orlop/host/threads"),
    ("orlop/driver/reaper.py", "import random\nrandom.random()", "from the Random"),
    ("orlop/driver/reaper.py", "from random import Random\nRandom()", "made in processes/"),
    ("orlop/driver/reaper.py", "from uuid import uuid4", "from the Random"),
    ("orlop/driver/afterlife_rules.py", "import asyncio", "decides and does nothing else"),
    ("orlop/driver/afterlife_rules.py", "async def decide(): ...", "never waits"),
    ("orlop/driver/afterlife_rules.py", "from orlop.foundation.clock import Clock", "decides and does nothing else"),
    ("orlop/driver/afterlife_rules.py", "open('/etc/passwd')", "input or output"),
    ("orlop/driver/utils.py", "", "grab bag"),
    ("orlop/things/x.py", "", "unknown folder"),
    ("orlop/driver/long.py", "x = 1\n" * 401, "at most 400 lines"),
]


@pytest.mark.parametrize(("path", "code", "sentence"), BAD, ids=[f"{path}: {code[:40]!r}" for path, code, _ in BAD])
def test_a_breach_is_named_with_its_file_and_remedy(path: str, code: str, sentence: str):
    found = breaches(path, f'"""Purpose."""\n{code}\n')

    assert any(sentence in breach and breach.startswith(f"src/{path}:") for breach in found), found


GOOD = [
    ("orlop/driver/node_service.py", "from orlop.csi import error_codes\nfrom orlop.host import mounts"),
    (
        "orlop/processes/driver.py",
        "from orlop.testing import virtual_clock\nfrom orlop.driver import x\nfrom random import Random\nRandom()",
    ),
    ("orlop/admin/explain.py", "from orlop.sidecars.attacher import attach_rules"),
    ("orlop/host/kernel/programs.py", "import subprocess, ctypes\nimport os\nos.kill(1, 9)"),
    ("orlop/driver/reaper.py", "from random import Random\ndef wait(random: Random) -> float: return random.random()"),
    ("orlop/driver/reaper.py", "from datetime import datetime\ndef f(now: datetime) -> datetime: return now"),
    ("onenode/apiserver/store/database.py", "import sqlite3"),
    ("onenode/testing/api_server.py", "from onenode.apiserver.edge import front_door"),
    (
        "onenode/processes/up.py",
        "from orlop.processes import daemon\nfrom orlop.sidecars.attacher import finalizer_rules",
    ),
]


@pytest.mark.parametrize(("path", "code"), GOOD, ids=[path for path, _ in GOOD])
def test_what_the_table_allows_is_no_breach(path: str, code: str):
    assert breaches(path, f'"""Purpose."""\n{code}\n') == []


def test_a_module_without_a_docstring_is_a_breach():
    assert any("no docstring" in breach for breach in breaches("orlop/driver/x.py", "x = 1\n"))


def test_the_runtime_dependencies_are_these_and_no_more():
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    named = {re.split(r"[<>=!~ ]", requirement, maxsplit=1)[0] for requirement in project["dependencies"]}
    extras = {name for extra in project["optional-dependencies"].values() for name in extra}

    assert named == DEPENDENCIES
    assert {re.split(r"[<>=!~ ]", extra, maxsplit=1)[0] for extra in extras} == ONLY_FOR_ONENODE


def test_every_runtime_dependency_has_its_reason_in_the_decision():
    decision = (REPOSITORY / "docs" / "decisions" / "0001-dependencies.md").read_text()

    assert [name for name in sorted(DEPENDENCIES | ONLY_FOR_ONENODE) if name not in decision] == []


def test_the_lock_files_hold_hashes_and_no_addresses():
    for lock in (REPOSITORY / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text, f"{lock.name} records an address"


@pytest.mark.parametrize("package", LAYERS)
def test_the_living_document_holds_the_same_table_and_every_folder(package: str):
    document = (REPOSITORY / "docs" / "architecture.md").read_text()
    rows = (" | ".join("sidecars.*" if name == "sidecars" else name for name in layer) for layer in LAYERS[package])

    assert f"{package}: {' → '.join(rows)}" in " ".join(document.split())
    assert [folder for folder in FOLDERS[package] if f"{folder}/" not in document] == []


def test_every_path_the_living_document_walks_through_exists():
    document = (REPOSITORY / "docs" / "architecture.md").read_text()

    walked = re.findall(r"`src/((?:orlop|onenode)/[a-z0-9_/]+\.py)(?::([\w.]+))?`", document)
    missing = [path for path, _ in walked if not (REPOSITORY / "src" / path).exists()]
    unnamed = [f"{path}:{name}" for path, name in walked if name and not _defines(REPOSITORY / "src" / path, name)]

    assert walked
    assert missing == []
    assert unnamed == []


def _defines(path: Path, name: str) -> bool:
    """Whether the module has this function or class; `Class.method` names a method of that class."""
    bodies: list[ast.AST] = [ast.parse(path.read_text())]
    for part in name.split("."):
        bodies = [
            child for body in bodies for child in ast.iter_child_nodes(body) if getattr(child, "name", "") == part
        ]
    return bool(bodies)


def test_no_test_sleeps_except_where_another_process_is_waited_for():
    found = []
    for path in sorted((REPOSITORY / "tests").rglob("*.py")):
        place = str(path.relative_to(REPOSITORY))
        if place != "tests/support/waiting.py":
            found += [f"{place}:{line}" for line in _real_sleeps(path.read_text())]

    assert found == []


def _real_sleeps(source: str) -> list[int]:
    """A turn of the loop (`asyncio.sleep(0)`) and virtual time pass at once."""
    if "sleep" not in source:  # most files: parsing all of them takes seconds
        return []
    called = (node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call))
    calls = [call for call in called if isinstance(call.func, ast.Attribute) and call.func.attr == "sleep"]
    banned = {"time.sleep"} if "virtual_time" in source or "run_virtual" in source else {"time.sleep", "asyncio.sleep"}
    return [c.lineno for c in calls if ast.unparse(c.func) in banned and ast.unparse(c.args[0]) != "0"]
