"""Both modes of the object store, behind one contract."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.api.object_stores import OpenStore, durable_opener, memory_opener


@pytest.fixture(params=[memory_opener, durable_opener], ids=["memory", "durable"])
def open_store(request: pytest.FixtureRequest, tmp_path: Path) -> OpenStore:
    return request.param(tmp_path)
