"""Containers as processes of this machine, on an event loop.

The kubelet's folder is given as a descriptor; below it `logs/<pod>/<container>/<attempt>.log` is written, and
`processes/` notes which processes are ours. What an earlier life left there is ended before anything is started.

Order of a start: volumes and the log's folder opened (in a thread: a file system may hang) → the launcher is asked →
the process is there and noted → its program runs. Of an end: the process is gone → its note goes.
A launcher that was killed took its containers along; the next start makes a new one.
"""

from __future__ import annotations

import asyncio
import errno
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from signal import SIGTERM
from typing import Final

from onenode.containers.container_process import Born, ContainerLauncher, ContainerProcess, Exited, Started, StartFailed
from onenode.containers.container_request import Command, VolumePlace
from onenode.containers.log_reader import made_log_folder, remove_log_folders, remove_older_logs
from onenode.host.host_paths import opened_host_path
from onenode.host.payload_files import HostPath, Origin
from onenode.kubelet.pods.container_runtime import ContainerRefused, Streams, WantedContainer
from orlop.host.block.loop_devices import opened_holder
from orlop.host.host_errors import HostError
from orlop.host.kernel import process_records
from orlop.host.kernel.confined_paths import DescriptorUse, Mounts, make_folder, names_in, opened_below, shown
from orlop.host.kernel.process_records import ProcessIdentity
from orlop.host.threads import Threads

LOGS: Final = "logs"
PROCESSES: Final = "processes"
_MODE: Final = 0o750


@asynccontextmanager
async def linux_container_runtime(folder: int, in_thread: Threads) -> AsyncIterator[LinuxContainerRuntime]:
    """While it is entered, containers can run; none is left afterwards."""
    await in_thread(partial(_prepare, folder))
    containers = LinuxContainerRuntime(folder, in_thread)
    try:
        yield containers
    finally:
        await containers.close()


def _prepare(folder: int) -> None:
    for name in (LOGS, PROCESSES):
        make_folder(folder, name, _MODE)
    with opened_below(folder, (PROCESSES,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as notes:
        process_records.end_all_noted(notes)


class LinuxContainerRuntime:
    def __init__(self, folder: int, in_thread: Threads) -> None:
        self._folder = folder
        self._in_thread = in_thread
        self._launcher: ContainerLauncher | None = None
        self._making_a_launcher = threading.Lock()
        self._launcher_note: ProcessIdentity | None = None
        self._running: set[_ProcessReport] = set()

    async def start(self, wanted: WantedContainer) -> LinuxContainer:
        asking = asyncio.ensure_future(self._in_thread(partial(self._asked_for, wanted)))
        try:
            process = await asyncio.shield(asking)
        except HostError as error:
            raise ContainerRefused(str(error)) from error
        except asyncio.CancelledError:
            asking.add_done_callback(self._end_unwanted)
            raise
        report = await self._begun(process)
        return LinuxContainer(report, self, wanted.request.command)

    async def end_all(self) -> None:
        for report in list(self._running):
            report.process.send_signal(SIGTERM)
        for report in list(self._running):
            await report.over.wait()

    async def remembered_pods(self) -> frozenset[str]:
        return await self._in_thread(self._pods_with_logs)

    async def forget_pod(self, pod_uid: str) -> None:
        await self._in_thread(partial(self._remove_logs, pod_uid))

    async def begin_inside(
        self, container: ContainerProcess, command: Command, streams: Streams | None
    ) -> _ProcessReport:
        try:
            launcher = self._working_launcher()
            descriptors = () if streams is None else (streams.stdin, streams.stdout, streams.stderr)
            process = launcher.run_inside(container, command, descriptors)
        except HostError as error:
            raise ContainerRefused(str(error)) from error
        return await self._begun(process)

    async def close(self) -> None:
        if self._launcher is not None:
            await self._in_thread(self._launcher.close)
            self._forget(self._launcher_note)
        for report in list(self._running):
            await report.over.wait()

    # ---- in a thread ---------------------------------------------------------------------------------------------

    def _asked_for(self, wanted: WantedContainer) -> ContainerProcess:
        with ExitStack() as held:
            logs = held.enter_context(opened_below(self._folder, (LOGS,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED))
            log = held.enter_context(made_log_folder(logs, wanted.pod_uid, wanted.name))
            remove_older_logs(log, wanted.attempt)
            places = zip(wanted.request.root.volumes, wanted.volumes, strict=True)
            volumes = [held.enter_context(self._opened(place, names)) for place, names in places]
            return self._working_launcher().start(wanted.request, log, volumes)

    def _opened(self, place: VolumePlace, names: Origin) -> AbstractContextManager[int]:
        """Permissions keep no root user from writing to a device; what holds it, and cannot write, does."""
        if isinstance(names, HostPath):
            return opened_host_path(names)
        if place.is_device and place.read_only:
            return opened_holder("/".join((shown(self._folder), *names)))
        return self._opened_itself(names)

    @contextmanager
    def _opened_itself(self, names: Sequence[str]) -> Iterator[int]:
        with opened_below(self._folder, names, DescriptorUse.HANDLE, Mounts.CROSSED) as volume:
            if stat.S_ISLNK(os.fstat(volume).st_mode):  # such a descriptor may be that of a link itself
                raise HostError(errno.ELOOP, f"The volume {'/'.join(names)} is a symbolic link; remove it.")
            yield volume

    def _pods_with_logs(self) -> frozenset[str]:
        with opened_below(self._folder, (LOGS,), DescriptorUse.FOLDER_CONTENT, Mounts.CROSSED) as logs:
            return frozenset(names_in(logs))

    def _remove_logs(self, pod_uid: str) -> None:
        with opened_below(self._folder, (LOGS,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as logs:
            remove_log_folders(logs, pod_uid)

    # ---- the launcher and the notes ------------------------------------------------------------------------------

    def _working_launcher(self) -> ContainerLauncher:
        with self._making_a_launcher:
            if self._launcher is None or not self._launcher.is_running():
                if self._launcher is not None:
                    self._launcher.close()
                    self._forget(self._launcher_note)
                self._launcher = ContainerLauncher()
                self._launcher_note = self._noted(self._launcher.pid)
            return self._launcher

    def _listened_to(self, process: ContainerProcess) -> _ProcessReport:
        report = _ProcessReport(process, self._noted, self._forget)
        self._running.add(report)
        report.when_over = lambda: self._running.discard(report)
        report.listen()
        return report

    def _end_unwanted(self, asking: asyncio.Future[ContainerProcess]) -> None:
        """Who wanted the container gave up while a thread was asking for it, and a thread cannot be stopped."""
        if not asking.cancelled() and asking.exception() is None:
            self._listened_to(asking.result()).kill()

    async def _begun(self, process: ContainerProcess) -> _ProcessReport:
        report = self._listened_to(process)
        try:
            await report.begun.wait()
        except asyncio.CancelledError:
            report.hang_up()
            report.kill()
            await report.over.wait()  # its volumes may be let go next
            raise
        if report.refusal is not None:
            await report.over.wait()
            raise ContainerRefused(report.refusal)
        return report

    def _noted(self, process: int) -> ProcessIdentity | None:
        identity = process_records.identity_of_process(process)
        if identity is not None:
            with opened_below(self._folder, (PROCESSES,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as notes:
                process_records.note(notes, identity)
        return identity

    def _forget(self, identity: ProcessIdentity | None) -> None:
        if identity is not None:
            with opened_below(self._folder, (PROCESSES,), DescriptorUse.FOLDER_HANDLE, Mounts.CROSSED) as notes:
                process_records.forget(notes, identity)


@dataclass(eq=False, slots=True)
class _ProcessReport:
    """The messages of one process so far, and those who wait for more."""

    process: ContainerProcess
    note: Callable[[int], ProcessIdentity | None]
    forget: Callable[[ProcessIdentity | None], None]
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    refusal: str | None = None
    code: int = 0
    identity: ProcessIdentity | None = None
    when_over: Callable[[], None] = lambda: None
    killed: bool = False
    terminal: int | None = None

    def listen(self) -> None:
        asyncio.get_running_loop().add_reader(self.process.fileno(), self._hear)

    def kill(self) -> None:
        self.killed = True
        self.process.kill()

    def hang_up(self) -> None:
        """Close the terminal that nobody has taken."""
        if self.terminal is not None:
            os.close(self.terminal)
            self.terminal = None

    def _hear(self) -> None:
        for news in self.process.news():
            match news:
                case Born(number):
                    self.identity = self.note(number)
                    if self.killed:
                        self.process.kill()
                case Started():
                    # Kept after the end: what a short command has printed is still to be read from it.
                    self.terminal = self.process.take_terminal()
                    if self.killed:
                        self.hang_up()
                    self.begun.set()
                case StartFailed(_, sentence):
                    self.refusal = sentence
                    self._told_the_last()
                case Exited(code):
                    self.code = code
                    self.refusal = None if self.begun.is_set() else "The container was killed before its command ran."
                    self._told_the_last()

    def _told_the_last(self) -> None:
        """Its processes may take a moment longer than its last word."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(self.process.fileno())
        if self.process.handle < 0 or self.process.is_gone():
            self._end()
        else:
            loop.add_reader(self.process.handle, self._gone)

    def _gone(self) -> None:
        asyncio.get_running_loop().remove_reader(self.process.handle)
        self._end()

    def _end(self) -> None:
        self.process.close()
        self.forget(self.identity)
        self.begun.set()
        self.over.set()
        self.when_over()


class LinuxContainer:
    """A running container, or one that has ended."""

    def __init__(self, report: _ProcessReport, containers: LinuxContainerRuntime, command: Command) -> None:
        self._report = report
        self._containers = containers
        self.command: Final = command

    async def ended(self) -> int:
        await self._report.over.wait()
        return self._report.code

    def ask_to_end(self) -> None:
        if not self._report.over.is_set():
            self._report.process.send_signal(SIGTERM)

    def kill(self) -> None:
        if not self._report.over.is_set():
            self._report.kill()

    async def run_inside(self, command: Command, streams: Streams | None) -> LinuxCommand:
        if self._report.over.is_set():
            raise ContainerRefused("The container is not running: no command can be run in it.")
        return LinuxCommand(await self._containers.begin_inside(self._report.process, command, streams))


class LinuxCommand:
    def __init__(self, report: _ProcessReport) -> None:
        self._report = report

    async def ended(self) -> int:
        await self._report.over.wait()
        return self._report.code

    def kill(self) -> None:
        if not self._report.over.is_set():
            self._report.kill()

    def take_terminal(self) -> int | None:
        terminal, self._report.terminal = self._report.terminal, None
        return terminal
