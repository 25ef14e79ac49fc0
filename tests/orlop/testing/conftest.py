"""A driver and its client, with and without a socket between."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from support.csi.csi_drivers import Way

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(params=["in process", "over a socket"])
def way(request: pytest.FixtureRequest, short_folder: Path) -> Way:
    return Way(request.param, short_folder)
