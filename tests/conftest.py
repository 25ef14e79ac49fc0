"""Fixtures of every test, and how far the random ones go: `make test` takes a small share, `make soak` all."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from support.async_tests import no_leaked_threads, pytest_pyfunc_call
from support.hangs import pytest_timeout_cancel_timer, pytest_timeout_set_timer

__all__ = [
    "no_leaked_threads",
    "pytest_pyfunc_call",
    "pytest_timeout_cancel_timer",
    "pytest_timeout_set_timer",
    "short_folder",
]

WAITING = (
    "tests/onenode/processes/",
    "tests/orlop/processes/",
    "tests/harness/",
    "tests/journeys/test_journeys_on_this_machine.py",
    "tests/kubectl/",
)
SOAK = bool(os.environ.get("ORLOP_SOAK"))

settings.register_profile("test", deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("soak", deadline=None, max_examples=600, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("soak" if SOAK else "test")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[Any, Any, Any]:
    """Collect without garbage collection, and exempt the million objects of it from every later one."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put tests that wait for processes first, in the random order they have.

    The first worker begins with them; the others have the processor meanwhile. Last, they would be waited for alone.
    """
    items.sort(key=lambda item: not item.nodeid.startswith(WAITING))


@contextmanager
def folder_with_a_short_name() -> Iterator[Path]:
    """The path of a unix socket holds at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)


@pytest.fixture
def short_folder() -> Iterator[Path]:
    with folder_with_a_short_name() as folder:
        yield folder
