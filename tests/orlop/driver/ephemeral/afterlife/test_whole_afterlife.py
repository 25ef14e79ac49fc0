"""Random histories of a whole node, on virtual time, against a simple model of what must be.

A failure shows its history and seed: `run_virtual(lambda clock: History(seed).play([...]))` repeats it.
"""

from __future__ import annotations

import errno

from hypothesis import given, note
from hypothesis import strategies as st

from orlop.testing.kill_points import KillMoment
from orlop.testing.virtual_clock import run_virtual
from support.afterlife.afterlife_history import TARGETS, VOLUMES, History
from support.afterlife.afterlife_steps import (
    ComeAndGo,
    Fail,
    FailPurges,
    Fill,
    ForcePodAway,
    JumpWall,
    KillSoon,
    LetGo,
    MountElsewhere,
    Pass,
    Publish,
    Reboot,
    Restart,
    Step,
    Together,
    Unpublish,
    Use,
    Write,
    shown,
)
from support.random_tests import WHOLE_LIVES

YEAR = 365 * 24 * 3600.0
HOUR = 3600.0
LOOKS = ("read_record", "listing", "names_in_trash", "strangers", "identity", "mounted_folders", "room")
CHANGES = ("create", "remove_half_made", "write_record", "move", "bind")
AT_TARGETS = ("make_target", "remove_target", "mounted_at", "unmount", "names_in")

volumes = st.integers(0, len(VOLUMES) - 1)
targets = st.integers(0, len(TARGETS) - 1)
moments = st.sampled_from(KillMoment)
publishes = st.builds(Publish, volumes, targets)
unpublishes = st.builds(Unpublish, volumes, targets)
asked = publishes | unpublishes
lives = st.builds(ComeAndGo, volumes, st.sampled_from([(0,), (1,), (0, 1)]), st.integers(0, 60))
fills = st.builds(Fill, st.sampled_from([0, 850, 900, 920, 950, 970, 1000]), st.sampled_from([0, 0, 0, 920, 1000]))
passes = st.builds(Pass, st.sampled_from([0.5, 6.0, 16.0, 31.0, 70.0, 700.0]))

steps = st.one_of(
    publishes,
    publishes,
    unpublishes,
    unpublishes,
    st.builds(Together, st.lists(asked, min_size=2, max_size=5).map(tuple)),
    st.builds(Write, volumes, st.integers(0, 60)),
    st.builds(ForcePodAway, volumes),
    st.builds(MountElsewhere, volumes),
    st.builds(LetGo, st.integers(0, 3)),
    lives,
    lives,
    lives,
    fills,
    fills,
    passes,
    passes,
    st.builds(JumpWall, st.sampled_from([YEAR, -HOUR])),
    st.builds(
        Fail,
        st.sampled_from(LOOKS + CHANGES + AT_TARGETS),
        st.sampled_from([errno.EIO, errno.EIO, errno.ENOSPC]),
        st.integers(1, 3),
        moments,
    ),
    st.builds(FailPurges, volumes, st.integers(1, 4)),
    st.builds(Use, volumes, targets, st.booleans()),
    st.builds(Restart),
    st.builds(Reboot),
    st.builds(KillSoon, st.integers(1, 8), moments, st.booleans()),
)

# Long ones; what a failure does not need shrinks to None.
histories = st.lists(st.none() | steps, min_size=25, max_size=40).map(
    lambda several: [step for step in several if step is not None]
)


@WHOLE_LIVES
@given(histories, st.integers(0, 2**16))
def test_whatever_happens_nothing_is_lost_erased_early_or_left_over(history: list[Step], seed: int):
    note(f"run_virtual(lambda clock: History({seed}).play({shown(history)}))")
    run_virtual(lambda clock: History(seed).play(history))


def test_a_history_takes_the_same_course_every_time():
    history = [
        Fail("bind", times=2, moment=KillMoment.AFTER),
        *(ComeAndGo(volume, (0, 1), 40) for volume in range(len(VOLUMES))),
        Together((Publish(0, 0), Unpublish(0, 1), Publish(3, 0), Publish(0, 1))),
        KillSoon(4, KillMoment.AFTER),
        Fill(970),
        Pass(70.0),
    ]

    def course() -> object:
        world = History(seed=7)
        run_virtual(lambda clock: world.play(eval(shown(history))))  # noqa: S307 - as somebody would repeat it
        log = [(entry.message, str(entry.fields)) for entry in world.process.log]
        return world.judge.erased, world.process.points.seen, log

    first = course()
    assert first[0], "something was erased"
    assert course() == first
