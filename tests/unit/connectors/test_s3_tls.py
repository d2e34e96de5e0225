"""What a TLS handshake, a proxy or a coding of bodies may break: each failure is one line with its
cause and its remedy, and no byte is ever another than the object's."""

from __future__ import annotations

import gzip
import random
import ssl
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from cachefs.core import errors
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.base import Connector
from connectors.compose import open_connector
from connectors.meter import Meter
from tests.services.authority import Authority
from tests.unit.connectors.scripted_s3 import (
    Answer,
    Request,
    ScriptedS3,
    error,
    listing,
    ranged,
    scripted_s3,
)

DATA = random.Random(5).randbytes(300_000)
VERSION = Fingerprint(Kind.FILE, len(DATA), 1_795_253_534 * 10**9, "e1")


def answer(request: Request) -> Answer:
    """Lists one file and reads it; the connection ends, so that the next request shakes hands."""
    found = ranged(request, DATA) if "range" in request.headers else listing(("f", len(DATA)))
    found.headers["Connection"] = "close"
    return found


def opened(url: str, *, tries_s: float = 30.0, **options: str) -> Connector:
    """A connector as mounts have it, which does not pause between its tries."""
    spec = UfsSpec("s3://bucket", {"endpoint_url": url, "region": "us-east-1", **options})
    return open_connector(
        spec, deadline_s=tries_s, meter=Meter(), sleep=lambda _s: None, rng=lambda: 0.5
    )


def content(source: Connector) -> bytes:
    return b"".join(bytes(chunk) for chunk in source.read(b"f", 0, len(DATA), VERSION))


# ---- certificates ----


@dataclass(frozen=True)
class Bad:
    """A handshake that a client refuses. `cause` and `remedy` are words of the message."""

    certificate: Callable[[Authority, Path], Path]
    cause: str
    remedy: str
    newest: ssl.TLSVersion = ssl.TLSVersion.MAXIMUM_SUPPORTED


BAD = {
    "expired": Bad(lambda ca, _: ca.issue("expired", expired=True), "has expired", "renew"),
    "other host": Bad(
        lambda ca, _: ca.issue("other", hosts=("other.test",)), "for another host", "--endpoint-url"
    ),
    "unknown authority": Bad(
        lambda _, folder: Authority(folder, "unknown").certificate, "not trusted", "--ca-bundle"
    ),
    "TLS 1.1": Bad(
        lambda ca, _: ca.certificate, "TLS is too old", "TLS 1.2", ssl.TLSVersion.TLSv1_1
    ),
}
CALLS: dict[str, Callable[[Connector], object]] = {
    "check": lambda source: source.check(),
    "list": lambda source: list(source.list_dir(b"")),
    "read": content,
    "read all": lambda source: source.read_all(b"f", VERSION),
}


@pytest.mark.parametrize("kind", BAD)
@pytest.mark.parametrize("call", CALLS)
def test_a_handshake_that_fails_is_one_line_with_its_remedy(
    authority: Authority, tmp_path: Path, kind: str, call: str
) -> None:
    bad = BAD[kind]
    with scripted_s3(bad.certificate(authority, tmp_path), bad.newest) as server:
        server.script = answer
        source = opened(server.url, tries_s=0.05, ca_bundle=str(authority.bundle))
        with pytest.raises(errors.Unreachable, match=bad.cause) as caught:
            CALLS[call](source)
        assert bad.remedy in caught.value.remedy
        assert "\n" not in caught.value.one_line()
        assert server.requests == [], "nothing is said to a server that is not known"
        source.close()


def test_another_certificate_of_the_same_authority(authority: Authority) -> None:
    """As when a server's certificate is renewed."""
    with scripted_s3(authority.certificate) as server:
        server.script = answer
        source = opened(server.url, ca_bundle=str(authority.bundle))
        for name in ("renewed", "renewed-again"):
            assert content(source) == DATA
            source.check()
            server.present(authority.issue(name))
        assert content(source) == DATA
        source.close()


def test_a_certificate_that_becomes_invalid_and_valid_again(authority: Authority) -> None:
    with scripted_s3(authority.certificate) as server:
        server.script = answer
        source = opened(server.url, tries_s=0.05, ca_bundle=str(authority.bundle))
        assert content(source) == DATA
        server.present(authority.issue("late", expired=True))
        with pytest.raises(errors.Unreachable, match="has expired"):
            source.check()
        with pytest.raises(errors.Unreachable, match="has expired"):
            content(source)
        server.present(authority.certificate)
        source.check()
        assert content(source) == DATA
        source.close()


# ---- a proxy that wants credentials ----


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("to", ["http", "https"])
def test_a_proxy_that_wants_credentials(aws: pytest.MonkeyPatch, to: str, call: str) -> None:
    """For TLS it refuses the tunnel, for plain HTTP each request."""
    with scripted_s3() as proxy:
        proxy.script = lambda _request: Answer(
            407, b"no", {"Proxy-Authenticate": 'Basic realm="p"', "Connection": "close"}
        )
        for name in ("http_proxy", "https_proxy"):
            aws.setenv(name, proxy.url)
            aws.setenv(name.upper(), proxy.url)
        source = opened(f"{to}://storage.test", tries_s=0.05)
        with pytest.raises(errors.Unreachable, match="proxy") as caught:
            CALLS[call](source)
        assert "PROXY" in caught.value.remedy
        assert "\n" not in caught.value.one_line()
        assert {request.method for request in proxy.requests} <= {"CONNECT", "GET", "HEAD"}
        source.close()


# ---- bodies ----


@pytest.mark.parametrize("coding", ["gzip", "deflate", "br", "zstd", "aws-chunked", "x-own"])
def test_a_coded_object_is_read_as_it_is_kept(server: ScriptedS3, coding: str) -> None:
    """`Content-Encoding` is what a user has said of an object: its bytes are those that are kept,
    whether they are so coded or not, and a listing has counted them."""
    for kept in (gzip.compress(DATA), DATA):
        version = Fingerprint(Kind.FILE, len(kept), VERSION.mtime_ns, "e1")

        def script(request: Request, kept: bytes = kept) -> Answer:
            found = ranged(request, kept)
            found.headers["Content-Encoding"] = coding
            return found

        server.script = script
        source = opened(server.url)
        assert bytes(source.read_all(b"f", version)) == kept
        pieces = source.read(b"f", 0, len(kept), version)
        assert b"".join(bytes(piece) for piece in pieces) == kept
        middle = source.read(b"f", 1000, 2000, version)
        assert b"".join(bytes(piece) for piece in middle) == kept[1000:3000]
        source.close()
        accepted = {
            request.headers.get("accept-encoding", "identity") for request in server.requests
        }
        assert accepted == {"identity"}, "no server is invited to code a body"


SIZES = (110 << 10, (2 << 20) + 777)
READERS = 16
ROUNDS = 3


def of(number: int, size: int) -> bytes:
    """An object's bytes: no two have a piece in common."""
    return random.Random(number).randbytes(size)


@dataclass
class Broken:
    """Answers reads of many objects of one size and one etag, and breaks some: cuts, ends early,
    refuses, closes behind a body."""

    rng: random.Random
    objects: dict[str, bytes]
    faults: int = 0

    def __call__(self, request: Request) -> Answer:
        found = ranged(request, self.objects[request.target.partition("?")[0]])
        draw = self.rng.random()
        self.faults += draw < 0.35
        if draw < 0.15:
            found.cut_after = self.rng.randrange(len(found.body))
        elif draw < 0.20:
            found.body = found.body[: self.rng.randrange(len(found.body))]
        elif draw < 0.25:
            return error(503, "SlowDown")
        elif draw < 0.35:
            found.headers["Connection"] = "close"
        elif draw < 0.55:
            found.chunk_bytes = self.rng.choice([1000, 65536, 1 << 20])
        return found


@pytest.mark.parametrize("size", SIZES)
def test_no_body_comes_into_the_buffer_of_another_request(server: ScriptedS3, size: int) -> None:
    """Every byte of many reads at once is compared, while connections are cut and used again. All
    objects have one size and one etag, so that only their bytes tell them apart."""
    seed = random.randrange(1 << 30)
    print("seed", seed)
    rng = random.Random(seed)
    objects = {f"/bucket/o{number:03}": of(number, size) for number in range(READERS)}
    server.script = broken = Broken(random.Random(seed), objects)
    version = Fingerprint(Kind.FILE, size, VERSION.mtime_ns, "e1")
    source = opened(server.url)
    plan = [*objects] * ROUNDS
    rng.shuffle(plan)

    def wrong(job: tuple[str, bool]) -> Iterator[str]:
        key, whole = job
        name = key.rpartition("/")[2].encode()
        if whole:
            got = bytes(source.read_all(name, version))
        else:
            got = b"".join(_pages(source, name, size, version))
        if got != objects[key]:
            yield key

    with ThreadPoolExecutor(READERS) as pool:
        jobs = [(key, rng.random() < 0.5) for key in plan]
        found = [name for names in pool.map(lambda job: [*wrong(job)], jobs) for name in names]
    assert found == []
    assert broken.faults > 0
    source.close()


def _pages(source: Connector, name: bytes, size: int, version: Fingerprint) -> Iterator[bytes]:
    """All of an object. A read that breaks off goes on where it was, as a fill does."""
    at = 0
    while at < size:
        try:
            for chunk in source.read(name, at, size - at, version):
                at += len(chunk)
                yield bytes(chunk)
        except errors.CacheFSError as failure:
            if not failure.retryable:
                raise
