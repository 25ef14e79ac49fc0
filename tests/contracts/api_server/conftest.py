"""The API server under test: the embedded one in each way it can be reached, or that of ORLOP_TEST_KUBECONFIG."""

from __future__ import annotations

import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.api.api_under_test import Api, Served, opened
from support.api.api_variants import EMBEDDED, FOREIGN, IN_PROCESS, TLS, UNIX_SOCKET, embedded_process, serve

KUBECONFIG = os.environ.get("ORLOP_TEST_KUBECONFIG", "")
OVER_SOCKETS = {UNIX_SOCKET, TLS}
ABOUT_TLS = {"test_access", "test_content", "test_discovery", "test_tokens", "test_watch"}
"""What differs over TLS: who a caller is, and how answers and streams are cut into pieces."""
EMBEDDED_PARAMS = [
    pytest.param(each, marks=[pytest.mark.virtual_time] if each == IN_PROCESS else []) for each in EMBEDDED
]


@pytest.fixture(scope="session")
def embedded_folder() -> Iterator[Path]:
    """Where one embedded server runs for all tests that speak to one over a socket; its path must be short."""
    folder = Path(tempfile.mkdtemp(prefix="o-", dir="/tmp"))
    if KUBECONFIG:
        yield folder
    else:
        with embedded_process(folder):
            yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="session", params=[FOREIGN] if KUBECONFIG else EMBEDDED_PARAMS)
def served(request: pytest.FixtureRequest, embedded_folder: Path) -> Iterator[Served]:
    with serve(request.param, KUBECONFIG, embedded_folder) as served:
        yield served


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """What a server decides, it decides however it is reached: over sockets one case of each table is enough.

    Over TLS only what differs there: the unix socket leads to the same listener.
    """
    seen: set[tuple[str, str]] = set()
    left_out = {item for item in items if is_needless_over_tls(item) or is_another_case(item, seen)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [item for item in items if item not in left_out]


def is_needless_over_tls(item: pytest.Item) -> bool:
    has_variant = isinstance(item, pytest.Function) and has_cases(item)
    return has_variant and item.callspec.params.get("served") == TLS and item.path.stem not in ABOUT_TLS


def is_another_case(item: pytest.Item, seen: set[tuple[str, str]]) -> bool:
    variant = item.callspec.params.get("served") if isinstance(item, pytest.Function) and has_cases(item) else None
    if variant not in OVER_SOCKETS:
        return False
    test = (str(variant), item.nodeid.partition("[")[0])
    is_seen = test in seen
    seen.add(test)
    return is_seen


def has_cases(item: pytest.Function) -> bool:
    return hasattr(item, "callspec")


@pytest.fixture
def api(served: Served) -> Served:
    """What a test sees under this name is an `Api`, opened in the test's own event loop: see below."""
    return served


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Any:
    test = pyfuncitem.obj
    if inspect.iscoroutinefunction(test) and "api" in pyfuncitem.funcargs:
        pyfuncitem.obj = with_api_opened(test)
    return (yield)


def with_api_opened(test: Any) -> Any:
    @functools.wraps(test)
    async def run(*, api: Served, **rest: Any) -> None:
        async with opened(api) as ready:
            assert isinstance(ready, Api)
            await test(api=ready, **rest)

    return run
