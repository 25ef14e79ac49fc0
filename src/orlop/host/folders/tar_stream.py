"""Stream a folder, or a part of it, as a tar archive: PAX, in bounded memory.

Names are kept as they are, also those that are no UTF-8 (`hdrcharset=BINARY`). Holes stay holes (GNU's sparse format,
version 1.0, which GNU tar, bsdtar and Python read). Symbolic and hard links are stored as such. Left out, with a
problem: devices, fifos and sockets, mounts, and what lies so deep that no program could unpack it. Setuid and setgid
are not kept.

The walk is a `read_only_walk`: nothing outside the folder is read. A file that changes its length meanwhile is cut or
filled with zeros to the length that was announced, with a problem.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tarfile
from typing import TYPE_CHECKING, Final

from orlop.host.folders.file_contents import data_ranges
from orlop.host.folders.folder_reading import PIECE_BYTES, opened_file, place_below
from orlop.host.folders.read_only_walk import Enter, FolderWalk, Meet, Problems, kind_of
from orlop.host.kernel.confined_paths import FOLDER_FLAGS, reopen

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST_PATH: Final = 4_000  # bytes; the kernel takes 4,095 when it is unpacked
MOST_LINKED_FILES: Final = 100_000
MOST_SPARSE_RANGES: Final = 10_000
WITHOUT_SETID: Final = 0o1777
BLOCK: Final = tarfile.BLOCKSIZE
SPARSE_BLOCK: Final = 512
ZEROS: Final = bytes(PIECE_BYTES)


class TarStream:
    """The archive, iterated once. `top` is its topmost name; `problems` are complete at its end."""

    def __init__(self, folder: int, path: str, top: str) -> None:
        self.problems = Problems()
        self._folder = folder
        self._path = path
        self._top = top
        self._linked: dict[tuple[int, int], str] = {}

    def __iter__(self) -> Iterator[bytes]:
        with place_below(self._folder, self._path) as place:
            status = os.fstat(place)
            if stat.S_ISDIR(status.st_mode):
                yield from self._folder_and_all_below(place, status)
            else:
                yield from self._entry(self._top, status, place)
        yield bytes(2 * BLOCK)

    def _folder_and_all_below(self, place: int, status: os.stat_result) -> Iterator[bytes]:
        yield _header(_described(self._top, status, tarfile.DIRTYPE))
        descriptor = reopen(place, FOLDER_FLAGS & ~os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            walk = FolderWalk(descriptor, self.problems)
            with contextlib.closing(walk.steps()) as steps:
                for step in steps:
                    if isinstance(step, Enter):
                        yield from self._folder_entry(walk, step)
                    elif isinstance(step, Meet):
                        yield from self._entry(f"{self._top}/{walk.path_to(step.name)}", step.status, step.place)
        finally:
            os.close(descriptor)

    def _folder_entry(self, walk: FolderWalk, step: Enter) -> Iterator[bytes]:
        name = f"{self._top}/{walk.path()}"
        if len(os.fsencode(name)) > LONGEST_PATH:
            self.problems.add(walk.path(), "It is too deep to be unpacked, so it is left out. Ask for it by its path.")
            walk.skip()
            return
        yield _header(_described(name, step.status, tarfile.DIRTYPE))

    def _entry(self, name: str, status: os.stat_result, place: int) -> Iterator[bytes]:
        kind = stat.S_IFMT(status.st_mode)
        if kind == stat.S_IFLNK:
            link = _described(name, status, tarfile.SYMTYPE)
            link.linkname = os.fsdecode(os.readlink(b"", dir_fd=place))
            yield _header(link)
        elif kind == stat.S_IFREG:
            yield from self._file(name, status, place)
        else:
            self.problems.add(self._below(name), f"It is {kind_of(kind)}, which is left out.")

    def _file(self, name: str, status: os.stat_result, place: int) -> Iterator[bytes]:
        earlier = self._earlier_name(name, status)
        if earlier is not None:
            link = _described(name, status, tarfile.LNKTYPE)
            link.linkname = earlier
            yield _header(link)
            return
        try:
            with opened_file(place, name) as file:
                yield from self._contents(name, status, file)
        except OSError as error:
            self.problems.add_error(self._below(name), "It cannot be read, so it is left out", error)

    def _earlier_name(self, name: str, status: os.stat_result) -> str | None:
        """Return the earlier name of a file that is in the archive; None beyond a limit: the file is stored again."""
        if status.st_nlink == 1:
            return None
        identity = (status.st_dev, status.st_ino)
        if identity not in self._linked and len(self._linked) < MOST_LINKED_FILES:
            self._linked[identity] = name
            return None
        return self._linked.get(identity)

    def _contents(self, name: str, status: os.stat_result, file: int) -> Iterator[bytes]:
        size = status.st_size
        has_holes = status.st_blocks * 512 < size
        ranges = list(data_ranges(file, size, MOST_SPARSE_RANGES)) if has_holes else [(0, size)]
        info = _described(name, status, tarfile.REGTYPE)
        if ranges == [(0, size)] or not size:
            info.size = size
            yield _header(info)
            yield from self._data(name, file, ranges)
        else:
            sparse_map = _sparse_map([*ranges, (size, size)])
            info.size = len(sparse_map) + sum(end - start for start, end in ranges)
            _make_sparse(info, name, size)
            yield _header(info)
            yield sparse_map
            yield from self._data(name, file, ranges)
        yield bytes(-info.size % BLOCK)

    def _data(self, name: str, file: int, ranges: list[tuple[int, int]]) -> Iterator[bytes]:
        changed = False
        for start, end in ranges:
            at = start
            while at < end:
                piece = self._read(name, file, min(end - at, PIECE_BYTES), at)
                if not piece:
                    changed = True
                    piece = ZEROS[: min(end - at, PIECE_BYTES)]
                yield piece
                at += len(piece)
        if changed:
            self.problems.add(
                self._below(name), "It became shorter while it was read, or cannot be read: zeros stand for the rest."
            )

    def _below(self, name: str) -> str:
        """Return the path below the folder of a name in the archive, for problems."""
        return name.removeprefix(f"{self._top}/")

    def _read(self, name: str, file: int, count: int, at: int) -> bytes:
        # The header is out: whatever happens now, as many bytes as it promised must follow.
        try:
            return os.pread(file, count, at)
        except OSError as error:
            self.problems.add_error(self._below(name), "A part of it cannot be read", error)
            return b""


def _described(name: str, status: os.stat_result, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = stat.S_IMODE(status.st_mode) & WITHOUT_SETID
    info.uid, info.gid = status.st_uid, status.st_gid
    info.mtime = status.st_mtime_ns // 1_000_000_000
    return info


def _header(info: tarfile.TarInfo) -> bytes:
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape")


def _make_sparse(info: tarfile.TarInfo, name: str, size: int) -> None:
    folder, _, last = name.rpartition("/")
    info.name = f"{folder}/GNUSparseFile.0/{last}".removeprefix("/")
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": name,
        "GNU.sparse.realsize": str(size),
    }


def _sparse_map(ranges: list[tuple[int, int]]) -> bytes:
    numbers = [len(ranges), *(number for start, end in ranges for number in (start, end - start))]
    text = "".join(f"{number}\n" for number in numbers).encode()
    return text + bytes(-len(text) % SPARSE_BLOCK)
