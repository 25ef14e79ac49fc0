"""The kubelet's server: HTTP on the unix socket `kubelet.sock`, only for root, one request for each connection.

Order: the path is claimed → connections are taken. Of each: who it is (root, or the end) → its request, within seconds
→ the answer: whole, in pieces as they come, or a session that the connection is given to → the end. A client that
vanishes ends what was begun for it. Leaving the block ends all of them.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from onenode.kubelet.node.kubelet_wiring import RunningKubelet
from onenode.kubelet.node.registered_drivers import RegisteredDrivers
from onenode.kubelet.pods.container_logs import ContainerLogs
from onenode.kubelet.server.answers import (
    Answers,
    KubeletParts,
    KubeletResponse,
    Pieces,
    UpgradeResponse,
    Whole,
    close_pieces,
)
from onenode.kubelet.server.asked_rules import NotAnswered, read_asked
from onenode.kubelet.server.node_summary import NodeSummary
from onenode.kubelet.volumes.volume_stats import volume_stats
from orlop.csi.client import CsiClient
from orlop.foundation.http_exchange import (
    LAST_CHUNK,
    LONGEST_HEAD,
    ONE_READ,
    AnswerHead,
    NotHttp,
    RequestHead,
    answer_bytes,
    chunk,
    read_request,
)
from orlop.foundation.message_socket import peer_of
from orlop.foundation.runtime import Runtime
from orlop.foundation.task_group import TaskGroup
from orlop.foundation.unix_socket import bind_root_only, claim_socket
from orlop.host.kernel.confined_paths import opened_root
from orlop.host.threads import Threads

ROOT: Final = 0
MOST_AT_ONCE: Final = 1000
REQUEST_SECONDS: Final = 10.0
AFTER_AN_ERROR_SECONDS: Final = 0.1
SWITCHING: Final = 101
WENT_WRONG: Final = Whole(500, b"Internal error: the log of the kubelet says what went wrong\n")


@asynccontextmanager
async def kubelet_server(
    path: Path, parts: KubeletParts, runtime: Runtime, *, allowed_user: int = ROOT
) -> AsyncIterator[None]:
    """Serves while it is entered; SocketInUse or SocketUnusable say what stands against it."""
    with claim_socket(path) as claim, bind_root_only(claim) as listener:
        listener.setblocking(False)
        async with TaskGroup() as tasks:
            server = _KubeletServer(listener, Answers(parts, runtime.clock), runtime, tasks, allowed_user=allowed_user)
            accepting = tasks.start(server.run(), name="the kubelet's server")
            try:
                yield
            finally:
                accepting.cancel()
                server.end_all()


class _KubeletServer:
    def __init__(
        self, listener: socket.socket, answers: Answers, runtime: Runtime, tasks: TaskGroup, *, allowed_user: int
    ) -> None:
        self._listener = listener
        self._answers = answers
        self._runtime = runtime
        self._clock = runtime.clock
        self._log = runtime.log
        self._tasks = tasks
        self._allowed_user = allowed_user
        self._connections: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                accepted, _ = await loop.sock_accept(self._listener)
            except OSError as error:
                self._log.warning("connection not accepted", error=error)
                await self._clock.sleep(AFTER_AN_ERROR_SECONDS)
                continue
            self._begin(accepted)

    def _begin(self, accepted: socket.socket) -> None:
        if len(self._connections) >= MOST_AT_ONCE or peer_of(accepted).user != self._allowed_user:
            self._log.warning("connection refused: not from root, or too many")
            accepted.close()
            return
        task = self._tasks.start(self._serve(accepted), name="a connection of the kubelet's server")
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)

    def end_all(self) -> None:
        for task in tuple(self._connections):
            task.cancel()

    async def _serve(self, accepted: socket.socket) -> None:
        accepted.setblocking(False)
        reader, writer = await asyncio.open_unix_connection(sock=accepted, limit=LONGEST_HEAD)
        exchange = _Exchange(reader, writer, self._answers, self._runtime)
        try:
            await exchange.run()
        except (ConnectionError, TimeoutError):
            writer.transport.abort()
        except Exception as error:  # noqa: BLE001 - one client's trouble is not the others'
            self._log.exception("kubelet server exchange raised an unexpected error", error)
            writer.transport.abort()  # so that nobody takes the part for the whole
        finally:
            writer.close()


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, answers: Answers, runtime: Runtime
    ) -> None:
        self._reader = reader
        self._writer = writer
        self._answers = answers
        self._clock = runtime.clock
        self._log = runtime.log

    async def run(self) -> None:
        try:
            async with self._clock.timeout(REQUEST_SECONDS):
                head = await read_request(self._reader)
        except NotHttp as error:
            await self._send(Whole(400, f"400 Bad Request: {error}\n".encode()))
            return
        if head is not None:
            await self._answer(head, await self._found(head))

    async def _found(self, head: RequestHead) -> KubeletResponse:
        try:
            asked = read_asked(head.method, head.target, self._clock.now())
            return await self._answers.to(asked, head.headers)
        except NotAnswered as refusal:
            return Whole(refusal.status, str(refusal).encode())
        except Exception as error:  # noqa: BLE001 - logged, and not sent to the client
            self._log.exception(
                "kubelet server request raised an unexpected error", error, path=head.target.partition("?")[0]
            )
            return WENT_WRONG

    async def _answer(self, head: RequestHead, answer: KubeletResponse) -> None:
        match answer:
            case Whole():
                await self._send(answer, without_body=head.method == "HEAD")
            case Pieces():
                await self._send_pieces(answer, without_body=head.method == "HEAD")
            case UpgradeResponse(headers, session):
                self._writer.write(answer_bytes(AnswerHead(SWITCHING, headers)))
                await session(self._reader, self._writer)
                await self._flush()

    async def _send(self, answer: Whole, *, without_body: bool = False) -> None:
        headers = {"content-type": answer.content_type, "content-length": str(len(answer.body)), "connection": "close"}
        self._writer.write(answer_bytes(AnswerHead(answer.status, headers)))
        if not without_body:
            self._writer.write(answer.body)
        await self._flush()

    async def _send_pieces(self, answer: Pieces, *, without_body: bool) -> None:
        headers = {"content-type": answer.content_type, "transfer-encoding": "chunked", "connection": "close"}
        self._writer.write(answer_bytes(AnswerHead(200, headers)))
        try:
            if not without_body:
                async with TaskGroup() as tasks:
                    watching = tasks.start(self._until_gone(), name="whether a reader of a log is still there")
                    await self._copy(answer)
                    watching.cancel()
        finally:
            await close_pieces(answer.source)
        await self._flush()

    async def _copy(self, answer: Pieces) -> None:
        async for piece in answer.source:
            for start in range(0, len(piece), ONE_READ):
                self._writer.write(chunk(piece[start : start + ONE_READ]))
                await self._writer.drain()
        self._writer.write(LAST_CHUNK)

    async def _until_gone(self) -> None:
        """Nothing more is expected of the client but that it goes; a log that says nothing would never notice."""
        while await self._reader.read(ONE_READ):
            pass
        raise ConnectionResetError("the client is gone")

    async def _flush(self) -> None:
        """All is sent, or the client is gone: closing would wait for that unseen."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


KUBELET_SOCKET: Final = "kubelet.sock"


@dataclass(frozen=True, slots=True)
class _ClientsOf:
    drivers: RegisteredDrivers

    def driver(self, name: str) -> CsiClient | None:
        return self.drivers[name].client if name in self.drivers else None


@asynccontextmanager
async def serve_kubelet(
    folder: Path, kubelet: RunningKubelet, node_name: str, in_thread: Threads, runtime: Runtime
) -> AsyncIterator[None]:
    """Answer for this kubelet while it is entered, on `kubelet.sock` in its folder. Raises as `kubelet_server`."""
    drivers = _ClientsOf(kubelet.node.drivers)
    with opened_root(str(folder)) as root:
        async with volume_stats(kubelet.volumes.mounted_volumes, drivers, runtime) as volumes:
            summary = NodeSummary(node_name, root, kubelet.pods, volumes, in_thread, runtime.clock)
            parts = KubeletParts(kubelet.pods, ContainerLogs(root, in_thread, runtime.clock), summary)
            async with kubelet_server(folder / KUBELET_SOCKET, parts, runtime):
                yield
