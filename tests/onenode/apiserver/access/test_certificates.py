from __future__ import annotations

import asyncio
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from onenode.apiserver.access.certificates import UnusableCertificate, ensure_certificates

NOW = datetime.now(UTC)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


async def test_a_client_that_trusts_the_ca_trusts_the_server_under_its_names(short_folder: Path):
    files = ensure_certificates(short_folder, NOW)
    serving = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    serving.load_cert_chain(files.server_certificate, files.server_key)
    trusting = ssl.create_default_context(cafile=files.ca_certificate)

    async def bye(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(bye, "127.0.0.1", 0, ssl=serving) as server:
        port = server.sockets[0].getsockname()[1]
        for name in ("127.0.0.1", "localhost", "kubernetes.default.svc"):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname=name)
            await reader.read()
            writer.close()
        with pytest.raises(ssl.SSLCertVerificationError):
            await asyncio.open_connection("127.0.0.1", port, ssl=trusting, server_hostname="example.com")


def test_every_file_is_for_root_alone(short_folder: Path):
    ensure_certificates(short_folder, NOW)

    assert {stat.S_IMODE(path.stat().st_mode) for path in short_folder.iterdir()} == {0o600}


def test_what_is_good_is_kept(short_folder: Path):
    ensure_certificates(short_folder, NOW)
    before = contents(short_folder)

    ensure_certificates(short_folder, NOW + timedelta(days=300))

    assert contents(short_folder) == before


def test_a_server_certificate_that_ends_soon_is_replaced_and_the_ca_kept(short_folder: Path):
    ensure_certificates(short_folder, NOW)
    before = contents(short_folder)

    ensure_certificates(short_folder, NOW + timedelta(days=340))

    after = contents(short_folder)
    assert after["ca.crt"] == before["ca.crt"]
    assert after["server.crt"] != before["server.crt"]


def test_a_server_certificate_of_another_ca_is_replaced(short_folder: Path):
    (short_folder / "a").mkdir()
    (short_folder / "b").mkdir()
    ensure_certificates(short_folder / "a", NOW)
    ensure_certificates(short_folder / "b", NOW)
    for name in ("server.crt", "server.key"):
        (short_folder / "b" / name).write_bytes((short_folder / "a" / name).read_bytes())
    foreign = (short_folder / "b" / "server.crt").read_bytes()

    ensure_certificates(short_folder / "b", NOW)

    assert (short_folder / "b" / "server.crt").read_bytes() != foreign


@pytest.mark.parametrize("missing", ["ca.key", "server.key", "server.crt"])
def test_half_a_pair_that_a_crash_left_is_made_whole(short_folder: Path, missing: str):
    ensure_certificates(short_folder, NOW)
    (short_folder / missing).unlink()

    files = ensure_certificates(short_folder, NOW)

    ssl.create_default_context(ssl.Purpose.CLIENT_AUTH).load_cert_chain(files.server_certificate, files.server_key)


def test_a_file_that_is_none_is_named_and_left_alone(short_folder: Path):
    ensure_certificates(short_folder, NOW)
    (short_folder / "ca.crt").write_text("precious")

    with pytest.raises(UnusableCertificate, match=r"ca\.crt"):
        ensure_certificates(short_folder, NOW)

    assert (short_folder / "ca.crt").read_text() == "precious"
