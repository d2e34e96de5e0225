"""Token files that change under a process."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

import pytest

from cachefs.client import credentials
from cachefs.client.http import HttpClient
from cachefs.client.token_file import LOOK_S, TokenFile
from cachefs.core import cluster as c
from cachefs.core.access import EVERYTHING, HEADER, Access, header_of, parse_tokens
from cachefs.core.errors import AccessDenied, BadConfig
from cachefs.core.specs import Security
from tests.unit.cli.fake_master import FakeMaster

OLD, NEW = "the-token-of-yesterday", "the-token-of-today"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.touch(0o600)
    path.write_text(OLD)
    return path


def test_a_token_that_is_withdrawn_is_not_known(file: Path) -> None:
    tokens = TokenFile(str(file))
    presented = tokens.headers
    file.write_text(f"{NEW}\n{OLD} read-only\n")
    assert tokens.check(header_of(OLD)) == EVERYTHING, "nobody has looked yet"
    tokens.look()
    assert tokens.check(header_of(NEW)) == EVERYTHING
    assert not tokens.check(header_of(OLD)).may_write
    assert presented == {HEADER: header_of(NEW)}, "who keeps the headers presents the new one"
    file.write_text(NEW)
    tokens.look()
    with pytest.raises(AccessDenied):
        tokens.check(header_of(OLD))


def test_a_file_that_takes_the_place_of_another_is_read(file: Path, tmp_path: Path) -> None:
    """Of the same size and time, as configuration tools leave it."""
    tokens = TokenFile(str(file))
    other = tmp_path / "other"
    other.touch(0o600)
    other.write_text(NEW.ljust(len(OLD), "x"))
    os.utime(other, ns=(file.stat().st_atime_ns, file.stat().st_mtime_ns))
    other.rename(file)
    tokens.look()
    with pytest.raises(AccessDenied):
        tokens.check(header_of(OLD))


@pytest.mark.parametrize("spoil", ["empty", "gone", "readable by others", "a directory"])
def test_a_file_that_cannot_be_used_changes_nothing(
    spoil: str, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tokens = TokenFile(str(file))
    if spoil == "empty":
        file.write_text("")
    elif spoil == "gone":
        file.unlink()
    elif spoil == "a directory":
        file.unlink()
        file.mkdir(0o700)
    else:
        file.chmod(0o644)
    tokens.look()
    tokens.look()
    assert tokens.check(header_of(OLD)) == EVERYTHING
    assert [one.levelname for one in caplog.records] == ["ERROR"], "one line, not one for each look"
    assert OLD not in caplog.text
    caplog.clear()
    if file.is_dir():
        file.rmdir()
    file.unlink(missing_ok=True)
    file.touch(0o600)
    file.write_text(NEW)
    tokens.look()
    assert tokens.check(header_of(NEW)) == EVERYTHING


def test_a_disk_that_fails_once_does_not_end_the_looking(
    file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A server would go on with tokens that were withdrawn."""
    tokens = TokenFile(str(file))
    file.write_text(f"{OLD} read-only\n")
    with monkeypatch.context() as broken:
        broken.setattr(credentials, "open", _fails, raising=False)
        tokens.look()
    assert "Input/output error" in caplog.text
    assert tokens.check(header_of(OLD)) == EVERYTHING
    tokens.look()
    assert not tokens.check(header_of(OLD)).may_write, "what could not be read is read again"


def _fails(*_: object, **__: object) -> NoReturn:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def test_a_start_needs_a_file_that_can_be_used(tmp_path: Path) -> None:
    with pytest.raises(BadConfig):
        TokenFile(str(tmp_path / "none"))
    none = TokenFile("")
    none.look()
    assert (none.is_open, none.headers, none.check(None)) == (True, {}, EVERYTHING)


def test_callers_without_a_loop_look_now_and_then(file: Path) -> None:
    now = 0.0
    tokens = TokenFile(str(file), lambda: now)
    file.write_text(NEW)
    now = LOOK_S - 0.1
    tokens.check_if_due()
    assert tokens.headers == {HEADER: header_of(OLD)}
    now = LOOK_S
    tokens.check_if_due()
    assert tokens.headers == {HEADER: header_of(NEW)}


def test_a_client_that_lives_on_presents_the_new_token(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `cachefs top` does."""
    monkeypatch.setattr("cachefs.client.token_file.LOOK_S", 0.0)
    access = Access(parse_tokens(OLD, "f"))
    fake = FakeMaster({c.ListUfs: lambda _: c.UfsTable([])}, access)
    with fake.listening() as master, HttpClient(master.url, Security(str(file))) as client:
        client.call(c.ListUfs(), c.UfsTable)
        master.access = Access(parse_tokens(NEW, "f"))
        file.write_text(NEW)
        client.call(c.ListUfs(), c.UfsTable)


@pytest.mark.parametrize(
    ("mode", "directory", "is_read"),
    [
        (0o440, "its own", True),
        (0o440, "", False),
        (0o440, "/another", False),
        (0o444, "its own", False),
        (0o460, "its own", False),
        (0o400, "", True),
    ],
)
def test_a_credential_of_systemd_shows_the_mask_of_its_acl(
    mode: int, directory: str, is_read: bool, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of root that the user of the service may read has the mode 0440."""
    own_uid = os.geteuid()
    monkeypatch.setattr(os, "fstat", lambda fd: _of_root(os.stat(fd)))
    monkeypatch.setattr(os, "geteuid", lambda: own_uid + 1)
    monkeypatch.setenv(
        "CREDENTIALS_DIRECTORY", str(file.parent) if directory == "its own" else directory
    )
    file.chmod(mode)
    if is_read:
        assert [token.secret for token in credentials.read_tokens(str(file))] == [OLD]
    else:
        with pytest.raises(AccessDenied):
            credentials.read_tokens(str(file))


@pytest.fixture
def secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A volume of a Secret as the kubelet makes it: the file is behind two links."""
    volume = tmp_path / "volume"
    volume.mkdir()
    _write_secret(volume, "..first", OLD)
    (volume / "token").symlink_to("..data/token")
    own_uid = os.geteuid()
    monkeypatch.setattr(os, "fstat", lambda fd: _of_root(os.stat(fd)))
    monkeypatch.setattr(os, "geteuid", lambda: own_uid + 1)
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(volume))
    return volume / "token"


def _write_secret(volume: Path, version: str, text: str) -> None:
    """Writes a version beside the earlier one, and exchanges the link to it."""
    (volume / version).mkdir()
    (volume / version / "token").write_text(text)
    (volume / version / "token").chmod(0o440)
    (volume / "..tmp").symlink_to(version)
    (volume / "..tmp").rename(volume / "..data")


def test_a_secret_of_kubernetes_is_read_again_when_it_changes(secret: Path) -> None:
    tokens = TokenFile(str(secret))
    assert tokens.check(header_of(OLD)) == EVERYTHING
    _write_secret(secret.parent, "..second", NEW)
    tokens.look()
    assert tokens.check(header_of(NEW)) == EVERYTHING
    with pytest.raises(AccessDenied):
        tokens.check(header_of(OLD))


def test_links_are_followed_in_the_directory_of_the_service_only(
    secret: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outside = tmp_path / "outside"
    outside.write_text(OLD)
    outside.chmod(0o400)
    (secret.parent / "other").symlink_to(outside)
    with pytest.raises(BadConfig):
        credentials.read_tokens(str(secret.parent / "other"))
    monkeypatch.delenv("CREDENTIALS_DIRECTORY")
    with pytest.raises(BadConfig):
        credentials.read_tokens(str(secret))


def _of_root(info: os.stat_result) -> os.stat_result:
    return os.stat_result((*info[:4], 0, *info[5:]))
