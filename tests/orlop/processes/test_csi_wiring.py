"""What a process with CSI services says of itself."""

from __future__ import annotations

import asyncio

import pytest

from orlop.processes.csi_wiring import LONGEST_CHECKS_SECONDS, is_ready
from orlop.testing.virtual_clock import VirtualClock


async def well() -> str | None:
    return None


async def ill() -> str | None:
    return "the disk is full"


async def hanging() -> str | None:
    await asyncio.Event().wait()
    return None


@pytest.mark.virtual_time
async def test_a_process_is_ready_when_all_checks_say_so_in_time():
    clock = VirtualClock()
    assert await is_ready({"a": well, "b": well}, clock)
    assert not await is_ready({"a": well, "b": ill}, clock)
    assert clock.elapsed() == 0.0


@pytest.mark.virtual_time
async def test_a_check_that_hangs_does_not_hold_up_the_answer():
    clock = VirtualClock()
    assert not await is_ready({"a": well, "b": hanging}, clock)
    assert clock.elapsed() == pytest.approx(LONGEST_CHECKS_SECONDS)
