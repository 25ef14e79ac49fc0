"""Scratch folders on the real kernel, from flags to mounts: as kubelet asks for them."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from orlop.csi.error_codes import FailedPrecondition, InvalidArgument, NotFound
from orlop.csi.proto import csi_pb2
from orlop.foundation.duration import Duration
from orlop.host.folders.project_quota import why_not_enforced
from orlop.processes.daemon import CannotGoOn
from support.afterlife.kernel_nodes import KernelNode, node, publish, stats, unpublish
from support.host.descriptors import folder_descriptor
from support.waiting import eventually

__all__ = ["node"]


async def test_a_pod_has_its_folder_and_leaves_it_to_the_afterlife(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target))
        (target / "result.csv").write_text("1,2,3")
        is_mounted = target.is_mount() or os.stat(target).st_ino == os.stat(node.live()).st_ino  # noqa: PTH116
        await service.NodeUnpublishVolume(unpublish(target))

        assert is_mounted
        assert not target.exists()
        assert (node.buried() / "result.csv").read_text() == "1,2,3"


async def test_any_user_in_the_pod_can_write_and_no_other_user_of_the_host_gets_there(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target))

        assert stat.S_IMODE(target.stat().st_mode) == 0o777
        assert stat.S_IMODE((node.workdir / "live").stat().st_mode) == 0o700


async def test_a_read_only_folder_cannot_be_written_and_another_mode_is_honoured(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target, readonly=True, mode="0750"))

        with pytest.raises(OSError, match="Read-only file system"):
            (target / "x").touch()
        assert stat.S_IMODE(target.stat().st_mode) == 0o750


async def test_nothing_in_the_folder_is_run_as_another_user_nor_is_a_device(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target, **{"mount-options": "noexec"}))

        flags = os.statvfs(target).f_flag
        assert flags & os.ST_NOSUID
        assert flags & os.ST_NODEV
        assert flags & os.ST_NOEXEC


async def test_a_folder_without_an_afterlife_is_erased(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target, afterlifespan="0s"))
        (target / "deep" / "er").mkdir(parents=True)
        await service.NodeUnpublishVolume(unpublish(target))
        await eventually(lambda: node.left() == [])


async def test_a_folder_is_erased_when_its_time_is_over(node: KernelNode):
    async with node.running(prune_interval=Duration.parse("50ms")) as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target, afterlifespan="300ms"))
        (target / "file").write_text("x")
        await service.NodeUnpublishVolume(unpublish(target))
        await eventually(lambda: node.left() == [])


async def test_a_restart_finds_what_is_live_and_what_is_retained(node: KernelNode):
    other, other_id = "11111111-f9c6-4bd6-9335-f2c8cf1ea0c7", "csi-other"
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        (node.target() / "live").touch()
        await service.NodePublishVolume(publish(node.pod(other), volume_id=other_id))
        (node.target(other) / "kept").touch()
        await service.NodeUnpublishVolume(unpublish(node.target(other), other_id))
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.target()))  # as kubelet does after its own restart
        assert (node.target() / "live").exists()
        await service.NodePublishVolume(publish(node.pod(other), volume_id=other_id))
        assert (node.target(other) / "kept").exists()
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert not node.target().exists()


async def test_statistics_are_those_of_the_volume(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target))
        (target / "file").write_bytes(bytes(1 << 20))
        answer = await service.NodeGetVolumeStats(stats(target))
        usage = {each.unit: each for each in answer.usage}

        assert 1 << 20 <= usage[csi_pb2.VolumeUsage.Unit.BYTES].used < 2 << 20
        assert usage[csi_pb2.VolumeUsage.Unit.INODES].used == 2
        with pytest.raises(NotFound):
            await service.NodeGetVolumeStats(stats(node.target("another-pod")))


@pytest.mark.parametrize("limit", [{"size": "1Gi", "inodes": "100"}, {"inodes": "100"}], ids=str)
async def test_a_limit_that_the_disk_cannot_hold_is_refused_by_name_and_nothing_is_left(node: KernelNode, limit):
    async with node.running() as service:
        target = node.pod()
        with folder_descriptor(node.workdir) as workdir:
            if why_not_enforced(workdir) is None:
                pytest.skip("this machine's own file system has project quotas")
        why = f"{' and '.join(f'orlop.dev/{each}' for each in limit)} cannot be enforced here.*no project quota"
        with pytest.raises(FailedPrecondition, match=why):
            await service.NodePublishVolume(publish(target, **limit))
        assert node.left() == []
        assert not target.exists()


async def test_a_size_that_no_quota_holds_is_held_by_an_image(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        await service.NodePublishVolume(publish(target, size="20Mi"))
        with pytest.raises(OSError, match="No space left"):
            (target / "large").write_bytes(bytes(20 << 20))
        (target / "large").write_bytes(bytes(1 << 20))
        response = await service.NodeGetVolumeStats(stats(target))
        usage = {each.unit: each for each in response.usage}[csi_pb2.VolumeUsage.Unit.BYTES]
        await service.NodeUnpublishVolume(unpublish(target))

        assert 1 << 20 <= usage.used < 8 << 20
        assert 14 << 20 < usage.total <= 20 << 20
        assert not target.exists()
        assert [each.name for each in node.buried().iterdir()] == ["image"]


async def test_a_second_process_on_the_same_working_directory_is_refused(node: KernelNode):
    async with node.running():
        with pytest.raises(CannotGoOn, match="another process uses"):
            async with node.running():
                pass


async def test_a_target_that_leads_elsewhere_by_a_link_is_refused(node: KernelNode, tmp_path: Path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    node.target().parent.parent.mkdir(parents=True)
    node.target().parent.symlink_to(elsewhere)
    async with node.running() as service:
        with pytest.raises(InvalidArgument):
            await service.NodePublishVolume(publish(node.target()))
    assert list(elsewhere.iterdir()) == []
    assert list((node.workdir / "live").iterdir()) == []


async def test_it_is_ready_while_kubelets_folder_is_shared(node: KernelNode):
    async with node.side() as side:
        assert [await check() for check in side.readiness.values()] == [None, None]


async def test_what_is_none_of_ours_is_reported_and_left(node: KernelNode):
    async with node.running():
        pass
    (node.workdir / "notes.txt").touch()
    (node.workdir / "live" / "somebody's").mkdir()
    async with node.running():
        told = [entry.fields["place"] for entry in node.log if entry.message.startswith("left alone")]
    assert sorted(map(str, told)) == ["live/somebody's", "notes.txt"]
    assert (node.workdir / "live" / "somebody's").is_dir()
