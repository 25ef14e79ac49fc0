"""Requests to a node about retained folders, and its responses. Pure.

A connection carries one request and its responses, each a frame of JSON. `Rows`, `Files` and `Progress` may come
several times; one `FinalResponse` ends the connection. A download sends frames of bytes before it. Paths and names are
bytes, since they need not be text. Times are also sent as seconds from now, so that the client needs no clock.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

VERSION: Final = 1
LONGEST_REQUEST: Final = 64 * 1024
LONGEST_RESPONSE: Final = 64 * 1024 * 1024
"""Five hundred folders whose tenants made their records as long as attributes can be: 64 KiB each."""
LONGEST_PATH_SHOWN: Final = 4096
MESSAGE: Final = ord("J")
BYTES: Final = ord("D")
"""The kinds of frames."""

Why = Literal["not-found", "wrong-use", "refused"]


class MalformedMessage(ValueError):
    """A message is not a request or response of this version; the text says why."""


# ---- requests --------------------------------------------------------------------------------------------------------


class ListFolders(msgspec.Struct, frozen=True, tag_field="ask", tag="list"):
    pass


class ShowFolder(msgspec.Struct, frozen=True, tag_field="ask", tag="show"):
    id: str


class ListFiles(msgspec.Struct, frozen=True, tag_field="ask", tag="ls"):
    id: str
    path: bytes = b""


class ReadFile(msgspec.Struct, frozen=True, tag_field="ask", tag="cat"):
    """The response carries a descriptor of the file. The folder is not erased before the connection ends."""

    id: str
    path: bytes


class DownloadFolder(msgspec.Struct, frozen=True, tag_field="ask", tag="download"):
    id: str
    path: bytes = b""


class KeepFolder(msgspec.Struct, frozen=True, tag_field="ask", tag="keep"):
    id: str
    seconds: float
    dry_run: bool = False


class RestoreFolder(msgspec.Struct, frozen=True, tag_field="ask", tag="restore"):
    """The request carries a descriptor of the folder in which the copy is created."""

    id: str
    dry_run: bool = False


class EraseFolder(msgspec.Struct, frozen=True, tag_field="ask", tag="erase"):
    id: str
    dry_run: bool = False


class ShowUsage(msgspec.Struct, frozen=True, tag_field="ask", tag="usage"):
    pass


AfterlifeRequest = (
    ListFolders
    | ShowFolder
    | ListFiles
    | ReadFile
    | DownloadFolder
    | KeepFolder
    | RestoreFolder
    | EraseFolder
    | ShowUsage
)


class RequestEnvelope(msgspec.Struct, frozen=True):
    """A request with the version of its sender. The name `question` is on the wire and stays."""

    question: AfterlifeRequest
    version: int = VERSION


# ---- responses -------------------------------------------------------------------------------------------------------


class FolderRow(msgspec.Struct, frozen=True, omit_defaults=True):
    """One folder in its afterlife."""

    volume_id: str
    pod: str
    namespace: str
    deleted_at: float
    """The wall's time, in seconds since 1970."""
    age_seconds: float
    lifespan_seconds: float
    erased_in_seconds: float
    """As the disk is now; 0 where its time is over."""
    erased_at: float = 0.0
    """The same by the wall's time."""
    bytes_used: int | None = None
    """None: not measured yet."""
    pod_uid: str = ""
    service_account: str = ""
    verified: bool = False
    created_at: float = 0.0
    size_limit: int = 0
    inode_limit: int = 0
    mode: int = 0
    mount_options: tuple[str, ...] = ()
    readers: int = 0
    """How many read it right now."""
    trouble: str = ""
    """Why it is still there though its time is over."""
    volume_name: str = ""
    """What the pod's spec called it; empty where nobody knows."""
    path: str = ""
    """Where the folder is on the node; empty from nodes of older versions."""


class Rows(msgspec.Struct, frozen=True, tag_field="answer", tag="rows"):
    rows: tuple[FolderRow, ...]


class FolderResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="folder"):
    row: FolderRow


class FileRow(msgspec.Struct, frozen=True, omit_defaults=True):
    name: bytes
    kind: str
    mode: int
    uid: int
    gid: int
    size: int
    modified_ns: int
    link: bytes | None = None


class Files(msgspec.Struct, frozen=True, tag_field="answer", tag="files"):
    files: tuple[FileRow, ...]


class FileOpened(msgspec.Struct, frozen=True, tag_field="answer", tag="opened"):
    size: int


class Progress(msgspec.Struct, frozen=True, tag_field="answer", tag="progress"):
    entries: int
    bytes: int
    expected_bytes: int | None = None


class PathProblem(msgspec.Struct, frozen=True):
    path: bytes
    sentence: str


class StreamEnd(msgspec.Struct, frozen=True, tag_field="answer", tag="done"):
    """The end of a list or a download, with what was left out of it; of many problems, the first ones."""

    # On the wire they have the names of the first version.
    problems: tuple[PathProblem, ...] = msgspec.field(default=(), name="remarks")
    problem_count: int = msgspec.field(default=0, name="remark_count")


class KeepResult(msgspec.Struct, frozen=True, tag_field="answer", tag="kept"):
    """The folder as it is (or would be) now; not changed where it is kept as long already."""

    row: FolderRow
    changed: bool


class Restored(msgspec.Struct, frozen=True, tag_field="answer", tag="restored"):
    """`name` is the new folder's; while it is unfinished, that of what is left of it."""

    name: str
    entries: int = 0
    bytes: int = 0
    finished: bool = True
    # On the wire they have the names of the first version.
    problems: tuple[PathProblem, ...] = msgspec.field(default=(), name="remarks")
    problem_count: int = msgspec.field(default=0, name="remark_count")


class Erasing(msgspec.Struct, frozen=True, tag_field="answer", tag="erasing"):
    """It cannot be had back; its room comes back while it is purged."""

    row: FolderRow


class NamespaceUsage(msgspec.Struct, frozen=True):
    namespace: str
    folders: int
    bytes: int
    unmeasured: int
    """Folders whose size is not in `bytes` yet."""


class NextErase(msgspec.Struct, frozen=True):
    row: FolderRow
    reason: str


class UsageReport(msgspec.Struct, frozen=True, tag_field="answer", tag="usage"):
    namespaces: tuple[NamespaceUsage, ...]
    total_bytes: int
    free_bytes: int
    total_inodes: int
    free_inodes: int
    headroom: float
    headroom_why: str
    factor: float
    max_afterlifespan_seconds: float
    next_erase: NextErase | None = None


class RefusalResponse(msgspec.Struct, frozen=True, tag_field="answer", tag="refused"):
    why: Why
    sentence: str


FinalResponse = (
    FolderResponse | FileOpened | StreamEnd | KeepResult | Restored | Erasing | UsageReport | RefusalResponse
)
AfterlifeResponse = Rows | Files | Progress | FinalResponse

_encoder: Final = msgspec.json.Encoder()
_requests: Final = msgspec.json.Decoder(RequestEnvelope)
_responses: Final[msgspec.json.Decoder[AfterlifeResponse]] = msgspec.json.Decoder(AfterlifeResponse)


class _Versioned(msgspec.Struct):
    version: int = 0


def encode_request(request: AfterlifeRequest) -> bytes:
    return _encoder.encode(RequestEnvelope(request))


def decode_request(data: bytes) -> AfterlifeRequest:
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != VERSION:
            raise MalformedMessage(
                f"The request is of version {version}, and this node answers version {VERSION}. "
                "Use the orlop command of the version that the node runs."
            )
        return _requests.decode(data).question
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"The request cannot be understood: {error}.") from None


def encode_response(response: AfterlifeResponse) -> bytes:
    return _encoder.encode(response)


def decode_response(data: bytes) -> AfterlifeResponse:
    try:
        return _responses.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise MalformedMessage(f"The node's response cannot be understood: {error}.") from None
