"""Credentials by name: files of this machine, or variables."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cachefs.core.errors import BadConfig, CredentialsMissing
from connectors import credential
from connectors.credential import LOOK_S, MAX_BYTES, Credential, parse_name

FIELDS = ("key", "secret")
NAME = "team-a"


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.now = 0.0
        self.environ = {"CACHEFS_CREDENTIALS_DIR": str(root)}
        self.credential = Credential(NAME, FIELDS, self.environ, lambda: self.now)

    def write(self, field: str, text: str) -> Path:
        path = self.root / NAME / field
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return path

    def refusal(self) -> str:
        with pytest.raises(CredentialsMissing) as caught:
            self.credential.values()
        return caught.value.one_line()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_files_are_read_again(machine: Machine) -> None:
    machine.write("key", "one\n")
    assert machine.credential.values() == ("one", "")
    machine.write("key", "two")
    machine.write("secret", " of two\n")
    machine.now += LOOK_S / 2
    assert machine.credential.values() == ("one", "")
    machine.now += LOOK_S / 2
    assert machine.credential.values() == ("two", "of two")
    machine.write("key", "three")
    machine.credential.forget()
    assert machine.credential.values() == ("three", "of two")


def test_a_mounted_secret_of_kubernetes_is_followed(machine: Machine) -> None:
    """Its files are links into a directory that the kubelet replaces."""
    folder = machine.root / NAME
    folder.mkdir()
    for version in ("1", "2"):
        (folder / f"..{version}").mkdir()
        (folder / f"..{version}" / "key").write_text(version)
    (folder / "..data").symlink_to("..1")
    (folder / "key").symlink_to("..data/key")
    assert machine.credential.values() == ("1", "")
    (folder / "..next").symlink_to("..2")
    os.rename(folder / "..next", folder / "..data")
    machine.now += LOOK_S
    assert machine.credential.values() == ("2", "")


def test_a_secret_that_is_replaced_between_two_files_is_no_mixture(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = machine.root / NAME
    folder.mkdir()
    for version in ("1", "2"):
        (folder / f"..{version}").mkdir()
        for field in FIELDS:
            (folder / f"..{version}" / field).write_text(f"{field} {version}")
    for field in FIELDS:
        (folder / field).symlink_to(f"..data/{field}")
    (folder / "..data").symlink_to("..1")
    read_text = credential._text

    def text_before_a_change(path: str) -> str:
        text = read_text(path)
        if os.readlink(folder / "..data") == "..1":
            (folder / "..next").symlink_to("..2")
            os.rename(folder / "..next", folder / "..data")
        return text

    monkeypatch.setattr(credential, "_text", text_before_a_change)
    assert machine.credential.values() == ("key 2", "secret 2")


def test_variables_stand_in_for_a_missing_directory(machine: Machine) -> None:
    machine.environ["CACHEFS_CREDENTIAL_TEAM_A_KEY"] = "of the environment"
    assert machine.credential.values() == ("of the environment", "")
    machine.now += LOOK_S
    machine.write("secret", "of a file")
    assert machine.credential.values() == ("", "of a file")


def test_what_cannot_be_used_says_why(machine: Machine) -> None:
    assert "the credential 'team-a' is not on this machine" in machine.refusal()
    path = machine.write("key", "")
    assert "is not on this machine" in machine.refusal()
    path.write_bytes(b"planted\xff")
    assert "it is no text" in machine.refusal()
    path.write_text("planted" * MAX_BYTES)
    assert f"more than {MAX_BYTES} bytes" in machine.refusal()
    path.write_text("planted")
    path.chmod(0o646)
    assert "every user can write it" in machine.refusal()
    path.unlink()
    path.mkdir()
    assert "it is no file" in machine.refusal()
    path.rmdir()
    os.mkfifo(path)
    assert "it is no file" in machine.refusal()
    assert "planted" not in machine.refusal()
    assert repr(machine.credential) == "Credential(team-a)"


@pytest.mark.parametrize("name", ["../other", "a/b", ".hidden", "a" * 64, "with space", "nul\0"])
def test_a_name_is_no_path(name: str) -> None:
    with pytest.raises(BadConfig, match="bad name of a credential"):
        parse_name({"credential": name})


def test_a_name_excludes_other_ways() -> None:
    assert parse_name({"profile": "x"}, "profile") == ""
    assert parse_name({"credential": NAME}, "profile") == NAME
    with pytest.raises(BadConfig, match="credential and profile exclude each other"):
        parse_name({"credential": NAME, "profile": "x"}, "profile")
