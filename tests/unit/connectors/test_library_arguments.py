"""The arguments of the file systems of libraries: options, and the files of a credential."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from cachefs.core.errors import AccessDenied, BadConfig, CredentialsMissing
from cachefs.core.model import UfsSpec
from connectors.credential import DIRECTORY_VARIABLE, LOOK_S
from connectors.library import arguments as module
from connectors.library.arguments import Arguments
from connectors.library.connector import open_fsspec
from connectors.library.options import check_options
from connectors.meter import Meter
from connectors.registry import check_options as check_source
from connectors.registry import open_adapter


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    directory = tmp_path / "team-a"
    directory.mkdir()
    return directory


def test_each_file_of_a_credential_is_an_argument(files: Path) -> None:
    (files / "password").write_text("007\n")
    (files / "key_filename").write_text("-----BEGIN")
    (files / "..data").mkdir()
    (files / "no argument").write_text("x")
    now = [0.0]
    arguments = Arguments({"port": "22", "credential": "team-a"}, clock=lambda: now[0])
    wanted = {"port": 22, "password": "007", "key_filename": str(files / "key_filename")}
    assert arguments.values() == wanted
    (files / "password").write_text("008")
    assert arguments.values() == wanted
    now[0] += LOOK_S
    assert arguments.values() == wanted | {"password": "008"}


def test_variables_are_arguments_where_there_is_no_directory(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(DIRECTORY_VARIABLE, str(tmp_path))
    monkeypatch.setenv("CACHEFS_CREDENTIAL_TEAM_B_PASSWORD", "007")
    monkeypatch.setenv("CACHEFS_CREDENTIAL_TEAM_B_KEY_FILENAME", "/keys/b")
    found = Arguments({"credential": "team-b"}).values()
    assert found == {"password": "007", "key_filename": "/keys/b"}
    with pytest.raises(CredentialsMissing, match="'team-c' is not on this machine"):
        Arguments({"credential": "team-c"}).values()


def test_which_sources_have_a_credential() -> None:
    check_options({"credential": "team-a"})
    with pytest.raises(BadConfig, match="bad name of a credential"):
        check_options({"credential": "../x"})
    options = {"credential": "team-a"}
    check_source(UfsSpec("arrow+s3://bucket", options))
    with pytest.raises(BadConfig, match="takes no credentials of arrow"):
        check_source(UfsSpec("arrow+hdfs://nn/a", options))


class LockedFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """Opens with one password, which a test changes."""

    protocol = "locked"
    password = "one"  # noqa: S105
    made = 0

    def __init__(self, password: str = "", **others: Any) -> None:
        super().__init__(**others)
        self._given = password
        type(self).made += 1

    def info(self, path: str, **others: Any) -> dict[str, Any]:
        if self._given != self.password:
            raise PermissionError("wrong password")
        return {"name": path, "size": 0, "type": "directory"}


@contextlib.contextmanager
def locked() -> Iterator[type[LockedFileSystem]]:
    fsspec.register_implementation("locked", LockedFileSystem, clobber=True)
    LockedFileSystem.password, LockedFileSystem.made = "one", 0
    yield LockedFileSystem


def test_a_changed_secret_makes_new_instances(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    with locked() as fs:
        (files / "password").write_text("one")
        connector = open_fsspec("fsspec+locked://d", {"credential": "team-a"})
        connector.check()
        connector.check()
        assert fs.made == 1
        fs.password = "two"  # noqa: S105
        with pytest.raises(AccessDenied):
            connector.check()
        (files / "password").write_text("two")
        connector.check()
        assert fs.made == 2
        connector.close()


def test_a_library_shows_no_secret_of_a_credential(files: Path) -> None:
    (files / "access_key_id").write_text("planted-key")
    (files / "secret_access_key").write_text("planted-secret")
    options = {"credential": "team-a", "region": "no-such-option-of-pyarrow=1", "nonsense": "x"}
    connector = open_adapter(UfsSpec("arrow+s3://bucket/p", options), Meter())
    with pytest.raises(Exception, match="nonsense") as caught:
        connector.check()
    assert "planted" not in str(caught.value)
    connector.close()
