"""A server presents a certificate that was renewed, and the former one while the new one is bad."""

from __future__ import annotations

import asyncio
import hashlib
import os
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from cachefs.client.certificate_file import CertificateFile
from cachefs.core.errors import BadConfig
from cachefs.core.specs import Security
from tests.services.authority import Authority

HOST = "127.0.0.1"


def certificate_of(path: Path) -> str:
    """Returns the digest of the certificate in a file."""
    text = path.read_text()
    pem = text[text.index("-----BEGIN CERTIFICATE-----") :]
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert(pem)).hexdigest()


@asynccontextmanager
async def listening(files: CertificateFile) -> AsyncIterator[int]:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(100):
            writer.write(data)
        writer.close()

    server = await asyncio.start_server(echo, HOST, 0, ssl=files.context)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def connected(
    port: int, authority: Authority, name: str | None
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter, str]:
    """Returns a connection, and the digest of the certificate that the server presents."""
    context = ssl.create_default_context(cafile=str(authority.bundle))
    context.check_hostname = name is not None
    reader, writer = await asyncio.open_connection(
        HOST, port, ssl=context, server_hostname=name or ""
    )
    presented = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    return reader, writer, hashlib.sha256(presented).hexdigest()


def replace(path: Path, by: Path) -> None:
    """Replaces a file as Kubernetes does: by another one of the name."""
    new = path.with_suffix(".new")
    new.write_bytes(by.read_bytes())
    os.replace(new, path)


@pytest.mark.parametrize("name", [HOST, "localhost", None])
def test_new_connections_get_the_renewed_certificate(tmp_path: Path, name: str | None) -> None:
    """An address is no server name of TLS: the client names none then."""
    authority = Authority(tmp_path)
    path = tmp_path / "tls.pem"
    first, second = authority.issue("first"), authority.issue("second")
    path.write_bytes(first.read_bytes())

    async def work() -> None:
        files = CertificateFile(Security(tls_cert=str(path)))
        async with listening(files) as port:
            reader, writer, presented = await connected(port, authority, name)
            assert presented == certificate_of(first)
            replace(path, second)
            expiry_s = files.facts["expires_at_s"]
            files.look()
            other_reader, other, presented = await connected(port, authority, name)
            assert presented == certificate_of(second)
            assert files.facts["expires_at_s"] >= expiry_s
            for r, w in ((reader, writer), (other_reader, other)):
                w.write(b"still here")
                assert await r.read(100) == b"still here"
                w.close()

    asyncio.run(work())


def test_the_former_certificate_is_presented_while_the_new_one_is_bad(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    authority = Authority(tmp_path)
    path = tmp_path / "tls.pem"
    first, second = authority.issue("first"), authority.issue("second")
    path.write_bytes(first.read_bytes())

    async def work() -> None:
        files = CertificateFile(Security(tls_cert=str(path)))
        async with listening(files) as port:
            for bad in ("", "no certificate"):
                path.write_text(bad)
                files.look()
                files.look()
                _, writer, presented = await connected(port, authority, HOST)
                assert presented == certificate_of(first)
                assert "tls_cert cannot be used" in files.facts["cause"]
                writer.close()
            replace(path, second)
            files.look()
            _, writer, presented = await connected(port, authority, HOST)
            assert presented == certificate_of(second)
            assert files.facts["cause"] == ""
            writer.close()

    asyncio.run(work())
    assert "the former one is presented" in caplog.text


def test_without_tls_there_is_nothing_to_look_at(tmp_path: Path) -> None:
    files = CertificateFile(Security())
    files.look()
    assert (files.context, files.facts) == (None, {})
    with pytest.raises(BadConfig, match="tls_cert cannot be used"):
        CertificateFile(Security(tls_cert=str(tmp_path / "none")))
