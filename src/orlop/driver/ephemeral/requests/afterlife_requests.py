"""Serve the requests of `orlop afterlife`.

Lists and usage come from the index; `afterlife_reading` reads folders. `keep` and `erase` call `Folders` and the
`Reaper`, which hold the volume's key and document their order of effects. The folders of living pods are neither shown
nor changed.
"""

from __future__ import annotations

import errno
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from msgspec.structs import replace

from orlop.csi.error_codes import CsiError
from orlop.driver.ephemeral.afterlife.reaper import Reaper
from orlop.driver.ephemeral.afterlife.retention_rules import DiskSpace, Moment, pressure_factor
from orlop.driver.ephemeral.folder_index import Retained, retained_place
from orlop.driver.ephemeral.locked_folders import Folders
from orlop.driver.ephemeral.requests.admin_socket import AdminClient, RequestRefused, in_bounds
from orlop.driver.ephemeral.requests.afterlife_reading import AfterlifeReading, FolderAccess
from orlop.driver.ephemeral.requests.afterlife_report_rules import (
    FolderFacts,
    KeepFor,
    Meant,
    NotMeant,
    TooLong,
    folder_meant,
    keep_decision,
    next_to_go,
    row_of,
    usage_by_namespace,
)
from orlop.foundation.clock import Clock
from orlop.foundation.duration import Duration
from orlop.foundation.keyed_lock import KeyHeld
from orlop.foundation.structured_log import Log
from orlop.host.host_errors import HostError
from orlop.host.node_host import Workdir
from orlop.host.threads import Threads
from orlop.records.afterlife_report import (
    DownloadFolder,
    EraseFolder,
    Erasing,
    FolderResponse,
    FolderRow,
    KeepFolder,
    KeepResult,
    ListFiles,
    ListFolders,
    NextErase,
    ReadFile,
    RefusalResponse,
    RestoreFolder,
    Rows,
    ShowFolder,
    ShowUsage,
    StreamEnd,
    UsageReport,
)
from orlop.records.ephemeral_folder import Burial

ROWS_AT_ONCE: Final = 500


@dataclass(frozen=True, slots=True)
class AfterlifeSettings:
    """The admin's settings: working directory, headroom in effect and its reason, longest lifespan in seconds."""

    workdir: str
    headroom: Fraction
    headroom_why: str
    max_afterlifespan: float


class AfterlifeRequests:
    """A handler for `admin_socket`; `access` opens the folders."""

    def __init__(  # noqa: PLR0913 - its parts, each by name
        self,
        folders: Folders,
        reaper: Reaper,
        workdir: Workdir,
        access: FolderAccess,
        settings: AfterlifeSettings,
        *,
        threads: Threads,
        timed_threads: Threads,
        clock: Clock,
        log: Log,
    ) -> None:
        """Create it. `threads` read folders without a time limit; `timed_threads` return within seconds, or fail."""
        self._folders = folders
        self._book = folders.book
        self._reaper = reaper
        self._workdir = workdir
        self._settings = settings
        self._timed_threads = timed_threads
        self._clock = clock
        self._log = log
        self._reading = AfterlifeReading(folders, access, self._resolve_id, threads, clock, log)

    async def __call__(self, client: AdminClient) -> None:
        try:
            await self._answer(client)
        except RequestRefused as refusal:
            await client.answer(RefusalResponse(refusal.why, str(refusal)))
        except HostError as error:
            is_missing = error.errno == errno.ENOENT
            await client.answer(RefusalResponse("not-found" if is_missing else "refused", in_bounds(str(error))))
        except (CsiError, KeyHeld) as error:
            await client.answer(RefusalResponse("refused", _sentence(error)))

    async def _answer(self, client: AdminClient) -> None:
        match client.request:
            case ListFolders():
                await self._list(client)
            case ShowFolder(id=typed_id):
                await client.answer(FolderResponse(self._row(self._retained(typed_id), await self._factor())))
            case KeepFolder() as keep:
                client.when_client_goes = _finish_anyway
                await client.answer(await self._keep(keep))
            case EraseFolder() as erase:
                client.when_client_goes = _finish_anyway
                await client.answer(await self._erase(erase, client))
            case ShowUsage():
                await client.answer(await self._usage())
            case ListFiles() as request:
                await self._reading.list_files(request, client)
            case ReadFile() as request:
                await self._reading.read_file(request, client)
            case DownloadFolder() as request:
                await self._reading.download(request, client)
            case RestoreFolder() as request:
                await self._reading.restore(request, client)

    # ---- reports -----------------------------------------------------------------------------------------------------

    async def _list(self, client: AdminClient) -> None:
        factor, folders = await self._factor(), list(self._book.retained.values())
        for start in range(0, len(folders), ROWS_AT_ONCE):
            page, now = folders[start : start + ROWS_AT_ONCE], self._now()
            await client.answer(Rows(tuple(row_of(self._facts(retained, now), factor) for retained in page)))
            await self._clock.sleep(0)  # let calls of kubelet run between two pages, even if the client reads fast
        await client.answer(StreamEnd())

    async def _usage(self) -> UsageReport:
        room = await self._timed_threads(self._workdir.room)
        space = DiskSpace(room.total_bytes, room.free_bytes, room.total_inodes, room.free_inodes)
        factor = pressure_factor(space, self._settings.headroom)
        folders = self._book.in_afterlife(self._now())
        first = next_to_go(folders, factor)
        return UsageReport(
            namespaces=usage_by_namespace(folders),
            total_bytes=room.total_bytes,
            free_bytes=room.free_bytes,
            total_inodes=room.total_inodes,
            free_inodes=room.free_inodes,
            headroom=float(self._settings.headroom),
            headroom_why=self._settings.headroom_why,
            factor=float(factor),
            max_afterlifespan_seconds=self._settings.max_afterlifespan,
            next_erase=NextErase(self._row(self._book.retained[first[0]], factor), first[1].value) if first else None,
        )

    # ---- changes -----------------------------------------------------------------------------------------------------

    async def _keep(self, keep: KeepFolder) -> KeepResult:
        retained, longest = self._retained(keep.id), self._settings.max_afterlifespan
        age = self._book.age(retained, self._now())
        match keep_decision(age, retained.burial.lifespan_seconds, keep.seconds, longest):
            case TooLong(most):
                raise RequestRefused("refused", _too_long(retained.volume_id, most, longest))
            case KeepFor(lifespan):
                if keep.dry_run:
                    longer = Burial(retained.volume_id, retained.burial.buried_at, lifespan)
                    return KeepResult(self._row(replace(retained, burial=longer), await self._factor()), changed=True)
                if not await self._folders.keep(retained.volume_id, lifespan):
                    raise RequestRefused.gone(retained.volume_id)
                return KeepResult(self._row(self._retained(retained.volume_id), await self._factor()), changed=True)
            case _:
                return KeepResult(self._row(retained, await self._factor()), changed=False)

    async def _erase(self, erase: EraseFolder, client: AdminClient) -> Erasing:
        factor, mounted = await self._factor(), await self._timed_threads(self._workdir.mounted_folders)
        retained = self._retained(erase.id)
        if self._book.readers[retained.volume_id]:
            raise RequestRefused("refused", _being_read(retained.volume_id, self._book.readers[retained.volume_id]))
        if retained_place(retained.burial) in mounted:
            raise RequestRefused(
                "refused",
                f"The folder of {retained.volume_id} is still mounted: it can be erased only after it is unmounted.",
            )
        row = self._row(retained, factor)
        if not erase.dry_run:
            self._log.info("erase requested", volume=retained.volume_id, by_process=client.peer.process)
            await self._reaper.erase_on_request(retained.volume_id)
        return Erasing(row)

    # ---- the index ---------------------------------------------------------------------------------------------------

    def _resolve_id(self, typed_id: str) -> str:
        live = self._book.live
        unpublished = [volume_id for volume_id, record in live.items() if not record.targets]
        match folder_meant(typed_id, self._book.retained, live, unpublished):
            case Meant(volume_id):
                return volume_id
            case NotMeant(why, sentence):
                raise RequestRefused(why, sentence)

    def _retained(self, typed_id: str) -> Retained:
        return self._book.retained[self._resolve_id(typed_id)]

    def _row(self, retained: Retained, factor: Fraction) -> FolderRow:
        return row_of(self._facts(retained, self._now()), factor)

    def _facts(self, retained: Retained, now: Moment) -> FolderFacts:
        return FolderFacts(
            retained.record,
            retained.burial,
            self._book.age(retained, now),
            now.wall,
            retained.bytes_used,
            self._book.readers[retained.volume_id],
            self._reaper.trouble_with(retained.volume_id) or "",
            f"{self._settings.workdir}/{retained_place(retained.burial)}",
        )

    async def _factor(self) -> Fraction:
        room = await self._timed_threads(self._workdir.room)
        space = DiskSpace(room.total_bytes, room.free_bytes, room.total_inodes, room.free_inodes)
        return pressure_factor(space, self._settings.headroom)

    def _now(self) -> Moment:
        return Moment(self._clock.now().timestamp(), self._clock.elapsed())


def _finish_anyway() -> None:
    """Do nothing when the client disconnects: a change that has begun is finished, so that index and disk agree."""


def _too_long(volume_id: str, most: float, longest: float) -> str:
    limit = f"no folder is kept longer than {_shown(longest)} after its pod was deleted (--max-afterlifespan)"
    if most < 1:
        return f"{volume_id} cannot be kept longer: {limit}. Download or restore it."
    return (
        f"{volume_id} cannot be kept so long: {limit}, which is {_shown(most)} from now. Ask for less, or download it."
    )


def _shown(seconds: float) -> str:
    return str(Duration.of(seconds=int(seconds)))


def _being_read(volume_id: str, readers: int) -> str:
    by = "1 command is" if readers == 1 else f"{readers} commands are"
    return f"The folder of {volume_id} cannot be erased now: {by} reading it. Try again when they have ended."


def _sentence(error: CsiError | KeyHeld) -> str:
    if isinstance(error, KeyHeld):
        return f"The folder of {error.key} is locked by another operation ({error.holder}). Try again in a moment."
    return error.message
