"""Errors of the machine as errors of CSI calls, and the undoing of a failed call: the same for all volumes.

After a final status code kubelet never calls the opposite of the failed call. So a call undoes what it did before it
raises such an error, or raises one after which kubelet calls again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from orlop.csi.error_codes import CODE_OF_ERRNO, Code, CsiError, Unavailable, error_of, is_final
from orlop.host.host_errors import HostError

KUBELET_DIR_NOT_SHARED: Final = (
    "kubelet's folder is no shared mount: no pod would see its volume. Set mountPropagation: Bidirectional in this "
    "container; if the driver runs on the host itself, run mount --make-rshared on the mount that holds the folder"
)
UNSAFE_PATH_ERRORS: Final = frozenset({errno.ELOOP, errno.ENOTDIR, errno.EXDEV})
"""Errors for a path that contains a symbolic link, a file or another mount: nothing of ours can be there."""
CODES: Final = {
    **CODE_OF_ERRNO,
    **dict.fromkeys(UNSAFE_PATH_ERRORS, Code.INVALID_ARGUMENT),
    errno.EOPNOTSUPP: Code.FAILED_PRECONDITION,
    errno.EUCLEAN: Code.DATA_LOSS,
    errno.ETIMEDOUT: Code.UNAVAILABLE,
}
Undo = list[Callable[[], object]]


@contextmanager
def as_csi_errors() -> Iterator[None]:
    """Convert errors of the machine to CSI errors with a status code. Their sentences are written for the caller."""
    try:
        yield
    except HostError as error:
        raise error_of(CODES.get(error.errno or 0, Code.INTERNAL), str(error)) from error


@contextmanager
def undo_on_failure() -> Iterator[Undo]:
    """If the block fails, call the appended functions in reverse order. Append before each effect, not after it."""
    undo: Undo = []
    try:
        yield undo
    except Exception as cause:
        for act in reversed(undo):
            try:
                act()
            except HostError as error:
                # UNAVAILABLE is not final: kubelet calls again, and that call meets the remaining effects.
                raise Unavailable(f"{cause}; the failed call could not be undone: {error}") from cause
        raise


@contextmanager
def retryable(*unless: type[CsiError]) -> Iterator[None]:
    """Replace final errors, except these, by UNAVAILABLE, after which kubelet calls again."""
    try:
        yield
    except CsiError as error:
        if is_final(error) and not isinstance(error, unless):
            raise Unavailable(str(error)) from error
        raise
