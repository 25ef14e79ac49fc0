"""What a kubelet asks of its machine for volumes of Kubernetes' own kinds: folders on disk and in memory, and files.

The seam: `linux_plain_volume_host` is the real one, `testing/fake_host` has a model of it, and one contract suite is
kept by both. Everything blocks and raises HostError. A volume is named by its place below kubelet's directory; no
symbolic link is followed on the way there, nor inside.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

from orlop.host.payload_files import FileKind, FolderAccess, HostPath, Names, Payload


class PlainVolumeHost(Protocol):
    def make_on_disk(self, volume: Names, access: FolderAccess) -> None:
        """With its parents. It has its access from the first moment; one that is there is left as it is."""

    def make_in_memory(self, volume: Names, access: FolderAccess, most_bytes: int) -> None:
        """The same, on a file system of its own that is never on a disk; one that is mounted there is left."""

    def write_payload(self, volume: Names, payload: Payload, stamp: str, group: int | None) -> bool:
        """All of it at once, in place of what was there; False: it was there already. ENOENT: no such volume."""

    def payload_of(self, volume: Names) -> dict[Names, bytes]:
        """What is in it, as a pod reads it."""

    def make_nested_folders(self, volume: Names, folders: Sequence[Names]) -> None:
        """Inside it, where others are mounted; what is there is left."""

    def volumes_in(self, folder: Names) -> frozenset[str]:
        """The names of those in a folder of volumes, also of what is half made or half erased; no folder: none."""

    def remove(self, volume: Names, stop: threading.Event) -> None:
        """Unmounted and erased, whatever a tenant left in it; never through a mount, never along a link.

        What is not there is removed. EBUSY: somebody uses it. ECANCELED: stopped on the way. Calling again is right.
        """

    def kind_at(self, path: HostPath) -> FileKind | None: ...

    def make_host_folder(self, path: HostPath) -> None: ...

    def make_host_file(self, path: HostPath) -> None: ...
