"""How one process acts on a fake machine: every change is an effect that a kill may hit, every call may fail.

From its kill on a process changes nothing and learns nothing more. A refusal is a HostError with the kernel's reason.
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
        """The only effect of a function."""
        with self.machine.faults.around(function), self.effect(what):
            yield

    @contextmanager
    def effect(self, what: str) -> Iterator[None]:
        """One of the effects of a function, whose faults are around all of them."""
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
