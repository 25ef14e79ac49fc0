"""Steps that serve all volumes which wait for them: one synchronisation of a shelf, one look at what is mounted."""

from __future__ import annotations

from dataclasses import dataclass

from orlop.host.node_host import FolderState, MountsSeen, Workdir


@dataclass(frozen=True, slots=True)
class MakeDurable:
    workdir: Workdir
    state: FolderState

    def take(self) -> None:
        self.workdir.make_durable(self.state)


@dataclass(frozen=True, slots=True)
class LookAtMounts:
    workdir: Workdir

    def take(self) -> MountsSeen:
        return self.workdir.look_at_mounts()
