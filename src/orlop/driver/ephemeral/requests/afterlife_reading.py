"""Read retained folders for an operator: list files, read a file, download, restore. Changes nothing in a folder.

Order for each request: hold the volume's key → count a reader, so that the reaper does not erase the folder → open the
folder → release the key → read through the descriptor, in threads → close → remove the reader. So a pod whose volume is
published again meanwhile does not wait; the request continues, and its result reports the change.

Paths and links that the tenant created cannot lead out of the folder: see `host/folders/folder_reading`.
"""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from itertools import islice
from typing import Final, Protocol, TypeVar

from orlop.driver.ephemeral.folder_index import Retained, retained_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.requests.admin_socket import AdminClient, RequestRefused
from orlop.foundation.clock import Clock
from orlop.foundation.structured_log import Log
from orlop.foundation.task_group import TaskGroup
from orlop.host.folders.folder_copy import CopyProgress, FolderCopy
from orlop.host.folders.folder_reading import FolderEntry, list_folder, opened_file, place_below
from orlop.host.folders.folder_restore import FolderRestore, restore_folder, unfinished_name
from orlop.host.folders.read_only_walk import Problem
from orlop.host.folders.tar_stream import TarStream
from orlop.host.node_host import FolderPlace
from orlop.host.threads import ThreadedGenerator, Threads
from orlop.records.afterlife_report import (
    LONGEST_PATH_SHOWN,
    DownloadFolder,
    FileOpened,
    FileRow,
    Files,
    ListFiles,
    PathProblem,
    Progress,
    ReadFile,
    Restored,
    RestoreFolder,
    StreamEnd,
)

T = TypeVar("T")


class FolderAccess(Protocol):
    """Opens folders of the working directory, as `LinuxWorkdir` does."""

    def opened_content(self, place: FolderPlace, file_system: str) -> AbstractContextManager[int]:
        """Open the folder, or the root of the file system in its image, mounted read-only where nobody sees it."""
        ...

    def holds(self, folder: int) -> bool:
        """Return whether an open folder is inside the working directory, or inside a mount of one of its folders."""
        ...


FILES_AT_ONCE: Final = 500
PIECE_BYTES: Final = 1 << 20
MOST_LONG_READERS: Final = 4
LONGEST_OPEN_FILE_SECONDS: Final = 3600.0
PROGRESS_SECONDS: Final = 0.2
CHANGED_MEANWHILE: Final = "The volume was published again during the request: old and new contents may be mixed."


class AfterlifeReading:
    def __init__(
        self,
        folders: Folders,
        access: FolderAccess,
        resolve_id: Callable[[str], str],
        threads: Threads,
        clock: Clock,
        log: Log,
    ) -> None:
        """Create it. `resolve_id` returns the volume id for an id as the operator typed it, or raises."""
        self._folders = folders
        self._book = folders.book
        self._access = access
        self._resolve_id = resolve_id
        self._threads = threads
        self._clock = clock
        self._log = log
        self._long_readers = 0
        self._restoring: set[tuple[int, int, str]] = set()

    async def list_files(self, request: ListFiles, client: AdminClient) -> None:
        def batches(folder: int) -> Generator[tuple[FileRow, ...]]:
            files = list_folder(folder, os.fsdecode(request.path))
            while batch := tuple(_file_row(each) for each in islice(files, FILES_AT_ONCE)):
                yield batch

        async with self._opened(request.id, batches) as (_, steps):
            while batch := await steps.next():
                await client.answer(Files(batch))
        await client.answer(StreamEnd())

    async def read_file(self, request: ReadFile, client: AdminClient) -> None:
        """Pass the open file to the client. For an hour the folder is not erased; the descriptor works even longer."""
        path = os.fsdecode(request.path)

        def file(folder: int) -> Generator[int]:
            with place_below(folder, path) as place, opened_file(place, path) as descriptor:
                yield descriptor

        async with self._opened(request.id, file) as (_, steps):
            descriptor = await steps.next()
            assert descriptor is not None  # noqa: S101 - it yields one, or raises
            size = os.fstat(descriptor).st_size
            await client.answer(FileOpened(size), (descriptor,))
            await self._clock.sleep(LONGEST_OPEN_FILE_SECONDS)

    async def download(self, request: DownloadFolder, client: AdminClient) -> None:
        path, problems = os.fsdecode(request.path), list[PathProblem]()
        count = 0

        def pieces(folder: int) -> Generator[bytes]:
            nonlocal count
            tar = TarStream(folder, path, _top(path, volume_id))
            yield from _in_larger_pieces(iter(tar))
            problems.extend(_problem(each) for each in tar.problems.first)
            count = tar.problems.count

        volume_id = self._resolve_id(request.id)
        with self._long_reading():
            async with self._opened(volume_id, pieces) as (retained, steps):
                self._log.info("downloading folder", volume=volume_id, by_process=client.peer.process)
                while piece := await steps.next():
                    await client.send_bytes(piece)
                if self._was_published_again(retained):
                    problems.insert(0, PathProblem(b".", CHANGED_MEANWHILE))
                    count += 1
        await client.answer(StreamEnd(tuple(problems), count))

    # ---- restoring ---------------------------------------------------------------------------------------------------

    async def restore(self, request: RestoreFolder, client: AdminClient) -> None:
        if len(client.descriptors) != 1:
            raise RequestRefused("wrong-use", "A restore needs the folder to restore into, as one open descriptor.")
        volume_id, target = self._resolve_id(request.id), client.descriptors[0]
        if request.dry_run:
            await self._threads(lambda: self._refuse_what_cannot_be(target, volume_id))
            await client.answer(Restored(volume_id))
            return
        with self._long_reading(), self._only_one_into(target, volume_id):
            await self._restore(volume_id, target, client)

    def _refuse_what_cannot_be(self, target: int, volume_id: str) -> None:
        """Refuse a target in our own folders: the copy would be erased with it, or copied into itself without end."""
        FolderRestore(target, target, volume_id).refuse_what_cannot_be()
        if self._access.holds(target):
            raise RequestRefused("refused", "The folder to restore into is one of this node's own. Name one outside.")

    async def _restore(self, volume_id: str, target: int, client: AdminClient) -> None:
        stop, latest, owned = threading.Event(), [CopyProgress(0, 0)], ExitStack()
        client.when_client_goes = stop.set
        own_target = os.dup(target)
        owned.callback(os.close, own_target)

        def copying(folder: int) -> Generator[FolderCopy]:
            self._refuse_what_cannot_be(own_target, volume_id)
            restore = FolderRestore(folder, own_target, volume_id)
            yield restore_folder(restore, stop, lambda progress: latest.__setitem__(0, progress))

        async with self._opened(volume_id, copying, owned) as (retained, steps):
            self._log.info("restoring folder", volume=volume_id, by_process=client.peer.process)
            try:
                copied = await self._copied_with_progress(steps, latest, retained.bytes_used, client)
            finally:
                stop.set()
            published_again = self._was_published_again(retained)
        self._log.info("restore stopped" if copied.stopped else "folder restored", volume=volume_id)
        await client.answer(_restored(volume_id, copied, published_again=published_again))

    async def _copied_with_progress(
        self,
        steps: ThreadedGenerator[FolderCopy | None],
        latest: list[CopyProgress],
        expected: int | None,
        to: AdminClient,
    ) -> FolderCopy:
        async def report() -> None:
            reported = CopyProgress(-1, -1)
            while True:
                await self._clock.sleep(PROGRESS_SECONDS)
                if latest[0] != reported:
                    reported = latest[0]
                    await to.answer(Progress(reported.entries, reported.bytes, expected))

        async with TaskGroup() as tasks:
            reporting = tasks.start(report(), name="progress")
            copied = await steps.next()
            reporting.cancel()
        assert copied is not None  # noqa: S101 - it yields one, or raises
        return copied

    @contextmanager
    def _only_one_into(self, target: int, volume_id: str) -> Iterator[None]:
        status = os.fstat(target)
        key = (status.st_dev, status.st_ino, volume_id)
        if key in self._restoring:
            raise RequestRefused(
                "refused", f"{volume_id} is being restored into this folder already. Wait until it ends."
            )
        self._restoring.add(key)
        try:
            yield
        finally:
            self._restoring.discard(key)

    # ---- common steps ------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(
        self, typed_id: str, read: Callable[[int], Generator[T]], owned: ExitStack | None = None
    ) -> AsyncIterator[tuple[Retained, ThreadedGenerator[T | None]]]:
        async with AsyncExitStack() as stack:
            owned = stack.enter_context(owned or ExitStack())
            volume_id = self._resolve_id(typed_id)
            # Only open the folder under the key, and read it after the key is released: a pod must not wait for a
            # download. The reader is counted under the key, because the reaper checks for readers under it.
            async with self._folders.keys.hold(volume_id, why="being opened for reading"):
                retained = self._book.retained.get(volume_id)
                if retained is None:
                    raise RequestRefused.gone(volume_id)
                stack.enter_context(self._book.being_read(volume_id))
                generator = self._opened_then(retained, read)
                steps = ThreadedGenerator(generator, self._threads, owned.pop_all())
                stack.callback(steps.close)
                await steps.next()
            yield retained, steps

    def _opened_then(self, retained: Retained, read: Callable[[int], Generator[T]]) -> Generator[T | None]:
        with self._access.opened_content(retained_place(retained.burial), retained.record.image) as folder:
            yield None  # the folder is open: a rename no longer matters
            yield from read(folder)

    @contextmanager
    def _long_reading(self) -> Iterator[None]:
        """Limit the requests that occupy a thread for a long time, so that calls of kubelet always get one."""
        if self._long_readers >= MOST_LONG_READERS:
            raise RequestRefused(
                "refused", f"{MOST_LONG_READERS} folders are being downloaded or restored already. Try again later."
            )
        self._long_readers += 1
        try:
            yield
        finally:
            self._long_readers -= 1

    def _was_published_again(self, retained: Retained) -> bool:
        current = self._book.retained.get(retained.volume_id)
        return current is None or current.burial.buried_at != retained.burial.buried_at


def _file_row(listed: FolderEntry) -> FileRow:
    return FileRow(
        name=os.fsencode(listed.name),
        kind=listed.kind,
        mode=listed.mode,
        uid=listed.uid,
        gid=listed.gid,
        size=listed.size,
        modified_ns=listed.modified_ns,
        link=None if listed.link is None else os.fsencode(listed.link),
    )


def _top(path: str, volume_id: str) -> str:
    """Return the topmost name in the archive: the last name of the path, or the volume id."""
    return next((name for name in reversed(path.split("/")) if name not in {"", "."}), volume_id)


def _in_larger_pieces(pieces: Iterator[bytes]) -> Generator[bytes]:
    """Join small pieces: each one sent costs a switch between threads, and there may be thousands of small files."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def _problem(problem: Problem) -> PathProblem:
    """Return a problem for the response. A tenant can create paths of megabytes: keep their beginning and end."""
    path, half = os.fsencode(problem.path), LONGEST_PATH_SHOWN // 2
    shown = path if len(path) <= LONGEST_PATH_SHOWN else path[:half] + b"/.../" + path[-half:]
    return PathProblem(shown, os.fsencode(problem.sentence).decode(errors="replace"))


def _restored(volume_id: str, copied: FolderCopy, *, published_again: bool) -> Restored:
    extra = (PathProblem(b".", CHANGED_MEANWHILE),) if published_again else ()
    return Restored(
        name=unfinished_name(volume_id) if copied.stopped else volume_id,
        entries=copied.entries,
        bytes=copied.bytes,
        finished=not copied.stopped,
        problems=(*extra, *map(_problem, copied.problems)),
        problem_count=copied.problem_count + len(extra),
    )
