"""Sources of S3 that are read by the name of a credential, whose files change under readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.core.errors import AccessDenied, CredentialsMissing
from cachefs.core.model import UfsSpec
from connectors.compose import open_connector
from connectors.credential import DIRECTORY_VARIABLE
from connectors.meter import Meter
from tests.services.processes import wait_until
from tests.services.s3_server import S3Server

LIMIT_S = 20.0


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
