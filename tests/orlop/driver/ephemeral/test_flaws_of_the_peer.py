"""Each flaw known of the driver whose design ours began with; the name of a test says what is right instead.

On the real kernel, from flags to mounts. What that driver's behaviour was is told in a comment where the name alone
does not give it away.
"""

from __future__ import annotations

import asyncio
import os
import signal
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from orlop import __version__
from orlop.csi.endpoint import UnixEndpoint, parse_endpoint
from orlop.csi.error_codes import CsiError, InvalidArgument, NotFound, Unavailable, Unimplemented
from orlop.csi.proto import csi_pb2
from orlop.driver.identity_service import DriverIdentity, IdentityService
from orlop.foundation.duration import Duration
from orlop.foundation.go_flags import UsageError, parse_flags
from orlop.host.folders.folder_reading import read_file
from orlop.host.host_errors import HostError
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.processes.csi_wiring import EphemeralSettings
from orlop.processes.daemon import CannotGoOn
from support.afterlife.kernel_nodes import ID, KernelNode, made, node, publish, stats, unpublish
from support.host.kernel_rooms import descriptor, disk_image, run
from support.processes.orlop_process import running as running_process
from support.waiting import eventually

__all__ = ["node"]

SOON = {"prune_interval": Duration.parse("50ms")}
PROCESS = [sys.executable, "-W", "error", str(Path(__file__).with_name("node_process.py"))]


@contextmanager
def immutable(folder: Path) -> Iterator[None]:
    run("chattr", "+i", folder)
    try:
        yield
    finally:
        run("chattr", "-i", folder)


@contextmanager
def umask(mask: int) -> Iterator[None]:
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


# ---- publishing ------------------------------------------------------------------------------------------------------


async def test_a_request_for_a_block_device_is_refused_and_leaves_no_folder(node: KernelNode):
    request = publish(node.pod())
    request.volume_capability.block.SetInParent()
    async with node.running() as service:
        with pytest.raises(InvalidArgument, match="block"):
            await service.NodePublishVolume(request)

    assert node.left() == []
    assert not node.target().exists()


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o777])
async def test_the_mode_of_a_folder_is_what_was_asked_for_whatever_the_umask(node: KernelNode, mask: int):
    with umask(mask):
        async with node.running() as service:
            await service.NodePublishVolume(publish(node.pod()))
            await service.NodePublishVolume(publish(node.pod(volume="b"), "b", mode="0705"))

            assert stat.S_IMODE(node.target().stat().st_mode) == 0o777
            assert stat.S_IMODE(node.target(volume="b").stat().st_mode) == 0o705


async def test_the_record_is_there_before_anything_is_mounted(node: KernelNode, monkeypatch: pytest.MonkeyPatch):
    recorded = []
    bind = LinuxNodeHost.bind

    def look_and_bind(host: LinuxNodeHost, *arguments: Any) -> None:
        recorded.append(node.record(node.live()).targets)
        bind(host, *arguments)

    monkeypatch.setattr(LinuxNodeHost, "bind", look_and_bind)
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))

    assert recorded == [(str(node.target().relative_to(node.kubelet)),)]


async def test_a_record_that_cannot_be_written_fails_the_publish_and_leaves_nothing(tmp_path: Path):
    with disk_image(tmp_path / "room", "ext4") as disk:  # an attribute has at most one block there
        node = KernelNode(made(disk.folder / "work"), made(tmp_path / "room" / "kubelet"))
        async with node.running() as service:
            target = node.kubelet / "/".join(["d" * 200] * ((4000 - len(str(node.kubelet))) // 201)) / "mount"
            target.parent.mkdir(parents=True)
            told = {"pod.name": "n" * 250, "serviceAccount.name": "a" * 250}
            with pytest.raises(CsiError, match="record"):
                await service.NodePublishVolume(publish(target, told=told))
            left = node.left()

        assert left == []
        assert not target.exists()
        assert node.mounts() == []


async def test_what_is_mounted_already_is_recorded_with_each_of_its_targets(node: KernelNode):
    # There a second publish was answered without a look at what is recorded.
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        await service.NodePublishVolume(publish(node.target()))
        await service.NodePublishVolume(publish(node.pod(volume="other")))

    targets = [str(node.target(volume=name).relative_to(node.kubelet)) for name in ("scratch", "other")]
    assert list(node.record(node.live()).targets) == targets
    assert node.mounts() == sorted(map(str, (node.target(), node.target(volume="other"))))


async def test_a_publish_that_differs_from_what_is_mounted_is_told_so(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        with pytest.raises(Unavailable, match=r"mounted at the target .* with other options"):
            await service.NodePublishVolume(publish(node.target(), readonly=True))
        (node.target() / "still writable").touch()


async def test_mount_flags_are_honoured_or_refused_by_name(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), flags=("noexec,noatime",)))
        with pytest.raises(InvalidArgument, match="'sync'"):
            await service.NodePublishVolume(publish(node.pod(volume="b"), "b", flags=("sync",)))

        assert os.statvfs(node.target()).f_flag & os.ST_NOEXEC
        assert os.statvfs(node.target()).f_flag & os.ST_NOATIME
        assert node.volumes("live") == [ID]


async def test_a_file_system_named_only_to_have_fs_group_honoured_is_no_obstacle(node: KernelNode):
    # kubelet's default policy wants an fsType before it changes a group; a folder has that of its disk all the same.
    request = publish(node.pod())
    request.volume_capability.mount.fs_type = "ext4"
    async with node.running() as service:
        await service.NodePublishVolume(request)
        assert os.stat(node.target()).st_dev == node.workdir.stat().st_dev  # noqa: PTH116 - of the mount


async def test_two_hundred_publishes_at_once_are_all_served_and_recorded(node: KernelNode):
    ids = [f"csi-{number}" for number in range(200)]
    async with node.running() as service:
        await asyncio.gather(
            *(service.NodePublishVolume(publish(node.pod(f"pod-{each}"), each)) for each in ids),
        )
        assert node.volumes("live") == sorted(ids)
        assert len(node.mounts()) == len(ids)
        await asyncio.gather(
            *(service.NodeUnpublishVolume(unpublish(node.target(f"pod-{each}"), each)) for each in ids),
        )
        assert node.mounts() == []
        assert node.volumes("retained") == sorted(ids)


async def test_publishes_and_unpublishes_of_one_volume_at_once_end_in_one_state(node: KernelNode):
    async with node.running() as service:
        target = node.pod()
        for _ in range(5):
            calls = [service.NodePublishVolume(publish(target)), service.NodeUnpublishVolume(unpublish(target))]
            await asyncio.gather(*calls, *[service.NodePublishVolume(publish(target)) for _ in range(5)])
            assert node.mounts() == [str(target)]
            assert node.left() == [f"live/{ID}"]
            await service.NodeUnpublishVolume(unpublish(target))
            assert node.mounts() == []
            assert node.volumes("retained") == [ID]


async def test_a_size_is_held_or_refused_and_never_passed_over(node: KernelNode):
    async with node.running() as service:
        try:
            await service.NodePublishVolume(publish(node.pod(), size="20Mi"))
        except CsiError:
            assert node.left() == []
            assert node.mounts() == []
            return
        with pytest.raises(OSError, match=r"quota|space"):
            (node.target() / "too much").write_bytes(bytes(20 << 20))


# ---- unpublishing ----------------------------------------------------------------------------------------------------


async def test_a_folder_is_unmounted_first_and_buried_then(node: KernelNode):
    # There it was queued first: when unmounting failed, the clock was ticking for a folder in use.
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        with descriptor(node.target()):
            with pytest.raises(CsiError, match="cannot be unmounted"):
                await service.NodeUnpublishVolume(unpublish(node.target()))
            assert node.left() == [f"live/{ID}"]
            assert node.mounts() == [str(node.target())]
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [])


async def test_a_burial_that_fails_is_an_error_and_succeeds_when_it_is_asked_again(node: KernelNode):
    # There a queue that could not be written was a line in the log, and the folder leaked.
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        with immutable(node.workdir / "retained"), pytest.raises(CsiError):
            await service.NodeUnpublishVolume(unpublish(node.target()))
        assert node.left() == [f"live/{ID}"]
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert node.volumes("retained") == [ID]


async def test_a_volume_whose_folder_somebody_removed_is_unpublished_and_published_anew(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        node.live().rmdir()
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert not node.target().exists()
        await service.NodePublishVolume(publish(node.target()))
        (node.target() / "file").touch()
        assert node.left() == [f"live/{ID}"]


async def test_an_unknown_volume_and_a_missing_target_are_unpublished_already(node: KernelNode):
    async with node.running() as service:
        await service.NodeUnpublishVolume(unpublish(node.target(), "csi-unknown"))
        await service.NodeUnpublishVolume(unpublish(node.pod(), "csi-unknown"))
    assert node.left() == []


async def test_a_volume_published_again_is_out_of_the_queue_with_all_its_files(node: KernelNode):
    # There the candidate went on ticking, and the folder was erased under the running pod.
    async with node.running(**SOON) as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="1s"))
        (node.target() / "file").write_text("kept")
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await service.NodePublishVolume(publish(node.target(), afterlifespan="1s"))
        await _live_through_a_lifespan(node, service)

        assert (node.target() / "file").read_text() == "kept"
        assert node.left() == [f"live/{ID}"]


async def _live_through_a_lifespan(node: KernelNode, service: Any) -> None:
    """Another folder is buried now, for as long, and erased when that is over."""
    await service.NodePublishVolume(publish(node.pod("later"), "later", afterlifespan="1s"))
    await service.NodeUnpublishVolume(unpublish(node.target("later"), "later"))
    await eventually(lambda: "later" not in node.volumes("retained") + node.volumes("trash"))


async def test_a_second_burial_begins_a_lifespan_of_its_own(node: KernelNode):
    # There the first entry of a volume stayed as it was for ever.
    async with node.running() as service:
        names = []
        for _ in range(2):
            await service.NodePublishVolume(publish(node.pod()))
            await service.NodeUnpublishVolume(unpublish(node.target()))
            names.append(node.buried().name)
        assert names[1] > names[0]
        assert node.volumes("retained") == [ID]


# ---- the afterlife ---------------------------------------------------------------------------------------------------


async def test_the_queue_survives_a_restart_with_time_and_lifespan(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        await service.NodeUnpublishVolume(unpublish(node.target()))
        before = node.left()
    async with node.running(afterlifespan=Duration.parse("1ms"), **SOON):
        assert node.left() == before
    assert node.record(node.buried()).options.lifespan_seconds == 12 * 3600


async def test_a_folder_knows_its_pod_after_a_restart_and_is_erased_where_it_is(node: KernelNode):
    # There a failed record left the pod in memory alone: after a restart the path was wrong, and the entry dropped.
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="1s", told={"pod.name": "web-0"}))
    async with node.running(**SOON) as service:
        await service.NodeUnpublishVolume(unpublish(node.target()))
        assert [node.record(folder).owner.pod_name for folder in (node.workdir / "retained").iterdir()] == ["web-0"]
        await eventually(lambda: node.left() == [])


async def test_what_is_in_no_record_is_told_at_every_start_and_never_touched(node: KernelNode):
    async with node.running():
        pass
    stranger = made(node.workdir / "retained" / "unknown" / "files")
    for start in (1, 2):
        async with node.running(afterlifespan=Duration.parse("0s")):
            told = [entry for entry in node.log if entry.fields.get("place") == "retained/unknown"]
            assert len(told) == start
    assert stranger.is_dir()


async def test_a_folder_that_somebody_removed_is_forgotten_once_and_holds_up_nobody(node: KernelNode):
    # There it was dropped, and for want of a `continue` erased all the same.
    async with node.running(**SOON) as service:
        for volume_id in ("a", "b"):
            await service.NodePublishVolume(publish(node.pod(volume_id), volume_id, afterlifespan="1s"))
            await service.NodeUnpublishVolume(unpublish(node.target(volume_id), volume_id))
        node.buried("a").rmdir()
        await eventually(lambda: 'erased_total{reason="age"} 2' in node.counted())

        assert node.left() == []
        assert "orlop_ephemeral_erase_failures_total 0" in node.counted()


async def test_free_space_is_what_users_can_have_and_not_what_is_kept_for_root(tmp_path: Path):
    with disk_image(tmp_path / "room", "ext4") as disk:
        run("tune2fs", "-m", "40", _image_of(tmp_path))
        disk.cut_power()
        node = KernelNode(made(disk.folder / "work"), made(tmp_path / "room" / "kubelet"))
        with LinuxNodeHost(str(node.workdir), str(node.kubelet)) as host:
            room, found = host.workdir.room(), os.statvfs(disk.folder)

        assert room.free_bytes == found.f_bavail * found.f_frsize < found.f_bfree * found.f_frsize
        async with node.running(headroom=Fraction(9, 10), **SOON):
            await eventually(lambda: 0 < _factor(node) < 1)


def _image_of(tmp_path: Path) -> Path:
    return tmp_path / "room" / "image"


def _factor(node: KernelNode) -> float:
    (line,) = [line for line in node.counted().splitlines() if line.startswith("orlop_ephemeral_pressure_factor ")]
    return float(line.split()[1])


async def test_a_full_disk_erases_what_is_retained_and_nothing_that_is_live(tmp_path: Path):
    # There a folder whose unmounting kept failing was a candidate, and pressure made it due at once.
    with disk_image(tmp_path / "room", "ext4") as disk:
        node = KernelNode(made(disk.folder / "work"), made(tmp_path / "room" / "kubelet"))
        async with node.running(headroom=Fraction(1, 10), **SOON) as service:
            for volume_id in ("gone", "busy"):
                await service.NodePublishVolume(publish(node.pod(volume_id), volume_id))
            (node.target("gone") / "data").write_bytes(bytes(1 << 20))
            await service.NodeUnpublishVolume(unpublish(node.target("gone"), "gone"))
            with descriptor(node.target("busy")):
                with pytest.raises(CsiError):
                    await service.NodeUnpublishVolume(unpublish(node.target("busy"), "busy"))
                _fill(node.target("busy") / "all there is")
                await eventually(lambda: node.left() == ["live/busy"])
                await eventually(lambda: 'erased_total{reason="pressure"} 1' in node.counted())
            await service.NodeUnpublishVolume(unpublish(node.target("busy"), "busy"))
            await eventually(lambda: node.left() == [])


def _fill(file: Path) -> None:
    opened = os.open(file, os.O_CREAT | os.O_WRONLY)
    try:
        while True:
            os.posix_fallocate(opened, os.fstat(opened).st_size, 1 << 18)
    except OSError:
        pass
    finally:
        os.close(opened)


async def test_a_pod_has_its_own_lifespan(node: KernelNode):
    async with node.running(**SOON) as service:
        for volume_id, lifespan in (("short", "100ms"), ("long", "1h")):
            await service.NodePublishVolume(publish(node.pod(volume_id), volume_id, afterlifespan=lifespan))
            await service.NodeUnpublishVolume(unpublish(node.target(volume_id), volume_id))
        await eventually(lambda: node.volumes("retained") + node.volumes("trash") == ["long"])


async def test_what_is_retained_can_be_listed_with_pod_time_and_lifespan(node: KernelNode):
    async with node.running() as service:
        told = {"pod.name": "web-0", "pod.namespace": "shop"}
        await service.NodePublishVolume(publish(node.pod(), told=told))
        await service.NodeUnpublishVolume(unpublish(node.target()))
        owner = node.record(node.buried()).owner
        assert (owner.pod_name, owner.namespace) == ("web-0", "shop")


async def test_a_file_outside_of_a_folder_is_not_read_through_it(node: KernelNode, tmp_path: Path):
    # There a side tool served every file of the host to whoever asked.
    (tmp_path / "secret").write_text("secret")
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        (node.target() / "link").symlink_to(tmp_path / "secret")
        (node.target() / "up").symlink_to("..")
        await service.NodeUnpublishVolume(unpublish(node.target()))
    with descriptor(node.buried()) as folder:
        for path in ("link", "up/secret", "../../../../secret", str(tmp_path / "secret")):
            with pytest.raises(HostError):
                b"".join(read_file(folder, path))


async def test_metrics_tell_what_was_erased_and_the_pressure(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod(), afterlifespan="0s"))
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: "orlop_ephemeral_erased_total{" in node.counted())
        assert "orlop_ephemeral_pressure_factor 1.0" in node.counted()


# ---- statistics and capabilities -------------------------------------------------------------------------------------


async def test_a_volume_has_statistics_of_its_own(node: KernelNode):
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
        (node.target() / "file").write_bytes(bytes(1 << 20))
        used = {usage.unit: usage.used for usage in (await service.NodeGetVolumeStats(stats(node.target()))).usage}
        assert 1 << 20 <= used[csi_pb2.VolumeUsage.Unit.BYTES] < 1 << 21
        with pytest.raises(NotFound):
            await service.NodeGetVolumeStats(stats(node.target(), "csi-unknown"))


async def test_what_is_served_is_told_and_what_is_not_is_unimplemented(node: KernelNode):
    # There the only capability was UNKNOWN, while staging was answered with OK.
    kinds = csi_pb2.NodeServiceCapability.RPC.Type
    async with node.running() as service:
        answer = await service.NodeGetCapabilities(csi_pb2.NodeGetCapabilitiesRequest())
        assert [each.rpc.type for each in answer.capabilities] == [
            kinds.GET_VOLUME_STATS,
            kinds.GET_VOLUME_HEALTH,
        ]
        with pytest.raises(Unimplemented):
            await service.NodeStageVolume(csi_pb2.NodeStageVolumeRequest(volume_id=ID))
        with pytest.raises(Unimplemented):
            await service.NodeExpandVolume(csi_pb2.NodeExpandVolumeRequest(volume_id=ID))


async def test_the_identity_always_has_a_version_and_no_unknown_capability():
    # There a build without a version never registered.
    identity = IdentityService(DriverIdentity("csi.orlop.dev", __version__), _is_ready)
    answer = await identity.GetPluginInfo(csi_pb2.GetPluginInfoRequest())
    capabilities = await identity.GetPluginCapabilities(csi_pb2.GetPluginCapabilitiesRequest())

    assert (answer.name, answer.vendor_version) == ("csi.orlop.dev", __version__)
    assert __version__
    assert all(capability.service.type for capability in capabilities.capabilities)


async def _is_ready() -> bool:
    return True


async def test_readiness_is_looked_for_and_not_assumed(node: KernelNode):
    # There a probe was answered with OK, whatever had become of the database.
    async with node.side() as side:
        assert await side.readiness["kubelet-dir"]() is None
        run("mount", "--make-private", node.kubelet.parent)
        assert "shared" in str(await side.readiness["kubelet-dir"]())


# ---- flags and the process -------------------------------------------------------------------------------------------


def settings_of(node: KernelNode, *arguments: str) -> EphemeralSettings:
    given = [f"--workdir={node.workdir}", f"--kubelet-dir={node.kubelet}", *arguments]
    return parse_flags(EphemeralSettings, given, program="orlop driver", warn=lambda _: None)


@pytest.mark.parametrize("headroom", ["-0.1", "1.1", "10%", "nan", "inf", "a lot", "1/2", "", "1e400"])
def test_a_headroom_that_is_none_is_refused_at_the_start(node: KernelNode, headroom: str):
    # There every round failed, and folders lived for a tenth of their lifespan without a word.
    with pytest.raises(UsageError, match="headroom"):
        settings_of(node, f"--headroom={headroom}")


@pytest.mark.parametrize("headroom", ["0", "1", "0.1", ".1", "1e-3"])
def test_a_headroom_from_nothing_to_all_is_taken(node: KernelNode, headroom: str):
    assert settings_of(node, f"--headroom={headroom}").headroom == Fraction(headroom)


@pytest.mark.parametrize("spelled", ["--afterlifespan", "--afterLifespan", "-afterlifespan"])
def test_the_lifespan_may_be_spelled_in_both_ways(node: KernelNode, spelled: str):
    assert settings_of(node, f"{spelled}=3h").afterlifespan == Duration.parse("3h")


def test_an_endpoint_without_its_leading_slash_is_the_same_endpoint():
    assert (
        parse_endpoint("unix://tmp/csi.sock") == parse_endpoint("unix:///tmp/csi.sock") == UnixEndpoint("/tmp/csi.sock")
    )


async def test_a_working_directory_that_cannot_be_used_is_an_error_with_its_reason(node: KernelNode):
    (node.workdir / "live").write_text("no folder")
    with pytest.raises(CannotGoOn, match="live"):
        async with node.running():
            pass


def flags(node: KernelNode, folder: Path) -> list[str]:
    return [
        f"--endpoint=unix://{folder}/csi.sock",
        f"--workdir={node.workdir}",
        f"--kubelet-dir={node.kubelet}",
        f"--adminsocket={folder}/a/s",
    ]


async def test_a_process_that_cannot_use_its_working_directory_does_not_exit_with_zero(
    node: KernelNode, short_folder: Path
):
    async with node.running():
        with running_process(short_folder, *flags(node, short_folder), program=PROCESS) as process:
            assert await process.exit_code() == 1
            assert "another process uses" in process.logged()
            assert "Traceback" not in process.logged()


async def test_a_process_that_is_told_to_stop_ends_in_order_and_leaves_pods_their_folders(
    node: KernelNode, short_folder: Path
):
    # There the signal was not handled and the database never closed.
    async with node.running() as service:
        await service.NodePublishVolume(publish(node.pod()))
    with running_process(short_folder, *flags(node, short_folder), program=PROCESS) as process:
        await process.says("listening")
        process.signal(signal.SIGTERM)
        assert await process.exit_code() == 0
    (node.target() / "file").touch()
    assert node.left() == [f"live/{ID}"]
