"""Wiring of the scratch folders of a node: builds every part from the flags, and runs them inside a context.

Order: lock the working directory, so that no other process changes its folders → take over the folders of another
driver → read the index, and remove folders that an earlier process was creating when it died → run the reaper. At the
end the reaper stops between two steps; the next process erases the remaining trash.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

from orlop.driver.ephemeral.afterlife.reaper import Reaper, ReaperSettings, register_folder_metrics
from orlop.driver.ephemeral.afterlife.retention_rules import Moment, effective_headroom
from orlop.driver.ephemeral.afterlife.trash_purge import Purge
from orlop.driver.ephemeral.folder_index import FolderIndex, start_index
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity, NodeRules
from orlop.driver.ephemeral.requests.admin_socket import admin_socket
from orlop.driver.ephemeral.requests.afterlife_requests import AfterlifeRequests, AfterlifeSettings
from orlop.driver.ephemeral.upkeep.orphan_watch import OrphanWatch
from orlop.driver.ephemeral.upkeep.quota_watch import QuotaWatch, why_limits_cannot_be_held
from orlop.driver.ephemeral.upkeep.size_watch import SizeWatch
from orlop.driver.ephemeral.upkeep.takeover import PEER_DRIVER, PeerStillRuns, take_over
from orlop.driver.ephemeral.upkeep.volume_health import VolumeHealth
from orlop.driver.kubelet_calls import KUBELET_DIR_NOT_SHARED
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.erase.erase_folder import TrashEraser
from orlop.host.folders.folder_records import FolderSizes
from orlop.host.host_errors import HostError
from orlop.host.kernel.idle_thread import idle_thread
from orlop.host.linux_node_host import LinuxNodeHost, locked_workdir
from orlop.host.node_host import FolderState
from orlop.host.threads import NodeThreads, Threads, node_threads, threads_of
from orlop.processes.daemon import CannotGoOn
from orlop.records.volume_context import TOPOLOGY_NODE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from orlop.processes.csi_wiring import EphemeralSettings


@dataclass(frozen=True, slots=True)
class EphemeralServices:
    node_service: EphemeralNodeService
    readiness: Mapping[str, Callable[[], Awaitable[str | None]]]
    """Checks that must pass to serve pods, by name. Each returns None if all is well, else the reason."""
    upkeep: Mapping[str, Callable[[], Awaitable[str | None]]]
    """Checks for admins, of problems that do not affect pods yet."""


@asynccontextmanager
async def serving_ephemeral(
    settings: EphemeralSettings, runtime: Runtime, driver_name: str, node_id: str
) -> AsyncIterator[EphemeralServices]:
    """Serve scratch folders inside this context. Raises `CannotGoOn` with the reason."""
    settings.refuse_without_root()
    async with AsyncExitStack() as stack:
        try:
            stack.enter_context(locked_workdir(settings.workdir))
            host = LinuxNodeHost(settings.workdir, settings.kubelet_dir)
            pools = await stack.enter_async_context(node_threads(host.close, runtime.clock, runtime.log))
            book = await pools.upkeep(lambda: _start_index(host, settings, runtime, driver_name))
        except (HostError, PeerStillRuns) as error:
            raise CannotGoOn(str(error)) from None
        eraser = stack.enter_context(TrashEraser(host.workdir.shelf(FolderState.TRASH), runtime.clock))
        parts = _Parts(settings, runtime, host, book, pools, eraser.erase)
        sizes = stack.enter_context(_sizes(parts, runtime))
        await stack.enter_async_context(_running(parts.reaper, parts.orphans, parts.quota, sizes))
        await stack.enter_async_context(_serving_operators(parts, settings, runtime, driver_name))
        identity = NodeIdentity(node_id, TOPOLOGY_NODE, settings.max_volumes_per_node)
        readiness = _readiness(host, pools.timed)
        yield EphemeralServices(parts.node_service(identity), readiness, {"erasing": parts.why_not_erasing})


@contextmanager
def _sizes(parts: _Parts, runtime: Runtime) -> Iterator[SizeWatch]:
    workdir = parts.host.workdir
    with idle_thread("sizes") as pool:
        notes = FolderSizes(workdir.opened)
        yield SizeWatch(parts.folders, workdir, notes, threads_of(pool), runtime.clock, runtime.log)


@asynccontextmanager
async def _serving_operators(
    parts: _Parts, settings: EphemeralSettings, runtime: Runtime, driver_name: str
) -> AsyncIterator[None]:
    requests = AfterlifeRequests(
        parts.folders,
        parts.reaper,
        parts.host.workdir,
        parts.host.workdir,
        AfterlifeSettings(
            settings.workdir, parts.headroom.share, parts.headroom.why, settings.limits.max_afterlifespan
        ),
        threads=parts.pools.readers,
        timed_threads=parts.pools.timed,
        clock=runtime.clock,
        log=runtime.log,
    )
    path = settings.admin_socket or default_admin_socket(driver_name)
    async with admin_socket(path, requests, clock=runtime.clock, log=runtime.log):
        runtime.log.info("answering orlop afterlife", socket=path)
        yield


class _Parts:
    """The components that work on the folders of one working directory."""

    def __init__(
        self,
        settings: EphemeralSettings,
        runtime: Runtime,
        host: LinuxNodeHost,
        book: FolderIndex,
        pools: NodeThreads,
        purge: Purge,
    ) -> None:
        clock, log, threads = runtime.clock, runtime.log, pools.upkeep
        self.host, self.pools = host, pools
        self._settings, self._clock = settings, clock
        most = settings.max_volumes_per_node
        self.folders = Folders(
            host,
            book,
            threads=threads,
            batched=pools.batched,
            clock=clock,
            log=log,
            limits=settings.limits,
            max_volumes=most,
        )
        self.headroom = _headroom(settings, runtime)
        interval = settings.prune_interval.seconds
        reaper_settings = ReaperSettings(interval, self.headroom.share)
        self.reaper = Reaper(self.folders, host, purge, reaper_settings, runtime, threads=threads)
        register_folder_metrics(book, self.reaper, runtime)
        grace = settings.orphan_grace.seconds
        self.orphans = OrphanWatch(self.folders, host, grace=grace, threads=threads, clock=clock, log=log)
        self.quota = QuotaWatch(
            self.folders, host.workdir, threads=threads, clock=clock, log=log, metrics=runtime.metrics
        )

    async def why_not_erasing(self) -> str | None:
        return self.reaper.why_stuck

    def node_service(self, identity: NodeIdentity) -> EphemeralNodeService:
        return EphemeralNodeService(
            self.folders,
            self.host,
            identity,
            NodeRules(self.host.kubelet_dir.paths, self._settings.limits),
            timed_threads=self.pools.timed,
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


def _start_index(host: LinuxNodeHost, settings: EphemeralSettings, runtime: Runtime, driver_name: str) -> FolderIndex:
    if objection := why_limits_cannot_be_held(host.workdir, settings.limits):
        raise CannotGoOn(objection)
    if driver_name == PEER_DRIVER:
        take_over(host, runtime.clock.now().timestamp(), settings.afterlifespan.seconds, runtime.log)
    index = start_index(host.workdir, Moment(runtime.clock.now().timestamp(), runtime.clock.elapsed()))
    for left in index.left_alone:
        runtime.log.warning("left alone in the working directory", place=left.place, why=left.why)
    runtime.log.info("scratch folders", live=len(index.live), retained=len(index.retained))
    return index


@dataclass(frozen=True, slots=True)
class _Headroom:
    share: Fraction
    why: str


def _headroom(settings: EphemeralSettings, runtime: Runtime) -> _Headroom:
    shares = os.stat(settings.workdir).st_dev == os.stat(settings.kubelet_dir).st_dev  # noqa: PTH116 - plain paths
    share = effective_headroom(settings.headroom, shares_disk_with_kubelet=shares)
    if settings.headroom is not None:
        return _Headroom(share, "set by --headroom")
    if not shares:
        return _Headroom(share, "the default")
    runtime.log.info("folders share kubelet's disk; headroom raised", headroom=float(share))
    return _Headroom(share, "the folders are on kubelet's disk, and are erased before kubelet would evict pods")


def _readiness(host: LinuxNodeHost, timed_threads: Threads) -> Mapping[str, Callable[[], Awaitable[str | None]]]:
    async def workdir() -> str | None:
        return await timed_threads(host.workdir.why_not_writable)

    async def kubelet_dir() -> str | None:
        return None if await timed_threads(host.kubelet_dir.is_shared) else KUBELET_DIR_NOT_SHARED

    return {"workdir": workdir, "kubelet-dir": kubelet_dir}
