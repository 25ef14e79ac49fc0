"""Find the admin socket of a node on this machine, and send it one request. Blocks.

Only root can connect to the socket. The messages of the errors are sentences for the user of the command:

    NodeError
      NodeUnreachable    no process listens on the socket, or it stopped responding
      SeveralNodes       the user named none, and there are several
      NodeRefused        the node refuses the request; `why` decides the exit code
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from orlop.admin.up_state import (
    RUNNING,
    Holder,
    SeveralRun,
    UpState,
    holder_of,
    is_stopped,
    is_up_state,
    start_command,
    unnamed_state,
)
from orlop.foundation.message_socket import ConnectionEnded, Frame, receive_frame, send_frame
from orlop.records.afterlife_report import (
    LONGEST_RESPONSE,
    MESSAGE,
    AfterlifeRequest,
    AfterlifeResponse,
    MalformedMessage,
    RefusalResponse,
    Why,
    decode_response,
    encode_request,
)

SOCKETS: Final = Path("/run/orlop")
SOCKET_NAME: Final = "admin.sock"
SUFFIX_BESIDE_ENDPOINT: Final = ".admin.sock"
UNIX_SOCKETS: Final = "/proc/net/unix"
DEFAULT_DRIVER: Final = "csi.orlop.dev"
CONNECT_SECONDS: Final = 5.0
SHORT_ANSWER_SECONDS: Final = 60.0
OF_UP: Final = "For an `orlop up`, name its folder: --state DIR."


class NodeError(Exception):
    pass


class NodeUnreachable(NodeError):
    pass


class SeveralNodes(NodeError):
    pass


class NodeRefused(NodeError):
    def __init__(self, why: Why, sentence: str) -> None:
        super().__init__(sentence)
        self.why: Why = why


def find_socket(named: str | None, sockets: Path = SOCKETS) -> Path:
    """Return the socket named; else that of the default driver, the only other one, or that of the only `orlop up`.

    Sockets without a listening process are skipped, unless there is no other.
    """
    if named:
        return Path(named)
    default = sockets / DEFAULT_DRIVER / SOCKET_NAME
    if _is_listened_on(default):
        return default
    try:
        up = unnamed_state(sockets / RUNNING.name)
    except SeveralRun as error:
        raise SeveralNodes(str(error)) from None
    existing = sorted(sockets.glob(f"*/{SOCKET_NAME}")) if sockets.is_dir() else []
    candidates = [path for path in existing if _is_listened_on(path)]
    if not candidates and _is_listened_on(up.node_socket):
        return up.node_socket
    # Last, because these drivers may have been started only for a try.
    candidates = candidates or [path for path in _sockets_beside_endpoints() if _is_listened_on(path)] or existing
    if len(candidates) == 1 or default in candidates:
        return default if default in candidates else candidates[0]
    if candidates:
        names = ", ".join(map(str, candidates))
        raise SeveralNodes(f"There are several nodes on this machine: {names}. Choose one with --socket.")
    if _may_exist(up.node_socket) or _holder(up) is not None:
        return up.node_socket
    raise NodeUnreachable(
        f"There is no socket at {default}. Run this on a node where orlop runs, as root; "
        "if it has another --adminsocket, name that with --socket or $ORLOP_NODE_SOCKET. "
        + (_nothing_runs(up) if is_stopped(up) else OF_UP)
    )


def _sockets_beside_endpoints() -> list[Path]:
    """Return the admin sockets of drivers that run with an endpoint and a working directory of their own."""
    try:
        lines = Path(UNIX_SOCKETS).read_bytes().splitlines()
    except OSError:
        return []
    # The path is the rest of the line after seven fields; sockets without a path have none.
    paths = {os.fsdecode(fields[7]) for line in lines if len(fields := line.split(maxsplit=7)) > 7}  # noqa: PLR2004
    return sorted(Path(path) for path in paths if path.startswith("/") and path.endswith(SUFFIX_BESIDE_ENDPOINT))


def _is_listened_on(path: Path) -> bool:
    """Return whether a process listens on a socket. True also without permission: connecting gives a better error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(CONNECT_SECONDS)
        try:
            attempt.connect(os.fspath(path))
        except OSError as error:
            return isinstance(error, PermissionError | BlockingIOError | TimeoutError)
    return True


def _may_exist(path: Path) -> bool:
    """Return whether a path exists. True also without permission: connecting gives a better error."""
    try:
        return path.exists()
    except PermissionError:
        return True


class NodeConnection:
    """A connection for one request to a node; responses come in the node's order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, request: AfterlifeRequest, descriptors: Sequence[int] = ()) -> None:
        try:
            send_frame(self._connection, MESSAGE, encode_request(request), descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # the node refused before it read the request; its refusal is the response

    def frame(self) -> Frame:
        """Return the next frame: bytes of a download, or a message for `message_in`."""
        try:
            return receive_frame(self._connection, LONGEST_RESPONSE)
        except TimeoutError:
            raise NodeUnreachable(
                "The node does not respond. Its disk may hang: read the log of the node's process."
            ) from None
        except (ConnectionEnded, ConnectionError) as error:
            raise NodeUnreachable(f"The node closed the connection before its last response: {error}") from None

    def answer(self) -> AfterlifeResponse:
        return message_in(self.frame())

    def request_stop(self) -> None:
        """Ask the node to stop; it still sends its last response."""
        with suppress(OSError):  # the connection has ended
            self._connection.shutdown(socket.SHUT_WR)


def message_in(frame: Frame) -> AfterlifeResponse:
    try:
        answer = decode_response(frame.body)
    except MalformedMessage as error:
        raise NodeUnreachable(f"{error} Use the orlop command of the version that the node runs.") from None
    if isinstance(answer, RefusalResponse):
        raise NodeRefused(answer.why, answer.sentence)
    return answer


@contextmanager
def connected(path: Path, *, patience: float | None = SHORT_ANSWER_SECONDS) -> Iterator[NodeConnection]:
    """Connect to a node. Each response may take `patience` seconds; None: without a limit."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(CONNECT_SECONDS)
        try:
            connection.connect(os.fspath(path))
        except OSError as error:
            raise NodeUnreachable(_why_unreachable(path, error)) from None
        connection.settimeout(patience)
        yield NodeConnection(connection)


def _why_unreachable(path: Path, error: OSError) -> str:
    if error.errno in {errno.ENOENT, errno.ECONNREFUSED} and (why := _why_up_is_silent(UpState(path.parent), path)):
        return why
    match error.errno:
        case errno.ENOENT | errno.ENOTDIR:
            return f"There is no socket at {path}. Check that the node's process runs, and with this --adminsocket."
        case errno.ECONNREFUSED:
            return f"No process listens on {path}: the one that created it has ended, or it is no socket. {OF_UP}"
        case errno.EACCES | errno.EPERM:
            return f"You may not connect to {path}: only root may. Try again as root."
    reason = error.strerror or "the path is too long, or the process does not respond"
    return f"The socket {path} cannot be reached: {reason}."


def _why_up_is_silent(state: UpState, path: Path) -> str | None:
    """Return why an `orlop up` does not serve this socket; None if it is not its socket, or it should serve it."""
    if path != state.node_socket:
        return None
    holder = _holder(state)
    if holder is None:
        return _nothing_runs(state) if is_up_state(state) else None
    if not holder.driver:
        return None
    return (
        f"The `orlop up` in {state.folder} runs with another driver, at {holder.driver}: only that driver can show its "
        "volumes. If it is an orlop driver too, name its --adminsocket with --socket. The retained folders of our own "
        "driver are shown again when `orlop up` runs without --driver."
    )


def _nothing_runs(state: UpState) -> str:
    return f"Nothing runs in {state.folder}: start it with `{start_command(state)}`; retained folders are still there."


def _holder(state: UpState) -> Holder | None:
    """Return the process that holds the folder; None also without permission: connecting gives a better error."""
    try:
        return holder_of(state)
    except OSError:
        return None
