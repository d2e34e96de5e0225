"""Sources that are read by the name of a credential, whose files change under readers."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, CredentialsMissing
from cachefs.core.model import UfsSpec
from connectors.azure.sas import sign_container
from connectors.compose import open_connector
from connectors.credential import DIRECTORY_VARIABLE
from connectors.meter import Meter
from tests.integration.conftest import Node
from tests.services.azurite import ACCOUNT, KEY, AzureServer
from tests.services.processes import wait_until
from tests.services.s3_server import S3Server

LIMIT_S = 20.0
FIRST_TOKEN_S = 20.0  # a busy machine takes 7 s to mount, and some to see the next token
PACE_S = 0.05


def write(directory: Path, access_key: str, secret_key: str) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "secret_access_key").write_text(f"{secret_key}\n")
    (directory / "access_key_id").write_text(f"{access_key}\n")


def refuses(act: Callable[[], object]) -> bool:
    try:
        act()
    except (AccessDenied, CredentialsMissing):
        return True
    return False


def test_changed_files_are_used_without_a_restart(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    client = s3.client()
    client.create_bucket(Bucket="named")
    client.put_object(Bucket="named", Key="f", Body=b"bytes")
    options = {"endpoint_url": s3.endpoint_url, "credential": "team-a"}
    connector = open_connector(UfsSpec("s3://named", options), deadline_s=5, meter=Meter())
    with pytest.raises(CredentialsMissing, match="'team-a' is not on this machine"):
        connector.check()
    directory = tmp_path / "team-a"
    write(directory, s3.access_key, s3.secret_key)
    wait_until(lambda: not refuses(connector.check), "the source is read", LIMIT_S)
    version = connector.stat(b"f").fingerprint
    assert bytes(connector.read_all(b"f", version)) == b"bytes"
    write(directory, s3.access_key, "planted-and-wrong")
    wait_until(
        lambda: refuses(lambda: connector.read_all(b"f", version)), "keys are wrong", LIMIT_S
    )
    write(directory, s3.access_key, s3.secret_key)
    wait_until(
        lambda: not refuses(lambda: connector.read_all(b"f", version)), "keys are right", LIMIT_S
    )
    connector.close()


def test_a_source_of_pyarrow_is_read_by_the_same_files(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    client = s3.client()
    client.create_bucket(Bucket="of-arrow")
    client.put_object(Bucket="of-arrow", Key="d/f", Body=b"bytes")
    options = {"endpoint_url": s3.endpoint_url, "region": s3.region, "credential": "team-b"}
    spec = UfsSpec("arrow+s3://of-arrow/d", options)
    connector = open_connector(spec, deadline_s=5, meter=Meter())
    with pytest.raises(CredentialsMissing, match="'team-b' is not on this machine"):
        connector.check()
    write(tmp_path / "team-b", s3.access_key, s3.secret_key)
    connector.check()
    version = connector.stat(b"f").fingerprint
    assert bytes(connector.read_all(b"f", version)) == b"bytes"
    write(tmp_path / "team-b", s3.access_key, "planted-and-wrong")
    wait_until(lambda: refuses(lambda: connector.stat(b"f")), "the key is wrong", LIMIT_S)
    write(tmp_path / "team-b", s3.access_key, s3.secret_key)
    wait_until(lambda: not refuses(lambda: connector.stat(b"f")), "the key is right", LIMIT_S)
    connector.close()


def test_a_token_is_replaced_under_readers(
    node: Node, azure_server: AzureServer, tmp_path: Path
) -> None:
    """A program opens files that are not cached, before the first token expires and after."""
    azure_server.make_container("rotated")
    names = [f"f{number:04}" for number in range(400)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: azure_server.put("rotated", name, name.encode()), names))
    directory = tmp_path / "credentials" / "team-a"
    directory.mkdir(parents=True)

    def give(valid_s: float) -> float:
        token = sign_container(ACCOUNT, "rotated", KEY, time.time(), valid_s)
        (directory / "new").write_text(token)
        (directory / "new").rename(directory / "sas_token")
        return time.time() + valid_s

    ends_at = give(FIRST_TOKEN_S)
    node.environment |= {DIRECTORY_VARIABLE: str(directory.parent)}
    options = ("--endpoint-url", azure_server.endpoint_url, "--credential", "team-a")
    mount = node.mount(f"az://{ACCOUNT}/rotated", *options)
    left = iter(names)
    read = 0

    def read_next() -> None:
        nonlocal read
        name = next(left)
        assert (mount / name).read_bytes() == name.encode()
        read += 1

    read_next()
    give(600.0)
    clock = threading.Event()
    while not clock.wait(PACE_S) and time.time() < ends_at + 1.0:
        assert (mount / names[0]).read_bytes() == names[0].encode()
        if read < len(names) // 2:
            read_next()
    while read < len(names):
        read_next()
    assert "sig=" not in json.dumps(node.status(mount))
    node.umount(mount)
