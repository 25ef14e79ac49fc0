"""Errors of the kernel, as a sentence for people.

There is one class: callers that decide by the reason compare `errno`, which is the kernel's own.
"""

from __future__ import annotations

import errno
from typing import Self


class HostError(OSError):
    """What was wrong, where, and what to do about it."""

    def __init__(self, number: int, sentence: str) -> None:
        super().__init__(number, sentence)

    @classmethod
    def because(cls, error: OSError, what: str) -> Self:
        """Return an error whose sentence is `what`, such as `The folder x cannot be made`, and the kernel's reason."""
        return cls(error.errno or errno.EIO, f"{what}: {error.strerror or error}.")

    def __str__(self) -> str:
        return str(self.strerror)
