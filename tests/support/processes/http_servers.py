"""Real HTTP servers on loopback, and ones that only know how to break a connection."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from onenode.apiserver.access.certificates import ServerCertificates, ensure_certificates
from orlop.foundation.structured_log import Secret
from orlop.kube.config.cluster_access import ClientCertificate

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Listening:
    """Where a server is, and what it was asked."""

    address: str
    asked: list[web.Request] = field(default_factory=list)
    connections: set[object] = field(default_factory=set)


@asynccontextmanager
async def serving(
    handler: Handler, *, tls: ssl.SSLContext | None = None, unix: Path | None = None
) -> AsyncIterator[Listening]:
    listening = Listening("")

    async def answer(request: web.BaseRequest) -> web.StreamResponse:
        listening.asked.append(request)  # type: ignore[arg-type]
        listening.connections.add(request.transport)
        return await handler(request)  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(answer, access_log=None, handler_cancellation=True), shutdown_timeout=0.1)
    await runner.setup()
    try:
        if unix is not None:
            await web.UnixSite(runner, str(unix)).start()
            listening.address = str(unix)
        else:
            site = web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls)
            await site.start()
            port = runner.addresses[0][1]
            listening.address = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
        yield listening
    finally:
        await runner.cleanup()


Conversation = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def conversing(talk: Conversation) -> AsyncIterator[str]:
    """A server of bare bytes: `talk` gets each connection, which is closed when it returns."""
    talks: set[asyncio.Task[None]] = set()

    async def meet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        talks.add(asyncio.current_task())  # type: ignore[arg-type]
        try:
            await talk(reader, writer)
        finally:
            writer.close()

    server = await asyncio.start_server(meet, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        for one in talks:
            one.cancel()
        await asyncio.gather(*talks, return_exceptions=True)
        await server.wait_closed()


async def read_request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line.split(b":")[1] for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    return head + await reader.readexactly(int(lengths[0]) if lengths else 0)


def certificates_in(folder: Path) -> ServerCertificates:
    return ensure_certificates(folder, datetime.now(UTC))


def server_tls(files: ServerCertificates, *, clients: bytes | None = None) -> ssl.SSLContext:
    """`clients` is the certificate of whom the server wants to see one of."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(files.server_certificate, files.server_key)
    if clients is not None:
        context.load_verify_locations(cadata=clients.decode())
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def client_certificate(name: str) -> ClientCertificate:
    """Signed by itself: who trusts it trusts nobody else."""
    key = ec.generate_private_key(ec.SECP256R1())
    who = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    builder = x509.CertificateBuilder().subject_name(who).issuer_name(who).public_key(key.public_key())
    builder = builder.serial_number(x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
    certificate = builder.sign(key, hashes.SHA256())
    pem = serialization.Encoding.PEM
    private = key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return ClientCertificate(certificate.public_bytes(pem), Secret(private))
