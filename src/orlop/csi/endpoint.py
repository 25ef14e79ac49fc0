"""Parse the address where a CSI server listens or a client connects, and check it before anything starts. Pure.

Spellings, all of them in use upstream: `unix:///csi/csi.sock`, `unix://csi/csi.sock` (a leading slash is meant),
`unix:/csi/csi.sock`, `/csi/csi.sock`, `./csi.sock`, `tcp://127.0.0.1:10000`, `tcp://:10000`, `tcp://[::1]:10000`.
Whether a folder or a host exists is checked elsewhere.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Final

LONGEST_SOCKET_PATH: Final = 107
HIGHEST_PORT: Final = 65535
PLUGINS: Final = "plugins"
"""The folder, below kubelet's, in which every driver has a folder for its socket."""
PLUGINS_REGISTRY: Final = "plugins_registry"
"""The folder, below kubelet's, in which kubelet looks for sockets of registrars."""
_TCP: Final = re.compile(r"(?P<host>\[[0-9a-fA-F:.%]+\]|[^:\[\]/]*):(?P<port>[0-9]{1,5})")
_LOOPBACK: Final = ("127.", "localhost", "[::1]")


class InvalidEndpoint(ValueError):
    """An address that is not allowed; the message names it and what is allowed."""


@dataclass(frozen=True, slots=True)
class UnixEndpoint:
    path: str

    def __str__(self) -> str:
        return f"unix://{self.path}"


@dataclass(frozen=True, slots=True)
class TcpEndpoint:
    host: str
    port: int

    def __str__(self) -> str:
        return f"tcp://{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        return self.host.startswith(_LOOPBACK)


Endpoint = UnixEndpoint | TcpEndpoint


def parse_endpoint(text: str) -> Endpoint:
    scheme, separator, rest = text.partition("://")
    if separator:
        return _with_scheme(text, scheme.lower(), rest)
    if text.lower().startswith("unix:"):
        return _unix(text, text[len("unix:") :])
    if "/" not in text:
        raise InvalidEndpoint(f"{text!r} is no endpoint: write unix:///path/csi.sock or tcp://host:port")
    return _unix(text, text)


def parse_unix_endpoint(text: str) -> UnixEndpoint:
    """Parse an address where only a unix socket is allowed; errors do not propose TCP."""
    if text.startswith("-"):  # `--driver --state DIR` has no address: the next flag is taken for it
        raise InvalidEndpoint("that is a flag, and an address must come before it: write unix:///path/csi.sock")
    is_path = "/" in text and "://" not in text
    if not is_path and not text.lower().startswith("unix:"):
        raise InvalidEndpoint(f"{text!r} is no unix socket: write unix:///path/csi.sock")
    endpoint = parse_endpoint(text)
    assert isinstance(endpoint, UnixEndpoint)  # noqa: S101 - as every path and every unix: is
    return endpoint


def parse_http_address(text: str) -> TcpEndpoint:
    """Parse `HOST:PORT`, as in the upstream sidecars' `--http-endpoint`; no host means every interface."""
    match = _TCP.fullmatch(text)
    if match is None or int(match["port"]) > HIGHEST_PORT:
        raise InvalidEndpoint(f"write host:port, such as :8080 or 127.0.0.1:8080, with a port up to {HIGHEST_PORT}")
    return TcpEndpoint(match["host"] or "0.0.0.0", int(match["port"]))


def parse_optional_http_address(text: str) -> TcpEndpoint | None:
    """Return None for an empty text: it is the upstream sidecars' default, and many manifests have it."""
    return parse_http_address(text) if text else None


def _with_scheme(text: str, scheme: str, rest: str) -> Endpoint:
    match scheme:
        case "unix":
            return _unix(text, rest if rest.startswith("/") or not rest else f"/{rest}")
        case "tcp":
            return _tcp(text, rest)
        case _:
            raise InvalidEndpoint(f"{text!r} has the scheme {scheme!r}: only unix:// and tcp:// are served")


def _unix(text: str, path: str) -> UnixEndpoint:
    if not path or path.endswith("/"):
        raise InvalidEndpoint(f"{text!r} names no socket: write unix:///path/csi.sock")
    if "\0" in path:
        raise InvalidEndpoint(f"{text!r} holds a NUL byte: no path does")
    if "," in path:
        raise InvalidEndpoint(f"{text!r} holds a comma, where gRPC would split it: use another path")
    clean = "/" + os.path.normpath(path).lstrip("/") if path.startswith("/") else path
    length = len(os.fsencode(clean))
    if length > LONGEST_SOCKET_PATH:
        raise InvalidEndpoint(
            f"{text!r} is a path of {length} bytes: the kernel takes at most {LONGEST_SOCKET_PATH} for a socket; "
            "use a shorter folder"
        )
    return UnixEndpoint(clean)


def _tcp(text: str, address: str) -> TcpEndpoint:
    match = _TCP.fullmatch(address)
    if match is None or int(match["port"]) > HIGHEST_PORT:
        raise InvalidEndpoint(f"{text!r} is no TCP endpoint: write tcp://host:port with a port up to {HIGHEST_PORT}")
    return TcpEndpoint(match["host"] or "0.0.0.0", int(match["port"]))
