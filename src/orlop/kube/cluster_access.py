"""How one API server is reached and who we are to it: the values that `kubeconfig` makes and `transport` uses.

Secrets are wrapped, so that no log, error or debugger shows them. Nothing here reads a file or runs a program.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Protocol

from orlop.foundation.structured_log import Secret


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """Both in PEM."""

    certificate: bytes
    key: Secret[bytes]


@dataclass(frozen=True, slots=True)
class Password:
    username: str
    password: Secret[str]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What is shown to the server; nothing at all makes us anonymous."""

    token: Secret[str] | None = None
    client_certificate: ClientCertificate | None = None
    password: Password | None = None

    def authorization(self) -> Secret[str] | None:
        """The value of the header of that name."""
        if self.token is not None:
            return Secret(f"Bearer {self.token.reveal()}")
        if self.password is not None:
            pair = f"{self.password.username}:{self.password.password.reveal()}"
            return Secret(f"Basic {base64.b64encode(pair.encode()).decode()}")
        return None


ANONYMOUS = Credentials()


class CredentialsProvider(Protocol):
    async def current(self) -> Credentials:
        """Raises `CredentialsUnavailable` when there are none."""

    async def renew(self, refused: Credentials) -> None:
        """The server did not accept these: get others, unless that has been done meanwhile."""


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """Those that never change."""

    credentials: Credentials = ANONYMOUS

    async def current(self) -> Credentials:
        return self.credentials

    async def renew(self, refused: Credentials) -> None:
        """There are no others."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    server: str
    """Such as `https://10.0.0.1:6443`, perhaps with a path, never with a slash at its end."""
    credentials: CredentialsProvider
    namespace: str = "default"
    certificate_authority: bytes | None = None
    """In PEM; None leaves it to the system's."""
    insecure: bool = False
    """Whether the server's certificate is not looked at."""
    tls_server_name: str | None = None
    """Whom the server's certificate must name, if not the host in `server`."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request: whom we act as."""
    origin: str = ""
    """Where all this was read, for messages."""
    unix_socket: str = ""
    """The path of a socket that leads to the server, instead of its host and port."""


def over_unix_socket(path: str) -> ClusterAccess:
    """To a server on this machine that takes whoever may open its socket for an admin; no kubeconfig can say this."""
    return ClusterAccess("http://localhost", FixedCredentials(), origin=path, unix_socket=path)
