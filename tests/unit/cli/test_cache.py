"""`cachefs cache`: what is kept in a state home, and what of it may be removed."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from cachefs.core.model import UfsSpec
from cachefs.launcher import cache_record
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import MountRecord, Pointer, StateHome, source_id, write_pointer
from tests.unit.cli.test_commands import ok, refused

MIB = 1 << 20
DAY_S = 86400
OLD, NEW = UfsSpec("s3://bucket/old"), UfsSpec("s3://bucket/new")
Run = Callable[..., tuple[int, str, str]]


def keep(home: StateHome, spec: UfsSpec, cache: Path | None = None, *, noted: bool = True) -> Path:
    """A source with 2 MiB of cached bytes, and names."""
    directory = home.source_dir(spec)
    cache = cache or directory / "cache"
    for folder in ("files/aa", "files/bb", "index", "pub", "trash"):
        (cache / folder).mkdir(parents=True, exist_ok=True)
    for name in ("files/aa/1", "files/bb/2"):
        (cache / name).write_bytes(b"x" * MIB)
    (cache / "TIER").write_bytes(b"header")
    (directory / "namespace").mkdir()
    (directory / "namespace" / "data.mdb").write_bytes(b"n" * 4096)
    (directory / "server.lock").touch()
    if noted:
        cache_record.note(directory, spec.url, [str(cache)])
    return directory


def age(directory: Path, days: float) -> None:
    for path in (directory / "namespace" / "data.mdb", directory / "cache" / "TIER"):
        then = path.stat().st_mtime - days * DAY_S
        os.utime(path, (then, then))


@pytest.fixture
def caches(home: StateHome) -> dict[str, Path]:
    found = {"old": keep(home, OLD), "new": keep(home, NEW)}
    age(found["old"], 40)
    return found


def test_ls_shows_what_is_kept(caches: dict[str, Path], run: Run) -> None:
    rows = json.loads(ok(run("cache", "ls", "--json")))
    assert [(row["source"], row["cached_bytes"], row["in_use"]) for row in rows] == [
        (OLD.url, 2 * MIB, False),
        (NEW.url, 2 * MIB, False),
    ]
    assert rows[0]["id"] == source_id(OLD)
    head, old, new = ok(run("cache", "ls")).splitlines()
    assert head.split()[:3] == ["ID", "SOURCE", "CACHED"]
    assert "2 MiB" in old
    assert "unused" in old
    assert str(caches["old"] / "cache") in old
    assert "now" in new


def test_ls_of_an_empty_home(run: Run, home: StateHome) -> None:
    assert ok(run("cache", "ls")) == f"nothing is kept under {home.path}\n"
    assert json.loads(ok(run("cache", "ls", "--json"))) == []
    assert not home.path.exists(), "looking creates nothing"


def test_ls_of_what_an_earlier_version_left(home: StateHome, run: Run) -> None:
    keep(home, OLD, noted=False)
    (row,) = json.loads(ok(run("cache", "ls", "--json")))
    assert (row["source"], row["cached_bytes"]) == ("", 2 * MIB)
    assert "not known" in ok(run("cache", "ls"))
    ok(run("cache", "rm", row["id"]))
    assert json.loads(ok(run("cache", "ls", "--json")))[0]["cached_bytes"] == 0


def test_rm_leaves_nothing_of_a_mount_that_failed_at_its_start(home: StateHome, run: Run) -> None:
    directory = home.source_dir(OLD)
    (directory / "log").mkdir(parents=True)
    (directory / "log" / "server.err").write_text("no such bucket")
    (row,) = json.loads(ok(run("cache", "ls", "--json")))
    assert (row["source"], row["id"]) == ("", directory.name)
    ok(run("cache", "rm", "--unused"))
    assert json.loads(ok(run("cache", "ls", "--json"))) == []


@pytest.mark.parametrize("named", ["source", "id", "directory"])
def test_rm_removes_the_bytes_and_keeps_the_names(
    caches: dict[str, Path], run: Run, named: str
) -> None:
    (row,) = [one for one in json.loads(ok(run("cache", "ls", "--json"))) if "old" in one["source"]]
    line = ok(run("cache", "rm", row[named]))
    assert line.startswith("removed 2")
    assert not (caches["old"] / "cache" / "files").exists()
    assert not (caches["old"] / "cache" / "TIER").exists()
    assert (caches["old"] / "namespace" / "data.mdb").exists()
    assert (caches["new"] / "cache" / "files" / "aa" / "1").exists()
    (old, new) = json.loads(ok(run("cache", "ls", "--json")))
    assert (old["cached_bytes"], new["cached_bytes"]) == (0, 2 * MIB)


def test_rm_with_names_leaves_nothing_to_list(caches: dict[str, Path], run: Run) -> None:
    ok(run("cache", "rm", "--names", OLD.url, NEW.url))
    assert json.loads(ok(run("cache", "ls", "--json"))) == []
    assert sorted(path.name for path in caches["old"].rglob("*") if path.is_file()) == [
        "launch.lock", "launch.lock", "server.lock",
    ]  # fmt: skip


@pytest.mark.parametrize("time", ["-1", "-1s", "999999d"])
def test_nothing_is_older_than_for_ever(caches: dict[str, Path], run: Run, time: str) -> None:
    """-1 is `never` in all other durations."""
    assert "bad " in refused(run("cache", "rm", "--unused", "--names", "--older-than", time))
    for directory in caches.values():
        assert (directory / "cache" / "files" / "aa" / "1").exists()


def test_rm_of_what_was_not_used_for_long(caches: dict[str, Path], run: Run) -> None:
    facts = json.loads(
        ok(run("cache", "rm", "--unused", "--older-than", "30d", "--dry-run", "--json"))
    )
    assert [one["source"] for one in facts["removed"]] == [OLD.url]
    assert (caches["old"] / "cache" / "files").exists(), "--dry-run"
    ok(run("cache", "rm", "--unused", "--older-than", "30d"))
    assert not (caches["old"] / "cache" / "files").exists()
    assert (caches["new"] / "cache" / "files").exists()
    ok(run("cache", "rm", "--unused"))
    assert not (caches["new"] / "cache" / "files").exists()


@pytest.mark.parametrize("how", ["server", "mount", "lock of the source", "lock of the cache"])
def test_rm_of_what_is_used_removes_nothing(
    caches: dict[str, Path], home: StateHome, run: Run, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever shows that it is used. The pid is that of this test."""
    monkeypatch.setattr(ProcessId, "lives", lambda process: process.pid == os.getpid())
    directory = caches["old"]
    held = -1
    if how == "server":
        write_pointer(directory, Pointer("/s", os.getpid()))
    elif how == "mount":
        home.write_mount(MountRecord("/mnt/x", OLD, os.getpid(), str(directory / "server.sock")))
    else:
        name = "server.lock" if how == "lock of the source" else "cache/lock"
        held = os.open(directory / name, os.O_RDWR | os.O_CREAT)
        fcntl.flock(held, fcntl.LOCK_EX)
    assert "a process uses it" in refused(run("cache", "rm", OLD.url))
    assert (directory / "cache" / "files" / "aa" / "1").exists()
    if held >= 0:
        os.close(held)
        return
    (row,) = [one for one in json.loads(ok(run("cache", "ls", "--json"))) if one["in_use"]]
    assert (row["source"], row["pid"]) == (OLD.url, os.getpid())
    ok(run("cache", "rm", "--unused"))
    assert (directory / "cache" / "files" / "aa" / "1").exists()
    assert not (caches["new"] / "cache" / "files").exists()


def test_a_cache_of_two_sources_goes_with_both(home: StateHome, run: Run, tmp_path: Path) -> None:
    shared = tmp_path / "ssd"
    shared.mkdir()
    (shared / "mine.txt").write_text("not a cache")
    for spec in (OLD, NEW):
        keep(home, spec, shared)
    line = refused(run("cache", "rm", OLD.url))
    assert f"its cache {shared} is also that of {NEW.url}" in line
    ok(run("cache", "rm", OLD.url, NEW.url))
    assert not (shared / "files").exists()
    assert (shared / "mine.txt").exists(), "only what is the cache's is removed"


def test_a_link_to_another_cache_is_not_followed(home: StateHome, run: Run, tmp_path: Path) -> None:
    other = keep(home, NEW)
    directory = keep(home, OLD, tmp_path / "moved", noted=False)
    (directory / "cache").symlink_to(other / "cache")
    ok(run("cache", "rm", source_id(OLD)))
    assert (other / "cache" / "files" / "aa" / "1").exists()


def test_wrong_words(run: Run, home: StateHome) -> None:
    assert "give what to remove" in refused(run("cache", "rm"), code=2)
    assert "give what to remove" in refused(run("cache", "rm", "x", "--unused"), code=2)
    assert "no such source, id or directory" in refused(run("cache", "rm", "s3://none"))
