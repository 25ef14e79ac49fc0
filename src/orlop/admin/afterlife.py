"""What an operator can ask of folders in their afterlife, over the node's socket. Blocks; prints nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from orlop.admin.node_socket import NodeUnreachable, conversation, message_in
from orlop.records.afterlife_report import (
    BYTES,
    Answer,
    AskUsage,
    Done,
    Download,
    Erase,
    Erasing,
    FileRow,
    Files,
    Folder,
    FolderRow,
    Keep,
    Kept,
    ListFiles,
    ListFolders,
    Opened,
    Progress,
    Question,
    ReadFile,
    Restore,
    Restored,
    Rows,
    ShowFolder,
    Usage,
)

A = TypeVar("A", bound=Answer)


class Afterlife:
    """Of the node behind a socket. An id is a volume's, or the beginning of one."""

    def __init__(self, socket: Path) -> None:
        self._socket = socket

    def list_folders(self) -> list[FolderRow]:
        rows: list[FolderRow] = []
        with conversation(self._socket) as node:
            node.ask(ListFolders())
            while isinstance(answer := node.answer(), Rows):
                rows += answer.rows
            _expected(answer, Done)
        return rows

    def show(self, volume_id: str) -> FolderRow:
        return self._asked(ShowFolder(volume_id), Folder).row

    def list_files(self, volume_id: str, path: bytes = b"") -> Iterator[FileRow]:
        with conversation(self._socket) as node:
            node.ask(ListFiles(volume_id, path))
            while isinstance(answer := node.answer(), Files):
                yield from answer.files
            _expected(answer, Done)

    @contextmanager
    def opened_file(self, volume_id: str, path: bytes) -> Iterator[int]:
        """A descriptor of the file; its folder is not erased while the block lasts."""
        with conversation(self._socket) as node:
            node.ask(ReadFile(volume_id, path))
            frame = node.frame()
            try:
                _expected(message_in(frame), Opened)
                if len(frame.descriptors) != 1:
                    raise NodeUnreachable("The node handed over no file. Ask again; look at its log.")
                yield frame.descriptors[0]
            finally:
                for descriptor in frame.descriptors:
                    os.close(descriptor)

    def download(self, volume_id: str, path: bytes, write: Callable[[bytes], object]) -> Done:
        """Hands over the archive piece by piece; it is complete when this returns."""
        with conversation(self._socket, patience=None) as node:
            node.ask(Download(volume_id, path))
            while (frame := node.frame()).kind == BYTES:
                write(frame.body)
            return _expected(message_in(frame), Done)

    def keep(self, volume_id: str, seconds: float, *, dry_run: bool = False) -> Kept:
        return self._asked(Keep(volume_id, seconds, dry_run), Kept)

    def restore(
        self,
        volume_id: str,
        directory: int,
        progress: Callable[[Progress], object] = lambda _progress: None,
        *,
        hand_stop: Callable[[Callable[[], None]], object] = lambda _stop: None,
        dry_run: bool = False,
    ) -> Restored:
        """Into a new folder in the open `directory`.

        `hand_stop` receives a function that stops it, also from a signal; the node then reports what is left.
        """
        with conversation(self._socket, patience=None) as node:
            node.ask(Restore(volume_id, dry_run), (directory,))
            hand_stop(node.say_no_more)
            while isinstance(answer := node.answer(), Progress):
                progress(answer)
            return _expected(answer, Restored)

    def erase(self, volume_id: str, *, dry_run: bool = False) -> Erasing:
        return self._asked(Erase(volume_id, dry_run), Erasing)

    def usage(self) -> Usage:
        return self._asked(AskUsage(), Usage)

    def _asked(self, question: Question, expected: type[A]) -> A:
        with conversation(self._socket) as node:
            node.ask(question)
            return _expected(node.answer(), expected)


def _expected(answer: Answer, kind: type[A]) -> A:
    if not isinstance(answer, kind):
        raise NodeUnreachable(
            f"The node answered with {type(answer).__name__} where {kind.__name__} was expected. "
            "Use the orlop command of the version that the node runs."
        )
    return answer
