"""Fixtures of every test, and how far the random ones go: `make test` takes a small share, `make soak` all."""

from __future__ import annotations

import gc
import os
import shutil
import tempfile
from collections.abc import Generator, Iterator
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


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name: the path of a unix socket holds at most 107 bytes."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    yield folder
    shutil.rmtree(folder)
