"""Find and move the folders of the driver that used this working directory before us. They have no record.

There are two layouts, distinguished by names alone: `<workdir>/<volume id>`, as that driver's design has it, and
`<workdir>/<pod uid>/<volume id>`, as its later versions write it. A volume id is `csi-<64 hex>`, which is what kubelet
computes for every inline volume. A folder with any other name is somebody else's and stays where it is.

Order for one folder: write its record, durably → move it to a shelf, durably → remove the pod's folder if it is empty.
A mounted folder can be moved: its mounts go with it. After a kill in between, the next start repeats the same steps.

Must not read inside a volume's folder, and must not change the other driver's database.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from orlop.host.folders import folder_records
from orlop.host.host_errors import HostError
from orlop.host.kernel.confined_paths import (
    DescriptorUse,
    Mounts,
    is_folder,
    names_in,
    opened_below,
    remove_empty_folder,
)
from orlop.host.mounts import mount_table
from orlop.host.mounts.mount_table import FolderInFileSystem, parse_mount_lines

DATABASE: Final = "deletedVolumes.db"
VOLUME_ID: Final = re.compile(r"csi-[0-9a-f]{64}")
POD_UID: Final = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}")
"""A UUID, or the hash that kubelet computes for a static pod."""
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class PeerFolder:
    volume_id: str
    pod_uid: str = ""
    """Empty where the folder is at the first level: its path does not name the pod."""

    @property
    def names(self) -> tuple[str, ...]:
        return (self.pod_uid, self.volume_id) if self.pod_uid else (self.volume_id,)

    def __str__(self) -> str:
        return "/".join(self.names)


@dataclass(frozen=True, slots=True)
class PeerListing:
    volumes: tuple[PeerFolder, ...]
    strangers: tuple[str, ...]
    """Paths, below the working directory, of what is in a pod's folder and is no volume."""


class PeerMounts:
    """Answers which of the other driver's folders are mounted, from one snapshot of the mount tables."""

    def __init__(self, namespaces: mount_table.SeenNamespaces, root: int) -> None:
        self._namespaces = namespaces
        self._workdir = namespaces.folder_of(root)
        self._mounted = namespaces.mounted_folders()

    def hold(self, folder: PeerFolder) -> bool:
        """Return whether the folder, or something in it, is mounted in any mount namespace that we can see."""
        return self._mounted.holds(self._workdir.below(*folder.names))

    def hold_pod_folder(self, folder: PeerFolder) -> bool:
        """Return whether the folder above the volume is mounted itself: a volume moved out of it leaves that mount."""
        return bool(folder.pod_uid) and self._mounted.is_root(self._workdir.below(folder.pod_uid))

    def points_of(self, folder: PeerFolder) -> tuple[str, ...]:
        """Return where the folder itself is mounted, in our own mount namespace."""
        return tuple(sorted(self._points.get(self._workdir.below(*folder.names), ())))

    @cached_property
    def _points(self) -> dict[FolderInFileSystem, set[str]]:
        # Use the mount table and do not access the targets: a target may belong to another driver, and hang.
        points: dict[FolderInFileSystem, set[str]] = {}
        for line in parse_mount_lines(self._namespaces.own):
            points.setdefault(line.root, set()).add(line.mount_point)
        return points


class PeerFolders:
    """The folders of the other driver. `root` is the open working directory."""

    def __init__(self, root: int) -> None:
        self._root = root

    def are_there(self) -> bool:
        """Return whether the other driver has ever used this working directory."""
        return DATABASE in names_in(self._root)

    def is_peer_running(self) -> bool:
        """Return whether the other driver runs: it holds a lock on its database for as long as it does."""
        database = os.open(DATABASE, os.O_RDONLY | _NO_FOLLOW, dir_fd=self._root)
        try:
            fcntl.flock(database, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(database)
        return False

    def listing(self) -> PeerListing:
        volumes: list[PeerFolder] = []
        strangers: list[str] = []
        for name in names_in(self._root):
            if VOLUME_ID.fullmatch(name) and is_folder(self._root, name):
                volumes.append(PeerFolder(name))
            elif POD_UID.fullmatch(name) and is_folder(self._root, name):
                self._list_pod(name, volumes, strangers)
        return PeerListing(tuple(sorted(volumes, key=str)), tuple(sorted(strangers)))

    def _list_pod(self, pod: str, volumes: list[PeerFolder], strangers: list[str]) -> None:
        try:
            with opened_below(self._root, (pod,), DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as opened:
                for name in names_in(opened):
                    if VOLUME_ID.fullmatch(name) and is_folder(opened, name):
                        volumes.append(PeerFolder(name, pod))
                    else:
                        strangers.append(f"{pod}/{name}")
        except HostError as error:
            if error.errno != errno.EXDEV:
                raise
            strangers.append(pod)  # something is mounted on it: what is seen there is not the other driver's

    def look_at_mounts(self) -> PeerMounts:
        return PeerMounts(mount_table.read_all_namespaces(), self._root)

    def take(self, folder: PeerFolder, record: bytes, to_shelf: int, name: str) -> None:
        """Move a folder to a shelf. EEXIST: the name is taken there, and the folder was not moved."""
        with opened_below(self._root, folder.names[:-1], DescriptorUse.FOLDER_CONTENT, Mounts.REFUSED) as parent:
            # The record first: a folder on a shelf without one would be left alone for ever by the next process.
            folder_records.write_record(parent, folder.volume_id, record)
            folder_records.move(parent, folder.volume_id, to_shelf, name)
            folder_records.make_durable(to_shelf, name)
        if folder.pod_uid:
            with contextlib.suppress(HostError):  # there is more in it
                remove_empty_folder(self._root, folder.pod_uid)
