"""The address of an API server and our credentials for it: values that `kubeconfig` builds and `http/` uses.

Secrets are wrapped, so that no log, error or debugger shows them. Nothing here reads a file or runs a program.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from typing import Protocol

from orlop.foundation.structured_log import Secret


@dataclass(frozen=True, slots=True)
class ClientCertificate:
    """A certificate and its key, in PEM."""

    certificate: bytes
    key: Secret[bytes]


@dataclass(frozen=True, slots=True)
class Password:
    username: str
    password: Secret[str]


@dataclass(frozen=True, slots=True)
class Credentials:
    """What we send to authenticate; with nothing we are anonymous."""

    token: Secret[str] | None = None
    client_certificate: ClientCertificate | None = None
    password: Password | None = None

    def authorization(self) -> Secret[str] | None:
        """Return the value of the Authorization header."""
        if self.token is not None:
            return Secret(f"Bearer {self.token.reveal()}")
        if self.password is not None:
            pair = f"{self.password.username}:{self.password.password.reveal()}"
            return Secret(f"Basic {base64.b64encode(pair.encode()).decode()}")
        return None


ANONYMOUS = Credentials()


class CredentialsProvider(Protocol):
    async def current(self) -> Credentials:
        """Return the credentials to use now; raise `CredentialsUnavailable` if there are none."""

    async def renew(self, refused: Credentials) -> None:
        """Get other credentials, because the server refused these, unless that has been done already."""


@dataclass(frozen=True, slots=True)
class FixedCredentials:
    """Credentials that never change."""

    credentials: Credentials = ANONYMOUS

    async def current(self) -> Credentials:
        return self.credentials

    async def renew(self, refused: Credentials) -> None:
        """Do nothing: there are no others."""


@dataclass(frozen=True, slots=True)
class ClusterAccess:
    server: str
    """Such as `https://10.0.0.1:6443`, possibly with a path, without a trailing slash."""
    credentials: CredentialsProvider
    namespace: str = "default"
    certificate_authority: bytes | None = None
    """In PEM; None means the system's authorities."""
    insecure: bool = False
    """Whether the server's certificate is not verified."""
    tls_server_name: str | None = None
    """The name that the server's certificate must have, if not the host in `server`."""
    headers: tuple[tuple[str, str], ...] = ()
    """Sent with every request: impersonation."""
    origin: str = ""
    """Where this was read, for messages."""
    unix_socket: str = ""
    """The path of a unix socket to connect to, instead of host and port."""


def over_unix_socket(path: str) -> ClusterAccess:
    """Return access to a server on this machine that treats everybody who may open its socket as admin."""
    return ClusterAccess("http://localhost", FixedCredentials(), origin=path, unix_socket=path)
