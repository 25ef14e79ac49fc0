"""What a disk is recognized by when it comes back: in another slot, under another name, after a restart.

A device: its World Wide Name, else its serial number; a partition: that of its disk and its place on it. A loop device:
its file. A file system: its UUID. Where none of them is known, the kernel's sequence number identifies a disk until the
machine restarts; a folder of such a file system, by the kernel's number of the file system and its inode.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path
from typing import Final

from orlop.host.block.block_devices import opened_device
from orlop.host.block.device_rules import BlockDevice
from orlop.host.block.disk_signatures import read_content
from orlop.host.host_errors import HostError
from orlop.host.static_disks.disk_entries import DEVICE_SESSION, FOLDER_SESSION

FILE_SYSTEM_UUID: Final = 0x80111500
"""FS_IOC_GETFSUUID, of Linux 6.9: struct fsuuid2, the length and sixteen bytes."""
_UUID_BYTES: Final = 16
_CLASS: Final = "/sys/class/block"
_LONGEST: Final = 253


def device_identity(device: BlockDevice, disk: BlockDevice | None) -> str:
    """Return the identity of a device; `disk` is the whole disk of a partition."""
    if not device.partition_of:
        return _whole(device)
    base = _whole(disk) if disk is not None else ""
    number, start = (_number(device.name, field) for field in ("partition", "start"))
    return f"{base}-part{number}@{start}"[:_LONGEST] if base and number else ""


def device_session(device: BlockDevice, boot: str) -> str:
    """Return what the device is recognized by until the machine restarts."""
    return f"{DEVICE_SESSION}:{boot}:{device.disk_sequence}:{device.major_minor}" if device.disk_sequence else ""


def file_system_uuid(folder: int, device: BlockDevice | None) -> str:
    """Return the UUID of the file system of an open folder, which is on this device; empty if it has none."""
    try:
        answer = fcntl.ioctl(folder, FILE_SYSTEM_UUID, bytes(1 + _UUID_BYTES))
    except OSError:  # an older kernel, or a file system without one
        return _uuid_on(device) if device is not None else ""
    length = min(answer[0], _UUID_BYTES)
    return answer[1 : 1 + length].hex() if any(answer[1 : 1 + length]) else ""


def file_system_identity(uuid: str, folder: int, path: str) -> str:
    """Return the identity of a folder of a file system: its inode identifies it there."""
    if not uuid:
        return ""
    return f"fs:{uuid}" if path == "/" else f"fs:{uuid}:{os.fstat(folder).st_ino}"


def folder_session(folder: int, boot: str) -> str:
    """Return what a folder of a file system without a UUID is recognized by until the machine restarts.

    The id of its mount would not do: it differs in each mount namespace, and a restarted worker has a new namespace.
    """
    status = os.fstat(folder)
    return f"{FOLDER_SESSION}:{boot}:{status.st_dev}:{status.st_ino}" if boot else ""


def _uuid_on(device: BlockDevice) -> str:
    try:
        with opened_device(device, os.O_RDONLY) as opened:
            signature = read_content(opened, device.bytes).file_system
    except HostError:
        return ""
    return signature.uuid.replace("-", "") if signature is not None else ""


def _whole(device: BlockDevice) -> str:
    if device.wwn:
        return f"wwn:{device.wwn}"[:_LONGEST]
    if device.serial:
        return f"serial:{device.model}:{device.serial}"[:_LONGEST]
    if device.mapper:
        return f"mapper:{device.mapper}"[:_LONGEST]
    # Not the path: an identity goes into objects that others read.
    return f"file:{hashlib.sha256(device.backing_file.encode()).hexdigest()[:32]}" if device.backing_file else ""


def _number(name: str, field: str) -> str:
    try:
        return Path(f"{_CLASS}/{name}/{field}").read_text().strip()
    except OSError:
        return ""
