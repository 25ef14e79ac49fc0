"""Claims that come and go while controllers and nodes are lost; in `make soak` for a week on 200 nodes."""

from __future__ import annotations

import pytest

from conftest import SOAK
from support.drives.drive_simulation import DriveSimulation, Scale

SMALL = Scale(nodes=4, drives=2, claims=15, hours=12.0, hours_of_use=12.0)
# Two days each: every claim comes and goes about twice in the week, and the drives are as full as in the small one.
# Each life costs 25 ms of CPU; with half a day, the week would take longer than all other tests of `make soak`.
LARGE = Scale(nodes=200, drives=10, claims=5_000, hours=7 * 24.0, hours_of_use=48.0)


@pytest.mark.virtual_time
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("seed", [1])
async def test_every_invariant_holds_after_every_step_and_in_the_end_nothing_is_left(seed: int) -> None:
    scale = LARGE if SOAK else SMALL
    async with DriveSimulation(scale, seed) as simulation:
        await simulation.play()

        assert simulation.lives > scale.claims
        assert simulation.changes > 10 * simulation.lives
