"""Somebody swaps folders for links while the node works: nothing is done where a link leads to.

The attacker is a process of its own that exchanges two names without a pause: one of the folders on the way to a
target, or of those in a tenant's tree, and a link to a folder that is none of ours. Whatever each call is answered,
that folder stays as it is, and nothing is mounted in it. When the attacker has gone, all ends as it should.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from conftest import SOAK
from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife import reaper
from orlop.foundation.backoff import Backoff
from orlop.host.folders.folder_copy import copy_folder
from orlop.host.folders.folder_reading import list_folder, read_file
from orlop.host.host_errors import HostError
from support.afterlife.kernel_nodes import ID, KernelNode, made, publish, stats, unpublish
from support.host.kernel_rooms import descriptor, mount_points_of, mount_room, run, swapped_again_and_again
from support.host.trees import Entry, seen
from support.waiting import eventually

ROUNDS = 1_000 if SOAK else 40
UID = "pod-uid"
ON_THE_WAY = {
    "pods": "pods",
    "the pod's folder": f"pods/{UID}",
    "its volumes": f"pods/{UID}/volumes",
    "the driver's folder": f"pods/{UID}/volumes/kubernetes.io~csi",
    "the target's parent": f"pods/{UID}/volumes/kubernetes.io~csi/scratch",
    "the target": f"pods/{UID}/volumes/kubernetes.io~csi/scratch/mount",
}


@dataclass
class Scene:
    node: KernelNode
    canary: Path
    """Looks like what the swapped folders look like, so that whoever followed the link would find his way."""

    @property
    def target(self) -> Path:
        return self.node.target(UID)

    def outside(self) -> tuple[Entry, list[str]]:
        mounted = [point for point in mount_points_of("self") if point.startswith(f"{self.canary}/")]
        return seen(self.canary), mounted


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    with mount_room(tmp_path / "room") as room:
        canary = made(room / "canary")
        tail = f"{UID}/volumes/kubernetes.io~csi/scratch/mount".split("/")
        for beginning in range(len(tail) + 1):
            place = made(canary.joinpath(*tail[beginning:]))
            (place / "treasure").write_text("mine")
        made(canary / "empty")
        yield Scene(KernelNode(made(room / "work"), made(room / "kubelet")), canary)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "RETRY", Backoff(initial=0.05, factor=1.0, cap=0.05, jitter=0.0))


async def tolerated(call: Awaitable[object]) -> bool:
    with suppress(CsiError):
        await call
        return True
    return False


@pytest.mark.parametrize("spot", ON_THE_WAY)
async def test_no_link_on_the_way_to_a_target_is_ever_followed(scene: Scene, spot: str):
    node, before = scene.node, scene.outside()
    node.pod(UID)
    made(scene.target)
    honest = node.kubelet / ON_THE_WAY[spot]
    decoy = node.kubelet / "decoy"
    decoy.symlink_to(scene.canary)
    served = rounds = 0
    async with node.running() as service:
        with swapped_again_and_again(honest, decoy, stubborn=True):
            while rounds < ROUNDS or not served:
                rounds += 1
                served += await tolerated(service.NodePublishVolume(publish(scene.target)))
                await tolerated(service.NodeGetVolumeStats(stats(scene.target)))
                served += await tolerated(service.NodeUnpublishVolume(unpublish(scene.target)))
        _put_back(node, honest, decoy)
        await _ends_well(scene, service)

    assert scene.outside() == before


def _put_back(node: KernelNode, honest: Path, decoy: Path) -> None:
    for point in node.mounts():  # also on the very folder that was asked for, under its new name
        run("umount", point)
    if honest.is_symlink():
        honest.unlink()
        decoy.rename(honest)
    else:
        decoy.unlink(missing_ok=True)


async def _ends_well(scene: Scene, service: Any) -> None:
    node = scene.node
    await service.NodePublishVolume(publish(scene.target))
    (scene.target / "file").touch()
    assert node.mounts() == [str(scene.target)]
    await service.NodeUnpublishVolume(unpublish(scene.target))
    assert node.mounts() == []
    assert node.volumes("live") == []
    assert node.volumes("retained") == [ID]


async def published(scene: Scene, service: Any, **attributes: str) -> Path:
    """A folder with a tree in it, and in the tree a link to the canary; the two that are swapped."""
    scene.node.pod(UID)
    await service.NodePublishVolume(publish(scene.target, **attributes))
    for name in ("tree", "tree/kept", "tree/kept/scratch", "tree/kept/empty"):
        made(scene.node.live() / name)
    (scene.node.live() / "tree/kept/treasure").write_text("the tenant's")
    (scene.node.live() / "tree/link").symlink_to(scene.canary / "mount")
    return scene.node.live() / "tree"


async def test_measuring_never_follows_a_link_of_the_tenant(scene: Scene):
    before = scene.outside()
    async with scene.node.running() as service:
        tree = await published(scene, service)
        with swapped_again_and_again(tree / "kept", tree / "link"):
            for _ in range(ROUNDS):
                answer = await service.NodeGetVolumeStats(stats(scene.target))
                assert answer.usage[0].used < 1 << 20
    assert scene.outside() == before


def reads(folder: int, into: Path) -> dict[str, Callable[[], bytes]]:
    def copied() -> bytes:
        place = made(into / os.urandom(8).hex())
        with descriptor(place) as opened:
            copy_folder(folder, opened, threading.Event())
        return b"".join(path.read_bytes() for path in place.rglob("treasure") if path.is_file())

    return {
        "read": lambda: b"".join(read_file(folder, "tree/kept/treasure")),
        "list": lambda: " ".join(each.name for each in list_folder(folder, "tree/kept")).encode(),
        "copy": copied,
    }


@pytest.mark.parametrize("how", ["read", "list", "copy"])
async def test_reading_listing_and_restoring_never_follow_a_link_of_the_tenant(scene: Scene, how: str, tmp_path: Path):
    before, found = scene.outside(), set[bytes]()
    async with scene.node.running() as service:
        tree = await published(scene, service)
        with descriptor(scene.node.live()) as folder, swapped_again_and_again(tree / "kept", tree / "link"):
            for _ in range(ROUNDS):
                with suppress(HostError):
                    found.add(reads(folder, made(tmp_path / "copies"))[how]())
    assert b"mine" not in b" ".join(found).replace(b"the tenant's", b"").split()
    assert scene.outside() == before


async def test_burying_and_bringing_back_never_follow_a_link_of_the_tenant(scene: Scene):
    before = scene.outside()
    async with scene.node.running() as service:
        tree = await published(scene, service)
        with swapped_again_and_again(tree / "kept", tree / "link", stubborn=True):
            for _ in range(ROUNDS // 4):
                await service.NodeUnpublishVolume(unpublish(scene.target))
                await service.NodePublishVolume(publish(scene.target))
    assert scene.outside() == before


async def test_erasing_never_follows_a_link_of_the_tenant(scene: Scene):
    before = scene.outside()
    async with scene.node.running() as service:
        for _ in range(max(3, ROUNDS // 10)):
            tree = await published(scene, service, afterlifespan="0s")
            with swapped_again_and_again(tree / "kept", tree / "link", stubborn=True):
                await service.NodeUnpublishVolume(unpublish(scene.target))
                await eventually(lambda: scene.node.left() == [])
    assert scene.outside() == before


@pytest.mark.parametrize("shelf", ["live", "retained", "trash"])
async def test_a_shelf_that_is_swapped_for_another_folder_changes_nothing_for_who_holds_it(scene: Scene, shelf: str):
    """Only root can do it; so might a broken tool."""
    node, before = scene.node, scene.outside()
    stranger = node.workdir / "stranger"
    async with node.running() as service:
        node.pod(UID)
        stranger.symlink_to(scene.canary)
        with swapped_again_and_again(node.workdir / shelf, stranger):
            for _ in range(ROUNDS // 2):
                await service.NodePublishVolume(publish(scene.target, afterlifespan="0s"))
                (scene.target / "file").touch()
                await service.NodeUnpublishVolume(unpublish(scene.target))
    assert scene.outside() == before


async def test_a_folder_on_a_shelf_that_was_renamed_is_still_known_to_be_mounted(scene: Scene):
    """Only root can do it; but what a container uses must not be erased for it."""
    node, spot = scene.node, made(scene.node.kubelet.parent / "container")
    async with node.running() as service:
        node.pod(UID)
        await service.NodePublishVolume(publish(scene.target, afterlifespan="0s"))
        (scene.target / "file").touch()
        run("mount", "--bind", scene.target, spot)
        (node.workdir / "live").rename(node.workdir / "renamed")
        await service.NodeUnpublishVolume(unpublish(scene.target))
        assert (spot / "file").exists()
        assert sorted(path.name for path in (node.workdir / "renamed").iterdir()) == [ID]
        (node.workdir / "renamed").rename(node.workdir / "live")
        run("umount", spot)
        await service.NodeUnpublishVolume(unpublish(scene.target))
        await eventually(lambda: node.left() == [])
