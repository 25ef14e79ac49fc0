"""The walks of docs/architecture.md, taken by real calls: they pass every function that it names, and few files."""

from __future__ import annotations

import itertools
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest

from orlop.csi.in_process_transport import InProcessConnection
from orlop.csi.interceptor import CallInterceptor, methods_of
from orlop.csi.proto import rpc
from orlop.driver.ephemeral.node_service import EphemeralNodeService
from orlop.foundation.clock import SystemClock
from orlop.foundation.duration import Duration
from orlop.foundation.metrics import Metrics
from orlop.foundation.structured_log import silent_log
from support.afterlife.kernel_nodes import KernelNode, node, publish, unpublish
from support.places import REPOSITORY
from support.waiting import eventually

__all__ = ["node"]

SOURCES = REPOSITORY / "src"
ONLY_AFTER_A_FAILURE = {"src/orlop/csi/error_codes.py:failure_of"}
BATCHED_WORK = "orlop/host/batched_work.py"
# What a reader of a walk does not open: libraries, the shapes of values, tables, and what runs beside the call.
PASSED_BY = (
    "orlop/foundation/",
    "orlop/records/",
    "orlop/csi/error_codes.py",
    "orlop/csi/in_process_transport.py",
    "orlop/host/threads.py",
    "orlop/driver/ephemeral/afterlife/",
    "orlop/driver/ephemeral/requests/",
    "orlop/driver/ephemeral/upkeep/",
)


@dataclass
class Passed:
    """The functions that were called, by thread and file."""

    functions: dict[int, dict[str, set[str]]] = field(default_factory=dict)

    def note(self, frame: FrameType, event: str, _argument: object) -> None:
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(f"{SOURCES}/"):
            of_thread = self.functions.setdefault(threading.get_ident(), {})
            of_thread.setdefault(path.removeprefix(f"{SOURCES}/"), set()).add(frame.f_code.co_qualname)

    def has(self, path: str, name: str) -> bool:
        called = {each for of_thread in self.functions.values() for each in of_thread.get(path, ())}
        return any(each == name or each.startswith(f"{name}.") for each in called)

    def taken(self) -> list[str]:
        """Return the files on the way of a call, in the event loop and the thread of its batched work; begin anew."""
        this = threading.get_ident()
        on_the_way = {
            path
            for thread, of_thread in self.functions.items()
            if thread == this or BATCHED_WORK in of_thread
            for path in of_thread
        }
        self.functions = {}
        return sorted(path for path in on_the_way if not path.startswith(PASSED_BY))


@contextmanager
def noted(passed: Passed) -> Iterator[None]:
    """Note what this thread calls, and every thread that begins inside."""
    threading.setprofile(passed.note)
    sys.setprofile(passed.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def calls_of(service: EphemeralNodeService) -> InProcessConnection:
    count = itertools.count()
    interceptor = CallInterceptor(
        methods_of(service),
        driver_name="csi.orlop.dev",
        log=silent_log(),
        metrics=Metrics("test", of_process=False),
        clock=SystemClock(),
        new_id=lambda: str(next(count)),
    )
    return InProcessConnection(interceptor)


async def call(connection: InProcessConnection, method: Any, request: Any) -> None:
    await connection.call(method.path, request.SerializeToString(), 300.0)


def named_in_walk(number: int) -> list[tuple[str, str]]:
    document = (REPOSITORY / "docs" / "architecture.md").read_text()
    (walk,) = re.findall(rf"^## Walk {number}:(.*?)(?=^## |\Z)", document, re.MULTILINE | re.DOTALL)
    named = re.findall(r"`(src/orlop/[a-z0-9_/]+\.py):([\w.]+)`", walk)
    return [each for each in named if ":".join(each) not in ONLY_AFTER_A_FAILURE]


@pytest.mark.parametrize("number", [1, 2])
async def test_a_folder_passes_every_function_that_its_walk_names(node: KernelNode, number: int):
    passed = Passed()
    with noted(passed):
        async with node.running(prune_interval=Duration.parse("50ms")) as service:
            connection, target = calls_of(service), node.pod()
            await call(connection, rpc.NODE_PUBLISH_VOLUME, publish(target, afterlifespan="100ms"))
            (target / "file").touch()
            await call(connection, rpc.NODE_UNPUBLISH_VOLUME, unpublish(target))
            await eventually(lambda: node.left() == [])

    named = named_in_walk(number)
    assert named
    assert [f"{path}:{name}" for path, name in named if not passed.has(path.removeprefix("src/"), name)] == []


# By the count of files that a reader opens, from the interceptor to the kernel. One more needs a reason.
MOST_FILES = 14


async def test_a_scratch_folder_comes_and_goes_through_few_files_all_named_in_its_walk(node: KernelNode):
    passed = Passed()
    with noted(passed):
        async with node.running() as service:
            connection, target = calls_of(service), node.pod()
            passed.taken()  # the start of the process
            await call(connection, rpc.NODE_PUBLISH_VOLUME, publish(target))
            published = passed.taken()
            await call(connection, rpc.NODE_UNPUBLISH_VOLUME, unpublish(target))
            unpublished = passed.taken()
    assert len(published) <= MOST_FILES, published
    assert len(unpublished) <= MOST_FILES, unpublished
    in_walk_1, in_walk_2 = ({path.removeprefix("src/") for path, _ in named_in_walk(number)} for number in (1, 2))
    assert set(published) <= in_walk_1
    assert set(unpublished) <= in_walk_1 | in_walk_2
