"""What every working directory promises where limits of folders are enforced: asked of the fake and of real kernels."""

from __future__ import annotations

import errno
import itertools

import pytest

from orlop.host.folders.project_quota import NO_LIMITS, FolderQuota, ProjectLimits, ProjectUsage
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderState, NodeHost
from support.afterlife.node_worlds import NodeWorld, live, retained, trashed
from support.waiting import eventually

MIB = 2**20
NUMBERS = itertools.count(1_862_300_000)


def never() -> bool:
    return False


@pytest.fixture
def number() -> int:
    return next(NUMBERS)


@pytest.fixture
def limited(host: NodeHost, number: int) -> int:
    """The number of the folder `live/a`, which may have 8 MiB and 5 inodes."""
    host.workdir.create(live("a"), b"record", 0o777, FolderQuota(number, ProjectLimits(8 * MIB, 5)))
    return number


class QuotaContract:
    """Needs the fixtures `world` and `host`."""

    def test_limits_are_enforced(self, host: NodeHost):
        assert host.workdir.why_no_quota() is None

    def test_a_folder_is_held_to_its_bytes(self, world: NodeWorld, limited: int, host: NodeHost):
        assert not world.tenant_is_refused(live("a"), "small", 2 * MIB)
        assert world.tenant_is_refused(live("a"), "large", 16 * MIB)
        assert host.workdir.quota_usage(limited).bytes <= 8 * MIB

    def test_a_folder_is_held_to_its_inodes(self, world: NodeWorld, limited: int, host: NodeHost):
        refused = [world.tenant_is_refused(live("a"), f"file-{file}", 0) for file in range(6)]

        assert refused == [False] * 4 + [True] * 2  # the folder itself is one
        assert host.workdir.quota_usage(limited).inodes == 5

    @pytest.mark.parametrize("limits", [ProjectLimits(8 * MIB, None), ProjectLimits(None, 5), NO_LIMITS])
    def test_what_is_not_limited_is_only_counted(self, host: NodeHost, number: int, limits: ProjectLimits):
        host.workdir.create(live("a"), b"record", 0o777, FolderQuota(number, limits))

        usage = host.workdir.quota_usage(number)

        assert (usage.limits, usage.inodes) == (limits, 1)

    def test_a_number_that_nothing_counts_by_has_no_usage(self, host: NodeHost, number: int):
        assert host.workdir.quota_usage(number) == ProjectUsage(number, 0, 0, NO_LIMITS)
        assert host.workdir.quota_usage(number).is_nothing

    def test_every_number_in_use_is_listed(self, host: NodeHost, limited: int):
        found = {usage.project: usage for usage in host.workdir.projects()}

        assert found[limited].limits == ProjectLimits(8 * MIB, 5)
        assert found[limited].inodes == 1
        assert 0 in found

    def test_a_full_folder_can_be_buried_and_brought_back_and_its_record_changed(
        self, world: NodeWorld, host: NodeHost, limited: int
    ):
        world.tenant_is_refused(live("a"), "large", 16 * MIB)
        before = host.workdir.quota_usage(limited)
        host.workdir.write_record(live("a"), b"r" * 400)
        host.workdir.move(live("a"), retained("a"))
        host.workdir.move(retained("a"), live("a"))
        host.workdir.write_record(live("a"), b"second")

        assert host.workdir.read_record(live("a")) == b"second"
        assert host.workdir.quota_usage(limited).limits == before.limits
        assert world.tenant_is_refused(live("a"), "more", 16 * MIB)

    async def test_a_number_can_be_used_again_when_its_folder_was_erased(
        self, world: NodeWorld, host: NodeHost, limited: int
    ):
        world.tenant_is_refused(live("a"), "large", 16 * MIB)
        host.workdir.move(live("a"), trashed("a"))
        assert not host.workdir.quota_usage(limited).is_nothing

        world.erase("a")
        await eventually(lambda: host.workdir.quota_usage(limited).is_nothing)
        host.workdir.lift_limits(limited)

        assert host.workdir.quota_usage(limited) == ProjectUsage(limited, 0, 0, NO_LIMITS)
        host.workdir.create(live("b"), b"record", 0o777, FolderQuota(limited, ProjectLimits(MIB, None)))
        assert world.tenant_is_refused(live("b"), "large", 16 * MIB)

    async def test_a_name_that_is_taken_changes_nothing(
        self, world: NodeWorld, host: NodeHost, limited: int, number: int
    ):
        other = FolderQuota(number + 1_000_000, ProjectLimits(MIB, 5))
        with pytest.raises(HostError) as caught:
            host.workdir.create(live("a"), b"second", 0o777, other)

        assert caught.value.errno == errno.EEXIST
        await eventually(lambda: host.workdir.quota_usage(other.project).is_nothing)
        assert host.workdir.quota_usage(limited).inodes == 1
        assert host.workdir.listing(FolderState.LIVE).half_made == ()
        assert not world.tenant_is_refused(live("a"), "file", 4 * MIB)

    def test_files_that_left_their_number_are_found(self, world: NodeWorld, host: NodeHost, limited: int):
        world.tenant_writes(live("a"), "good", b"x" * 10_000)
        world.tenant_writes(live("a"), "left", b"x" * 10_000)
        assert host.workdir.strays(live("a"), limited, never) is None

        world.tenant_leaves(live("a"), "left", 0)
        found = host.workdir.strays(live("a"), limited, never)

        assert found is not None
        assert (found.count, found.first) == (1, "left")
        assert host.workdir.quota_usage(limited).inodes == 2

    def test_looking_for_strays_stops_when_asked_to(self, world: NodeWorld, host: NodeHost, limited: int):
        world.tenant_writes(live("a"), "good", b"x")
        for place, reason in ((live("a"), errno.ECANCELED), (live("missing"), errno.ENOENT)):
            with pytest.raises(HostError) as caught:
                host.workdir.strays(place, limited, lambda: True)
            assert caught.value.errno == reason
