"""The same node, once in memory and once on this kernel, and what others do there: kubelet, tenants, containers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace, FolderState, Names, NodeHost
from orlop.testing.fake_host import FakeMachine, FakeMount, FakeNodeHost
from orlop.testing.kill_points import KillPoints
from support.kernel_rooms import descriptor, other_namespace, run


class NodeWorld(Protocol):
    """What stays while processes come and go."""

    kubelet_path: str

    def host(self, points: KillPoints | None = None) -> NodeHost:
        """What a process that starts now has of it."""

    def kubelet_makes(self, folder: Names) -> None: ...

    def kubelet_writes(self, file: Names) -> None: ...

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None: ...

    def tenant_reads(self, place: FolderPlace, path: str) -> bytes: ...

    def tenant_reads_at(self, target: Names, path: str) -> bytes: ...

    def mode(self, place: FolderPlace) -> int: ...

    def mount_elsewhere(self, place: FolderPlace) -> Callable[[], None]:
        """In another namespace alone; what it gives ends that."""

    def mount_something_else(self, target: Names) -> None: ...

    def use(self, target: Names) -> Callable[[], None]:
        """Keeps a mount in use; what it gives ends that."""

    def remove_by_hand(self, place: FolderPlace) -> None:
        """An empty one."""

    def stand_on_shelf_without_record(self, place: FolderPlace) -> None: ...

    def stand_beside_the_shelves(self, name: str) -> None: ...

    def leave_half_made(self, place: FolderPlace) -> None: ...


class FakeWorld:
    kubelet_path = "/var/lib/kubelet"

    def __init__(self) -> None:
        self.machine = FakeMachine()

    def host(self, points: KillPoints | None = None) -> NodeHost:
        return FakeNodeHost(self.machine, points)

    def kubelet_makes(self, folder: Names) -> None:
        self.machine.kubelet_makes(folder)

    def kubelet_writes(self, file: Names) -> None:
        self.machine.kubelet_files.add(file)

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None:
        self.machine.folders[place].files[path] = content

    def tenant_reads(self, place: FolderPlace, path: str) -> bytes:
        return self.machine.folders[place].files[path]

    def tenant_reads_at(self, target: Names, path: str) -> bytes:
        folder = self.machine.mounts[target][-1].folder
        assert folder is not None
        return folder.files[path]

    def mode(self, place: FolderPlace) -> int:
        return self.machine.folders[place].mode

    def mount_elsewhere(self, place: FolderPlace) -> Callable[[], None]:
        mount: FakeMount = self.machine.mount_elsewhere(place)
        return lambda: self.machine.unmount_elsewhere(mount)

    def mount_something_else(self, target: Names) -> None:
        self.machine.mount_something_else(target)

    def use(self, target: Names) -> Callable[[], None]:
        self.machine.busy.add(target)
        return lambda: self.machine.busy.remove(target)

    def remove_by_hand(self, place: FolderPlace) -> None:
        del self.machine.folders[place]

    def stand_on_shelf_without_record(self, place: FolderPlace) -> None:
        self.machine.folders[place] = self.machine.new_folder(0o755, None)

    def stand_beside_the_shelves(self, name: str) -> None:
        self.machine.strangers.setdefault(None, {})[name] = "it is none of ours"

    def leave_half_made(self, place: FolderPlace) -> None:
        self.machine.half_made[place] = self.machine.new_folder(0o755, None)


class LinuxWorld:
    """`room` is a shared mount of the test's own."""

    def __init__(self, room: Path, clean_up: ExitStack) -> None:
        self._work = room / "work"
        self._kubelet = room / "kubelet"
        self._work.mkdir()
        self._kubelet.mkdir()
        self._clean_up = clean_up
        self.kubelet_path = str(self._kubelet)

    def host(self, points: KillPoints | None = None) -> NodeHost:
        host = self._clean_up.enter_context(LinuxNodeHost(str(self._work), str(self._kubelet)))
        if points is not None:
            host.workdir = points.wrap(host.workdir, *WORKDIR_EFFECTS)
            host.kubelet_dir = points.wrap(host.kubelet_dir, *KUBELET_EFFECTS)
            return points.wrap(host, "bind")
        return host

    def kubelet_makes(self, folder: Names) -> None:
        self._kubelet.joinpath(*folder).mkdir(parents=True, exist_ok=True)

    def kubelet_writes(self, file: Names) -> None:
        self._kubelet.joinpath(*file).write_text("")

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None:
        (self._folder(place) / path).write_bytes(content)

    def tenant_reads(self, place: FolderPlace, path: str) -> bytes:
        return (self._folder(place) / path).read_bytes()

    def tenant_reads_at(self, target: Names, path: str) -> bytes:
        return self._kubelet.joinpath(*target, path).read_bytes()

    def mode(self, place: FolderPlace) -> int:
        return self._folder(place).stat().st_mode & 0o7777

    def mount_elsewhere(self, place: FolderPlace) -> Callable[[], None]:
        (self._folder(place) / "sub").mkdir()
        spot = self._work.parent / "spot"
        spot.mkdir(exist_ok=True)
        run("mount", "--bind", self._folder(place) / "sub", spot)
        there = ExitStack()
        there.enter_context(other_namespace("private"))
        run("umount", spot)
        self._clean_up.callback(there.close)
        return there.close

    def mount_something_else(self, target: Names) -> None:
        run("mount", "-t", "tmpfs", "tmpfs", self._kubelet.joinpath(*target))

    def use(self, target: Names) -> Callable[[], None]:
        using = ExitStack()
        using.enter_context(descriptor(self._kubelet.joinpath(*target)))
        self._clean_up.callback(using.close)
        return using.close

    def remove_by_hand(self, place: FolderPlace) -> None:
        self._folder(place).rmdir()

    def stand_on_shelf_without_record(self, place: FolderPlace) -> None:
        self._folder(place).mkdir()

    def stand_beside_the_shelves(self, name: str) -> None:
        (self._work / name).mkdir()

    def leave_half_made(self, place: FolderPlace) -> None:
        (self._work / place.state.value / f".new.{place.name}").mkdir()

    def _folder(self, place: FolderPlace) -> Path:
        return self._work / place.state.value / place.name


WORKDIR_EFFECTS = ("create", "remove_half_made", "write_record", "move")
KUBELET_EFFECTS = ("make_target", "remove_target", "unmount")


def live(name: str) -> FolderPlace:
    return FolderPlace(FolderState.LIVE, name)


def retained(name: str) -> FolderPlace:
    return FolderPlace(FolderState.RETAINED, name)


def trashed(name: str) -> FolderPlace:
    return FolderPlace(FolderState.TRASH, name)
