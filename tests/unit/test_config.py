"""Settings: one table, four sources, every error names where the value was written."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.cli import config_page
from cachefs.core import config
from cachefs.core.config import SOURCE_OPTIONS, TomlFile, load
from cachefs.core.errors import BadConfig
from cachefs.core.setting import Scalar, Setting
from cachefs.core.settings import SETTINGS

S3 = SOURCE_OPTIONS.values()
ROOT = Path(__file__).parents[2]


def plain(**flags: Scalar) -> config.Config:
    return load(flags=flags, environ={}, files=[])


def refusal(*, flags: dict[str, Scalar] | None = None, toml: str = "", **env: str) -> str:
    files = [TomlFile("/etc/x.toml", toml)]
    with pytest.raises(BadConfig) as caught:
        load(flags=flags or {}, environ=env, files=files)
    return caught.value.one_line()


def test_defaults() -> None:
    chosen = plain()
    assert chosen.seconds("sync_interval") == 60.0
    assert chosen.integer("file_mode") == 0o644
    assert chosen.switch("allow_other", undecided=True) is True
    assert chosen.source_options(S3) == {}
    assert {value.source for value in chosen.values.values()} == {"default"}


def test_precedence_and_sources() -> None:
    files = [
        TomlFile("/etc/a.toml", 'cache_size = "1GiB"\nregion = "a"\nuid = 1\nsync_interval = 5'),
        TomlFile("/home/b.toml", 'region = "b"\nuid = 2\nsync-interval = "1h"'),
    ]
    environ = {"CACHEFS_UID": "3", "CACHEFS_SYNC_INTERVAL": "-1", "HOME": "/root"}
    chosen = load(flags={"sync_interval": "0", "gid": None}, environ=environ, files=files)
    seen = {name: (chosen[name].value, chosen[name].source) for name in chosen.values}
    assert seen["cache_size"] == (1 << 30, "file /etc/a.toml")
    assert seen["region"] == ("b", "file /home/b.toml")
    assert seen["uid"] == (3, "environment CACHEFS_UID")
    assert seen["sync_interval"] == (0.0, "flag --sync-interval")
    assert seen["gid"] == (-1, "default")


@pytest.mark.parametrize(
    ("toml", "expected"),
    [
        (
            'cache_sise = "1GiB"',
            "file /etc/x.toml: unknown option 'cache_sise'; did you mean 'cache",
        ),
        ("zzzzzz = 1", "unknown option 'zzzzzz'; `cachefs config` lists"),
        ('cache_size = "1 lot"', "file /etc/x.toml: cache_size: bad size '1 lot'; write it as"),
        ("cache_size = true", "cache_size: bad size True"),
        ("cache_size = 5", "cache_size: the value is too small; the least is 16 MiB"),
        ('sync_interval = "soon"', "sync_interval: bad duration 'soon'"),
        ("sync_interval = [1]", "sync_interval: bad duration [1]"),
        ('origin_deadline = "0"', "origin_deadline: the value is too small; the least is 1s"),
        (
            "file_mode = 644",
            'file_mode: bad mode 644; write it as three octal digits, such as "644"',
        ),
        ('file_mode = "999"', "file_mode: bad mode '999'"),
        ('uid = "me"', "uid: 'me' is not a user or group number"),
        ("uid = true", "uid: True is not a user"),
        ('read_only = "perhaps"', "read_only: 'perhaps' is neither yes nor no"),
        ('eviction = "arc"', "eviction: 'arc' is not a choice; use sieve or lru"),
        ('cache_dir = "cache"', "cache_dir: 'cache' is not an absolute path; start it with '/'"),
        ('endpoint_url = "host:1"', "endpoint_url: 'host:1' is not a URL; write it as https://"),
        ("region = 7", "region: 7 is not a text"),
        ("[mount]\nuid = 1", "unknown option 'mount'"),
        ("uid = ", "file /etc/x.toml: Invalid value"),
    ],
)
def test_bad_files(toml: str, expected: str) -> None:
    assert expected in refusal(toml=toml)


def test_bad_variables_and_flags_name_themselves() -> None:
    line = refusal(CACHEFS_CACHE_SIZE="much")
    assert line.startswith("environment CACHEFS_CACHE_SIZE: cache_size: bad size 'much';")
    line = refusal(flags={"dir_mode": "rwx"})
    assert line.startswith("flag --dir-mode: bad mode 'rwx';")


def test_passwords_are_never_shown() -> None:
    chosen = plain(endpoint_url="http://user:secret@host:9000/")
    assert chosen["endpoint_url"].text() == "http://user:***@host:9000"
    assert "secret" not in refusal(flags={"endpoint_url": "ftp://user:secret@host"})


def test_source_options_carry_only_what_was_set() -> None:
    chosen = plain(
        endpoint_url="http://h/", aws_profile="p", anonymous=True, addressing_style="AUTO"
    )
    expected = {"endpoint_url": "http://h", "profile": "p", "anonymous": "true"}
    assert chosen.source_options(S3) == expected
    assert chosen.source_options(()) == expected, "what a flag gave is never dropped silently"
    inherited = load(flags={}, environ={"CACHEFS_ENDPOINT_URL": "http://h"}, files=[])
    assert inherited.source_options(()) == {}


def test_options_of_a_scheme_by_name_and_value() -> None:
    chosen = plain(source_options="client-id = x;url=http://h?a=b")
    assert chosen.source_options(()) == {"client_id": "x", "url": "http://h?a=b"}
    environ = {"CACHEFS_SOURCE_OPTIONS": "client_id=x;other=y"}
    inherited = load(flags={}, environ=environ, files=[])
    assert inherited.source_options(("client_id",)) == {"client_id": "x"}
    for text in ("s3cret", "=s3cret"):
        with pytest.raises(BadConfig) as caught:
            plain(source_options=text).source_options(())
        assert "s3cret" not in caught.value.one_line()


def test_config_paths() -> None:
    assert config.config_paths("/f", {"CACHEFS_CONFIG": "/g"}, "/home/u") == ["/f"]
    assert config.config_paths(None, {"CACHEFS_CONFIG": "/g"}, "/home/u") == ["/g"]
    default = [config.SYSTEM_FILE, "/home/u/.config/cachefs/cachefs.toml"]
    assert config.config_paths(None, {}, "/home/u") == default
    moved = config.config_paths(None, {"XDG_CONFIG_HOME": "/x"}, "/home/u")
    assert moved[-1] == "/x/cachefs/cachefs.toml"


def test_state_home() -> None:
    assert config.state_home(plain(), {}, "/home/u") == "/home/u/.cache/cachefs"
    assert config.state_home(plain(), {"XDG_CACHE_HOME": "/x"}, "/home/u") == "/x/cachefs"
    assert config.state_home(plain(home="/y/"), {"XDG_CACHE_HOME": "/x"}, "/h") == "/y"


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
def test_every_default_is_a_value_of_its_type(setting: Setting) -> None:
    shown = config.format_value(setting, setting.default)
    assert setting.help.endswith(".")
    if setting.shown:
        assert shown == "-"
        return
    parsed = config.parse_value(setting, shown, "test").value
    assert parsed == setting.default


def test_the_documented_table_is_up_to_date() -> None:
    page = (ROOT / "docs" / "configuration.md").read_text()
    assert page == config_page.PAGE, "run `python -m cachefs.cli.config_page`"
