"""Containers on this machine for tests, and what the machine must look like when they are gone."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from onenode.containers.container_request import (
    Account,
    Command,
    ContainerRequest,
    LogLimits,
    RootRequest,
    VolumePlace,
)
from onenode.kubelet.pods.container_runtime import WantedContainer
from onenode.kubelet.pods.linux_container_runtime import LinuxContainerRuntime, linux_container_runtime
from orlop.host.threads import OwnThreads
from support.host.kernel_rooms import why_nothing_can_be_mounted

ROOT, USUAL = Account(), LogLimits()


@dataclass(frozen=True)
class Kubelet:
    """A kubelet's folder with containers below it."""

    folder: Path
    containers: LinuxContainerRuntime

    async def run(self, script: str, **how: Any) -> tuple[int, list[str]]:
        """The exit code and the lines that were printed."""
        container = await self.containers.start(shell(script, hidden=(str(self.folder),), **how))
        code = await container.ended()
        return code, self.lines()

    def lines(self, stream: str = "", pod: str = "pod-1", name: str = "main", attempt: int = 0) -> list[str]:
        text = (self.folder / "logs" / pod / name / f"{attempt}.log").read_text(errors="replace")
        parts = [line.split(" ", 3) for line in text.splitlines()]
        return [part[3] for part in parts if stream in {"", part[1]}]

    def notes(self) -> list[str]:
        return sorted(note.name for note in (self.folder / "processes").iterdir())


def shell(
    script: str,
    *,
    account: Account = ROOT,
    environment: tuple[tuple[str, str], ...] = (),
    working_folder: str = "/",
    places: tuple[VolumePlace, ...] = (),
    volumes: tuple[tuple[str, ...], ...] = (),
    hidden: tuple[str, ...] = (),
    writable_bytes: int = 16 << 20,
    read_only: bool = False,
    limits: LogLimits = USUAL,
    pod: str = "pod-1",
    attempt: int = 0,
    arguments: tuple[str, ...] = (),
) -> WantedContainer:
    command = Command(arguments or ("sh", "-c", script), environment, working_folder, account)
    root = RootRequest(places, hidden, writable_bytes, read_only, "web-0")
    request = ContainerRequest(command, root, f"{attempt}.log", limits)
    return WantedContainer(pod, "main", attempt, request, volumes)


@asynccontextmanager
async def kubelet_in(folder: Path) -> AsyncIterator[Kubelet]:
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        async with linux_container_runtime(opened, OwnThreads()) as containers:
            yield Kubelet(folder, containers)
    finally:
        os.close(opened)


def _mounts_about(folder: Path) -> list[str]:
    """Tests beside this one have mounts of their own, in the same namespace."""
    return [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(folder) in line]


@contextmanager
def nothing_left(folder: Path) -> Iterator[None]:
    """Neither a process nor a mount nor a note."""
    reason = why_nothing_can_be_mounted()
    if reason:
        pytest.skip(reason)
    mounts = _mounts_about(folder)
    yield
    assert _mounts_about(folder) == mounts
    assert processes_that_know(folder) == []
    notes = folder / "processes"
    assert not notes.exists() or list(notes.iterdir()) == []


def processes_that_know(folder: Path) -> list[str]:
    """Launchers of ours, and whoever holds something open below the folder, as containers' first processes do."""
    others = [entry for entry in Path("/proc").iterdir() if entry.name.isdecimal() and int(entry.name) != os.getpid()]
    return [entry.name for entry in others if _knows(entry, str(folder))]


def _knows(process: Path, folder: str) -> bool:
    with contextlib.suppress(OSError):
        parent = int((process / "stat").read_text().rpartition(")")[2].split()[1])
        if parent == os.getpid() and b"container_launcher" in (process / "cmdline").read_bytes():
            return True
        return any(str(each.readlink()).startswith(folder) for each in (process / "fd").iterdir())
    return False
