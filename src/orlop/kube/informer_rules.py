"""What an informer does after a list or a watch has ended: list anew or watch on, and after how many failures.

- A watch that ends without an error is nothing unusual: it goes on from the last version seen. One that ends within a
  second and without an event is a failure all the same, or a server that turns everybody away would be asked for ever.
- The version is no longer kept (410): list anew.
- What may pass by itself (a broken connection, a busy server): watch on from the same version, later. After a few
  such failures in a row list anew, whatever they were: a version may be one that the server will never reach.
- Anything else the server says about a watch: list anew, later.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from orlop.kube.errors import ApiError, Gone, StatusError, Unauthorized
from orlop.kube.retry_rules import is_passing

SHORTEST_WATCH_SECONDS: Final = 1.0
MOST_FAILED_WATCHES: Final = 3


@dataclass(frozen=True, slots=True)
class Standing:
    """Where an informer stands between two attempts; `failures` are those in a row."""

    must_list: bool = True
    failures: int = 0


@dataclass(frozen=True, slots=True)
class EndedWatch:
    """`progressed` if it brought an event or a bookmark."""

    error: ApiError | None
    progressed: bool
    seconds: float


def after_list(standing: Standing, error: ApiError | None) -> Standing:
    """A list alone is no success: the watch after it may be refused, again and again."""
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


def after_wish(standing: Standing) -> Standing:
    """Somebody needs to see the present state: that is no failure."""
    return Standing(must_list=True, failures=standing.failures)


def asked_to_wait(error: ApiError | None) -> float:
    """Seconds the server wants to be left alone."""
    return (error.retry_after or 0.0) if isinstance(error, StatusError) else 0.0


def _failed_watch(before: int) -> Standing:
    return Standing(must_list=before + 1 >= MOST_FAILED_WATCHES, failures=before + 1)
