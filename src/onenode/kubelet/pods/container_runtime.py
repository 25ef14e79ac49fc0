"""The seam between pods and the machine: containers that are started, end, are signalled, and leave nothing.

Two implementations stand behind it, `linux_container_runtime` and the model in `onenode/testing/fake_containers`; one
contract suite holds for both. Kubernetes' objects are unknown here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from onenode.containers.container_request import Command, ContainerRequest
from onenode.host.payload_files import Origin


class ContainerRefused(Exception):
    """It never ran; the sentence says why."""


@dataclass(frozen=True, slots=True)
class WantedContainer:
    """`volumes` are where they are, in the order of the request's places."""

    pod_uid: str
    name: str
    attempt: int
    request: ContainerRequest
    volumes: tuple[Origin, ...] = ()


@dataclass(frozen=True, slots=True)
class Streams:
    """Descriptors of the standard streams of a command inside a container; they stay the caller's to close."""

    stdin: int
    stdout: int
    stderr: int


class CommandInside(Protocol):
    """A command beside a container's own, in the same namespaces."""

    async def ended(self) -> int:
        """Its exit code."""

    def kill(self) -> None:
        """The command; what it started may go on in the container."""

    def take_terminal(self) -> int | None:
        """The outer end of its terminal, if it has one; the caller's to close, which hangs up."""


class RunningContainer(Protocol):
    @property
    def command(self) -> Command:
        """What it was started with; commands beside it have its surroundings."""

    async def ended(self) -> int:
        """The exit code; 137 where it was killed. Returns when no process of the container is left."""

    def ask_to_end(self) -> None:
        """SIGTERM to the command."""

    def kill(self) -> None:
        """The container with all its processes."""

    async def run_inside(self, command: Command, streams: Streams | None) -> CommandInside:
        """Without streams the command gets a terminal. Raises `ContainerRefused` where it cannot be run."""


class ContainerRuntime(Protocol):
    async def start(self, wanted: WantedContainer) -> RunningContainer:
        """Returns when the command's program runs; `ContainerRefused` where it cannot."""

    async def end_all(self) -> None:
        """SIGTERM to everything that runs; returns when nothing does, however long that takes."""

    async def remembered_pods(self) -> frozenset[str]:
        """The uids of those that have logs here, also from an earlier life of ours."""

    async def forget_pod(self, pod_uid: str) -> None:
        """Its logs go; none of its containers runs any more."""
