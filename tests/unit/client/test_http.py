"""Blocking calls over HTTP: answers, typed failures, tokens, and connections that break."""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cachefs.client.credentials import read_tokens, server_context
from cachefs.client.http import HttpClient
from cachefs.core import cluster as c
from cachefs.core import messages as m
from cachefs.core.access import Access, parse_tokens
from cachefs.core.errors import (
    AccessDenied,
    BadConfig,
    DeadlineExceeded,
    NotFound,
    ProtocolError,
    Unreachable,
)
from cachefs.core.specs import Security
from tests.unit.cli.fake_master import FakeMaster

TOKEN = "t" * 40


def gone(body: m.Message) -> m.Message:
    raise NotFound("no such worker", remedy="`cachefs workers` lists them")


@pytest.fixture
def master() -> Iterator[FakeMaster]:
    scripts = {c.ListUfs: lambda _: c.UfsTable([]), c.Drain: gone, c.Leave: lambda _: m.Done()}
    with FakeMaster(scripts).listening() as served:
        yield served


def test_calls_share_a_connection(master: FakeMaster) -> None:
    with HttpClient(master.url, Security()) as client:
        assert client.call(c.ListUfs(), c.UfsTable).rows == []
        with pytest.raises(NotFound, match="no such worker"):
            client.call(c.Drain("w"), m.Done)
        client.call(c.Leave("w"), m.Done)
    assert master.asked == [c.ListUfs(), c.Drain("w"), c.Leave("w")]
    assert master.connections == 1


def test_a_kept_connection_that_broke_is_made_anew(master: FakeMaster) -> None:
    with HttpClient(master.url, Security()) as client:
        client.call(c.ListUfs(), c.UfsTable)
        master.drop_next = True
        client.call(c.ListUfs(), c.UfsTable)
    assert master.connections == 2


def test_a_stopped_process_is_noticed_before_the_time_of_a_long_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The kernel accepts the connection of a process that SIGSTOP holds."""
    start = time.monotonic()
    monkeypatch.setattr("cachefs.client.http.PROBE_TIMEOUT_S", 0.05)
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        HttpClient(f"http://127.0.0.1:{silent.getsockname()[1]}", Security()) as client,
        pytest.raises(DeadlineExceeded, match="no answer from the master in time"),
    ):
        client.call(c.ListUfs(), c.UfsTable, 60.0)
    assert time.monotonic() - start < 60, "the time of the question"


def test_a_process_that_answers_before_a_long_question_runs(master: FakeMaster) -> None:
    master.raw = (500, b"no")  # whatever it answers
    with HttpClient(master.url, Security()) as client, pytest.raises(ProtocolError, match="500"):
        client.call(c.ListUfs(), c.UfsTable, 60.0)


def test_a_first_connection_that_breaks_is_an_error(master: FakeMaster) -> None:
    master.drop_next = True
    with HttpClient(master.url, Security()) as client, pytest.raises(Unreachable) as caught:
        client.call(c.ListUfs(), c.UfsTable)
    assert "if it speaks TLS" in caught.value.remedy, "as a server of TLS does"


def test_answers_that_are_none_of_ours(master: FakeMaster) -> None:
    with HttpClient(master.url, Security()) as client:
        with pytest.raises(ProtocolError, match="answered UfsTable"):
            client.call(c.ListUfs(), m.Done)
        master.raw = (404, b"<html>not found</html>")
        with pytest.raises(ProtocolError, match="status 404"):
            client.call(c.ListUfs(), c.UfsTable)


def test_nobody_there() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with HttpClient(url, Security()) as client, pytest.raises(Unreachable) as caught:
            client.call(c.ListUfs(), c.UfsTable)
    assert url in caught.value.one_line()


def test_one_that_never_answers() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with HttpClient(url, Security()) as client, pytest.raises(DeadlineExceeded):
            client.call(c.ListUfs(), c.UfsTable, 0.05)


HEAD = b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"


@contextlib.contextmanager
def dripping(sent: bytes) -> Iterator[str]:
    """A server that answers with a byte every 10 ms, without an end."""
    ended = threading.Event()

    def drip(listener: socket.socket) -> None:
        peer, _ = listener.accept()
        with peer, contextlib.suppress(OSError):
            for byte in itertools.chain(sent, itertools.repeat(0x20)):
                peer.sendall(bytes([byte]))
                if ended.wait(0.01):
                    return

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=drip, args=(listener,), daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize("sent", [b"", HEAD[:20], HEAD], ids=["status", "headers", "body"])
def test_a_server_that_drips_does_not_outlive_the_deadline(sent: bytes) -> None:
    start = time.monotonic()
    with (
        dripping(sent) as url,
        HttpClient(url, Security()) as client,
        pytest.raises(DeadlineExceeded, match="in time"),
    ):
        client.call(c.ListUfs(), c.UfsTable, 0.3)
    assert time.monotonic() - start < 20


def test_a_tls_handshake_that_drips_does_not_outlive_the_deadline() -> None:
    """The first record is announced as a long one."""
    start = time.monotonic()
    with (
        dripping(b"\x16\x03\x03\x40\x00\x02\x00\x3f\xfc") as url,
        HttpClient(url.replace("http:", "https:"), Security()) as client,
        pytest.raises(DeadlineExceeded),
    ):
        client.call(c.ListUfs(), c.UfsTable, 0.3)
    assert time.monotonic() - start < 20


def test_tokens_are_presented(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.touch(mode=0o600)
    path.write_text(TOKEN)
    access = Access(parse_tokens(TOKEN, "f"))
    with FakeMaster({c.ListUfs: lambda _: c.UfsTable([])}, access).listening() as master:
        with HttpClient(master.url, Security(str(path))) as client:
            client.call(c.ListUfs(), c.UfsTable)
        with HttpClient(master.url, Security()) as client, pytest.raises(AccessDenied):
            client.call(c.ListUfs(), c.UfsTable)


def test_token_files_are_private(tmp_path: Path) -> None:
    path = tmp_path / "token"
    path.write_text(TOKEN)
    path.chmod(0o640)
    with pytest.raises(AccessDenied, match="others may read"):
        read_tokens(str(path))
    path.chmod(0o600)
    assert [token.secret for token in read_tokens(str(path))] == [TOKEN]
    link = tmp_path / "link"
    link.symlink_to(path)
    with pytest.raises(BadConfig, match="cannot be opened"):
        read_tokens(str(link))
    os.mkfifo(tmp_path / "fifo", 0o600)
    with pytest.raises(BadConfig, match="not a regular file"):
        read_tokens(str(tmp_path / "fifo"))


def test_certificates_that_cannot_be_used(tmp_path: Path) -> None:
    assert server_context(Security()) is None
    with pytest.raises(BadConfig, match="tls_cert"):
        server_context(Security(tls_key="/k"))
    with pytest.raises(BadConfig, match="cannot be used"):
        server_context(Security(tls_cert=str(tmp_path / "none")))
    with pytest.raises(BadConfig, match="tls_ca"):
        HttpClient("https://127.0.0.1:1", Security(tls_ca=str(tmp_path / "none")))
