"""The kernel's own events of disks, and the names in /dev where there are none."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from orlop.host.block import device_events
from orlop.host.block.device_events import DeviceEvents
from support.host.disks import loop_disk


@pytest.fixture
def watched(tmp_path: Path) -> Path:
    folder = tmp_path / "dev"
    folder.mkdir()
    return folder


async def test_a_disk_that_is_plugged_in_and_one_that_is_pulled_out_are_events(tmp_path: Path):
    woken = asyncio.Event()
    events = DeviceEvents(())
    try:
        with loop_disk(tmp_path / "disk.img", 1 << 20) as disk, events.waking(asyncio.get_running_loop(), woken.set):
            await asyncio.wait_for(woken.wait(), 60)
            events.drain()
            woken.clear()
            disk.pull()
            await asyncio.wait_for(woken.wait(), 60)
    finally:
        events.close()


async def test_without_the_kernels_events_the_names_of_devices_are_watched(
    watched: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(device_events, "KERNEL_EVENTS", 99)
    woken = asyncio.Event()
    events = DeviceEvents((str(watched), "/does/not/exist"))
    try:
        assert not events.drain()
        with events.waking(asyncio.get_running_loop(), woken.set):
            (watched / "sdb").touch()
            await asyncio.wait_for(woken.wait(), 60)
            woken.clear()
            (watched / "sdb").unlink()
            await asyncio.wait_for(woken.wait(), 60)
    finally:
        events.close()
