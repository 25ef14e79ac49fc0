"""Wiring of the volumes on drives of a node: builds every part from the flags, and runs them inside a context.

Order: open kubelet's folder → watch the drives, which fills the table → read the volumes of each drive when it is
opened. At the end: stop watching → wait for calls under way → close the drives, whose mounts stay: pods use them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from orlop.driver.combined_node_service import CombinedNodeService
from orlop.driver.ephemeral.node_service import EphemeralNodeService, NodeIdentity
from orlop.driver.kubelet_calls import KUBELET_DIR_NOT_SHARED
from orlop.driver.persistent.locked_volumes import LockedVolumes
from orlop.driver.persistent.upkeep.node_drives import NodeDrives
from orlop.driver.persistent.volume_condition import VolumeConditions
from orlop.driver.persistent.volume_node_service import VolumeNodeService
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.host.block import image_devices
from orlop.host.block.image_formats import ImageFormatter
from orlop.host.drive_host import DriveRoot
from orlop.host.drives.linux_drive_host import LinuxDriveHost
from orlop.host.drives.linux_drive_volumes import LinuxDriveVolumes
from orlop.host.host_errors import HostError
from orlop.host.mounts.linux_kubelet_dir import LinuxKubeletDir
from orlop.host.threads import NodeThreads, node_threads
from orlop.processes.daemon import CannotGoOn
from orlop.records.volume_context import TOPOLOGY_NODE

if TYPE_CHECKING:
    from orlop.processes.drive_settings import DriveSettings

LONGEST_OPENING_SECONDS: Final = 60.0
"""For so long after a start, an unknown volume may be on a drive that is not open yet."""
DISK_OF_DRIVES: Final = "The disk of a drive"


@dataclass(frozen=True, slots=True)
class PersistentServices:
    """The drives of a node and the service of their volumes, for the CSI server and the reports."""

    node_service: VolumeNodeService
    drives: NodeDrives
    readiness: Mapping[str, Callable[[], Awaitable[str | None]]]
    """Checks that must pass to serve pods, by name. Each returns None if all is well, else the reason."""


@asynccontextmanager
async def serving_persistent(
    settings: DriveSettings, kubelet_path: str, others: tuple[str, ...], runtime: Runtime, node_name: str
) -> AsyncIterator[PersistentServices]:
    """Serve volumes on drives inside this context. `others` are folders in which no drive may be.

    Raises `CannotGoOn` with the reason.
    """
    settings.refuse_without_root()
    async with AsyncExitStack() as stack:
        try:
            kubelet_dir = LinuxKubeletDir(kubelet_path)
            host = LinuxDriveHost(
                settings.folder_root, settings.drives_dir, settings.device_limits, (*others, kubelet_path)
            )
            closing = ExitStack()
            closing.callback(kubelet_dir.close)
            pools = await stack.enter_async_context(
                node_threads(closing.close, runtime.clock, runtime.log, DISK_OF_DRIVES)
            )
            await pools.upkeep(host.prepare)
        except HostError as error:
            raise CannotGoOn(str(error)) from None
        drives = _node_drives(host, (kubelet_dir, kubelet_path), pools, runtime, node_name)
        # Closed when all threads have ended, before kubelet's folder.
        closing.callback(drives.table.close)
        drives.register_metrics(runtime)
        volumes = _volumes(settings, drives, kubelet_dir, pools, runtime)
        await stack.enter_async_context(drives.running())
        await stack.enter_async_context(_freeing_project_numbers(volumes))
        yield _services(drives, volumes, kubelet_dir, pools)


@asynccontextmanager
async def _freeing_project_numbers(volumes: LockedVolumes) -> AsyncIterator[None]:
    async with TaskGroup() as tasks:
        upkeep = tasks.start(volumes.run(), name="project numbers of volumes")
        try:
            yield
        finally:
            upkeep.cancel()


def _node_drives(
    host: LinuxDriveHost, kubelet: tuple[LinuxKubeletDir, str], pools: NodeThreads, runtime: Runtime, node_name: str
) -> NodeDrives:
    """Return the drives of this node. `kubelet` is kubelet's folder, opened, and its path as it was configured."""
    (kubelet_dir, kubelet_path), formatter = kubelet, ImageFormatter()

    def volumes_of(root: DriveRoot) -> LinuxDriveVolumes:
        return LinuxDriveVolumes(root.root, kubelet_dir, formatter, runtime.clock)

    return NodeDrives(
        host, volumes_of, node_name=node_name, kubelet_dir=kubelet_path, threads=pools.own, runtime=runtime
    )


def combined_node_service(
    scratch: EphemeralNodeService | None, volumes: VolumeNodeService, node_id: str, max_volumes: int
) -> CombinedNodeService:
    return CombinedNodeService(scratch, volumes, NodeIdentity(node_id, TOPOLOGY_NODE, max_volumes).info)


def _volumes(
    settings: DriveSettings, drives: NodeDrives, kubelet_dir: LinuxKubeletDir, pools: NodeThreads, runtime: Runtime
) -> LockedVolumes:
    table, watch = drives.table, drives.watch
    opening = runtime.clock.deadline(LONGEST_OPENING_SECONDS)

    def is_opening() -> bool:
        is_complete = watch.survey is not None and watch.drives.sightings.keys() <= table.standings().keys()
        return not is_complete and not opening.passed()

    def detach_lost(volume_id: str) -> None:
        for folder in (settings.drives_dir, settings.folder_root):
            image_devices.detach_lost(folder, f"/volumes/{volume_id}/image")

    def call_failed(*failure: str) -> None:
        drives.call_failed(*failure)  # the reports replace it when they begin

    return LockedVolumes(
        table,
        drives.index,
        kubelet_dir,
        batched=pools.batched,
        threads=pools.upkeep,
        clock=runtime.clock,
        log=runtime.log,
        drive_failed=watch.note_error,
        is_opening=is_opening,
        detach_lost=detach_lost,
        call_failed=call_failed,
    )


def _services(
    drives: NodeDrives, volumes: LockedVolumes, kubelet_dir: LinuxKubeletDir, pools: NodeThreads
) -> PersistentServices:
    conditions = VolumeConditions(drives.table, drives.index, kubelet_dir, timed_threads=pools.timed)
    node_service = VolumeNodeService(volumes, drives.table, conditions, kubelet_dir.paths, timed_threads=pools.timed)

    async def is_shared() -> str | None:
        return None if await pools.timed(kubelet_dir.is_shared) else KUBELET_DIR_NOT_SHARED

    return PersistentServices(node_service, drives, {"drives-kubelet-dir": is_shared})
