"""TLS as the access to a cluster wants it: whom we trust, and with which certificate we show who we are.

Keys never touch a disk: Python's TLS reads a certificate and its key from files alone, so they are in the memory of
this process, as a file without a name, for as long as they are read.
"""

from __future__ import annotations

import os
import ssl
from typing import Final

from orlop.kube.cluster_access import ClientCertificate, ClusterAccess
from orlop.kube.errors import CredentialsUnavailable

PROTOCOLS: Final = ["http/1.1"]


class UnusableAuthority(ValueError):
    """What is said to be a certificate authority is none."""


def tls_context(access: ClusterAccess, certificate: ClientCertificate | None) -> ssl.SSLContext:
    context = _trusting(access)
    context.set_alpn_protocols(PROTOCOLS)
    # Clusters have authorities that lack what newer Pythons ask for, and that every other client accepts.
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
    """Without this, the library would ask for one on the terminal."""
    raise ValueError("the key has a password; use one without")
