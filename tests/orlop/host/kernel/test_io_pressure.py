from __future__ import annotations

from pathlib import Path

import pytest

from orlop.foundation.clock import SystemClock
from orlop.host.kernel.io_pressure import PAUSE_SECONDS, IoPressure, stalled_seconds


class HandClock(SystemClock):
    def __init__(self) -> None:
        self.at = 0.0

    def elapsed(self) -> float:
        return self.at


def write_stalled(file: Path, microseconds: int) -> None:
    file.write_text(
        f"some avg10=0.00 avg60=0.00 avg300=0.00 total={microseconds}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=1\n"
    )


def test_a_machine_that_waits_for_its_disks_makes_workers_pause_until_it_no_longer_does(tmp_path: Path):
    file, clock = tmp_path / "io", HandClock()
    write_stalled(file, 5_000_000)
    with IoPressure(clock, file) as pressure:
        assert pressure.is_known
        assert pressure.pause_seconds() == 0.0

        clock.at = 1.0
        write_stalled(file, 5_110_000)  # more than a tenth of the second
        assert pressure.pause_seconds() == PAUSE_SECONDS

        clock.at = 1.1
        assert pressure.pause_seconds() == PAUSE_SECONDS  # it is too soon for another look

        clock.at = 2.0
        write_stalled(file, 5_150_000)
        assert pressure.pause_seconds() == 0.0


def test_a_kernel_that_tells_nothing_holds_up_nobody(tmp_path: Path):
    clock = HandClock()
    with IoPressure(clock, tmp_path / "missing") as pressure:
        clock.at = 10.0
        assert not pressure.is_known
        assert pressure.pause_seconds() == 0.0


def test_a_closed_one_knows_nothing(tmp_path: Path):
    file, clock = tmp_path / "io", HandClock()
    write_stalled(file, 1)
    pressure = IoPressure(clock, file)
    pressure.close()
    pressure.close()
    clock.at = 5.0

    assert not pressure.is_known
    assert pressure.pause_seconds() == 0.0


@pytest.mark.parametrize(
    ("answer", "seconds"),
    [
        ("some avg10=1.00 avg60=0.00 avg300=0.00 total=2500000\nfull total=3\n", 2.5),
        ("full avg10=0.00 total=3\n", None),
        ("some avg10=0.00\n", None),
        ("some avg10=0.00 total=many\n", None),
        ("", None),
        ("\n\n", None),
    ],
)
def test_the_kernel_s_answer_is_understood_or_passed_over(answer: str, seconds: float | None):
    assert stalled_seconds(answer) == seconds


@pytest.mark.skipif(not Path("/proc/pressure/io").exists(), reason="this kernel tells no pressure")
def test_this_kernel_s_answer_is_understood():
    with IoPressure(SystemClock()) as pressure:
        assert pressure.is_known
        assert pressure.pause_seconds() == 0.0
