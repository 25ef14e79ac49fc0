"""The versions of records that nodes keep on their disks: an older program must not read a newer record. Pure."""

from __future__ import annotations

from contextlib import suppress

import msgspec


class UnreadableRecord(ValueError):
    """A record that is damaged, or written by a newer version: the folder is left alone and reported."""


class _Versioned(msgspec.Struct):
    version: int | None = None


def version_of(data: bytes) -> int | None:
    """Return the version of a record, also of one whose other fields cannot be decoded; None if it has none."""
    with suppress(msgspec.MsgspecError, UnicodeDecodeError):
        return msgspec.json.decode(data, type=_Versioned).version
    return None


class NewerRecord(UnreadableRecord):
    """It was written by a newer version of Orlop, and is not damaged."""


def refuse_newer(version: int | None, newest: int) -> None:
    """Raise NewerRecord for a version above the newest that this program reads."""
    if version is not None and version > newest:
        raise NewerRecord(f"it has the format {version}, and this version of Orlop reads formats up to {newest}")
