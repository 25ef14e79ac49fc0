"""Read kubelet's requests, and end its failed calls, for volumes of every kind.

A request names its volume, a path below kubelet's folder, and, in the context, keys that kubelet adds. Errors of the
machine become errors with a status code. After a final status code, kubelet never calls the RPC that would undo the
failed call. So a call undoes what it did before it raises such an error, or raises one after which kubelet calls again.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from orlop.csi.error_codes import (
    CODE_OF_ERRNO,
    Code,
    CsiError,
    InvalidArgument,
    NotFound,
    Unavailable,
    error_of,
    is_final,
)
from orlop.host.host_errors import HostError

KUBERNETES_PREFIX: Final = "csi.storage.k8s.io/"
EPHEMERAL: Final = KUBERNETES_PREFIX + "ephemeral"
POD_NAME: Final = KUBERNETES_PREFIX + "pod.name"
POD_NAMESPACE: Final = KUBERNETES_PREFIX + "pod.namespace"
POD_UID: Final = KUBERNETES_PREFIX + "pod.uid"
SERVICE_ACCOUNT: Final = KUBERNETES_PREFIX + "serviceAccount.name"
LONGEST_TARGET: Final = 4095
LONGEST_NAME: Final = 255
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


# ---- what is in a request: pure --------------------------------------------------------------------------------------


def checked_volume_id(volume_id: str, objection_to: Callable[[str], str | None]) -> str:
    """Return the volume id of a request. `objection_to` returns why no volume of the kind can have an id."""
    if not volume_id:
        raise InvalidArgument("the request names no volume: volume_id is empty")
    if objection := objection_to(volume_id):
        raise InvalidArgument(f"the volume id {volume_id[:200]!r} cannot be served: {objection}")
    return volume_id


def target_below(target_path: str, *kubelet_dirs: str, field: str = "target_path") -> str:
    """Return the target path below kubelet's folder, which may be named by any of `kubelet_dirs`.

    Compares text only. Symbolic links are refused later, when the path is opened.
    """
    if not target_path:
        raise InvalidArgument(f"the request names no target: {field} is empty")
    if "\0" in target_path or len(target_path.encode(errors="surrogatepass")) > LONGEST_TARGET:
        raise InvalidArgument(f"the target path is no path of this machine: {target_path[:100]!r}")
    if not target_path.startswith("/"):
        raise InvalidArgument(f"the target path {target_path!r} has to begin with '/'")
    names = _names_in(target_path)
    root = next((root for root in map(_names_in, kubelet_dirs) if names[: len(root)] == root), names)
    below = names[len(root) :]
    if not below:
        raise InvalidArgument(f"the target path {target_path!r} is not below kubelet's folder {kubelet_dirs[0]}")
    if ".." in below:
        raise InvalidArgument(f"the target path {target_path!r} must not hold '..'")
    if any(len(name.encode(errors="surrogatepass")) > LONGEST_NAME for name in below):
        raise InvalidArgument(f"the target path {target_path[:100]!r}… holds a name of more than {LONGEST_NAME} bytes")
    return "/".join(below)


def used_path_below(volume_path: str, *kubelet_dirs: str) -> str:
    """Return the path of a volume that is in use, below kubelet's folder. Raises `NotFound` for any other path.

    CSI demands NOT_FOUND for a path where the volume is not, and no volume of ours is outside of kubelet's folder.
    """
    try:
        return target_below(volume_path, *kubelet_dirs, field="volume_path")
    except InvalidArgument as error:
        if not volume_path:
            raise
        raise NotFound(f"no volume is there: {error}") from None


def _names_in(path: str) -> list[str]:
    return [name for name in path.split("/") if name not in {"", "."}]


# ---- how a failed call ends ------------------------------------------------------------------------------------------


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
