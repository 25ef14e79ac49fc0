"""Read the files of a configuration: those of a ConfigMap volume, which kubelet replaces at once, or plain ones."""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from orlop.host.host_errors import HostError

LARGEST_FILE: Final = 1 << 20
MOST_FILES: Final = 100
MOST_TRIES: Final = 10
HIDDEN: Final = "."
_OPEN: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_configuration_files(folder: str) -> dict[str, str]:
    """Return the content of each file, by name. EAGAIN: they are being replaced again and again.

    Kubelet replaces the files of a ConfigMap at once, by one rename of the link `..data`: a reader that meets the
    change reads again.
    """
    for _ in range(MOST_TRIES):
        try:
            names = [name for name in os.listdir(folder) if not name.startswith(HIDDEN)][:MOST_FILES]
            before = _version(folder)
            files = {name: text for name in sorted(names) if (text := _content(folder, name)) is not None}
        except FileNotFoundError as error:
            if not os.path.isdir(folder):
                raise HostError.because(error, f"The folder {folder} cannot be read") from error
            continue
        except OSError as error:
            raise HostError.because(error, f"The configuration in {folder} cannot be read") from error
        if _version(folder) == before:
            return files
    raise HostError(errno.EAGAIN, f"The files in {folder} are being replaced: they are read again later.")


def _version(folder: str) -> str:
    """Return what the link that kubelet replaces points to; empty in a folder of plain files."""
    try:
        return os.readlink(f"{folder}/..data")
    except OSError:
        return ""


def _content(folder: str, name: str) -> str | None:
    """Return the content of a plain file; None for a folder."""
    descriptor = os.open(f"{folder}/{name}", _OPEN)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            return None
        content = file.read(LARGEST_FILE + 1)
    if len(content) > LARGEST_FILE:
        raise HostError(errno.EFBIG, f"The file {folder}/{name} is too large for a configuration.")
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise HostError(errno.EILSEQ, f"The file {folder}/{name} is no UTF-8 text.") from error
