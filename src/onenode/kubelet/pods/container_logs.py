"""The output of containers, for `kubectl logs`: what is there, or what comes as long as it runs.

Read in pieces, so that nobody's log is in memory as a whole unless its last lines are asked for. Following looks at
the file again and again: cheap, only while somebody follows, and it sees every rotation. Sending it is others' work.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Final

from onenode.containers.log_reader import LogReader, is_missing, opened_log
from onenode.kubelet.pods import container_log_rules
from onenode.kubelet.pods.container_log_rules import LogOptions, NoSuchLog
from onenode.kubelet.pods.linux_container_runtime import LOGS
from orlop.foundation.clock import Clock
from orlop.host.host_errors import HostError
from orlop.host.threads import Threads

LOOK_EVERY_SECONDS: Final = 0.1


class ContainerLogs:
    """`folder` is a descriptor of the kubelet's folder."""

    def __init__(self, folder: int, in_thread: Threads, clock: Clock) -> None:
        self._folder = folder
        self._in_thread = in_thread
        self._clock = clock

    async def read(
        self, pod_uid: str, container: str, attempt: int, options: LogOptions, follow: Callable[[], bool] | None = None
    ) -> AsyncIterator[bytes]:
        """Pieces of text. `follow` says whether more may come; without it the reading ends with what is there."""
        opened = opened_log(self._folder, (LOGS, pod_uid, container), f"{attempt}.log")
        try:
            log = await self._in_thread(opened.__enter__)
        except HostError as error:
            if is_missing(error):
                raise NoSuchLog(f'the log of container "{container}" is gone') from error
            raise
        try:
            async for text in self._shown(log, options, follow):
                yield text
        finally:
            opened.__exit__(None, None, None)

    async def _shown(
        self, log: LogReader, options: LogOptions, follow: Callable[[], bool] | None
    ) -> AsyncIterator[bytes]:
        at = container_log_rules.beginning(options)
        if options.tail_lines is not None:
            begun = await self._in_thread(partial(_all_there, log))
            text, at = container_log_rules.shown(container_log_rules.tail(begun, options.tail_lines), at, options)
            if text:
                yield text
        async for piece in self._pieces(log, follow):
            text, at = container_log_rules.shown(piece, at, options)
            if text:
                yield text
            if at.is_full:
                return

    async def _pieces(self, log: LogReader, follow: Callable[[], bool] | None) -> AsyncIterator[bytes]:
        """Whether more may come is asked before the last look, so that the last words are not missed."""
        while True:
            may_come = follow is not None and follow()
            while piece := await self._in_thread(log.more):
                yield piece
            if not may_come:
                return
            await self._clock.sleep(LOOK_EVERY_SECONDS)


def _all_there(log: LogReader) -> bytes:
    pieces = []
    while piece := log.more():
        pieces.append(piece)
    return b"".join(pieces)
