"""Decide what an informer does after a list or a watch has ended: list or watch, and after how many failures. Pure.

- A watch that ends without an error is normal: watch again from the last resourceVersion seen. A watch that ends within
  a second without an event counts as a failure all the same; otherwise a server that closes every watch at once would
  be asked without a pause.
- The server no longer has the resourceVersion (410): list again.
- An error that may pass by itself (a broken connection, a busy server): watch from the same resourceVersion, later.
  After a few such failures in a row list again, whatever they were: the server may never reach that resourceVersion.
- Any other error of a watch: list again, later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orlop.kube.api_errors import ApiError, Gone, StatusError, Unauthorized
from orlop.kube.retry_rules import is_passing

SHORTEST_WATCH_SECONDS: Final = 1.0
MOST_FAILED_WATCHES: Final = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of an informer between two attempts; `failures` counts those in a row."""

    must_list: bool = True
    failures: int = 0


@dataclass(frozen=True, slots=True)
class EndedWatch:
    """How a watch ended. `progressed`: it brought an event or a bookmark."""

    error: ApiError | None
    progressed: bool
    seconds: float


def after_list(standing: Standing, error: ApiError | None) -> Standing:
    """Return the standing after a list. A list alone is no success: if each watch after it fails, delays must grow."""
    if error is None:
        return Standing(must_list=False, failures=standing.failures)
    return Standing(must_list=True, failures=standing.failures + 1)


def after_watch(standing: Standing, ended: EndedWatch) -> Standing:
    before = 0 if ended.progressed else standing.failures
    if ended.error is None:
        worked = ended.progressed or ended.seconds >= SHORTEST_WATCH_SECONDS
        return Standing(must_list=False, failures=0) if worked else _failed_watch(before)
    if isinstance(ended.error, Gone):
        return Standing(must_list=True, failures=0 if ended.progressed else before + 1)
    if is_passing(ended.error) or isinstance(ended.error, Unauthorized):
        return _failed_watch(before)
    return Standing(must_list=True, failures=before + 1)


def after_interruption(standing: Standing) -> Standing:
    """Return the standing after a waiter interrupted the watch for a list: this is no failure."""
    return Standing(must_list=True, failures=standing.failures)


def asked_to_wait(error: ApiError | None) -> float:
    """Return the Retry-After of the server's error, in seconds."""
    return (error.retry_after or 0.0) if isinstance(error, StatusError) else 0.0


def _failed_watch(before: int) -> Standing:
    return Standing(must_list=before + 1 >= MOST_FAILED_WATCHES, failures=before + 1)
