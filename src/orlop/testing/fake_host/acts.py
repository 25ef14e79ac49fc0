"""The calls of one process to a fake machine: every change is an effect that a kill can hit, every call can fail.

A killed process changes and reads nothing more. A refused call raises HostError with the kernel's errno.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from orlop.host.host_errors import HostError
from orlop.testing.fake_host.machine import FakeMachine
from orlop.testing.kill_points import KillPoints


class Acts:
    def __init__(self, machine: FakeMachine, points: KillPoints) -> None:
        self.machine = machine
        self._points = points

    @contextmanager
    def change(self, function: str, what: str) -> Iterator[None]:
        """Make the block the only effect of a function."""
        with self.machine.faults.around(function), self.effect(what):
            yield

    @contextmanager
    def effect(self, what: str) -> Iterator[None]:
        """Make the block one of several effects of a function, which applies its faults around all of them."""
        with self._points.effect(what), self.machine.lock:
            yield

    @contextmanager
    def look(self, function: str) -> Iterator[None]:
        if self._points.dead:
            with self._points.effect(function):
                pass
        with self.machine.faults.around(function), self.machine.lock:
            yield


def refuse(number: int, what: str) -> NoReturn:
    raise HostError(number, f"{what}: {os.strerror(number)}.")
