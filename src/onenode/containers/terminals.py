"""Terminals for commands inside containers: pairs of the container's own devpts, so that `tty` names one that is there.

Order: the end that is kept outside is opened → the command's end, by no name → it is the user's → the command's process
makes it its own, after it has begun a session. When the outer end closes, the kernel sends SIGHUP to the command.

The caller of `opened_terminal` is in the container already. A volume may lie where its devpts should be, so what was
opened by name is checked.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import struct
import termios
from typing import Final

from onenode.containers.container_request import Account, WindowSize
from orlop.host.host_errors import HostError

_MULTIPLEXER: Final = "/dev/pts/ptmx"
_NUMBER: Final = os.makedev(5, 2)
_SET_LOCK: Final = 0x40045431
_OPEN_PEER: Final = 0x5441
_WINDOW: Final = struct.Struct("HHHH")


def opened_terminal(account: Account) -> tuple[int, int]:
    """Return the outer end, which does not block, and the end of a command of this account."""
    outer = os.open(_MULTIPLEXER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        _check(outer)
        fcntl.ioctl(outer, _SET_LOCK, struct.pack("i", 0))
        inner: int = fcntl.ioctl(outer, _OPEN_PEER, os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
        os.fchown(inner, account.user, -1)
    except BaseException:
        os.close(outer)
        raise
    return outer, inner


def _check(outer: int) -> None:
    found = os.fstat(outer)
    if not stat.S_ISCHR(found.st_mode) or found.st_rdev != _NUMBER:
        raise HostError(errno.ENOTTY, f"{_MULTIPLEXER} of the container makes no terminals: leave out -t (--tty).")


def take_terminal() -> None:
    """Have standard input, where it is a terminal, control the session that this process leads."""
    if os.isatty(0):
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def set_window(terminal: int, size: WindowSize) -> None:
    """The kernel sends SIGWINCH to what runs in the foreground."""
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, _WINDOW.pack(size.height, size.width, 0, 0))
