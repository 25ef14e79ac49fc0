"""The import table and the prohibitions of docs/architecture.md, read off the source with `ast`.

`breaches(path, source)` gives one sentence per breach: which line, which rule, and where the thing should live.
Nothing of Orlop is imported here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

# Upper may import lower; names in one row never import each other.
LAYERS: tuple[tuple[str, ...], ...] = (
    ("cli",),
    ("processes",),
    ("web",),
    ("admin",),
    ("driver", "sidecars", "static_pv", "embedded"),
    ("records",),
    ("kube", "csi", "host"),
    ("foundation",),
)
ROLES = LAYERS[4]
# Modules and packages of foundation stand alone: each could be a library.
# Parts of one folder that stand alone, as if each were a folder of its own.
APART = ("sidecars",)
MAY_IMPORT_TESTING = ("processes",)
TESTING_REACHES = (*LAYERS[4], *LAYERS[5], *LAYERS[6], *LAYERS[7])
FOLDERS = (*(name for layer in LAYERS for name in layer), "testing")


@dataclass(frozen=True, slots=True)
class Ban:
    """A name that only some files may use; a folder is written with a slash at its end."""

    names: tuple[str, ...]
    allowed: tuple[str, ...]
    remedy: str


BANS = (
    Ban(
        (
            *("ctypes", "subprocess", "pty", "asyncio.create_subprocess_exec", "asyncio.create_subprocess_shell"),
            *("os.fork", "os.forkpty", "os.system", "os.popen", "os.kill", "os.killpg", "fcntl.ioctl", "shutil.rmtree"),
            *("os.posix_spawn", "os.posix_spawnp"),
            *(f"os.exec{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
            *(f"os.spawn{kind}" for kind in ("l", "le", "lp", "lpe", "v", "ve", "vp", "vpe")),
        ),
        ("host/",),
        "only host/ touches the kernel and other programs: put it there and have it handed in",
    ),
    Ban(
        ("sqlite3",),
        ("embedded/apiserver/object_store/database.py",),
        "the one database is behind embedded/apiserver/object_store/database",
    ),
    Ban(
        ("grpc",),
        (),
        "gRPC is spoken by hand, behind one seam: use csi/transport, or extend csi/grpc_transport and csi/grpc_server",
    ),
    Ban(
        ("hpack",),
        ("csi/header_blocks.py",),
        "headers of HTTP/2 are read and written by csi/header_blocks",
    ),
    Ban(
        ("aiohttp",),
        ("embedded/apiserver/", "web/"),
        "HTTP is spoken by embedded/apiserver and web, and without aiohttp by kube/transport and foundation/http_edge",
    ),
    Ban(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.clock_gettime", "time.sleep"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
            "asyncio.sleep",
        ),
        # A container's log is written by a process of its own, which can be handed nothing but descriptors.
        ("foundation/clock.py", "testing/virtual_clock.py", "host/container_log.py"),
        "time is read and waited for through the Clock that the constructor was given",
    ),
    Ban(
        (
            *("secrets", "os.urandom", "uuid.uuid1", "uuid.uuid4"),
            *(
                f"random.{name}"
                for name in ("random", "randint", "choice", "uniform", "shuffle", "sample", "randrange")
            ),
        ),
        ("embedded/apiserver/certificates.py",),
        "random numbers come from the Random that the constructor was given",
    ),
    Ban(
        ("random.Random", "random.SystemRandom"),
        ("processes/", "cli/", "testing/", "TYPES"),
        "a source of randomness is made in processes/ or cli/ and handed down",
    ),
)

# What a *_rules module may not import: it decides, and does nothing else.
IMPURE = (
    *("asyncio", "os", "io", "socket", "logging", "random", "time", "threading", "pathlib", "shutil", "tempfile"),
    *("orlop.foundation.clock", "orlop.foundation.structured_log", "orlop.foundation.metrics", "orlop.host"),
)
# Values alone, in a folder that otherwise does things.
PURE_THOUGH_IN_HOST = ("orlop.host.container_request", "orlop.host.payload_files")
GRAB_BAGS = ("utils", "util", "common", "helpers", "helper", "misc")
LONGEST_FILE = 400
GENERATED = ("csi/proto/", "embedded/apiserver/proto/")


@dataclass(frozen=True, slots=True)
class Imported:
    name: str
    line: int


def breaches(path: str, source: str) -> list[str]:
    """`path` is relative to src/orlop, such as `csi/server.py`."""
    tree = ast.parse(source)
    imports = list(_imports(path, tree))
    found = [
        *_layer_breaches(path, imports),
        *_ban_breaches(path, tree, imports),
        *_rules_breaches(path, tree, imports),
        *_naming_breaches(path, tree, source),
    ]
    return [f"src/orlop/{path}:{breach}" for breach in found]


def _imports(path: str, tree: ast.AST) -> Iterator[Imported]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (Imported(alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _absolute(path, node)
            yield from (Imported(f"{base}.{alias.name}", node.lineno) for alias in node.names)


def _absolute(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    package = ("orlop", *PurePosixPath(path).parent.parts)
    return ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))


def _layer_breaches(path: str, imports: list[Imported]) -> Iterator[str]:
    own = _folder(path)
    for imported in imports:
        parts = imported.name.split(".")
        if parts[0] != "orlop" or len(parts) < 2 or parts[1] not in FOLDERS or own is None:
            continue
        reason = _why_not(own, path, parts)
        if reason:
            yield f"{imported.line} imports {imported.name}: {reason}"


def _folder(path: str) -> str | None:
    parts = PurePosixPath(path).parts
    return parts[0] if len(parts) > 1 else None


def _why_not(own: str, path: str, parts: list[str]) -> str | None:
    other = parts[1]
    if own == other:
        return _why_not_within(own, path, parts)
    if own == "testing":
        return None if other in TESTING_REACHES else f"testing may import {', '.join(TESTING_REACHES)} alone"
    if other == "testing":
        return None if own in MAY_IMPORT_TESTING else "only tests and processes/ import testing"
    if own == "admin" and other in ROLES:
        rules = any(part.endswith("_rules") for part in parts)
        return None if rules else "of the roles, admin may import only their *_rules modules"
    return _why_not_across(own, other)


def _why_not_across(own: str, other: str) -> str | None:
    mine, theirs = _layer(own), _layer(other)
    if mine < theirs:
        return None
    below = ", ".join(name for layer in LAYERS[mine + 1 :] for name in layer) or "nothing of orlop"
    if mine == theirs:
        return (
            f"{own} and {other} stand side by side and never import each other (they meet through the API server, the "
            f"CSI socket and records): {own} may import {below}; move what both need there"
        )
    return f"{other} stands above {own}, which may import {below}; hand it in from processes/ instead"


def _why_not_within(own: str, path: str, parts: list[str]) -> str | None:
    if own == "foundation" and parts[2] != PurePosixPath(path).parts[1].removesuffix(".py"):
        return "no module of foundation imports another (each could be a library): hand it in as an argument"
    if (
        own in APART
        and len(parts) > 2
        and len(PurePosixPath(path).parts) > 2
        and parts[2] != PurePosixPath(path).parts[1]
    ):
        return (
            f"{own}.{PurePosixPath(path).parts[1]} and {own}.{parts[2]} never import each other: move it to kube or csi"
        )
    return None


def _layer(folder: str) -> int:
    return next(number for number, layer in enumerate(LAYERS) if folder in layer)


def _ban_breaches(path: str, tree: ast.AST, imports: list[Imported]) -> Iterator[str]:
    names = {*((imported.name, imported.line) for imported in imports), *_used_names(tree)}
    for ban in BANS:
        if any(path == place or (place.endswith("/") and path.startswith(place)) for place in ban.allowed):
            continue
        for name, line in sorted(names, key=lambda found: (found[1], found[0])):
            if _is_banned(name, ban, tree, line):
                yield f"{line} uses {name}: {ban.remedy}"


def _is_banned(name: str, ban: Ban, tree: ast.AST, line: int) -> bool:
    if not any(name == banned or name.startswith(f"{banned}.") for banned in ban.names):
        return False
    # Naming the class in an annotation makes nothing; calling it does.
    return "TYPES" not in ban.allowed or line in _call_lines(tree, name.rsplit(".", 1)[-1])


def _call_lines(tree: ast.AST, name: str) -> set[int]:
    calls = (node for node in ast.walk(tree) if isinstance(node, ast.Call))
    return {call.lineno for call in calls if _last_part(call.func) == name}


def _last_part(node: ast.expr) -> str | None:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else None


def _used_names(tree: ast.AST) -> Iterator[tuple[str, int]]:
    """Dotted names as used, with what they were imported as undone."""
    meaning = dict(_meanings(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute | ast.Name):
            dotted = _dotted(node)
            if dotted is not None and dotted.split(".")[0] in meaning:
                first, _, rest = dotted.partition(".")
                yield (f"{meaning[first]}.{rest}" if rest else meaning[first]), node.lineno


def _meanings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.asname or alias.name.split(".")[0], _bound(alias)) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield from ((alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names)


def _bound(alias: ast.alias) -> str:
    return alias.name if alias.asname else alias.name.split(".")[0]


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return None if base is None else f"{base}.{node.attr}"
    return None


def _rules_breaches(path: str, tree: ast.AST, imports: list[Imported]) -> Iterator[str]:
    if not path.endswith("_rules.py"):
        return
    for imported in imports:
        if imported.name.startswith(PURE_THOUGH_IN_HOST):
            continue
        if any(imported.name == name or imported.name.startswith(f"{name}.") for name in IMPURE):
            remedy = "a *_rules module decides and does nothing else; pass the value in"
            yield f"{imported.line} imports {imported.name}: {remedy}"
    for node in ast.walk(tree):
        if isinstance(node, ast.AsyncFunctionDef | ast.Await | ast.AsyncFor | ast.AsyncWith):
            yield f"{node.lineno} is async: a *_rules module never waits; the shell around it does"
        elif isinstance(node, ast.Call) and _last_part(node.func) in {"open", "print", "input"}:
            yield f"{node.lineno} does input or output: a *_rules module gets values and gives a decision"


def _naming_breaches(path: str, tree: ast.Module, source: str) -> Iterator[str]:
    stem = PurePosixPath(path).stem
    if stem in GRAB_BAGS or any(part in GRAB_BAGS for part in PurePosixPath(path).parts):
        yield "1 is a grab bag: name the file after the one thing in it"
    if _folder(path) is not None and _folder(path) not in FOLDERS:
        yield f"1 stands in an unknown folder: the folders are {', '.join(FOLDERS)}; add it to the table first"
    if not path.startswith(GENERATED):
        if not ast.get_docstring(tree):
            yield "1 has no docstring: say what the module is for and what it must not do"
        if source.count("\n") > LONGEST_FILE:
            yield f"{LONGEST_FILE} goes on: a file has at most {LONGEST_FILE} lines; split it by what it is about"
