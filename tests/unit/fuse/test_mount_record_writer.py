"""The record of a mount in a state home that cannot be written."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from cachefs.core.errors import InUse
from cachefs.core.model import UfsSpec
from cachefs.fuse.mount_record_writer import MountRecordWriter
from cachefs.launcher.state import MountRecord, StateHome


def test_the_end_of_a_mount_does_not_fail_because_its_record_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    home = StateHome(tmp_path / "home")
    record = MountRecord("/mnt/data", UfsSpec("s3://bucket"), os.getpid(), "/run/server.sock")
    writer = MountRecordWriter(home, lambda: record)
    writer.write()

    def refuse(*_: object) -> bool:
        raise InUse("cannot be removed: Read-only file system", path="the record")

    monkeypatch.setattr(home, "remove_mount", refuse)
    writer.remove()
    assert [line.levelno for line in caplog.records] == [logging.WARNING]
    assert "the record of this mount stays" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO):
        writer.remove(is_repeated=True)
    assert not caplog.records, "the supervisor removes it again, and logs the failure"
    monkeypatch.undo()
    writer.remove()
    assert home.find_mount("/mnt/data") is None
