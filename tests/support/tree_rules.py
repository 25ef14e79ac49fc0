"""The import table and the prohibitions of docs/architecture.md, read off the source with `ast`.

`breaches(path, source)` gives one sentence per breach: which line, which rule, and where the thing should live.
Nothing of Orlop is imported here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

# Of each package: upper may import lower; folders in one row never import each other.
LAYERS: dict[str, tuple[tuple[str, ...], ...]] = {
    "orlop": (
        ("cli",),
        ("processes",),
        ("web",),
        ("admin",),
        ("driver", "sidecars", "static_pv"),
        ("binding",),
        ("records",),
        ("kube", "csi", "host"),
        ("foundation",),
    ),
    "onenode": (
        ("cli",),
        ("processes",),
        ("controllers",),
        ("apiserver", "kubelet"),
        ("containers", "host"),
    ),
}
ROLES = ("driver", "sidecars", "static_pv")
# Folders of the product that the bench leaves alone: it meets them through the API server and the CSI socket.
NOT_FOR_THE_BENCH = ("driver", "static_pv", "sidecars")
# Subfolders that never import each other, as if each were a folder of its own.
APART = ("sidecars",)
# Modules of foundation stand alone, except these, which only gather others.
GATHERS_FOUNDATION = ("runtime",)
MAY_IMPORT_TESTING = ("processes",)
NOT_FOR_TESTING = ("cli", "processes", "web", "admin")
FOLDERS = {package: (*(name for layer in layers for name in layer), "testing") for package, layers in LAYERS.items()}


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
        ("orlop/host/", "onenode/host/", "onenode/containers/"),
        "only host/ touches the kernel and other programs: put it there and have it handed in",
    ),
    Ban(
        ("sqlite3",),
        ("onenode/apiserver/store/database.py",),
        "the one database is behind onenode/apiserver/store/database",
    ),
    Ban(
        ("grpc",),
        (),
        "gRPC is spoken by hand, behind one seam: use csi/transport, or extend csi/grpc/",
    ),
    Ban(
        ("hpack",),
        ("orlop/csi/grpc/header_blocks.py",),
        "headers of HTTP/2 are read and written by csi/grpc/header_blocks",
    ),
    Ban(
        ("prometheus_client",),
        (),
        "metrics are written by hand: prometheus_client is for tests alone, it imports servers and clients of HTTP",
    ),
    Ban(
        ("aiohttp",),
        ("onenode/apiserver/", "orlop/web/"),
        "HTTP is spoken by onenode/apiserver and web, and without aiohttp by kube/http and foundation/http_edge",
    ),
    Ban(
        (
            *("time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.clock_gettime", "time.sleep"),
            *("datetime.datetime.now", "datetime.datetime.utcnow", "datetime.datetime.today", "datetime.date.today"),
            "asyncio.sleep",
        ),
        # A container's log is written by a process of its own, which can be handed nothing but descriptors.
        ("orlop/foundation/clock.py", "orlop/testing/virtual_clock.py", "onenode/containers/container_log.py"),
        "time is read and waited for through the Clock that the constructor was given",
    ),
    Ban(
        ("asyncio.to_thread",),
        ("orlop/testing/",),
        "blocking work runs in the threads of orlop/host/threads that the constructor was given",
    ),
    Ban(
        (
            *("secrets", "os.urandom", "uuid.uuid1", "uuid.uuid4"),
            *(
                f"random.{name}"
                for name in ("random", "randint", "choice", "uniform", "shuffle", "sample", "randrange")
            ),
        ),
        ("onenode/apiserver/access/certificates.py",),
        "random numbers come from the Random that the constructor was given",
    ),
    Ban(
        ("random.Random", "random.SystemRandom"),
        ("orlop/processes/", "orlop/cli/", "orlop/testing/", "onenode/processes/", "onenode/testing/", "TYPES"),
        "a source of randomness is made in processes/ or cli/ and handed down",
    ),
)

# Where a loop's executor is called: the one way to run blocking work, the loop of virtual time, and the journal, whose
# commits must be in the order of its one thread before anybody waits for them.
MAY_USE_EXECUTORS = ("orlop/host/threads.py", "orlop/testing/", "onenode/apiserver/store/durable_store.py")

# What a *_rules module may not import: it decides, and does nothing else.
IMPURE = (
    *("asyncio", "os", "io", "socket", "logging", "random", "time", "threading", "pathlib", "shutil", "tempfile"),
    *("orlop.foundation.clock", "orlop.foundation.structured_log", "orlop.foundation.metrics", "orlop.host"),
    *("onenode.host", "onenode.containers"),
)
# Values alone, in a folder that otherwise does things.
PURE_THOUGH_IN_HOST = (
    "orlop.host.static_disks.disk_entries",
    "onenode.containers.container_request",
    "onenode.host.payload_files",
)
GRAB_BAGS = ("utils", "util", "common", "helpers", "helper", "misc")
LONGEST_FILE = 400
GENERATED = ("orlop/csi/proto/", "onenode/apiserver/proto/")


@dataclass(frozen=True, slots=True)
class Imported:
    name: str
    line: int


def breaches(path: str, source: str) -> list[str]:
    """`path` is relative to src, such as `orlop/csi/server.py`."""
    tree = ast.parse(source)
    imports = list(_imports(path, tree))
    found = [
        *_layer_breaches(path, imports),
        *_ban_breaches(path, tree, imports),
        *_executor_breaches(path, tree),
        *_rules_breaches(path, tree, imports),
        *_naming_breaches(path, tree, source),
    ]
    return [f"src/{path}:{breach}" for breach in found]


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
    package = PurePosixPath(path).parent.parts
    return ".".join((*package[: len(package) - node.level + 1], *([node.module] if node.module else [])))


def _layer_breaches(path: str, imports: list[Imported]) -> Iterator[str]:
    for imported in imports:
        reason = _why_not(PurePosixPath(path).with_suffix("").parts, tuple(imported.name.split(".")))
        if reason:
            yield f"{imported.line} imports {imported.name}: {reason}"


def _why_not(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    if other[0] not in LAYERS:
        return None
    if own[0] == "orlop" and other[0] == "onenode":
        return "orlop never imports onenode: a cluster runs without it; name the module in __main__'s table instead"
    if len(own) <= 2 or len(other) == 1 or other[1] not in FOLDERS[other[0]]:
        return None
    if own[0] != other[0]:
        return _why_not_from_the_bench(own, other)
    return _why_not_within(own, other) if own[1] == other[1] else _why_not_across(own, other)


def _why_not_from_the_bench(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    if other[1] == "testing":
        return (
            None if own[1] in {"testing", *MAY_IMPORT_TESTING} else "only tests, testing and processes import testing"
        )
    if other[1] in NOT_FOR_THE_BENCH and not any(part.endswith("_rules") for part in other):
        return (
            f"onenode meets orlop's {other[1]} through the API server and the CSI socket; only its *_rules are imported"
        )
    return None


def _why_not_across(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    layers = LAYERS[own[0]]
    if own[1] == "testing":
        return f"testing never imports {other[1]}: it models what is below" if other[1] in NOT_FOR_TESTING else None
    if other[1] == "testing":
        return None if own[1] in MAY_IMPORT_TESTING else "only tests and processes/ import testing"
    if own[1] == "admin" and other[1] in ROLES:
        rules = any(part.endswith("_rules") for part in other)
        return None if rules else "of the roles, admin may import only their *_rules modules"
    mine, theirs = (next(n for n, layer in enumerate(layers) if side[1] in layer) for side in (own, other))
    if mine < theirs:
        return None
    below = ", ".join(name for layer in layers[mine + 1 :] for name in layer) or f"nothing of {own[0]}"
    if mine == theirs:
        return (
            f"{own[1]} and {other[1]} stand side by side and never import each other: {own[1]} may import {below}; "
            "move what both need there"
        )
    return f"{other[1]} stands above {own[1]}, which may import {below}; hand it in from processes/ instead"


def _why_not_within(own: tuple[str, ...], other: tuple[str, ...]) -> str | None:
    if own[1] == "foundation" and other[2] != own[2] and own[2] not in GATHERS_FOUNDATION:
        return "no module of foundation imports another (each could be a library): hand it in as an argument"
    if own[1] in APART and len(other) > 2 and len(own) > 3 and other[2] != own[2]:
        return f"{own[1]}.{own[2]} and {own[1]}.{other[2]} never import each other: move it to kube, csi or binding"
    return None


def _ban_breaches(path: str, tree: ast.AST, imports: list[Imported]) -> Iterator[str]:
    names = {*((imported.name, imported.line) for imported in imports), *_used_names(tree)}
    for ban in BANS:
        if any(path == place or (place.endswith("/") and path.startswith(place)) for place in ban.allowed):
            continue
        for name, line in sorted(names, key=lambda found: (found[1], found[0])):
            if _is_banned(name, ban, tree, line):
                yield f"{line} uses {name}: {ban.remedy}"


def _executor_breaches(path: str, tree: ast.AST) -> Iterator[str]:
    if path.startswith(MAY_USE_EXECUTORS):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr == "run_in_executor":
            yield f"{node.lineno} uses run_in_executor: blocking work runs in the threads of orlop/host/threads"


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
    parts = PurePosixPath(path).parts
    if len(parts) > 2 and parts[1] not in FOLDERS[parts[0]]:
        known = ", ".join(FOLDERS[parts[0]])
        yield f"1 stands in an unknown folder: the folders are {known}; add it to the table first"
    if not path.startswith(GENERATED):
        if not ast.get_docstring(tree):
            yield "1 has no docstring: say what the module is for and what it must not do"
        if source.count("\n") > LONGEST_FILE:
            yield f"{LONGEST_FILE} goes on: a file has at most {LONGEST_FILE} lines; split it by what it is about"
