"""The record of a scratch folder, kept in an attribute of the folder, and the name of a buried one. Pure.

While a folder is live, its name is its volume's id. When it is buried, its new name also contains the time of burial
and its lifespan, so that one rename, which is atomic, moves it into the afterlife with all that the afterlife needs.
"""

from __future__ import annotations

import re
from typing import Final

import msgspec

from orlop.records.record_format import UnreadableRecord, refuse_newer, version_of

VERSION: Final = 2
"""The newest format. Version 2 has its files in an image: an older Orlop must not mount the folder with that file."""
FIRST_VERSION: Final = 1
LONGEST_VOLUME_ID: Final = 128
_VOLUME_ID: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_BURIED_NAME: Final = re.compile(r"([0-9]{1,16})_([0-9]{1,16})_(.+)")


# Without a place in the garbage collector's lists (`gc=False`): there are ten thousand, and none can hold itself.
class Owner(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The pod that asked. `verified` where kubelet vouches for its name, and not only the pod's own spec."""

    pod_uid: str = ""
    pod_name: str = ""
    namespace: str = ""
    service_account: str = ""
    verified: bool = False


class FolderOptions(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What the pod asked for, after the admin's limits were applied; 0 bytes or inodes mean no limit."""

    lifespan_seconds: float
    size_bytes: int = 0
    inodes: int = 0
    mode: int = 0o777
    mount_options: tuple[str, ...] = ()
    read_only: bool = False
    own_lifespan: bool = True
    """False: the pod chose none, and the node's --afterlifespan at burial counts, not `lifespan_seconds`.

    Records of older versions lack this field: their lifespan counts. Older versions read that of newer records.
    """


class FolderRecord(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    volume_id: str
    owner: Owner
    options: FolderOptions
    created_at: float
    """The wall's time, in seconds since 1970."""
    targets: tuple[str, ...] = ()
    """Where it is, or is about to be, mounted."""
    project: int = 0
    """The id that its quota is counted by; 0: none."""
    volume_name: str = ""
    """What the pod's spec calls it; empty where it is unknown, as in records of older versions."""
    image: str = ""
    """The kind of the file system in its image, which holds its files; empty: they are in the folder itself."""
    version: int = FIRST_VERSION


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(FolderRecord)


def encode_record(record: FolderRecord) -> bytes:
    return _encoder.encode(record)


def decode_record(data: bytes) -> FolderRecord:
    try:
        record = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        refuse_newer(version_of(data), VERSION)
        raise UnreadableRecord(f"it is damaged: {error}") from None
    refuse_newer(record.version, VERSION)
    return record


def objection_to_volume_id(volume_id: str) -> str | None:
    """Return why an id cannot name a folder; None if it can."""
    if not volume_id:
        return "it is empty"
    if len(volume_id.encode(errors="surrogatepass")) > LONGEST_VOLUME_ID:
        return f"it has more than {LONGEST_VOLUME_ID} bytes"
    if not _VOLUME_ID.fullmatch(volume_id):
        return "allowed are letters, digits, '.', '_' and '-', with a letter or digit at the beginning"
    return None


# ---- the name of a buried folder -------------------------------------------------------------------------------------


class Burial(msgspec.Struct, frozen=True, gc=False):
    """When a folder was buried (the wall's time) and for how long it is kept, to the millisecond."""

    volume_id: str
    buried_at: float
    lifespan_seconds: float

    @property
    def folder_name(self) -> str:
        return f"{_milliseconds(self.buried_at)}_{_milliseconds(self.lifespan_seconds)}_{self.volume_id}"


def burial_of(folder_name: str) -> Burial | None:
    """Return the burial in the name of a retained folder; None if this driver did not write the name."""
    parts = _BURIED_NAME.fullmatch(folder_name)
    if parts is None or objection_to_volume_id(parts[3]):
        return None
    return Burial(parts[3], int(parts[1]) / 1000, int(parts[2]) / 1000)


MOST_MILLISECONDS: Final = 10**16 - 1


def _milliseconds(seconds: float) -> int:
    return min(max(0, round(seconds * 1000)), MOST_MILLISECONDS)
