"""The system calls for which Python has no function.

Each function raises a plain OSError with the kernel's errno; the calling module writes the sentence for people. No
other module has numbers of system calls, except the seccomp filter of containers. Interrupted calls (EINTR) are
repeated.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

# openat2
NO_MOUNT_CROSSING: Final = 0x01
NO_MAGIC_LINKS: Final = 0x02
NO_SYMLINKS: Final = 0x04
BENEATH: Final = 0x08
IN_ROOT: Final = 0x10

# open_tree, move_mount, mount_setattr
AT_EMPTY_PATH: Final = 0x1000
AT_RECURSIVE: Final = 0x8000
TREE_CLONE: Final = 0x1
MOVE_FROM_DESCRIPTOR: Final = 0x04
MOVE_TO_DESCRIPTOR: Final = 0x40
PROPAGATION_PRIVATE: Final = 1 << 18
PROPAGATION_SHARED: Final = 1 << 20

# fsconfig
_SET_FLAG: Final = 0
_SET_STRING: Final = 1
_CREATE: Final = 6
_CLOSED_AT_EXEC: Final = 1

# unshare, setns
NEW_MOUNTS: Final = 0x0002_0000
NEW_HOST_NAME: Final = 0x0400_0000
NEW_IPC: Final = 0x0800_0000
NEW_PROCESSES: Final = 0x2000_0000

# prctl
DIE_WITH_PARENT: Final = 1
SET_DUMPABLE: Final = 4
_SET_SECCOMP: Final = 22
_BY_FILTER: Final = 2
DROP_FROM_BOUNDING_SET: Final = 24
NO_NEW_PRIVILEGES: Final = 38

# capget, capset
_CAPABILITY_VERSION: Final = 0x2008_0522
_HALVES: Final = (0, 32)

# close_range
LAST_DESCRIPTOR: Final = 0xFFFF_FFFF

# umount2
UNMOUNT_LAZILY: Final = 2
UNMOUNT_NO_FOLLOW: Final = 8

# renameat2
RENAME_NO_REPLACE: Final = 1

# statx
STATX_IDENTITY: Final = 0x100  # the inode number
STATX_MOUNT_ID: Final = 0x1000
AT_SYMLINK_NO_FOLLOW: Final = 0x100
AT_NO_AUTOMOUNT: Final = 0x800
STATX_DO_NOT_SYNC: Final = 0x4000
STATX_IS_MOUNT_ROOT: Final = 0x2000

# ioprio_set
IO_PRIORITY_OF_A_THREAD: Final = 1
IO_CLASS_IDLE: Final = 3 << 13

# inotify
WATCH_CREATED: Final = 0x100
WATCH_DELETED: Final = 0x200
WATCH_MOVED_IN: Final = 0x80
WATCH_OVERFLOWED: Final = 0x4000
WATCH_ENDED: Final = 0x8000
WATCH_FOLDERS_ONLY: Final = 0x0100_0000

# From 424 on the numbers are the same on every architecture; before that x86-64 has its own.
_OLD_NAMES: Final = (
    *("renameat2", "statx", "ioprio_set", "getdents64", "syncfs"),
    *("pivot_root", "unshare", "setns", "prctl", "capget", "capset"),
)
_OLD_NUMBERS: Final = dict(
    zip(
        _OLD_NAMES,
        {"x86_64": (316, 332, 251, 217, 306, 155, 272, 308, 157, 125, 126)}.get(
            os.uname().machine, (276, 291, 30, 61, 267, 41, 97, 268, 167, 90, 91)
        ),
        strict=True,
    )
)
_FSOPEN, _FSCONFIG, _FSMOUNT = 430, 431, 432
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_CLOSE_RANGE = 436
_QUOTACTL_FD, _FILE_GETATTR, _FILE_SETATTR = 443, 468, 469
_RENAMEAT2, _STATX = _OLD_NUMBERS["renameat2"], _OLD_NUMBERS["statx"]
_IOPRIO_SET, _GETDENTS64 = _OLD_NUMBERS["ioprio_set"], _OLD_NUMBERS["getdents64"]
_SYNCFS = _OLD_NUMBERS["syncfs"]

_OPEN_HOW: Final = struct.Struct("=QQQ")  # flags, mode, resolve
_MOUNT_ATTRIBUTES: Final = struct.Struct("=QQQQ")  # set, clear, propagation, user namespace
_FILE_ATTRIBUTES: Final = struct.Struct("=QIIII")  # flags, extent size, extents, project, extent size when copied
_CAPABILITY_HEADER: Final = struct.Struct("=Ii")  # version, process
_CAPABILITIES: Final = struct.Struct("=6I")  # effective, permitted, inheritable; once more for those from 32 on
_FILTER_INSTRUCTION_SIZE: Final = 8
_STATX_SIZE: Final = 256
_STATX_FIELDS: Final = struct.Struct("=8xQ16xQ96xIIQ")  # attributes, inode, major and minor of the device, mount id
_TRIES_WHEN_INTERRUPTED: Final = 100

_libc: Final = ctypes.CDLL(None, use_errno=True)
_Text, _Bits, _Size = ctypes.c_char_p, ctypes.c_uint, ctypes.c_size_t
_Number: Final = ctypes.c_long


class _FilterProgram(ctypes.Structure):
    """struct sock_fprog."""

    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


@dataclass(frozen=True, slots=True)
class Statx:
    """The fields of statx that we use."""

    is_mount_root: bool
    inode: int
    device: int
    mount_id: int


@dataclass(frozen=True, slots=True)
class FileAttributes:
    """struct file_attr."""

    flags: int
    extent_size: int
    extents: int
    project: int
    copied_extent_size: int


def openat2(folder: int, path: str, flags: int, resolve: int) -> int:
    """Open a path below a folder and return the descriptor, which is closed at exec. `resolve` restricts the path."""
    how = _OPEN_HOW.pack(flags | os.O_CLOEXEC, 0, resolve)
    return _openat2(folder, os.fsencode(path), how, _OPEN_HOW.size)


def clone_tree(folder: int) -> int:
    """Return a detached mount of the folder, without the mounts below it. It disappears when closed."""
    return _open_tree(folder, b"", TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH)


def clone_whole_tree(folder: int) -> int:
    """Return a detached mount of the folder, with the mounts below it. It disappears when closed."""
    return _open_tree(folder, b"", TREE_CLONE | os.O_CLOEXEC | AT_EMPTY_PATH | AT_RECURSIVE)


def new_file_system(kind: str, options: dict[str, str | None], attributes: int) -> int:
    """Return a detached mount of a new file system. It disappears when closed. An option with value None is a flag."""
    context = _fsopen(kind.encode(), _CLOSED_AT_EXEC)
    try:
        for name, value in options.items():
            command = _SET_FLAG if value is None else _SET_STRING
            _fsconfig(context, command, name.encode(), None if value is None else os.fsencode(value), 0)
        _fsconfig(context, _CREATE, None, None, 0)
        return _fsmount(context, _CLOSED_AT_EXEC, attributes)
    finally:
        os.close(context)


def set_attributes_of_whole_tree(tree: int, to_set: int, propagation: int) -> None:
    """Set attributes and propagation of a mount and of all mounts below it."""
    attributes = _MOUNT_ATTRIBUTES.pack(to_set, 0, propagation, 0)
    _mount_setattr(tree, b"", AT_EMPTY_PATH | AT_RECURSIVE, attributes, _MOUNT_ATTRIBUTES.size)


def swap_root_for_working_folder() -> None:
    """Make the working folder, which must be a mount, the root (pivot_root). The old root is mounted on top of it."""
    _pivot_root(b".", b".")


def unshare(flags: int) -> None:
    _unshare(flags)


def setns(descriptor: int, flags: int) -> None:
    _setns(descriptor, flags)


def prctl(option: int, argument: int) -> None:
    _prctl(option, argument, 0, 0, 0)


def filter_calls(program: bytes) -> None:
    """Install a seccomp filter for the calling thread and all that it starts. It cannot be removed."""
    argument = _FilterProgram(len(program) // _FILTER_INSTRUCTION_SIZE, program)
    _prctl(_SET_SECCOMP, _BY_FILTER, ctypes.addressof(argument), 0, 0)


def keep_capabilities(kept: frozenset[int]) -> None:
    """Drop all capabilities of the calling thread except `kept`, and make none inheritable."""
    header = ctypes.create_string_buffer(_CAPABILITY_HEADER.pack(_CAPABILITY_VERSION, 0), _CAPABILITY_HEADER.size)
    current = ctypes.create_string_buffer(_CAPABILITIES.size)
    _capget(header, current)
    permitted = _CAPABILITIES.unpack(current)[1::3]
    words: list[int] = []
    for half, first in zip(permitted, _HALVES, strict=True):
        remaining = half & sum(1 << (number - first) for number in kept if first <= number < first + 32)
        words += (remaining, remaining, 0)
    _capset(header, _CAPABILITIES.pack(*words))


def close_range(first: int, last: int) -> None:
    """Close the descriptors from the first to the last, both included; an empty range closes none."""
    if first <= last:
        _close_range(first, last, 0)


def set_mount_attributes(tree: int, to_set: int, to_clear: int, propagation: int) -> None:
    attributes = _MOUNT_ATTRIBUTES.pack(to_set, to_clear, propagation, 0)
    _mount_setattr(tree, b"", AT_EMPTY_PATH, attributes, _MOUNT_ATTRIBUTES.size)


def attach_tree(tree: int, target: int) -> None:
    """Mount a detached tree on the target."""
    _move_mount(tree, b"", target, b"", MOVE_FROM_DESCRIPTOR | MOVE_TO_DESCRIPTOR)


def umount2(path: str, flags: int) -> None:
    _checked(_libc_umount2(os.fsencode(path), flags))


def renameat2(old_folder: int, old_name: str, new_folder: int, new_name: str, flags: int) -> None:
    _renameat2(old_folder, os.fsencode(old_name), new_folder, os.fsencode(new_name), flags)


def statx(folder: int, path: str) -> Statx:
    """Return the status of a path without following a symbolic link; an empty path is the descriptor itself."""
    flags = AT_SYMLINK_NO_FOLLOW | AT_NO_AUTOMOUNT | STATX_DO_NOT_SYNC | (0 if path else AT_EMPTY_PATH)
    record = ctypes.create_string_buffer(_STATX_SIZE)
    _statx(folder, os.fsencode(path), flags, STATX_IDENTITY | STATX_MOUNT_ID, record)
    attributes, inode, major, minor, mount_id = _STATX_FIELDS.unpack_from(record)
    return Statx(bool(attributes & STATX_IS_MOUNT_ROOT), inode, os.makedev(major, minor), mount_id)


def getdents64(folder: int, buffer: ctypes.Array[ctypes.c_char]) -> int:
    """Read entries of a folder into the buffer; return the number of bytes read, 0 at the end."""
    return _getdents64(folder, buffer, len(buffer))


def set_io_priority(priority: int) -> None:
    """Set the I/O priority of the calling thread."""
    _ioprio_set(IO_PRIORITY_OF_A_THREAD, 0, priority)


def syncfs(descriptor: int) -> None:
    """Make everything written to the file system of the descriptor durable."""
    _syncfs(descriptor)


def inotify_init() -> int:
    """Return an inotify descriptor; reading it never blocks."""
    return _checked(_libc_inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK))


def inotify_add_watch(watcher: int, folder: int, changes: int) -> int:
    """Watch a folder; return the number that its events carry. An O_PATH descriptor is enough."""
    return _checked(_libc_inotify_add_watch(watcher, f"/proc/self/fd/{folder}".encode(), changes))


def _checked(result: int) -> int:
    if result >= 0:
        return result
    reason = ctypes.get_errno()
    raise OSError(reason, os.strerror(reason))


def quotactl_fd(folder: int, command: int, project: int, record: ctypes.Array[ctypes.c_char]) -> None:
    """Run a quota command on the file system of the descriptor. The command reads the record or fills it."""
    _quotactl_fd(folder, command, project, record)


def file_attributes(folder: int, name: str | bytes) -> FileAttributes:
    """Return the attributes of an entry of any kind, also of a link or a fifo, without opening it.

    An empty name is the descriptor itself, which must then be open for reading. ENOSYS before Linux 6.17.
    """
    return _attributes_at(folder, os.fsencode(name), AT_SYMLINK_NO_FOLLOW | (0 if name else AT_EMPTY_PATH))


def attributes_of_place(place: int) -> FileAttributes:
    """Return the attributes of the file behind a handle (O_PATH)."""
    # The call refuses O_PATH descriptors, so use the link in /proc.
    return _attributes_at(-1, f"/proc/self/fd/{place}".encode(), 0)


def _attributes_at(folder: int, name: bytes, flags: int) -> FileAttributes:
    record = ctypes.create_string_buffer(_FILE_ATTRIBUTES.size)
    _file_getattr(folder, name, record, _FILE_ATTRIBUTES.size, flags)
    return FileAttributes(*_FILE_ATTRIBUTES.unpack_from(record))


def set_file_attributes(folder: int, name: str, attributes: FileAttributes) -> None:
    """Write the attributes of an entry, which it need not be open for. ENOSYS before Linux 6.17."""
    record = ctypes.create_string_buffer(_FILE_ATTRIBUTES.pack(*astuple(attributes)), _FILE_ATTRIBUTES.size)
    _file_setattr(folder, os.fsencode(name), record, _FILE_ATTRIBUTES.size, AT_SYMLINK_NO_FOLLOW)


def _system_call(number: int, *argument_types: Any) -> Callable[..., int]:
    """Return a function for a system call that may wait for a disk: other Python threads run meanwhile."""
    # The argument types are set once here, so that each call costs little.
    prototype = ctypes.CFUNCTYPE(ctypes.c_long, _Number, *argument_types, use_errno=True)
    return _checked_call(prototype(("syscall", _libc)), number)


def _checked_call(function: Callable[..., int], number: int) -> Callable[..., int]:
    def call(*arguments: object) -> int:
        reason = errno.EINTR
        for _ in range(_TRIES_WHEN_INTERRUPTED):
            result = function(number, *arguments)
            if result >= 0:
                return int(result)
            reason = ctypes.get_errno()
            if reason != errno.EINTR:
                break
        raise OSError(reason, os.strerror(reason))

    return call


def _quick_system_call(number: int, *argument_types: Any) -> Callable[..., int]:
    """Return a function for a system call that waits for no disk. It keeps Python's lock: releasing it costs more."""
    function = ctypes.PyDLL(None, use_errno=True)["syscall"]
    function.restype, function.argtypes = ctypes.c_long, (_Number, *argument_types)
    return _checked_call(function, number)


_openat2 = _system_call(_OPENAT2, _Number, _Text, _Text, _Size)
_open_tree = _quick_system_call(_OPEN_TREE, _Number, _Text, _Bits)
_mount_setattr = _quick_system_call(_MOUNT_SETATTR, _Number, _Text, _Bits, _Text, _Size)
_move_mount = _quick_system_call(_MOVE_MOUNT, _Number, _Text, _Number, _Text, _Bits)
_renameat2 = _system_call(_RENAMEAT2, _Number, _Text, _Number, _Text, _Bits)
_statx = _system_call(_STATX, _Number, _Text, _Bits, _Bits, ctypes.c_void_p)
_getdents64 = _system_call(_GETDENTS64, _Number, ctypes.c_void_p, _Size)
_ioprio_set = _system_call(_IOPRIO_SET, _Number, _Number, _Number)
_syncfs = _system_call(_SYNCFS, _Number)
_quotactl_fd = _system_call(_QUOTACTL_FD, _Number, _Bits, _Bits, ctypes.c_void_p)
_file_getattr = _system_call(_FILE_GETATTR, _Number, _Text, ctypes.c_void_p, _Size, _Bits)
_file_setattr = _system_call(_FILE_SETATTR, _Number, _Text, ctypes.c_void_p, _Size, _Bits)
_fsopen = _system_call(_FSOPEN, _Text, _Bits)
_fsconfig = _system_call(_FSCONFIG, _Number, _Bits, _Text, _Text, _Number)
_fsmount = _system_call(_FSMOUNT, _Number, _Bits, _Bits)
_pivot_root = _system_call(_OLD_NUMBERS["pivot_root"], _Text, _Text)
_unshare = _system_call(_OLD_NUMBERS["unshare"], _Number)
_setns = _system_call(_OLD_NUMBERS["setns"], _Number, _Number)
_prctl = _system_call(_OLD_NUMBERS["prctl"], _Number, _Number, _Number, _Number, _Number)
_capget = _system_call(_OLD_NUMBERS["capget"], ctypes.c_void_p, ctypes.c_void_p)
_capset = _system_call(_OLD_NUMBERS["capset"], ctypes.c_void_p, _Text)
_close_range = _system_call(_CLOSE_RANGE, _Bits, _Bits, _Bits)
_libc_umount2 = ctypes.CFUNCTYPE(ctypes.c_int, _Text, ctypes.c_int, use_errno=True)(("umount2", _libc))
_libc_inotify_init1 = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, use_errno=True)(("inotify_init1", _libc))
_libc_inotify_add_watch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, _Text, ctypes.c_uint32, use_errno=True)(
    ("inotify_add_watch", _libc)
)
