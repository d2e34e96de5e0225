"""Large reads by our own sockets: connections are kept, and given up, as HTTP says."""

from __future__ import annotations

import threading
import time

import pytest

from cachefs.core.errors import Stale
from cachefs.core.model import Fingerprint, Kind
from connectors.s3 import S3Connector
from connectors.s3_options import S3Options
from tests.unit.connectors.scripted_s3 import Answer, Request, ScriptedS3, ranged
from tests.unit.connectors.test_s3_faults import DATA, VERSION, connector, read

LIMIT_S = 10.0


@pytest.fixture
def connects(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The connections that were made."""
    import connectors.s3_direct as module

    made: list[str] = []
    connect = module._connect

    def counted(host: str, port: int | None) -> object:
        made.append(host)
        return connect(host, port)

    monkeypatch.setattr(module, "_connect", counted)
    return made


def test_one_connection_serves_all_reads(server: ScriptedS3, connects: list[str]) -> None:
    server.script = lambda request: ranged(request, DATA)
    source = connector(server)
    for _ in range(3):
        assert read(source) == (DATA, None)
    assert len(connects) == 1
    source.close()


def test_chunks_are_pages(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA)
    sizes = [len(chunk) for chunk in connector(server).read(b"f", 0, len(DATA), VERSION)]
    assert sizes == [1 << 20, 1 << 20, len(DATA) - (2 << 20)]


def test_a_connection_that_the_server_closed_is_not_used(
    server: ScriptedS3, connects: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither one that is seen to be closed, nor one that closes while it is asked."""

    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.cut_after = len(DATA)  # whole, and then it hangs up
        return answer

    server.script = script
    source = connector(server)
    assert read(source) == (DATA, None)
    monkeypatch.setattr("connectors.s3_direct._has_ended", lambda _connection: False)
    assert read(source) == (DATA, None)
    assert len(connects) == 2


def test_a_server_that_says_that_it_closes(server: ScriptedS3, connects: list[str]) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.headers["Connection"] = "close"
        return answer

    server.script = script
    source = connector(server)
    for _ in range(2):
        assert read(source) == (DATA, None)
    assert len(connects) == 2


def test_a_body_without_a_length_is_read_by_another_client(
    server: ScriptedS3, connects: list[str]
) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.headers |= {"Content-Length": "", "Connection": "close"}
        answer.cut_after = len(DATA)
        return answer

    server.script = script
    got, _ = read(connector(server))
    assert DATA.startswith(got)
    assert len(server.requests) == 2
    assert len(connects) == 1


def test_a_body_that_is_closed_ends_for_whoever_reads_it(server: ScriptedS3) -> None:
    def script(request: Request) -> Answer:
        answer = ranged(request, DATA)
        answer.stall_after = (1 << 20) + 100
        return answer

    server.script = script
    body = connector(server).read(b"f", 0, len(DATA), VERSION)
    chunks = iter(body)
    assert bytes(next(chunks)) == DATA[: 1 << 20]
    rest: list[bytes] = []
    reader = threading.Thread(target=lambda: rest.extend(bytes(chunk) for chunk in chunks))
    reader.start()
    until = time.monotonic() + LIMIT_S
    while not body._is_reading and time.monotonic() < until:  # type: ignore[attr-defined]
        pass
    body.close()
    reader.join(LIMIT_S)
    server.stalled.set()
    assert not reader.is_alive()
    assert rest == []


def test_without_etags_the_time_is_compared(server: ScriptedS3) -> None:
    server.script = lambda request: ranged(request, DATA, etag="")
    source = connector(server)
    same = Fingerprint(Kind.FILE, len(DATA), VERSION.mtime_ns, "")
    assert b"".join(bytes(chunk) for chunk in source.read(b"f", 0, len(DATA), same)) == DATA
    other = Fingerprint(Kind.FILE, len(DATA), VERSION.mtime_ns + 10**9, "")
    with pytest.raises(Stale):
        source.read(b"f", 0, len(DATA), other)


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_what_it_serves(scheme: str, aws: pytest.MonkeyPatch) -> None:
    def serves() -> bool:
        options = S3Options(endpoint_url=f"{scheme}://origin.test", region="us-east-1")
        return S3Connector("bucket", "", options)._direct.serves()

    assert serves() == (scheme == "http")
    aws.setenv("HTTP_PROXY", "http://proxy.test:3128")
    assert not serves()
    aws.setenv("NO_PROXY", "origin.test")
    assert serves() == (scheme == "http")
