"""The state home: private directories, whole-file records, removal only by their owner."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from cachefs.core import errors
from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec
from cachefs.launcher import state

SOURCE = UfsSpec("s3://bucket/prefix", {"endpoint_url": "http://127.0.0.1:9000"})


def record(mountpoint: str = "/mnt/data", pid: int = 4711) -> state.MountRecord:
    return state.MountRecord(mountpoint, SOURCE, pid, "/home/u/server.sock")


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_source_dir_is_private_and_stable(tmp_path: Path) -> None:
    home = state.StateHome(tmp_path / "deep" / "home")
    first = home.source_dir(SOURCE)
    assert first == home.source_dir(SOURCE)
    assert first == home.path / "sources" / state.source_id(SOURCE)
    assert mode_of(first) == mode_of(home.path) == mode_of(home.path / "sources") == 0o700
    assert home.server_dirs() == [first]


def test_source_id_follows_the_key() -> None:
    assert state.source_id(SOURCE) == state.source_id(
        UfsSpec("s3://bucket/prefix/", {"endpoint_url": "http://127.0.0.1:9000/", "region": "x"})
    )
    assert state.source_id(SOURCE) != state.source_id(UfsSpec("s3://bucket/prefix"))


def test_an_open_directory_is_closed_to_others(tmp_path: Path) -> None:
    wide = tmp_path / "home"
    wide.mkdir(mode=0o755)
    os.chmod(wide, 0o777)
    state.private_dir(wide)
    assert mode_of(wide) == 0o700


def test_a_linked_home_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to(tmp_path / "real")
    with pytest.raises(errors.NotADirectory):
        state.private_dir(tmp_path / "link")


def test_anothers_directory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = state.private_dir(tmp_path / "home")
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(errors.AccessDenied, match="belongs to user"):
        state.private_dir(path)


def test_a_file_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")
    with pytest.raises(errors.NotADirectory) as caught:
        state.StateHome(tmp_path / "home").source_dir(SOURCE)
    assert str(tmp_path / "home") in caught.value.one_line()


def test_reading_a_missing_home_makes_nothing(tmp_path: Path) -> None:
    home = state.StateHome(tmp_path / "none")
    assert home.mount_records() == []
    assert home.find_mount("/mnt/data") is None
    assert home.remove_mount("/mnt/data") is False
    assert home.server_dirs() == []
    assert not home.path.exists()


def test_mount_records_round_trip(tmp_path: Path) -> None:
    home = state.StateHome(tmp_path)
    odd = record(os.fsdecode(b"/mnt/\xff odd"), pid=2)
    home.write_mount(record())
    home.write_mount(odd)
    assert home.find_mount("/mnt/data") == record()
    assert home.mount_records() == sorted([record(), odd], key=lambda r: r.mountpoint)
    assert mode_of(home.path / "mounts" / f"{state.mount_id('/mnt/data')}.json") == 0o600


def test_a_record_is_removed_only_by_its_process(tmp_path: Path) -> None:
    home = state.StateHome(tmp_path)
    home.write_mount(record(pid=1))
    home.write_mount(record(pid=2))
    assert home.remove_mount("/mnt/data", pid=1) is False
    assert home.find_mount("/mnt/data") == record(pid=2)
    assert home.remove_mount("/mnt/data", pid=2) is True
    assert home.find_mount("/mnt/data") is None


def test_a_record_of_a_client_spec(tmp_path: Path) -> None:
    spec = ClientSpec(str(tmp_path), "/s", SOURCE, "/mnt/data", 5.0)
    made = state.MountRecord.of(spec, 9)
    assert (made.mountpoint, made.source, made.pid, made.socket) == ("/mnt/data", SOURCE, 9, "/s")
    assert (made.sync_interval_s, made.uid, made.gid) == (5.0, os.geteuid(), os.getegid())


@pytest.mark.parametrize("junk", [b"", b"{", b"[]", b'{"pid": "x"}', b"\xff\xfe", b'{"socket": 1}'])
def test_torn_files_read_as_missing(tmp_path: Path, junk: bytes) -> None:
    home = state.StateHome(tmp_path)
    home.write_mount(record())
    (tmp_path / "mounts" / f"{state.mount_id('/mnt/data')}.json").write_bytes(junk)
    (tmp_path / state.POINTER_NAME).write_bytes(junk)
    assert home.mount_records() == []
    assert state.read_pointer(tmp_path) is None


def test_unknown_fields_are_ignored(tmp_path: Path) -> None:
    (tmp_path / state.POINTER_NAME).write_text('{"socket": "/s", "pid": 3, "later": true}')
    assert state.read_pointer(tmp_path) == state.Pointer("/s", 3)


def test_anothers_pointer_is_not_believed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state.write_pointer(tmp_path, state.Pointer("/s", 3))
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert state.read_pointer(tmp_path) is None


def test_a_linked_pointer_is_not_believed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").write_text('{"socket": "/s", "pid": 3}')
    (tmp_path / state.POINTER_NAME).symlink_to(tmp_path / "elsewhere")
    assert state.read_pointer(tmp_path) is None


def test_a_successors_pointer_stays(tmp_path: Path) -> None:
    state.write_pointer(tmp_path, state.Pointer("/s", 1))
    state.write_pointer(tmp_path, state.Pointer("/s", 2))
    assert state.remove_pointer(tmp_path, 1) is False
    assert state.read_pointer(tmp_path) == state.Pointer("/s", 2)
    assert state.remove_pointer(tmp_path, 2) is True
    assert state.remove_pointer(tmp_path, 2) is False


def test_racing_writers_never_show_a_torn_pointer(tmp_path: Path) -> None:
    state.write_pointer(tmp_path, state.Pointer("/s" * 500, 0))
    stop = threading.Event()

    def write(first: int) -> None:
        for pid in range(first, first + 200):
            state.write_pointer(tmp_path, state.Pointer("/s" * 500, pid))

    writers = [threading.Thread(target=write, args=(n,)) for n in (1000, 2000)]
    seen: list[state.Pointer | None] = []

    def read() -> None:
        while not stop.is_set():
            seen.append(state.read_pointer(tmp_path))

    reader = threading.Thread(target=read)
    for thread in (reader, *writers):
        thread.start()
    for thread in writers:
        thread.join()
    stop.set()
    reader.join()
    assert seen
    assert None not in seen
    assert os.listdir(tmp_path) == [state.POINTER_NAME]
