"""Mounts that come and go are events."""

from __future__ import annotations

import asyncio
from pathlib import Path

from orlop.host.static_disks.disk_events import MountEvents
from support.host.kernel_rooms import mount_room, run


async def test_a_mount_and_an_unmount_are_events_and_nothing_else_is(tmp_path: Path):
    with mount_room(tmp_path / "room") as room:
        (room / "a").mkdir()
        woken, events = asyncio.Event(), MountEvents()
        try:
            assert not events.drain()
            with events.waking(asyncio.get_running_loop(), woken.set):
                await asyncio.to_thread(lambda: None)  # uvloop registers the descriptor in its next turn
                run("mount", "-t", "tmpfs", "tmpfs", room / "a")
                await asyncio.wait_for(woken.wait(), 60)
                events.drain()
                woken.clear()
                run("umount", room / "a")
                await asyncio.wait_for(woken.wait(), 60)
        finally:
            events.close()
