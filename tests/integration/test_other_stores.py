"""Real mounts of Google's and Azure's stores, and of file systems of fsspec and pyarrow: what is
written there is read, a change is seen, and a bad source gets one line."""

from __future__ import annotations

import itertools
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.integration.conftest import Node, is_mounted
from tests.services.azurite import ACCOUNT, KEY, AzureServer
from tests.services.cluster import Cluster
from tests.services.fake_gcs import GcsServer
from tests.services.processes import wait_until
from tests.services.s3_server import S3Server
from tests.services.sshd import USER, SftpServer, sshd
from tests.services.token_server import service_account, token_server

BIG = os.urandom((9 << 20) + 17)
FILES = {"plain": b"123", "d/e/deep": b"deep", "d/ü &?#%": b"odd name", "big": BIG}
HANG_LIMIT_S = 30.0  # for a busy machine; a call is left after 10 s
_numbers = itertools.count(1)


class Source(NamedTuple):
    """A source with nothing in it, and how a test writes there."""

    url: str
    options: tuple[str, ...]
    put: Callable[[str, bytes], object]


def gcs_source(request: pytest.FixtureRequest, _root: Path) -> Source:
    server: GcsServer = request.getfixturevalue("gcs_server")
    bucket = f"mounted-{next(_numbers)}"
    server.make_bucket(bucket)
    options = ("--endpoint-url", server.endpoint_url, "--anonymous")
    return Source(f"gs://{bucket}/p", options, lambda n, b: server.put(bucket, f"p/{n}", b))


def azure_source(request: pytest.FixtureRequest, root: Path) -> Source:
    server: AzureServer = request.getfixturevalue("azure_server")
    container = f"mounted-{next(_numbers)}"
    server.make_container(container)
    (root / "key").write_text(KEY)
    options = ("--endpoint-url", server.endpoint_url)
    options += ("--option", f"account_key_file={root}/key")
    url = f"az://{ACCOUNT}/{container}/p"
    return Source(url, options, lambda name, body: server.put(container, f"p/{name}", body))


def sftp_source(request: pytest.FixtureRequest, root: Path) -> Source:
    server: SftpServer = request.getfixturevalue("sftp_server")
    return directory_source(root, f"fsspec+sftp://{USER}@127.0.0.1", server.options)


def arrow_source(_request: pytest.FixtureRequest, root: Path) -> Source:
    return directory_source(root, "arrow+file://", {})


def arrow_s3_source(request: pytest.FixtureRequest, root: Path) -> Source:
    server: S3Server = request.getfixturevalue("s3")
    bucket = f"mounted-{next(_numbers)}"
    client = server.client()
    client.create_bucket(Bucket=bucket)
    options = ("--endpoint-url", server.endpoint_url, "--option", f"region={server.region}")
    return Source(
        f"arrow+s3://{bucket}/p",
        options,
        lambda name, body: client.put_object(Bucket=bucket, Key=f"p/{name}", Body=body),
    )


def directory_source(root: Path, prefix: str, options: dict[str, str]) -> Source:
    def put(name: str, body: bytes) -> None:
        path = root / "data" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    flags = [text for name, value in options.items() for text in ("--option", f"{name}={value}")]
    return Source(f"{prefix}{root}/data", tuple(flags), put)


SOURCES = {
    "gs": gcs_source,
    "az": azure_source,
    "fsspec+sftp": sftp_source,
    "arrow+file": arrow_source,
    "arrow+s3": arrow_s3_source,
}


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Source:
    (tmp_path / "origin").mkdir()
    return SOURCES[request.param](request, tmp_path / "origin")


def tree_of(mountpoint: Path) -> dict[str, bytes]:
    files = (path for path in mountpoint.rglob("*") if path.is_file())
    return {str(path.relative_to(mountpoint)): path.read_bytes() for path in files}


def test_a_mount_of_another_store(node: Node, source: Source, s3: S3Server) -> None:
    for name, body in FILES.items():
        source.put(name, body)
    node.environment |= s3.credentials()  # of arrow+s3 alone
    mountpoint = node.mount(source.url, *source.options, "--sync-interval", "0")
    assert tree_of(mountpoint) == FILES
    assert tree_of(mountpoint) == FILES  # warm
    source.put("plain", b"longer than before")
    source.put("d/new", b"new")
    assert (mountpoint / "plain").read_bytes() == b"longer than before"
    assert sorted(os.listdir(mountpoint / "d")) == ["e", "new", "ü &?#%"]
    shown = json.dumps(node.status(mountpoint))
    assert KEY not in shown
    node.umount(mountpoint)


def test_many_stores_in_the_tree_of_a_cluster(
    request: pytest.FixtureRequest, cluster: Cluster, tmp_path: Path
) -> None:
    cluster.start(2)
    for name in ("gs", "az", "fsspec+sftp"):
        (tmp_path / name).mkdir()
        source = SOURCES[name](request, tmp_path / name)
        for file, body in FILES.items():
            source.put(file, body)
        cluster.add_ufs(source.url, f"/{name}", *source.options)
    expected = {
        f"{name}/{file}": body
        for name in ("gs", "az", "fsspec+sftp")
        for file, body in FILES.items()
    }
    for number in range(2):
        assert tree_of(cluster.mount(number, "/")) == expected


@pytest.fixture
def own_sftp(tmp_path: Path) -> Iterator[SftpServer]:
    (tmp_path / "sshd").mkdir()
    with sshd(tmp_path / "sshd") as server:
        yield server


def test_a_stopped_server_hangs_nobody_for_long(
    node: Node, own_sftp: SftpServer, tmp_path: Path
) -> None:
    node.allowed_log.append(r"sftp|origin|UNAVAILABLE|UNREACHABLE|paramiko|no answer")
    source = directory_source(tmp_path, f"fsspec+sftp://{USER}@127.0.0.1", own_sftp.options)
    source.put("warm", b"123")
    source.put("cold", BIG)
    mountpoint = node.mount(source.url, *source.options, "--origin-deadline", "3s")
    assert (mountpoint / "warm").read_bytes() == b"123"
    sessions = [own_sftp.pid, *children_of(own_sftp.pid)]
    for pid in sessions:
        os.kill(pid, signal.SIGSTOP)
    try:
        began_s = time.monotonic()
        with pytest.raises(OSError):
            (mountpoint / "cold").read_bytes()
        assert time.monotonic() - began_s < HANG_LIMIT_S
        assert (mountpoint / "warm").read_bytes() == b"123"
    finally:
        for pid in sessions:
            os.kill(pid, signal.SIGCONT)

    def is_read() -> bool:
        try:
            return (mountpoint / "cold").read_bytes() == BIG
        except OSError:
            return False

    wait_until(is_read, "the file is read when the server goes on")
    node.umount(mountpoint)


def children_of(pid: int | None) -> list[int]:
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    found = [int(child) for child in text.split()]
    return [*found, *(below for child in found for below in children_of(child))]


@pytest.mark.parametrize(
    ("url", "options", "says"),
    [
        ("gs://Bad_Bucket", (), "bad bucket name"),
        ("gs://bucket", ("--option", "region=x"), "unknown option 'region'"),
        ("gs://bucket", ("--option", "credentials_file=/none"), "credentials_file: no such file"),
        ("gs://bucket", ("--option", "novalue"), "write --option NAME=VALUE"),
        ("gs://bucket", (), "no Google credentials were found; set GOOGLE_APPLICATION"),
        ("az://account", (), "bad container name"),
        ("az://account/container?sig=s3cret", (), "sas_token_file=FILE"),
        ("az://account/container", ("--option", "sas_token=s3cret"), "did you mean sas_token_file"),
        ("fsspec+sftp://u:s3cret@host/a", (), "password=file:PATH"),
        ("fsspec+sftp://host/a", ("--option", "password=s3cret"), "by reference"),
        ("fsspec+nope://host/a", (), "nope"),
        ("fsspec+smb://host/a", (), "smbprotocol"),
        ("arrow+nope://host/a", (), "nope"),
        ("arrow+file:///nonexistent", (), "no such directory; check the URL"),
    ],
)
def test_a_bad_source_gets_one_line(
    node: Node, url: str, options: tuple[str, ...], says: str
) -> None:
    node.allowed_log += [r"ERROR", r"google\.auth"]
    node.environment |= {"NO_GCE_CHECK": "true"}
    mountpoint = node.mountpoint()
    line = node.fails("mount", url, mountpoint, *options)
    assert says in line
    assert "s3cret" not in line
    assert not is_mounted(mountpoint)


def test_wrong_keys_get_one_line(
    node: Node, sftp_server: SftpServer, azure_server: AzureServer, tmp_path: Path
) -> None:
    node.allowed_log.append(r"ERROR")
    (tmp_path / "key").write_text("AAAA")
    options = ("--endpoint-url", azure_server.endpoint_url)
    options += ("--option", f"account_key_file={tmp_path}/key")
    line = node.fails("mount", f"az://{ACCOUNT}/container", node.mountpoint(), *options)
    assert "check the SAS token or the key" in line
    source = directory_source(tmp_path, "fsspec+sftp://nobody@127.0.0.1", sftp_server.options)
    line = node.fails("mount", source.url, node.mountpoint(), *source.options)
    assert "check user, key and host key" in line


def test_expired_credentials_of_google_get_one_line(node: Node, tmp_path: Path) -> None:
    node.allowed_log.append(r"ERROR")
    with token_server() as tokens:
        tokens.status = 400
        (tmp_path / "account.json").write_text(service_account(tokens.url))
        options = ("--option", f"credentials_file={tmp_path}/account.json")
        line = node.fails("mount", "gs://bucket", node.mountpoint(), *options)
    assert "cannot be renewed" in line
    assert "gcloud auth" in line
    assert "PRIVATE KEY" not in line
