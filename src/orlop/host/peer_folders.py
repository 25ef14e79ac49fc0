"""Folders as another driver for scratch space left them: two levels deep in its working directory, without a record.

`<workdir>/<pod uid>/<volume id>`, beside a database that the driver locks while it runs. Order for one folder: it gets
its record, durably → it is moved to a shelf, durably → the pod's folder goes when it is empty. A folder that is mounted
can be moved: its mounts go with it. Whoever is killed in between finds the rest where it was.

Must not look into a volume's folder, and must not change the database.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
from dataclasses import dataclass
from typing import Final

from orlop.host import folder_records, mount_table, mounts
from orlop.host.confined_paths import Mounts, Use, is_folder, names_in, opened_below, remove_empty_folder
from orlop.host.errors import HostError
from orlop.host.mounts import FileIdentity

DATABASE: Final = "deletedVolumes.db"
NAMES_TO_A_FOLDER: Final = 2
_NO_FOLLOW: Final = os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class PeerFolder:
    pod_uid: str
    volume_id: str

    def __str__(self) -> str:
        return f"{self.pod_uid}/{self.volume_id}"


class PeerFolders:
    """`root` is the working directory, open; `ours` are the names in it that are none of the peer's."""

    def __init__(self, root: int, ours: frozenset[str]) -> None:
        self._root = root
        self._ours = ours

    def are_there(self) -> bool:
        """Whether the peer has ever worked here."""
        return DATABASE in names_in(self._root)

    def is_peer_running(self) -> bool:
        database = os.open(DATABASE, os.O_RDONLY | _NO_FOLLOW, dir_fd=self._root)
        try:
            fcntl.flock(database, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(database)
        return False

    def found(self) -> list[PeerFolder]:
        pods = [name for name in names_in(self._root) if name not in self._ours and is_folder(self._root, name)]
        return sorted((each for pod in pods for each in self._of_pod(pod)), key=str)

    def mounted(self) -> frozenset[PeerFolder]:
        """Wholly or in part, in any mount namespace that can be seen."""
        seen = mount_table.read_all_namespaces()
        names = seen.mounted_folders().names_below(seen.folder_of(self._root), NAMES_TO_A_FOLDER)
        return frozenset(PeerFolder(*each) for each in names)

    def identity(self, folder: PeerFolder) -> FileIdentity:
        with opened_below(self._root, (folder.pod_uid, folder.volume_id), Use.HANDLE, Mounts.REFUSED) as opened:
            return mounts.identity_of(opened)

    def take(self, folder: PeerFolder, record: bytes, to_shelf: int, name: str) -> None:
        """EEXIST: the name is taken on that shelf, and the folder is where it was."""
        with opened_below(self._root, (folder.pod_uid,), Use.FOLDER_CONTENT, Mounts.REFUSED) as pod:
            folder_records.write_record(pod, folder.volume_id, record)
            folder_records.move(pod, folder.volume_id, to_shelf, name)
            folder_records.make_durable(to_shelf, name)
        self._remove_if_empty(folder.pod_uid)

    def _of_pod(self, pod: str) -> list[PeerFolder]:
        try:
            with opened_below(self._root, (pod,), Use.FOLDER_CONTENT, Mounts.REFUSED) as opened:
                return [PeerFolder(pod, name) for name in names_in(opened) if is_folder(opened, name)]
        except HostError as error:
            if error.errno == errno.EXDEV:  # something is mounted there: no folder of the peer's
                return []
            raise

    def _remove_if_empty(self, pod: str) -> None:
        with contextlib.suppress(HostError):
            remove_empty_folder(self._root, pod)
