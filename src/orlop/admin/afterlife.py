"""The client of a node's admin socket for retained folders: list, show, read, restore, keep, erase. Blocks."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from orlop.admin.node_socket import NodeUnreachable, connected, message_in
from orlop.records.afterlife_report import (
    BYTES,
    AfterlifeRequest,
    AfterlifeResponse,
    DownloadFolder,
    EraseFolder,
    Erasing,
    FileOpened,
    FileRow,
    Files,
    FolderResponse,
    FolderRow,
    KeepFolder,
    KeepResult,
    ListFiles,
    ListFolders,
    Progress,
    ReadFile,
    Restored,
    RestoreFolder,
    Rows,
    ShowFolder,
    ShowUsage,
    StreamEnd,
    UsageReport,
)

A = TypeVar("A", bound=AfterlifeResponse)


class Afterlife:
    """The retained folders of the node behind a socket. An id is a volume's, or the beginning of one."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def list_folders(self) -> list[FolderRow]:
        rows: list[FolderRow] = []
        with connected(self._socket) as node:
            node.send(ListFolders())
            while isinstance(answer := node.answer(), Rows):
                rows += answer.rows
            _expected(answer, StreamEnd)
        return rows

    def show(self, volume_id: str) -> FolderRow:
        return self._request(ShowFolder(volume_id), FolderResponse).row

    def list_files(self, volume_id: str, path: bytes = b"") -> Iterator[FileRow]:
        with connected(self._socket) as node:
            node.send(ListFiles(volume_id, path))
            while isinstance(answer := node.answer(), Files):
                yield from answer.files
            _expected(answer, StreamEnd)

    @contextmanager
    def opened_file(self, volume_id: str, path: bytes) -> Iterator[int]:
        """Open a file; its folder is not erased while the block runs."""
        with connected(self._socket) as node:
            node.send(ReadFile(volume_id, path))
            frame = node.frame()
            try:
                _expected(message_in(frame), FileOpened)
                if len(frame.descriptors) != 1:
                    raise NodeUnreachable("The node did not pass an open file. Try again; if it repeats, read its log.")
                yield frame.descriptors[0]
            finally:
                for descriptor in frame.descriptors:
                    os.close(descriptor)

    def download(self, volume_id: str, path: bytes, write: Callable[[bytes], object]) -> StreamEnd:
        """Call `write` with each piece of the archive; the archive is complete when this returns."""
        with connected(self._socket, patience=None) as node:
            node.send(DownloadFolder(volume_id, path))
            while (frame := node.frame()).kind == BYTES:
                write(frame.body)
            return _expected(message_in(frame), StreamEnd)

    def keep(self, volume_id: str, seconds: float, *, dry_run: bool = False) -> KeepResult:
        return self._request(KeepFolder(volume_id, seconds, dry_run), KeepResult)

    def restore(
        self,
        volume_id: str,
        directory: int,
        progress: Callable[[Progress], object] = lambda _progress: None,
        *,
        hand_stop: Callable[[Callable[[], None]], object] = lambda _stop: None,
        dry_run: bool = False,
    ) -> Restored:
        """Restore a folder into a new one in the open `directory`.

        `hand_stop` receives a function that stops the restore, also from a signal handler; the node then reports what
        was copied.
        """
        with connected(self._socket, patience=None) as node:
            node.send(RestoreFolder(volume_id, dry_run), (directory,))
            hand_stop(node.request_stop)
            while isinstance(answer := node.answer(), Progress):
                progress(answer)
            return _expected(answer, Restored)

    def erase(self, volume_id: str, *, dry_run: bool = False) -> Erasing:
        return self._request(EraseFolder(volume_id, dry_run), Erasing)

    def usage(self) -> UsageReport:
        return self._request(ShowUsage(), UsageReport)

    def _request(self, request: AfterlifeRequest, expected: type[A]) -> A:
        with connected(self._socket) as node:
            node.send(request)
            return _expected(node.answer(), expected)


def _expected(answer: AfterlifeResponse, kind: type[A]) -> A:
    if not isinstance(answer, kind):
        raise NodeUnreachable(
            f"The node responded with {type(answer).__name__} where {kind.__name__} was expected. "
            "Use the orlop command of the version that the node runs."
        )
    return answer
