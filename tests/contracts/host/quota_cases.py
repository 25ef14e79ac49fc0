"""The contract of limits on a kernel that has them. Run inside one by support/host/quota_kernel, not collected."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from orlop.host.node_host import NodeHost
from support.afterlife.node_worlds import LinuxWorld, NodeWorld
from support.host.quota_contract import QuotaContract, limited, number
from support.host.quota_kernel import FILE_SYSTEMS

__all__ = ["limited", "number"]
ROOMS = itertools.count()


class TestOnLinux(QuotaContract):
    @pytest.fixture(params=["xfs", "ext4"])
    def world(self, request: pytest.FixtureRequest) -> Iterator[NodeWorld]:
        room = Path(os.environ[FILE_SYSTEMS]) / request.param / f"room-{next(ROOMS)}"
        room.mkdir()
        with ExitStack() as clean_up:
            yield LinuxWorld(room, clean_up)

    @pytest.fixture
    def host(self, world: NodeWorld) -> NodeHost:
        return world.host()
