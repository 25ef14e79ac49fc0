"""The address of an API server, taken apart. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

PORTS: Final = {"http": 80, "https": 443}


class InvalidAddress(ValueError):
    """It is no address of a server."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int
    host_header: str
    path: str
    """Stands before that of each request; empty, or without a slash at its end."""


def server_address(text: str) -> ServerAddress:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidAddress(f"{text} is no address of a server: {error}") from None
    if parts.scheme not in PORTS or not host:
        raise InvalidAddress(f"{text} is no address of a server: write https://host:port")
    named = f"[{host}]" if ":" in host else host
    usual = PORTS[parts.scheme]
    header = named if port is None or port == usual else f"{named}:{port}"
    return ServerAddress(host, usual if port is None else port, header, parts.path.rstrip("/"))
