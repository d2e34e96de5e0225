"""What URLs and paths mean, without a server and without a mount."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import cachefs
from cachefs.core.errors import BadConfig, NotFound
from cachefs.core.model import UfsSpec
from cachefs.core.mountinfo import Mounts, parse_mountinfo
from cachefs.launcher.state import MountRecord, StateHome
from cachefs.library.library import Library
from cachefs.library.mount_table import MountTable
from cachefs.library.places import Places, is_below, root_of
from tests.services.descriptors import no_descriptor_left

TABLE = b"""\
1 0 0:1 / / rw - ext4 /dev/a rw
2 1 0:2 / /mnt rw - tmpfs tmpfs rw
3 2 0:3 / /mnt/x rw - fuse.cachefs s3://b rw,user_id=0
4 3 0:4 / /mnt/x/inner rw - tmpfs tmpfs rw
"""


class OwnTable(MountTable):
    """A table of mounts that only the test changes: tests beside it mount and unmount."""

    def __init__(self) -> None:
        super().__init__()
        self.mounts = Mounts(parse_mountinfo(TABLE))

    def current(self) -> Mounts:
        return self.mounts


@pytest.fixture
def table() -> OwnTable:
    return OwnTable()


@pytest.fixture
def places(table: OwnTable) -> Places:
    return Places(table)


@pytest.mark.parametrize(
    ("path", "mountpoint"),
    [
        ("/mnt/x/a/b", "/mnt/x"), ("/mnt/x", "/mnt/x"), ("/mnt/xy", "/mnt"),
        ("/mnt/x/inner/c", "/mnt/x/inner"), ("/etc", "/"), ("/", "/"),
    ],
)  # fmt: skip
def test_the_deepest_mount(path: str, mountpoint: str) -> None:
    mount = Mounts(parse_mountinfo(TABLE)).containing(path)
    assert mount is not None
    assert mount.mountpoint == mountpoint


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("s3://bucket/a/b", "s3://bucket"), ("gs://b", "gs://b"),
        ("az://account/box/a", "az://account/box"), ("hdfs://nn:8020/a", "hdfs://nn:8020"),
    ],
)  # fmt: skip
def test_the_source_of_a_url(url: str, root: str) -> None:
    assert root_of(url) == root


def test_a_url_that_does_not_say_its_source() -> None:
    with pytest.raises(BadConfig) as caught:
        root_of("file:///data/x")
    assert "source=" in caught.value.remedy


def test_below() -> None:
    assert is_below("s3://b/train/x", "s3://b/train")
    assert is_below("s3://b/train/", "s3://b/train")
    assert not is_below("s3://b/training", "s3://b/train")


def test_a_path_without_a_mount(places: Places, tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="not under a CacheFS mount"):
        places.find(str(tmp_path / "x"), {"home": str(tmp_path)})


def test_a_url_of_another_program(places: Places) -> None:
    with pytest.raises(BadConfig) as caught:
        places.find("s3://bucket/x", {})
    assert caught.value.remedy == "write cachefs+s3://bucket/x"
    with pytest.raises(BadConfig) as caught:
        places.find("https://host/x", {})
    assert "https" not in caught.value.remedy


@pytest.mark.parametrize("url", ["cachefs+s3:/b/x", "cachefs:/mnt/x", "cachefs:host:19998/x"])
def test_a_url_that_lost_a_slash(places: Places, url: str) -> None:
    with pytest.raises(BadConfig, match="a slash is missing") as caught:
        places.find(url, {})
    assert "pathlib" in caught.value.remedy


def test_a_setting_that_does_not_exist(places: Places) -> None:
    with pytest.raises(BadConfig, match="cache_sizes"):
        places.find("cachefs+s3://bucket/x", {"cache_sizes": "1GiB"})


def test_a_source_of_its_own(places: Places, tmp_path: Path) -> None:
    """Without a mount: the bucket, with the settings; the same server for all its paths."""
    settings = {"home": str(tmp_path), "endpoint_url": "http://127.0.0.1:9", "sync_interval": "5s"}
    place = places.find("cachefs+s3://bucket/a/b", settings)
    assert place.path == b"/a/b"
    assert place.dialer.attach.source.key == "s3://bucket|http://127.0.0.1:9"
    assert place.dialer.attach.sync_interval_s == 5
    assert places.find("cachefs+s3://bucket/c", settings).dialer is place.dialer
    prefix = {**settings, "source": "s3://bucket/a"}
    assert places.find("cachefs+s3://bucket/a/b", prefix).path == b"/b"
    with pytest.raises(BadConfig, match="not below"):
        places.find("cachefs+s3://bucket/c", {**prefix, "source": "s3://bucket/d"})


def test_a_source_keeps_its_server_when_the_mounts_change(
    places: Places, table: OwnTable, tmp_path: Path
) -> None:
    """The place is looked up again, since a mount may have the source now; a library has one
    connection for each key."""
    settings = {"home": str(tmp_path), "endpoint_url": "http://127.0.0.1:9"}
    before = places.find("cachefs+s3://bucket/a", settings)
    table.mounts = Mounts(parse_mountinfo(TABLE.splitlines(keepends=True)[0]))
    after = places.find("cachefs+s3://bucket/a", settings)
    assert after.dialer is not before.dialer
    assert after.dialer.key == before.dialer.key


def test_a_mounted_source_is_read_by_its_server(places: Places, tmp_path: Path) -> None:
    """The record of a mount whose processes have ended is not used."""
    home = StateHome(tmp_path / "home")
    spec = UfsSpec("s3://bucket/train")
    home.write_mount(MountRecord("/mnt/a", spec, 1, "/nowhere"))
    place = places.find("cachefs+s3://bucket/train/x", {"home": str(home.path)})
    assert place.dialer.key.startswith("server ")


def test_without_a_descriptor_a_mount_that_has_not_changed_is_known(
    places: Places, table: OwnTable, tmp_path: Path
) -> None:
    """Another mount, anywhere, has the record read again, which needs a descriptor."""
    settings = {"home": str(tmp_path / "home")}
    StateHome(settings["home"]).write_mount(MountRecord("/mnt/x", UfsSpec("s3://b"), 1, "/nowhere"))
    before = places.find("/mnt/x/a", settings)
    other = b"9 1 0:9 / /other rw - tmpfs tmpfs rw\n"
    for changed in (TABLE + other, TABLE):
        table.mounts = Mounts(parse_mountinfo(changed))
        with no_descriptor_left():
            assert places.find("/mnt/x/b", settings).dialer is before.dialer
            with pytest.raises(OSError, match="Too many open files"):
                places.find("cachefs+s3://b/x", settings)
    assert places.find("/mnt/x/a", settings).dialer is not before.dialer, "the record is read again"
    table.mounts = Mounts(parse_mountinfo(TABLE.replace(b"0:3", b"0:7")))
    with no_descriptor_left(), pytest.raises(OSError, match="Too many open files"):
        places.find("/mnt/x/b", settings)


def test_a_tree_is_pickled_without_its_connections() -> None:
    tree = cachefs.tree("/mnt/x", home="/h")
    copy = pickle.loads(pickle.dumps(tree))
    assert (copy.url, copy._settings) == ("/mnt/x", {"home": "/h"})


def test_an_unknown_attribute_of_the_package() -> None:
    with pytest.raises(AttributeError):
        cachefs.nothing  # type: ignore[attr-defined]  # noqa: B018


def test_the_mount_points_of_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mount of a single file hides that of its folder; another table of mounts counts at once."""
    file = b"5 3 0:5 / /mnt/x/file rw - tmpfs tmpfs rw\n"
    made = Library()
    monkeypatch.setattr(made._mounts, "current", lambda: before)
    before = Mounts(parse_mountinfo(TABLE + file))
    paths = ["/mnt/x/a", "/mnt/x", "/mnt/x/file", "/mnt/x/inner/a", "/mnt/y", "/mnt/x/b"]
    for _ in range(2):
        found = [made.mountpoint_of(path) for path in paths]
        assert found == ["/mnt/x", "/mnt/x", "", "", "", "/mnt/x"]
    before = Mounts(parse_mountinfo(TABLE.splitlines(keepends=True)[0]))
    assert made.mountpoint_of("/mnt/x/a") == ""
