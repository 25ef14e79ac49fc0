"""Limits of folders: on the fake host, on kernels that have quotas (user-mode-linux), and where there are none."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from orlop.host.folders.project_quota import FolderQuota, ProjectLimits
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderState, NodeHost
from support.afterlife.node_worlds import FakeWorld, LinuxWorld, NodeWorld, live
from support.host.quota_contract import QuotaContract, limited, number
from support.host.quota_kernel import Console, cases_in, quota_kernel
from support.places import TESTS

__all__ = ["limited", "number", "quota_kernel"]

CASES = cases_in(TESTS / "support" / "host" / "quota_contract.py", ("xfs", "ext4"))


@pytest.mark.parametrize("case", CASES)
@pytest.mark.timeout(600)
def test_on_a_kernel_that_has_quotas(quota_kernel: Console, case: str):
    assert quota_kernel.outcomes_of(case) == {"PASSED"}, quota_kernel.text


class TestOnTheFakeHost(QuotaContract):
    @pytest.fixture
    def world(self) -> NodeWorld:
        world = FakeWorld()
        world.machine.why_no_quota = None
        return world

    @pytest.fixture
    def host(self, world: NodeWorld) -> NodeHost:
        return world.host()


class TestWhereThereIsNoQuota:
    @pytest.fixture(params=["fake", "linux"])
    def host(self, request: pytest.FixtureRequest) -> Iterator[NodeHost]:
        if request.param == "fake":
            yield FakeWorld().host()
            return
        room = request.getfixturevalue("room")
        with ExitStack() as clean_up:
            host = LinuxWorld(room, clean_up).host()
            if host.workdir.why_no_quota() is None:
                pytest.skip("this machine's own file system has project quotas")
            yield host

    def test_it_is_said_in_a_sentence(self, host: NodeHost):
        reason = host.workdir.why_no_quota()

        assert reason is not None
        assert "project quota" in reason
        assert reason.endswith(".")

    def test_a_folder_that_would_not_be_held_to_its_limits_is_not_made(self, host: NodeHost):
        with pytest.raises(HostError) as caught:
            host.workdir.create(live("a"), b"record", 0o777, FolderQuota(1_862_000_000, ProjectLimits(4096, None)))

        assert caught.value.errno == errno.EOPNOTSUPP
        assert str(caught.value) == host.workdir.why_no_quota()
        listing = host.workdir.listing(FolderState.LIVE)
        assert (listing.folders, listing.half_made) == ((), ())
