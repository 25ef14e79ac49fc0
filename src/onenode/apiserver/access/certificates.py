"""The server's own certificates: a CA made once, a certificate for loopback made by it, both in the state folder.

Order: keys and certificates are made → written beside, readable for root alone → renamed into place, the CA before
what it signed. What is there and still good is kept, so that a kubeconfig stays good over restarts. A certificate that
ends soon, or that its CA did not sign, is made anew; a CA is made anew only when it is not there.

Must not be asked for secrets by anybody but the server: keys leave this module as files alone.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

CA_LIFE: Final = timedelta(days=3650)
SERVER_LIFE: Final = timedelta(days=365)
RENEW_BEFORE: Final = timedelta(days=30)
# A clock that was set back a little must not make a new certificate invalid.
BACKDATED: Final = timedelta(hours=1)
SERVER_NAMES: Final = ("localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc")
SERVER_ADDRESSES: Final = ("127.0.0.1", "::1")

PrivateKey = ec.EllipticCurvePrivateKey


class UnusableCertificate(Exception):
    """A file of the state folder that holds no certificate or key; it is named and left alone."""


@dataclass(frozen=True, slots=True)
class ServerCertificates:
    """Where the files are."""

    ca_certificate: Path
    server_certificate: Path
    server_key: Path


@dataclass(frozen=True, slots=True)
class _Signed:
    certificate: x509.Certificate
    key: PrivateKey


def ensure_certificates(folder: Path, now: datetime) -> ServerCertificates:
    """Makes what is missing or ends soon; the folder must be there."""
    try:
        return _ensure(folder, now)
    except OSError as error:
        reason = f"{error.filename or folder}: {error.strerror}"
        raise UnusableCertificate(
            f"The certificates in {folder} cannot be read or made: {reason}. Mend that and start again."
        ) from None


def _ensure(folder: Path, now: datetime) -> ServerCertificates:
    files = ServerCertificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
    ca = _load(files.ca_certificate, folder / "ca.key")
    if ca is None:
        ca = _make_ca(now)
        _store(ca, files.ca_certificate, folder / "ca.key")
    server = _load(files.server_certificate, files.server_key)
    if server is None or not _still_good(server.certificate, ca.certificate, now):
        _store(_make_server(ca, now), files.server_certificate, files.server_key)
    return files


def _make_ca(now: datetime) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    name = _name("orlop-ca")
    builder = _builder(name, name, key, now, CA_LIFE)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return _Signed(builder.sign(key, hashes.SHA256()), key)


def _make_server(ca: _Signed, now: datetime) -> _Signed:
    key = ec.generate_private_key(ec.SECP256R1())
    builder = _builder(_name("orlop-apiserver"), ca.certificate.subject, key, now, SERVER_LIFE)
    names = [x509.DNSName(name) for name in SERVER_NAMES]
    addresses = [x509.IPAddress(ipaddress.ip_address(address)) for address in SERVER_ADDRESSES]
    builder = builder.add_extension(x509.SubjectAlternativeName([*names, *addresses]), critical=False)
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca.key.public_key())
    return _Signed(builder.add_extension(issuer, critical=False).sign(ca.key, hashes.SHA256()), key)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: PrivateKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATED)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _name(common_name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_encipherment=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _still_good(certificate: x509.Certificate, ca: x509.Certificate, now: datetime) -> bool:
    if not certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc - RENEW_BEFORE:
        return False
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, ValueError):
        return False
    return True


def _load(certificate: Path, key: Path) -> _Signed | None:
    """Both files, or None where one is missing: a crash between the two writes leaves half a pair."""
    if not (certificate.exists() and key.exists()):
        return None
    try:
        loaded = serialization.load_pem_private_key(key.read_bytes(), password=None)
        pair = x509.load_pem_x509_certificate(certificate.read_bytes())
    except (ValueError, TypeError) as error:
        raise UnusableCertificate(f"{certificate} or {key} holds no certificate or key: {error}; remove both") from None
    if not isinstance(loaded, ec.EllipticCurvePrivateKey) or loaded.public_key() != pair.public_key():
        return None
    return _Signed(pair, loaded)


def _store(signed: _Signed, certificate: Path, key: Path) -> None:
    pem = serialization.Encoding.PEM
    private = signed.key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    # The key first: a certificate without its key is what a crash leaves, and is made anew.
    write_private(key, private)
    write_private(certificate, signed.certificate.public_bytes(pem))


def write_private(path: Path, content: bytes) -> None:
    """Whole or not at all, and for root's eyes from the first byte."""
    beside = path.with_name(f".{path.name}.new")
    try:
        _write_synced(beside, content)
        beside.replace(path)
    except OSError:
        with contextlib.suppress(OSError):  # half a file on a full disk is in everybody's way
            beside.unlink(missing_ok=True)
        raise


def _write_synced(path: Path, content: bytes) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
