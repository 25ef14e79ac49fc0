"""A node with scratch folders on a model of its machine, as a process finds it that has just started."""

from __future__ import annotations

import errno
from collections.abc import Callable
from typing import TypeVar

from orlop.driver.ephemeral.afterlife.retention_rules import Moment
from orlop.driver.ephemeral.folder_index import read_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.publish_request_rules import PublishOrder
from orlop.foundation.structured_log import silent_log
from orlop.host.host_errors import HostError
from orlop.host.node_host import FolderPlace, FolderState, Names
from orlop.records.ephemeral_folder import FolderOptions, Owner, burial_of
from orlop.testing.fake_host import FakeMachine, FakeNodeHost
from orlop.testing.kill_points import KillPoints
from orlop.testing.virtual_clock import VirtualClock

T = TypeVar("T")
ID = "csi-1"
UID = "u1"
LIFESPAN = 3600.0


def names_of(pod: str, volume: str = "scratch") -> Names:
    return ("pods", pod, "volumes", "kubernetes.io~csi", volume, "mount")


def order(
    volume_id: str = ID, pod: str = UID, volume: str = "scratch", *, namespace: str = "shop", **options: object
) -> PublishOrder:
    chosen = FolderOptions(**{"lifespan_seconds": LIFESPAN, "mount_options": ("nosuid", "nodev"), **options})
    return PublishOrder(volume_id, "/".join(names_of(pod, volume)), Owner(pod, "web-0", namespace), chosen)


def machine_with_pods(*pods: str) -> FakeMachine:
    machine = FakeMachine()
    for pod in pods or (UID,):
        machine.kubelet_makes(names_of(pod)[:-1])
        machine.kubelet_makes(names_of(pod, "other")[:-1])
    return machine


async def right_here(work: Callable[[], T], /) -> T:
    return work()


def folders_on(machine: FakeMachine, points: KillPoints | None = None, *, max_volumes: int = 0) -> Folders:
    host, clock = FakeNodeHost(machine, points), VirtualClock()
    book = read_index(host.workdir, Moment(clock.now().timestamp(), clock.elapsed()))
    return Folders(host, book, threads=right_here, clock=clock, log=silent_log(), max_volumes=max_volumes)


def folder_ids(machine: FakeMachine, state: FolderState) -> list[str]:
    names = [place.name for place in machine.folders if place.state is state]
    return sorted(names if state is FolderState.LIVE else [burial_of(name).volume_id for name in names])  # type: ignore[union-attr]


def assert_book_is_true(folders: Folders, machine: FakeMachine) -> None:
    anew = read_index(FakeNodeHost(machine).workdir, folders.book.started)
    assert folders.book.live == anew.live
    assert {key: each.burial for key, each in folders.book.retained.items()} == {
        key: each.burial for key, each in anew.retained.items()
    }


def mounted(machine: FakeMachine) -> list[Names]:
    return sorted(target for target, stack in machine.mounts.items() if stack)


class FakePurge:
    """Erases in one effect; fails as often as it is told to. I1: what is mounted must never get here."""

    def __init__(
        self, machine: FakeMachine, points: KillPoints | None = None, fails: dict[str, int] | None = None
    ) -> None:
        self._machine = machine
        self._points = points or KillPoints()
        self.fails = {} if fails is None else fails
        """By a part of the name: how often."""
        self.failed: set[str] = set()

    def __call__(self, name: str) -> None:
        folder = self._machine.folders.get(FolderPlace(FolderState.TRASH, name))
        if folder is None:
            return
        everywhere = [*self._machine.elsewhere, *(mount for stack in self._machine.mounts.values() for mount in stack)]
        assert folder not in [mount.folder for mount in everywhere], f"{name} is erased while it is mounted"
        with self._points.effect(f"purge {name}"):
            for part in [part for part, times in self.fails.items() if part in name and times > 0]:
                self.fails[part] -= 1
                self.failed.add(name)
                raise HostError(errno.EIO, "The disk does not answer.")
            del self._machine.folders[FolderPlace(FolderState.TRASH, name)]
