"""Connections to a server are kept, given up and made anew without a reader's notice, and nothing
that is signed goes to another host, over both schemes."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cachefs.core import errors
from tests.services.authority import Authority
from tests.unit.connectors.scripted_s3 import (
    Answer,
    Request,
    ScriptedS3,
    head,
    listing,
    ranged,
    scripted_s3,
)
from tests.unit.connectors.test_s3_tls import DATA, VERSION, content, opened

READS = 6


def closes_silently(answer: Answer) -> None:
    """The connection ends behind the body, and nothing has said so."""
    answer.cut_after = len(answer.body)


def says_close(answer: Answer) -> None:
    answer.headers["Connection"] = "close"


def read_many(server: ScriptedS3, change: Callable[[Answer], None]) -> None:
    """Reads again and again, in both ways, while the server changes each answer so."""

    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        change(answer)
        return answer

    server.script = script
    source = opened(server.url)
    for _ in range(READS):
        assert content(source) == DATA
        assert bytes(source.read_all(b"f", VERSION)) == DATA
    source.close()


def test_connections_are_kept(server: ScriptedS3) -> None:
    """A few serve all reads."""
    read_many(server, lambda _answer: None)
    assert len(server.requests) == 2 * READS
    assert server.connections <= 3


def test_a_connection_is_kept_behind_a_head(server: ScriptedS3) -> None:
    """Names that are looked up one after the other take one connection, and one handshake."""
    server.script = lambda request: listing() if request.method == "GET" else head("e1", len(DATA))
    source = opened(server.url)
    for _ in range(READS):
        assert source.stat(b"f").fingerprint.size == len(DATA)
    source.close()
    assert len(server.requests) == 2 * READS
    assert server.connections == 1


@pytest.mark.parametrize("change", [closes_silently, says_close])
def test_connections_that_end_behind_a_body(
    server: ScriptedS3, change: Callable[[Answer], None]
) -> None:
    read_many(server, change)
    assert len(server.requests) >= 2 * READS
    assert server.connections >= 2 * READS


def test_connections_that_end_in_some_bodies(server: ScriptedS3) -> None:
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)

    def change(answer: Answer) -> None:
        if rng.random() < 0.4:
            closes_silently(answer)

    read_many(server, change)
    assert server.connections < len(server.requests)


@pytest.fixture
def other(server: ScriptedS3, scheme: str, authority: Authority) -> Iterator[ScriptedS3]:
    """Another host's server, which would answer."""
    with scripted_s3(authority.certificate if scheme == "https" else None) as found:
        found.url = found.url.replace("127.0.0.1", "localhost")
        found.script = lambda request: ranged(request, DATA)
        yield found


@pytest.mark.parametrize("status", [301, 302, 307, 308])
def test_a_redirect_takes_no_signature_to_another_host(
    server: ScriptedS3, other: ScriptedS3, status: int
) -> None:
    """It is refused, or followed without one; no byte is another than the object's."""
    where = f"{other.url}/bucket/f"
    server.script = lambda _request: Answer(status, b"elsewhere", {"Location": where})
    source = opened(server.url, tries_s=0.05)
    for read in (lambda: content(source), lambda: bytes(source.read_all(b"f", VERSION))):
        with contextlib.suppress(errors.CacheFSError):
            assert read() == DATA
    assert all("authorization" not in request.headers for request in other.requests)
    assert server.requests
    source.close()


def test_files_of_curl_give_no_credentials(
    server: ScriptedS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A login in the home of the server's user goes to no store."""
    (tmp_path / ".netrc").write_text("default login me password secret\n")
    (tmp_path / ".curlrc").write_text('user = "me:secret"\n')
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("CURL_HOME", str(tmp_path))
    server.script = lambda request: ranged(request, DATA)
    with contextlib.closing(opened(server.url, anonymous="true")) as source:
        assert content(source) == bytes(source.read_all(b"f", VERSION)) == DATA
    assert server.requests
    assert all("authorization" not in request.headers for request in server.requests)
