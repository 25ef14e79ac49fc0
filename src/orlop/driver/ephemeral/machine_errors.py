"""What the machine refuses, in the interface's terms; and what had been done before, undone.

Must not decide what to undo: whoever did something says how that is taken back, before doing it.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final, NoReturn, TypeVar

from orlop.csi.error_codes import CODE_OF_ERRNO, Code, Unavailable, error_of
from orlop.host.errors import HostError

T = TypeVar("T")
Undo = list[Callable[[], object]]
GONE: Final = frozenset({errno.ENOENT})
LEADS_ASTRAY: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EXDEV})
"""What a path gives that leads over a link or a file: nothing of ours is there."""
CODES: Final = {
    **CODE_OF_ERRNO,
    **dict.fromkeys(LEADS_ASTRAY, Code.INVALID_ARGUMENT),
    errno.EOPNOTSUPP: Code.FAILED_PRECONDITION,
}


@contextmanager
def undone_on_failure() -> Iterator[Undo]:
    undo: Undo = []
    try:
        yield undo
    except Exception as error:
        for act in reversed(undo):
            _undo(act, error)
        raise


def _undo(act: Callable[[], object], cause: Exception) -> None:
    try:
        act()
    except HostError as error:
        raise Unavailable(f"{cause}; and what had been done could not be undone: {error}") from cause


@contextmanager
def telling(*, final: bool = True) -> Iterator[None]:
    """The machine's errors in the interface's terms: its sentences are meant for the caller."""
    try:
        yield
    except HostError as error:
        _raisetelling(error, Code.INTERNAL if final else Code.UNAVAILABLE)


def told(look: Callable[[], T]) -> T:
    with telling():
        return look()


def _raisetelling(error: HostError, otherwise: Code) -> NoReturn:
    raise error_of(CODES.get(error.errno or 0, otherwise), str(error)) from error
