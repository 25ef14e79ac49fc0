"""The same node, once in memory and once on this kernel, and what others do there: kubelet, tenants, containers."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Protocol

from orlop.host.block.image_files import ImageShape
from orlop.host.erase.erase_folder import erase_folder
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderPlace, FolderState, Names, NodeHost
from orlop.testing.fake_host import FakeMachine, FakeMount, FakeNodeHost
from orlop.testing.kill_points import KillPoints
from support.host.descriptors import folder_descriptor
from support.host.kernel_rooms import descriptor, other_namespace, run


class NodeWorld(Protocol):
    """What stays while processes come and go."""

    kubelet_path: str

    def host(self, points: KillPoints | None = None) -> NodeHost:
        """What a process that starts now has of it."""

    def kubelet_makes(self, folder: Names) -> None: ...

    def kubelet_writes(self, file: Names) -> None: ...

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None: ...

    def tenant_reads(self, place: FolderPlace, path: str) -> bytes: ...

    def tenant_is_refused(self, place: FolderPlace, path: str, size: int) -> bool:
        """Whether a user without rights may not write a file of so many bytes, since the folder has a limit."""

    def tenant_leaves(self, place: FolderPlace, path: str, project: int) -> None:
        """Gives its file another number."""

    def erase(self, name: str) -> None:
        """From the trash."""

    def tenant_reads_at(self, target: Names, path: str) -> bytes: ...

    def tenant_writes_at(self, target: Names, path: str, content: bytes) -> None: ...

    def copy_mounts_elsewhere(self) -> Callable[[], None]:
        """Of everything mounted below kubelet's folder, to another namespace; what it returns ends that."""

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

    def leave_half_made_with_image(self, place: FolderPlace) -> None: ...

    def remove_image_by_hand(self, place: FolderPlace) -> None:
        """With its folder."""

    def damage_image(self, place: FolderPlace) -> None: ...


class FakeWorld:
    kubelet_path = "/var/lib/kubelet"

    def __init__(self) -> None:
        self.machine = FakeMachine()
        self.machine.why_no_images = None

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

    def tenant_is_refused(self, place: FolderPlace, path: str, size: int) -> bool:
        try:
            self.machine.tenant_writes(place, path, bytes(size))
        except OSError as error:
            return error.errno in {errno.ENOSPC, errno.EDQUOT}
        return False

    def tenant_leaves(self, place: FolderPlace, path: str, project: int) -> None:
        self.machine.folders[place].left[path] = project

    def erase(self, name: str) -> None:
        del self.machine.folders[trashed(name)]

    def tenant_reads_at(self, target: Names, path: str) -> bytes:
        folder = self.machine.mounts[target][-1].folder
        assert folder is not None
        return folder.files[path]

    def tenant_writes_at(self, target: Names, path: str, content: bytes) -> None:
        mount = self.machine.mounts[target][-1]
        if mount.options.read_only:
            raise OSError(errno.EROFS, os.strerror(errno.EROFS))
        place = next(place for place, folder in self.machine.folders.items() if folder is mount.folder)
        self.machine.tenant_writes(place, path, content)

    def copy_mounts_elsewhere(self) -> Callable[[], None]:
        copies = [mount for stack in self.machine.mounts.values() for mount in stack]
        self.machine.elsewhere += copies
        return lambda: [self.machine.unmount_elsewhere(each) for each in copies] and None

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

    def leave_half_made_with_image(self, place: FolderPlace) -> None:
        self.leave_half_made(place)
        self.machine.half_made[place].image = ImageShape(1 << 20, "ext4", keeps_space=True)

    def remove_image_by_hand(self, place: FolderPlace) -> None:
        del self.machine.folders[place]

    def damage_image(self, place: FolderPlace) -> None:
        self.machine.folders[place].is_damaged = True


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
            return points.wrap(host, "bind", "mount_image")
        return host

    def kubelet_makes(self, folder: Names) -> None:
        self._kubelet.joinpath(*folder).mkdir(parents=True, exist_ok=True)

    def kubelet_writes(self, file: Names) -> None:
        self._kubelet.joinpath(*file).write_text("")

    def tenant_writes(self, place: FolderPlace, path: str, content: bytes) -> None:
        (self._folder(place) / path).write_bytes(content)

    def tenant_reads(self, place: FolderPlace, path: str) -> bytes:
        return (self._folder(place) / path).read_bytes()

    def tenant_is_refused(self, place: FolderPlace, path: str, size: int) -> bool:
        with folder_descriptor(self._folder(place)) as folder:
            command = [sys.executable, "-S", "-c", WRITE_AS_TENANT, str(folder), path, str(size)]
            ended = subprocess.run(command, pass_fds=[folder], capture_output=True, text=True, check=True)
        return int(ended.stdout) in {errno.ENOSPC, errno.EDQUOT}

    def tenant_leaves(self, place: FolderPlace, path: str, project: int) -> None:
        with (self._folder(place) / path).open() as file:
            flags, *sizes, _project, copied = struct.unpack("=IIIII8x", fcntl.ioctl(file, 0x801C581F, bytes(28)))
            fcntl.ioctl(file, 0x401C5820, struct.pack("=IIIII8x", flags, *sizes, project, copied))

    def erase(self, name: str) -> None:
        self.erase_below(self._work, name)

    @staticmethod
    def erase_below(workdir: Path, name: str) -> None:
        with folder_descriptor(workdir / "trash") as trash:
            assert erase_folder(trash, name, threading.Event()).is_complete
        os.sync()

    def tenant_reads_at(self, target: Names, path: str) -> bytes:
        return self._kubelet.joinpath(*target, path).read_bytes()

    def tenant_writes_at(self, target: Names, path: str, content: bytes) -> None:
        with self._kubelet.joinpath(*target, path).open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file)

    def copy_mounts_elsewhere(self) -> Callable[[], None]:
        there = ExitStack()
        there.enter_context(other_namespace("private"))
        self._clean_up.callback(there.close)
        return there.close

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

    def leave_half_made_with_image(self, place: FolderPlace) -> None:
        self.leave_half_made(place)
        (self._work / place.state.value / f".new.{place.name}" / "image").write_bytes(b"half")

    def remove_image_by_hand(self, place: FolderPlace) -> None:
        (self._folder(place) / "image").unlink()
        self._folder(place).rmdir()

    def damage_image(self, place: FolderPlace) -> None:
        with (self._folder(place) / "image").open("r+b") as image:
            image.write(bytes(1 << 20))

    def _folder(self, place: FolderPlace) -> Path:
        return self._work / place.state.value / place.name


WRITE_AS_TENANT = """
import os, sys
os.setgroups([]); os.setresgid(1000, 1000, 1000); os.setresuid(1000, 1000, 1000)
try:
    file = os.open(sys.argv[2], os.O_CREAT | os.O_WRONLY, dir_fd=int(sys.argv[1]))
    left = int(sys.argv[3])
    while left > 0:
        left -= os.write(file, bytes(min(left, 65536)))
    os.fsync(file)
except OSError as error:
    print(error.errno)
else:
    print(0)
"""
WORKDIR_EFFECTS = ("create", "remove_half_made", "write_record", "move", "lift_limits")
KUBELET_EFFECTS = ("make_target", "remove_target", "unmount")


def live(name: str) -> FolderPlace:
    return FolderPlace(FolderState.LIVE, name)


def retained(name: str) -> FolderPlace:
    return FolderPlace(FolderState.RETAINED, name)


def trashed(name: str) -> FolderPlace:
    return FolderPlace(FolderState.TRASH, name)
