"""Requests to an API server and its responses, as values, and the `Transport` that carries them. Pure.

Header names are in lower case. onenode's API server takes the same values, without HTTP.
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
    """A request. `path` is percent-encoded already; `query` is not, and keeps its order."""

    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: bytes = b""
    goes_first: bool = False
    """Take the next free connection, before requests that have waited longer."""

    @property
    def target(self) -> str:
        return f"{self.path}?{_query_text(self.query)}" if self.query else self.path


@lru_cache(maxsize=256)
def _query_text(query: tuple[tuple[str, str], ...]) -> str:
    """Encode a query. Cached, because most requests of a process have the same few."""
    return urlencode(query)


@dataclass(frozen=True, slots=True)
class HttpResponse:
    status: int
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)
    body: bytes = b""

    @property
    def is_error(self) -> bool:
        return self.status >= FIRST_ERROR


@dataclass(frozen=True, slots=True)
class HttpStream:
    """A response whose body arrives in pieces, for as long as the server sends."""

    status: int
    headers: Mapping[str, str]
    pieces: AsyncIterator[bytes]
    given_up: Callable[[], bool] = lambda: False
    """Return whether the stream ended because its reader was too slow: the last pieces need not be flushed."""
    patient: bool = False
    """Whether a reader that does not read is waited for: the source of the pieces then waits as well."""

    @property
    def is_error(self) -> bool:
        return self.status >= FIRST_ERROR


class Transport(Protocol):
    """Carry requests. Raise `NotConnected` if nothing was sent, `ConnectionBroken` if something was."""

    @property
    def is_remote(self) -> bool:
        """Whether a network is in between, where a connection can fall silent without being closed."""

    async def exchange(self, request: HttpRequest, within: float) -> HttpResponse:
        """Return the whole response; raise `ResponseTimeout` after `within` seconds."""

    def open(self, request: HttpRequest, within: float) -> AbstractAsyncContextManager[HttpStream]:
        """Yield the response as a stream, once its head is there within `within` seconds; its pieces have no limit."""

    async def renew_credentials(self) -> None:
        """Fetch new credentials before the next request. Call it after a 401."""

    async def close(self) -> None:
        """Close every connection; streams in progress end with `ConnectionBroken`."""
