"""The reserve of a folder drive: a file that holds the space which its volumes do not use yet.

A folder drive lies on a file system that others fill too. The reserve makes its capacity a limit in both
directions: others cannot take the space, and the drive cannot take more than its capacity. The reserve shrinks just
before an image grows, and grows when an image is gone. Its size is never counted: it is the capacity less what the
files below `volumes` and `trash` hold, as the file system reports it.

Space moves between the reserve and an image in two steps. Other programs may take it in between; a later `fit` reserves
it again as soon as it is free.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from typing import Final

from orlop.host.folders.folder_records import IMAGE
from orlop.host.host_errors import HostError
from orlop.host.kernel import system_calls
from orlop.host.kernel.confined_paths import CONFINED, shown

NAME: Final = "reserve"
_SECTOR: Final = 512
_STEP: Final = 64 << 20
"""The step by which `fit` grows the reserve on a file system that is almost full."""
_SHELVES: Final = ("volumes", "trash")
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW


def make(root: int, size: int) -> None:
    """Allocate the reserve in full. ENOSPC: the file system lacks the space, and nothing is kept."""
    file = _opened(root)
    try:
        _grow(file, 0, size)
        os.fsync(file)
    except OSError as error:
        os.ftruncate(file, 0)
        raise HostError.because(error, f"{size} bytes cannot be reserved at {shown(root)}") from error
    finally:
        os.close(file)


def reserved(root: int) -> int:
    """Return the bytes that the reserve holds; 0 without one."""
    try:
        return os.stat(NAME, dir_fd=root, follow_symlinks=False).st_size
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise HostError.because(error, f"The reserve at {shown(root)} cannot be read") from error


def shrink(root: int, count: int) -> None:
    """Release bytes for an image that is about to grow. ENOSPC: the reserve has fewer, and was not changed."""
    if count <= 0:
        return
    size = reserved(root)
    if size < count:
        raise HostError(
            errno.ENOSPC, f"The drive at {shown(root)} has {size} bytes in reserve, and {count} are needed."
        )
    file = _opened(root)
    try:
        # No fsync: the image that grows next gets one, and file systems keep the order of changes. If one does not, the
        # next `fit` shrinks the reserve again.
        os.ftruncate(file, size - count)
    except OSError as error:
        raise HostError.because(error, f"The reserve at {shown(root)} cannot be changed") from error
    finally:
        os.close(file)


def fit(root: int, capacity: int) -> int:
    """Make the reserve as large as the capacity less what volumes hold; return how many bytes it lacks."""
    target = max(0, capacity - held_by_volumes(root))
    file = _opened(root)
    try:
        size = os.fstat(file).st_size
        if size > target:
            os.ftruncate(file, target)
        while size < target:
            grown = _grown_by_some(file, size, target)
            if grown == size:
                return target - size
            size = grown
        os.fsync(file)
    except OSError as error:
        raise HostError.because(error, f"The reserve at {shown(root)} cannot be changed") from error
    finally:
        os.close(file)
    return 0


def held_by_volumes(root: int) -> int:
    """Return the bytes that images hold, or may still fill: those of volumes, and those waiting to be erased."""
    return sum(size for shelf in _SHELVES for size in _images(root, shelf))


def _images(root: int, shelf: str) -> Iterator[int]:
    try:
        folder = system_calls.openat2(root, shelf, _FOLDER, CONFINED)
    except FileNotFoundError:
        return
    except OSError as error:
        raise HostError.because(error, f"{shown(root)}/{shelf} cannot be read") from error
    try:
        for name in os.listdir(folder):
            yield _size_of(folder, f"{name}/{IMAGE}")
            yield _size_of(folder, name)
    finally:
        os.close(folder)


def _size_of(folder: int, path: str) -> int:
    """Return the size of a plain file, whichever is larger of its length and its blocks; 0 for anything else."""
    try:
        status = os.stat(path, dir_fd=folder, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return 0
    except OSError as error:
        raise HostError.because(error, f"{shown(folder)}/{path} cannot be measured") from error
    return max(status.st_size, status.st_blocks * _SECTOR) if stat.S_ISREG(status.st_mode) else 0


def _grown_by_some(file: int, size: int, target: int) -> int:
    """Grow by one step, or by half of it where that is too much; return the new size."""
    step = min(_STEP, target - size)
    while step >= _SECTOR:
        try:
            _grow(file, size, step)
        except OSError as error:
            if error.errno not in {errno.ENOSPC, errno.EDQUOT}:
                raise
            os.ftruncate(file, size)
            step //= 2
        else:
            return size + step
    return size


def _grow(file: int, size: int, count: int) -> None:
    if count:
        os.posix_fallocate(file, size, count)


def _opened(root: int) -> int:
    try:
        return os.open(NAME, _FLAGS, 0o600, dir_fd=root)
    except OSError as error:
        raise HostError.because(error, f"The reserve at {shown(root)} cannot be opened") from error
