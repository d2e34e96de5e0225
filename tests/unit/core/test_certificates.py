"""When certificates expire."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cachefs.core.certificates import _not_after, expires_at_s


def certificate(directory: Path, days: int, key: str = "ec") -> tuple[str, float]:
    """A certificate of openssl, and when it ends by what openssl says."""
    options = {"ec": ["ec", "-pkeyopt", "ec_paramgen_curve:P-256"], "rsa": ["rsa:2048"]}[key]
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", *options, "-nodes", "-subj", "/CN=x",
         "-keyout", "key.pem", "-out", "cert.pem", "-days", str(days)],
        cwd=directory, check=True, capture_output=True,
    )  # fmt: skip
    end = subprocess.run(
        ["openssl", "x509", "-in", "cert.pem", "-noout", "-enddate"],
        cwd=directory, check=True, capture_output=True, text=True,
    ).stdout  # fmt: skip
    at_s = ssl.cert_time_to_seconds(end.strip().removeprefix("notAfter="))
    return (directory / "cert.pem").read_text(), float(at_s)


@pytest.mark.parametrize("key", ["ec", "rsa"])
def test_the_end_of_a_certificate(tmp_path: Path, key: str) -> None:
    text, end_s = certificate(tmp_path, 2, key)
    assert expires_at_s(text) == end_s


def test_the_first_of_a_chain_to_end_counts(tmp_path: Path) -> None:
    """Years from 2050 on are written with four digits."""
    late, late_s = certificate(tmp_path, 20_000)
    assert expires_at_s(late) == late_s
    soon, soon_s = certificate(tmp_path, 2)
    assert expires_at_s(f"Bag Attributes\n{late}\n{soon}") == soon_s


def test_what_is_no_certificate(tmp_path: Path) -> None:
    for text in ("", "-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----"):
        with pytest.raises(ValueError, match="certificate"):
            expires_at_s(text)


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        _not_after(data)
    except ValueError:
        pass


@pytest.mark.timeout(20)
def test_a_file_of_beginnings_without_an_end_is_read_once() -> None:
    """It took minutes, in which the server did not start."""
    with pytest.raises(ValueError, match="no certificate"):
        expires_at_s("-----BEGIN CERTIFICATE-----" * 38_000)
