"""Where and how to connect to an API server: its address, and a TLS context with our certificate.

Keys never touch a disk. Python's TLS reads a certificate and its key only from files, so they are written to a file
without a name in the memory of this process for as long as they are read.
"""

from __future__ import annotations

import os
import ssl
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from orlop.kube.api_errors import CredentialsUnavailable
from orlop.kube.config.cluster_access import ClientCertificate, ClusterAccess

# ---- the address -----------------------------------------------------------------------------------------------------

PORTS: Final = {"http": 80, "https": 443}


class InvalidAddress(ValueError):
    """The text is not the address of a server."""


@dataclass(frozen=True, slots=True)
class ServerAddress:
    host: str
    port: int
    host_header: str
    path: str
    """The prefix of each request's path; empty, or without a trailing slash."""


def server_address(text: str) -> ServerAddress:
    try:
        parts = urlsplit(text)
        host, port = parts.hostname, parts.port
    except ValueError as error:
        raise InvalidAddress(f"{text} is not the address of a server: {error}") from None
    if parts.scheme not in PORTS or not host:
        raise InvalidAddress(f"{text} is not the address of a server: write https://host:port")
    named = f"[{host}]" if ":" in host else host
    usual = PORTS[parts.scheme]
    header = named if port is None or port == usual else f"{named}:{port}"
    return ServerAddress(host, usual if port is None else port, header, parts.path.rstrip("/"))


# ---- TLS -------------------------------------------------------------------------------------------------------------

PROTOCOLS: Final = ["http/1.1"]


class UnusableAuthority(ValueError):
    """The certificate authority is not valid."""


def tls_context(access: ClusterAccess, certificate: ClientCertificate | None) -> ssl.SSLContext:
    context = _trusting(access)
    context.set_alpn_protocols(PROTOCOLS)
    # Python 3.13 requires extensions that the authorities of many clusters lack, and other clients accept.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    if access.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _show(context, certificate, access.origin)
    return context


def _trusting(access: ClusterAccess) -> ssl.SSLContext:
    if access.certificate_authority is None:
        return ssl.create_default_context()
    try:
        return ssl.create_default_context(cadata=access.certificate_authority.decode())
    except (ssl.SSLError, ValueError) as error:
        raise UnusableAuthority(
            f"the certificate authority of {access.origin or access.server} holds no certificate: {error}"
        ) from None


def _show(context: ssl.SSLContext, certificate: ClientCertificate, origin: str) -> None:
    descriptor = os.memfd_create("client-certificate", os.MFD_CLOEXEC)
    try:
        os.write(descriptor, certificate.certificate + b"\n" + certificate.key.reveal())
        context.load_cert_chain(f"/proc/self/fd/{descriptor}", password=_no_password)
    except (ssl.SSLError, ValueError) as error:
        raise CredentialsUnavailable(f"the client certificate or the key of {origin} cannot be used: {error}") from None
    finally:
        os.close(descriptor)


def _no_password() -> str:
    """Refuse: without this callback OpenSSL would ask for a password on the terminal."""
    raise ValueError("the key has a password; use one without")
