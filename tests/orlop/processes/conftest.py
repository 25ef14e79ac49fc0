"""What tests of whole processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.attaching.attacher_places import api_server_for_all


@pytest.fixture(scope="session")
def api_kubeconfig() -> Iterator[Path]:
    """The way to an API server that runs for all tests together: each has its own names there."""
    with api_server_for_all() as kubeconfig:
        yield kubeconfig
