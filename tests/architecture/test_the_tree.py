from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

from support.tree_rules import FOLDERS, LAYERS, breaches

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src" / "orlop"

DEPENDENCIES = {
    "aiohttp",
    "click",
    "hpack",
    "msgspec",
    "prometheus_client",
    "protobuf",
    "PyYAML",
    "rich",
    "uvloop",
}


def files() -> list[str]:
    return sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.py"))


@pytest.mark.parametrize("path", files())
def test_a_source_file_keeps_the_import_table_and_the_prohibitions(path: str):
    assert breaches(path, (SOURCES / path).read_text()) == []


BAD = [
    ("csi/client.py", "from orlop.kube import client", "csi and kube stand side by side"),
    ("kube/client.py", "import orlop.driver.node_service", "driver stands above kube"),
    ("sidecars/attacher/loop.py", "from orlop.driver import x", "sidecars and driver stand side by side"),
    ("sidecars/attacher/loop.py", "from orlop.sidecars.resizer import loop", "never import each other"),
    ("sidecars/attacher/loop.py", "from ..resizer import loop", "never import each other"),
    ("foundation/backoff.py", "from orlop.foundation import clock", "each could be a library"),
    ("foundation/backoff.py", "from . import clock", "each could be a library"),
    ("foundation/backoff.py", "from orlop.csi import client", "csi stands above foundation"),
    ("admin/explain.py", "from orlop.sidecars.attacher import attachment_loop", "only their *_rules"),
    ("driver/node_service.py", "from orlop.testing import fake_host", "only tests and processes/ import testing"),
    ("testing/explorer.py", "from orlop.processes import driver", "testing may import"),
    ("driver/node_service.py", "import subprocess", "only host/ touches the kernel"),
    ("driver/node_service.py", "from asyncio import create_subprocess_exec", "only host/ touches the kernel"),
    ("driver/node_service.py", "import os\nos.kill(1, 9)", "only host/ touches the kernel"),
    ("driver/node_service.py", "import os as system\nsystem.execv('/bin/sh', [])", "only host/ touches the kernel"),
    ("driver/node_service.py", "from shutil import rmtree", "only host/ touches the kernel"),
    ("driver/node_service.py", "import ctypes.util", "only host/ touches the kernel"),
    ("embedded/apiserver/http_routes.py", "import sqlite3", "the one database"),
    ("embedded/apiserver/object_store/store.py", "import sqlite3", "the one database"),
    ("csi/client.py", "import grpc.aio", "spoken by hand"),
    ("csi/grpc_transport.py", "from grpc import aio", "spoken by hand"),
    ("csi/grpc_server.py", "import hpack", "by csi/header_blocks"),
    ("kube/client.py", "import aiohttp", "HTTP is spoken by"),
    ("driver/reaper.py", "import time\ntime.time()", "through the Clock"),
    ("driver/reaper.py", "from datetime import datetime\ndatetime.now()", "through the Clock"),
    ("driver/reaper.py", "import asyncio\nasyncio.sleep(1)", "through the Clock"),
    ("driver/reaper.py", "import random\nrandom.random()", "from the Random"),
    ("driver/reaper.py", "from random import Random\nRandom()", "made in processes/"),
    ("driver/reaper.py", "from uuid import uuid4", "from the Random"),
    ("driver/afterlife_rules.py", "import asyncio", "decides and does nothing else"),
    ("driver/afterlife_rules.py", "async def decide(): ...", "never waits"),
    ("driver/afterlife_rules.py", "from orlop.foundation.clock import Clock", "decides and does nothing else"),
    ("driver/afterlife_rules.py", "open('/etc/passwd')", "input or output"),
    ("driver/utils.py", "", "grab bag"),
    ("things/x.py", "", "unknown folder"),
    ("driver/long.py", "x = 1\n" * 401, "at most 400 lines"),
]


@pytest.mark.parametrize(("path", "code", "sentence"), BAD, ids=[f"{path}: {code[:40]!r}" for path, code, _ in BAD])
def test_a_breach_is_named_with_its_file_and_remedy(path: str, code: str, sentence: str):
    found = breaches(path, f'"""Purpose."""\n{code}\n')

    assert any(sentence in breach and breach.startswith(f"src/orlop/{path}:") for breach in found), found


GOOD = [
    ("driver/node_service.py", "from orlop.csi import error_codes\nfrom orlop.host import mounts"),
    (
        "processes/driver.py",
        "from orlop.testing import virtual_clock\nfrom orlop.driver import x\nfrom random import Random\nRandom()",
    ),
    ("admin/explain.py", "from orlop.sidecars.attacher import attach_rules"),
    ("host/programs.py", "import subprocess, ctypes\nimport os\nos.kill(1, 9)"),
    ("driver/reaper.py", "from random import Random\ndef wait(random: Random) -> float: return random.random()"),
    ("driver/reaper.py", "from datetime import datetime\ndef f(now: datetime) -> datetime: return now"),
    ("embedded/apiserver/object_store/database.py", "import sqlite3"),
    ("testing/explorer.py", "from orlop.embedded import controllers"),
]


@pytest.mark.parametrize(("path", "code"), GOOD, ids=[path for path, _ in GOOD])
def test_what_the_table_allows_is_no_breach(path: str, code: str):
    assert breaches(path, f'"""Purpose."""\n{code}\n') == []


def test_a_module_without_a_docstring_is_a_breach():
    assert any("no docstring" in breach for breach in breaches("driver/x.py", "x = 1\n"))


def test_the_runtime_dependencies_are_these_and_no_more():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]

    named = {re.split(r"[<>=!~ ]", requirement, maxsplit=1)[0] for requirement in project["dependencies"]}
    extras = {name for extra in project["optional-dependencies"].values() for name in extra}

    assert named == DEPENDENCIES
    assert {re.split(r"[<>=!~ ]", extra, maxsplit=1)[0] for extra in extras} == {"cryptography"}


def test_every_runtime_dependency_has_its_reason_in_the_decision():
    decision = (ROOT / "docs" / "decisions" / "0001-dependencies.md").read_text()

    assert [name for name in sorted({*DEPENDENCIES, "cryptography"}) if name not in decision] == []


def test_the_lock_files_hold_hashes_and_no_addresses():
    for lock in (ROOT / "requirements").glob("*.lock"):
        text = lock.read_text()
        assert "--hash=sha256:" in text
        assert "://" not in text, f"{lock.name} records an address"


def test_the_living_document_holds_the_same_table_and_every_folder():
    document = (ROOT / "docs" / "architecture.md").read_text()
    table = " → ".join(" | ".join("sidecars.*" if name == "sidecars" else name for name in layer) for layer in LAYERS)

    assert table in document
    assert [folder for folder in FOLDERS if f"{folder}/" not in document] == []


def test_every_path_the_living_document_walks_through_exists():
    document = (ROOT / "docs" / "architecture.md").read_text()

    walked = re.findall(r"`src/(orlop/[a-z_/]+\.py)(?::(\w+))?`", document)
    missing = [path for path, _ in walked if not (ROOT / "src" / path).exists()]
    unnamed = [f"{path}:{name}" for path, name in walked if name and not _defines(ROOT / "src" / path, name)]

    assert walked
    assert missing == []
    assert unnamed == []


def _defines(path: Path, name: str) -> bool:
    nodes = ast.walk(ast.parse(path.read_text()))
    return any(isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and n.name == name for n in nodes)


def test_no_test_sleeps_except_where_another_process_is_waited_for():
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        place = str(path.relative_to(ROOT))
        if place != "tests/support/waiting.py":
            found += [f"{place}:{line}" for line in _real_sleeps(path.read_text())]

    assert found == []


def _real_sleeps(source: str) -> list[int]:
    """A turn of the loop (`asyncio.sleep(0)`) and virtual time pass at once."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    banned = {"time.sleep"} if "virtual_time" in source or "run_virtual" in source else {"time.sleep", "asyncio.sleep"}
    return [c.lineno for c in calls if ast.unparse(c.func) in banned and ast.unparse(c.args[0]) != "0"]
