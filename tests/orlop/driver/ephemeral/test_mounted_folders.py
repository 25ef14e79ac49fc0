"""A folder that anything has mounted is never erased; when nothing has it any more, it is.

Mounted wholly or in part, here or in another mount namespace, on whatever file system the folders are kept. That it is
never erased is seen by another folder, buried later with the same lifespan, being erased before.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from conftest import SOAK
from orlop.driver.ephemeral.afterlife import reaper, trash_purge
from orlop.foundation.backoff import Backoff
from orlop.foundation.duration import Duration
from orlop.records.ephemeral_folder import Burial
from support.afterlife.kernel_nodes import ID, KernelNode, made, publish, unpublish
from support.host.file_systems import FileSystems, file_systems
from support.host.kernel_rooms import mount_room, other_namespace, run
from support.waiting import eventually

__all__ = ["file_systems"]

QUICK = {"prune_interval": Duration.parse("20ms"), "orphan_grace": Duration.parse("1s")}


@dataclass
class Scene:
    node: KernelNode
    room: Path
    held: ExitStack
    """Closed, nobody has anything mounted."""

    def bind(self, source: Path) -> Path:
        """Mounted by a container runtime, as it were, on a spot of its own."""
        spot = self.room / "spot"
        spot.touch() if source.is_file() else made(spot)
        run("mount", "--bind", source, spot)
        return spot


@pytest.fixture(params=["room", "tmpfs", "ext4", "xfs"] if SOAK else ["room", "xfs"])
def scene(request: pytest.FixtureRequest, file_systems: FileSystems, tmp_path: Path) -> Iterator[Scene]:
    with mount_room(tmp_path / "room") as room, ExitStack() as held:
        disk = room if request.param == "room" else file_systems.new_folder(request.param)
        yield Scene(KernelNode(made(disk / "work"), made(room / "kubelet")), room, held)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (reaper, trash_purge):
        monkeypatch.setattr(module, "RETRY", Backoff(initial=0.05, factor=1.0, cap=0.05, jitter=0.0))


# ---- who has it mounted ----------------------------------------------------------------------------------------------


def here(scene: Scene, folder: Path) -> None:
    scene.held.callback(run, "umount", scene.bind(folder))


def a_part_of_it(scene: Scene, folder: Path) -> None:
    here(scene, folder / "sub" / "deeper")


def one_file_of_it(scene: Scene, folder: Path) -> None:
    here(scene, folder / "sub" / "file")


def another_namespace(scene: Scene, folder: Path) -> None:
    spot = scene.bind(folder)
    scene.held.enter_context(other_namespace("private"))
    run("umount", spot)


def a_part_of_it_in_another_namespace(scene: Scene, folder: Path) -> None:
    another_namespace(scene, folder / "sub" / "deeper")


def a_namespace_that_made_the_mount_itself(scene: Scene, folder: Path) -> None:
    other = scene.held.enter_context(other_namespace("private"))
    spot = made(scene.room / "spot")
    run("nsenter", f"--target={other}", "--mount", "mount", "--bind", folder / "sub", spot)


def read_only(scene: Scene, folder: Path) -> None:
    spot = scene.bind(folder)
    run("mount", "-o", "remount,bind,ro", spot)
    scene.held.callback(run, "umount", spot)


HOLDERS: list[Callable[[Scene, Path], None]] = [
    here,
    a_part_of_it,
    one_file_of_it,
    another_namespace,
    a_part_of_it_in_another_namespace,
    a_namespace_that_made_the_mount_itself,
    read_only,
]
by_name = pytest.mark.parametrize("hold", HOLDERS, ids=lambda hold: hold.__name__)


async def publish_and_fill(scene: Scene, service: Any, lifespan: str) -> None:
    await service.NodePublishVolume(publish(scene.node.pod(), afterlifespan=lifespan))
    made(scene.node.target() / "sub" / "deeper")
    (scene.node.target() / "sub" / "file").write_text("used")


async def another_comes_and_goes(scene: Scene, service: Any, lifespan: str) -> None:
    await service.NodePublishVolume(publish(scene.node.pod("later"), "later", afterlifespan=lifespan))
    await service.NodeUnpublishVolume(unpublish(scene.node.target("later"), "later"))
    await eventually(lambda: not any("later" in name for name in scene.node.left()))


@by_name
async def test_a_folder_still_mounted_when_its_pod_has_gone_is_kept_until_it_is_not(
    scene: Scene, hold: Callable[[Scene, Path], None]
):
    node = scene.node
    async with node.running(**QUICK) as service:
        await publish_and_fill(scene, service, "0s")
        hold(scene, node.target())
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await another_comes_and_goes(scene, service, "0s")
        assert node.left() == [f"live/{ID}"]
        assert (node.live() / "sub" / "file").read_text() == "used"
        scene.held.close()
        await eventually(lambda: node.left() == [])


async def bury(scene: Scene, service: Any, volume_id: str, burial: Burial) -> Path:
    """A folder that was buried then."""
    node = scene.node
    await service.NodePublishVolume(publish(node.pod(volume_id), volume_id))
    made(node.target(volume_id) / "sub" / "deeper")
    (node.target(volume_id) / "sub" / "file").write_text("used")
    await service.NodeUnpublishVolume(unpublish(node.target(volume_id), volume_id))
    return node.buried(volume_id).rename(node.workdir / "retained" / burial.folder_name)


LONG_OVER = Burial(ID, buried_at=1_000.0, lifespan_seconds=1_000.0)


@by_name
async def test_a_folder_mounted_in_its_afterlife_outlives_it_until_it_is_not_mounted(
    scene: Scene, hold: Callable[[Scene, Path], None]
):
    node = scene.node
    async with node.running() as service:
        folder = await bury(scene, service, ID, LONG_OVER)
    hold(scene, folder)
    async with node.running(**QUICK) as service:
        await another_comes_and_goes(scene, service, "1ms")
        assert (folder / "sub" / "file").read_text() == "used"
        scene.held.close()
        await eventually(lambda: node.left() == [])


async def test_a_folder_that_is_mounted_is_not_erased_to_relieve_a_full_disk(scene: Scene):
    node, lifespan = scene.node, 1e9
    burials = {each: Burial(each, time.time() - lifespan + 3600, lifespan) for each in ("held", "other")}
    async with node.running() as service:
        folders = {each: await bury(scene, service, each, burial) for each, burial in burials.items()}
    a_part_of_it(scene, folders["held"])
    async with node.running(headroom=Fraction(1), **QUICK):
        await eventually(lambda: node.volumes("retained") + node.volumes("trash") == ["held"])
        await eventually(lambda: 'erased_total{reason="pressure"} 1' in node.counted())
        assert (folders["held"] / "sub" / "file").read_text() == "used"
        scene.held.close()
        await eventually(lambda: node.left() == [])


@by_name
async def test_a_folder_mounted_in_the_trash_is_not_purged_until_it_is_not_mounted(
    scene: Scene, hold: Callable[[Scene, Path], None]
):
    node = scene.node
    async with node.running() as service:
        await publish_and_fill(scene, service, "1h")
        await service.NodeUnpublishVolume(unpublish(node.target()))
    node.buried().rename(node.workdir / "trash" / "gone")
    hold(scene, node.workdir / "trash" / "gone")
    async with node.running(**QUICK) as service:
        await another_comes_and_goes(scene, service, "0s")
        assert (node.workdir / "trash" / "gone" / "sub" / "file").read_text() == "used"
        scene.held.close()
        await eventually(lambda: node.left() == [])


async def test_the_same_path_on_another_file_system_keeps_nothing(scene: Scene):
    node = scene.node
    other = made(scene.room / "other")
    run("mount", "-t", "tmpfs", "tmpfs", other)
    twin = made(other / node.live().relative_to("/"))
    scene.held.callback(run, "umount", other)
    scene.held.callback(run, "umount", scene.bind(twin))
    async with node.running(**QUICK) as service:
        await publish_and_fill(scene, service, "0s")
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [])
    scene.held.close()


async def test_a_mount_of_the_whole_working_directory_keeps_nothing(scene: Scene):
    node = scene.node
    here(scene, node.workdir)
    async with node.running(**QUICK) as service:
        await publish_and_fill(scene, service, "0s")
        await service.NodeUnpublishVolume(unpublish(node.target()))
        await eventually(lambda: node.left() == [])
    scene.held.close()
