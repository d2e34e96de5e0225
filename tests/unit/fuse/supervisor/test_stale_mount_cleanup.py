"""The record of a mount that has ended: it is removed, unless the next mount wrote it."""

from __future__ import annotations

from pathlib import Path

import pytest

from cachefs.core.model import UfsSpec
from cachefs.core.specs import ClientSpec
from cachefs.fuse.supervisor import stale_mount_cleanup
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import MountRecord, StateHome

BORN, OTHER = "boot:1", "boot:2"
PID = 12345


@pytest.mark.parametrize("field", ["born", "supervisor_born"])
@pytest.mark.parametrize("born", [BORN, OTHER])
def test_a_record_stays_for_the_process_that_it_names_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str, born: str
) -> None:
    """Another process of CacheFS may have the pid of one that was killed."""
    alive = ProcessId(PID, BORN)
    monkeypatch.setattr(ProcessId, "lives", lambda process: process == alive)
    home, source = StateHome(tmp_path), UfsSpec("s3://b")
    pids = {"pid": PID} if field == "born" else {"pid": 1, "supervisor": PID}
    record = MountRecord(mountpoint="/m", source=source, socket="/s", **pids, **{field: born})  # type: ignore[arg-type]
    home.write_mount(record)
    spec = ClientSpec(str(tmp_path), "", source, "/m", transport="kernel")
    stale_mount_cleanup.remove_record(spec, [])
    assert (home.find_mount("/m") is not None) == (born == BORN)
