"""A scratch folder in an image on the real kernel: from kubelet's request to what an operator reads of it later."""

from __future__ import annotations

import asyncio
import io
import os
import tarfile
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import Names
from orlop.processes.daemon import CannotGoOn
from support.afterlife.afterlife_node import ID, AfterlifeNode, RunningNode, asked
from support.afterlife.ephemeral_node import UID, names_of, order
from support.afterlife.kernel_nodes import ID as POD_ID
from support.afterlife.kernel_nodes import KernelNode, made, publish, unpublish
from support.afterlife.node_worlds import live
from support.host.descriptors import folder_descriptor
from support.host.kernel_rooms import disk_image, mount_room, run
from support.waiting import eventually

MIB = 1 << 20
SIZE = 16 * MIB
TARGETS = (names_of(UID), names_of(UID, "other"))


@pytest.fixture
def node(short_folder: Path) -> Iterator[AfterlifeNode]:
    with mount_room(short_folder / "node") as room, ExitStack() as clean_up:
        node = AfterlifeNode(room)
        for target in TARGETS:
            node.kubelet.joinpath(*target[:-1]).mkdir(parents=True)
        with LinuxNodeHost(str(node.workdir), str(node.kubelet)) as host:
            reason = host.workdir.why_no_images()
            if reason is not None or host.workdir.why_no_quota() is None:
                pytest.skip(reason or "this machine's own file system has project quotas")
        clean_up.callback(unmount_all, node)
        yield node


def unmount_all(node: AfterlifeNode) -> None:
    with LinuxNodeHost(str(node.workdir), str(node.kubelet)) as host, suppress(OSError):
        for target in TARGETS:
            host.kubelet_dir.unmount(target)


def at(node: AfterlifeNode, target: Names = TARGETS[0]) -> Path:
    return node.kubelet.joinpath(*target)


def scratch(volume: str = "scratch", **options: object):  # type: ignore[no-untyped-def]
    return order(ID, UID, volume, size_bytes=SIZE, **options)


async def buried(running: RunningNode, node: AfterlifeNode) -> None:
    await running.folders.publish(scratch())
    (at(node) / "folder").mkdir()
    (at(node) / "folder" / "result.csv").write_text("1,2,3")
    (at(node) / "way-out").symlink_to("/etc")
    await running.folders.unpublish(ID, scratch().target)
    await eventually(lambda: ID in running.book.retained)


async def test_a_pod_has_the_size_it_asked_for_and_not_more(node: AfterlifeNode):
    async with node.running() as running:
        await running.folders.publish(scratch(mode=0o750))
        space = os.statvfs(at(node))
        with pytest.raises(OSError, match="No space left"):
            (at(node) / "large").write_bytes(bytes(SIZE))
        mode = at(node).stat().st_mode & 0o7777
        flags = os.statvfs(at(node)).f_flag

    assert SIZE - 6 * MIB < space.f_blocks * space.f_frsize <= SIZE
    assert mode == 0o750
    assert flags & os.ST_NOSUID
    assert flags & os.ST_NODEV


async def test_what_a_pod_wrote_survives_the_process_and_a_republish(node: AfterlifeNode):
    async with node.running() as running:
        await running.folders.publish(scratch())
        (at(node) / "file").write_text("content")
    async with node.running() as running:
        await running.folders.publish(scratch())
        await running.folders.publish(scratch("other"))
        assert (at(node, TARGETS[1]) / "file").read_text() == "content"
        await running.folders.unpublish(ID, scratch().target)
        assert ID in running.book.live
        await running.folders.unpublish(ID, scratch("other").target)
        await running.folders.publish(scratch())
        assert (at(node) / "file").read_text() == "content"


async def test_the_afterlife_shows_what_is_in_the_image(node: AfterlifeNode, tmp_path: Path):
    async with node.running() as running:
        await buried(running, node)
        names = [row.name for row in await asked(lambda: list(running.afterlife.list_files(ID)))]
        inside = [row.name for row in await asked(lambda: list(running.afterlife.list_files(ID, b"folder")))]
        with folder_descriptor(tmp_path) as target:
            restored = await asked(lambda: running.afterlife.restore(ID, target))
        archive = io.BytesIO()
        await asked(lambda: running.afterlife.download(ID, b"", archive.write))

    assert set(names) >= {b"folder", b"way-out"}
    assert b"image" not in names
    assert inside == [b"result.csv"]
    assert restored.finished
    assert (tmp_path / ID / "folder" / "result.csv").read_text() == "1,2,3"
    with tarfile.open(fileobj=io.BytesIO(archive.getvalue())) as downloaded:
        assert f"{ID}/folder/result.csv" in downloaded.getnames()


async def test_an_image_is_erased_when_its_time_is_over_and_its_device_is_gone(node: AfterlifeNode):
    async with node.running(reaping=True) as running:
        await running.folders.publish(scratch(lifespan_seconds=0.2))
        await running.folders.unpublish(ID, scratch().target)
        await eventually(lambda: node.names("retained") == node.names("trash") == node.names("live") == [])


async def test_nothing_is_restored_into_an_image_that_a_pod_has(node: AfterlifeNode):
    async with node.running() as running:
        await running.folders.publish(scratch())
        with LinuxNodeHost(str(node.workdir), str(node.kubelet)) as host, folder_descriptor(at(node)) as folder:
            assert host.workdir.holds(folder)


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
async def test_what_a_pod_made_durable_survives_a_loss_of_power_and_is_read_before_a_pod_mounts_it(
    tmp_path: Path, file_system: str
):
    with disk_image(tmp_path / "room", file_system) as disk:
        machine = KernelNode(made(disk.folder / "work"), made(tmp_path / "room" / "kubelet"))
        run("sync", "--file-system", disk.folder)
        target = machine.pod()
        with suppress(CannotGoOn):  # when the disk is gone
            async with machine.running() as service:
                await service.NodePublishVolume(publish(target, size="16Mi"))
                with (target / "file").open("w") as file:
                    file.write("content")
                    file.flush()
                    os.fsync(file)
                await asyncio.to_thread(disk.lose_power)
        run("umount", target)
        disk.switch_off()
        disk.switch_on()

        # The journal of the image has to be replayed before it can be read.
        with (
            LinuxNodeHost(str(machine.workdir), str(machine.kubelet)) as host,
            host.workdir.opened_content(live(POD_ID), "ext4") as content,
        ):
            assert Path(f"/proc/self/fd/{content}/file").read_text() == "content"
        async with machine.running() as service:
            await service.NodePublishVolume(publish(target, size="16Mi"))
            assert (target / "file").read_text() == "content"
            await service.NodeUnpublishVolume(unpublish(target))
        assert machine.left() == [f"retained/{machine.buried().name}"]
