"""Find the admin socket of a node on this machine, and send it one request. Blocks.

The socket is root's. Errors are sentences for the person who asked:

    NodeError
      NodeUnreachable    nobody answers there, or stopped answering
      SeveralNodes       none was named, and there are several
      NodeRefused        the node refuses; `why` decides the exit code
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
    """Return the socket named; else the default driver's, the only one there is, that of the only `orlop up`.

    Sockets that nobody listens on are passed over, unless there is no other.
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
    there = sorted(sockets.glob(f"*/{SOCKET_NAME}")) if sockets.is_dir() else []
    found = [path for path in there if _is_listened_on(path)]
    if not found and _is_listened_on(up.node_socket):
        return up.node_socket
    # Last: these may be of drivers that somebody only tries out.
    found = found or [path for path in _sockets_beside_endpoints() if _is_listened_on(path)] or there
    if len(found) == 1 or default in found:
        return default if default in found else found[0]
    if found:
        names = ", ".join(map(str, found))
        raise SeveralNodes(f"There are several nodes on this machine: {names}. Choose one with --socket.")
    if _may_exist(up.node_socket) or _holder(up) is not None:
        return up.node_socket
    raise NodeUnreachable(
        f"There is no socket at {default}. Run this on a node where orlop runs, as root; "
        f"if it has another --adminsocket, name that with --socket or $ORLOP_NODE_SOCKET. {OF_UP}"
    )


def _sockets_beside_endpoints() -> list[Path]:
    """Return the admin sockets of drivers that run with an endpoint and a working directory of their own."""
    try:
        lines = Path(UNIX_SOCKETS).read_bytes().splitlines()
    except OSError:
        return []
    # The path is the rest of a line after seven fields, and missing for sockets without one.
    paths = {os.fsdecode(fields[7]) for line in lines if len(fields := line.split(maxsplit=7)) > 7}  # noqa: PLR2004
    return sorted(Path(path) for path in paths if path.startswith("/") and path.endswith(SUFFIX_BESIDE_ENDPOINT))


def _is_listened_on(path: Path) -> bool:
    """Return True also when that is forbidden to us: connecting then gives the better error."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as attempt:
        attempt.settimeout(CONNECT_SECONDS)
        try:
            attempt.connect(os.fspath(path))
        except OSError as error:
            return isinstance(error, PermissionError | BlockingIOError | TimeoutError)
    return True


def _may_exist(path: Path) -> bool:
    """Return True also when that is forbidden to us: connecting then gives the better error."""
    try:
        return path.exists()
    except PermissionError:
        return True


class NodeConnection:
    """One request to a node, over a connection of its own; responses come in the node's order."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection

    def send(self, request: AfterlifeRequest, descriptors: Sequence[int] = ()) -> None:
        try:
            send_frame(self._connection, MESSAGE, encode_request(request), descriptors)
        except (BrokenPipeError, ConnectionResetError):
            return  # it refused before it read the request: the refusal is its response

    def frame(self) -> Frame:
        """The next one, as it comes: bytes of a download, or a message for `message_in`."""
        try:
            return receive_frame(self._connection, LONGEST_RESPONSE)
        except TimeoutError:
            raise NodeUnreachable("The node does not answer. Is its disk in trouble? Look at its log.") from None
        except (ConnectionEnded, ConnectionError) as error:
            raise NodeUnreachable(f"The node closed the connection before its last response: {error}") from None

    def answer(self) -> AfterlifeResponse:
        return message_in(self.frame())

    def say_no_more(self) -> None:
        """Ask the node to stop; it still sends its last response."""
        with suppress(OSError):  # it ended just now
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
    """`patience` is how many seconds each answer may take; None: as long as it takes."""
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
            return f"There is no socket at {path}. Is the node's process running, and was it given this --adminsocket?"
        case errno.ECONNREFUSED:
            return f"Nobody answers on {path}: the process that made it is gone, or it is no socket. {OF_UP}"
        case errno.EACCES | errno.EPERM:
            return f"You may not connect to {path}: only root may. Try again as root."
    return f"The socket {path} cannot be reached: {error.strerror or 'the path is too long, or nobody answers'}."


def _why_up_is_silent(state: UpState, path: Path) -> str | None:
    """None: the socket is none of an `orlop up`, or its driver should be there."""
    if path != state.node_socket:
        return None
    holder = _holder(state)
    if holder is None:
        return _nothing_runs(state) if is_up_state(state) else None
    if not holder.driver:
        return None
    return (
        f"The `orlop up` in {state.folder} runs with a driver that is not ours, at {holder.driver}: what its volumes "
        "leave, only that driver can show. If it is an orlop driver too, name its --adminsocket with --socket; what "
        "pods left of our own is shown again when `orlop up` runs without --driver."
    )


def _nothing_runs(state: UpState) -> str:
    return f"Nothing runs in {state.folder}: start it with `{start_command(state)}`; what pods left is there still."


def _holder(state: UpState) -> Holder | None:
    """Return None also when that is forbidden to us: connecting then gives the better error."""
    try:
        return holder_of(state)
    except OSError:
        return None
