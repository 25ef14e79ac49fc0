"""Scratch folders as a part of a process: built from its flags, alive while it is entered.

Order: the working directory is locked, so that no other process changes its folders → the folders of the driver that
came before are taken over → the book is read, and what a process that died left half made is removed → the reaper runs.
Leaving: the reaper stops between two steps; what it left in the trash the next process erases.
"""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Final, Protocol, TypeVar

from orlop.driver.ephemeral.admin_socket import SocketTools, admin_socket
from orlop.driver.ephemeral.afterlife_requests import AfterlifeRequests, AfterlifeSettings, RequestTools
from orlop.driver.ephemeral.afterlife_rules import Moment, effective_headroom
from orlop.driver.ephemeral.folder_book import FolderBook, start_book
from orlop.driver.ephemeral.folder_metrics import FolderMetrics
from orlop.driver.ephemeral.folders import KUBELET_DIR_NOT_SHARED, Folders, Threads
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity, NodeRules
from orlop.driver.ephemeral.orphan_watch import OrphanWatch
from orlop.driver.ephemeral.quota_watch import QuotaWatch, why_limits_cannot_be_held
from orlop.driver.ephemeral.reaper import Purge, Reaper, ReaperSettings, ReaperTools
from orlop.driver.ephemeral.size_watch import SizeWatch
from orlop.driver.ephemeral.takeover import PEER_DRIVER, PeerStillRuns, take_over
from orlop.driver.ephemeral.volume_health import VolumeHealth
from orlop.foundation.task_group import TaskGroup
from orlop.host.errors import HostError
from orlop.host.folder_erase import erase_folder
from orlop.host.folder_sizes import FolderSizes
from orlop.host.idle_thread import idle_thread
from orlop.host.io_pressure import IoPressure
from orlop.host.linux_node_host import LinuxNodeHost
from orlop.host.node_host import FolderState
from orlop.processes.daemon import CannotGoOn, Surroundings
from orlop.processes.folder_threads import FolderThreads, folder_threads, in_threads

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.processes.ephemeral_settings import EphemeralSettings

T = TypeVar("T")
PURGE_THREADS: Final = 2
"""For a folder that is purged while no other is; a second one beside it has one."""
TOPOLOGY_SUFFIX: Final = "/node"


@dataclass(frozen=True, slots=True)
class EphemeralSide:
    node_service: EphemeralNodeService
    readiness: Mapping[str, Callable[[], Awaitable[str | None]]]
    """What pods cannot be served without. By name: None when all is well, else the reason."""
    upkeep: Mapping[str, Callable[[], Awaitable[str | None]]]
    """What somebody should know of, and pods do not notice."""


@asynccontextmanager
async def ephemeral_side(
    settings: EphemeralSettings, given: Surroundings, driver_name: str, node_id: str
) -> AsyncIterator[EphemeralSide]:
    """Raises `CannotGoOn` with the reason."""
    if os.geteuid() != 0:
        raise CannotGoOn("scratch folders are mounts, and need root: run it as root, or with --workdir= to serve none")
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(_locked(settings.workdir))
            host = LinuxNodeHost(settings.workdir, settings.kubelet_dir)
            pools = await stack.enter_async_context(folder_threads(host, given))
            book = await pools.threads(lambda: _start_book(host, settings, given, driver_name))
        except (HostError, PeerStillRuns) as error:
            raise CannotGoOn(str(error)) from None
        parts = _Parts(settings, given, host, book, pools, stack.enter_context(_purge(host, given)))
        sizes = stack.enter_context(_sizes(parts, given))
        await stack.enter_async_context(_running(parts.reaper, parts.orphans, parts.quota, sizes))
        await stack.enter_async_context(_answering_people(parts, settings, given, driver_name))
        identity = NodeIdentity(node_id, driver_name + TOPOLOGY_SUFFIX, settings.max_volumes_per_node)
        readiness = _readiness(host, pools.looks)
        yield EphemeralSide(parts.node_service(identity), readiness, {"erasing": parts.why_not_erasing})


@contextmanager
def _sizes(parts: _Parts, given: Surroundings) -> Iterator[SizeWatch]:
    workdir = parts.host.workdir
    with idle_thread("sizes") as pool:
        notes = FolderSizes(workdir.opened)
        yield SizeWatch(parts.folders, workdir, notes, in_threads(pool), given.clock, given.log)


@asynccontextmanager
async def _answering_people(
    parts: _Parts, settings: EphemeralSettings, given: Surroundings, driver_name: str
) -> AsyncIterator[None]:
    requests = AfterlifeRequests(
        parts.folders,
        parts.reaper,
        parts.host.workdir,
        parts.host.workdir,
        AfterlifeSettings(parts.headroom.share, parts.headroom.why, settings.limits.max_afterlifespan),
        RequestTools(parts.pools.readers, parts.pools.looks, given.clock, given.log),
    )
    path = settings.admin_socket or default_admin_socket(driver_name)
    async with admin_socket(path, requests, SocketTools(given.clock, given.log)):
        given.log.info("answering orlop afterlife", socket=path)
        yield


class _Parts:
    """All that works on the folders of one working directory."""

    def __init__(
        self,
        settings: EphemeralSettings,
        given: Surroundings,
        host: LinuxNodeHost,
        book: FolderBook,
        pools: FolderThreads,
        purge: Purge,
    ) -> None:
        clock, log, threads = given.clock, given.log, pools.threads
        self.host, self.pools = host, pools
        self._settings, self._clock = settings, clock
        most = settings.max_volumes_per_node
        self.folders = Folders(
            host, book, threads=threads, together=pools.together, clock=clock, log=log, max_volumes=most
        )
        tools = ReaperTools(threads, clock, given.random, log, given.metrics)
        self.headroom = _headroom(settings, given)
        interval = settings.prune_interval.seconds
        self.reaper = Reaper(self.folders, host, purge, ReaperSettings(interval, self.headroom.share), tools)
        FolderMetrics(book, self.reaper, clock, given.metrics)
        grace = settings.orphan_grace.seconds
        self.orphans = OrphanWatch(self.folders, host, grace=grace, threads=threads, clock=clock, log=log)
        self.quota = QuotaWatch(
            self.folders, host.workdir, threads=threads, clock=clock, log=log, metrics=given.metrics
        )

    async def why_not_erasing(self) -> str | None:
        return self.reaper.why_stuck

    def node_service(self, identity: NodeIdentity) -> EphemeralNodeService:
        return EphemeralNodeService(
            self.folders,
            self.host.workdir,
            identity,
            NodeRules(self.host.kubelet_dir.paths, self._settings.limits),
            looks=self.pools.looks,
            clock=self._clock,
            health=VolumeHealth(self.host, self.quota.escapes),
        )


class _RunsForEver(Protocol):
    async def run(self) -> None: ...


@asynccontextmanager
async def _running(*parts: _RunsForEver) -> AsyncIterator[None]:
    async with TaskGroup() as tasks:
        running = [tasks.start(part.run(), name=type(part).__name__) for part in parts]
        try:
            yield
        finally:
            for task in running:
                task.cancel()


def default_admin_socket(driver_name: str) -> str:
    return f"/run/orlop/{driver_name}/admin.sock"


def _start_book(host: LinuxNodeHost, settings: EphemeralSettings, given: Surroundings, driver_name: str) -> FolderBook:
    if objection := why_limits_cannot_be_held(host.workdir, settings.limits):
        raise CannotGoOn(objection)
    if driver_name == PEER_DRIVER:
        take_over(host, given.clock.now().timestamp(), settings.afterlifespan.seconds, given.log)
    book = start_book(host.workdir, Moment(given.clock.now().timestamp(), given.clock.elapsed()))
    for left in book.left_alone:
        given.log.warning("left alone in the working directory", place=left.place, why=left.why)
    given.log.info("scratch folders", live=len(book.live), retained=len(book.retained))
    return book


@dataclass(frozen=True, slots=True)
class _Headroom:
    share: Fraction
    why: str


def _headroom(settings: EphemeralSettings, given: Surroundings) -> _Headroom:
    shares = os.stat(settings.workdir).st_dev == os.stat(settings.kubelet_dir).st_dev  # noqa: PTH116 - plain paths
    share = effective_headroom(settings.headroom, shares_disk_with_kubelet=shares)
    if settings.headroom is not None:
        return _Headroom(share, "as --headroom says")
    if not shares:
        return _Headroom(share, "the default")
    why = "the folders are on kubelet's disk, and go before kubelet would evict pods"
    given.log.info(why, headroom=float(share))
    return _Headroom(share, why)


@contextmanager
def _purge(host: LinuxNodeHost, given: Surroundings) -> Iterator[Callable[[str], None]]:
    stop, pressure, alone = threading.Event(), IoPressure(given.clock), threading.Lock()

    def purge(name: str) -> None:
        trash = host.workdir.shelf(FolderState.TRASH)
        is_alone = alone.acquire(blocking=False)
        try:
            threads = PURGE_THREADS if is_alone else 1
            erasure = erase_folder(trash, name, stop, pause_seconds=pressure.pause_seconds, threads=threads)
        finally:
            if is_alone:
                alone.release()
        if not erasure.is_complete:
            why = str(erasure.left[0]) if erasure.left else "it was stopped"
            raise HostError(errno.EIO, f"The folder trash/{name} is not erased yet: {why.rstrip('.')}.")

    try:
        yield purge
    finally:
        stop.set()
        pressure.close()


@contextmanager
def _locked(workdir: str) -> Iterator[None]:
    try:
        folder = os.open(workdir, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError as error:
        raise CannotGoOn(f"the working directory {workdir} cannot be opened: {error.strerror}") from None
    try:
        _lock(folder, workdir)
        yield
    finally:
        os.close(folder)


def _lock(folder: int, workdir: str) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CannotGoOn(
            f"another process uses the working directory {workdir}. Stop it, or choose another --workdir"
        ) from None


def _readiness(host: LinuxNodeHost, looks: Threads) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
    async def workdir() -> str | None:
        return await looks(host.workdir.why_not_writable)

    async def kubelet_dir() -> str | None:
        return None if await looks(host.kubelet_dir.is_shared) else KUBELET_DIR_NOT_SHARED

    return {"workdir": workdir, "kubelet-dir": kubelet_dir}
