"""What the connectors on top of fsspec and pyarrow make of options, facts and exceptions."""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import aiohttp
import fsspec
import pytest
import requests
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import fs as arrow

from cachefs.core import errors
from cachefs.core.errors import (
    BadBody,
    BadConfig,
    CacheFSError,
    CredentialsMissing,
    DeadlineExceeded,
    NotFound,
    OriginError,
    Stale,
    Unsupported,
)
from cachefs.core.model import Fingerprint, Kind, UfsSpec
from connectors.azure.scheme import SCHEME as azure
from connectors.base import Entry
from connectors.deadline import bounded
from connectors.gcs.scheme import SCHEME as gcs
from connectors.library import scheme as library
from connectors.library.connector import LibraryConnector, open_arrow
from connectors.library.errors import translated
from connectors.library.fsspec_tree import _facts
from connectors.library.options import check_options, resolved
from connectors.library.pool import MOST_OPEN, Instances
from connectors.library.tree import Facts, VersionRule, time_ns
from connectors.meter import Meter
from connectors.registry import normalise, open_adapter
from connectors.scheme import Scheme

TIME_NS = 1_714_979_289 * 10**9


def test_times() -> None:
    when = datetime(2024, 5, 6, 7, 8, 9, tzinfo=UTC)
    same = (when, when.replace(tzinfo=None), when.timestamp(), int(when.timestamp()))
    texts = ("2024-05-06T07:08:09Z", "2024-05-06T07:08:09", "Mon, 06 May 2024 07:08:09 GMT")
    assert {time_ns(value) for value in (*same, *texts)} == {TIME_NS}
    assert time_ns(when.replace(microsecond=1)) == TIME_NS + 1000
    assert [time_ns(value) for value in (None, "soon", True, [])] == [None] * 4


@pytest.mark.parametrize("time", [float("nan"), float("inf"), -float("inf"), 1e308])
def test_a_number_that_is_no_time_hides_its_file_alone(time: float) -> None:
    facts = {"type": "file", "size": 1, "mtime": time}
    assert _facts(facts, b"f") is None
    assert _facts({**facts, "mtime": 10**400}, b"f") is not None


def entry_of(info: dict[str, Any]) -> Entry | None:
    facts = _facts(info, b"f")
    assert facts is not None
    return VersionRule().entry(facts)


def test_with_an_etag_a_listing_has_the_times_of_a_stat() -> None:
    """Otherwise each read would find another version than that of the listing."""
    stat = {"type": "file", "size": 1, "ETag": '"e"', "LastModified": datetime(2024, 5, 6, 7, 8, 9)}
    listed = {**stat, "LastModified": datetime(2024, 5, 6, 7, 8, 9, 123000)}
    assert entry_of(listed) == entry_of(stat)
    by_time = {name: value for name, value in listed.items() if name != "ETag"}
    assert entry_of(by_time) != entry_of({**by_time, "LastModified": stat["LastModified"]})


def test_a_time_before_the_epoch_is_a_time() -> None:
    assert time_ns("Mon, 06 May 1968 07:08:09 GMT") == -52_246_311 * 10**9


def test_a_file_whose_changes_cannot_be_noticed_is_no_file() -> None:
    facts = Facts(b"f", is_directory=False, size=3)
    with pytest.raises(OriginError) as caught:
        VersionRule().entry(facts)
    assert "files_never_change=true" in caught.value.remedy
    entry = VersionRule(is_fixed=True).entry(facts)
    assert entry is not None
    assert entry.fingerprint == Fingerprint(Kind.FILE, 3, 0)


def test_a_directory_hides_what_cannot_be_shown() -> None:
    names = [b"f", b"d", b"", b"..", b"a/b", b"f" * 256]
    found = [Facts(name, False, 1, 0) for name in names] + [Facts(b"d", is_directory=True)]
    entries, hidden = VersionRule().entries([*found, Facts(b"huge", False, -1, 0)])
    assert sorted(entry.name for entry in entries) == [b"d", b"f"]
    assert hidden == 6


class Failed(Exception):
    """As libraries have them: with a status."""

    def __init__(self, status: int) -> None:
        super().__init__("why\nnot")
        self.status = status


class SSHException(Exception):
    """A name that is known."""


class AuthenticationException(SSHException):
    """A name that is known better."""


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (FileNotFoundError(), errors.NotFound),
        (NotADirectoryError(), errors.NotFound),
        (PermissionError("no"), errors.AccessDenied),
        (ConnectionRefusedError(), errors.Unreachable),
        (socket.gaierror(-2, "unknown name"), errors.Unreachable),
        (TimeoutError(), errors.Unreachable),
        (EOFError(), errors.Unreachable),
        (SSHException("cut"), errors.Unreachable),
        (AuthenticationException("no"), errors.CredentialsMissing),
        (OSError(errno.EIO, "disk"), errors.Unavailable),
        (OSError(errno.ENOTCONN, "no daemon of FUSE"), errors.Unreachable),
        (OSError("no number"), errors.Unavailable),
        (OSError(errno.EOPNOTSUPP, "no"), errors.OriginError),
        (ImportError("install s3fs"), errors.Unsupported),
        (ValueError("odd"), errors.OriginError),
        (Failed(404), errors.NotFound),
        (Failed(403), errors.AccessDenied),
        (Failed(412), errors.Stale),
        (Failed(429), errors.Throttled),
        (Failed(408), errors.Unavailable),
        (Failed(503), errors.Unavailable),
        (Failed(400), errors.OriginError),
    ],
)
def test_exceptions(error: Exception, kind: type[CacheFSError]) -> None:
    found = translated(error, "arrow+x://h/p")
    assert type(found) is kind
    assert found.cause
    assert "\n" not in found.one_line()


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


def named(name: str, *bases: type[Exception]) -> Exception:
    """As a library has it that is not installed here."""
    made: Exception = type(name, bases or (Exception,), {})("no way")
    return made


S3_SAYS = "When listing objects under key 'x/' in bucket 'b': AWS Error "
GCS_SAYS = "google::cloud::Status(UNAVAILABLE: Retry policy exhausted, with a last message of "


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (OSError(errno.EHOSTUNREACH, "No route to host"), errors.Unreachable),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), errors.Unreachable),
        (caused(named("ClientConnectionError", OSError), OSError(13, "no")), errors.Unreachable),
        (caused(ValueError("no"), ConnectionRefusedError(111, "refused")), errors.Unreachable),
        (caused(ValueError("no"), socket.gaierror(-3, "unknown name")), errors.Unreachable),
        (named("EndpointConnectionError"), errors.Unreachable),
        (named("ConnectTimeoutError"), errors.Unreachable),
        (requests.exceptions.ConnectionError("refused"), errors.Unreachable),
        (requests.exceptions.ConnectTimeout("late"), errors.Unreachable),
        (aiohttp.ServerDisconnectedError(), errors.Unreachable),
        (OSError(S3_SAYS + "NETWORK_CONNECTION during ListObjectsV2 operation: curlCode: 7"),
         errors.Unreachable),
        (OSError(GCS_SAYS + "PerformWork() - CURL error [6]=Could not resolve hostname"),
         errors.Unreachable),
        (OSError("Azure Error: [] Fail to get a new connection for: http://h"),
         errors.Unreachable),
        (OSError(S3_SAYS + "SLOW_DOWN during ListObjectsV2 operation: Slow down"),
         errors.Unavailable),
        (OSError(GCS_SAYS + "Service Unavailable error_info={http_status_code=503}"),
         errors.Unavailable),
        (caused(OSError("it failed"), Failed(503)), errors.Unavailable),
        (caused(ValueError("odd"), KeyError("x")), errors.OriginError),
        (requests.exceptions.RetryError("too many 500 error responses"), errors.Unavailable),
        (caused(Failed(503), ConnectionResetError()), errors.Unavailable),
    ],
)  # fmt: skip
def test_what_was_not_reached_and_what_replied(error: Exception, kind: type[CacheFSError]) -> None:
    """The exceptions that the libraries raised for a refused connection, an unknown host, a host
    without a way, and one that drops all packets."""
    assert type(translated(error, "arrow+x://h/p")) is kind


@pytest.mark.parametrize("host", ["127.0.0.1", "nohost.invalid"])
@pytest.mark.parametrize("library", ["s3", "sftp", "ftp", "webhdfs"])
def test_a_refused_connection_and_an_unknown_host_are_told_from_replies(
    library: str, host: str
) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
        with pytest.raises(Exception) as caught:
            _listed(library, host, port)
    assert type(translated(caught.value, "")) is errors.Unreachable, repr(caught.value)


def _listed(library: str, host: str, port: int) -> None:
    if library == "s3":
        filesystem = arrow.S3FileSystem(
            access_key="a",
            secret_key="b",
            endpoint_override=f"{host}:{port}",
            scheme="http",
            region="us-east-1",
            retry_strategy=arrow.AwsStandardS3RetryStrategy(1),
        )
        filesystem.get_file_info(arrow.FileSelector("bucket/x"))
    else:
        fsspec.filesystem(library, host=host, port=port, skip_instance_cache=True).ls("/")


@pytest.mark.parametrize(
    "text",
    [
        "no file system for foo://h/a?password=s3cret",
        "GET 'https://u:s3cret@h/a?sig=s3cret' failed",
        "foo+bar://u:s3cret@h",
    ],
)
def test_no_secret_of_a_url_is_shown(text: str) -> None:
    assert "s3cret" not in translated(ValueError(text), "").one_line()
    assert "s3cret" not in translated(OSError(text), "").one_line()


def test_a_secret_of_an_option_is_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """pyarrow quotes the URL that it refuses, to which the options were added."""
    monkeypatch.setenv("A_SECRET", "s3cret")
    for url in ("arrow+nope://h/a", "arrow+s3://b/a", "fsspec+nope://h/a", "fsspec+memory://a"):
        spec = UfsSpec(url, {"odd_secret": "env:A_SECRET"})
        with pytest.raises(CacheFSError) as caught:
            open_adapter(spec, Meter()).check()
        assert "s3cret" not in caught.value.one_line()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("fsspec+sftp://user@host:22/a/b/", "fsspec+sftp://user@host:22/a/b"),
        ("arrow+file:///a/", "arrow+file:///a"),
        ("fsspec+memory://", None),
        ("fsspec://host/a", None),
        ("fsspec+sftp://user:s3cret@host/a", None),
        ("fsspec+simplecache::s3://b/a", None),
        ("fsspec+http://host/a", None),
        ("fsspec+filecache://host/a", None),
        ("arrow+s3://b/a?secret_key=s3cret", None),
        ("arrow+s3://[b/a", None),
    ],
)
def test_urls(url: str, expected: str | None) -> None:
    if expected is not None:
        assert normalise(url) == expected == normalise(expected)
        return
    with pytest.raises(BadConfig) as caught:
        normalise(url)
    assert "s3cret" not in caught.value.one_line()


REST = st.text("ab/:@[]?#%. \n\0", max_size=12)


@given(st.sampled_from([gcs, azure, library.FSSPEC, library.ARROW]), REST)
def test_a_normal_form_is_its_own(scheme: Scheme, rest: str) -> None:
    names = {gcs: "gs", azure: "az", library.FSSPEC: "fsspec+x", library.ARROW: "arrow+x"}
    with contextlib.suppress(BadConfig):
        normal = scheme.normalise(names[scheme], rest)
        name, _, again = normal.partition("://")
        assert scheme.normalise(name, again) == normal


@pytest.mark.parametrize(
    "options",
    [
        {"password": "s3cret"},
        {"aws_secret_access_key": "s3cret"},
        {"session_token": "s3cret"},
        {"passphrase": "s3cret"},
        {"connection_string": "s3cret"},
        {"key": "s3cret"},
        {"a-b": "1"},
        {"files_never_change": "maybe"},
    ],
)
def test_a_secret_is_given_by_reference_only(options: dict[str, str]) -> None:
    with pytest.raises(BadConfig) as caught:
        check_options(options)
    assert "s3cret" not in caught.value.one_line()


def test_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "password").write_text("007\n")
    monkeypatch.setenv("USER_OF_SFTP", "true")
    options = {
        "port": "22",
        "compress": "true",
        "host": "10.0.0.1",
        "password": f"file:{tmp_path}/password",
        "username": "env:USER_OF_SFTP",
        "files_never_change": "true",
    }
    assert resolved(options) == {
        "port": 22,
        "compress": True,
        "host": "10.0.0.1",
        "password": "007",
        "username": "true",
    }
    for missing in ("file:/nonexistent", "env:NO_SUCH_VARIABLE"):
        with pytest.raises(CredentialsMissing):
            resolved({"password": missing})


def test_instances_are_reused_bounded_and_dropped_after_a_failure() -> None:
    made: list[int] = []
    ended: list[int] = []

    def make() -> int:
        made.append(len(made))
        return made[-1]

    pool = Instances(make, ended.append)
    for _ in range(3):
        with pool.taken() as one:
            assert one == 0
    with pytest.raises(FileNotFoundError), pool.taken():
        raise FileNotFoundError
    assert ended == []
    with pytest.raises(OSError, match="cut"), pool.taken():
        raise OSError("cut")
    assert ended == [0]
    with pool.taken() as one:
        assert one == 1
    pool.close()
    assert ended == [0, 1]


def test_threads_wait_for_an_instance_until_their_deadline() -> None:
    pool: Instances[object] = Instances(object, lambda _: None)
    all_taken, may_end = threading.Barrier(MOST_OPEN + 1), threading.Event()

    def hold() -> None:
        with pool.taken():
            all_taken.wait(20)
            may_end.wait(20)

    threads = [threading.Thread(target=hold) for _ in range(MOST_OPEN)]
    for thread in threads:
        thread.start()
    all_taken.wait(20)
    with pytest.raises(DeadlineExceeded), bounded(0.0), pool.taken():
        pass
    may_end.set()
    for thread in threads:
        thread.join()
    with bounded(0.0), pool.taken():
        pass


class ChangingTree:
    """A file whose version changes at a read, or that is shorter than it says."""

    where = "fsspec+test://h"

    def __init__(self, *, is_short: bool = False) -> None:
        self.mtime_ns = 0
        self.is_short = is_short

    def stat(self, path: bytes) -> Facts | None:
        return Facts(path, False, 3, self.mtime_ns)

    def names(self, path: bytes) -> tuple[list[Facts], int]:
        return [], 0

    def read(self, path: bytes, offset: int, size: int) -> memoryview:
        self.mtime_ns += not self.is_short
        return memoryview(b"NEW"[: size - self.is_short])

    def close(self) -> None:
        """Has nothing to close."""


@pytest.mark.parametrize(("is_short", "kind"), [(False, Stale), (True, BadBody)])
def test_bytes_of_another_version_are_never_yielded(
    is_short: bool, kind: type[CacheFSError]
) -> None:
    """[S-store-versions]"""
    tree = ChangingTree(is_short=is_short)
    connector = LibraryConnector(tree, VersionRule(), open_arrow("arrow+file:///", {}).capabilities)
    version = connector.stat(b"f").fingerprint
    body = connector.read(b"f", 0, 3, version)
    with pytest.raises(kind):
        next(iter(body))


def test_what_is_said_of_a_protocol_that_no_library_has() -> None:
    unknown = "fsspec+nope://h/p", "arrow+nope://h/p"
    for url in unknown:
        with pytest.raises(OriginError, match="nope"):
            open_adapter(UfsSpec(url), Meter()).check()
    with pytest.raises(Unsupported, match="smbprotocol"):
        open_adapter(UfsSpec("fsspec+smb://h/p"), Meter()).check()


def test_a_root_that_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    for family in ("fsspec", "arrow"):
        for name, cause in (("none", "no such directory"), ("file", "is a file")):
            with pytest.raises(NotFound, match=cause):
                open_adapter(UfsSpec(f"{family}+file://{tmp_path}/{name}"), Meter()).check()


@pytest.mark.parametrize("scheme", ["fsspec+file", "arrow+file"])
def test_a_name_that_is_no_text_hides_itself_alone(tmp_path: Path, scheme: str) -> None:
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / os.fsdecode(b"b\xff")).write_bytes(b"2")
    source = open_adapter(UfsSpec(normalise(f"{scheme}://{tmp_path}")), Meter())
    with contextlib.closing(source):
        pages = [*source.list_dir(b"")]
    assert [entry.name for page in pages for entry in page.entries] == [b"a"]
    assert sum(page.hidden for page in pages) == 1


class Milliseconds(BaseHTTPRequestHandler):
    """A server of S3 with milliseconds in its listings, as many have them."""

    def do_HEAD(self) -> None:
        self.reply({"Content-Length": "3", "Last-Modified": "Mon, 06 May 2024 07:08:09 GMT"})

    def do_GET(self) -> None:
        body = (
            b"<ListBucketResult><Prefix>d/</Prefix><IsTruncated>false</IsTruncated><Contents>"
            b"<Key>d/x</Key><LastModified>2024-05-06T07:08:09.123Z</LastModified><Size>3</Size>"
            b"</Contents></ListBucketResult>"
        )
        self.reply({"Content-Length": str(len(body))})
        self.wfile.write(body)

    def reply(self, headers: dict[str, str]) -> None:
        self.send_response(200)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


def test_a_listing_of_s3_has_the_times_of_a_stat(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise each read would find another version than that of the listing."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    with ThreadingHTTPServer(("127.0.0.1", 0), Milliseconds) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        options = {"endpoint_url": endpoint, "region": "us-east-1"}
        with contextlib.closing(
            open_adapter(UfsSpec("arrow+s3://b/d", options), Meter())
        ) as source:
            (page,) = source.list_dir(b"")
            listed, found = page.entries[0], source.stat(b"x")
        server.shutdown()
    assert listed == found
    assert found.fingerprint.mtime_ns == TIME_NS
