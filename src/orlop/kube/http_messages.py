"""A request to an API server and its answer, as values: what `transport` carries and the embedded server takes.

Pure. Nothing here knows who carries them; headers' names are in lower case.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Protocol
from urllib.parse import urlencode

NO_HEADERS: Mapping[str, str] = MappingProxyType({})
FIRST_ERROR = 400


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """`path` is quoted already; `query` is not, and keeps its order."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: bytes = b""

    @property
    def target(self) -> str:
        return f"{self.path}?{_query_text(self.query)}" if self.query else self.path


@lru_cache(maxsize=256)
def _query_text(query: tuple[tuple[str, str], ...]) -> str:
    """Most requests of a process have the same few queries."""
    return urlencode(query)


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    status: int
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: bytes = b""

    @property
    def is_error(self) -> bool:
        return self.status >= FIRST_ERROR


@dataclass(frozen=True, slots=True)
class HttpStream:
    """An answer whose body comes in pieces, for as long as the other side likes."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    given_up: Callable[[], bool] = lambda: False
    """Whether nothing more comes because the reader was too slow: what was sent last need not be waited for."""
    patient: bool = False
    """Whether a reader is waited for however long he reads nothing: what stands behind it waits as well."""

    @property
    def is_error(self) -> bool:
        return self.status >= FIRST_ERROR


class Transport(Protocol):
    """Carries requests; raises `NotConnected` where nothing was sent, `ConnectionBroken` where something was."""

    async def exchange(self, request: HttpRequest, within: float) -> HttpAnswer:
        """The whole answer, or `NoAnswerInTime` after so many seconds."""

    def open(self, request: HttpRequest, within: float) -> AbstractAsyncContextManager[HttpStream]:
        """The beginning of the answer within so many seconds; its pieces may take for ever."""

    async def renew_credentials(self) -> None:
        """Called after a 401: what proves who we are is fetched anew before the next request."""

    async def close(self) -> None:
        """Ends every connection; a stream under way ends with `ConnectionBroken`."""
