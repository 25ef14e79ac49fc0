"""The API server under test: the embedded one in each way it can be reached, or that of ORLOP_TEST_KUBECONFIG."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Generator
from typing import Any

import pytest

from support.api_variants import EMBEDDED, FOREIGN, serve
from support.api_under_test import Api, Served, opened

KUBECONFIG = os.environ.get("ORLOP_TEST_KUBECONFIG", "")
VARIANTS = [FOREIGN] if KUBECONFIG else EMBEDDED


@pytest.fixture(scope="session", params=VARIANTS)
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Generator[Served]:
    """The server, once for all tests; those that live in one process are made anew for each."""
    with serve(request.param, KUBECONFIG, tmp_path_factory) as served:
        yield served


@pytest.fixture
def api(served: Served) -> Served:
    """What a test sees under this name is an `Api`, opened in the test's own event loop: see below."""
    return served


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> Generator[None, Any, Any]:
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
