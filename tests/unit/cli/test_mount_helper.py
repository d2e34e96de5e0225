"""What mount(8) passes on, and what an fstab line may hold."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from cachefs.cli.commands import mount_helper
from cachefs.cli.commands.mount_helper import parse_arguments
from cachefs.cli.settings import load_settings
from cachefs.core.errors import BadConfig
from cachefs.fuse import mount_flags


def flags(options: str) -> dict[str, object]:
    return dict(parse_arguments(["s3://b", "/mnt", "-o", options]).flags)


def test_a_full_line() -> None:
    parsed = parse_arguments(
        ["s3://b/p", "/mnt/data", "-sv", "-o", "rw,cache-size=1GiB,file_mode=0600", "-t", "cachefs"]
    )
    assert (parsed.source, parsed.mountpoint, parsed.fake) == ("s3://b/p", "/mnt/data", False)
    assert parsed.flags == {"cache_size": "1GiB", "file_mode": "0600"}


def test_generic_options_are_passed_over() -> None:
    names = "rw,noauto,_netdev,nofail,defaults,user,x-systemd.automount,X-mount.mkdir,noatime"
    assert flags(f"{names},comment=abc,nosuid,nodev,exec") == {}


def kernel_options(options: str) -> tuple[str, ...]:
    return parse_arguments(["s3://b", "/mnt", "-o", options]).mount_options


def test_options_of_the_kernel_are_kept() -> None:
    """The later one of two that contradict each other counts; `user` is `noexec` too."""
    assert kernel_options("rw,nofail,noexec,dirsync,nodev,noatime") == (
        "noexec",
        "dirsync",
        "noatime",
    )
    assert kernel_options("user,x-a=b") == ("noexec",)
    assert kernel_options("users,exec,sync,async,ro") == ()
    context = 'context="system_u:object_r:tmp_t:s0:c1,c2"'
    assert kernel_options(f"ro,{context},noexec") == (context, "noexec")


@pytest.mark.parametrize("name", ["context", "fscontext", "defcontext", "rootcontext"])
def test_a_context_without_selinux_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It is never dropped; where the kernel has SELinux, root may set it."""
    (option,) = kernel_options(f"{name}=a:b:c")
    monkeypatch.setattr(mount_flags, "_SELINUX", tmp_path / "status")
    with pytest.raises(BadConfig, match=f"-o {name}: SELinux is not enabled"):
        mount_flags.check([option], is_root=True)
    (tmp_path / "status").touch()
    mount_flags.check([option], is_root=True)
    with pytest.raises(BadConfig, match=f"-o {name}: only root"):
        mount_flags.check([option], is_root=False)


def test_a_context_reaches_the_kernel_whole(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Its categories are between commas, which mount(2) wants between double quotes."""
    monkeypatch.setattr(mount_flags, "_SELINUX", tmp_path)
    quoted = 'context="u:r:t:s0:c1,c2"'
    for said in (quoted, r"context=u:r:t:s0:c1\,c2"):
        options = kernel_options(f"{said},noexec")
        mount_flags.check(options, is_root=True)
        assert mount_flags.data_of(options) == [quoted]
    assert mount_flags.data_of(["context=u:r:t:s0"]) == ["context=u:r:t:s0"]
    for wrong in ('context=a"b', 'context="a"b"', 'context="', 'context=a,suid="1'):
        with pytest.raises(BadConfig, match="-o context: a double quote in the value"):
            mount_flags.check([wrong], is_root=True)


def test_switches() -> None:
    assert flags("allow_other,anonymous=no,ro") == {
        "allow_other": True,
        "anonymous": "no",
        "read_only": True,
    }
    assert flags("no_allow_other") == {"allow_other": False}
    assert flags("no-allow-other") == {"allow_other": False}


def test_other_words() -> None:
    parsed = parse_arguments(["-f", "s", "m", "-o", r"config=/etc/c.toml,debug,aws_profile=a\,b"])
    assert (parsed.fake, parsed.debug, parsed.config_file) == (True, True, "/etc/c.toml")
    assert parsed.flags == {"aws_profile": "a,b"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ("cache_sice=1", "unknown option 'cache_sice'; did you mean 'cache_size'?"),
        ("cache_size", "option 'cache_size' needs a value"),
        ("remount,ro", "remount is not possible"),
    ],
)
def test_bad_options(options: str, expected: str) -> None:
    with pytest.raises(BadConfig) as caught:
        flags(options)
    assert expected in caught.value.one_line()


@pytest.mark.parametrize("argv", [["s3://b"], ["a", "b", "c"], ["a", "b", "-o"], ["a", "b", "-Z"]])
def test_bad_command_lines(argv: list[str]) -> None:
    with pytest.raises(click.UsageError):
        parse_arguments(argv)


def test_values_are_checked_like_flags() -> None:
    parsed = parse_arguments(["s3://b", "/mnt", "-o", "sync_interval=soon"])
    with pytest.raises(BadConfig, match="bad duration 'soon'"):
        load_settings(parsed.flags, None, {})


def test_errors_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert mount_helper.main(["ftp://x", "/mnt", "-f"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("mount.cachefs: ")
    assert len(said.splitlines()) == 1
    assert mount_helper.main(["ftp://x"]) == 2
