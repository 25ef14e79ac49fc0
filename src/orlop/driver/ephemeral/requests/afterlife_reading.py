"""Reading folders in their afterlife, for people: lists, files, archives, restores. Nothing of a folder is changed.

Order for each: the volume's key is held → the folder is noted as being read, so that nobody erases it → it is opened →
the key is let go → it is read, by its descriptor, in threads → it is closed → the note goes. So a pod that comes back
meanwhile has its folder at once; the reader goes on, and its result names the change.

What the folder's tenant made of it cannot lead out of it: `host/folders/folder_reading` and its neighbours see to that.
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
    """The folders themselves, by descriptors, as `LinuxWorkdir` gives them."""

    def opened(self, place: FolderPlace) -> AbstractContextManager[int]: ...

    def holds(self, folder: int) -> bool:
        """Whether an open folder is a part of the working directory, or of a folder from it."""
        ...


FILES_AT_ONCE: Final = 500
PIECE_BYTES: Final = 1 << 20
MOST_LONG_READERS: Final = 4
LONGEST_OPEN_FILE_SECONDS: Final = 3600.0
PROGRESS_SECONDS: Final = 0.2
CHANGED_MEANWHILE: Final = "A pod took the folder back while it was read: what was read may be old and new mixed."


class AfterlifeReading:
    def __init__(
        self,
        folders: Folders,
        access: FolderAccess,
        meant: Callable[[str], str],
        threads: Threads,
        clock: Clock,
        log: Log,
    ) -> None:
        self._folders = folders
        self._book = folders.book
        self._access = access
        self._meant = meant
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
        """Hands the file over; who still reads it after an hour has it to the end, but no hold on the folder."""
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
            yield from _gathered(iter(tar))
            problems.extend(_problem(each) for each in tar.problems.first)
            count = tar.problems.count

        volume_id = self._meant(request.id)
        with self._long_reading():
            async with self._opened(volume_id, pieces) as (retained, steps):
                self._log.info("downloading", volume=volume_id, by_process=client.peer.process)
                while piece := await steps.next():
                    await client.send_bytes(piece)
                if self._was_taken_back(retained):
                    problems.insert(0, PathProblem(b".", CHANGED_MEANWHILE))
                    count += 1
        await client.answer(StreamEnd(tuple(problems), count))

    # ---- restoring ---------------------------------------------------------------------------------------------------

    async def restore(self, request: RestoreFolder, client: AdminClient) -> None:
        if len(client.descriptors) != 1:
            raise RequestRefused("wrong-use", "A restore needs the folder to restore into, as one open descriptor.")
        volume_id, target = self._meant(request.id), client.descriptors[0]
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
            self._log.info("restoring", volume=volume_id, by_process=client.peer.process)
            try:
                copied = await self._telling_progress(steps, latest, retained.bytes_used, client)
            finally:
                stop.set()
            taken_back = self._was_taken_back(retained)
        self._log.info("restored" if not copied.stopped else "not restored: stopped", volume=volume_id)
        await client.answer(_restored(volume_id, copied, taken_back=taken_back))

    async def _telling_progress(
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
        found = os.fstat(target)
        what = (found.st_dev, found.st_ino, volume_id)
        if what in self._restoring:
            raise RequestRefused(
                "refused", f"{volume_id} is being restored into this folder already. Wait until it ends."
            )
        self._restoring.add(what)
        try:
            yield
        finally:
            self._restoring.discard(what)

    # ---- what all of them do -----------------------------------------------------------------------------------------

    @asynccontextmanager
    async def _opened(
        self, wanted: str, read: Callable[[int], Generator[T]], owned: ExitStack | None = None
    ) -> AsyncIterator[tuple[Retained, ThreadedGenerator[T | None]]]:
        async with AsyncExitStack() as stack:
            owned = stack.enter_context(owned or ExitStack())
            volume_id = self._meant(wanted)
            async with self._folders.keys.hold(volume_id, why="being opened for reading"):
                retained = self._book.retained.get(volume_id)
                if retained is None:
                    raise RequestRefused.gone(volume_id)
                stack.enter_context(self._book.being_read(volume_id))
                generator = self._opened_then(retained_place(retained.burial), read)
                steps = ThreadedGenerator(generator, self._threads, owned.pop_all())
                stack.callback(steps.close)
                await steps.next()
            yield retained, steps

    def _opened_then(self, place: FolderPlace, read: Callable[[int], Generator[T]]) -> Generator[T | None]:
        with self._access.opened(place) as folder:
            yield None  # it is open: from now on its name does not matter
            yield from read(folder)

    @contextmanager
    def _long_reading(self) -> Iterator[None]:
        """Each has a thread for a long time: there must be some left for pods."""
        if self._long_readers >= MOST_LONG_READERS:
            raise RequestRefused(
                "refused", f"{MOST_LONG_READERS} folders are being downloaded or restored already. Try again later."
            )
        self._long_readers += 1
        try:
            yield
        finally:
            self._long_readers -= 1

    def _was_taken_back(self, retained: Retained) -> bool:
        now = self._book.retained.get(retained.volume_id)
        return now is None or now.burial.buried_at != retained.burial.buried_at


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
    """What the archive unpacks to: the last name of the path, or the volume's own."""
    return next((name for name in reversed(path.split("/")) if name not in {"", "."}), volume_id)


def _gathered(pieces: Iterator[bytes]) -> Generator[bytes]:
    """In larger pieces: thousands of small files would be thousands of turns."""
    buffer = bytearray()
    for piece in pieces:
        buffer += piece
        if len(buffer) >= PIECE_BYTES:
            yield bytes(buffer)
            buffer.clear()
    if buffer:
        yield bytes(buffer)


def _problem(problem: Problem) -> PathProblem:
    """Return a problem for the answer; of a path of megabytes, which a tenant can make, the beginning and the end."""
    path, half = os.fsencode(problem.path), LONGEST_PATH_SHOWN // 2
    shown = path if len(path) <= LONGEST_PATH_SHOWN else path[:half] + b"/.../" + path[-half:]
    return PathProblem(shown, os.fsencode(problem.sentence).decode(errors="replace"))


def _restored(volume_id: str, copied: FolderCopy, *, taken_back: bool) -> Restored:
    extra = (PathProblem(b".", CHANGED_MEANWHILE),) if taken_back else ()
    return Restored(
        name=unfinished_name(volume_id) if copied.stopped else volume_id,
        entries=copied.entries,
        bytes=copied.bytes,
        finished=not copied.stopped,
        problems=(*extra, *map(_problem, copied.problems)),
        problem_count=copied.problem_count + len(extra),
    )
