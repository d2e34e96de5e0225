"""Remedies as they are printed: their commands reach the master that they concern. No network."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from cachefs.cli import clusters
from cachefs.cli.remedies import completed
from cachefs.cli.settings import connection_flags, load_settings, state_home
from cachefs.core.health import HealthProblem, problem
from cachefs.core.model import UfsSpec
from cachefs.core.specs import MasterAccess
from cachefs.launcher import local
from cachefs.launcher.process_watch import ProcessId
from cachefs.launcher.state import MountRecord, private_dir, write_document

URL = "http://10.0.0.1:19998"


def remedy(found: HealthProblem, url: str = URL, **flags: str) -> str:
    return completed(found, url, load_settings(flags, None)).remedy


def test_commands_of_a_master_name_it_and_the_flags_that_were_given(tmp_path: Path) -> None:
    lost = problem("WORKER_LOST", "w", "", "start it again, or: cachefs workers remove 7282d07f")
    home = {"home": str(tmp_path / "a home"), "token_file": "/token"}
    assert remedy(lost, **home) == (
        "start it again, or: cachefs workers remove 7282d07f"
        f" --master {URL} --home '{tmp_path}/a home' --token-file /token"
    )
    failed = problem("JOB_FAILED", "job 7", "", "cachefs jobs show 7; then cachefs jobs retry 7")
    assert remedy(failed) == (
        f"cachefs jobs show 7 --master {URL}; then cachefs jobs retry 7 --master {URL}"
    )
    full = problem("TIER_FULL", "w", "", "give a smaller --cache-size")
    assert remedy(full) == full.remedy


def test_a_mount_completes_the_settings_of_its_connection(tmp_path: Path) -> None:
    """Flags, variables and files come first. Nothing of it is for another master, and root uses
    nothing that another user recorded."""
    access = MasterAccess("/m/token", tls=True, tls_ca="/m/ca.pem")
    source = UfsSpec("cachefs://10.0.0.1:19998/data")
    record = MountRecord("/mnt", source, 1, "/s", master_access=access)

    def flags(one: MountRecord = record, **given: str) -> list[str]:
        return connection_flags(clusters.of_mount(one, load_settings(given, None, {})))

    of_mount = ["--token-file", "/m/token", "--tls", "--tls-ca", "/m/ca.pem"]
    assert flags() == of_mount
    assert flags(master="10.0.0.1:19998") == of_mount
    assert flags(tls_ca="/ca.pem") == [*of_mount[:-1], "/ca.pem"]
    assert flags(master="10.0.0.2:19998") == []
    assert flags(msgspec.structs.replace(record, owner=1000)) == []
    assert flags(msgspec.structs.replace(record, master_access=MasterAccess())) == []


def test_a_master_of_up_that_has_ended_is_started_by_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProcessId, "lives", lambda process: bool(process.pid))
    away = problem("MASTER_AWAY", URL, "", "start it: cachefs master")
    home = state_home(load_settings({"home": str(tmp_path)}, None))
    directory = str(private_dir(tmp_path / "elsewhere"))

    def record(pid: int) -> None:
        processes = [local.LocalProcess("master", URL, pid)]
        cluster = local.LocalCluster(directory, str(home.path), processes)
        write_document(Path(directory), "cluster.json", msgspec.to_builtins(cluster))
        write_document(home.path, "local.json", {"directory": directory})

    assert remedy(away, home=str(tmp_path)) == away.remedy, "there was no `up`"
    record(0)
    flags = f"--dir {directory} --home {tmp_path}"
    assert remedy(away, home=str(tmp_path)) == f"start it: cachefs up {flags}"
    other = "http://10.0.0.2:19998"
    assert remedy(away, other, home=str(tmp_path)) == away.remedy, "it is another cluster's"
    record(7)
    assert remedy(away, home=str(tmp_path)) == away.remedy, "it runs, and does not answer"
