"""A pod fills the disk: its neighbours and itself can still be buried, and room is made again."""

from __future__ import annotations

import contextlib
import os
from fractions import Fraction
from pathlib import Path

import pytest

from support.afterlife.kernel_nodes import KernelNode, made, publish, unpublish
from support.host.kernel_rooms import disk_image
from support.waiting import eventually

IDS = [f"csi-{number:064x}" for number in range(12)]


def fill_up(folder: Path) -> None:
    file = os.open(folder / "fill", os.O_CREAT | os.O_WRONLY)
    try:
        for size in (1 << 20, 4096, 512):
            with contextlib.suppress(OSError):
                while True:
                    os.write(file, b"x" * size)
        with contextlib.suppress(OSError):
            os.fsync(file)
    finally:
        os.close(file)


@pytest.mark.parametrize("file_system", ["ext4", "xfs"])
async def test_every_volume_can_be_given_back_when_one_has_filled_the_disk(tmp_path: Path, file_system: str):
    with disk_image(tmp_path / "room", file_system) as disk:
        node = KernelNode(made(disk.folder / "work"), made(tmp_path / "room" / "kubelet"))
        # A full disk shortens every afterlife.
        async with node.running(headroom=Fraction(1, 10)) as service:
            for volume_id in IDS:
                await service.NodePublishVolume(publish(node.pod(volume_id), volume_id, afterlifespan="1m"))
            fill_up(node.live(IDS[-1]))
            for volume_id in IDS:
                await service.NodeUnpublishVolume(unpublish(node.target(volume_id), volume_id))

            assert node.mounts() == []
            assert node.names("live") == []
            await eventually(lambda: len(node.names("retained")) < len(IDS))
        assert [entry for entry in node.log if entry.message.startswith("left alone")] == []
