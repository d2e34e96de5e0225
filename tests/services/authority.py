"""A certificate authority of tests and benches, and what it issues to servers.

authority = Authority(folder)
context = server_context(authority.issue("server"))
...clients trust `authority.bundle`...
"""

from __future__ import annotations

import datetime
import functools
import ipaddress
import ssl
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

HERE: Final = ("127.0.0.1", "localhost")
LIFE: Final = datetime.timedelta(days=2)
CA_USAGE: Final = x509.KeyUsage(
    digital_signature=True,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)


class Authority:
    """Signs certificates of servers. `bundle` is the PEM file that a client has to trust."""

    def __init__(self, folder: Path, name: str = "authority") -> None:
        self._folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = _named(f"CacheFS tests, {name}")
        self._public_id = x509.SubjectKeyIdentifier.from_public_key(self._key.public_key())
        made = (
            self._builder(self._name, self._key.public_key(), datetime.timedelta())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(CA_USAGE, critical=True)
            .add_extension(self._public_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.bundle = folder / f"{name}.pem"
        self.bundle.write_bytes(made.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, hosts: tuple[str, ...] = HERE, expired: bool = False) -> Path:
        """Writes a certificate for `hosts` and its key into one PEM file; returns its path."""
        key = ec.generate_private_key(ec.SECP256R1())
        age = LIFE * 2 if expired else datetime.timedelta()
        known = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(self._public_id)
        made = (
            self._builder(_named(f"CacheFS tests, {name}"), key.public_key(), age)
            .add_extension(x509.SubjectAlternativeName([*map(_host, hosts)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(known, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        private = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
        path = self._folder / f"{name}.pem"
        path.write_bytes(private + made.public_bytes(serialization.Encoding.PEM))
        return path

    @functools.cached_property
    def certificate(self) -> Path:
        """A valid certificate of this machine's loopback address, with its key."""
        return self.issue(f"{self.bundle.stem}-server")

    def trusting(self) -> ssl.SSLContext:
        """Returns a client's context that trusts this authority alone."""
        return ssl.create_default_context(cafile=str(self.bundle))

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, age: datetime.timedelta
    ) -> x509.CertificateBuilder:
        begins = datetime.datetime.now(datetime.UTC) - LIFE / 2 - age
        serial = x509.random_serial_number()
        return x509.CertificateBuilder(self._name, subject, key, serial, begins, begins + LIFE)


def _named(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _host(text: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        return x509.DNSName(text)
